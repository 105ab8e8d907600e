"""The two linear forms of the one-hot circuits: x = sum of rho**v r[v] and y = sum of rho**(2 v) r[v], v from 1.

They are nearly all the work of verification that is not hashing. Of eight reports at once, a column each, numbers are
uint64 and reduced field elements. For each report and proof the powers of rho are computed once
(small steps) and multiplied with every block of B entries (`block_sums`); Horner's rule with rho**B combines the blocks
(giant steps). All but `block_length` is compiled code.
"""

import math
from typing import Final

import numpy as np

from fleetcount_kernel.block_sums import LARGEST_BLOCK, POWER_ROWS, block_sums, read_power, write_power
from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.field64 import add, multiply
from fleetcount_kernel.simd import Lanes, Words, splat

TABLE_ROWS: Final = 2 * LARGEST_BLOCK * POWER_ROWS
"""Rows of the table of powers of rho: x needs consecutive powers, y every second one."""

_ZERO: Final = np.uint64(0)


def block_length(length: int, vectors: int) -> int:
    """Return B, the number of entries of a block, at most `LARGEST_BLOCK`, for `vectors` sums of `length` entries.

    Below that bound it makes the table, computed once for each proof, as expensive as all giant steps; a giant step
    costs about two small ones. The bound keeps the table in the smallest first-level caches.
    """
    return min(LARGEST_BLOCK, max(1, math.isqrt(2 * vectors * length)))


@compiled
def write_powers(rows: Words, rho: Lanes, block: int, table: int) -> tuple[Lanes, Lanes]:
    """Write the powers of rho that blocks of B = `block` entries need, and return rho**B and rho**(2 B).

    Rows `table` and on get all powers up to rho**B and the even ones up to rho**(2 B); other rows are not written.
    """
    write_power(rows, table, rho)
    for half in range(1, block + 1):
        # Each power comes from one of half the exponent, not from the one before: the processor can overlap them.
        power = read_power(rows, table + POWER_ROWS * (half - 1))
        even = multiply(power, power)
        write_power(rows, table + POWER_ROWS * (2 * half - 1), even)
        if 2 * half < block:
            write_power(rows, table + POWER_ROWS * 2 * half, multiply(even, rho))
    return read_power(rows, table + POWER_ROWS * (block - 1)), read_power(rows, table + POWER_ROWS * (2 * block - 1))


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
        # The weights of y are every second power.
        block_x, block_y = block_sums(rows, first + start, min(block, count - start), table, table + POWER_ROWS, 2)
        x = add(multiply(x, giant), block_x)
        y = add(multiply(y, giant_of_square), block_y)
    return x, y
