"""Fixed-size keys in the order in which they came, and the number of each: a hash table in flat arrays, many at a time.

A dictionary of byte strings costs 140 bytes a key and more; this costs the key and 8 to 16 bytes. Knows no reports.
"""

import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeyTable"]

_FIRST_CELLS: Final = 1024
_WORD_BYTES: Final = 8
_GROWTH: Final = 1.5
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(2**32 - 1)

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class KeyTable:
    """Keys of a multiple of 8 bytes, each once, numbered from 0. Not thread-safe.

    Open addressing with linear probing, at most half of the cells in use. The place of a key comes from a sum of
    products of its 32-bit halves with secret 64-bit numbers: so who chooses the keys cannot choose collisions (Dietz-
    felbinger's vector multiply-shift hashing; of whole words, two that differ in both highest bits always collide).
    """

    def __init__(self, key_bytes: int) -> None:
        self._keys: Words = np.empty((64, key_bytes // _WORD_BYTES), dtype=np.uint64)
        self._count = 0
        self._cells = np.zeros(_FIRST_CELLS, dtype=np.uint32)
        self._factors = np.array([[secrets.randbits(64) for _ in self._keys[0]] for _ in range(2)], dtype=np.uint64)

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes the table takes now."""
        return self._keys.nbytes + self._cells.nbytes

    @property
    def keys(self) -> Words:
        """All keys by number, as words (n x key words); not to be written to."""
        return self._keys[: self._count]

    def words(self, joined: bytes) -> Words:
        """Return joined keys as words; raises ValueError if they are not whole."""
        return np.frombuffer(joined, dtype=np.uint64).reshape(-1, self._keys.shape[1])

    def find(self, keys: Words) -> Numbers:
        """Return the number of each key, -1 for one that is not there."""
        found = np.full(len(keys), -1, dtype=np.int64)
        places, mask = self._places(keys), len(self._cells) - 1
        looking = np.arange(len(keys))
        while len(looking):
            numbers = self._cells[places[looking]].astype(np.int64) - 1
            taken = numbers >= 0
            looking, numbers = looking[taken], numbers[taken]
            same = (self._keys[numbers] == keys[looking]).all(axis=1)
            found[looking[same]] = numbers[same]
            looking = looking[~same]
            places[looking] = (places[looking] + 1) & mask
        return found

    def add(self, keys: Words) -> Numbers:
        """Take keys that are not there yet, each once; return their numbers."""
        first, self._count = self._count, self._count + len(keys)
        if self._count > len(self._keys):
            grown = np.empty((int(_GROWTH * self._count), self._keys.shape[1]), dtype=np.uint64)
            grown[:first] = self._keys[:first]
            self._keys = grown
        self._keys[first : self._count] = keys
        if 2 * self._count > len(self._cells):
            self._place_all()
        else:
            self._place(first)
        return np.arange(first, self._count)

    def drop(self, count: int) -> None:
        """Forget every key but the first `count`."""
        self._count = count
        self._place_all()

    def first_of_each(self, keys: Words) -> NDArray[np.bool_]:
        """Return which keys are the first of their kind; once in 2**33 pairs one that is counts as a repeat."""
        first = np.zeros(len(keys), dtype=np.bool_)
        first[np.unique(self._mixed(keys), return_index=True)[1]] = True
        return first

    def _mixed(self, keys: Words) -> NDArray[np.uint64]:
        mixed: NDArray[np.uint64] = (keys & _LOW_HALF) @ self._factors[0] + (keys >> _HALF) @ self._factors[1]
        return mixed

    def _places(self, keys: Words) -> Numbers:
        """Return the cell where the search for each key begins."""
        bits = len(self._cells).bit_length() - 1
        return (self._mixed(keys) >> np.uint64(64 - bits)).astype(np.int64)

    def _place_all(self) -> None:
        cells = len(self._cells)
        while 2 * self._count > cells:
            cells *= 2
        self._cells = np.zeros(cells, dtype=np.uint32)
        self._place(0)

    def _place(self, first: int) -> None:
        """Give a cell to every key from number `first` on.

        All at once: where two keys want one empty cell, one of them gets it, and the other goes on to the next cell, as
        if it had come later.
        """
        keys = self._keys[first : self._count]
        places, mask = self._places(keys), len(self._cells) - 1
        values = np.arange(first + 1, self._count + 1, dtype=np.uint32)
        waiting = np.arange(len(keys))
        while len(waiting):
            wanted = places[waiting]
            free = self._cells[wanted] == 0
            self._cells[wanted[free]] = values[waiting[free]]
            waiting = waiting[self._cells[wanted] != values[waiting]]
            places[waiting] = (places[waiting] + 1) & mask
