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
  const LARGEST_COUNT = 1e12;

  class TooLargeError extends Error {}

  /* What a sum of K noises offers: log |E exp(i a Z)|, which falls with a, and a reach that Z hardly ever passes. */
  function geometric(epsilon, terms) {
    const half = Math.sinh(epsilon / 2);
    return {
      logCharacteristic: (angle) => -terms * Math.log1p((Math.sin(angle / 2) / half) ** 2),
      reach: () => {
        let least = Infinity;
        for (let step = 1; step < 100; step++) {
          const tilt = (epsilon * step) / 100;
          const excess = Math.log(-Math.expm1(-epsilon + tilt)) + Math.log(-Math.expm1(-epsilon - tilt));
          least = Math.min(least, (terms * (2 * Math.log(-Math.expm1(-epsilon)) - excess) + LOG_TAIL) / tilt);
        }
        return Math.ceil(least);
      },
    };
  }

  function gaussian(variance, terms) {
    const wave = (angle) => {
      let sum = 0;
      for (let turn = -4; turn <= 4; turn++) sum += Math.exp((-variance / 2) * (angle + 2 * Math.PI * turn) ** 2);
      return Math.log(sum);
    };
    const atZero = wave(0);
    return {
      logCharacteristic: (angle) => Math.min(0, terms * (wave(angle) - atZero)),
      reach: () => Math.ceil(Math.sqrt(2 * terms * variance * LOG_TAIL)),
    };
  }

  const NOISES = {
    geometric: (noise, terms) => geometric(noise.parameter, terms),
    gaussian: (noise, terms) => gaussian(noise.parameter, terms),
    none: () => ({ logCharacteristic: () => 0, reach: () => 0 }),
  };

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
    const spread = 4 * rate * (1 - rate);
    let sum = 0;
    for (let odd = 1; odd < size / 2; odd += 2) {
      const angle = (odd * 2 * Math.PI) / size,
        turned = step * angle;
      const quiet = noise.logCharacteristic(angle) - Math.log((Math.sin(angle / 2) * size) / 2);
      if (quiet <= CUT) break;
      const square = Math.min(1 - 1e-16, spread * Math.sin(turned / 2) ** 2);
      const height = Math.log1p(-square) / 2;
      const phase = Math.atan2(rate * Math.sin(turned), 1 - rate + rate * Math.cos(turned)) - rate * turned;
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

  function sampledEnds(law, value, tail) {
    const guess = Math.round(value / (law.step * law.rate));
    const upper = (n) => Math.min(1, atLeast(law, n, value) + SLACK) > tail;
    const lower = (n) => Math.min(1, 1 - atLeast(law, n, value + 1) + SLACK) <= tail;
    return [(firstTrue(upper, guess) - 1) * law.step + 1, (firstTrue(lower, guess) - 1) * law.step + law.step - 1];
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
   * law       {aggregators, noise: {kind, parameter, up, mean}, rate, weight, level}: what each aggregator added to
   *           each number; rate the sampling rate, 1 if devices answer the truth; level such as 0.95
   * value     the opened numbers added up; cells, windows how many of each; together how many of the windows share one
   *           toss of a device's coin
   *
   * Throws TooLargeError where the law is too wide, and where answers are randomized, whose law is another.
   */
  function sumInterval(law, value, cells, windows, together) {
    if (law.responses) throw new TooLargeError("sums of randomized answers are not computed in a page");
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

  Object.assign(fleetcount, { sumInterval, TooLargeError });
})((window.fleetcount = window.fleetcount || {}));
