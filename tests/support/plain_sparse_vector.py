"""The sparse vector of ordinary differential privacy, with which [ADP] compares its one-sided ones, and what these say.

It must not be used by an aggregator. The order of questions and the reading of answers are those of `sparse_vector`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from fleetcount_mechanisms.errors import require_at_least, require_counts
from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_mechanisms.sparse_vector import Answer, Mark, read_out, safe_law, two_way_law


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSparseVector:
    """The sparse vector of ordinary differential privacy, for comparison: two-sided noise on thresholds and on counts.

    ABOVE iff f_i + Z_i > t_i + R with one R of eps/2 for the run and Z_i of eps/(4c); eps-DP for the run as a whole
    when one device moves every count by at most 1, in either direction. Both answers can be wrong.

    Source: Lyu, Su, Li, "Understanding the sparse vector technique", Algorithm 1 with sensitivity 1, in integers.

    Raises:
        MechanismError: eps/2 or eps/(4c) is not in [10^-6, 100], c is below 1, or there is no threshold.
    """

    epsilon: Fraction
    thresholds: tuple[int, ...]
    aborts: int = 1
    _threshold_noise: TwoSidedGeometric = field(init=False, repr=False, compare=False)
    _count_noise: TwoSidedGeometric = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the public parameters and prepare both noises."""
        require_at_least("number of thresholds", len(self.thresholds), 1)
        require_at_least("aborts", self.aborts, 1)
        object.__setattr__(self, "_threshold_noise", TwoSidedGeometric(self.epsilon / 2))
        object.__setattr__(self, "_count_noise", TwoSidedGeometric(self.epsilon / (4 * self.aborts)))

    def run(self, counts: Sequence[int], source: RandomSource) -> tuple[Answer, ...]:
        """Answer all queries once.

        Raises:
            MechanismError: not one count for each threshold.
        """
        require_counts("counts", counts, len(self.thresholds))
        shift = self._threshold_noise.sample(source)
        noises = self._count_noise.sample_many(source, len(counts))
        noisy = [count + noise for count, noise in zip(counts, noises, strict=True)]
        moved = [threshold + shift for threshold in self.thresholds]
        return read_out(noisy, moved, self.aborts, lambda _: Mark.ABOVE)

    def law(self, counts: Sequence[int]) -> dict[tuple[Answer, ...], float]:
        """Return the law of a whole run, summed over the threshold noise up to a tail below 1e-15; for small cases."""
        require_counts("counts", counts, len(self.thresholds))
        reach = math.ceil(36 / (float(self.epsilon) / 2))
        ratio = math.exp(-self.epsilon / (4 * self.aborts))
        law: dict[tuple[Answer, ...], float] = {}
        for shift in range(-reach, reach + 1):
            safe = [
                _two_sided_cumulative(ratio, threshold + shift - count)
                for threshold, count in zip(self.thresholds, counts, strict=True)
            ]
            weight = self._threshold_noise.pmf(shift)
            for answers, probability in two_way_law(safe, self.aborts, 1.0).items():
                law[answers] = law.get(answers, 0.0) + weight * probability
        return law


def expected_correct_safe(
    ratio: Fraction, counts: Sequence[int], thresholds: Sequence[int], aborts: int = 1
) -> Fraction:
    """Return the expected number of SAFE answers of a run of the asymmetric one, exactly; all of them are correct.

    Carries the law of the number of aborts so far from query to query, so it takes len(counts) * c steps.
    """
    running = [Fraction(1)] + [Fraction(0)] * (aborts - 1)
    expected = Fraction(0)
    for count, threshold in zip(counts, thresholds, strict=True):
        safe = safe_law(ratio, count, threshold)
        expected += safe * sum(running)
        running = [
            safe * mass + (1 - safe) * (running[index - 1] if index else 0) for index, mass in enumerate(running)
        ]
    return expected


def _two_sided_cumulative(ratio: float, value: int) -> float:
    """Return P[Z <= value] of two-sided geometric noise."""
    if value >= 0:
        return 1 - ratio ** (value + 1) / (1 + ratio)
    return ratio ** (-value) / (1 + ratio)
