"""The accepted set of a task as a stream of chunks (protos/…/peer.proto): its leaves, then names in some of them.

Reads a chunk at a time, so that its reader may ask about the first before the next. Verifies no digest.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.limits import MAX_IDS_PER_CHUNK, MAX_REPORTS_PER_TASK, SET_LEAVES
from fleetcount_protocol.messages import SealSet
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.strict import check_count, check_size

__all__ = ["SealSetChunks", "join_seal_set", "split_seal_set"]

_ID: Final = ReportId.SIZE
_LEAVES_BYTES: Final = SET_LEAVES * Digest.SIZE


def split_seal_set(seal: SealSet) -> Iterator[pb.SealSetRequest]:
    """Yield the chunks of a set: its leaves and how many ids follow, then the ids; run by the leader."""
    count = len(seal.accepted) // _ID
    yield pb.SealSetRequest(task_id=seal.task_id, leaf_digests=seal.leaf_digests, following=count)
    for start in range(0, count, MAX_IDS_PER_CHUNK):
        numbers = range(start, min(start + MAX_IDS_PER_CHUNK, count))
        ids = [seal.accepted[_ID * at : _ID * (at + 1)] for at in numbers]
        yield pb.SealSetRequest(task_id=seal.task_id, accepted=ids)


class SealSetChunks:
    """The set of a stream of chunks, one at a time; run by a helper, which asks about the first before the next."""

    def __init__(self) -> None:
        self._first: pb.SealSetRequest | None = None
        self._count = 0
        self._accepted: list[bytes] = []
        self._last = b""

    def add(self, chunk: pb.SealSetRequest) -> TaskId:
        """Take the next chunk, and return the task it is for.

        Raises:
            DecodeError: a chunk of another task, ids that do not ascend throughout, more or fewer than the first chunk
                says, or more than a set may have.
        """
        task_id = TaskId(chunk.task_id)
        if self._first is None:
            check_size("the leaves of a set", chunk.leaf_digests, _LEAVES_BYTES, _LEAVES_BYTES)
            check_count("reports of a set", chunk.following, 0, MAX_REPORTS_PER_TASK)
            known = pb.SealSetRequest(task_id=task_id, leaf_digests=chunk.leaf_digests, following=chunk.following)
            self._first = known
        else:
            if self.complete:
                raise DecodeError("a chunk of a set follows the last one")
            if task_id != self._first.task_id:
                raise DecodeError("the chunks of a set name two tasks")
            check_count("reports of a chunk", len(chunk.accepted), 1, min(MAX_IDS_PER_CHUNK, self._left))
            known = pb.SealSetRequest(task_id=task_id, accepted=chunk.accepted)
            self._accepted.append(_ascending(self._last, chunk.accepted))
            self._count += len(chunk.accepted)
            self._last = chunk.accepted[-1]
        if known != chunk:
            raise DecodeError("a chunk of a set holds unknown fields")
        return task_id

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
        return SealSet(task_id=TaskId(self._first.task_id), leaf_digests=leaves, accepted=accepted)


def join_seal_set(chunks: Iterable[pb.SealSetRequest]) -> SealSet:
    """Return the set of all chunks of a stream.

    Raises:
        DecodeError: chunks of different tasks, ids that do not ascend throughout, an unfinished or over-long stream.
    """
    taken = SealSetChunks()
    for chunk in chunks:
        taken.add(chunk)
    return taken.joined()


def _ascending(previous: bytes, ids: Sequence[bytes]) -> bytes:
    """Return ids joined that ascend, and from `previous` on."""
    for one in ids:
        if len(one) != _ID:
            raise DecodeError(f"a report id has {len(one)} bytes, not {_ID}")
    if any(first >= second for first, second in pairwise(chain((previous,), ids))):
        raise DecodeError("the reports of a set do not ascend")
    return b"".join(ids)
