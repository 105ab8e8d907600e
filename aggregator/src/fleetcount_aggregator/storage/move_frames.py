"""The frames and digests of a store move to another home, sealed as they are, while nobody serves either.

Needs no key but for shards that become one log (joined_shards). Run by `move_store`, again from the beginning after
whatever ended it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.storage.digest_file import RECORD_BYTES
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import FrameHome, RawFrame
from fleetcount_aggregator.storage.joined_shards import ShardJoiner


@dataclass(frozen=True, slots=True)
class KnownLog:
    """What the rows say of a window: whether it has ended, or its intake is closed, and of how many bytes its log
    was.
    """

    length: int
    closed: bool
    ended: bool


@dataclass(slots=True)
class _Passed:
    """Counts and hashes what passes."""

    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    """A SHA-256; its type has no public name."""

    def frames(self, frames: Iterable[RawFrame]) -> Iterator[RawFrame]:
        """Yield frames."""
        for frame in frames:
            self.size = self.size or len(frame.header)
            for piece in frame[1:]:
                self.digest.update(len(piece).to_bytes(8) + piece)
            self.size += sum(map(len, frame[2:]))
            yield frame

    def records(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield blocks, however they are cut."""
        for block in blocks:
            self.digest.update(block)
            self.size += len(block)
            yield block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Passed) and (self.size, self.digest.digest()) == (other.size, other.digest.digest())

    __hash__ = None  # type: ignore[assignment] # it changes


def move_frames(old: FrameHome, new: FrameHome, known: Mapping[WindowId, KnownLog], joiner: ShardJoiner) -> None:
    """Copy the frames and digests of every window, and compare what is read back.

    Raises:
        StoreError: something is damaged, did not arrive as it was, or lies behind what is `known`: a crash may have
            torn it, and a start of the aggregator looks.
    """
    under_way = {window_id for window_id, log in known.items() if not log.ended}
    for window_id in sorted(old.windows() | under_way):
        # What is under way needs its place also where nothing has come yet.
        if window_id in under_way or old.holds(window_id):
            _move_log(old, new, window_id, known.get(window_id), joiner)
        _move_digests(old, new, window_id)


def _move_log(old: FrameHome, new: FrameHome, window_id: WindowId, known: KnownLog | None, joiner: ShardJoiner) -> None:
    shards = max(1, old.shard_count(window_id))
    there, arrived = _Passed(), _Passed()
    frames, closed = old.unload(window_id), known is not None and known.closed
    joins = shards > 1 and not new.cuts
    if joins:
        shards, frames = 1, joiner.joined(window_id, frames)
    new.load(window_id, shards, there.frames(frames), closed=closed)
    if old.counts_bytes and known is not None and not known.ended and there.size != known.length:
        raise StoreError(
            f"the log of window {window_id.hex()} has {there.size} bytes, not the {known.length} that were noted when"
            " the aggregator stopped: start it and stop it once, and move then"
        )
    for _ in arrived.frames(new.unload(window_id)):
        pass
    if there != arrived:
        raise StoreError(f"the log of window {window_id.hex()} did not arrive as it was")
    if joins and closed:
        joiner.note_length(window_id, there.size)


def _move_digests(old: FrameHome, new: FrameHome, window_id: WindowId) -> None:
    counted, there, arrived = _Passed(), _Passed(), _Passed()
    for _ in counted.records(old.ended(window_id).records()):
        pass
    if not counted.size:
        return
    new.ended(window_id).write(counted.size // RECORD_BYTES, there.records(old.ended(window_id).records()))
    for _ in arrived.records(new.ended(window_id).records()):
        pass
    if there != arrived:
        raise StoreError(f"the digests of window {window_id.hex()} did not arrive as they were")
