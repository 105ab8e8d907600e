"""The exact law of a sum of independent discrete Gaussian noises; `channels.NoiseSum` is that of geometric ones.

It must not estimate or draw. One noise is N_Z(0, s), P[z] proportional to exp(-z^2/(2s)). By Poisson summation the sum
of k of them is N_Z(0, k s) up to a factor 1 + O(k e^(-pi^2 s)) of each probability, which is 1 for a double from s = 4
on. For smaller s the probabilities are convolved: all are positive, so the tails keep their relative precision.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy
from fleetcount_mechanisms.gaussian import require_variance
from numpy.typing import NDArray

from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LOG_TAIL = 18 * math.log(10)
"""Probability below 1e-18 is left out, as in `channels`."""
_FLAT_VARIANCE = 4
_TABLE_LIMIT = 1 << 20
"""The largest reach of a law that is tabulated; the tails of a wider one are those of the midpoint rule with its first
correction, to a relative error below 1e-15."""
_SMALLEST_MASS = 1e-290
_WAVES = 4
"""Terms of the Poisson sum on either side: at s = 1/4 the next one is e^(-(2 pi 4)^2/8) = e^-79."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianSum:
    """The law of the sum of `terms` independent noises N_Z(0, `parameter`), with the methods of `NoiseSum`.

    Raises:
        MechanismError: a parameter outside [1/4, 10^8].
        RangeError: terms is negative.
    """

    parameter: Fraction
    terms: int

    def __post_init__(self) -> None:
        require_variance(self.parameter)
        if self.terms < 0:
            raise RangeError("number of noises", self.terms, "0 or more")

    @property
    def is_zero(self) -> bool:
        """Whether there is no noise."""
        return self.terms == 0

    @property
    def variance(self) -> float:
        """Return the variance of the sum, which is less than terms * s where s is small."""
        if self.parameter >= _FLAT_VARIANCE:
            return self._spread
        one = GaussianSum(parameter=self.parameter, terms=1)
        z = np.arange(one.reach_of(600))
        return self.terms * float((2 * np.exp(one.log_mass(z)) * z.astype(np.float64) ** 2).sum())

    @property
    def reach(self) -> int:
        """Return M with P[|Z| >= M] <= 2e-18."""
        return self.reach_of(_LOG_TAIL)

    def reach_of(self, log_tail: float) -> int:
        """Return M with P[|Z| >= M] <= 2 exp(-log_tail): the noises are sub-Gaussian (`gaussian.noise_reach`)."""
        return math.ceil(math.sqrt(2 * self._spread * max(log_tail, 0.0)))

    def log_characteristic(self, angles: Floats) -> Floats:
        """Return log E[exp(i theta Z)], real and at most 0, of period 2 pi in theta: Poisson summation."""
        shifts = 2 * np.pi * np.arange(-_WAVES, _WAVES + 1)
        half = float(self.parameter) / 2
        angles = np.remainder(np.asarray(angles) + np.pi, 2 * np.pi) - np.pi
        at_angle = scipy.special.logsumexp(-half * np.square(angles[..., None] + shifts), axis=-1)
        at_zero = scipy.special.logsumexp(-half * np.square(shifts))
        return np.asarray(np.minimum(self.terms * (at_angle - at_zero), 0.0), dtype=np.float64)

    def upper_tail(self, at_least: Integers) -> Floats:
        """Return P[Z >= m] for every m, float64 of the same shape."""
        m = np.asarray(at_least, dtype=np.int64)
        if self.is_zero:
            return np.asarray(m <= 0, dtype=np.float64)
        if self.reach > _TABLE_LIMIT:
            return self._far_tail(m)
        tails = _tails(self)
        far = np.where(m > 0, m, 1 - m)
        tail = tails[np.minimum(far, tails.size - 1)]
        return np.asarray(np.where(m > 0, tail, 1 - tail), dtype=np.float64)

    def log_mass(self, z: Integers) -> Floats:
        """Return log P[Z = z] for every z, float64 of the same shape (natural logarithm; -inf where impossible)."""
        far = np.abs(np.asarray(z, dtype=np.int64))
        if self.is_zero:
            return np.asarray(np.where(far == 0, 0.0, -np.inf), dtype=np.float64)
        if self.parameter >= _FLAT_VARIANCE:
            return np.asarray(-np.square(far.astype(np.float64)) / (2 * self._spread) - self._log_norm)
        mass = _convolved(self)
        with np.errstate(divide="ignore"):
            return np.where(far < mass.size, np.log(mass[np.minimum(far, mass.size - 1)]), -np.inf)

    def central_reach(self, tail: float) -> int:
        """Return the largest m with P[Z >= m] > tail; then P[Z <= -m] > tail as well.

        Raises:
            RangeError: tail is outside (0, 1/2).
        """
        return last_above(tail, self.upper_tail, self.reach)

    @property
    def _spread(self) -> float:
        return self.terms * float(self.parameter)

    @property
    def _log_norm(self) -> float:
        return math.log(2 * math.pi * self._spread) / 2

    def _far_tail(self, m: Integers) -> Floats:
        """Return sum of f(z) for z >= m as the integral from m - 1/2 and f'(m - 1/2)/24 (Euler and Maclaurin)."""
        u = (m - 0.5) / math.sqrt(self._spread)
        density = np.exp(-np.square(u) / 2) / math.sqrt(2 * math.pi)
        return np.asarray(scipy.special.ndtr(-u) - u * density / (24 * self._spread), dtype=np.float64)


def last_above(tail: float, upper_tail: Callable[[Integers], Floats], reach: int) -> int:
    """Return the largest m with P[Z >= m] > tail for noise that passes `reach` with no probability that counts.

    Raises:
        RangeError: tail is outside (0, 1/2).
    """
    if not 0 < tail < 0.5:
        raise RangeError("tail probability", tail, "above 0 and below 1/2")
    low, high = 0, reach + 2
    while high - low > 1:
        middle = (low + high) // 2
        inside = float(upper_tail(np.array([middle]))[0]) > tail
        low, high = (middle, high) if inside else (low, middle)
    return low


@lru_cache(maxsize=32)
def _tails(noise: GaussianSum) -> Floats:
    """Return P[Z >= m] for m = 0 .. reach + 1, summed from the smallest term on."""
    mass = np.exp(noise.log_mass(np.arange(2 * noise.reach + 2)))
    return np.asarray(np.cumsum(mass[::-1])[::-1][: noise.reach + 2], dtype=np.float64)


@lru_cache(maxsize=32)
def _convolved(noise: GaussianSum) -> Floats:
    """Return P[Z = z] for z = 0, 1, ... as the convolution of one noise with itself, by squaring."""
    reach = math.ceil(math.sqrt(-2 * float(noise.parameter) * math.log(_SMALLEST_MASS)))
    weights = np.exp(-np.square(np.arange(-reach, reach + 1)) / (2 * float(noise.parameter)))
    power, total = weights / weights.sum(), np.ones(1)
    terms = noise.terms
    while terms:
        if terms & 1:
            total = _trimmed(np.convolve(total, power))
        terms >>= 1
        if terms:
            power = _trimmed(np.convolve(power, power))
    return np.asarray(total[total.size // 2 :], dtype=np.float64)


def _trimmed(mass: Floats) -> Floats:
    """Return a symmetric law without the ends below `_SMALLEST_MASS`."""
    kept = np.flatnonzero(mass > _SMALLEST_MASS)
    return mass[kept[0] : kept[-1] + 1]
