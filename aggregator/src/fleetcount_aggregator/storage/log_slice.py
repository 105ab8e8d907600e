"""The complete reports of a closed log, and slices of them that a worker process can load by itself.

A slice is a few numbers and the log's key: the share parts go from where they lie to the worker without passing the
network process. Reads and opens parts; verifies nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from fleetcount_kernel.proofs import ProofBatch
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES
from numpy.typing import NDArray

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import FrameRange, FrameReader, FrameReads, read_heads
from fleetcount_aggregator.storage.log_format import FrameHead, FrameSeal
from fleetcount_aggregator.storage.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.report_index import CompleteRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReports:
    """Reports ready for verification, and which of those asked for are missing: damaged in the store, by number."""

    batch: ProofBatch
    damaged: tuple[int, ...] = ()


class ReportSource(Protocol):
    """Some complete reports of one window; survives pickling, so that a worker process loads them by itself."""

    def load(self) -> LoadedReports:
        """Return the reports with their input shares joined, in order; raises StoreError if the file fails."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Some reports of a log: joined ids, and of every instalment its frame and its place there (n x rounds each)."""

    reader: FrameReader
    window_id: WindowId
    log_key: bytes = field(repr=False)
    ids: bytes
    frames: NDArray[np.int64]
    places: NDArray[np.int64]

    def load(self) -> LoadedReports:
        """See `ReportSource.load`."""
        with self.reader.opened() as reads:
            return self._load(_Parts(reads, self.window_id, self.log_key))

    def _load(self, parts: "_Parts") -> LoadedReports:
        ids = _rows(self.ids, len(self.ids) // ID_BYTES)
        if not self.frames.size:
            return LoadedReports(batch=ProofBatch(nonces=b"", public_shares=b"", input_shares=b""))
        rounds = parts.asked(self.frames, self.places)
        opened, start = _Opened.empty(len(ids), [parts.sizes(runs) for runs in rounds]), 0
        for runs in rounds:
            start += parts.open(runs, ids, opened, start)
        whole = opened.whole
        kept = slice(None) if whole.all() else whole
        return LoadedReports(
            batch=ProofBatch(
                nonces=ids[kept].tobytes(),
                public_shares=opened.public_shares[kept].tobytes(),
                input_shares=opened.parts[kept].tobytes(),
            ),
            damaged=tuple(np.flatnonzero(~whole).tolist()),
        )


Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
_GAP: Final = 4
"""Blocks of a frame are read in one piece if no more than so many lie unasked between two of them."""
_PIECE_BYTES: Final = 256 * 1024
"""Sealed bytes that are read together: few enough to stay in the processor's cache on their way, at a server too."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """Reports in rows: their public shares, of the last round, their parts of all rounds, and which are whole."""

    public_shares: Bytes
    parts: Bytes = field(repr=False)
    whole: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int, sizes: Sequence[tuple[int, int]]) -> "_Opened":
        """Return room for reports of these sizes of public share and part, round by round."""
        parts = np.empty((count, sum(part for _, part in sizes)), dtype=np.uint8)
        return cls(np.empty((count, sizes[-1][0]), dtype=np.uint8), parts, np.ones(count, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class _Run:
    """Some blocks of a frame, near each other, of which all is read from the first to the last.

    `reports` are the numbers of those whose instalments lie there, `places` where in the frame each of them does.
    """

    frame: int
    head: FrameHead
    blocks: Sequence[int]
    reports: Places
    places: Places

    @property
    def first_row(self) -> int:
        """The first instalment that is read."""
        return self.blocks[0] * self.head.block_rows

    @property
    def end_row(self) -> int:
        """The end of the instalments that are read, exclusive."""
        return min((self.blocks[-1] + 1) * self.head.block_rows, self.head.count)

    def pieces(self) -> Iterator["_Run"]:
        """Yield runs of as many blocks as are read together."""
        size = max(1, _PIECE_BYTES // (self.head.block_rows * self.head.part_bytes + AES_GCM_TAG_BYTES))
        block_of = self.places // self.head.block_rows
        for at in range(0, len(self.blocks), size):
            blocks = self.blocks[at : at + size]
            here = (block_of >= blocks[0]) & (block_of <= blocks[-1])
            yield _Run(self.frame, self.head, blocks, self.reports[here], self.places[here])

    def ranges(self) -> Iterator[FrameRange]:
        """Yield where report ids, public shares and, piece by piece, sealed parts lie."""
        head, row, count = self.head, self.first_row, self.end_row - self.first_row
        yield FrameRange(self.frame, head.id_at(row), count * ID_BYTES)
        yield FrameRange(self.frame, head.public_at(row), count * head.public_bytes)
        for piece in self.pieces():
            start = head.block_at(piece.blocks[0])
            yield FrameRange(self.frame, start, head.block_at(piece.blocks[-1] + 1) - start)

    def open(self, seal: FrameSeal, bound: "_Bound", sealed: memoryview) -> tuple[Bytes, NDArray[np.bool_]]:
        """Return the parts of all instalments of a piece, and which are whole; what was not asked for is not opened."""
        head, first, count = self.head, self.first_row, self.end_row - self.first_row
        size, part = head.block_rows, head.part_bytes
        tagged = size * part + AES_GCM_TAG_BYTES
        parts, whole = np.empty((count, part), dtype=np.uint8), np.zeros(count, dtype=np.bool_)
        into = parts.reshape(-1).data
        for block in self.blocks:
            at, begin = block * size - first, (block - self.blocks[0]) * tagged
            behind = min(at + size, count)
            bytes_of, room = sealed[begin : begin + tagged], into[at * part : behind * part]
            whole[at:behind] = seal.open_block(block, bytes_of, bound.of(first + at, first + behind), room)
        return parts, whole


@dataclass(frozen=True, slots=True)
class _Bound:
    """The report ids and public shares of instalments from `first` on, which their blocks are bound to."""

    first: int
    ids: bytes
    publics: bytes
    public_bytes: int

    def of(self, row: int, end: int) -> bytes:
        """Return what the block of these instalments is bound to."""
        row, end = row - self.first, end - self.first
        return (
            self.ids[row * ID_BYTES : end * ID_BYTES] + self.publics[row * self.public_bytes : end * self.public_bytes]
        )


class _Parts:
    """Opens instalments of one log. Everything of a round is asked for at once: a database may be far away."""

    def __init__(self, reads: FrameReads, window_id: WindowId, log_key: bytes) -> None:
        self._reads = reads
        self._window_id = window_id
        self._log_key = log_key

    def asked(self, frames: Places, places: Places) -> list[list[_Run]]:
        """Return what is to be read for the instalments of reports (n x rounds each), round by round."""
        numbers = np.unique(frames).tolist()
        heads = list(zip(numbers, read_heads(self._reads, numbers, self._log_key), strict=True))
        return [
            [
                run
                for frame, head in heads
                if (here := np.flatnonzero(column == frame)).size
                for run in _runs(frame, head, here, at[here])
            ]
            for column, at in zip(frames.T, places.T, strict=True)
        ]

    def sizes(self, runs: Sequence[_Run]) -> tuple[int, int]:
        """Return the bytes of a public share and of a part, which are one in a round."""
        found = {(run.head.public_bytes, run.head.part_bytes) for run in runs}
        if len(found) != 1:
            raise StoreError(f"window {self._window_id.hex()}: instalments of several sizes in one round")
        return found.pop()

    def open(self, runs: Sequence[_Run], ids: Bytes, opened: _Opened, start: int) -> int:
        """Put the instalments of one round where they belong, parts from byte `start` on; return how long a part is."""
        read = iter(self._reads.read([one for run in runs for one in run.ranges()]))
        seals: dict[int, FrameSeal] = {}
        size = runs[0].head.part_bytes
        for run in runs:
            head, count = run.head, run.end_row - run.first_row
            if run.frame not in seals:
                seals[run.frame] = FrameSeal(self._log_key, head.salt, self._window_id, head.round)
            bound = _Bound(run.first_row, bytes(next(read)), bytes(next(read)), head.public_bytes)
            at = run.places - run.first_row
            opened.whole[run.reports] &= (_rows(bound.ids, count)[at] == ids[run.reports]).all(axis=1)
            if head.public_bytes == opened.public_shares.shape[1]:
                opened.public_shares[run.reports] = _rows(bound.publics, count)[at]
            for piece in run.pieces():
                parts, whole = piece.open(seals[run.frame], bound, memoryview(next(read)))
                at = piece.places - piece.first_row
                opened.parts[piece.reports, start : start + size] = parts[at]
                opened.whole[piece.reports] &= whole[at]
        return size


def _runs(frame: int, head: FrameHead, reports: Places, places: Places) -> list[_Run]:
    """Return what is to be read of a frame for the instalments of some reports in these places."""
    block_of = places // head.block_rows
    wanted = np.unique(block_of)
    near = np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP) + 1)
    here = [(block_of >= blocks[0]) & (block_of <= blocks[-1]) for blocks in near]
    return [_Run(frame, head, b.tolist(), reports[at], places[at]) for b, at in zip(near, here, strict=True)]


def _rows(column: bytes, count: int) -> Bytes:
    """Return a joined column as `count` rows."""
    return np.frombuffer(column, dtype=np.uint8).reshape(count, len(column) // max(1, count))


Columns = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Of frames: the number of the first row of each, and its own."""


@dataclass(frozen=True, slots=True)
class CompleteLog:
    """The complete reports of a log, and by round where its frames lie."""

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


class CompleteReports:
    """The reports of a window that have all their instalments, by position; fixed from the moment intake is closed.

    `ids` are the report ids by position.
    """

    def __init__(
        self, reader: FrameReader, window_id: WindowId, log_key: bytes, complete: CompleteLog | None = None
    ) -> None:
        self.ids = ReportIds(b"" if complete is None else complete.complete.ids)
        self._complete = complete
        self._reader = reader
        self._window_id = window_id
        self._log_key = log_key

    def source(self, positions: NDArray[np.integer]) -> LogSlice:
        """Return where a worker finds the reports at these positions."""
        nothing = np.empty((len(positions), 0), dtype=np.int64)
        frames, places = (nothing, nothing) if self._complete is None else self._complete.find(positions)
        return LogSlice(
            reader=self._reader,
            window_id=self._window_id,
            log_key=self._log_key,
            ids=self.ids.at(positions),
            frames=frames,
            places=places,
        )
