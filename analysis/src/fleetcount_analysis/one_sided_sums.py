"""The exact law of a sum of independent one-sided geometric noises; `channels.NoiseSum` is that of two-sided ones.

It must not estimate or draw. One noise is Z >= 0 with P[Z = z] = (1-q) q^z, q = exp(-epsilon); the sum of k of them is
negative binomial, P[Z = z] = C(z+k-1, k-1) (1-q)^k q^z. Source: [ADP] section V (AGeo).
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # SciPy loads its parts on first use.
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSidedSum:
    """The law of the sum of `terms` independent geometric noises from 0 on, of parameter `epsilon`.

    Noise that only takes away is the negative of it.

    Raises:
        RangeError: epsilon is not positive, or there is no noise.
    """

    epsilon: Fraction
    terms: int

    def __post_init__(self) -> None:
        if self.epsilon <= 0:
            raise RangeError("epsilon", self.epsilon, "above 0")
        if self.terms < 1:
            raise RangeError("number of noises", self.terms, "1 or more")

    @property
    def _rate(self) -> float:
        return float(self.epsilon)

    def log_mass(self, values: ArrayLike) -> Floats:
        """Return log P[Z = z] for every whole z, float64; -inf below 0."""
        z = np.asarray(values, dtype=np.float64)
        inside = np.maximum(z, 0)
        # log C(z+k-1, k-1) as a sum of positive terms: there are few, and the beta function would cancel for large z.
        choices = sum((np.log1p(inside / number) for number in range(1, self.terms)), np.zeros_like(inside))
        log_scale = self.terms * math.log(-math.expm1(-self._rate))
        return np.where(z >= 0, choices + log_scale - self._rate * inside, -np.inf)

    def upper_tail(self, values: ArrayLike) -> Floats:
        """Return P[Z >= z] for every whole z, float64: I_q(z, k)."""
        z = np.asarray(values, dtype=np.float64)
        tail = scipy.special.betainc(np.maximum(z, 1), self.terms, math.exp(-self._rate))
        return np.asarray(np.where(z >= 1, tail, 1.0), dtype=np.float64)

    def reach_beyond(self, tail: float) -> int:
        """Return the least m of 0 and more with P[Z > m] <= tail; `tail` is in (0, 1]."""
        if not 0 < tail <= 1:
            raise RangeError("tail probability", tail, "above 0 and at most 1")
        low, high = -1, 1
        while self.upper_tail(high + 1) > tail:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.upper_tail(middle + 1) > tail else (low, middle)
        return high
