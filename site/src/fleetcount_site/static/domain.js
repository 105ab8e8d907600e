"use strict";
/* The domains of a window (docs/wire.md, "Window"): what values 1..V stand for, and their
 * labels. */
(function (fleetcount) {
  const { Fraction, require, refuse } = fleetcount.layout;
  const MOST_VALUES = 4095,
    ZERO = Fraction.of(0);
  const OUTSIDE = ["clamp", "none"];
  const PENTAGONS = [4, 14, 24, 38, 49, 58, 63, 72, 83, 97, 107, 117];

  function checkCount(values, what) {
    require(values >= 1 && values <= MOST_VALUES, what +
      " gives " +
      values +
      " values; a window has 1 to " +
      MOST_VALUES);
  }

  function ascending(cells, what) {
    for (let place = 1; place < cells.length; place++)
      require(cells[place - 1] < cells[place], what + " must be ascending and distinct");
  }

  function readBins(reader) {
    const edges = Array.from({ length: reader.count(2, 1, MOST_VALUES + 1) }, () => reader.fraction());
    const open = reader.flag(),
      unit = reader.text(0, 200);
    for (let place = 1; place < edges.length; place++) {
      require(edges[place - 1].compare(edges[place]) < 0, "bin edges must be strictly increasing");
    }
    const values = edges.length - (open ? 0 : 1);
    checkCount(values, "bins");
    const span = (from, to) => {
      const high = to < edges.length ? edges[to].decimal : "∞";
      return ("[" + edges[from].decimal + ", " + high + ") " + unit).trimEnd();
    };
    const coarser = (side) => ({ values: values / side, label: (value) => span((value - 1) * side, value * side) });
    const larger = (side) => side + " bins together";
    return { kind: "bins", values, label: coarser(1).label, coarser, larger, edges, open, unit };
  }

  function readNumbers(reader) {
    const low = reader.fraction(),
      high = reader.fraction();
    const values = reader.count(2, 2, MOST_VALUES),
      outside = OUTSIDE[reader.count(1, 1, OUTSIDE.length) - 1],
      unit = reader.text(0, 200);
    require(low.compare(high) < 0, "low is " + low + ", allowed: below high = " + high);
    const step = high.minus(low).times(Fraction.of(1, values - 1));
    const point = (value) => low.plus(step.times(Fraction.of(value - 1))).decimal;
    const label = (value) => (point(value) + " " + unit).trimEnd();
    const span = (from, to) => (point(from) + " to " + point(to) + " " + unit).trimEnd();
    const coarser = (side) => ({ values: values / side, label: (value) => span((value - 1) * side + 1, value * side) });
    const larger = (side) => side + " points together";
    return { kind: "numbers", values, label, coarser, larger, low, high, unit, outside };
  }

  /* What the total of a domain is called: the number of vehicles that told any of several is no total. */
  const totalLabel = (domain) => (domain.most > 1 ? "told any" : "total");

  function readCategories(reader, most) {
    const names = Array.from({ length: reader.count(2, 1, MOST_VALUES) }, () => reader.text(1, 200));
    require(new Set(names).size === names.length, "category names must be distinct");
    require(most <= names.length, "more categories at once than there are");
    return { kind: "categories", values: names.length, label: (value) => names[value - 1], names, most };
  }

  function readGrid(reader) {
    const [x0, y0, size] = [reader.fraction(), reader.fraction(), reader.fraction()];
    const columns = reader.uint(2),
      rows = reader.uint(2);
    require(size.compare(ZERO) > 0 && columns >= 1 && rows >= 1, "grid of " +
      columns +
      " by " +
      rows +
      " squares of " +
      size +
      ": all three must be positive");
    checkCount(columns * rows, "grid");
    const named = (value, wide) => ((value - 1) % wide) + "," + Math.floor((value - 1) / wide);
    /* Both sides are divided, so a grid of one row has no larger squares. */
    const coarser = (side) => {
      const [wide, high] = [columns / side, rows / side];
      return { values: Number.isInteger(wide) ? wide * high : NaN, label: (value) => named(value, wide) + "/" + side };
    };
    const larger = (side) => "squares of " + side + " times the side";
    const label = (value) => named(value, columns);
    return { kind: "grid", values: columns * rows, label, coarser, larger, x0, y0, size, columns, rows, frame: null };
  }

  const OFFSET = /^(?:0|-?(?:[1-9][0-9]{0,7}(?:\.[0-9]{0,5}[1-9])?|0\.[0-9]{0,5}[1-9]))$/;

  function readPlacedGrid(reader) {
    const grid = readGrid(reader),
      epsg = reader.uint(2),
      offsets = [reader.text(1, 16), reader.text(1, 16)];
    require(epsg >= 1024 && epsg <= 32767, "EPSG code is " + epsg + ", allowed: 1024 to 32767");
    require(offsets.every((offset) =>
      OFFSET.test(offset),
    ), "an offset of the frame is no decimal in its only spelling");
    return { ...grid, frame: { epsg, offsetX: offsets[0], offsetY: offsets[1] } };
  }

  /* Bit layout of an H3 index: h3geo.org, "H3 Index". */
  function checkHexagon(cell, resolution) {
    const digits = Array.from({ length: 15 }, (_, place) => Number((cell >> BigInt(3 * (14 - place))) & 7n));
    const base = Number((cell >> 45n) & 127n),
      used = digits.slice(0, resolution);
    let good = cell >> 56n === 8n && Number((cell >> 52n) & 15n) === resolution && base <= 121;
    good = good && used.every((digit) => digit < 7) && digits.slice(resolution).every((digit) => digit === 7);
    good = good && !(PENTAGONS.includes(base) && used.find((digit) => digit) === 1);
    require(good, cell.toString(16) + " is not an H3 cell of resolution " + resolution);
  }

  function readHexagons(reader) {
    const resolution = reader.uint(1);
    require(resolution <= 15, "H3 resolution is " + resolution + ", not 0 to 15");
    const cells = Array.from({ length: reader.count(2, 1, MOST_VALUES) }, () => reader.wide(8));
    ascending(cells, "H3 cells");
    cells.forEach((cell) => checkHexagon(cell, resolution));
    return { kind: "h3", values: cells.length, label: (value) => cells[value - 1].toString(16), resolution, cells };
  }

  /* Codes (docs/wire.md, "Drill-down"): what may stand at each place of a code, by its number;
   * "" is the end of a text. */
  const SYSTEMS = ["P", "C", "B", "U"],
    QUARTERS = ["0", "1", "2", "3"],
    HEXADECIMAL = [..."0123456789ABCDEF"],
    TEXT = 3;

  function readCodes(reader) {
    const form = reader.count(1, 1, TEXT);
    if (form !== TEXT) return { form, choices: [SYSTEMS, QUARTERS, ...Array(form === 1 ? 3 : 5).fill(HEXADECIMAL)] };
    const alphabet = [...reader.text(2, 64)],
      length = reader.count(1, 1, 8);
    require(new Set(alphabet).size === alphabet.length && alphabet.every((one) =>
      one >= "!" && one <= "~",
    ), "the alphabet of a text is of different printable characters");
    const codes = { form, choices: Array(length).fill(["", ...alphabet]) };
    require(widthOf(codes) <= 32, "a text has " + widthOf(codes) + " bits, allowed: at most 32");
    return codes;
  }

  const bitsOf = (choices) => Math.ceil(Math.log2(choices.length));
  const widthOf = (codes) => codes.choices.reduce((sum, choices) => sum + bitsOf(choices), 0);

  /* What may stand at each place of a code that begins with these bits. */
  function possible(codes, prefix, bits) {
    let behind = bits;
    return codes.choices.reduce((found, choices) => {
      const width = bitsOf(choices);
      behind -= width;
      const known = Math.min(width, Math.max(0, width + behind));
      const first = Math.floor(prefix / 2 ** Math.max(0, behind)) % 2 ** known;
      const ended = found.length > 0 && found[found.length - 1].join() === "";
      const fits = (symbol, place) =>
        place >> (width - known) === first && (symbol || found.length > 0) && (!symbol || !ended);
      return [...found, choices.filter(fits)];
    }, []);
  }

  function shown(symbols) {
    if (symbols.length === 1) return symbols[0];
    return "[" + (symbols.length === 2 ? symbols.join("") : symbols[0] + "-" + symbols[symbols.length - 1]) + "]";
  }

  function textLabel(codes, symbolsAt) {
    let fixed = "";
    for (const [place, symbols] of symbolsAt.entries()) {
      if (symbols.length === codes.choices[place].length) return fixed + "…";
      if (symbols.length > 1) {
        const more = place + 1 < symbolsAt.length ? "…" : "";
        const named = fixed + shown(symbols.filter((symbol) => symbol)) + more;
        return symbols.includes("") ? fixed + ", " + named : named;
      }
      fixed += symbols[0];
    }
    return fixed;
  }

  function codeLabel(codes, prefix, bits) {
    const symbolsAt = possible(codes, prefix, bits);
    if (codes.form === TEXT) return textLabel(codes, symbolsAt);
    const parts = symbolsAt.map((symbols, place) =>
      symbols.length === codes.choices[place].length ? "." : shown(symbols),
    );
    return parts.slice(0, 5).join("") + (parts.length > 5 ? "-" + parts.slice(5).join("") : "");
  }

  function readPrefixes(reader, codes = null) {
    const bits = reader.count(1, 1, codes ? widthOf(codes) : 32);
    const cells = Array.from({ length: reader.count(2, 1, MOST_VALUES) }, () => reader.uint(4));
    ascending(cells, "prefixes");
    require(cells[cells.length - 1] < 2 ** bits, "prefixes must be below 2^" + bits);
    const begins = (cell) => possible(codes, cell, bits).every((symbols) => symbols.length > 0);
    require(!codes || cells.every(begins), "prefixes of codes with which no code begins");
    const label = (value) =>
      codes ? codeLabel(codes, cells[value - 1], bits) : cells[value - 1] * 2 ** (32 - bits) + "/" + bits;
    return { kind: codes ? "codes" : "prefixes", values: cells.length, label, bits, cells };
  }

  const SIGNAL = /^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*$/;

  function checkSignal(signal) {
    require(SIGNAL.test(signal), "signal is no path of the Vehicle Signal Specification");
  }

  /* Several signals at once: the values of the first part vary slowest. */
  const CROSSED = [1, 2, 3, 4, 6],
    BETWEEN = " x ";

  function readPart(reader) {
    const signal = reader.text(1, 200),
      kind = reader.uint(1);
    checkSignal(signal);
    require(CROSSED.includes(kind), "window crosses a domain of kind " + kind);
    const part = READERS[kind](reader);
    require(!(part.names || []).some((name) => name.includes(BETWEEN) || name === "*"), "cross has a category that stands between parts");
    return { ...part, signal };
  }

  function readCross(reader) {
    const parts = Array.from({ length: reader.count(1, 2, 3) }, () => readPart(reader));
    const signals = parts.map((part) => part.signal),
      shape = parts.map((part) => part.values);
    require(new Set(signals.map((signal) => signal.toLowerCase())).size === parts.length, "cross has a signal twice");
    const values = shape.reduce((product, size) => product * size, 1);
    checkCount(values, "cross");
    const behind = (place) => shape.slice(place + 1).reduce((product, size) => product * size, 1);
    const apart = (value) => shape.map((size, place) => (Math.floor((value - 1) / behind(place)) % size) + 1);
    const label = (value) => apart(value).map((one, place) => parts[place].label(one)).join(BETWEEN);
    /* The values of one part, whatever the others are: "*" stands for these. */
    const margin = (dimension) => {
      const named = (value) => shape.map((_, place) => (place === dimension ? parts[place].label(value) : "*"));
      return { values: shape[dimension], label: (value) => named(value).join(BETWEEN) };
    };
    return { kind: "cross", values, label, margin, parts, signals, shape };
  }

  const READERS = {
    1: readBins,
    2: (reader) => readCategories(reader, 1),
    3: readGrid,
    4: readHexagons,
    5: readPrefixes,
    6: readPlacedGrid,
    7: readNumbers,
    8: (reader) => readPrefixes(reader, readCodes(reader)),
    9: readCross,
    10: (reader) => readCategories(reader, reader.count(2, 2, MOST_VALUES)),
  };

  function readDomain(reader) {
    const kind = reader.uint(1);
    return READERS[kind] ? READERS[kind](reader) : refuse("window names the unknown domain " + kind);
  }

  fleetcount.readDomain = readDomain;
  fleetcount.totalLabel = totalLabel;
  fleetcount.checkSignal = checkSignal;
})((window.fleetcount = window.fleetcount || {}));
