"""The paper's two constructions without two rounds, and their faults.

It must not be used for a count: both are for comparison only ([SP] sections 3.2 and 3.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from types import MappingProxyType

from fleetcount_mechanisms.errors import MechanismError, require_open_unit, require_position
from fleetcount_mechanisms.responses import TwoCoin


@dataclass(frozen=True, slots=True)
class SamplingAndNoise:
    """Sampling and noise ([SP] 3.2, Equation 1): a sampled device answers Yes for every truth, the others not at all.

    The law of an answer is the same for Yes and No, so the loss is 0 and the count is not estimable: the one sum has
    expectation p (Yes + No), one equation for two unknowns.

    Raises:
        MechanismError: p not exact or not in (0, 1).
    """

    sampling_rate: Fraction

    def __post_init__(self) -> None:
        """Check the rate."""
        object.__setattr__(self, "sampling_rate", require_open_unit("sampling rate", self.sampling_rate))

    def law(self, truth: int) -> Mapping[int | None, Fraction]:
        """Return the probabilities of the answers 1, None (no answer) and 0 (never given).

        Raises:
            MechanismError: the truth is neither 0 nor 1.
        """
        require_position(truth, 1)
        return MappingProxyType({1: self.sampling_rate, None: 1 - self.sampling_rate, 0: Fraction(0)})


@dataclass(frozen=True, slots=True)
class SampledTwoCoin:
    """Sampling before the two coins ([SP] 3.3, Equations 2 and 3): the two-coin answer with probability p, else none.

    P[1 | Yes] = p A and P[1 | No] = p B, with A and B those of the two coins. Not answering is independent of the
    truth, so the loss of an answer is that of the two coins; the error grows with the number of No as theirs does, and
    by 1/p more.

    Raises:
        MechanismError: p not exact or not in (0, 1).
    """

    sampling_rate: Fraction
    coins: TwoCoin

    def __post_init__(self) -> None:
        """Check the rate."""
        object.__setattr__(self, "sampling_rate", require_open_unit("sampling rate", self.sampling_rate))

    def law(self, truth: int) -> Mapping[int | None, Fraction]:
        """Return the probabilities of the answers 0, 1 and None (no answer).

        Raises:
            MechanismError: the truth is neither 0 nor 1.
        """
        rate = self.sampling_rate
        answers: dict[int | None, Fraction] = {
            output: rate * self.coins.probability(output, truth) for output in (0, 1)
        }
        return MappingProxyType({**answers, None: 1 - rate})

    def standard_deviation(self, count: int, population: int) -> float:
        """Return the sd, for `count` Yes among `population`, of the unbiased estimate ([SP] Equation 5).

        (sum - p (1-q) r N)/(p q); the population N must be known.

        Raises:
            MechanismError: the count is not in 0..population.
        """
        if not 0 <= count <= population:
            raise MechanismError(f"count is {count}, allowed: 0 <= count <= population = {population}")
        yes, no = (self.sampling_rate * self.coins.probability(1, truth) for truth in (1, 0))
        variance = count * yes * (1 - yes) + (population - count) * no * (1 - no)
        return sqrt(variance) / float(yes - no)
