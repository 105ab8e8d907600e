"""Discrete Gaussian noise N_Z(0, s): exact, by inversion of a certified table, with the same steps for every value.

It must not loop until a candidate is accepted, because the number of rejections depends on the coins, and must not
round a probability. P[Z = z] = exp(-z**2/(2s)) / sum over all j of exp(-j**2/(2s)) (Canonne, Kamath, Steinke 2020,
Definition 1), s a rational: the parameter, which is the variance to a relative error below 3e-7 for s >= 1.

With q = exp(-1/(2s)) the weights follow from each other: weight(j+1) = weight(j) * q**(2j+1). All are kept as pairs of
integers, one below and one above the truth, and so is every P[|Z| <= m]. A draw takes a 128-bit word: a fair sign and
the first 127 binary digits of a uniform U. |Z| is the number of m with P[|Z| <= m] <= U. Two binary searches count the
m for which this is possible and for which it is certain. They agree but for fewer than one draw in 2**110; then further
digits of U are drawn and the table is computed to as many digits. So the law is exact for every width of the table.

Every draw asks for 16 bytes and takes the same number of comparisons, because the tables are padded to 2**n - 1
entries. Only the addresses of the entries that are read depend on the value (decision 17).
"""

import functools
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, isqrt
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction
from fleetcount_mechanisms.randomness import RandomSource, exp_minus_bounds

SMALLEST_VARIANCE: Final = Fraction(1, 4)
LARGEST_VARIANCE: Final = Fraction(10**8)
_LARGEST_TERM: Final = 2**63 - 1
_DRAW_BYTES: Final = 16
_DRAW_BITS: Final = 127
_REFINEMENT_BITS: Final = 128
_GUARD_BITS: Final = 64
"""Weights are 2 units apart at the start and below 4 j**2 units after j steps, their sums below 4 j**3 < 2**60."""
_LEAST_BITS: Final = 32
"""Weights below 2**32 units are left out; far below them rounding up would keep them from falling."""


def require_variance(value: object) -> Fraction:
    """Return the parameter s of discrete Gaussian noise as a Fraction.

    Raises:
        MechanismError: not exact, not in [1/4, 10**8], or with a term beyond 2**63 - 1.
    """
    exact = require_fraction("noise variance", value)
    if not SMALLEST_VARIANCE <= exact <= LARGEST_VARIANCE or exact.denominator > _LARGEST_TERM:
        raise MechanismError(
            f"noise variance is {str(exact)[:50]}, allowed: {SMALLEST_VARIANCE} <= noise variance <= {LARGEST_VARIANCE}"
            ", with terms up to 2**63 - 1"
        )
    if exact.numerator > _LARGEST_TERM:
        raise MechanismError("noise variance has a term beyond 2**63 - 1, allowed: smaller terms")
    return exact


