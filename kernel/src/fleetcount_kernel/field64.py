"""Arithmetic modulo p = 2**64 - 2**32 + 1 (Field64), eight numbers at once, without a branch on a value.

Arguments and results are canonical, below p, unless a docstring says otherwise; comments prove the bounds of each step.
Since 2**64 = 2**32 - 1 and 2**96 = -1 modulo p, a reduction consists of shifts and additions. Compiled code only.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.vdaf.field import FIELD64

from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.simd import (
    Lanes,
    Words,
    load,
    multiply_low,
    select_less,
    shift_left,
    shift_right,
    splat,
    store,
)

_MODULUS: Final = np.uint64(FIELD64.modulus)
_LOW_HALF: Final = np.uint64((1 << 32) - 1)
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)


@compiled
def add(left: Lanes, right: Lanes) -> Lanes:
    """Return left + right."""
    # left - (p - right): p - right is in 1..p, and a borrow is corrected by adding p.
    negated = splat(_MODULUS) - right
    difference = left - negated
    return select_less(left, negated, difference + splat(_MODULUS), difference)


@compiled
def subtract(left: Lanes, right: Lanes) -> Lanes:
    """Return left - right."""
    # Where this borrows it is left - right + 2**64; adding p wraps once more, to left - right + p.
    difference = left - right
    return select_less(left, right, difference + splat(_MODULUS), difference)


@compiled
def multiply(left: Lanes, right: Lanes) -> Lanes:
    """Return left * right."""
    # In halves of 32 bits, because vector instructions have no product of 128 bits.
    left_high, right_high = shift_right(left, 32), shift_right(right, 32)
    low_low = multiply_low(left, right)
    # Neither sum can reach 2**64: a product of halves is at most (2**32 - 1)**2, and at most 2**32 - 1 is added.
    middle = multiply_low(left_high, right) + shift_right(low_low, 32)
    other = multiply_low(left, right_high) + (middle & splat(_LOW_HALF))
    low = shift_left(other, 32) | (low_low & splat(_LOW_HALF))
    high = multiply_low(left_high, right_high) + shift_right(middle, 32) + shift_right(other, 32)
    return _reduce(low, high)


@compiled
def _reduce(low: Lanes, high: Lanes) -> Lanes:
    """Return low + 2**64 high for any two words: low - (high >> 32) + (2**32 - 1) (high mod 2**32)."""
    top = shift_right(high, 32)
    bottom = high & splat(_LOW_HALF)
    # A borrow adds p: top is below 2**32, so the difference is then above 2**64 - 2**32 and adding p wraps once.
    difference = low - top
    difference = select_less(low, top, difference + splat(_MODULUS), difference)
    # scaled <= (2**32 - 1)**2 < p. A carry means the sum is below scaled, so taking p away wraps back exactly once.
    scaled = shift_left(bottom, 32) - bottom
    total = difference + scaled
    total = select_less(total, scaled, total - splat(_MODULUS), total)
    return select_less(total, splat(_MODULUS), total, total - splat(_MODULUS))


@compiled
def sum_limbs(a: Lanes, b: Lanes, c: Lanes, d: Lanes, e: Lanes, f: Lanes) -> Lanes:
    """Return a + 2**22 b + 2**44 c + 2**32 (d + 2**22 e + 2**44 f) for any six words.

    Each word is cut into digits of base 2**32. With t = 2**32, t**2 = t - 1 and t**3 = -1, the sum of all digits is
    first + second t + third t**2 = (first - third) + (second + third) t.
    """
    ones, tens, hundreds = _digits(a, b, c)
    next_ones, next_tens, next_hundreds = _digits(d, e, f)
    # Digits of the second half have one more factor t: ones t, tens t**2, hundreds t**3 = -1.
    third = hundreds + next_tens
    second = tens + next_ones + third
    # second < 2**47 is split once more: its overflow (below 2**15) times t**2 is overflow t - overflow.
    overflow = shift_right(second, 32)
    gained = ones + shift_left(overflow, 32)
    lost = third + next_hundreds + overflow
    # shift_left(second, 32) drops the overflow and is at most p - 1; gained and lost are below 2**48.
    return subtract(add(shift_left(second, 32), gained), lost)


@compiled
def _digits(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Return the base-2**32 digits of a + 2**22 b + 2**44 c, not carried: below 2**34, 2**34 and 2**45."""
    # The bits that the left shifts drop are the third digit: b >> 42 and c >> 20.
    b_low, c_low = shift_left(b, 22), shift_left(c, 44)
    mask = splat(_LOW_HALF)
    ones = (a & mask) + (b_low & mask) + (c_low & mask)
    tens = shift_right(a, 32) + shift_right(b_low, 32) + shift_right(c_low, 32)
    return ones, tens, shift_right(b, 42) + shift_right(c, 20)


@compiled
def power_of_two_power(base: Lanes, exponent: int) -> Lanes:
    """Return base**exponent for an exponent that is a power of two."""
    while exponent > 1:
        base = multiply(base, base)
        exponent >>= 1
    return base


@compiled
def equals_one(value: Lanes) -> Lanes:
    """Return 1 where the value is 1 and 0 elsewhere."""
    return select_less(value ^ splat(_ONE), splat(_ONE), splat(_ONE), splat(_ZERO))


@compiled
def lagrange_coefficients(rows: Words, point: Lanes, nodes: int, count: int, inverse: Lanes, result: int) -> None:
    """Write c with P(point) = sum of c[i] P(node i) to rows `result` and on; `EvaluationDomain` has the formula.

    Rows `nodes` and on are all `count` = n powers of a root of unity w, `inverse` is 1/n. With u = point w**-i, c[i] is
    (1/n) (u**n - 1)/(u - 1) = (1/n) (1 + u) (1 + u**2) (1 + u**4) .. (1 + u**(n/2)); the product is defined for any
    point. Over all i the factor 1 + u**(n/2) has two values, the next one four, so that each step doubles the number of
    products: every one so far is multiplied by 1 + u**stride and by 1 - u**stride.
    """
    store(rows, result, inverse)
    size = 1
    while size < count:
        stride = count // (2 * size)
        power = power_of_two_power(point, stride)
        for index in range(size):
            # (w**-index)**stride is the node with the number -stride * index modulo `count`.
            turned = multiply(power, load(rows, nodes + (count - stride * index) % count))
            product = load(rows, result + index)
            other = multiply(product, turned)
            store(rows, result + index, add(product, other))
            store(rows, result + size + index, subtract(product, other))
        size *= 2
