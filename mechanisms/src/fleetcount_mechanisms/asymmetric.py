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
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource, exp_minus_bounds

RATIO_BITS: Final = 128


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
