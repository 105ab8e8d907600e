"use strict";
/* Keeps a console's page up to date: asks for its parts every few seconds and replaces those that say something else. */
(function () {
  const EVERY_MS = 3000;
  const known = new Map();

  function put(name, text) {
    if (known.get(name) === text) return;
    known.set(name, text);
    for (const element of document.querySelectorAll("[data-part]")) {
      if (element.dataset.part !== name || element.innerHTML === text) continue;
      // The element itself stays, with its focus and how far it is scrolled.
      const left = element.scrollLeft;
      const top = element.scrollTop;
      element.innerHTML = text;
      element.scrollTo(left, top);
    }
  }

  async function update() {
    try {
      const answer = await fetch("now", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      for (const [name, text] of Object.entries(await answer.json())) put(name, text);
    } catch {
      put("state", '<span class="bad">The console does not answer: what is below is older.</span>');
    }
    setTimeout(update, EVERY_MS);
  }

  update();
})();
