"""Where the frames of a report log lie, as the index sees it: in a file, or in a table of PostgreSQL.

`Frames` are those of one window, or of one lane of it: what one process has written. Sealed bytes alone go in and out;
what is in a frame is log_format's, what becomes of instalments is report_log's. Of a window that has ended digests
stay, as records that hold no share:

    record    report id | u8 round | certificate digest | instalment digest | u8 1 if the report is in the set, else 0
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from numpy.typing import NDArray

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import DamagedFrameError
from fleetcount_aggregator.storage.log_format import HEAD_BYTES, FrameHead, FrameSeal, NewFrame

_KEY_BYTES: Final = ReportId.SIZE + 1
RECORD_BYTES: Final = _KEY_BYTES + 2 * Digest.SIZE + 1
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DigestRecords:
    """What is remembered of n reports and their instalments of r rounds, as arrays of bytes.

    `ids` n x 16, `certificates` n x 32; `held` n x r, which instalments there are; of those, digests (n x r x 32), and
    `included` (n x r) is 1 if the report is in the set. `rounds` ascend.
    """

    rounds: Sequence[int]
    ids: Bytes
    certificates: Bytes
    held: NDArray[np.bool_]
    digests: Bytes
    included: Bytes

    def encode(self) -> bytes:
        """Return the records of the instalments there are, joined, report by report and round by round."""
        records = np.empty((*self.held.shape, RECORD_BYTES), dtype=np.uint8)
        start = 0
        for column in (
            self.ids[:, np.newaxis],
            np.array(self.rounds, dtype=np.uint8).reshape(1, -1, 1),
            self.certificates[:, np.newaxis],
            self.digests,
            self.included[:, :, np.newaxis],
        ):
            width = column.shape[2]
            records[:, :, start : start + width] = column
            start += width
        return records[self.held].tobytes()


@dataclass(frozen=True, slots=True)
class HeldDigest:
    """What is remembered of one instalment."""

    certificate: Digest
    digest: Digest


def find_record(
    count: int, record_at: Callable[[int], bytes], report_id: ReportId, round_number: int
) -> HeldDigest | None:
    """Return what is remembered of an instalment in so many records, which ascend, or None."""
    key = report_id + bytes((round_number,))
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        record = record_at(middle)
        if record[:_KEY_BYTES] == key:
            fields = record[_KEY_BYTES:]
            return HeldDigest(Digest(fields[: Digest.SIZE]), Digest(fields[Digest.SIZE : 2 * Digest.SIZE]))
        low, high = (middle + 1, high) if record[:_KEY_BYTES] < key else (low, middle)
    return None


FRAME_BITS: Final = 48
"""A frame's number has its lane above so many bits, so that one number is enough in a window of many lanes."""
LEAVES: Final = 256
"""Values of the first byte of a report id."""


class FrameRange(NamedTuple):
    """Bytes of one frame: its number, where they begin, from its first byte, and how many."""

    frame: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """One frame as it is read back: its number, its head, its columns."""

    frame: int
    head: FrameHead
    columns: bytes


class RawFrame(NamedTuple):
    """A frame as it lies: its lane, what stands before the lane's first frame, and its three parts, sealed."""

    lane: int
    header: bytes
    head: bytes
    columns: bytes
    parts: bytes


class FrameReads(Protocol):
    """Reads frames by their numbers, which `Frames.append` gave them."""

    def read(self, ranges: Sequence[FrameRange]) -> Sequence[bytes | memoryview]:
        """Return the bytes of ranges, in order; no range reaches from the columns into the parts.

        Raises:
            StoreError: they are not all there, or cannot be read; the text names the place.
        """
        ...

    def damaged(self, frame: int, why: str) -> DamagedFrameError:
        """Return the error that says that a frame is not what was written, and where it lies."""
        ...


class FrameReader(Protocol):
    """Survives pickling, so that a worker process reads frames by itself."""

    def opened(self) -> AbstractContextManager[FrameReads]:
        """Return the frames as a context; raises StoreError if they cannot be opened."""
        ...


