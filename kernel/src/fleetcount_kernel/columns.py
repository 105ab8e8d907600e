"""Elements of Field64 of many reports side by side, which the circuits of `fleetcount_protocol` compute with.

A `Column` stands where the protocol has one element: its code runs once for all reports. Nothing here knows a report.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.vdaf.field import FIELD64
from numpy.typing import NDArray

from fleetcount_kernel.proofs import add_words

Words = NDArray[np.uint64]

_MODULUS: Final = np.uint64(FIELD64.modulus)
_COMPLEMENT: Final = np.uint64((1 << 64) - FIELD64.modulus)
"""2**64 - p, which is 2**32 - 1 and so also the low half of a word."""
_HALF: Final = np.uint64(32)


class Column:
    """Elements of Field64 in an array of any shape, canonical uint64; the other side may be one element, an int.

    What the protocol does to an element gives a column: sums, differences, products, powers, and `%` by p, after which
    it is what it was. Equal to an int is a column in which all are.
    """

    __slots__ = ("words",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, words: Words) -> None:
        self.words = words

    def __add__(self, other: "Column | int") -> "Column":
        """Return the sum."""
        return Column(add_words(self.words, _words(other)))

    __radd__ = __add__

    def __sub__(self, other: "Column | int") -> "Column":
        """Return the difference."""
        return Column(_difference(self.words, _words(other)))

    def __rsub__(self, other: int) -> "Column":
        """Return the difference from an int."""
        return Column(_difference(_words(other), self.words))

    def __mul__(self, other: "Column | int") -> "Column":
        """Return the product."""
        return Column(_product(self.words, _words(other)))

    __rmul__ = __mul__

    def __mod__(self, modulus: int) -> "Column":
        """Return the column, which is reduced."""
        return self

    def __pow__(self, exponent: int, modulus: int) -> "Column":
        """Return the power; the exponent is at least 1."""
        power = self
        for bit in f"{exponent:b}"[1:]:
            power = power * power * self if bit == "1" else power * power
        return power

    def __eq__(self, other: object) -> bool:
        """Return whether all elements are this number."""
        return bool((self.words == other).all())


def _words(other: "Column | int") -> Words:
    return other.words if isinstance(other, Column) else np.asarray(other % FIELD64.modulus, dtype=np.uint64)


def _difference(left: Words, right: Words) -> Words:
    difference = np.subtract(left, right)
    difference -= np.less(left, right) * _COMPLEMENT
    return difference


def _product(left: Words, right: Words) -> Words:
    """Return the products modulo p; in place where it can be, since each new array costs as much as its arithmetic."""
    # In halves of 32 bits, as `field64.multiply`: no sum of a product of halves and a half reaches 2**64.
    left_low, left_high = left & _COMPLEMENT, left >> _HALF
    right_low, right_high = right & _COMPLEMENT, right >> _HALF
    middle, other, high = left_low * right_high, left_high * right_low, left_high * right_high
    left_low = left_low * right_low
    left_low >>= _HALF
    middle += left_low
    other += middle & _COMPLEMENT
    middle >>= _HALF
    other >>= _HALF
    high += middle
    high += other
    # Modulo p, 2**64 is 2**32 - 1 and 2**96 is -1: low - (high >> 32) + (2**32 - 1) (high mod 2**32).
    low = left * right
    top = high >> _HALF
    borrow = low < top
    low -= top
    low -= borrow * _COMPLEMENT
    high &= _COMPLEMENT
    high *= _COMPLEMENT
    # `high` is at most (2**32 - 1)**2, so the sum passes 2**64 or p once at most; adding 2**64 - p takes p away.
    low += high
    low += ((low < high) | (low >= _MODULUS)) * _COMPLEMENT
    return low
