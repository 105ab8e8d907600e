"use strict";
/* The page of a question: the map of one window, a slider over all of them, a cell's line with its band, and the sum of a
 * region that the reader draws. No number stands without its interval. */
(function (fleetcount) {
  const { shown, interval, utc } = fleetcount;
  const at = (id) => document.getElementById(id);
  const question = {};
  let row = 0,
    picked = 1,
    region = [],
    map = null,
    line = null,
    timer = null,
    step = 0;

  const chunkOf = (place) => question.chunks.findIndex(([first, count]) => place >= first && place < first + count);

  function chunk(number) {
    return fleetcount.load("numbers-" + number, "data/numbers-" + number + ".js");
  }

  /* The numbers of one window, by column. */
  async function numbers(place) {
    const number = chunkOf(place),
      held = await chunk(number);
    const index = held.rows[place - question.chunks[number][0]];
    const column = (name) => index.map((one) => held[name][one]);
    return { raw: column("raw"), estimate: column("estimate"), low: column("low"), high: column("high") };
  }

  /* Every window's numbers of some cells, a script for some dozens of them; says how far it is where that takes long.
   * Returns what gives a cell's columns and, for each window, its place in them. */
  async function history(values, say) {
    const numberOf = (value) => Math.floor((value - 1) / question.line);
    const held = new Map();
    const numbers = new Set(values.map(numberOf));
    for (const number of numbers) {
      if (say && numbers.size > 2) say("loading " + (held.size + 1) + " of " + numbers.size);
      held.set(number, await fleetcount.load("line-" + number, "data/line-" + number + ".js"));
    }
    if (say) say("");
    return (value) => {
      const columns = held.get(numberOf(value));
      return { columns, places: columns.rows[(value - 1) % question.line] };
    };
  }

  const windowText = (place) =>
    (question.windows.length > 1 ? "window " + question.windows[place][0] + ", " : "") + utc(question.windows[place][1]);

  async function show(place) {
    const mine = ++step;
    const now = await numbers(place);
    if (mine !== step) return;
    row = place;
    question.now = now;
    if (map)
      map.show(
        now.estimate,
        now.low.map((low) => low <= 0),
        now.low.map((low, place) => fleetcount.belowNoise(low, now.high[place], now.estimate[place])),
      );
    at("slider").value = String(place);
    at("slider").setAttribute("aria-valuetext", windowText(place));
    at("when").textContent = windowText(place);
    at("release").href = "release.html#" + question.windows[place][0];
    showCell();
    showTogether();
    showRegion();
    if (line) line.mark(placeOnLine());
    rested();
  }

  /* What need not follow every step of a slider that moves. */
  let resting = null;
  function rested() {
    clearTimeout(resting);
    resting = setTimeout(() => {
      at("said").textContent = windowText(row) + ". " + cellText();
      if (at("numbers").open) fillNumbers();
    }, 350);
  }

  function cellText() {
    const now = question.now,
      place = picked - 1;
    return (
      question.labels[place] +
      ": " +
      shown(now.estimate[place]) +
      ", " +
      question.level +
      " interval " +
      interval(now.low[place], now.high[place], now.estimate[place])
    );
  }

  function showCell() {
    const now = question.now,
      place = picked - 1;
    at("cell-name").textContent = "Cell " + question.labels[place] + " (number " + picked + ")";
    at("cell-range").textContent = interval(now.low[place], now.high[place], now.estimate[place]);
    at("cell-text").textContent =
      "is the " +
      question.level +
      " interval in " +
      windowText(row) +
      "; estimate " +
      shown(now.estimate[place]) +
      ", opened number " +
      shown(now.raw[place]);
  }

  /* All cells together, of sets the vehicles that told any, by the total that was opened with noise of its own. */
  function showTogether() {
    if (!question.totals.length) return;
    const [raw, estimate, low, high] = question.totals[row];
    at("together").textContent =
      question.whole +
      ": " +
      interval(low, high, estimate) +
      " (" +
      question.level +
      " interval; estimate " +
      shown(estimate) +
      ", opened total " +
      shown(raw) +
      ")";
  }

  async function pick(value) {
    picked = value;
    if (map) map.pick(region.length ? region : [value]);
    showCell();
    rested();
    await drawCellLine();
  }

  const placeOnLine = () => question.times.indexOf(question.windows[row][1]);

  async function drawCellLine() {
    if (question.windows.length < 2) return;
    const value = picked;
    const { columns, places } = (await history([value]))(value);
    if (value !== picked) return;
    const data = { times: question.times, estimates: [], low: [], high: [] };
    const found = new Map(question.windows.map(([, opens], place) => [opens, places[place]]));
    for (const time of question.times) {
      const place = found.get(time);
      data.estimates.push(place === undefined ? null : columns.estimate[place]);
      data.low.push(place === undefined ? null : columns.low[place]);
      data.high.push(place === undefined ? null : columns.high[place]);
    }
    if (line) line.update(data);
    else {
      const rows = new Map(question.windows.map(([, opens], place) => [opens, place]));
      line = fleetcount.drawLine(at("line"), {
        data,
        onTime: (place) => {
          if (rows.has(question.times[place])) show(rows.get(question.times[place]));
        },
      });
    }
    line.mark(placeOnLine());
  }

  // Regions.

  function setRegion(values) {
    region = values;
    at("cells").value = spans(values);
    if (map) map.pick(values.length ? values : [picked]);
    at("region-all").textContent = "";
    showRegion();
  }

  function spans(values) {
    const ordered = [...values].sort((a, b) => a - b),
      parts = [];
    for (let start = 0, end = 0; start < ordered.length; start = end + 1) {
      for (end = start; ordered[end + 1] === ordered[end] + 1;) end++;
      parts.push(end > start ? ordered[start] + "-" + ordered[end] : String(ordered[start]));
    }
    return parts.join(",");
  }

  function parsed(text) {
    const values = new Set();
    const named = text.replace(/\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)/g, (square, x, y) => {
      const place = question.labels.indexOf(x + "," + y);
      if (place < 0) throw new Error("no cell is called " + square);
      return String(place + 1);
    });
    const whole = question.labels.indexOf(text.trim());
    if (whole >= 0 && !/^[0-9,\s-]*$/.test(text)) return [whole + 1];
    for (const part of named
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean)) {
      const match = /^([0-9]{1,4})(?:-([0-9]{1,4}))?$/.exec(part);
      const first = match && Number(match[1]),
        last = match && Number(match[2] || match[1]);
      if (!match || first < 1 || last < first || last > question.labels.length) {
        throw new Error(
          "'" + part.slice(0, 20) + "' is no cell; allowed: 1 to " + question.labels.length + ", as in 1,5-9, and squares as (7,2)",
        );
      }
      for (let value = first; value <= last; value++) values.add(value);
    }
    return [...values];
  }

  const plus = (numbers) => numbers.reduce((sum, one) => sum + one, 0);

  /* A region's opened numbers added up over windows, by their rows; with what was opened beside the cells. */
  function opened(value, rows) {
    if (!question.law.joined) return value;
    const excess = question.excess[0].map((_, place) => plus(rows.map((one) => question.excess[one][place])));
    return { value, chosen: region, excess };
  }

  function sumText(value, rows, together, what) {
    try {
      const sum = fleetcount.sumInterval(question.law, opened(value, rows), region.length, rows.length, together);
      return what + ": " + interval(sum.low, sum.high, sum.estimate) + " (estimate " + shown(sum.estimate) + ")";
    } catch (error) {
      if (!(error instanceof fleetcount.TooLargeError)) throw error;
      return what + ": " + error.message + "; fleetcount question export --sum computes it";
    }
  }

  function showRegion() {
    at("region").hidden = !region.length;
    if (!region.length) return;
    const value = plus(region.map((one) => question.now.raw[one - 1]));
    const cells = region.length + (region.length > 1 ? " cells" : " cell");
    at("region-now").textContent = sumText(value, [row], 1, cells + " in " + windowText(row));
  }

  async function sumAll() {
    const chosen = region;
    const held = await history(chosen, (text) => {
      at("region-all").textContent = text;
    });
    if (chosen !== region) return;
    let value = 0;
    for (const one of chosen) {
      const { columns, places } = held(one);
      if (columns.raw[places[row]] !== question.now.raw[one - 1]) {
        at("region-all").textContent = "Lines and map have different numbers: do not believe this page.";
        return;
      }
      for (const place of places) value += columns.raw[place];
    }
    const units = new Map();
    for (const unit of question.units) units.set(unit, (units.get(unit) || 0) + 1);
    at("region-all").textContent = sumText(
      value,
      question.windows.map((_, place) => place),
      Math.max(...units.values()),
      "in all " + question.windows.length + " released windows, a device once in each",
    );
  }

  // The same numbers as a table.

  function fillNumbers() {
    const now = question.now;
    const rows = question.labels.map((label, place) => [
      label,
      interval(now.low[place], now.high[place], now.estimate[place]),
      shown(now.estimate[place]),
      shown(now.raw[place]),
    ]);
    fleetcount.fillTable(
      at("table"),
      "Counts in " + windowText(row),
      [
        { name: "cell" },
        { name: question.level + " interval", number: true },
        { name: "estimate", number: true },
        { name: "opened number", number: true },
      ],
      rows,
      (place) => pick(place + 1),
    );
  }

  /* Whether what sums are joined with is that of a signed record, whose margins stand behind its cells. */
  function joinedWith(record, excess) {
    const raw = record.cells.map((cell) => Number(cell.raw)),
      { law, labels } = question;
    const above = law.joined.shape.length ? raw.slice(labels.length) : raw.slice(-1);
    return fleetcount.excessOf(law.joined, raw.slice(0, labels.length), above).every((one, at) => one === excess[at]);
  }

  async function verify() {
    const state = at("verdict"),
      [index] = question.windows[row];
    state.textContent = "checking ...";
    state.className = "soft";
    try {
      const place = row,
        now = await numbers(place),
        { record, verdict } = await fleetcount.signedRecord(question, index);
      const signed = (cell, columns, at) =>
        BigInt(columns.raw[at]) === record.cells[cell].raw &&
        BigInt(columns.low[at]) === record.cells[cell].low &&
        BigInt(columns.high[at]) === record.cells[cell].high;
      let same = now.raw.every((_, cell) => signed(cell, now, cell));
      if (question.totals.length) {
        const [raw, , low, high] = question.totals[place];
        same = same && signed(record.cells.length - 1, { raw: [raw], low: [low], high: [high] }, 0);
      }
      if (question.law.joined) same = same && joinedWith(record, question.excess[place]);
      if (question.windows.length > 1) {
        const value = picked;
        const { columns, places } = (await history([value]))(value);
        same = same && signed(value - 1, columns, places[place]);
      }
      fleetcount.showVerdict(state, verdict);
      const name = question.windows.length > 1 ? "Window " + index + ": " : "";
      state.textContent =
        name +
        state.textContent +
        (same
          ? " The numbers shown are the signed ones."
          : " The numbers shown are not the signed ones: do not believe this page.");
      if (!same) state.className = "bad";
    } catch (error) {
      state.textContent = "The record of window " + index + " cannot be checked: " + error.message;
      state.className = "bad";
    }
  }

  function play() {
    const button = at("play");
    if (timer) {
      clearInterval(timer);
      timer = null;
    } else {
      if (row === question.windows.length - 1) show(0);
      timer = setInterval(() => {
        if (row >= question.windows.length - 1) play();
        else show(row + 1);
      }, 250);
    }
    button.textContent = timer ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(Boolean(timer)));
  }

  function drawMap() {
    const scale = fleetcount.colourScale(question.most, "devices");
    map = fleetcount.drawMap(at("map"), {
      cells: fleetcount.cellsOf(question),
      degrees: question.degrees,
      streets: question.streets,
      scale,
      attribution: question.attribution,
      onPick: (value, more) => {
        if (more) setRegion(region.includes(value) ? region.filter((one) => one !== value) : [...region, value]);
        pick(value);
      },
      onArea: (values) => setRegion(values),
      tip: (value) =>
        question.labels[value - 1] +
        ": " +
        interval(question.now.low[value - 1], question.now.high[value - 1], question.now.estimate[value - 1]),
    });
    fleetcount.drawScale(at("scale"), scale, fleetcount.mapNotes(question.labels));
    at("draw").addEventListener("click", () => {
      const on = at("draw").getAttribute("aria-pressed") !== "true";
      at("draw").setAttribute("aria-pressed", String(on));
      map.draw(on);
    });
  }

  function timeline() {
    const times = new Set(question.windows.map(([, opens]) => opens));
    for (const [first, count] of question.missing) {
      for (let index = first; index < first + count; index++) times.add(question.first + index * question.every);
    }
    return [...times].sort((a, b) => a - b);
  }

  async function start() {
    Object.assign(question, await fleetcount.load("question", "data/question.js"));
    if (question.law.joined) question.excess = await fleetcount.load("excess", "data/excess.js");
    question.times = timeline();
    row = question.windows.length - 1;
    const slider = at("slider");
    slider.max = String(row);
    slider.value = String(row);
    if (question.rings) drawMap();
    await show(row);
    if (map) map.pick([picked]);
    document.body.dataset.ready = "map";
    slider.addEventListener("input", () => show(Number(slider.value)));
    at("play").addEventListener("click", play);
    at("verify").addEventListener("click", verify);
    at("numbers").addEventListener("toggle", () => {
      if (at("numbers").open) fillNumbers();
    });
    at("region-sum").addEventListener("click", sumAll);
    at("clear").addEventListener("click", () => setRegion([]));
    at("cells").addEventListener("change", () => {
      at("cells-state").textContent = "";
      try {
        setRegion(parsed(at("cells").value));
      } catch (error) {
        at("cells-state").textContent = error.message;
      }
    });
    const busiest = question.now.estimate.indexOf(Math.max(...question.now.estimate)) + 1;
    await pick(busiest);
    await verify();
    document.body.dataset.ready = "all";
  }

  start().catch((error) => {
    at("when").textContent = "This page cannot show its numbers: " + error.message;
    at("when").className = "bad";
  });
})((window.fleetcount = window.fleetcount || {}));
