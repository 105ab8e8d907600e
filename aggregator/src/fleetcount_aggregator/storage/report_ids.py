"""Sets of report ids as sorted arrays: where each id is, whether ids ascend, and the digests of a set's leaves.

A report id is two 64-bit words; everything here works on columns of them and never on single ids. Knows no store.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import ReportId, WindowId
from fleetcount_protocol.limits import MAX_REPORTS_PER_WINDOW, SET_LEAVES
from fleetcount_protocol.release.commitments import leaf_head
from numpy.typing import NDArray

ID_BYTES: Final = ReportId.SIZE
_FIRST_BITS_DIFFER: Final = np.uint64(1 << 32)
_BLOCK: Final = 4096
"""Records of a set hashed at once: they stay in the processor's cache."""
_MANY: Final = 2**17
"""From so many records on, threads share the leaves: less is hashed before they have begun."""

Words = NDArray[np.uint64]
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
