"""One-sided noise on counts: the asymmetric geometric mechanism, its safe answers, and the bounds it is measured
against.

The integer mechanism is exact and may be released; the continuous ones at the end are called `simulation_only_*` and
must never answer for a real database, because their floating-point outputs reveal the count.

Notation: q = e^-eps, f the true count in 0..n, n the public number of devices, z the answer. Laws are functions of a
rational q and are exact Fractions; mechanisms take a rational eps and draw with the exact, irrational q.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_fraction,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.geometric import DigitThresholds, digit_thresholds
from fleetcount_mechanisms.randomness import RandomSource, exp_minus_bounds

RATIO_BITS: Final = 128
_WORD_BITS: Final = 128
# Each word sits in a lane of 192 bits, so that one subtraction compares all words of a draw.
_LANE_BYTES: Final = 24
_ASCII: Final = bytes(48 + (byte & 1) for byte in range(256))


class Direction(Enum):
    """Which way the count moves along X ~p X', and so on which side the noise lies ([ADP] Def V.2)."""

    DECREASING = "decreasing"
    """A protected change can only lower the count ("visited A" -> "nowhere"): noise >= 0, an atom at n."""
    INCREASING = "increasing"
    """A protected change can only raise the count: noise <= 0, an atom at 0."""


def ratio_above(epsilon: Fraction) -> Fraction:
    """Return a rational in [e^-eps, e^-eps + 2^-127]: the q of an exact law that never claims a larger loss than eps.

    Raises:
        MechanismError: eps is not an exact positive number.
    """
    return Fraction(exp_minus_bounds(require_positive("epsilon", epsilon), RATIO_BITS)[1], 1 << RATIO_BITS)


@dataclass(frozen=True, slots=True)
class OneSidedGeometric:
    """Noise of 0, 1, 2, ...: P[G = g] = (1 - q) q^g, q = e^-eps; drawn exactly, in a time that does not depend on G.

    The binary digits of G are independent coins (derived in geometric.py); a draw compares one 128-bit word with each
    digit's threshold and one more with that of "G has further digits", all in one subtraction without branches: in each
    lane, bit 128 of 2^128 + threshold - 1 - word is set exactly when word < threshold, and the bits below it are all
    ones exactly when the two are equal. Only such a tie or further digits, each of probability about 2^-128, take
    longer.

    Raises:
        MechanismError: eps is not an exact number in [10^-6, 100].
    """

    epsilon: Fraction
    _thresholds: DigitThresholds = field(init=False, repr=False, compare=False)
    _ones: int = field(init=False, repr=False, compare=False)
    _minuend: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check eps and lay the thresholds out in lanes."""
        coins = digit_thresholds(self.epsilon, _WORD_BITS)
        lanes = [1 << 8 * _LANE_BYTES * lane for lane in range(coins.digits + 2)]
        # Lane 0 is "further digits", lane i binary digit i - 1; a 1 in the last lane keeps every number at full length.
        thresholds = (coins.thresholds[-1], *coins.thresholds[1:-1])
        guarded = [(1 << _WORD_BITS) + threshold - 1 for threshold in thresholds] + [1 << _WORD_BITS]
        object.__setattr__(self, "_thresholds", coins)
        object.__setattr__(self, "epsilon", coins.epsilon)
        object.__setattr__(self, "_ones", sum(lanes))
        object.__setattr__(self, "_minuend", sum(lane * value for lane, value in zip(lanes, guarded, strict=True)))

    @property
    def mean(self) -> float:
        """Return E[G] = q / (1 - q)."""
        return 1 / math.expm1(float(self.epsilon))

    @property
    def variance(self) -> float:
        """Return Var[G] = q / (1 - q)^2."""
        return 1 / (2 * math.sinh(float(self.epsilon) / 2)) ** 2

    def pmf(self, noise: int) -> float:
        """Return P[G = noise]."""
        epsilon = float(self.epsilon)
        return -math.expm1(-epsilon) * math.exp(-epsilon * noise) if noise >= 0 else 0.0

    def sample(self, source: RandomSource) -> int:
        """Return one exact draw."""
        ones, digits = self._ones, self._thresholds.digits
        words = int.from_bytes(source.random_bytes(_LANE_BYTES * (digits + 1)), "little")
        apart = self._minuend - (words & ones * ((1 << _WORD_BITS) - 1))
        below = apart >> _WORD_BITS & ones
        # On a tie the bits below bit 128 are all ones: adding one then carries into it, and only then.
        if (apart ^ apart + ones) >> _WORD_BITS & ones:
            below = self._without_ties(apart, source)
        coins = below.to_bytes(_LANE_BYTES * (digits + 2), "little")[::_LANE_BYTES]
        # Lane 0 is "further digits"; from the top down, the guard's 1 and the digits are read as one binary number.
        noise = int(coins[:0:-1].translate(_ASCII), 2) - (1 << digits)
        return noise + self._thresholds.beyond(source) if coins[0] else noise

    def sample_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent exact draws.

        Raises:
            MechanismError: the count is not an int of at least 0.
        """
        return [self.sample(source) for _ in range(require_at_least("count", count, 0))]

    def _without_ties(self, apart: int, source: RandomSource) -> int:
        digits = self._thresholds.digits
        below = 1 << 8 * _LANE_BYTES * (digits + 1)
        for lane in range(digits + 1):
            value = apart >> 8 * _LANE_BYTES * lane & (2 << _WORD_BITS) - 1
            tied = value == (1 << _WORD_BITS) - 1
            coin = self._thresholds.settle(lane or digits + 1, source) if tied else value >> _WORD_BITS
            below |= coin << 8 * _LANE_BYTES * lane
        return below


