"use strict";
/* What each party sees of one vehicle's report: shares as shades, and the answer of those who put them together. */
(function (fleetcount) {
  const find = (id) => document.getElementById(id);
  let layout = null;

  const make = (name, words, kind) => {
    const element = document.createElement(name);
    if (words !== undefined) element.textContent = words;
    if (kind) element.className = kind;
    return element;
  };

  /** Draw a cell a square, in the grid's own rows where there are any, the first row at the bottom. */
  function picture(shades, words, lit) {
    const columns = layout.columns || Math.max(1, Math.ceil(Math.sqrt(shades.length)));
    const rows = Math.ceil(shades.length / columns);
    const canvas = make("canvas");
    canvas.width = columns;
    canvas.height = rows;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words);
    const context = canvas.getContext("2d");
    shades.forEach((shade, place) => {
      context.fillStyle = lit === undefined ? "rgb(" + shade + "," + shade + "," + shade + ")"
        : place + 1 === lit ? fleetcount.ink("s1") : fleetcount.ink("card");
      context.fillRect(place % columns, rows - 1 - Math.floor(place / columns), 1, 1);
    });
    const figure = make("figure");
    figure.append(canvas, make("figcaption", words));
    return figure;
  }

  const round = (place, count) => count === 1 ? "the answer" : place === 0 ? "round one" : "round two";

  function card(title, lead, figures, ...more) {
    const item = make("li");
    const row = make("div", undefined, "shades");
    row.append(...figures);
    item.append(make("h3", title), make("p", lead), row, ...more);
    return item;
  }

  function bytes(shown) {
    const line = make("p", fleetcount.shown(shown.bytes) + " bytes, beginning with ", "soft");
    line.append(make("code", shown.hex));
    return line;
  }

  function fill(seen) {
    const cards = seen.parties.map((one) => card(one.id + ", run by " + one.operator,
      "A number a cell, each as likely as any other.",
      one.shades.map((shades, place) => picture(shades, round(place, seen.rounds) + ", its share")), bytes(one)));
    cards.push(card("The broker", "Sealed bytes, and that this vehicle sent them now.",
      seen.broker.shades.map((shades, place) => picture(shades, round(place, seen.rounds) + ", sealed")), bytes(seen.broker)));
    const { places, sentence, truth } = seen.together;
    const empty = seen.parties[0].shades[0];
    const together = card("All of them together", "Only if every operator breaks its word: the shares add up to the answer.",
      places.map(([place, label], at) => picture(empty, round(at, seen.rounds) + ": " + label, place)), make("p", sentence));
    if (truth) together.append(make("p", "In truth it was in " + truth + ", known only because this is a demo.", "soft"));
    together.className = "together";
    find("cards").replaceChildren(...cards, together);
  }

  async function load() {
    const button = find("again");
    button.disabled = true;
    try {
      const answer = await fetch("report.json", { cache: "no-store" });
      if (answer.ok) fill(await answer.json());
      button.disabled = false;
    } catch (error) {
      button.disabled = true; // The demo has ended; what was drawn stays.
    }
  }

  /** Draw the cards of a question whose window is signed. */
  function watchCards(question) {
    layout = { columns: question.columns };
    load();
  }

  find("again").addEventListener("click", load);
  fleetcount.watchCards = watchCards;
})(window.fleetcount = window.fleetcount || {});
