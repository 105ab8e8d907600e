"use strict";
/* The page of a demo that runs: what its server says, event by event, as a map, a table and words. It reads a signed
 * record by itself and shows no number of one whose signatures do not verify. */
(function (fleetcount) {
  const { shown, interval } = fleetcount;
  const find = (id) => document.getElementById(id);
  const known = { question: null, expectation: null, receipts: null, release: null, signed: null, state: null };
  const LAYERS = {
    expected: "What the exact law expects before anybody is asked: the mean of the estimate, which is the truth. " +
      "A demo knows it; nobody else does.",
    receipts: "Vehicles of this demo that hold every aggregator's receipt, told by the vehicles themselves: of round " +
      "one first, then of the whole report. " +
      "No aggregator tells how many took part.",
    estimate: "The signed release: each cell's estimate. Its interval is in the table and beside the pointer.",
    truth: "What a count without protection would have given, known only because this is a demo.",
    width: "How wide each cell's interval is: high end less low end.",
  };
  const STATES = { starting: "starting", asking: "asking", released: "released", failed: "failed",
    interrupted: "interrupted", closed: "ended" };
  let layer = "expected", byHand = false, map = null, scale = null, picked = null;

  const text = (element, words) => { if (element.textContent !== words) element.textContent = words; };
  const make = (name, words, kind) => {
    const element = document.createElement(name);
    if (words !== undefined) element.textContent = words;
    if (kind) element.className = kind;
    return element;
  };

  // The map.

  /** Return a round number at or above a count: the scale's end stays for the whole run. */
  function roundUp(count) {
    const digit = 10 ** Math.floor(Math.log10(Math.max(count, 1)));
    return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((one) => one * digit).find((one) => one >= count);
  }

  function draw() {
    const { question } = known;
    const placed = question.cells.length > 0 && question.cells.every((cell) => cell.ring);
    find("map").hidden = !placed;
    find("layers").hidden = !placed;
    find("scale").hidden = !placed;
    scale = fleetcount.colourScale(roundUp(Math.max(10, ...question.truths) * 1.25), "vehicles");
    if (!placed) { find("layer-words").textContent = "These values are no places: see the table."; return; }
    if (map) map.map.remove();
    map = fleetcount.drawMap(find("map"), {
      cells: question.cells, degrees: false, streets: question.streets, attribution: question.streets_by, scale,
      onPick: pick, tip: describe,
    });
    fleetcount.drawScale(find("scale"), scale, ["the same colours in all five"]);
  }

  /** Return who holds the receipts of the round that is open: of the first until one vehicle holds all. */
  function held() {
    const { receipts } = known;
    return receipts.every.all ? receipts.every : receipts.first;
  }

  function numbers() {
    const { question, release } = known;
    switch (layer) {
      case "receipts": return held().cells;
      case "estimate": return release.cells.map((cell) => cell.estimate);
      case "width": return release.cells.map((cell) => cell.high - cell.low);
      default: return question.truths;
    }
  }

  function show() {
    if (!known.question) return;
    if (map) map.show(numbers());
    if (map) text(find("layer-words"), LAYERS[layer]);
    if (picked !== null) text(find("cell"), describe(picked));
  }

  function choose(name) {
    layer = name;
    const button = document.querySelector('input[name="layer"][value="' + name + '"]');
    button.disabled = false;
    button.checked = true;
    show();
  }

  /** Let a layer be chosen; go to it where the reader has not chosen one by hand. */
  function offer(name) {
    const button = document.querySelector('input[name="layer"][value="' + name + '"]');
    const news = button.disabled;
    button.disabled = false;
    if (news && !byHand) choose(name); else show();
  }

  function describe(value) {
    const { question, expectation, receipts, release } = known, place = value - 1;
    const parts = [question.cells[place].label + ":"];
    if (release) {
      const cell = release.cells[place];
      parts.push("estimate " + shown(cell.estimate) + ", interval " + interval(cell.low, cell.high, cell.estimate) + ";");
    } else if (receipts) parts.push(shown(held().cells[place]) + " vehicles hold their receipts;");
    parts.push("truth " + shown(question.truths[place]));
    if (expectation) {
      parts.push("(the law: " + question.level + " of estimates from " +
        interval(expectation.low[place], expectation.high[place]) + ")");
    }
    return parts.join(" ");
  }

  function pick(value) {
    picked = value;
    if (map) map.pick([value]);
    text(find("cell"), describe(value));
    const rows = find("table").tBodies[0].rows;
    for (let place = 0; place < rows.length; place++) {
      if (place === value - 1) rows[place].setAttribute("aria-selected", "true");
      else rows[place].removeAttribute("aria-selected");
    }
  }

  // The table: made anew when its columns change, filled in place while receipts come.

  function table() {
    const { question, expectation, release } = known;
    if (!question) return;
    const names = release
      ? ["cell", "estimate", question.level + " interval", "width", "truth"]
      : ["cell", "receipts", "expected " + question.level + " range", "truth"];
    const rows = question.cells.map((cell, place) => {
      const truth = shown(question.truths[place]);
      if (release) {
        const { estimate, low, high } = release.cells[place];
        return [cell.label, shown(estimate), interval(low, high, estimate), shown(high - low), truth];
      }
      const range = expectation ? interval(expectation.low[place], expectation.high[place]) : "–";
      return [cell.label, counted(place), range, truth];
    });
    const columns = names.map((name, place) => ({ name, number: place > 0 }));
    const caption = release ? "The release, with the truth of the demo" : "Before the release";
    fleetcount.fillTable(find("table"), caption, columns, rows, (place) => pick(place + 1));
    if (picked !== null) pick(picked);
  }

  const counted = (place) => known.receipts ? shown(held().cells[place]) : "0";

  function fill() {
    const body = find("table").tBodies[0];
    if (known.release || !body) return;
    for (let place = 0; place < body.rows.length; place++) text(body.rows[place].cells[1], counted(place));
  }

  // The run.

  function stage(told) {
    const name = "stage-" + told.stage.replace(/[^a-z]/g, "-");
    let line = find(name);
    if (!line) {
      line = make("li");
      line.id = name;
      const bar = document.createElement("progress");
      bar.setAttribute("aria-label", told.stage);
      line.append(make("span", told.stage), bar, make("span", "", "soft"));
      find("stages").append(line);
    }
    line.children[1].max = Math.max(1, told.total);
    line.children[1].value = told.done;
    text(line.children[2], shown(told.done) + " of " + shown(told.total));
  }

  function fact(name, words) {
    const id = "fact-" + name.replace(/[^a-z]/g, "-");
    let value = find(id);
    if (!value) {
      value = make("dd");
      value.id = id;
      find("run").append(make("dt", name), value);
    }
    text(value, words);
  }

  function clock() {
    const { signed, release, state } = known;
    if (!signed || release || (state && !["starting", "asking"].includes(state.now))) {
      if (signed) fact("clock", "the windows have closed");
      return;
    }
    const now = Date.now() / 1000, left = (moment) => shown(Math.ceil(moment - now)) + " s";
    const two = signed.ends > signed.closes;
    if (now < signed.opens) fact("clock", "the first window opens in " + left(signed.opens));
    else if (now < signed.closes) fact("clock", (two ? "round one" : "the window") + " closes in " + left(signed.closes));
    else if (now < signed.ends) fact("clock", "round two closes in " + left(signed.ends));
    else fact("clock", "closed; the aggregators check every report, agree, add their noise and sign");
  }

  // The record, read and checked here.

  const bytesOf = (text64) => fleetcount.fromBase64(text64);
  const numberOf = (fraction) => Number(fraction.numerator) / Number(fraction.denominator);

  async function released(told) {
    const list = find("signatures");
    let record = null, checked = null, why = "";
    try {
      const bytes = bytesOf(told.record);
      record = fleetcount.decodeRecord(bytes);
      const window = fleetcount.hex(await fleetcount.sha256(record.windowBytes));
      if (!known.signed || window !== known.signed.window) throw new Error("it answers another window");
      const pinned = {};
      const always = { notBefore: 0, notAfter: Infinity };
      for (const [id, key] of Object.entries(told.pins)) pinned[id] = [{ key: bytesOf(key), ...always }];
      checked = await fleetcount.verifyRecord(record, bytes, told.signatures.map(bytesOf), pinned);
    } catch (error) {
      why = error.message;
    }
    if (!checked || !checked.all) {
      const line = make("li", "The record is not shown: " + (why || names(checked, false)), "bad");
      list.replaceChildren(line);
      return;
    }
    const words = checked.verified + " of " + checked.names.length + " signatures verified in your browser";
    list.replaceChildren(make("li", words, "good"), ...checked.names.map((one) =>
      make("li", one.id + " (" + one.operator + "): good")), make("li", "Against the keys that this demo made for its " +
      "aggregators, not against those the record names.", "soft"));
    const cells = record.cells.map((cell) =>
      ({ estimate: numberOf(cell.estimate), low: Number(cell.low), high: Number(cell.high) }));
    known.release = { cells };
    table();
    const { truths } = known.question;
    const inside = cells.filter((cell, place) => cell.low <= truths[place] && truths[place] <= cell.high).length;
    fact("intervals", inside + " of " + cells.length + " truths lie in their " + known.question.level + " interval");
    clock();
    for (const name of ["truth", "width", "estimate"]) offer(name);
  }

  const names = (checked, good) => checked.names.filter((one) => one.good === good)
    .map((one) => one.id + " " + one.why).join(", ");

  // Events.

  function said(state) {
    known.state = state;
    const line = find("state");
    line.replaceChildren(make("strong", STATES[state.now] || state.now, ["failed", "interrupted"].includes(state.now)
      ? "bad" : ""), " " + state.text);
    clock();
  }

  const HEARD = {
    state: said,
    question(told) {
      known.question = told;
      text(find("question"), told.text);
      text(find("about"), "Asked of " + shown(told.vehicles) + " vehicles in " + told.rounds +
        (told.rounds === 1 ? " round" : " rounds") + ", counted by " + told.aggregators +
        " aggregators. All of them run on this machine, as processes of their own.");
      const views = make("details");
      const lines = make("dl", undefined, "facts");
      for (const view of told.views) lines.append(make("dt", view.audience), make("dd", view.sentence));
      views.append(make("summary", "One line an adversary"), lines);
      find("promise").replaceChildren(...told.promise.map((one) => make("p", one)), views);
      fact("published loss", "epsilon " + told.epsilon);
      fact("p, if all collude", told.exposure);
      draw();
      table();
      show();
    },
    expectation(told) { known.expectation = told; table(); show(); },
    stage,
    signed(told) {
      known.signed = told;
      fact("signed by", told.operators.map((one) => one.id + " (" + one.operator + ")").join(", "));
      fleetcount.watchCards(known.question);
      clock();
    },
    receipts(told) {
      known.receipts = told;
      const all = shown(known.question.vehicles);
      fact("own vehicles", known.question.rounds === 2
        ? shown(told.first.all) + " of " + all + " hold every receipt of round one, " + shown(told.every.all) + " of both"
        : shown(told.every.all) + " of " + all + " hold every receipt");
      fill();
      offer("receipts");
    },
    refused(told) {
      const found = Object.entries(told.reasons).map(([reason, count]) => shown(count) + " " + reason);
      fact("refusals", found.join(", ") || "none");
    },
    released,
  };

  function begin() {
    for (const button of document.querySelectorAll('input[name="layer"]')) {
      button.addEventListener("change", () => { byHand = true; choose(button.value); });
    }
    const source = new EventSource("events");
    for (const [name, heard] of Object.entries(HEARD)) {
      source.addEventListener(name, (event) => heard(JSON.parse(event.data)));
    }
    source.addEventListener("state", () => { if (known.state.now === "closed") source.close(); });
    source.addEventListener("error", () => {
      if (known.state && ["starting", "asking", "released"].includes(known.state.now)) {
        text(find("state"), "The demo does not answer: it has ended, or is busy. What you see is what was said last.");
      }
    });
    source.addEventListener("open", () => { if (known.state) said(known.state); });
    window.setInterval(clock, 1000);
  }

  fleetcount.watched = known;
  begin();
})(window.fleetcount = window.fleetcount || {});
