"""Sources of random bytes and the exact draws made from them.

It must not round a probability: every draw is exact, by rejection on whole bytes. The only place that touches the
operating system's generator.
"""

import decimal
import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Final, Protocol

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction, require_positive

# A draw is repeated with probability below 2**-SPARE_BITS, so in practice every draw costs the same.
SPARE_BITS = 32
_LEAST_BYTES = 8
_STREAM_BLOCK = 16_384


class RandomSource(Protocol):
    """A source of uniform random bytes."""

    def random_bytes(self, count: int, /) -> bytes:
        """Return `count` uniform, independent bytes."""
        ...


class SystemRandom:
    """The operating system's generator (`os.urandom`): the only source for coins, shares, noise and keys.

    Nothing is buffered, so that a forked process cannot repeat its parent's bytes.
    """

    __slots__ = ()

    # Bound straight to the system call: a Python frame in between would cost a tenth of a two-round answer.
    random_bytes = staticmethod(os.urandom)


class SeededRandom:
    """A reproducible stream, SHAKE-128 over a counter: for simulation and tests only, never for a device's coins.

    Block i of the stream is SHAKE-128(label, seed length, seed, i) of 16 KiB. Not safe to share between threads.

    Raises:
        MechanismError: the seed is not an int of at least 0.
    """

    __slots__ = ("_block", "_counter", "_prefix", "_used")

    def __init__(self, seed: int) -> None:
        """Start the stream of `seed` (any int from 0)."""
        require_at_least("seed", seed, 0)
        encoded = seed.to_bytes((seed.bit_length() + 7) // 8, "big")
        self._prefix = b"fleetcount seeded stream 1" + len(encoded).to_bytes(8, "big") + encoded
        self._counter = 0
        self._block = b""
        self._used = 0

    def random_bytes(self, count: int, /) -> bytes:
        """Return the next `count` bytes of the stream."""
        end = self._used + count
        if end <= len(self._block):
            piece = self._block[self._used : end]
            self._used = end
            return piece
        return self._across_blocks(count)

    def _across_blocks(self, count: int) -> bytes:
        import hashlib  # Imported here: a device draws no seeded bytes and does not load it.

        pieces = [self._block[self._used :]]
        missing = count - len(pieces[0])
        while missing > 0:
            counter = self._counter.to_bytes(8, "big")
            self._block = hashlib.shake_128(self._prefix + counter).digest(_STREAM_BLOCK)
            self._counter += 1
            pieces.append(self._block[:missing])
            self._used = len(pieces[-1])
            missing -= self._used
        return b"".join(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformBelow:
    """A prepared exact uniform draw from 0..bound-1.

    The number of bytes is fixed by the bound; a draw at or above the largest multiple of the bound is rejected, with
    probability below 2**-32 and independently of the result, which is the remainder.

    Raises:
        MechanismError: the bound is not an int of at least 1.
    """

    bound: int
    byte_count: int = field(init=False, repr=False, compare=False)
    limit: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fix the number of bytes and the rejection limit."""
        require_at_least("bound", self.bound, 1)
        byte_count = max(_LEAST_BYTES, (self.bound.bit_length() + SPARE_BITS + 7) // 8)
        whole = 1 << 8 * byte_count
        object.__setattr__(self, "byte_count", byte_count)
        object.__setattr__(self, "limit", whole - whole % self.bound)

    def draw(self, source: RandomSource) -> int:
        """Return one uniform int in 0..bound-1."""
        while True:
            number = int.from_bytes(source.random_bytes(self.byte_count), "little")
            if number < self.limit:
                return number % self.bound

    def draw_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent uniform ints in 0..bound-1, mostly from one request for bytes."""
        size, limit, bound = self.byte_count, self.limit, self.bound
        block = source.random_bytes(size * count)
        numbers = [int.from_bytes(block[start : start + size], "little") for start in range(0, size * count, size)]
        kept = [number % bound for number in numbers if number < limit]
        while len(kept) < count:
            kept.append(self.draw(source))
        return kept


def uniform_below(source: RandomSource, bound: int) -> int:
    """Return an exact uniform int in 0..bound-1.

    Raises:
        MechanismError: the bound is not an int of at least 1.
    """
    return UniformBelow(bound=bound).draw(source)


def rounded_at_random(source: RandomSource, number: Fraction) -> int:
    """Return the whole number below or above an exact one, above with probability exactly its fractional part.

    So the result is the number on average. A whole number stays, after a draw like any other.
    """
    below, part = divmod(number.numerator, number.denominator)
    return below + (uniform_below(source, number.denominator) < part)


@dataclass(frozen=True, slots=True)
class WeightedChoice:
    """A prepared exact draw of an index with given integer weights, at a cost that does not depend on their number.

    The alias method in integers: with n weights of total T every index owns a column of height T, filled by its own n
    * weight first and by one other index, its alias, above. One uniform draw below n * T picks the column and the
    height in it.

    Raises:
        MechanismError: no weights, a negative or non-integer weight, or a total of 0.
    """

    weights: tuple[int, ...]
    _uniform: UniformBelow = field(init=False, repr=False, compare=False)
    _total: int = field(init=False, repr=False, compare=False)
    _heights: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _aliases: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the weights and fill the columns."""
        for weight in self.weights:
            require_at_least("weight", weight, 0)
        total = sum(self.weights)
        if total <= 0:
            raise MechanismError(f"the {len(self.weights)} weights sum to {total}, allowed: a sum > 0")
        heights, aliases = _alias_columns(self.weights, total)
        object.__setattr__(self, "_uniform", UniformBelow(bound=total * len(self.weights)))
        object.__setattr__(self, "_total", total)
        object.__setattr__(self, "_heights", heights)
        object.__setattr__(self, "_aliases", aliases)

    def draw(self, source: RandomSource) -> int:
        """Return index i with probability weights[i] / sum(weights)."""
        column, height = divmod(self._uniform.draw(source), self._total)
        return (self._aliases[column], column)[height < self._heights[column]]


def _alias_columns(weights: Sequence[int], total: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    heights = [weight * len(weights) for weight in weights]
    aliases = list(range(len(weights)))
    low = [index for index, height in enumerate(heights) if height < total]
    high = [index for index, height in enumerate(heights) if height > total]
    while low:
        # The heights of the open columns average `total`, so a column below it always leaves one above it.
        short, tall = low.pop(), high[-1]
        aliases[short] = tall
        heights[tall] -= total - heights[short]
        if heights[tall] <= total:
            high.pop()
        if heights[tall] < total:
            low.append(tall)
    return tuple(heights), tuple(aliases)


def weighted_index(source: RandomSource, weights: Sequence[int]) -> int:
    """Return index i with probability weights[i] / sum(weights); prepare a WeightedChoice to draw more than once.

    Raises:
        MechanismError: no weights, a negative or non-integer weight, or a total of 0.
    """
    return WeightedChoice(weights=tuple(weights)).draw(source)


# Powers of e, exactly: integer bounds of exp(-x), coins made of exp(-x), and logarithms rounded up.
#
# It must not decide a draw by a rounded number: a coin compares digits of its true probability and draws more digits on
# a tie.

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
    the width and adds one unit; 16 spare bits, and one more for each squaring, keep the final width at 2 or less.

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
    # The terms decrease, so the rest of the series is below the last term added, which is at most one unit.
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
