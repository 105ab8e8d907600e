"use strict";
/* The numbers beside a page: scripts that hand over one JSON value each, since a page from a disk can fetch nothing;
 * and the check of a window against its signed record. */
(function (fleetcount) {
  const given = new Map(),
    waiting = new Map();

  /** Take a value from a script beside the page: itself, or a text that holds its JSON packed, in base64. */
  function give(name, value) {
    const whole = typeof value === "string" ? unpacked(value) : Promise.resolve(value);
    given.set(name, whole);
    for (const done of waiting.get(name) || []) done(whole);
    waiting.delete(name);
  }

  /** Return the value whose JSON was packed in zlib's format. */
  function unpacked(text) {
    const unpacking = new DecompressionStream("deflate");
    return new Response(new Blob([fleetcount.fromBase64(text)]).stream().pipeThrough(unpacking)).json();
  }

  /** Return the value that a script hands over as `name`; the script is loaded once. */
  function load(name, address) {
    if (given.has(name)) return given.get(name);
    return new Promise((done, failed) => {
      const known = waiting.has(name);
      waiting.set(name, [...(waiting.get(name) || []), done]);
      if (known) return;
      const script = document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        script.remove();
        if (!given.has(name)) failed(new Error(address + " does not hold what it should"));
      });
      script.addEventListener("error", () => failed(new Error(address + " cannot be loaded")));
      document.head.append(script);
    });
  }

  /** Let go of a value that was handed over, so that a long question does not fill the memory. */
  function forget(name) {
    given.delete(name);
  }

  /** Return the cells of a question for `drawMap`, none if its values have no places. */
  function cellsOf(question) {
    return (question.rings || []).map((flat, place) => ({
      value: place + 1,
      label: question.labels[place],
      ring: Array.from({ length: flat.length / 2 }, (_, corner) => [flat[2 * corner], flat[2 * corner + 1]]),
    }));
  }

  const padded = (index) => String(index).padStart(5, "0");

  /** Return a time in words, in UTC. */
  function utc(seconds) {
    return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
  }

  function pinnedOf(question) {
    if (!question.keys) return null;
    return Object.fromEntries(
      Object.entries(question.keys).map(([id, keys]) => [
        id,
        keys.map(([key, notBefore, notAfter]) => ({ key: fleetcount.fromBase64(key), notBefore, notAfter })),
      ]),
    );
  }

  /**
   * Load the signed record of a window, read it and check every signature under it.
   * Returns {record, verdict, bytes}; throws where the record is none.
   */
  async function signedRecord(question, index) {
    const name = "record-" + index;
    const [text, signatures] = await load(name, "records/" + padded(index) + ".js");
    forget(name);
    const bytes = fleetcount.fromBase64(text),
      record = fleetcount.decodeRecord(bytes);
    const verdict = await fleetcount.verifyRecord(
      record,
      bytes,
      signatures.map(fleetcount.fromBase64),
      pinnedOf(question),
    );
    return { record, verdict, bytes };
  }

  /** Write into an element who signed, in words, with what that shows. */
  function showVerdict(element, verdict) {
    const count = verdict.verified + " of " + verdict.names.length;
    const whose = verdict.pinned
      ? "under the keys that this page's publisher pins"
      : "under the keys that the record itself names: it agrees with itself, who signed it only you can know";
    element.textContent =
      count +
      " signatures verified in your browser, " +
      whose +
      (verdict.all
        ? "."
        : " (" +
          verdict.names
            .filter((one) => !one.good)
            .map((one) => one.id + ": " + one.why)
            .join("; ") +
          ").");
    element.className = verdict.all ? "good" : "bad";
  }

  Object.assign(fleetcount, { give, load, forget, cellsOf, utc, signedRecord, showVerdict, padded });
})((window.fleetcount = window.fleetcount || {}));
