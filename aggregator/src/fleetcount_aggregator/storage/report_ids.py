"""Report ids by the million: sets of them as sorted arrays, the digests of a set's leaves, and a hash table of keys.

A report id is two 64-bit words; everything here works on columns of them and never on single ids. A dictionary of byte
strings costs 140 bytes a key and more; `KeyTable` costs the key and 8 to 16 bytes. Knows no store.
"""

import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import ReportId, WindowId
from fleetcount_protocol.limits import MAX_REPORTS_PER_WINDOW, SET_LEAVES
from fleetcount_protocol.release.commitments import leaf_head
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
_FEW: Final = 64
"""Keys of which a set costs less than a dozen calls of NumPy."""
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
            if len(alike):
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
    if len(sums) <= _FEW:
        return len(set(sums.tolist())) < len(sums)
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


ID_BYTES: Final = ReportId.SIZE
_FIRST_BITS_DIFFER: Final = np.uint64(1 << 32)
_BLOCK: Final = 4096
"""Records of a set hashed at once: they stay in the processor's cache."""
_MANY: Final = 2**17
"""From so many records on, threads share the leaves: less is hashed before they have begun."""
Places = NDArray[np.int64]


def _check(ids: bytes) -> None:
    if len(ids) % ID_BYTES:
        raise UsageError(f"report ids have {len(ids)} bytes, not a multiple of {ID_BYTES}")


def _words(ids: bytes) -> tuple[Words, Words]:
    """Return the high and the low words of joined ids, so that they compare as the bytes do."""
    _check(ids)
    both = np.frombuffer(ids, dtype=">u8").reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


def _arranged(ids: bytes) -> tuple[Places, Words, Words]:
    """Return the order that sorts joined ids, and the high and the low words in that order.

    Two stable sorts by 16 bits put the ids in the order of their first 32 bits; NumPy sorts 16 bits by counting. Random
    ids that share those bits are few, and are put in order among themselves.
    """
    digits = np.frombuffer(ids, dtype=">u2").reshape(-1, ID_BYTES // 2)
    order = np.argsort(digits[:, 1].astype(np.uint16), kind="stable")
    order = order[np.argsort(digits[:, 0].astype(np.uint16)[order], kind="stable")]
    both = np.frombuffer(ids, dtype=">u8").reshape(-1, 2).take(order, axis=0)
    high, low = both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)
    # Ids with the first 32 bits of the id before them; in a million random ids there are about a hundred.
    same = np.flatnonzero((high[1:] ^ high[:-1]) < _FIRST_BITS_DIFFER)
    if len(same):
        places = np.union1d(same, same + 1)
        among = places[np.lexsort((low[places], high[places]))]
        order[places], high[places], low[places] = order[among], high[among], low[among]
    return order, high, low


def ascending(ids: bytes) -> bool:
    """Return whether joined ids ascend strictly: sorted, and each once."""
    high, low = _words(ids)
    above = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(above.all())


class ReportIds:
    """Distinct report ids by position, with the means to find positions by ids. `joined` is n x 16 bytes."""

    def __init__(self, joined: bytes) -> None:
        _check(joined)
        self.joined = joined

    def __len__(self) -> int:
        return len(self.joined) // ID_BYTES

    @cached_property
    def _arranged(self) -> tuple[Places, Words, Words]:
        arranged = _arranged(self.joined)
        for column in arranged:
            column.flags.writeable = False  # They are handed out, and stay.
        return arranged

    @property
    def order(self) -> Places:
        """The positions by ascending id."""
        return self._arranged[0]

    def at(self, positions: NDArray[np.integer]) -> bytes:
        """Return the ids at positions, joined."""
        return np.take(np.frombuffer(self.joined, dtype=np.uint64).reshape(-1, 2), positions, axis=0).tobytes()

    def find(self, ids: bytes) -> Places:
        """Return the position of each of the joined ids, -1 for one that is not here."""
        high, low = _words(ids)
        if not len(self):
            return np.full(len(high), -1, dtype=np.int64)
        order, sorted_high, sorted_low = self._arranged
        places = np.searchsorted(sorted_high, high)
        last = len(self) - 1
        here = np.minimum(places, last)
        # Ids with one high word lie side by side, by their low words; who chooses ids can make them many.
        behind = (sorted_high[here] == high) & (sorted_low[here] < low)
        for number in np.flatnonzero(behind).tolist():
            end = np.searchsorted(sorted_high, high[number], side="right")
            places[number] += np.searchsorted(sorted_low[places[number] : end], low[number])
        here = np.minimum(places, last)
        found = (places <= last) & (sorted_high[here] == high) & (sorted_low[here] == low)
        return np.where(found, order[here], -1)


def leaves_of(ids: bytes) -> NDArray[np.uint8]:
    """Return the leaf of each of the joined ids: its first byte."""
    _check(ids)
    return np.frombuffer(ids, dtype=np.uint8)[::ID_BYTES]


def sorted_leaf_digests(window_id: WindowId, ids: bytes, digests: NDArray[np.uint8], positions: Places) -> bytes:
    """Return `leaf_digests` (fleetcount_protocol) of joined ids that ascend and the digests of their shares.

    `digests` are those of all reports by position (n x 32), `positions` where the ids are. Of many reports the leaves
    are hashed in threads side by side.

    Raises:
        UsageError: ids that do not ascend, another number of positions, or more reports than a leaf or a window may
        have.
    """
    count = len(ids) // ID_BYTES
    if len(positions) != count or not ascending(ids):
        raise UsageError("the ids of a set do not ascend, or there is not one position for each")
    if count > MAX_REPORTS_PER_WINDOW:
        raise UsageError(f"{count} reports, allowed: at most {MAX_REPORTS_PER_WINDOW}")
    columns = np.frombuffer(ids, dtype=np.uint64).reshape(count, ID_BYTES // 8), digests.view(np.uint64)
    ends = np.searchsorted(leaves_of(ids), np.arange(SET_LEAVES - 1, dtype=np.uint8), side="right")
    bounds = [0, *ends.tolist(), count]

    def leaf(number: int) -> bytes:
        first, last = bounds[number], bounds[number + 1]
        digest = hashlib.sha256(leaf_head(window_id, number, last - first))
        for start in range(first, last, _BLOCK):
            block = slice(start, min(start + _BLOCK, last))
            digest.update(np.concatenate((columns[0][block], columns[1].take(positions[block], axis=0)), axis=1).data)
        return digest.digest()

    if count < _MANY:
        return b"".join(map(leaf, range(SET_LEAVES)))
    with ThreadPoolExecutor() as threads:  # SHA-256 and columns work without the interpreter's lock.
        return b"".join(threads.map(leaf, range(SET_LEAVES)))
