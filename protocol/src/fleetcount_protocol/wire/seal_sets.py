"""The accepted set of a window as a stream of chunks (protos/…/peer.proto): its leaves, then names in some of them.

Reads a chunk at a time, so that its reader may ask about the first before the next. Verifies no digest.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.limits import MAX_IDS_PER_CHUNK, MAX_REPORTS_PER_WINDOW, SET_LEAVES
from fleetcount_protocol.messages import SealSet
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.strict import check_count, check_size

_ID: Final = ReportId.SIZE
_LEAVES_BYTES: Final = SET_LEAVES * Digest.SIZE


def split_seal_set(seal: SealSet) -> Iterator[pb.SealSetRequest]:
    """Yield the chunks of a set: its leaves and how many ids follow, then the ids; run by the leader."""
    count = len(seal.accepted) // _ID
    yield pb.SealSetRequest(window_id=seal.window_id, leaf_digests=seal.leaf_digests, following=count)
    for start in range(0, count, MAX_IDS_PER_CHUNK):
        ids = seal.accepted[_ID * start : _ID * (start + MAX_IDS_PER_CHUNK)]
        yield pb.SealSetRequest(window_id=seal.window_id, accepted=ids)


class SealSetChunks:
    """The set of a stream of chunks, one at a time; run by a helper, which asks about the first before the next."""

    def __init__(self) -> None:
        self._first: pb.SealSetRequest | None = None
        self._count = 0
        self._accepted: list[bytes] = []
        self._last = b""

    def add(self, chunk: pb.SealSetRequest) -> WindowId:
        """Take the next chunk, and return the window it is for.

        Raises:
            DecodeError: a chunk of another window, ids that do not ascend throughout, more or fewer than the first
                chunk says, or more than a set may have.
        """
        window_id = WindowId(chunk.window_id)
        if self._first is None:
            check_size("the leaves of a set", chunk.leaf_digests, _LEAVES_BYTES, _LEAVES_BYTES)
            check_count("reports of a set", chunk.following, 0, MAX_REPORTS_PER_WINDOW)
            known = pb.SealSetRequest(window_id=window_id, leaf_digests=chunk.leaf_digests, following=chunk.following)
            self._first = known
        else:
            if self.complete:
                raise DecodeError("a chunk of a set follows the last one")
            if window_id != self._first.window_id:
                raise DecodeError("the chunks of a set name two windows")
            accepted = chunk.accepted
            if len(accepted) % _ID:
                raise DecodeError(f"report ids have {len(accepted)} bytes, not a multiple of {_ID}")
            check_count("reports of a chunk", len(accepted) // _ID, 1, min(MAX_IDS_PER_CHUNK, self._left))
            known = pb.SealSetRequest(window_id=window_id, accepted=accepted)
            _check_ascending(self._last, accepted)
            self._accepted.append(accepted)
            self._count += len(accepted) // _ID
            self._last = accepted[-_ID:]
        if known != chunk:
            raise DecodeError("a chunk of a set holds unknown fields")
        return window_id

    @property
    def following(self) -> int:
        """How many ids come behind the first chunk, as it says."""
        return self._first.following if self._first else 0

    @property
    def _left(self) -> int:
        return self.following - self._count

    @property
    def complete(self) -> bool:
        """Whether the last chunk is there."""
        return self._first is not None and not self._left

    def joined(self) -> SealSet:
        """Return the set.

        Raises:
            DecodeError: its last chunk is not there.
        """
        if self._first is None or self._left:
            raise DecodeError("a set ends before its last report")
        leaves, accepted = self._first.leaf_digests, b"".join(self._accepted)
        return SealSet(window_id=WindowId(self._first.window_id), leaf_digests=leaves, accepted=accepted)


def join_seal_set(chunks: Iterable[pb.SealSetRequest]) -> SealSet:
    """Return the set of all chunks of a stream.

    Raises:
        DecodeError: chunks of different windows, ids that do not ascend throughout, an unfinished or over-long stream.
    """
    taken = SealSetChunks()
    for chunk in chunks:
        taken.add(chunk)
    return taken.joined()


def _check_ascending(previous: bytes, accepted: bytes) -> None:
    """Refuse joined ids that do not ascend, from `previous` on."""
    ids = [previous, *(accepted[at : at + _ID] for at in range(0, len(accepted), _ID))]
    if any(first >= second for first, second in pairwise(ids)):
        raise DecodeError("the reports of a set do not ascend")
