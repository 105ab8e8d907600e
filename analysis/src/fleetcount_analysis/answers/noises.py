"""Sums of the noises of several aggregators, cells and windows, with one interface for every law of noise.

It must not draw or define a law: the laws of sums are those of `channels`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from fleetcount_mechanisms.noise import NoiseLaw
from numpy.typing import NDArray

from fleetcount_analysis.channels import AnySum, noise_size, noise_sum

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class NoiseTotal(Protocol):
    """The law of a sum of independent whole-number noises, symmetric about 0; a hashable value."""

    @property
    def is_zero(self) -> bool:
        """Whether there is no noise."""
        ...

    @property
    def variance(self) -> float:
        """The variance of the sum."""
        ...

    def reach_of(self, log_tail: float) -> int:
        """Return M with P[|Z| >= M] <= 2 exp(-log_tail)."""
        ...

    def log_characteristic(self, angles: Floats) -> Floats:
        """Return log E[exp(i theta Z)], float64; the characteristic functions of these sums are positive."""
        ...

    def log_mass(self, z: Integers) -> Floats:
        """Return log P[Z = z] for every z, float64 of the same shape."""
        ...

    def upper_tail(self, at_least: Integers) -> Floats:
        """Return P[Z >= m] for every m, float64 of the same shape."""
        ...

    def central_reach(self, tail: float) -> int:
        """Return the largest m with P[Z >= m] > tail."""
        ...


Parts = tuple[tuple[float, int, NoiseTotal], ...]
"""A combination of independent noises as (weight, multiplicity, law); the sign of a weight changes no symmetric law."""


def variance_of(parts: Parts) -> float:
    """Return the variance of a combination."""
    return sum(often * weight**2 * law.variance for weight, often, law in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledNoise:
    """`factor` (1 or more) times a draw of `noise`, such as the noise of a number of devices that counts r times."""

    noise: NoiseTotal
    factor: int

    @property
    def is_zero(self) -> bool:
        """See `NoiseTotal`."""
        return self.noise.is_zero

    @property
    def variance(self) -> float:
        """See `NoiseTotal`."""
        return self.factor**2 * self.noise.variance

    def reach_of(self, log_tail: float) -> int:
        """See `NoiseTotal`."""
        return self.factor * self.noise.reach_of(log_tail)

    def log_characteristic(self, angles: Floats) -> Floats:
        """See `NoiseTotal`."""
        return self.noise.log_characteristic(self.factor * angles)

    def log_mass(self, z: Integers) -> Floats:
        """See `NoiseTotal`."""
        whole, rest = np.divmod(np.asarray(z, dtype=np.int64), self.factor)
        return np.asarray(np.where(rest == 0, self.noise.log_mass(whole), -np.inf), dtype=np.float64)

    def upper_tail(self, at_least: Integers) -> Floats:
        """See `NoiseTotal`."""
        return self.noise.upper_tail(-(-np.asarray(at_least, dtype=np.int64) // self.factor))

    def central_reach(self, tail: float) -> int:
        """See `NoiseTotal`."""
        return self.factor * self.noise.central_reach(tail)


def noise_total(law: NoiseLaw, terms: int) -> AnySum:
    """Return the law of the sum of `terms` independent draws of a symmetric law of noise.

    Raises:
        RangeError: a one-sided law, whose sums are not symmetric, or an unknown law.
    """
    return noise_sum(noise_size(law), terms)
