"""A sampler of the range-restricted geometric mechanism G_n, to hold its law against the exact matrix and audit it."""

from dataclasses import dataclass, field
from fractions import Fraction

from fleetcount_evidence.papers.geometric.bounded_geometric import bounded_geometric_row, require_count
from fleetcount_mechanisms.asymmetric import ratio_above
from fleetcount_mechanisms.errors import require_at_least
from fleetcount_mechanisms.geometric import TwoSidedGeometric
from fleetcount_mechanisms.randomness import RandomSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedGeometric:
    """G_n: count + Z clamped to 0..n, P[Z = z] = (1-a)/(1+a) a^|z|, a = e^-eps; pure eps-DP for a change of the count
    by 1.

    An aggregator, or one trusted curator, runs it on an exact count. Time does not depend on the count or the noise.

    Raises:
        MechanismError: eps is not an exact number in [10^-6, 100], or `maximum` (n) is not an int of at least 1.
    """

    epsilon: Fraction
    maximum: int
    _noise: TwoSidedGeometric = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the range and prepare the noise."""
        require_at_least("maximum", self.maximum, 1)
        object.__setattr__(self, "_noise", TwoSidedGeometric(self.epsilon))
        object.__setattr__(self, "epsilon", self._noise.epsilon)

    def row(self, count: int) -> tuple[Fraction, ...]:
        """Return the law of the answers 0..n, exact for a rational a within 2^-127 of e^-eps."""
        return bounded_geometric_row(ratio_above(self.epsilon), count, self.maximum)

    def sample(self, count: int, source: RandomSource) -> int:
        """Return one noisy answer in 0..n.

        Raises:
            MechanismError: the count is outside 0..n.
        """
        return self.sample_many(count, source, 1)[0]

    def sample_many(self, count: int, source: RandomSource, repetitions: int) -> list[int]:
        """Return independent noisy answers for one true count: `repetitions` times the loss.

        Raises:
            MechanismError: the count is outside 0..n.
        """
        require_count(count, self.maximum)
        return [min(max(count + noise, 0), self.maximum) for noise in self._noise.sample_many(source, repetitions)]
