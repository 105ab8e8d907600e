"""Powers of e, exactly: integer bounds of exp(-x), coins made of exp(-x), and logarithms rounded up.

It must not decide a draw by a rounded number: a coin compares digits of its true probability and draws more digits on
a tie.
"""

import decimal
import functools
import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_fraction, require_positive
from fleetcount_mechanisms.randomness import RandomSource

REFINEMENT_BITS = 128
# Elementary functions are computed with 80 digits and everything between them exactly, as fractions; results are
# trusted to 1e-60 and moved by that much to the safe side before they are rounded.
_CONTEXT = decimal.Context(prec=80, Emin=-999_999, Emax=999_999)
_TRUST = Fraction(1, 10**60)

WIDE: Final = decimal.Context(prec=80, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
"""80 digits and no overflow, for sums of positive terms: they keep 70 digits and no fraction with a billion of them."""


def exp_minus_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= 2**bits * exp(-exponent) <= high and high - low <= 2.

    The exponent is halved to below 2**-8, the alternating Taylor series is bracketed by consecutive partial sums in
    integers rounded outwards, and the bracket is squared back up. Each squaring of a number below 1 at most doubles
    the width and adds one unit, so 16 spare bits a start and one a squaring keep the end narrow.

    Raises:
        MechanismError: the exponent is not exact or negative, or bits is below 1.
    """
    exact = require_fraction("exponent", exponent)
    if exact < 0 or bits < 1:
        raise MechanismError(f"exponent is {exact} with {bits} bits, allowed: exponent >= 0 and bits >= 1")
    halvings = (exact.numerator // exact.denominator).bit_length() + 8
    work = bits + halvings + 16
    low, high = _taylor_bounds(exact / (1 << halvings), work)
    for _ in range(halvings):
        low = low * low >> work
        high = -(-high * high >> work)
    spare = work - bits
    return low >> spare, -(-high >> spare)


def _taylor_bounds(exponent: Fraction, work: int) -> tuple[int, int]:
    numerator, denominator = exponent.numerator, exponent.denominator
    low = high = term_low = term_high = 1 << work
    order = 0
    while term_high > 1:
        order += 1
        term_low = term_low * numerator // (denominator * order)
        term_high = -(-term_high * numerator // (denominator * order))
        if order % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
    # The terms fall, so what is left out is smaller than the last one taken, which is at most one unit.
    return max(low - 1, 0), min(high + 1, 1 << work)


class CoinShape(Enum):
    """The probability of an ExponentialCoin as a function of y = exp(-exponent)."""

    POWER = "y"
    ODDS = "y/(1+y)"
    TWICE_ODDS = "2y/(1+y)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialCoin:
    """A coin with a probability of exactly y, y/(1+y) or 2y/(1+y), y = exp(-exponent), exponent a positive rational.

    Such a y is irrational (Lindemann), so no finite number of digits equals the probability. With b digits drawn as an
    integer u below 2**b and T = floor(2**b * probability): u < T is True, u > T is False, and u = T, of probability
    2**-b, is settled by drawing further digits.

    Raises:
        MechanismError: the exponent is not exact or not above 0.
    """

    exponent: Fraction
    shape: CoinShape = CoinShape.POWER

    def __post_init__(self) -> None:
        """Check the exponent."""
        require_positive("exponent", self.exponent)

    def threshold(self, bits: int) -> int:
        """Return floor(2**bits * probability), proven by bounds from below and above that agree."""
        return _threshold(self.exponent, self.shape, bits)

    def toss(self, source: RandomSource) -> bool:
        """Return True with exactly this coin's probability, from 16 bytes except in 1 of 2**128 draws."""
        return self.settle(source, 0)

    def settle(self, source: RandomSource, bits_equal: int) -> bool:
        """Return the outcome given that the first `bits_equal` binary digits drawn equal the probability's own."""
        known = bits_equal
        while True:
            known += REFINEMENT_BITS
            digits = self.threshold(known) & ((1 << REFINEMENT_BITS) - 1)
            drawn = int.from_bytes(source.random_bytes(REFINEMENT_BITS // 8), "little")
            if drawn != digits:
                return drawn < digits


@functools.lru_cache(maxsize=4096)
def _threshold(exponent: Fraction, shape: CoinShape, bits: int) -> int:
    work = bits + 32
    while True:
        low, high = (_shape_floor(shape, bound, work, bits) for bound in exp_minus_bounds(exponent, work))
        if low == high:
            return low
        work *= 2


def _shape_floor(shape: CoinShape, bound: int, work: int, bits: int) -> int:
    # Every shape grows with y, so the floor at a bound of y bounds the floor at y.
    if shape is CoinShape.POWER:
        return bound >> work - bits
    doubled = bound << 1 if shape is CoinShape.TWICE_ODDS else bound
    return (doubled << bits) // ((1 << work) + bound)


def near_exp(value: Fraction) -> Fraction:
    """Return exp(value) to a relative error below 1e-70."""
    return Fraction(_CONTEXT.exp(near_decimal(value)))


def near_log(value: Fraction) -> Fraction:
    """Return ln(value) of a positive fraction to an error below 1e-70."""
    return Fraction(_CONTEXT.ln(near_decimal(value)))


def near_sqrt(value: Fraction) -> Fraction:
    """Return the square root of a fraction of at least 0 to a relative error below 1e-70."""
    return Fraction(_CONTEXT.sqrt(near_decimal(value)))


def near_decimal(value: Fraction) -> Decimal:
    """Return a fraction to 80 digits."""
    return _CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator))


def _margin(value: Fraction) -> Fraction:
    return _TRUST * max(abs(value), Fraction(1))


def rounded_up(value: Fraction, places: int = 5) -> Decimal:
    """Return a number known to 1e-60 rounded up to `places` decimal places."""
    grid = 10**places
    return Decimal(int(fraction_up(value, grid) * grid)).scaleb(-places, _CONTEXT)


def float_up(value: Fraction) -> float:
    """Return the least float at or above a number known to 1e-60; 0, the logarithm of 1, stays 0."""
    if value == 0:
        return 0.0
    raised = value + _margin(value)
    nearest = float(raised)
    return nearest if Fraction(nearest) >= raised else math.nextafter(nearest, math.inf)


def fraction_down(value: Fraction, denominator: int) -> Fraction:
    """Return the largest multiple of 1/denominator at or below a number known to 1e-60.

    A number that is such a multiple is an exact one and stays: exponentials and logarithms of rationals are irrational.
    """
    if (value * denominator).denominator == 1:
        return value
    return Fraction(math.floor((value - _margin(value)) * denominator), denominator)


def fraction_up(value: Fraction, denominator: int) -> Fraction:
    """Return the smallest multiple of 1/denominator at or above a number known to 1e-60; an exact multiple stays."""
    return -fraction_down(-value, denominator)
