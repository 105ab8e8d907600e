"use strict";
/* A window from its canonical bytes and all rules of a window (docs/wire.md, "Window" and "Rules of a window"): what cannot be
 * asked is refused, so that every window that is shown may be asked. */
(function (fleetcount) {
  const { Fraction, Reader, require, refuse } = fleetcount.layout;
  const MODES = { 1: "sampling", 2: "response", 3: "direct" };
  const KINDS = { 1: "geometric", 2: "exact", 3: "one-sided", 4: "gaussian" };
  const ZERO = Fraction.of(0),
    ONE = Fraction.of(1),
    HALF = Fraction.of(1, 2),
    SMALLEST = Fraction.of(1, 1000000);
  const P = 2n ** 255n - 19n;

  function between(value, low, high) {
    return low.compare(value) < 0 && value.compare(high) < 0;
  }

  function readDie(reader, values) {
    const rate = reader.fraction(),
      faces = reader.count(2, 0, values + 1);
    require(faces === 0 || faces === values + 1, "a die has " + faces + " faces, not " + (values + 1));
    const given = Array.from({ length: faces }, () => reader.fraction());
    require(between(rate, ZERO, ONE), "sampling rate is " + rate + ", allowed: 0 < sampling rate < 1");
    if (faces) {
      require(given.every((face) => face.compare(ZERO) > 0), "a face has no probability");
      // Over one common denominator: thousands of additions of fractions would take seconds.
      const common = [rate, ...given].reduce((all, one) => lcm(all, one.denominator), 1n);
      const total = [rate, ...given].reduce((sum, one) => sum + one.numerator * (common / one.denominator), 0n);
      require(total === common, "sampling rate and face probabilities do not sum to 1");
      require(given.some((face) => face.compare(given[0]) !== 0), "equal faces are written as none");
    }
    return { kind: "sampling", mode: "sampling", hit: rate, miss: ZERO, rate };
  }

  function lcm(a, b) {
    let [x, y] = [a, b];
    while (y) [x, y] = [y, x % y];
    return (a / x) * b;
  }

  function binary(reader, values, read) {
    const made = read(reader);
    require(values === 1, "mechanism answers 1 values, the domain has " + values);
    return { mode: "response", ...made };
  }

  const MECHANISMS = {
    0: () => ({ kind: "none", mode: "direct", hit: ONE, miss: ZERO }),
    1: readDie,
    2: (reader, values) =>
      binary(reader, values, () => {
        const truth = reader.fraction(),
          yes = reader.fraction();
        require(between(truth, ZERO, ONE) && between(yes, ZERO, ONE), "both coins are between 0 and 1");
        const miss = ONE.minus(truth).times(yes);
        return { kind: "two coins", hit: truth.plus(miss), miss };
      }),
    3: (reader, values) =>
      binary(reader, values, () => {
        const keep = reader.fraction();
        require(between(keep, HALF, ONE), "keep is " + keep + ", allowed: 1/2 < keep < 1");
        return { kind: "Warner", hit: keep, miss: ONE.minus(keep) };
      }),
    4: (reader, values) => binary(reader, values, () => readFlip(reader, "Mangat")),
    5: (reader) => ({ mode: "response", ...readFlip(reader, "Mangat on every cell") }),
    7: readAsymmetric,
    6: (reader, values) => {
      const keep = reader.fraction(),
        least = Fraction.of(1, values + 1);
      require(between(keep, least, ONE), "keep is " + keep + ", allowed: " + least + " < keep < 1");
      return { kind: "k-ary", mode: "response", hit: keep, miss: ONE.minus(keep).times(Fraction.of(1, values)) };
    },
    8: (reader) => ({ mode: "response", ...readFlip(reader, "unary"), hit: HALF }),
  };

  /* One bit a value, each wrong one way or both: the channel is that of the values that tell least. */
  function readAsymmetric(reader, values) {
    const { miss: flip } = readFlip(reader, "asymmetric");
    const both = Array.from({ length: values }, () => reader.count(1, 1, 3)).includes(3);
    const miss = both ? Fraction.of(flip.numerator, flip.denominator + flip.numerator) : flip;
    return { kind: "asymmetric", mode: "response", hit: both ? ONE.minus(miss) : ONE, miss };
  }

  function readFlip(reader, kind) {
    const flip = reader.fraction();
    require(between(flip, ZERO, ONE), "flip is " + flip + ", allowed: 0 < flip < 1");
    return { kind, hit: ONE, miss: flip };
  }

  function checkMechanism(window) {
    const { mechanism, mode } = window;
    require(mechanism.mode === mode, mode + " mode does not take the mechanism " + mechanism.kind);
    if (mode === "sampling") {
      const most = mechanism.rate.compare(HALF);
      require(mechanism.rate.compare(SMALLEST) >= 0 &&
        most <= 0, "sampling rate is " +
        mechanism.rate +
        ", allowed: from 1/1000000 to below 1/2");
    }
    require(mechanism.hit.minus(mechanism.miss).compare(SMALLEST) >= 0, "an answer is hardly ever the truth");
  }

  function checkTimes(window) {
    const { opens, oneCloses, twoCloses, expiry, precision } = window;
    require(precision >= 1 && precision <= 86400, "time_precision_s is " + precision + ", allowed: 1 to 86400");
    for (const time of [opens, oneCloses, twoCloses, expiry]) {
      require(time % precision === 0, "time " + time + " is not a multiple of " + precision);
    }
    require(opens < oneCloses, "round_one_closes is " + oneCloses + ", allowed: after " + opens);
    require(twoCloses < expiry, "expiry is " + expiry + ", allowed: after " + twoCloses);
    if (window.mode !== "sampling") {
      require(window.uploadStyle === 1, "one_envelope is an upload style of sampling mode only");
      require(twoCloses === oneCloses, "round_two_closes is " + twoCloses + ", one round closes at " + oneCloses);
    } else if (window.uploadStyle === 2) {
      require(twoCloses >= oneCloses, "round_two_closes is " + twoCloses + ", allowed: from " + oneCloses + " on");
    } else require(twoCloses > oneCloses, "round_two_closes is " + twoCloses + ", allowed: after " + oneCloses);
    require(twoCloses - opens <= 31 * 86400, "the rounds take " + (twoCloses - opens) + " s");
    require(expiry - opens <= 100 * 86400, "expiry is " + (expiry - opens) + " s after the opening");
  }

  function readRelease(reader) {
    const code = reader.count(1, 1, 5),
      down = code === 5,
      kind = down ? "one-sided" : KINDS[code],
      noised = reader.count(1, 0, 2);
    const number = noised ? reader.fraction() : null;
    const coarser = noised === 2 ? Array.from({ length: reader.count(1, 1, 8) }, () => readLevel(reader)) : [];
    const level = reader.fraction();
    const thresholds = Array.from({ length: reader.count(2, 0, 8190) }, () => reader.uint(4));
    return { kind, down, number, coarser, level, thresholds };
  }

  function checkNoise(kind, number) {
    const [low, high] = kind === "gaussian" ? [Fraction.of(1, 4), Fraction.of(100000000)] : [SMALLEST, Fraction.of(10)];
    require(number.compare(low) >= 0 && number.compare(high) <= 0, "noise of " +
      number +
      ", allowed: " +
      low +
      " to " +
      high);
  }

  const [MARGINS, DIMENSIONS, WEIGHTED] = [128, 3, 144];

  /* A level above the cells: the side of a zoom's squares or how many of a line, a margin, the weighted sum, 0 for the
     total; then its noise. `order` is where such levels stand. */
  function readLevel(reader) {
    const code = reader.uint(1),
      number = reader.fraction();
    if (!code) return { kind: "total", order: 4, number };
    if (code === WEIGHTED) return { kind: "weighted", order: 3, number };
    if (code <= MARGINS) return { kind: "zoom", order: 1, side: code, number };
    require(code <= MARGINS + DIMENSIONS, "window names the unknown level " + code);
    return { kind: "margin", order: 2, dimension: code - MARGINS, number };
  }

  /* Returns how many numbers the levels above the cells have: larger cells or margins, the weighted sum, the total. */
  function checkLevels(window) {
    const { release, domain, mode } = window,
      { kind, coarser } = release;
    let [cells, side, order] = [0, 1, 0];
    require(!coarser.length || (kind !== "exact" && mode !== "response"), "levels of " + kind + ", mode " + mode);
    for (const level of coarser) {
      checkNoise(kind, level.number);
      require(order < 4, "the total stands before other levels, allowed: as the last one");
      require(level.order > order || (level.order === order && order < 3), "levels are out of order");
      cells += checkLevel(window, level, side);
      [side, order] = [level.side || side, level.order];
    }
    const margins = coarser.filter((one) => one.kind === "margin");
    require(margins.every((one, place) => one.dimension === place + 1) && (!margins.length || margins.length === domain.parts.length), "margins are not those of all dimensions in order");
    if (mode === "sampling" && coarser.length) checkSampledLevels(release, order === 4);
    return cells;
  }

  function checkLevel({ release, domain, mode }, level, last) {
    const { kind } = release,
      { side } = level,
      direct = mode === "direct" && kind !== "one-sided";
    if (level.kind === "zoom") {
      require(domain.coarser && side > last && (side & (side - 1)) === 0, "a level of side " +
        side +
        ", allowed: growing powers of two, of bins, numbers and grids");
      const { values } = domain.coarser(side);
      require(Number.isInteger(values) && values >= 2, domain.larger(side) + " do not fill the domain");
      return values;
    }
    if (level.kind === "margin") {
      require(direct && domain.parts && domain.parts[level.dimension - 1], "margins of what is no table, or not direct");
      require(last === 1 && !release.coarser.some((one) => one.kind === "weighted"), "margins beside zooms or a weighted sum");
      require(Math.min(...domain.shape) > 1, "margins of a signal with a single value");
      return domain.parts[level.dimension - 1].values;
    }
    if (level.kind === "weighted") {
      require(direct && domain.kind === "numbers", "a weighted sum of what are no numbers, or not direct");
      return 1;
    }
    require(domain.values > 1 && kind !== "one-sided", "a total of one value, or of one-sided counts");
    const label = fleetcount.totalLabel(domain);
    require(!(domain.names || []).includes(label), "a total is asked beside a category '" + label + "'");
    return 1;
  }

  /* What levels lose under one toss of a coin is known for equal noise, and for a total beside the cells alone. */
  function checkSampledLevels(release, total) {
    const { kind, number, coarser } = release;
    if (!total) {
      const equal = coarser.every((one) => one.number.compare(number) === 0);
      require(equal, "zooms of sampled answers have unequal noise, allowed: equal shares");
      return;
    }
    const above = coarser[0].number,
      ratio = Fraction.of(above.numerator * number.denominator, above.denominator * number.numerator);
    require(kind === "gaussian" && coarser.length === 1 && ratio.denominator === 1n, "a total of sampled answers is allowed beside the cells alone, with a whole multiple of their variance");
  }

  function checkRelease(window) {
    const { release, domain } = window;
    require(between(release.level, ZERO, ONE), "level is " + release.level + ", allowed: above 0 and below 1");
    const modes = {
      geometric: ["sampling", "response", "direct"],
      exact: ["sampling"],
      "one-sided": ["direct"],
      gaussian: ["sampling", "response", "direct"],
    };
    require(modes[release.kind].includes(window.mode), "release " +
      release.kind +
      " is not for " +
      window.mode +
      " mode");
    if (release.kind === "exact") require(release.number === null, "an exact release has no noise");
    else checkNoise(release.kind, release.number || refuse("release " + release.kind + " has no noise"));
    const cells = domain.values + checkLevels(window);
    require(release.thresholds.length === (release.kind === "one-sided" ? cells : 0), "release has " +
      release.thresholds.length +
      " thresholds");
    return cells;
  }

  function readAggregator(reader) {
    const id = reader.text(1, 32),
      operator = reader.text(1, 200),
      endpoint = reader.text(0, 261),
      broker = reader.text(0, 261);
    require(/^[a-z][a-z0-9-]{0,31}$/.test(id), "aggregator id '" +
      id +
      "' is not 1 to 32 of a-z, 0-9, '-' starting with a letter");
    const key = reader.take(32);
    require(endpoint || broker, "aggregator " + id + " has neither a gRPC endpoint nor an MQTT broker");
    for (const one of [endpoint, broker]) if (one) checkEndpoint(id, one);
    checkSigningKey(id, key);
    return { id, operator, endpoint, broker, key };
  }

  function checkEndpoint(id, endpoint) {
    const colon = endpoint.lastIndexOf(":"),
      host = endpoint.slice(0, colon),
      port = endpoint.slice(colon + 1);
    const good = colon >= 0 && /^[1-9][0-9]{0,4}$/.test(port) && Number(port) <= 65535 && isHost(host);
    require(good, "endpoint of " + id + " is not host:port with a port from 1 to 65535");
  }

  function isHost(host) {
    if (host.startsWith("[") && host.endsWith("]")) return isIPv6(host.slice(1, -1));
    const labels = host.split(".");
    if (labels.every((label) => /^[0-9]+$/.test(label))) return isIPv4(host);
    return (
      host.length <= 253 && labels.every((label) => /^[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$/.test(label))
    );
  }

  function isIPv4(text) {
    const parts = text.split(".");
    return parts.length === 4 && parts.every((part) => /^(0|[1-9][0-9]{0,2})$/.test(part) && Number(part) <= 255);
  }

  function isIPv6(text) {
    const halves = text.split("::");
    if (halves.length > 2) return false;
    const lists = halves.map((half) => (half ? half.split(":") : []));
    const last = lists[lists.length - 1];
    let words = lists.reduce((sum, list) => sum + list.length, 0);
    if (last.length && last[last.length - 1].includes(".")) {
      if (!isIPv4(last.pop())) return false;
      words += 1;
    }
    const good = lists.every((list) => list.every((word) => /^[0-9A-Fa-f]{1,4}$/.test(word)));
    return good && (halves.length === 2 ? words <= 7 : words === 8);
  }

  const little = (key) => key.reduceRight((value, byte) => value * 256n + BigInt(byte), 0n);

  function power(base, exponent) {
    let result = 1n;
    for (base %= P; exponent; exponent >>= 1n, base = (base * base) % P)
      if (exponent & 1n) result = (result * base) % P;
    return result;
  }

  const ORDER_8_Y = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
  const SMALL_Y = [0n, 1n, P - 1n, ORDER_8_Y, P - ORDER_8_Y];

  function checkSigningKey(id, key) {
    const y = little(key) & (2n ** 255n - 1n);
    require(y < P, "aggregator " + id + ": signing key is not a canonical Ed25519 point");
    require(!SMALL_Y.includes(y), "aggregator " + id + ": signing key is an Ed25519 point of small order");
    const d = P - ((121665n * power(121666n, P - 2n)) % P);
    const square = ((y * y - 1n + P) * power(((d * y) % P) * y + 1n, P - 2n)) % P;
    require(power(square, (P - 1n) / 2n) === 1n, "aggregator " +
      id +
      ": signing key is not a point of the Ed25519 curve");
  }

  /* Browsers have no case folding: upper and then lower case is the same but for a few letters. */
  const folded = (operator) =>
    operator.normalize("NFKC").toUpperCase().toLowerCase().normalize("NFKC").split(/\s+/).join(" ").trim();

  function distinct(what, values) {
    require(new Set(values).size === values.length, what + " is given twice; every aggregator needs its own");
  }

  function checkAggregators(aggregators) {
    const { hex } = fleetcount;
    distinct(
      "an aggregator id",
      aggregators.map((one) => one.id),
    );
    distinct(
      "a signing key",
      aggregators.map((one) => hex(one.key)),
    );
    distinct("a gRPC endpoint", aggregators.map((one) => one.endpoint.toLowerCase()).filter(Boolean));
    require(new Set(aggregators.map((one) => folded(one.operator))).size >=
      2, "the aggregators have one operator, allowed: at least 2");
  }

  function readLabel(reader) {
    require(reader.ascii(8) === "FCWIND01", "window does not begin with FCWIND01");
    const id = reader.take(32),
      index = reader.uint(4);
    require(index < 65536, "index of the window is " + index + ", allowed: 0 to 65535");
    return { id, index, noised: reader.count(1, 1, 2) === 2 };
  }

  /** Return the window whose canonical bytes these are. Throws layout.DecodeError on anything else. */
  function decodeWindow(data) {
    const reader = new Reader(data, "window", 2 ** 20);
    const window = { question: readLabel(reader) };
    [window.name, window.deployment, window.signal] = [reader.text(1, 200), reader.text(1, 200), reader.text(1, 200)];
    require(/^[a-z0-9][a-z0-9-]{0,31}$/.test(window.deployment), "deployment is not 1 to 32 of a-z, 0-9, '-'");
    fleetcount.checkSignal(window.signal);
    window.domain = fleetcount.readDomain(reader);
    window.signals = window.domain.signals || [window.signal];
    require(window.signals[0] === window.signal, "signal is " + window.signal + ", allowed: that of the first part");
    window.mode = MODES[reader.count(1, 1, 3)];
    const number = reader.uint(1);
    window.mechanism = Object.hasOwn(MECHANISMS, number)
      ? MECHANISMS[number](reader, window.domain.values)
      : refuse("window names the unknown mechanism " + number);
    [window.opens, window.oneCloses, window.twoCloses, window.expiry] = [
      reader.time(),
      reader.time(),
      reader.time(),
      reader.time(),
    ];
    [window.precision, window.minBatchSize] = [reader.uint(4), reader.uint(4)];
    window.release = readRelease(reader);
    window.uploadStyle = reader.count(1, 1, 2);
    window.verifyKeyDigest = reader.take(32);
    const count = reader.count(1, 2, 5);
    window.aggregators = Array.from({ length: count }, () => readAggregator(reader));
    reader.finish();
    require(window.minBatchSize >= 2 && window.minBatchSize <= 2 ** 30, "min_batch_size is " +
      window.minBatchSize +
      ", allowed: 2 to 2^30");
    require(!window.question.noised || window.mode !== "response", "participants is noised in response mode");
    checkMechanism(window);
    checkTimes(window);
    window.cells = checkRelease(window);
    checkAggregators(window.aggregators);
    return window;
  }

  fleetcount.decodeWindow = decodeWindow;
})((window.fleetcount = window.fleetcount || {}));
