"""TurboSHAKE128 (RFC 9861, section 2) of eight messages at once, one a lane.

The messages have one length and are absorbed word by word, at any byte position: a vector has the same eight bytes of
every message. The eight states are rows 0 to 24 of the memory, the argument `rows`; only one sponge is in use at a
time. No argument is checked. Compiled code only.
"""

from typing import Final

import numpy as np

from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.simd import (
    Lanes,
    Words,
    larger,
    load,
    rotate_left,
    shift_left,
    shift_right,
    splat,
    store,
)

STATE_ROWS: Final = 25
"""Rows of the sponge: eight states of 1,600 bits."""

RATE: Final = 168
"""Bytes absorbed or squeezed for each permutation."""

_RATE_ROWS: Final = RATE // 8
_ROUNDS: Final = 12
_ZERO: Final = np.uint64(0)
_DOMAIN: Final = np.uint64(1)
_LAST_BIT: Final = np.uint64(0x80 << 56)
_ROUND_CONSTANTS: Final = np.array(
    [
        *(0x000000008000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003),
        *(0x8000000000008002, 0x8000000000000080, 0x000000000000800A, 0x800000008000000A),
        *(0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008),
    ],
    dtype=np.uint64,
)
"""Those of the last twelve rounds of Keccak-f[1600] (FIPS 202, section 3.2.5)."""

_Plane = tuple[Lanes, Lanes, Lanes, Lanes, Lanes]
"""The five words of one value of y, x from 0 to 4."""


@compiled
def permute(rows: Words) -> None:
    """Apply Keccak-p[1600, 12] to the eight states in place; row x + 5 y holds the word (x, y) of FIPS 202."""
    p, q, r, s, t = _plane(rows, 0), _plane(rows, 5), _plane(rows, 10), _plane(rows, 15), _plane(rows, 20)
    # p, q, r, s, t are the planes y = 0 to 4. A new plane is chi of five words that pi selects: each is combined with
    # theta's word of its column, then rotated by rho (FIPS 202, table 2). The round constant, iota, comes last.
    for step in range(_ROUNDS):
        d = _theta(p, q, r, s, t)
        new_p = _chi(
            p[0] ^ d[0],
            rotate_left(q[1] ^ d[1], 44),
            rotate_left(r[2] ^ d[2], 43),
            rotate_left(s[3] ^ d[3], 21),
            rotate_left(t[4] ^ d[4], 14),
        )
        new_q = _chi(
            rotate_left(p[3] ^ d[3], 28),
            rotate_left(q[4] ^ d[4], 20),
            rotate_left(r[0] ^ d[0], 3),
            rotate_left(s[1] ^ d[1], 45),
            rotate_left(t[2] ^ d[2], 61),
        )
        new_r = _chi(
            rotate_left(p[1] ^ d[1], 1),
            rotate_left(q[2] ^ d[2], 6),
            rotate_left(r[3] ^ d[3], 25),
            rotate_left(s[4] ^ d[4], 8),
            rotate_left(t[0] ^ d[0], 18),
        )
        new_s = _chi(
            rotate_left(p[4] ^ d[4], 27),
            rotate_left(q[0] ^ d[0], 36),
            rotate_left(r[1] ^ d[1], 10),
            rotate_left(s[2] ^ d[2], 15),
            rotate_left(t[3] ^ d[3], 56),
        )
        new_t = _chi(
            rotate_left(p[2] ^ d[2], 62),
            rotate_left(q[3] ^ d[3], 55),
            rotate_left(r[4] ^ d[4], 39),
            rotate_left(s[0] ^ d[0], 41),
            rotate_left(t[1] ^ d[1], 2),
        )
        p = (new_p[0] ^ splat(_ROUND_CONSTANTS[step]), new_p[1], new_p[2], new_p[3], new_p[4])
        q, r, s, t = new_q, new_r, new_s, new_t
    _store_plane(rows, 0, p)
    _store_plane(rows, 5, q)
    _store_plane(rows, 10, r)
    _store_plane(rows, 15, s)
    _store_plane(rows, 20, t)