def asymmetric_row(
    ratio: Fraction, count: int, maximum: int, direction: Direction = Direction.DECREASING
) -> tuple[Fraction, ...]:
    """Return AGeo's law of z = 0..n for the true count f, exactly.

    DECREASING: P[z] = (1 - q) q^(z-f) for f <= z < n and q^(n-f) at z = n; INCREASING is the mirror image, its atom
    q^f at 0. Source: [ADP] Def VIII.1, Eq 26 and 29 (Eq 21 with Sign = -1 puts decreasing noise on the wrong side).

    Raises:
        MechanismError: q is not in (0, 1), n is below 0, or f is outside 0..n.
    """
    require_open_unit("ratio", ratio)
    _require_count(count, maximum)
    if direction is Direction.INCREASING:
        return asymmetric_row(ratio, maximum - count, maximum)[::-1]
    steps = ((1 - ratio) * ratio**noise for noise in range(maximum - count))
    return (*(Fraction(0),) * count, *steps, ratio ** (maximum - count))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymmetricGeometric:
    """AGeo: one-sided geometric noise on a count of p-sensitivity 1, held inside 0..n; (eps, p)-ADP.

    An aggregator runs it on an exact count. The law is `asymmetric_row` at q = e^-eps. Time and random bytes do not
    depend on the count or the noise (geometric.py); a count out of range is refused without being shown.

    Raises:
        MechanismError: eps is not an exact number in [10^-6, 100], or `maximum` (n) is not an int of at least 0.
    """

    epsilon: Fraction
    maximum: int
    direction: Direction = Direction.DECREASING
    _noise: OneSidedGeometric = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the range and prepare the noise."""
        require_at_least("maximum", self.maximum, 0)
        object.__setattr__(self, "_noise", OneSidedGeometric(self.epsilon))
        object.__setattr__(self, "epsilon", self._noise.epsilon)

    @property
    def variance(self) -> float:
        """Return q / (1 - q)^2, the variance without the truncation to 0..n."""
        return self._noise.variance

    def row(self, count: int) -> tuple[Fraction, ...]:
        """Return the law of z = 0..n for the true count, exact for a rational q within 2^-127 of e^-eps."""
        return asymmetric_row(ratio_above(self.epsilon), count, self.maximum, self.direction)

    def sample(self, count: int, source: RandomSource) -> int:
        """Return one noisy answer z in 0..n for the true count.

        Raises:
            MechanismError: the count is outside 0..n.
        """
        return self.sample_many(count, source, 1)[0]

    def sample_many(self, count: int, source: RandomSource, repetitions: int) -> list[int]:
        """Return independent noisy answers for one true count: `repetitions` times the loss.

        Raises:
            MechanismError: the count is outside 0..n.
        """
        _require_count(count, self.maximum)
        noises = self._noise.sample_many(source, repetitions)
        if self.direction is Direction.INCREASING:
            return [max(count - noise, 0) for noise in noises]
        return [min(count + noise, self.maximum) for noise in noises]


def safe_law(ratio: Fraction, count: int, threshold: int) -> Fraction:
    """Return P["safe" | f] = 1 - q^(t+1-f) for f <= t and 0 above, exactly (n > t).

    Raises:
        MechanismError: q is not in (0, 1).
    """
    require_open_unit("ratio", ratio)
    return 1 - ratio ** (threshold + 1 - count) if count <= threshold else Fraction(0)


def optimal_detection(epsilon: Fraction, steps: int, false_alarm: Fraction = Fraction(0)) -> float:
    """Return the largest beta an (eps, p)-ADP mechanism can reach: 1 - (1 - alpha) e^(-k eps), k = `steps` = t+1-f.

    Source: [ADP] Prop IV.7. AGeo with "safe iff z <= t" attains it at alpha = 0.

    Raises:
        MechanismError: eps is not above 0, steps below 1, or alpha outside [0, 1].
    """
    exponent = -float(require_positive("epsilon", epsilon)) * require_at_least("steps", steps, 1)
    kept = 1 - float(_checked_probability("alpha", false_alarm))
    return 1 - kept * math.exp(exponent) if kept < 1 else -math.expm1(exponent)


def noisy_sum_law(ratio: Fraction, slack: int, aggregators: int) -> Fraction:
    """Return P[G_1 + ... + G_k <= m] exactly: the chance to find "safe" if each of k aggregators adds its own noise.

    The negative binomial law, sum over i <= m of C(i+k-1, i) (1-q)^k q^i with m = `slack` = t-f; 0 for m below 0.

    Raises:
        MechanismError: q is not in (0, 1), or there is no aggregator.
    """
    require_open_unit("ratio", ratio)
    require_at_least("aggregators", aggregators, 1)
    terms = (math.comb(i + aggregators - 1, i) * ratio**i for i in range(slack + 1))
    return (1 - ratio) ** aggregators * sum(terms, Fraction(0))


def noisy_sum_detection(epsilon: Fraction, slack: int, aggregators: int) -> float:
    """Return `noisy_sum_law` at q = e^-eps; for k = 2 it is 1 - (m+2) q^(m+1) + (m+1) q^(m+2)."""
    return float(noisy_sum_law(ratio_above(epsilon), slack, aggregators))


def approximate_detection(epsilon: Fraction, delta: Fraction, steps: int, false_alarm: Fraction = Fraction(0)) -> float:
    """Return the largest beta of any (eps, delta)-DP mechanism, k = `steps` away from an unsafe count (the competitor).

    Tight recursion from b = alpha, k times: b <- min(e^eps b + delta, 1 - e^-eps (1 - b - delta)); the second bound
    is the first one applied to the opposite answer, and becomes the smaller once b is large.

    Raises:
        MechanismError: eps is not above 0, steps below 1, or delta or alpha outside [0, 1].
    """
    growth, shift = math.exp(require_positive("epsilon", epsilon)), float(_checked_probability("delta", delta))
    beta = float(_checked_probability("alpha", false_alarm))
    for _ in range(require_at_least("steps", steps, 1)):
        beta = min(growth * beta + shift, 1 - (1 - beta - shift) / growth, 1.0)
    return beta


def approximate_detection_paper(
    epsilon: Fraction, delta: Fraction, steps: int, false_alarm: Fraction = Fraction(0)
) -> float:
    """Return the paper's bound on the competitor: alpha e^(k eps) + delta times the sum of e^(i eps), i < k, at most 1.

    Source: [ADP] Eq 8 and 9. Never below `approximate_detection`.

    Raises:
        MechanismError: as for `approximate_detection`.
    """
    exact, shift = require_positive("epsilon", epsilon), float(_checked_probability("delta", delta))
    start = float(_checked_probability("alpha", false_alarm))
    total = math.fsum(math.exp(exact * step) for step in range(require_at_least("steps", steps, 1)))
    return min(1.0, start * math.exp(exact * steps) + shift * total)


def expected_safe_answers(histogram: Mapping[int, int], threshold: int, epsilon: Fraction) -> float:
    """Return the expected number of places that AGeo finds safe (count <= t).

    `histogram` maps a true count to the number of places that have it. Places share one eps if a device can be at one
    of them only: sensitivity 1 for all cells together ([ADP] VI-A2).

    Raises:
        MechanismError: eps not above 0, or a negative number in the histogram.
    """
    terms = (
        places * optimal_detection(epsilon, threshold + 1 - count)
        for count, places in _checked_histogram(histogram).items()
        if count <= threshold
    )
    return math.fsum(terms)


def expected_safe_answers_approximate(
    histogram: Mapping[int, int], threshold: int, epsilon: Fraction, delta: Fraction
) -> float:
    """Return the largest expected number of safe answers of any (eps, delta)-DP mechanism without false ones.

    Raises:
        MechanismError: as `approximate_detection`, or a negative number in the histogram.
    """
    terms = (
        places * approximate_detection(epsilon, delta, threshold + 1 - count)
        for count, places in _checked_histogram(histogram).items()
        if count <= threshold
    )
    return math.fsum(terms)


# For comparison only: rounding the float sum count + noise of a continuous mechanism makes the set of possible answers
# depend on the count, so most outputs reveal it, at every eps.


def simulation_only_safe_detection(epsilon: float, steps: int) -> float:
    """Return ALap's probability of finding "safe" with z <= t: 1 - e^(-eps (k-1)), k = t+1-f; AGeo's has k for k-1.

    Raises:
        MechanismError: k is below 1.
    """
    return -math.expm1(-epsilon * (require_at_least("steps", steps, 1) - 1))


def _require_count(count: int, maximum: int) -> None:
    require_at_least("maximum", maximum, 0)
    if type(count) is not int or not 0 <= count <= maximum:
        raise MechanismError(f"a true count must be an int in 0..{maximum} (the value given is withheld)")


def _checked_probability(name: str, value: Fraction) -> Fraction:
    exact = require_fraction(name, value)
    if not 0 <= exact <= 1:
        raise MechanismError(f"{name} is {exact}, allowed: 0 <= {name} <= 1")
    return exact


def _checked_histogram(histogram: Mapping[int, int]) -> Mapping[int, int]:
    for count, places in histogram.items():
        require_at_least("count", count, 0)
        require_at_least("places", places, 0)
    return histogram
