"use strict";
/* The page of one release, made in the browser from the bytes that the aggregators signed and from nothing else but the
 * outlines of its cells. */
(function (fleetcount) {
  const { shown, interval, utc } = fleetcount;
  const at = (id) => document.getElementById(id);
  let drawn = null,
    question = null;

  function facts(list) {
    at("facts").replaceChildren(
      ...list.flatMap(([name, text]) => {
        const term = document.createElement("dt"),
          value = document.createElement("dd");
        term.textContent = name;
        value.textContent = text;
        return [term, value];
      }),
    );
  }

  function noiseText({ release, domain, aggregators }) {
    const each = {
      geometric: "two-sided geometric noise of epsilon ",
      gaussian: "discrete Gaussian noise of variance ",
      "one-sided": "one-sided geometric noise of epsilon ",
    };
    if (release.kind === "exact") return "none; the numbers that were opened are exact";
    const above = release.coarser.map(
      (level) => ", " + level.number + " on " + levelText(domain, level),
    );
    return (
      "each of " + aggregators.length + " aggregators added its own " + each[release.kind] + release.number + above.join("")
    );
  }

  function levelText(domain, { kind, side, dimension }) {
    if (side) return domain.larger(side);
    if (dimension) return "the margin of " + domain.signals[dimension - 1];
    if (kind === "weighted") return "the weighted sum";
    return (domain.most > 1 ? "the number that " : "the ") + fleetcount.totalLabel(domain);
  }

  function answerText({ mode, mechanism }) {
    if (mode === "direct") return "devices answer the truth, in secret shares";
    if (mode === "sampling")
      return "each device answers with the chance " + mechanism.rate + ", hidden among coins of all others";
    return "each device randomizes its answer (" + mechanism.kind + ")";
  }

  function showStatement(record) {
    fleetcount.fillTable(
      at("statement"),
      "Privacy statement: what each adversary could learn of one device",
      [
        { name: "who" },
        { name: "epsilon", number: true },
        { name: "delta", number: true },
        { name: "in words", wide: true },
      ],
      record.views.map((view) => [
        view.audience,
        view.epsilon === null ? "none finite" : view.epsilon,
        view.delta,
        view.sentence,
      ]),
    );
  }

  function showFacts(record, index) {
    const { window } = record,
      level = window.release.level.times(fleetcount.layout.Fraction.of(100)).ending + " %";
    const missing = record.link.missing.map(
      (one) => "window " + one.first + (one.count > 1 ? " to " + (one.first + one.count - 1) : "") + ": " + one.reason,
    );
    facts([
      ["question", window.name],
      [window.signals.length > 1 ? "signals" : "signal", window.signals.join(" x ")],
      ["asked", utc(window.opens) + " to " + utc(window.twoCloses)],
      ["released", utc(record.releasedAt)],
      ["answers", answerText(window)],
      ["noise", noiseText(window)],
      ["intervals", level + " each, alone"],
      [
        "participants",
        record.participants
          ? interval(record.participants.low, record.participants.high) + " (" + level + ")"
          : "at least " + window.minBatchSize,
      ],
      [
        "in its question",
        "window " +
          index +
          (record.link.previous ? ", after the record of window " + record.link.previousIndex : ", the first record"),
      ],
      ...(missing.length ? [["windows missing before", missing.join("; ")]] : []),
    ]);
    return level;
  }

  /* On which side of its threshold a one-sided release shows a count: the opened number is never too small, or under
     "down" never too large. */
  function sideOf(cell, threshold, down) {
    const [low, high] = down ? [cell.raw, cell.high] : [cell.low, cell.raw];
    return high <= threshold ? "safe" : low > threshold ? "danger" : "not known";
  }

  function showCells(record, level) {
    const thresholds = record.window.release.thresholds;
    const columns = [
      "cell",
      level + " interval",
      "estimate",
      "opened number",
      ...(thresholds.length ? ["side"] : []),
    ];
    const rows = record.cells.map((cell) => [
      cell.label,
      interval(cell.low, cell.high, cell.estimate.number),
      shown(cell.estimate.number),
      shown(cell.raw),
      ...(thresholds.length ? [sideOf(cell, BigInt(thresholds[cell.value - 1]), record.window.release.down)] : []),
    ]);
    const named = columns.map((name, place) => ({ name, number: place > 0 && place < 4 }));
    fleetcount.fillTable(at("table"), "Counts", named, rows);
  }

  /* Two signals in rows and columns, with their margins and the total where these were opened. */
  function showBoth(record, level) {
    const { domain, release } = record.window,
      two = domain.kind === "cross" && domain.parts.length === 2;
    at("both").hidden = !two;
    if (!two) return;
    const [rows, columns] = domain.shape,
      opened = (kind) => release.coarser.some((one) => one.kind === kind);
    const text = (place) => {
      const cell = record.cells[place];
      return interval(cell.low, cell.high, cell.estimate.number);
    };
    const margin = (place) => (opened("margin") ? [text(place)] : []);
    const names = (part, count) => Array.from({ length: count }, (_, place) => domain.parts[part].label(place + 1));
    const body = names(0, rows).map((name, row) => [
      name,
      ...names(1, columns).map((_, column) => text(row * columns + column)),
      ...margin(domain.values + row),
    ]);
    const foot = ["all", ...names(1, columns).map((_, column) => text(domain.values + rows + column))];
    if (opened("margin")) body.push([...foot, opened("total") ? text(record.cells.length - 1) : ""]);
    const heads = [domain.signals.join(" x "), ...names(1, columns), ...(opened("margin") ? ["all"] : [])];
    const named = heads.map((name, place) => ({ name, number: place > 0 }));
    fleetcount.fillTable(at("crosstab"), level + " intervals, each alone", named, body);
  }

  function showMap(record) {
    if (!question.rings) return;
    const cells = fleetcount.cellsOf(question),
      scale = fleetcount.colourScale(question.most, "devices");
    const first = record.cells.slice(0, cells.length);
    if (!drawn) {
      drawn = fleetcount.drawMap(at("map"), {
        cells,
        degrees: question.degrees,
        streets: question.streets,
        scale,
        attribution: question.attribution,
        tip: (value) => drawn.texts[value - 1],
        onPick: (value) => {
          drawn.pick([value]);
          at("said").textContent = drawn.texts[value - 1];
        },
      });
      fleetcount.drawScale(at("scale"), scale, fleetcount.mapNotes(question.labels));
    }
    drawn.texts = first.map((cell) => cell.label + ": " + interval(cell.low, cell.high, cell.estimate.number));
    drawn.show(
      first.map((cell) => cell.estimate.number),
      first.map((cell) => cell.low <= 0n),
      first.map((cell) => fleetcount.belowNoise(cell.low, cell.high, cell.estimate.number)),
    );
  }

  async function show() {
    const asked = /^#([0-9]{1,5})$/.exec(location.hash);
    const place = asked
      ? question.windows.findIndex(([index]) => index === Number(asked[1]))
      : question.windows.length - 1;
    if (place < 0) throw new Error("window " + asked[1] + " has no record here");
    const [index] = question.windows[place],
      { record, verdict, bytes } = await fleetcount.signedRecord(question, index);
    const only = question.windows.length === 1 && index === 0;
    document.title = record.window.name + (only ? "" : ", window " + index);
    at("title").textContent = document.title;
    fleetcount.showVerdict(at("verdict"), verdict);
    showStatement(record);
    const level = showFacts(record, index);
    showBoth(record, level);
    showCells(record, level);
    showMap(record);
    at("file").href = "records/" + fleetcount.padded(index) + ".json.gz";
    at("digest").textContent = fleetcount.hex(await fleetcount.sha256(bytes));
    for (const [id, other] of [
      ["before", place - 1],
      ["after", place + 1],
    ]) {
      at(id).hidden = !question.windows[other];
      if (question.windows[other]) at(id).href = "#" + question.windows[other][0];
    }
    document.body.dataset.ready = "all";
  }

  function failed(error) {
    at("verdict").textContent = "This release cannot be shown: " + error.message;
    at("verdict").className = "bad";
  }

  async function start() {
    question = await fleetcount.load("question", "data/question.js");
    window.addEventListener("hashchange", () => show().catch(failed));
    await show();
  }

  start().catch(failed);
})((window.fleetcount = window.fleetcount || {}));
