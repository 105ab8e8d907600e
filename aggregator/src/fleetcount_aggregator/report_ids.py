"""Sets of report ids as sorted arrays: where each id is, whether ids ascend, and the digest of a set.

A report id is two 64-bit words; everything here works on columns of them and never on single ids. Knows no store.
"""

import hashlib
from functools import cached_property
from typing import Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.limits import MAX_REPORTS_PER_TASK
from fleetcount_protocol.set_digest import SET_LABEL
from numpy.typing import NDArray

__all__ = ["ID_BYTES", "ReportIds", "ascending", "sorted_set_digest"]

ID_BYTES: Final = ReportId.SIZE
_DIGEST_BYTES: Final = Digest.SIZE

_POSITION_BITS: Final = 24
_POSITION_MASK: Final = np.uint64((1 << _POSITION_BITS) - 1)

Words = NDArray[np.uint64]
Places = NDArray[np.int64]


def _words(ids: bytes) -> tuple[Words, Words]:
    """Return the high and the low words of joined ids, so that they compare as the bytes do."""
    if len(ids) % ID_BYTES:
        raise UsageError(f"report ids have {len(ids)} bytes, not a multiple of {ID_BYTES}")
    both = np.frombuffer(ids, dtype=">u8").reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


def _order(high: Words, low: Words) -> Places:
    """Return the order that sorts ids.

    The high word's first 40 bits and the position, in one word, are sorted at once; random ids that share those bits
    are few, and are put in order afterwards.
    """
    count = len(high)
    if count >= 1 << _POSITION_BITS:
        return np.lexsort((low, high))
    packed = np.sort((high & ~_POSITION_MASK) | np.arange(count, dtype=np.uint64))
    order = (packed & _POSITION_MASK).astype(np.int64)
    front = packed >> np.uint64(_POSITION_BITS)
    alike = np.flatnonzero(front[1:] == front[:-1])
    if len(alike) > count // 16:
        return np.lexsort((low, high))
    for start, end in _runs(alike.tolist()):
        run = order[start:end]
        order[start:end] = run[np.lexsort((low[run], high[run]))]
    return order


def _runs(alike: list[int]) -> list[tuple[int, int]]:
    """Return where the runs begin and end in which every place but the last is like the next."""
    runs: list[tuple[int, int]] = []
    for place in alike:
        if runs and runs[-1][1] == place + 1:
            runs[-1] = (runs[-1][0], place + 2)
        else:
            runs.append((place, place + 2))
    return runs


def ascending(ids: bytes) -> bool:
    """Return whether joined ids ascend strictly: sorted, and each once."""
    high, low = _words(ids)
    above = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(above.all())


class ReportIds:
    """Distinct report ids by position, with the means to find positions by ids. `joined` is n x 16 bytes."""

    def __init__(self, joined: bytes) -> None:
        self.joined = joined
        self._high, self._low = _words(joined)

    def __len__(self) -> int:
        return len(self._high)

    @cached_property
    def order(self) -> Places:
        """The positions by ascending id."""
        return _order(self._high, self._low)

    @cached_property
    def _sorted(self) -> tuple[Words, Words]:
        return self._high[self.order], self._low[self.order]

    def at(self, positions: NDArray[np.integer]) -> bytes:
        """Return the ids at positions, joined."""
        return np.take(np.frombuffer(self.joined, dtype=np.uint64).reshape(-1, 2), positions, axis=0).tobytes()

    def find(self, ids: bytes) -> Places:
        """Return the position of each of the joined ids, -1 for one that is not here."""
        high, low = _words(ids)
        if not len(self):
            return np.full(len(high), -1, dtype=np.int64)
        sorted_high, sorted_low = self._sorted
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
        return np.where(found, self.order[here], -1)

    def match(self, named: bytes, allowed: NDArray[np.bool_]) -> Places | None:
        """Return the positions of ids that ascend; None if they do not, or one is not here or not allowed.

        Parties that agree name exactly the allowed ids, and then one comparison of bytes is enough.
        """
        mine = self.order[allowed[self.order]]
        if self.at(mine) == named:
            return mine
        positions = self.find(named)
        if not ascending(named) or (positions < 0).any() or not allowed[positions].all():
            return None
        return positions


def sorted_set_digest(ids: bytes, digests: bytes) -> Digest:
    """Return `fleetcount_protocol.set_digest.set_digest` of joined ids that ascend and the digests of their shares.

    Raises:
        UsageError: ids that do not ascend, columns of different lengths, or more than `MAX_REPORTS_PER_TASK` reports.
    """
    count = len(ids) // ID_BYTES
    if len(digests) != count * _DIGEST_BYTES or not ascending(ids):
        raise UsageError("the ids of a set do not ascend, or there is not one digest for each")
    if count > MAX_REPORTS_PER_TASK:
        raise UsageError(f"{count} reports, allowed: at most {MAX_REPORTS_PER_TASK}")
    records = np.empty((count, ID_BYTES + _DIGEST_BYTES), dtype=np.uint8)
    records[:, :ID_BYTES] = np.frombuffer(ids, dtype=np.uint8).reshape(count, ID_BYTES)
    records[:, ID_BYTES:] = np.frombuffer(digests, dtype=np.uint8).reshape(count, _DIGEST_BYTES)
    digest = hashlib.sha256(SET_LABEL + count.to_bytes(8))
    digest.update(records.data)
    return Digest(digest.digest())
