"use strict";
/* A release record from the bytes that all aggregators signed (docs/wire.md, "Release record"): a second reading of
 * them, beside the one in Python, so that a page need not believe who publishes it. It verifies no signature. */
(function (fleetcount) {
  const { Reader, require } = fleetcount.layout;
  const DECIMAL = /^(?:0|[1-9][0-9]{0,9})(?:\.[0-9]{0,24}[1-9])?$/;

  function readLink(reader, index) {
    const hasPrevious = reader.flag();
    const previous = hasPrevious ? reader.take(32) : null,
      previousIndex = hasPrevious ? reader.uint(4) : -1;
    require(previousIndex < index, "the previous record is of window " +
      previousIndex +
      ", allowed: below " +
      index);
    const missing = [];
    let next = previousIndex + 1;
    for (let runs = reader.count(2, 0, 4096); runs > 0; runs--) {
      const first = reader.uint(4),
        count = reader.count(4, 1, 65536),
        reason = reader.text(1, 200);
      require(first === next &&
        first + count <= index, "missing windows must be those in between, each once, in order");
      require(!missing.length ||
        missing[missing.length - 1].reason !== reason, "neighbours of one reason are one run");
      missing.push({ first, count, reason });
      next = first + count;
    }
    require(next === index, "missing windows must be those from " + (previousIndex + 1) + " to below " + index);
    return { previous, previousIndex, missing };
  }

  function readParticipants(reader, noised) {
    require(reader.flag() ===
      noised, "participants is for windows of a question with noised participants, and needed there");
    if (!noised) return null;
    const [raw, low, high] = [reader.term(), reader.term(), reader.term()];
    require(low <= high, "interval of participants is " + low + " to " + high);
    return { raw, low, high };
  }

  /* Behind values 1..V stand larger squares, as in "0,1/2", more bins or points, margins, the weighted sum, the total. */
  function labelOf(window, value) {
    const { domain, release } = window;
    if (value <= domain.values) return domain.label(value);
    let at = value - domain.values;
    for (const { kind, side, dimension } of release.coarser) {
      if (kind === "weighted" && at-- === 1) return "weighted sum";
      if (side || dimension) {
        const above = side ? domain.coarser(side) : domain.margin(dimension - 1);
        if (at <= above.values) return above.label(at);
        at -= above.values;
      }
    }
    return fleetcount.totalLabel(domain);
  }

  function readCell(reader, window, value) {
    const raw = reader.term(),
      estimate = reader.wideFraction(),
      low = reader.term(),
      high = reader.term();
    require(low <= high, "interval of cell " + value + " is " + low + " to " + high);
    return { value, label: labelOf(window, value), raw, estimate, low, high };
  }

  function readDecimal(reader) {
    const text = reader.text(1, 40);
    require(DECIMAL.test(text), "record holds a number that is not plain digits");
    return text;
  }

  function readView(reader) {
    const epsilon = reader.flag() ? readDecimal(reader) : null;
    const adversary = reader.text(1, 1000),
      audience = reader.text(1, 1000),
      delta = readDecimal(reader);
    const neighbours = reader.text(1, 1000),
      sentence = reader.text(1, 1000);
    require(Number(delta) <= 1, "delta is " + delta + ", allowed: 0..1");
    return { adversary, audience, epsilon, delta, neighbours, sentence };
  }

  /**
   * Return the record whose canonical bytes these are: {window, windowBytes, link, participants, releasedAt, baseline,
   * cells, views}. Counts are BigInt, estimates exact fractions. Throws layout.DecodeError on anything else.
   */
  function decodeRecord(data) {
    const reader = new Reader(data, "record", 2 ** 21);
    require(reader.ascii(8) === "FCRECD02", "record does not begin with FCRECD02");
    const windowBytes = reader.sized(4, 1, 2 ** 20),
      window = fleetcount.decodeWindow(windowBytes);
    const link = readLink(reader, window.question.index),
      participants = readParticipants(reader, window.question.noised);
    const releasedAt = reader.time();
    require(releasedAt >= window.twoCloses && releasedAt % window.precision === 0, "released_at is " +
      releasedAt +
      ", allowed: a multiple of " +
      window.precision +
      " s from " +
      window.twoCloses +
      " on");
    require(reader.flag() === (window.mode === "response"), "baseline_raw is for response mode, and needed there");
    const baseline = window.mode === "response" ? reader.term() : null;
    const cells = [];
    for (let value = 1, count = reader.count(2, window.cells, window.cells); value <= count; value++) {
      cells.push(readCell(reader, window, value));
    }
    const views = Array.from({ length: reader.count(1, 1, 32) }, () => readView(reader));
    reader.finish();
    return { window, windowBytes, link, participants, releasedAt, baseline, cells, views };
  }

  fleetcount.decodeRecord = decodeRecord;
})((window.fleetcount = window.fleetcount || {}));