@compiled
def _theta(p: _Plane, q: _Plane, r: _Plane, s: _Plane, t: _Plane) -> _Plane:
    """Return the words that the step theta adds to each column: the parities of its two neighbouring columns."""
    a = p[0] ^ q[0] ^ r[0] ^ s[0] ^ t[0]
    b = p[1] ^ q[1] ^ r[1] ^ s[1] ^ t[1]
    c = p[2] ^ q[2] ^ r[2] ^ s[2] ^ t[2]
    d = p[3] ^ q[3] ^ r[3] ^ s[3] ^ t[3]
    e = p[4] ^ q[4] ^ r[4] ^ s[4] ^ t[4]
    return (
        e ^ rotate_left(b, 1),
        a ^ rotate_left(c, 1),
        b ^ rotate_left(d, 1),
        c ^ rotate_left(e, 1),
        d ^ rotate_left(a, 1),
    )


@compiled
def _chi(a: Lanes, b: Lanes, c: Lanes, d: Lanes, e: Lanes) -> _Plane:
    """Return a plane after the step chi, the only one that is not linear."""
    return (a ^ (~b & c), b ^ (~c & d), c ^ (~d & e), d ^ (~e & a), e ^ (~a & b))


@compiled
def _plane(rows: Words, row: int) -> _Plane:
    return (load(rows, row), load(rows, row + 1), load(rows, row + 2), load(rows, row + 3), load(rows, row + 4))


@compiled
def _store_plane(rows: Words, row: int, plane: _Plane) -> None:
    store(rows, row, plane[0])
    store(rows, row + 1, plane[1])
    store(rows, row + 2, plane[2])
    store(rows, row + 3, plane[3])
    store(rows, row + 4, plane[4])


@compiled
def start(rows: Words) -> None:
    """Begin eight messages; the position is 0."""
    for row in range(STATE_ROWS):
        store(rows, row, splat(_ZERO))


@compiled
def absorb_word(rows: Words, position: int, word: Lanes, size: int) -> int:
    """Absorb the first `size` bytes, 1 to 8, of a word whose other bytes are zero; return the position after them.

    `position` counts bytes in the current block, 0 to 167; a full block is permuted at once.
    """
    row, bits = position >> 3, (position & 7) * 8
    store(rows, row, load(rows, row) ^ shift_left(word, bits))
    position += size
    row += 1
    # Here, between the halves of a word that crosses the block's end, because the second half is in the next block.
    if position >= RATE:
        permute(rows)
        position -= RATE
        row = 0
    if bits + 8 * size > 64:
        store(rows, row, load(rows, row) ^ shift_right(word, 64 - bits))
    return position


@compiled
def absorb_bytes(rows: Words, position: int, first: int, size: int) -> int:
    """Absorb `size` bytes from rows `first` and on, the last row padded with zeros; return the new position."""
    position = absorb_rows(rows, position, first, size >> 3)
    if size & 7:
        position = absorb_word(rows, position, load(rows, first + (size >> 3)), size & 7)
    return position


@compiled
def absorb_rows(rows: Words, position: int, first: int, count: int) -> int:
    """Absorb `count` whole words from rows `first` and on; return the new position."""
    if position & 7:  # Every word overlaps two rows of the state; else words and rows coincide, and nothing is shifted.
        for index in range(first, first + count):
            position = absorb_word(rows, position, load(rows, index), 8)
        return position
    row, at, end = position >> 3, first, first + count
    while at < end:
        take = min(_RATE_ROWS - row, end - at)
        for index in range(take):
            store(rows, row + index, load(rows, row + index) ^ load(rows, at + index))
        at += take
        row += take
        if row == _RATE_ROWS:
            permute(rows)
            row = 0
    return row * 8


@compiled
def finish(rows: Words, position: int) -> None:
    """End the messages (domain byte 1, padding); the first 21 rows are then the first 168 bytes of the streams."""
    # A full block has been permuted, so the domain byte always has room; the last bit ends the padding (RFC 9861).
    row = position >> 3
    store(rows, row, load(rows, row) ^ shift_left(splat(_DOMAIN), (position & 7) * 8))
    store(rows, _RATE_ROWS - 1, load(rows, _RATE_ROWS - 1) ^ splat(_LAST_BIT))
    permute(rows)


@compiled
def squeeze_rows(rows: Words, first: int, count: int) -> Lanes:
    """Write the first `count` words of the streams to rows `first` and on; return the largest word of each.

    To be called once, immediately after `finish`.
    """
    largest = splat(_ZERO)
    at, end = first, first + count
    while at < end:
        take = min(_RATE_ROWS, end - at)
        for index in range(take):
            word = load(rows, index)
            store(rows, at + index, word)
            largest = larger(largest, word)
        at += take
        if at < end:  # No permutation after the last word.
            permute(rows)
    return largest