class Frames(FrameReads, Protocol):
    """The frames of one lane, durable in the order in which they came. One thread writes; any may read."""

    @property
    def expected(self) -> int:
        """Instalments that make a report complete, as they lie beside the frames; 0 before the first."""
        ...

    @property
    def length(self) -> int:
        """How much is durable: bytes of a file, frames elsewhere."""
        ...

    @property
    def reader(self) -> FrameReader:
        """What a worker process gets."""
        ...

    def columns(self) -> Iterator[ReadFrame]:
        """Yield every frame without its parts, before the first `append`; asked again, those that came since.

        When the last is out, what is there is durable, and `length` counts it. `expected` holds from the first on.

        Raises:
            StoreError: something that was durable is damaged or missing; the text names the place.
        """
        ...

    def append(self, frames: Sequence[NewFrame], expected: int) -> list[int]:
        """Make a group of frames durable, all or none, and return their numbers.

        Raises:
            StoreBusyError: the window is closed, or the lane's end is not where it was; another lane may be begun.
            UnknownWriteError: all of them may be there or none.
            StoreError: it failed; none of them is there.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def read_heads(reads: FrameReads, frames: Sequence[int], log_key: bytes) -> list[FrameHead]:
    """Return the heads of frames, in order; raises StoreError if a head is invalid."""
    found = reads.read([FrameRange(frame, 0, HEAD_BYTES) for frame in frames])
    return [_head(reads, frame, bytes(data), log_key) for frame, data in zip(frames, found, strict=True)]


def _head(reads: FrameReads, frame: int, data: bytes, log_key: bytes) -> FrameHead:
    head = FrameHead.decode(data, log_key)
    if head is None:
        raise reads.damaged(frame, "no frame begins there")
    return head


def checked_frame(
    reads: FrameReads, number: int, head: bytes, columns: bytes, sequence: int, window_id: WindowId, log_key: bytes
) -> ReadFrame:
    """Return a frame that lies whole in its place; raises StoreError if it is not what was written there."""
    found = _head(reads, number, head, log_key)
    seal = FrameSeal(log_key, found.salt, window_id, found.round)
    if found.sequence != sequence or len(columns) != found.columns_bytes:
        raise reads.damaged(number, f"it holds frame {found.sequence}, or other bytes of columns")
    if not hmac.compare_digest(seal.of_columns(columns), found.columns_seal):
        raise reads.damaged(number, "its columns are not what was written")
    return ReadFrame(number, found, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What the store knows of a window when it starts: so many bytes of its log were durable, at least.

    `closed_length`: how long it was when intake closed, None before.
    """

    window_id: WindowId
    ended: bool
    durable_length: int
    closed_length: int | None
    set_sealed: bool


class EndedDigests(Protocol):
    """What is remembered of the instalments of one ended window: digests, and no share."""

    def write(self, count: int, blocks: Iterable[bytes]) -> None:
        """Write `count` records in all, by ascending report id (`DigestRecords.encode`), in place of what was there.

        Raises:
            StoreError: it failed, or there are fewer or more records; what was there before stays as it was.
        """
        ...

    def records(self) -> Iterator[bytes]:
        """Yield all records in their order, some at once; none where nothing was written. Raises StoreError."""
        ...

    def find(self, report_id: ReportId, round_number: int) -> HeldDigest | None:
        """Return what is remembered of an instalment, or None; raises StoreError if it is damaged."""
        ...

    def delete(self) -> None:
        """Remember nothing of the window any more; doing it again changes nothing."""
        ...


class LogBackend(Protocol):
    """The report logs of a store: beside a file (`file_backend`), or in PostgreSQL (`postgres_backend`)."""

    @property
    def counts_bytes(self) -> bool:
        """Whether what was durable has to be noted in the database, to see later if it is gone."""
        ...

    @property
    def shared(self) -> bool:
        """Whether a window has lanes, one or more of each process."""
        ...

    def expect_lengths(self, states: Sequence[LogState]) -> None:
        """Remember how long logs were; whether they still are is seen when they are read."""
        ...

    def put_aside(self, states: Sequence[LogState]) -> list[WindowId]:
        """Return the windows whose logs the operator has put aside, before their set was sealed: they can only end."""
        ...

    def has_leftovers(self, window_id: WindowId) -> bool:
        """Whether there is something of an ended window that `drop` deletes."""
        ...

    def install(self, db: "Database", window_id: WindowId) -> None:
        """Make the place of a window that is installed in this transaction; one that is there stays."""
        ...

    def close_window(self, db: "Database", window_id: WindowId) -> None:
        """Take no instalment of a window any more, from the commit of this transaction on.

        The transaction sees what is committed by others while it waits for them (READ COMMITTED).
        """
        ...

    def is_closed(self, window_id: WindowId) -> bool:
        """Return whether no lane of a window is written to any more, and no other can be made."""
        ...

    def lanes(self, window_id: WindowId) -> Sequence[int]:
        """Return the lanes of a window, in order; none for one that has no place here."""
        ...

    def frames(self, window_id: WindowId, log_key: bytes, lane: int | None = None) -> Frames:
        """Return the frames of a lane, to be read; without one those that this process writes, in a new lane where
        there are several.
        """
        ...

    def reader(self, window_id: WindowId) -> FrameReader:
        """Return what reads the frames of all lanes of a window."""
        ...

    def ended(self, window_id: WindowId) -> EndedDigests:
        """Return what is left of an ended window."""
        ...

    def holds(self, window_id: WindowId) -> bool:
        """Whether frames of a window lie there, as they do from its first instalment until it is purged."""
        ...

    def drop(self, window_id: WindowId) -> None:
        """Delete every frame of an ended window; doing it again changes nothing."""
        ...

    def windows(self) -> set[WindowId]:
        """Return the windows of which there are frames or digests."""
        ...

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """Yield every frame of a store that nobody serves, to be taken to another backend; needs no key.

        Raises:
            StoreError: it is not all there; the text names the place.
        """
        ...

    def load(self, window_id: WindowId, lanes: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """Write frames that another backend has unloaded, in place of what an earlier try has left; durable on return.

        Raises:
            StoreError: it failed, or a window of so many lanes cannot lie here.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
