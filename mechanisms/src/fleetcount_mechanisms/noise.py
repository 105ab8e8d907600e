"""The noise that each aggregator adds to every opened number, as small values: none, geometric or discrete Gaussian.

A law states its moments. `statement` computes its promise for one device, `noise_draws` draws it, analysis reads its
sums. A further law is a further class with the members of `NoiseLaw`; nothing here lists the laws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, fsum, sinh
from typing import Final, Literal, Protocol

from fleetcount_mechanisms.errors import MechanismError, require_positive

LARGEST_NOISE_EPSILON: Final = 100
"""The epsilon of the weakest geometric noise; a question allows at most 10."""
LARGEST_PLANNED_EPSILON: Final = 10
"""The largest noise epsilon that is planned and that a question allows: a larger target gets this noise."""

_FLAT_VARIANCE: Final = 4
"""From here on the variance of N_Z(0, s) is s to a relative error below 1e-30 (Poisson summation)."""

Side = Literal["up", "down"]


class NoiseLaw(Protocol):
    """A law of noise, as a frozen, hashable value."""

    @property
    def name(self) -> str:
        """The law's name in records and tables."""
        ...

    @property
    def epsilon(self) -> Fraction | None:
        """The parameter of geometric noise; None for other laws."""
        ...

    @property
    def parameters(self) -> Mapping[str, Fraction]:
        """The law's parameters by name, as records and tables write them; empty without noise."""
        ...

    @property
    def mean(self) -> float:
        """The mean of one draw."""
        ...

    @property
    def draw_variance(self) -> float:
        """The variance of one draw."""
        ...

    def __hash__(self) -> int: ...


def _checked(epsilon: object) -> Fraction:
    exact = require_positive("noise epsilon", epsilon)
    if exact > LARGEST_NOISE_EPSILON:
        raise MechanismError(f"noise epsilon is {exact}, allowed: 0 < noise epsilon <= {LARGEST_NOISE_EPSILON}")
    return exact


@dataclass(frozen=True, slots=True)
class NoNoise:
    """No noise: the opened numbers are the exact sums."""

    @property
    def name(self) -> str:
        """See `NoiseLaw`."""
        return "none"

    @property
    def epsilon(self) -> None:
        """No parameter."""
        return None

    @property
    def parameters(self) -> Mapping[str, Fraction]:
        """No parameter."""
        return {}

    @property
    def mean(self) -> float:
        """0."""
        return 0.0

    @property
    def draw_variance(self) -> float:
        """0."""
        return 0.0


@dataclass(frozen=True, slots=True)
class TwoSidedNoise:
    """P[z] = (1-a)/(1+a) a^|z| on all integers, a = exp(-epsilon) ([GEO] Definition 2.1; `geometric`).

    Raises:
        MechanismError: epsilon is not an exact number in (0, 100].
    """

    epsilon: Fraction

    def __post_init__(self) -> None:
        """Check the parameter."""
        object.__setattr__(self, "epsilon", _checked(self.epsilon))

    @property
    def name(self) -> str:
        """See `NoiseLaw`."""
        return "two-sided geometric"

    @property
    def parameters(self) -> Mapping[str, Fraction]:
        """See `NoiseLaw`."""
        return {"epsilon": self.epsilon}

    @property
    def mean(self) -> float:
        """0, by symmetry."""
        return 0.0

    @property
    def draw_variance(self) -> float:
        """2a/(1-a)^2."""
        return 1 / (2 * sinh(self.epsilon / 2) ** 2)


@dataclass(frozen=True, slots=True)
class OneSidedNoise:
    """P[z] = (1-q) q^z for z = 0, 1, ..., q = exp(-epsilon) ([ADP] AGeo without a cut; `asymmetric`).

    `direction` "up" adds z: a released count is never too small. "down" subtracts z: it is never too large.

    Raises:
        MechanismError: epsilon is not an exact number in (0, 100], or another direction.
    """

    epsilon: Fraction
    direction: Side = "up"

    def __post_init__(self) -> None:
        """Check both parameters."""
        object.__setattr__(self, "epsilon", _checked(self.epsilon))
        if self.direction not in ("up", "down"):
            raise MechanismError(f"direction is {self.direction!r}, allowed: 'up', 'down'")

    @property
    def name(self) -> str:
        """See `NoiseLaw`."""
        return "one-sided geometric"

    @property
    def parameters(self) -> Mapping[str, Fraction]:
        """See `NoiseLaw`."""
        return {"epsilon": self.epsilon}

    @property
    def mean(self) -> float:
        """q/(1-q), below 0 for "down"."""
        size = 1 / expm1(self.epsilon)
        return size if self.direction == "up" else -size

    @property
    def draw_variance(self) -> float:
        """q/(1-q)^2."""
        return 1 / (2 * sinh(self.epsilon / 2)) ** 2


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """N_Z(0, s): P[z] proportional to exp(-z**2/(2s)) on all integers, s = `variance` the parameter (`gaussian`).

    It has no pure epsilon: a release with it loses (epsilon, delta), and over many releases less than geometric noise
    of the same variance does.

    Raises:
        MechanismError: the variance is not an exact number in [1/4, 10**8] with terms up to 2**63 - 1.
    """

    variance: Fraction

    def __post_init__(self) -> None:
        """Check the parameter."""
        from fleetcount_mechanisms.gaussian import require_variance  # Loaded for questions with this law alone.

        object.__setattr__(self, "variance", require_variance(self.variance))

    @property
    def name(self) -> str:
        """See `NoiseLaw`."""
        return "discrete Gaussian"

    @property
    def parameters(self) -> Mapping[str, Fraction]:
        """See `NoiseLaw`."""
        return {"variance": self.variance}

    @property
    def epsilon(self) -> None:
        """No pure epsilon."""
        return None

    @property
    def mean(self) -> float:
        """0, by symmetry."""
        return 0.0

    @property
    def draw_variance(self) -> float:
        """The sum of z**2 P[z]: s to 3e-7 for s >= 1, 0.86 s at s = 1/4."""
        parameter = float(self.variance)
        if parameter >= _FLAT_VARIANCE:
            return parameter
        weights = [(z, exp(-z * z / (2 * parameter))) for z in range(-60, 61)]
        return fsum(z * z * weight for z, weight in weights) / fsum(weight for _, weight in weights)