def noise_reach(variance: Fraction, terms: int, log_tail: int) -> int:
    """Return M with P[|Z_1 + ... + Z_terms| >= M] <= 2 exp(-log_tail), independent noises N_Z(0, variance).

    They are sub-Gaussian, E[exp(t Z)] <= exp(t**2 s/2) (Canonne, Kamath, Steinke 2020, Fact 18), so Chernoff's bound of
    the sum at M is 2 exp(-M**2/(2 s terms)).

    Raises:
        MechanismError: a variance outside its range, or terms or log_tail below 1.
    """
    spread = 2 * require_variance(variance) * require_at_least("terms", terms, 1)
    square = spread * require_at_least("log_tail", log_tail, 1)
    # The ceiling of a root: for an integer n >= 1 it is 1 + isqrt(n - 1).
    return 1 + isqrt(ceil(square) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Bounds of 2**bits P[|Z| <= m] for m = 0, 1, ..., from below (`lows`) and above (`highs`), padded to 2**n - 1."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]


def _weights(variance: Fraction, work: int) -> tuple[list[tuple[int, int]], int]:
    """Return bounds of 2**work exp(-j**2/(2s)) for j = 0, 1, ..., and an upper bound of the sum of those left out."""
    ratio = exp_minus_bounds(1 / (2 * variance), work)
    square = exp_minus_bounds(1 / variance, work)
    weight, found = (1 << work, 1 << work), list[tuple[int, int]]()
    while weight[1] >> _LEAST_BITS:
        found.append(weight)
        weight = _product(weight, ratio, work)
        ratio = _product(ratio, square, work)
    # Left out: at most this weight times exp(-x)**i, i = 0, 1, ..., x = (2j+1)/(2s); and 1/(1 - exp(-x)) <= 1 + 1/x.
    return found, (2 + int(2 * variance / (2 * len(found) + 1))) << _LEAST_BITS


def _product(one: tuple[int, int], other: tuple[int, int], work: int) -> tuple[int, int]:
    return one[0] * other[0] >> work, -(-one[1] * other[1] >> work)


@functools.lru_cache(maxsize=4)
def _table(variance: Fraction, bits: int) -> _Table:
    # Cached: a table takes as long as a thousand draws, and depends on the law alone.
    weights, left_out = _weights(variance, bits + _GUARD_BITS)
    total_low = 2 * sum(low for low, _ in weights) - weights[0][0]
    total_high = 2 * (sum(high for _, high in weights) + left_out) - weights[0][1]
    lows, highs = list[int](), list[int]()
    low = high = -weights[0][0]
    for weight_low, weight_high in weights:
        low, high = low + 2 * weight_low, high + 2 * weight_high
        lows.append((low << bits) // total_high)
        highs.append(-(-(high << bits) // total_low))
        if highs[-1] >= 1 << bits:
            break
    # The padding is above every word; with 2**n - 1 entries each binary search takes n comparisons.
    filling = [1 << bits] * ((1 << len(lows).bit_length()) - 1 - len(lows))
    return _Table(lows=(*lows, *filling), highs=(*highs, *filling))


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Noise on all integers, P[z] proportional to exp(-z**2/(2 variance)).

    Added to an integer count it gives variance**-1/2 concentrated differential privacy for a change of the count by 1
    (Canonne, Kamath, Steinke 2020, Theorem 4), and no pure epsilon.

    Raises:
        MechanismError: see `require_variance`.
    """

    variance: Fraction
    _first: _Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the variance and prepare the table."""
        object.__setattr__(self, "variance", require_variance(self.variance))
        object.__setattr__(self, "_first", _table(self.variance, _DRAW_BITS))

    def at_most(self, size: int, bits: int = _DRAW_BITS) -> tuple[Fraction, Fraction]:
        """Return proven bounds of `P[|Z| <= size]`, about `2**-bits` apart.

        Raises:
            MechanismError: the size is below 0, or bits below 1.
        """
        require_at_least("size", size, 0)
        table, whole = _table(self.variance, require_at_least("bits", bits, 1)), 1 << bits
        if size >= len(table.lows) or table.lows[size] >= whole:
            return Fraction(whole - 2, whole), Fraction(1)
        return Fraction(table.lows[size], whole), Fraction(min(table.highs[size], whole), whole)

    def sample_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent exact draws; run by every aggregator, each at full strength.

        Raises:
            MechanismError: the count is not an int of at least 0.
        """
        block = source.random_bytes(_DRAW_BYTES * require_at_least("count", count, 0))
        lows, highs = self._first.lows, self._first.highs
        drawn: list[int] = []
        for start in range(0, len(block), _DRAW_BYTES):
            word = int.from_bytes(block[start : start + _DRAW_BYTES], "little")
            digits = word >> 1
            size, certain = bisect_right(lows, digits), bisect_right(highs, digits)
            if size != certain:
                size = self._settle(digits, source)
            drawn.append((size, -size)[word & 1])
        return drawn

    def sample(self, source: RandomSource) -> int:
        """Return one exact draw; see `sample_many`."""
        return self.sample_many(source, 1)[0]

    def _settle(self, digits: int, source: RandomSource) -> int:
        """Return |Z| for a uniform number whose first 127 digits do not decide it, by drawing more of them."""
        bits = _DRAW_BITS
        while True:
            bits += _REFINEMENT_BITS
            digits = digits << _REFINEMENT_BITS | int.from_bytes(source.random_bytes(_REFINEMENT_BITS // 8), "little")
            table = _table(self.variance, bits)
            size = bisect_right(table.lows, digits)
            if size == bisect_right(table.highs, digits):
                return size
