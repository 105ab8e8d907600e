"""The complete reports of a closed log, and slices of them that a worker process can load by itself.

A slice is a few numbers and the log's key: the share parts go from where they lie to the worker without passing the
network process. Reads and opens parts; verifies nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from fleetcount_kernel.proofs import ProofBatch
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES
from numpy.typing import NDArray

from fleetcount_aggregator.storage.frames import FrameRange, FrameReader, FrameReads, read_heads
from fleetcount_aggregator.storage.log_format import FrameHead, FrameSeal
from fleetcount_aggregator.storage.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.report_index import CompleteRows
from fleetcount_aggregator.storage.store import LoadedReports, StoreError

__all__ = ["CompleteLog", "CompleteShard", "LogSlice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Some reports of a log: joined ids, and of every instalment its frame and its place there (n x rounds each)."""

    reader: FrameReader
    task_id: TaskId
    log_key: bytes = field(repr=False)
    ids: bytes
    frames: NDArray[np.int64]
    places: NDArray[np.int64]

    def load(self) -> LoadedReports:
        """See `ReportSource.load`."""
        with self.reader.opened() as reads:
            return self._load(_Parts(reads, self.task_id, self.log_key))

    def _load(self, parts: "_Parts") -> LoadedReports:
        ids = _rows(self.ids, len(self.ids) // ID_BYTES)
        rounds = [parts.open(ids, frames, places) for frames, places in zip(self.frames.T, self.places.T, strict=True)]
        if not rounds or not len(ids):
            return LoadedReports(batch=ProofBatch(nonces=b"", public_shares=b"", input_shares=b""))
        whole = np.logical_and.reduce([one.whole for one in rounds])
        kept = slice(None) if whole.all() else whole
        return LoadedReports(
            batch=ProofBatch(
                nonces=ids[kept].tobytes(),
                public_shares=rounds[-1].public_shares[kept].tobytes(),
                input_shares=np.concatenate([one.parts[kept] for one in rounds], axis=1).tobytes(),
            ),
            damaged=tuple(np.flatnonzero(~whole).tolist()),
        )


Bytes = NDArray[np.uint8]
_GAP: Final = 4
"""Blocks of a frame are read in one piece if no more than so many lie unasked between two of them."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """Instalments in rows: their ids, public shares and parts, and which of them are whole."""

    ids: Bytes
    public_shares: Bytes
    parts: Bytes = field(repr=False)
    whole: NDArray[np.bool_]

    def at(self, rows: NDArray[np.int64], ids: Bytes) -> "_Opened":
        """Return those in some rows; whole are only those that have these ids."""
        found = self.ids[rows]
        whole = self.whole[rows] & (found == ids).all(axis=1)
        return _Opened(found, self.public_shares[rows], self.parts[rows], whole)

    @classmethod
    def joined(cls, several: "Sequence[_Opened]") -> "_Opened":
        """Return the rows of all; raises ValueError unless all are of one size."""
        if len(several) == 1:
            return several[0]
        return cls(
            np.concatenate([one.ids for one in several]),
            np.concatenate([one.public_shares for one in several]),
            np.concatenate([one.parts for one in several]),
            np.concatenate([one.whole for one in several]),
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """Some blocks of a frame, near each other, and what is read for them: all from the first to the last of them."""

    frame: int
    head: FrameHead
    blocks: Sequence[int]

    @property
    def first_row(self) -> int:
        """The first instalment that is read."""
        return self.blocks[0] * self.head.block_rows

    @property
    def end_row(self) -> int:
        """The instalment behind the last that is read."""
        return min((self.blocks[-1] + 1) * self.head.block_rows, self.head.count)

    def ranges(self) -> Iterator[FrameRange]:
        """Yield where report ids, public shares and sealed parts lie."""
        head, row, count = self.head, self.first_row, self.end_row - self.first_row
        yield FrameRange(self.frame, head.id_at(row), count * ID_BYTES)
        yield FrameRange(self.frame, head.public_at(row), count * head.public_bytes)
        start = head.block_at(self.blocks[0])
        yield FrameRange(self.frame, start, head.block_at(self.blocks[-1] + 1) - start)

    def open(self, seal: FrameSeal, ids: bytes, publics: bytes, sealed: memoryview) -> _Opened:
        """Return all instalments that were read; blocks between those asked for are not opened."""
        head, count = self.head, self.end_row - self.first_row
        size, tagged = head.block_rows, head.block_rows * head.part_bytes + AES_GCM_TAG_BYTES
        parts = np.zeros((count, head.part_bytes), dtype=np.uint8)
        whole = np.zeros(count, dtype=np.bool_)
        for block in self.blocks:
            at = (block - self.blocks[0]) * size
            behind = min(at + size, count)
            bound = (
                ids[at * ID_BYTES : behind * ID_BYTES] + publics[at * head.public_bytes : behind * head.public_bytes]
            )
            begin = (block - self.blocks[0]) * tagged
            found = seal.open_block(block, sealed[begin : begin + tagged], bound)
            if found is not None:
                parts[at:behind] = _rows(found, behind - at)
                whole[at:behind] = True
        return _Opened(_rows(ids, count), _rows(publics, count), parts, whole)


class _Parts:
    """Opens instalments of one log. Everything of a round is asked for at once: a database may be far away."""

    def __init__(self, reads: FrameReads, task_id: TaskId, log_key: bytes) -> None:
        self._reads = reads
        self._task_id = task_id
        self._log_key = log_key

    def open(self, ids: Bytes, frames: NDArray[np.int64], places: NDArray[np.int64]) -> _Opened:
        """Return the instalments of one round, report by report."""
        numbers = np.unique(frames).tolist()
        heads = read_heads(self._reads, numbers, self._log_key)
        rows = [np.flatnonzero(frames == number) for number in numbers]
        asked = zip(numbers, heads, rows, strict=True)
        runs = [_runs(frame, head, places[here]) for frame, head, here in asked]
        read = iter(self._reads.read([one for of_frame in runs for run in of_frame for one in run.ranges()]))
        opened = [self._of_frame(one, read, places[here], ids[here]) for one, here in zip(runs, rows, strict=True)]
        if len(opened) <= 1:
            return opened[0] if opened else _Opened(ids, ids, ids, np.ones(0, dtype=np.bool_))
        order = np.empty(len(ids), dtype=np.int64)
        order[np.concatenate(rows)] = np.arange(len(ids))
        try:
            return _Opened.joined(opened).at(order, ids)
        except ValueError:
            raise StoreError(f"task {self._task_id.hex()}: instalments of several sizes in one round") from None

    def _of_frame(self, runs: Sequence[_Run], read: Iterator[bytes], places: NDArray[np.int64], ids: Bytes) -> _Opened:
        """Return the instalments in these places of a frame; `read` yields what the runs asked for."""
        head = runs[0].head
        seal = FrameSeal(self._log_key, head.salt, self._task_id, head.round)
        opened = [run.open(seal, next(read), next(read), memoryview(next(read))) for run in runs]
        starts = np.array([run.first_row for run in runs])
        before = np.cumsum([0, *(len(one.whole) for one in opened[:-1])])
        run_of = np.searchsorted(starts, places, side="right") - 1
        return _Opened.joined(opened).at(places - (starts - before)[run_of], ids)


def _runs(frame: int, head: FrameHead, places: NDArray[np.int64]) -> list[_Run]:
    """Return what is to be read of a frame for instalments in these places."""
    wanted = np.unique(places // head.block_rows)
    near = np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP) + 1)
    return [_Run(frame, head, blocks.tolist()) for blocks in near]


def _rows(column: bytes, count: int) -> Bytes:
    """Return a joined column as `count` rows."""
    return np.frombuffer(column, dtype=np.uint8).reshape(count, len(column) // max(1, count))


Columns = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Of frames: the number of the first row of each, and its own."""


@dataclass(frozen=True, slots=True)
class CompleteShard:
    """The complete reports of one shard, and by round where its frames lie."""

    complete: CompleteRows
    frames: Mapping[int, Columns]

    def find(self, positions: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the frame of every instalment of reports, and its place there (n x rounds each)."""
        rows = self.complete.rows[positions]
        frames, places = np.empty(rows.shape, dtype=np.int64), np.empty(rows.shape, dtype=np.int64)
        for column, number in enumerate(self.complete.rounds):
            first_rows, numbers = self.frames[number]
            at = np.searchsorted(first_rows, rows[:, column], side="right") - 1
            frames[:, column] = numbers[at]
            places[:, column] = rows[:, column] - first_rows[at]
        return frames, places


class CompleteLog:
    """Implements `CompleteReports` over a log. Positions run through its shards in their order."""

    def __init__(
        self, reader: FrameReader, task_id: TaskId, log_key: bytes, shards: Sequence[CompleteShard] = ()
    ) -> None:
        self.ids = ReportIds(b"".join([shard.complete.ids for shard in shards]))
        self.shards = shards
        self._reader = reader
        self._task_id = task_id
        self._log_key = log_key
        self._filled = [shard for shard in shards if shard.complete.ids]
        self._starts = np.cumsum([0, *(len(shard.complete.rows) for shard in self._filled[:-1])])

    def source(self, positions: NDArray[np.integer]) -> LogSlice:
        """See `CompleteReports.source`."""
        rounds = len(self._filled[0].complete.rounds) if self._filled else 0
        frames, places = (np.empty((len(positions), rounds), dtype=np.int64) for _ in range(2))
        shard_of = np.searchsorted(self._starts, positions, side="right") - 1
        for at, shard in enumerate(self._filled):
            here = np.flatnonzero(shard_of == at)
            frames[here], places[here] = shard.find(positions[here] - self._starts[at])
        return LogSlice(
            reader=self._reader,
            task_id=self._task_id,
            log_key=self._log_key,
            ids=self.ids.at(positions),
            frames=frames,
            places=places,
        )
