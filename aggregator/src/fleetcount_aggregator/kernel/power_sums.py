"""The two linear forms of the one-hot circuits: x = sum of rho**v r[v] and y = sum of rho**(2 v) r[v], v from 1.

Nearly all the work of verification that is not hashing. Per report and proof the powers rho**1 .. rho**B are written
down once (small steps) and met with every block of B entries; the blocks are put together by Horner's rule with rho**B
(giant steps). Inside a block nothing is reduced: a power is cut into three limbs of 22 bits, an entry into two halves
of 32 bits, and the six kinds of products, below 2**54 each, are added up in words, which have room for 1,024 of them.
Compiled code only.
"""

import math
from typing import Final

import numpy as np

from fleetcount_aggregator.kernel.compiling import compiled
from fleetcount_aggregator.kernel.field64 import add, multiply, sum_limbs
from fleetcount_aggregator.kernel.lanes import Lanes, Words, load, multiply_low, shift_right, splat, store

__all__ = ["TABLE_ROWS", "block_length", "power_sums", "write_powers"]

_LIMBS: Final = 3
_LARGEST_BLOCK: Final = 64
TABLE_ROWS: Final = 2 * _LIMBS * _LARGEST_BLOCK
"""Rows of the table of powers: for each small step the limbs of rho**i, then those of rho**(2 i)."""

_LIMB_BITS: Final = 22
_LIMB: Final = np.uint64((1 << _LIMB_BITS) - 1)
_ZERO: Final = np.uint64(0)


def block_length(length: int, vectors: int) -> int:
    """Return B, the entries a block: where the table, made once a proof, costs as much as all giant steps.

    A giant step costs about twice a small one. The table stays small enough for the smallest first-level caches.
    """
    return min(_LARGEST_BLOCK, max(1, math.isqrt(2 * vectors * length)))


@compiled
def write_powers(rows: Words, rho: Lanes, block: int, table: int) -> tuple[Lanes, Lanes]:
    """Write the limbs of the powers of rho and of rho**2 from 1 to B = `block`; return rho**B and rho**(2 B).

    They go to rows `table` and on, six a power.
    """
    square = multiply(rho, rho)
    power, power_of_square = rho, square
    _write_limbs(rows, power, table)
    _write_limbs(rows, power_of_square, table + _LIMBS)
    for step in range(1, block):
        power = multiply(power, rho)
        power_of_square = multiply(power_of_square, square)
        _write_limbs(rows, power, table + 2 * _LIMBS * step)
        _write_limbs(rows, power_of_square, table + 2 * _LIMBS * step + _LIMBS)
    return power, power_of_square


@compiled
def _write_limbs(rows: Words, value: Lanes, row: int) -> None:
    store(rows, row, value & splat(_LIMB))
    store(rows, row + 1, shift_right(value, _LIMB_BITS) & splat(_LIMB))
    store(rows, row + 2, shift_right(value, 2 * _LIMB_BITS))


@compiled
def power_sums(
    rows: Words, first: int, count: int, block: int, table: int, giant: Lanes, giant_of_square: Lanes
) -> tuple[Lanes, Lanes]:
    """Return (x, y) of the `count` rows from `first` on, the first of which has the weights rho and rho**2.

    The table, of `block` small steps, and both giants are those of `write_powers`.
    """
    x, y = splat(_ZERO), splat(_ZERO)
    blocks = (count + block - 1) // block
    for index in range(blocks - 1, -1, -1):
        start = index * block
        block_x, block_y = _block_sums(rows, first + start, min(block, count - start), table)
        x = add(multiply(x, giant), block_x)
        y = add(multiply(y, giant_of_square), block_y)
    return x, y


@compiled
def _block_sums(rows: Words, first: int, count: int, table: int) -> tuple[Lanes, Lanes]:
    """Return (x, y) of one block; twelve sums, one for each half of an entry and limb of a power."""
    a = b = c = d = e = f = splat(_ZERO)
    g = h = i = j = k = m = splat(_ZERO)
    for step in range(count):
        low = load(rows, first + step)
        high = shift_right(low, 32)
        row = table + 2 * _LIMBS * step
        limb = load(rows, row)
        a += multiply_low(low, limb)
        d += multiply_low(high, limb)
        limb = load(rows, row + 1)
        b += multiply_low(low, limb)
        e += multiply_low(high, limb)
        limb = load(rows, row + 2)
        c += multiply_low(low, limb)
        f += multiply_low(high, limb)
        limb = load(rows, row + 3)
        g += multiply_low(low, limb)
        j += multiply_low(high, limb)
        limb = load(rows, row + 4)
        h += multiply_low(low, limb)
        k += multiply_low(high, limb)
        limb = load(rows, row + 5)
        i += multiply_low(low, limb)
        m += multiply_low(high, limb)
    return sum_limbs(a, b, c, d, e, f), sum_limbs(g, h, i, j, k, m)
