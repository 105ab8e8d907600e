"""Sums of products: a block of entries with the powers of a number, and the same entries with the powers of its square.

Inside a block nothing is reduced modulo p. An entry is cut into two halves of 32 bits; each half is multiplied by a
power and the products are added up, then the two sums are combined. The cost of a product depends on the machine, so
there are two implementations with the same results, one of which is chosen when the code is compiled:

Split, for every machine: a power is cut into three limbs of 22 bits. Products of a half and a limb are below 2**54, so
a word can hold the sum of 1,024 of them.

Fused, for machines where one instruction multiplies 52-bit numbers and adds the lower or the upper half of the product.
It needs two of them for each half and power, while exact sums of all digits would need three: see `_whole_sum`.

Compiled code only.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.field64 import sum_limbs
from fleetcount_kernel.simd import (
    HAS_MULTIPLY_ADD,
    Lanes,
    Words,
    load,
    multiply_add_high,
    multiply_add_low,
    multiply_low,
    shift_left,
    shift_right,
    splat,
    store,
)

LARGEST_SUM: Final = 128
"""The most entries of a sum: `_whole_sum` allows them, split sums 1,024."""
LARGEST_BLOCK: Final = 64
"""The most entries of a block of powers, whose table must stay small."""

_LIMBS: Final = 3
_LIMB_BITS: Final = 22
_LIMB: Final = np.uint64((1 << _LIMB_BITS) - 1)
_LOW_HALF: Final = np.uint64((1 << 32) - 1)
_LOW_52: Final = np.uint64((1 << 52) - 1)
_ZERO: Final = np.uint64(0)

POWER_ROWS: Final = 1 if HAS_MULTIPLY_ADD else _LIMBS
"""Rows of a power in the table."""


def power_rows(powers: Sequence[int]) -> list[int]:
    """Return the words of the rows in which `write_power` puts these numbers, for a table of constants."""
    if HAS_MULTIPLY_ADD:
        return list(powers)
    limb = int(_LIMB)
    return [power >> _LIMB_BITS * place & limb for power in powers for place in range(_LIMBS)]


@compiled
def split_write_power(rows: Words, row: int, power: Lanes) -> None:
    """Write a power's limbs to rows `row` and on."""
    store(rows, row, power & splat(_LIMB))
    store(rows, row + 1, shift_right(power, _LIMB_BITS) & splat(_LIMB))
    store(rows, row + 2, shift_right(power, 2 * _LIMB_BITS))


@compiled
def split_read_power(rows: Words, row: int) -> Lanes:
    """Return the power that `split_write_power` wrote."""
    upper = shift_left(load(rows, row + 1), _LIMB_BITS) | shift_left(load(rows, row + 2), 2 * _LIMB_BITS)
    return load(rows, row) | upper


@compiled
def split_block_sums(rows: Words, first: int, count: int, table: int, other: int, stride: int) -> tuple[Lanes, Lanes]:
    """Return two sums of `count` entries times weights: of rows `first` and on times those at `table` and at `other`.

    Weights stand one after the other at `table`, `stride` weights apart at `other`. Twelve sums: for either one for
    each half of an entry and limb of a weight. The results are below p; `count` is at most 1,024.
    """
    a = b = c = d = e = f = splat(_ZERO)
    g = h = i = j = k = m = splat(_ZERO)
    for step in range(count):
        low = load(rows, first + step)
        high = shift_right(low, 32)
        row = table + _LIMBS * step
        limb = load(rows, row)
        a += multiply_low(low, limb)
        d += multiply_low(high, limb)
        limb = load(rows, row + 1)
        b += multiply_low(low, limb)
        e += multiply_low(high, limb)
        limb = load(rows, row + 2)
        c += multiply_low(low, limb)
        f += multiply_low(high, limb)
        row = other + _LIMBS * stride * step
        limb = load(rows, row)
        g += multiply_low(low, limb)
        j += multiply_low(high, limb)
        limb = load(rows, row + 1)
        h += multiply_low(low, limb)
        k += multiply_low(high, limb)
        limb = load(rows, row + 2)
        i += multiply_low(low, limb)
        m += multiply_low(high, limb)
    return sum_limbs(a, b, c, d, e, f), sum_limbs(g, h, i, j, k, m)


@compiled
def fused_write_power(rows: Words, row: int, power: Lanes) -> None:
    """Write a power to row `row`."""
    store(rows, row, power)


@compiled
def fused_read_power(rows: Words, row: int) -> Lanes:
    """Return the power that `fused_write_power` wrote."""
    return load(rows, row)


@compiled
def fused_block_sums(rows: Words, first: int, count: int, table: int, other: int, stride: int) -> tuple[Lanes, Lanes]:
    """Return the same as `split_block_sums`; `count` is at most 128.

    A pair of sums for each half of an entry, for either table, as `_whole_sum` needs them.
    """
    a = b = c = d = splat(_ZERO)
    e = f = g = h = splat(_ZERO)
    for step in range(count):
        entry = load(rows, first + step)
        low, high = entry & splat(_LOW_HALF), shift_right(entry, 32)
        # The instruction ignores the upper twelve bits of each factor.
        low_raised, high_raised = shift_left(entry, 20), shift_left(high, 20)
        power = load(rows, table + step)
        top = shift_right(power, 12)
        # Sums of at most 128 numbers below 2**52 stay below 2**59, so that none of the eight can overflow.
        a = multiply_add_low(a, low, power)
        b = multiply_add_high(b, low_raised, top)
        c = multiply_add_low(c, high, power)
        d = multiply_add_high(d, high_raised, top)
        power = load(rows, other + stride * step)
        top = shift_right(power, 12)
        e = multiply_add_low(e, low, power)
        f = multiply_add_high(f, low_raised, top)
        g = multiply_add_low(g, high, power)
        h = multiply_add_high(h, high_raised, top)
    return _whole_sum(a, b, c, d), _whole_sum(e, f, g, h)


@compiled
def _whole_sum(low: Lanes, high: Lanes, upper_low: Lanes, upper_high: Lanes) -> Lanes:
    """Return S + 2**32 S': `low` and `high` are of the sum S, the `upper` pair of S'.

    S is a sum of n products h r, h a half and r a power. `low` has the remainder of S modulo 2**52, and `high` is the
    sum of the whole parts of h (r >> 12) / 2**32, so that 2**44 `high` is below S: for each product by less than 2**44
    for the fraction that is dropped, and by less than 2**44 for the bits of r shifted out. S - 2**44 `high` is
    therefore below n 2**45, and for n of at most 128 its remainder modulo 2**52 is the number itself.
    """
    rest = (low - shift_left(high, 44)) & splat(_LOW_52)
    upper_rest = (upper_low - shift_left(upper_high, 44)) & splat(_LOW_52)
    return sum_limbs(rest, splat(_ZERO), high, upper_rest, splat(_ZERO), upper_high)


write_power = fused_write_power if HAS_MULTIPLY_ADD else split_write_power
read_power = fused_read_power if HAS_MULTIPLY_ADD else split_read_power
block_sums = fused_block_sums if HAS_MULTIPLY_ADD else split_block_sums
