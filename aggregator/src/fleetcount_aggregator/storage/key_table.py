"""Fixed-size keys in the order in which they came, and the number of each: a hash table in flat arrays, many at a time.

A dictionary of byte strings costs 140 bytes a key and more; this costs the key and 8 to 16 bytes. Knows no reports.
"""

import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FIRST_BUCKETS: Final = 1024
_SLOTS: Final = 8
"""Slots of a bucket; their tags are compared at once."""
_KEYS_A_BUCKET: Final = 4
"""Keys a bucket holds on average before there are more buckets; one in fifty is full then."""
_MANY_BUCKETS: Final = 2**14
"""From so many buckets on their number doubles, to save memory; before, it quadruples."""
_TAG_BITS: Final = 8
_WORD_BYTES: Final = 8
_GROWTH: Final = 1.5
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(2**32 - 1)
_EACH_BYTE: Final = np.uint64(0x0101_0101_0101_0101)
_HIGHEST_BITS: Final = np.uint64(0x8080_8080_8080_8080)

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class KeyTable:
    """Keys of a multiple of 8 bytes, each once, numbered from 0. Not thread-safe.

    Buckets of eight slots, each with a tag of eight bits and the number of its key; where a bucket is full, the key is
    in one of the next. Bucket and tag come from a sum of products of the key's 32-bit halves with secret 64-bit
    numbers, so that somebody who chooses the keys cannot choose collisions (Dietzfelbinger's vector multiply-shift
    hashing; of whole words, two that differ in both highest bits always collide). `find`, `add` and `first_of_each`
    take the sums too (`sums`), so that they are made once.
    """

    def __init__(self, key_bytes: int) -> None:
        self._keys: Words = np.empty((64, key_bytes // _WORD_BYTES), dtype=np.uint64)
        self._count = 0
        self._factors = np.array([[secrets.randbits(64) for _ in self._keys[0]] for _ in range(2)], dtype=np.uint64)
        self._make_buckets(_FIRST_BUCKETS)

    def _make_buckets(self, count: int) -> None:
        self._bits = count.bit_length() - 1
        self._tags = np.zeros((count, _SLOTS), dtype=np.uint8)
        self._numbers = np.empty(count * _SLOTS, dtype=np.uint32)
        self._used = np.zeros(count, dtype=np.uint8)

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes the table takes now."""
        return self._keys.nbytes + self._tags.nbytes + self._numbers.nbytes + self._used.nbytes

    @property
    def keys(self) -> Words:
        """All keys by number, as words (n x key words); not to be written to."""
        return self._keys[: self._count]

    def words(self, joined: bytes) -> Words:
        """Return joined keys as words; raises ValueError if they are not whole."""
        return np.frombuffer(joined, dtype=np.uint64).reshape(-1, self._keys.shape[1])

    def sums(self, keys: Words) -> Words:
        """Return the secret sum of each key."""
        mixed: Words = (keys & _LOW_HALF) @ self._factors[0] + (keys >> _HALF) @ self._factors[1]
        return mixed

    def find(self, keys: Words, sums: Words) -> Numbers:
        """Return the number of each key, -1 for one that is not there."""
        found = np.full(len(keys), -1, dtype=np.int64)
        buckets, tags = self._places(sums)
        looking = np.arange(len(keys))
        while len(looking):
            alike = np.flatnonzero(self._hold(buckets, tags))
            there = buckets.take(alike)
            rows, slots = np.nonzero(self._tags[there] == tags.take(alike)[:, np.newaxis])
            numbers = self._numbers[there[rows] * _SLOTS + slots].astype(np.int64)
            asked = looking[alike[rows]]
            same = (self._keys[numbers] == keys[asked]).all(axis=1)
            found[asked[same]] = numbers[same]
            full = np.flatnonzero(self._used.take(buckets) == _SLOTS)
            onward = full[found[looking[full]] < 0]
            looking, tags = looking.take(onward), tags.take(onward)
            buckets = (buckets.take(onward) + 1) & (len(self._used) - 1)
        return found

    def _hold(self, buckets: Numbers, tags: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which buckets have a slot with the tag: eight bytes at once, of which one must be zero after xor.

        A byte is zero if it borrows when 1 is taken from each, and did not have its highest bit; one above a zero byte
        may seem so too, but then there is one.
        """
        different = self._tags.view(np.uint64).reshape(-1).take(buckets) ^ (tags * _EACH_BYTE)
        held: NDArray[np.bool_] = ((different - _EACH_BYTE) & ~different & _HIGHEST_BITS) != 0
        return held

    def add(self, keys: Words, sums: Words) -> Numbers:
        """Take keys that are not there yet, each once; return their numbers."""
        first, self._count = self._count, self._count + len(keys)
        if self._count > len(self._keys):
            grown = np.empty((int(_GROWTH * self._count), self._keys.shape[1]), dtype=np.uint64)
            grown[:first] = self._keys[:first]
            self._keys = grown
        self._keys[first : self._count] = keys
        if self._count > _KEYS_A_BUCKET * len(self._used):
            self._place_all()
        else:
            self._place(first, sums)
        return np.arange(first, self._count)

    def has_repeats(self, keys: Words, sums: Words, numbers: Numbers) -> bool:
        """Return whether some of these keys, which `add` has just given these numbers, are alike.

        Alike keys have alike sums, and of those that have them the table finds one.
        """
        return not self.first_of_each(sums).all() and bool((self.find(keys, sums) != numbers).any())

    def drop(self, count: int) -> None:
        """Forget every key but the first `count`."""
        self._count = count
        self._place_all()

    def first_of_each(self, sums: Words) -> NDArray[np.bool_]:
        """Return which keys are not repeats of an earlier one; once in 2**33 pairs a new key is taken for one."""
        if not _may_repeat(sums):
            return np.ones(len(sums), dtype=np.bool_)
        first = np.zeros(len(sums), dtype=np.bool_)
        first[np.unique(sums, return_index=True)[1]] = True
        return first

    def _places(self, sums: Words) -> tuple[Numbers, NDArray[np.uint8]]:
        """Return the bucket where the search for each key begins, and its tag: never 0, which is an empty slot."""
        top = (sums >> np.uint64(64 - self._bits - _TAG_BITS)).astype(np.int64)
        return top >> _TAG_BITS, np.maximum(top.astype(np.uint8), 1)

    def _place_all(self) -> None:
        buckets = len(self._used)
        while self._count > _KEYS_A_BUCKET * buckets:
            buckets *= 2 if buckets >= _MANY_BUCKETS else 4
        self._make_buckets(buckets)
        self._place(0, self.sums(self.keys))

    def _place(self, first: int, sums: Words) -> None:
        """Give a slot to every key from number `first` on; `sums` are theirs.

        All at once: of keys that want one slot one gets it, the others try the next, and the next bucket where theirs
        is full, as if they had come later.
        """
        buckets, tags = self._places(sums)
        numbers = np.arange(first, first + len(sums), dtype=np.uint32)
        while len(buckets):
            slots = self._used.take(buckets)
            full = np.flatnonzero(slots == _SLOTS)
            if len(full):
                buckets[full] = (buckets[full] + 1) & (len(self._used) - 1)
                continue
            places = buckets * _SLOTS + slots
            self._numbers[places] = numbers
            placed = self._numbers.take(places) == numbers
            there, left = np.flatnonzero(placed), np.flatnonzero(~placed)
            self._tags.reshape(-1)[places.take(there)] = tags.take(there)
            self._used[buckets.take(there)] += 1
            buckets, tags, numbers = buckets.take(left), tags.take(left), numbers.take(left)


def _may_repeat(sums: Words) -> bool:
    """Return whether two sums are the same, without putting all in order.

    Each writes its number into a cell; of two that are the same one at least finds another number there. So a repeat is
    among those that lost their cell: of the one that has it, or of one another.
    """
    bits = max(1, (4 * len(sums)).bit_length())
    cells = (sums >> np.uint64(64 - bits)).astype(np.int64)
    numbers = np.arange(len(sums), dtype=np.uint32)
    table = np.empty(1 << bits, dtype=np.uint32)
    table[cells] = numbers
    holders = table.take(cells)
    lost = np.flatnonzero(holders != numbers)
    losers = np.sort(sums.take(lost))
    of_holders = sums.take(holders.take(lost)) == sums.take(lost)
    return bool(of_holders.any() or (losers[1:] == losers[:-1]).any())
