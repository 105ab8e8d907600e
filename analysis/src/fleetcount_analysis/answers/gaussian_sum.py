"""The exact law of a sum of discrete Gaussians N_Z(0, s), as intervals need it.

It must not draw. The characteristic function of one is a quotient of two sums of Gaussians (Poisson's summation), all
positive, so its logarithm keeps its digits; the law of a sum follows by one transform, with an absolute error of 1e-16.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.errors import RangeError, TooLargeError

__all__ = ["GaussianSum"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LOG_TAIL: Final = 18 * math.log(10)
_LARGEST_REACH: Final = 1 << 21
_IMAGES: Final = np.arange(-12, 13)
"""Terms of the sums: at s = 1/100 the first left out is below e^-25 of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianSum:
    """The law of the sum of `terms` independent draws of N_Z(0, s): P[z] proportional to exp(-z^2 / (2 s)).

    `parameter` is s, which the variance of one draw falls short of by 3e-7 at most from s = 1 on.

    Raises:
        RangeError: s is below 1/100, or terms is negative.
    """

    parameter: Fraction
    terms: int

    def __post_init__(self) -> None:
        if self.parameter < Fraction(1, 100):
            raise RangeError("variance parameter", self.parameter, "at least 1/100")
        if self.terms < 0:
            raise RangeError("number of noises", self.terms, "0 or more")

    @property
    def is_zero(self) -> bool:
        """Whether there is no noise at all."""
        return self.terms == 0

    @property
    def variance(self) -> float:
        """The variance of the sum, exactly that of the lattice law."""
        s = float(self.parameter)
        z = np.arange(-math.ceil(40 * math.sqrt(s)) - 2, math.ceil(40 * math.sqrt(s)) + 3, dtype=np.float64)
        mass = np.exp(-(z**2) / (2 * s))
        return self.terms * float(np.sum(mass * z**2) / np.sum(mass))

    def reach_of(self, log_tail: float) -> int:
        """Return M with P[|Z| >= M] <= 2 exp(-log_tail): N_Z(0, s) is sub-Gaussian with parameter s."""
        return math.ceil(math.sqrt(2 * log_tail * float(self.parameter) * self.terms))

    def log_characteristic(self, angles: Floats) -> Floats:
        """Return log E[exp(i theta Z)]: terms log of sum_j e^(-s (theta - 2 pi j)^2 / 2) over its value at 0."""
        s = float(self.parameter)
        turned = np.asarray(angles, dtype=np.float64) - 2 * np.pi * np.rint(np.asarray(angles) / (2 * np.pi))
        waves = -s * (turned[..., None] - 2 * np.pi * _IMAGES) ** 2 / 2
        top = waves.max(axis=-1)
        total = top + np.log(np.sum(np.exp(waves - top[..., None]), axis=-1))
        whole = math.log(float(np.sum(np.exp(-s * (2 * np.pi * _IMAGES) ** 2 / 2))))
        return np.asarray(self.terms * (total - whole), dtype=np.float64)

    def log_mass(self, z: Integers) -> Floats:
        """Return log P[Z = z]."""
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(self.upper_tail(np.abs(z)) - self.upper_tail(np.abs(z) + 1), 0))

    def upper_tail(self, at_least: Integers) -> Floats:
        """Return P[Z >= m] for every m.

        Raises:
            TooLargeError: the law reaches beyond 2^21.
        """
        m, table = np.asarray(at_least, dtype=np.int64), _tails(self)
        reach = table.size // 2 - 1
        return np.asarray(table[np.clip(m, -reach, reach + 1) + reach], dtype=np.float64)

    def central_reach(self, tail: float) -> int:
        """Return the largest m with P[Z >= m] > tail.

        Raises:
            RangeError: tail is outside (0, 1/2).
        """
        if not 0 < tail < 0.5:
            raise RangeError("tail probability", tail, "above 0 and below 1/2")
        table = _tails(self)
        return int(np.flatnonzero(table > tail)[-1]) - (table.size // 2 - 1)


@lru_cache(maxsize=32)
def _tails(law: GaussianSum) -> Floats:
    """Return P[Z >= m] for m = -reach .. reach + 1, the last one 0."""
    reach = law.reach_of(_LOG_TAIL)
    if reach > _LARGEST_REACH:
        raise TooLargeError(f"{law.terms} noises of variance {float(law.parameter):g} reach {reach}; exact to 2^21")
    size = 1 << (2 * reach + 4).bit_length()
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    mass = np.fft.irfft(np.exp(law.log_characteristic(angles)), size)
    right = np.maximum(np.cumsum(mass[reach:0:-1])[::-1], 0)  # P[Z >= 1] .. P[Z >= reach]
    # P[Z >= m] at m = -reach .. 0 is 1 - P[Z >= 1 - m], by symmetry.
    return np.concatenate([1 - np.append(right, 0.0)[::-1], right, [0.0]])
