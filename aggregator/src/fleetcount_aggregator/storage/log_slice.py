"""The complete reports of a closed log, and slices of them that a worker process can load by itself.

A slice is a few numbers and the log's key: the share parts go from the file to the worker without passing the network
process. Reads and opens parts; verifies nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_kernel.proofs import ProofBatch
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES
from numpy.typing import NDArray

from fleetcount_aggregator.storage.log_format import FrameHead, FrameSeal
from fleetcount_aggregator.storage.log_scan import read_at, read_head
from fleetcount_aggregator.storage.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.report_index import CompleteRows
from fleetcount_aggregator.storage.store import LoadedReports, StoreError

__all__ = ["CompleteLog", "LogSlice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Some reports of a log: joined ids, and frame offset and place of every instalment (n x rounds each)."""

    path: Path
    task_id: TaskId
    log_key: bytes = field(repr=False)
    ids: bytes
    offsets: NDArray[np.int64]
    places: NDArray[np.int64]

    def load(self) -> LoadedReports:
        """See `ReportSource.load`."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            return self._load(_Parts(descriptor, self.path, self.task_id, self.log_key))
        finally:
            os.close(descriptor)

    def _load(self, parts: "_Parts") -> LoadedReports:
        ids = _rows(self.ids, len(self.ids) // ID_BYTES)
        rounds = [
            parts.open(ids, offsets, places) for offsets, places in zip(self.offsets.T, self.places.T, strict=True)
        ]
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


class _Parts:
    """Opens instalments of one log."""

    def __init__(self, descriptor: int, path: Path, task_id: TaskId, log_key: bytes) -> None:
        self._descriptor = descriptor
        self._path = path
        self._task_id = task_id
        self._log_key = log_key

    def open(self, ids: Bytes, offsets: NDArray[np.int64], places: NDArray[np.int64]) -> _Opened:
        """Return the instalments of one round, report by report."""
        frames: list[_Opened] = []
        numbers: list[NDArray[np.int64]] = []
        for offset in np.unique(offsets).tolist():
            numbers.append(np.flatnonzero(offsets == offset))
            frames.append(self._of_frame(offset, places[numbers[-1]], ids[numbers[-1]]))
        if len(frames) <= 1:
            return frames[0] if frames else _Opened(ids, ids, ids, np.ones(0, dtype=np.bool_))
        order = np.empty(len(ids), dtype=np.int64)
        order[np.concatenate(numbers)] = np.arange(len(ids))
        try:
            return _Opened.joined(frames).at(order, ids)
        except ValueError:
            raise StoreError(f"{self._path} has instalments of several sizes in one round") from None

    def _of_frame(self, offset: int, places: NDArray[np.int64], ids: Bytes) -> _Opened:
        """Return the instalments in these places of a frame."""
        head = read_head(self._descriptor, self._path, offset, self._log_key)
        seal = FrameSeal(self._log_key, head.salt, self._task_id, head.round)
        wanted = np.unique(places // head.block_rows)
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP) + 1)
        opened = [self._open_run(offset, head, seal, run.tolist()) for run in runs]
        starts = np.array([run[0] * head.block_rows for run in runs])
        before = np.cumsum([0, *(len(one.whole) for one in opened[:-1])])
        run_of = np.searchsorted(starts, places, side="right") - 1
        return _Opened.joined(opened).at(places - (starts - before)[run_of], ids)

    def _open_run(self, offset: int, head: FrameHead, seal: FrameSeal, wanted: Sequence[int]) -> _Opened:
        """Return all instalments from the first to the last of some blocks; blocks between them are not opened."""
        size, tagged = head.block_rows, head.block_rows * head.part_bytes + AES_GCM_TAG_BYTES
        first, last = wanted[0], wanted[-1]
        row, end = first * size, min((last + 1) * size, head.count)
        ids = self._read(offset + head.id_at(row), (end - row) * ID_BYTES)
        publics = self._read(offset + head.public_at(row), (end - row) * head.public_bytes)
        start = head.block_at(first)
        sealed = memoryview(self._read(offset + start, head.block_at(last + 1) - start))
        parts = np.zeros((end - row, head.part_bytes), dtype=np.uint8)
        whole = np.zeros(end - row, dtype=np.bool_)
        for block in wanted:
            at = (block - first) * size
            behind = min(at + size, end - row)
            bound = (
                ids[at * ID_BYTES : behind * ID_BYTES] + publics[at * head.public_bytes : behind * head.public_bytes]
            )
            begin = (block - first) * tagged
            found = seal.open_block(block, sealed[begin : begin + tagged], bound)
            if found is not None:
                parts[at:behind] = _rows(found, behind - at)
                whole[at:behind] = True
        return _Opened(_rows(ids, end - row), _rows(publics, end - row), parts, whole)

    def _read(self, offset: int, count: int) -> bytes:
        return read_at(self._descriptor, self._path, offset, count)


def _rows(column: bytes, count: int) -> Bytes:
    """Return a joined column as `count` rows."""
    return np.frombuffer(column, dtype=np.uint8).reshape(count, len(column) // max(1, count))


class CompleteLog:
    """Implements `CompleteReports` over a log. `frames`: by round the first row numbers and offsets of its frames."""

    def __init__(
        self,
        *,
        path: Path,
        task_id: TaskId,
        log_key: bytes,
        complete: CompleteRows,
        frames: Mapping[int, tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        self.ids = ReportIds(complete.ids)
        self._path = path
        self._task_id = task_id
        self._log_key = log_key
        self.rows = complete
        self._frames = {
            number: (np.array(first, dtype=np.uint32), np.array(offsets, dtype=np.int64))
            for number, (first, offsets) in frames.items()
        }

    def source(self, positions: NDArray[np.integer]) -> LogSlice:
        """See `CompleteReports.source`."""
        rows = self.rows.rows[positions]
        offsets = np.empty(rows.shape, dtype=np.int64)
        places = np.empty(rows.shape, dtype=np.int64)
        for column, number in enumerate(self.rows.rounds):
            first_rows, frame_offsets = self._frames[number]
            frames = np.searchsorted(first_rows, rows[:, column], side="right") - 1
            offsets[:, column] = frame_offsets[frames]
            places[:, column] = rows[:, column] - first_rows[frames]
        return LogSlice(
            path=self._path,
            task_id=self._task_id,
            log_key=self._log_key,
            ids=self.ids.at(positions),
            offsets=offsets,
            places=places,
        )
