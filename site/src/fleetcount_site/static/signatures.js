"use strict";
/* Ed25519 and SHA-256 in the reader's own browser: its own cryptography, or @noble's where a page has none (plain http
 * on another machine). It decides nothing about who is trusted: the caller brings the keys. */
(function (fleetcount) {
  const here = document.currentScript ? document.currentScript.src : "";
  let noble = null;

  /* Modules load over http alone; a page from a file has the browser's own cryptography. */
  function library() {
    if (!noble) {
      const from = (name) => import(new URL("vendor/" + name, here).href);
      noble = Promise.all([from("noble-ed25519/index.js"), from("noble-hashes/sha2.js")]).then(([ed, sha]) => {
        ed.hashes.sha512 = sha.sha512;
        return { ed, sha };
      });
    }
    return noble;
  }

  async function own(key, signature, message) {
    const imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
    return crypto.subtle.verify({ name: "Ed25519" }, imported, signature, message);
  }

  /** Return whether a signature (64 bytes) of a message verifies under a key (32 bytes). Throws where nothing can. */
  async function verifySignature(key, signature, message) {
    if (key.length !== 32 || signature.length !== 64) return false;
    if (window.crypto && crypto.subtle) {
      try {
        return await own(key, signature, message);
      } catch (error) {
        // A browser whose cryptography has no Ed25519 yet; a key that is no point ends here, too, and fails below.
      }
    }
    const { ed } = await library();
    try {
      return ed.verify(signature, message, key, { zip215: false });
    } catch (error) {
      return false;
    }
  }

  /** Return SHA-256 of bytes, as bytes. */
  async function sha256(data) {
    if (window.crypto && crypto.subtle) return new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    return (await library()).sha.sha256(data);
  }

  const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

  /** Return the bytes of base64; throws on anything but its one spelling. */
  function fromBase64(text) {
    const raw = atob(text);
    if (btoa(raw) !== text) throw new Error("base64 that is not canonical");
    return Uint8Array.from(raw, (character) => character.charCodeAt(0));
  }

  /**
   * Check every signature under a record.
   *
   * record      of fleetcount.decodeRecord; bytes its canonical bytes; signatures one a aggregator, in their order
   * pinned      {aggregator id: [{key, notBefore, notAfter}]} that a publisher pins, keys as bytes; null if none are
   *
   * Returns {verified, all, pinned, names: [{id, operator, good, why}]}: `pinned` says whether every key is a pinned
   * one; without, good signatures show only that the record agrees with itself.
   */
  async function verifyRecord(record, bytes, signatures, pinned) {
    const names = [];
    for (const [place, one] of record.window.aggregators.entries()) {
      const signature = signatures[place];
      let good = false,
        why = "";
      const trusted = pinned && Object.hasOwn(pinned, one.id) ? pinned[one.id] : null;
      if (pinned && !trusted) why = "not among the pinned keys";
      else if (!signature) why = "no signature";
      else if (pinned && !trusted.some((other) => hex(other.key) === hex(one.key)))
        why = "another key than the pinned one";
      else {
        // A key that was succeeded counts until its end, and its successor from its beginning.
        const now = (other) => record.releasedAt >= other.notBefore && record.releasedAt < other.notAfter;
        const keys = trusted ? trusted.filter(now).map((other) => other.key) : [one.key];
        for (const key of keys) good = good || (await verifySignature(key, signature, bytes));
        if (!good) why = "does not verify";
      }
      names.push({ id: one.id, operator: one.operator, good, why });
    }
    const verified = names.filter((one) => one.good).length;
    const all = verified === names.length && signatures.length === names.length;
    return { verified, all, pinned: pinned !== null, names };
  }

  Object.assign(fleetcount, { verifySignature, verifyRecord, sha256, fromBase64, hex });
})((window.fleetcount = window.fleetcount || {}));
