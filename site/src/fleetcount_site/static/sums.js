"use strict";
/* The interval of a sum over cells and windows, by the exact law of all the noise that went into it, in the reader's
 * browser: a region that nobody knew beforehand cannot be computed beforehand. The rules are those of "Sums and
 * changes" (docs/answers.md); tests hold its ends against Python's.
 *
 * The law is X = m Bin(n, p) + Z, Z the sum of K independent symmetric noises. Its tails come from the odd frequencies
 * of a circle of M points that holds it: P[X >= y] = 1/2 + (2/M) sum Im[phi(a) exp(-i a (y - 1/2))] / sin(a/2). */
(function (fleetcount) {
  const LOG_TAIL = 16 * Math.log(10),
    CUT = Math.log(1e-18),
    SLACK = 1e-12,
    LARGEST_CIRCLE = 2 ** 22;
  /* As in half_widths.py and tails.py, whose numbers these are. */
  const FAR = 40,
    NOTHING = -46,
    BLUR_ERROR = 0.01,
    LAST = 400,
    LAST_OF_TAIL = 3,
    DIGITS = 1e9,
    DEVIATIONS = 15;
  const LARGEST_COUNT = 1e12;

  class TooLargeError extends Error {}

  /* What a sum of K noises offers: log |E exp(i a Z)|, which falls with a, and a reach that Z hardly ever passes. */
  function geometric(epsilon, terms) {
    const half = Math.sinh(epsilon / 2);
    return {
      logCharacteristic: (angle) => -terms * Math.log1p((Math.sin(angle / 2) / half) ** 2),
      reach: (logTail = LOG_TAIL) => {
        let least = Infinity;
        for (let step = 1; step < 100; step++) {
          const tilt = (epsilon * step) / 100;
          const excess = Math.log(-Math.expm1(-epsilon + tilt)) + Math.log(-Math.expm1(-epsilon - tilt));
          least = Math.min(least, (terms * (2 * Math.log(-Math.expm1(-epsilon)) - excess) + logTail) / tilt);
        }
        return Math.ceil(least);
      },
    };
  }

  function gaussian(variance, terms) {
    const wave = (turned) => {
      const angle = turned - 2 * Math.PI * Math.round(turned / (2 * Math.PI));
      let sum = 0;
      for (let turn = -4; turn <= 4; turn++) sum += Math.exp((-variance / 2) * (angle + 2 * Math.PI * turn) ** 2);
      return Math.log(sum);
    };
    const atZero = wave(0);
    return {
      logCharacteristic: (angle) => Math.min(0, terms * (wave(angle) - atZero)),
      reach: (logTail = LOG_TAIL) => Math.ceil(Math.sqrt(2 * terms * variance * logTail)),
    };
  }

  const NOISES = {
    geometric: (noise, terms) => geometric(noise.parameter, terms),
    gaussian: (noise, terms) => gaussian(noise.parameter, terms),
    none: () => ({ logCharacteristic: () => 0, reach: () => 0 }),
  };

  /* The logarithm of the height, and the phase less that of its mean, of one device's wave at an angle. */
  function coin(rate, turned) {
    const square = Math.min(1 - 1e-16, 4 * rate * (1 - rate) * Math.sin(turned / 2) ** 2);
    return [
      Math.log1p(-square) / 2,
      Math.atan2(rate * Math.sin(turned), 1 - rate + rate * Math.cos(turned)) - rate * turned,
    ];
  }

  /* P[m Bin(n, p) + Z >= y]. */
  function atLeast(law, n, y) {
    const { rate, step, noise } = law;
    const far = (LOG_TAIL * step) / 3,
      variance = rate * (1 - rate) * n * step * step;
    const reach = far + Math.sqrt(far * far + 2 * LOG_TAIL * variance) + law.reach + 2;
    const size = 2 ** Math.ceil(Math.log2(4 * reach));
    if (size > LARGEST_CIRCLE) throw new TooLargeError("a sum that spreads over more than a million numbers");
    let distance = y - rate * n * step;
    // Whole steps, because between whole numbers the waves overshoot.
    distance -= Math.round(distance - Math.max(1 - reach, Math.min(reach - 1, distance)));
    let sum = 0;
    for (let odd = 1; odd < size / 2; odd += 2) {
      const angle = (odd * 2 * Math.PI) / size,
        turned = step * angle;
      const quiet = noise.logCharacteristic(angle) - Math.log((Math.sin(angle / 2) * size) / 2);
      if (quiet <= CUT) break;
      const [height, phase] = coin(rate, turned);
      sum += Math.exp(n * height + quiet) * Math.sin(n * phase - (distance - 0.5) * angle);
    }
    return Math.max(0, Math.min(1, 0.5 + sum));
  }

  /* The smallest n from 0 on at which a test, false and then true, holds: strides that grow, then halving. */
  function firstTrue(test, guess) {
    let low = -1,
      high = Math.max(0, guess),
      stride = 1;
    if (test(high)) {
      for (let asked = high - stride; asked >= 0; stride *= 4, asked = high - stride) {
        if (!test(asked)) {
          low = asked;
          break;
        }
        high = asked;
      }
    } else {
      low = high;
      for (high = low + stride; !test(high); stride *= 4, high = low + stride) low = high;
    }
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (test(middle)) high = middle;
      else low = middle;
    }
    return high;
  }

  /* The largest m with P[Z >= m] > tail. */
  function centralReach(noise, tail) {
    const law = { rate: 1, step: 1, noise, reach: noise.reach() };
    let low = 0,
      high = law.reach + 2;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (atLeast(law, 0, middle) > tail) low = middle;
      else high = middle;
    }
    return low;
  }

  /* The ends of a sum in the sample, from the chances of at least and at most that, each at least the true one. */
  function endsOf(law, value, tail, upper, lower) {
    const guess = Math.round(value / (law.step * law.rate));
    const first = firstTrue((n) => Math.min(1, upper(n)) > tail, guess),
      past = firstTrue((n) => Math.min(1, lower(n)) <= tail, guess);
    return [(first - 1) * law.step + 1, (past - 1) * law.step + law.step - 1];
  }

  function sampledEnds(law, value, tail) {
    return endsOf(
      law,
      value,
      tail,
      (n) => atLeast(law, n, value) + SLACK,
      (n) => 1 - atLeast(law, n, value + 1) + SLACK,
    );
  }

  /* A combination of noises: parts [weight, how often, noise, its variance]; those of most variance first. */
  const varianceOf = ([weight, often, , variance]) => often * weight ** 2 * variance;
  const spreadOf = (parts) => Math.sqrt(parts.reduce((sum, one) => sum + varianceOf(one), 0));
  const farthest = (parts, logTail) =>
    parts.reduce((most, [weight, , noise]) => Math.max(most, weight * noise.reach(logTail)), 0);

  /* The waves of a combination at the multiples of an angle from `first` on, each `by` further: [multiple, height] of
   * those whose logarithm is above a limit, `rest` being what is added to it. */
  function wavesOf(parts, turn, [first, by, last], limit, rest) {
    const kept = [];
    for (let one = first; one < last; one += by) {
      let height = rest(one * turn, one);
      for (const [weight, often, noise] of parts) {
        if (height <= limit) break;
        height += often * noise.logCharacteristic(weight * one * turn);
      }
      if (height > limit) kept.push([one, height]);
    }
    return kept;
  }

  /* c with P[|E| <= c] >= level, E a combination of noises: half_widths.half_width. */
  function halfWidth(parts, level, past) {
    const error = 1 - level,
      spread = spreadOf(parts),
      blur = Math.max(spread / 100, 1e-3);
    const far = FAR * spread + farthest(parts, FAR),
      turn = Math.PI / (2 * far);
    const waves = wavesOf(parts, turn, [1, 2, Math.ceil(9 / blur / turn)], NOTHING, (angle) => -((blur * angle) ** 2) / 2);
    const wanted = 1 - error * (1 - BLUR_ERROR);
    let low = 0,
      high = far;
    while (high - low > 1e-6 * spread) {
      const middle = (low + high) / 2;
      const inside = waves.reduce((sum, [odd, wave]) => sum + (Math.exp(wave) / odd) * Math.sin(odd * turn * middle), 0);
      if ((4 / Math.PI) * inside >= wanted) high = middle;
      else low = middle;
    }
    return high + blur * past + 1e-9;
  }

  /* The ends of a sum of sampled devices and a combination of noises: tails.JoinedLaw. */
  function joinedEnds(law, parts, value, tail) {
    const spread = spreadOf(parts),
      last = (LAST + LAST_OF_TAIL / Math.sqrt(tail)) / spread,
      { rate, step } = law,
      circles = new Map();
    const ownReach = DEVIATIONS * spread + farthest(parts, LOG_TAIL);
    const turned = (size) => {
      if (!circles.has(size)) {
        const turn = (2 * Math.PI) / size;
        const rest = (angle, one) => {
          const u = angle / last;
          if (one === 0) return Math.log((2 * Math.PI) / (size * last));
          if (one % 2 === 0) return Math.log(((1 - u) * 4 * Math.PI) / (size * last));
          const fall = Math.PI * u * (1 - u) / Math.tan(Math.PI * u) + u;
          return Math.log(Math.max(fall / ((angle * size) / 4), 1e-300));
        };
        circles.set(size, wavesOf(parts, turn, [0, 1, last / turn], CUT, rest));
      }
      return circles.get(size);
    };
    /* At least P[V >= y] for `side` 1, and for -1 at least P[-V >= y], V the sum of n devices. */
    const chance = (n, y, side) => {
      const far = (LOG_TAIL * step) / 3,
        variance = rate * (1 - rate) * n * step * step;
      const reach = far + Math.sqrt(far * far + 2 * LOG_TAIL * variance) + ownReach + 2;
      const size = 2 ** Math.ceil(Math.log2(4 * reach));
      if (size > LARGEST_CIRCLE) throw new TooLargeError("a sum that spreads over more than a million numbers");
      let distance = y - side * rate * n * step;
      distance -= Math.round(distance - Math.max(1 - reach, Math.min(reach - 1, distance)));
      let sum = 0;
      for (const [one, wave] of turned(size)) {
        const angle = (one * 2 * Math.PI) / size;
        const [height, phase] = coin(rate, step * angle);
        const at = side * n * phase - distance * angle;
        sum += Math.exp(n * height + wave) * (one % 2 ? Math.sin(at) : Math.cos(at));
      }
      return Math.max(0, Math.min(1, 0.5 + sum)) + SLACK;
    };
    const asked = (side) => Math.floor(side * value * DIGITS) / DIGITS;
    return endsOf(law, value, tail, (n) => chance(n, asked(1), 1), (n) => chance(n, asked(-1), -1));
  }

  const plus = (numbers) => numbers.reduce((sum, one) => sum + one, 0);

  /* In which place of a dimension of a table a cell lies, all from 0; the first dimension varies slowest. */
  function placeIn(shape, dimension, cell) {
    const below = shape.slice(dimension + 1).reduce((product, size) => product * size, 1);
    return Math.floor(cell / below) % shape[dimension];
  }

  /* By how much each margin and the total exceed their cells together: `cells` and `above` are opened numbers, in the
   * order of a release. Margins come first, the total last. */
  function excessOf(joined, cells, above) {
    const sums = joined.shape.map((size) => new Array(size).fill(0));
    for (const [dimension, sum] of sums.entries()) {
      for (const [cell, one] of cells.entries()) sum[placeIn(joined.shape, dimension, cell)] += one;
    }
    if (joined.total) sums.push([plus(cells)]);
    return sums.flat().map((sum, place) => above[place] - sum);
  }

  /* The least-squares estimate of a sum of cells, as MarginJoin of margins.py has it: how much every cell, every number
   * of a margin and the total weigh in it. With precisions 1/s of a cell, a sum is x = C g, g being 1 in its cells. */
  function weightsOf(law, chosen) {
    const { cells: values, shape, margins, total } = law.joined,
      own = law.noise.variance,
      mean = chosen.length / values;
    const parts = shape.map((size, dimension) => {
      const part = new Array(size).fill(-mean);
      for (const value of chosen) part[placeIn(shape, dimension, value - 1)] += size / values;
      return part;
    });
    const seen = shape.map((size, dimension) => values / size / margins[dimension].variance),
      spreads = seen.map((one) => 1 / (1 / own + one));
    const whole = 1 / (1 / own + plus(seen) + (total ? values / total.variance : 0));
    const inside = new Set(chosen);
    const cells = Array.from({ length: values }, (_, cell) => {
      const moved = parts.map((part, dimension) => part[placeIn(shape, dimension, cell)] * (spreads[dimension] - own));
      return ((inside.has(cell + 1) ? own : 0) + plus(moved) + mean * (whole - own)) / own;
    });
    const above = parts.map((part, dimension) =>
      part.map((one) => seen[dimension] * (one * spreads[dimension] + mean * whole)),
    );
    return { cells, margins: above, total: total ? [(values * mean * whole) / total.variance] : [] };
  }

  /* The noises of some windows' opened numbers with these weights, each distinct one once: half_widths.combined. */
  function combined(law, weights, windows) {
    const found = [];
    const add = (numbers, noise) => {
      const sizes = new Map(),
        variance = law.aggregators * noise.variance;
      for (const one of numbers) {
        const size = Math.round(Math.abs(one) * 1e9) / 1e9;
        sizes.set(size, (sizes.get(size) || 0) + windows);
      }
      const sum = NOISES[noise.kind](noise, law.aggregators);
      for (const [size, often] of sizes) if (size > 0 && variance > 0) found.push([size, often, sum, variance]);
    };
    add(weights.cells, law.noise);
    weights.margins.forEach((numbers, dimension) => add(numbers, law.joined.margins[dimension]));
    if (law.joined.total) add(weights.total, law.joined.total);
    return found.sort((one, other) => varianceOf(other) - varianceOf(one));
  }

  /* log Gamma for arguments of 1 and more: Stirling's series, shifted to where it has sixteen digits. */
  function logGamma(x) {
    let shift = 0;
    for (; x < 16; x++) shift -= Math.log(x);
    const s = 1 / (x * x);
    return (
      shift +
      (x - 0.5) * Math.log(x) -
      x +
      Math.log(2 * Math.PI) / 2 +
      (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / x
    );
  }

  /* The smallest m with P[Y > m] <= error, Y the sum of K geometric noises from 0 on: a negative binomial law. */
  function oneSidedReach(epsilon, terms, error) {
    const chance = -Math.expm1(-epsilon),
      mean = (terms * (1 - chance)) / chance;
    const end = Math.ceil(mean + 12 * Math.sqrt(mean / chance) + 60 / epsilon);
    if (end > LARGEST_CIRCLE) throw new TooLargeError("a sum that spreads over more than four million numbers");
    const mass = (m) =>
      Math.exp(logGamma(m + terms) - logGamma(terms) - logGamma(m + 1) + terms * Math.log(chance) - m * epsilon);
    let above = 0,
      m = end,
      last = mass(end);
    // From far out inwards, each mass from its neighbour's.
    while (m >= 0 && above + last <= error) {
      above += last;
      last *= m / ((m + terms - 1) * (1 - chance));
      m -= 1;
    }
    return Math.max(0, m);
  }

  /**
   * Return {estimate, low, high} of a sum of published counts, devices counted once in every window.
   *
   * law       {aggregators, noise: {kind, parameter, up, mean, variance}, rate, weight, level, joined}: what each
   *           aggregator added to each number; rate the sampling rate, 1 if devices answer the truth; level such as
   *           0.95; joined is null, or {cells, shape, margins, total, past} of a table's margins and a total, the noise
   *           of each, that were opened beside the cells
   * value     the opened numbers added up; where they are joined {value, chosen, excess}: those of the chosen cells,
   *           which these are, from 1 on, and what excessOf gives, added up over the windows
   * cells, windows  how many of each; together how many of the windows share one toss of a device's coin
   *
   * Throws TooLargeError where the law is too wide, and where answers are randomized, whose law is another.
   */
  function sumInterval(law, value, cells, windows, together) {
    if (law.responses) throw new TooLargeError("sums of randomized answers are not computed in a page");
    if (law.joined) return joinedInterval(law, value, windows, together);
    if (Math.abs(value) > LARGEST_COUNT) throw new TooLargeError("a sum beyond 10^12");
    const terms = law.aggregators * cells * windows,
      tail = (1 - law.level) / 2;
    const estimate = (value - terms * law.noise.mean) / law.weight;
    let low, high;
    if (law.noise.kind === "one-sided") {
      const reach = oneSidedReach(law.noise.parameter, terms, 2 * tail);
      [low, high] = law.noise.up ? [value - reach, value] : [value, value + reach];
    } else {
      const noise = NOISES[law.noise.kind](law.noise, terms);
      if (law.rate === 1) {
        const reach = centralReach(noise, tail);
        [low, high] = [value - reach, value + reach];
      } else {
        [low, high] = sampledEnds({ rate: law.rate, step: together, noise, reach: noise.reach() }, value, tail);
      }
    }
    return { estimate, low: Math.max(0, low), high: Math.max(0, high) };
  }

  /* The half width of the last sum that was asked for: it is the same in every window. */
  let kept = { of: "" };

  function keptWidth(law, parts, chosen, windows) {
    const of = [...chosen].sort((one, other) => one - other).join(",") + " " + windows;
    if (kept.law !== law || kept.of !== of) kept = { law, of, reach: halfWidth(parts, law.level, law.joined.past) };
    return kept.reach;
  }

  function joinedInterval(law, sum, windows, together) {
    const weights = weightsOf(law, sum.chosen),
      parts = combined(law, weights, windows);
    const value = [...weights.margins.flat(), ...weights.total].reduce(
      (found, weight, place) => found + weight * sum.excess[place],
      sum.value,
    );
    let low, high;
    if (law.rate === 1) {
      const reach = keptWidth(law, parts, sum.chosen, windows),
        middle = Math.round(value);
      [low, high] = [Math.min(Math.ceil(value - reach), middle), Math.max(Math.floor(value + reach), middle)];
    } else {
      [low, high] = joinedEnds({ rate: law.rate, step: together }, parts, value, (1 - law.level) / 2);
    }
    return { estimate: value / law.weight, low: Math.max(0, low), high: Math.max(0, high) };
  }

  Object.assign(fleetcount, { sumInterval, excessOf, TooLargeError });
})((window.fleetcount = window.fleetcount || {}));
