"""The complete reports of a closed log, and slices of them that a worker process can load by itself.

A slice is a few numbers and the log's key: the share parts go from the file to the worker without passing the network
process. Reads and opens parts; verifies nothing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_protocol.ids import TaskId
from numpy.typing import NDArray

from fleetcount_aggregator.proofs import ProofBatch
from fleetcount_aggregator.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.log_format import FrameHead, FrameSeal
from fleetcount_aggregator.storage.log_scan import read_at, read_head
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
        ids = [self.ids[start : start + ID_BYTES] for start in range(0, len(self.ids), ID_BYTES)]
        rounds = [
            parts.open(ids, offsets, places) for offsets, places in zip(self.offsets.T, self.places.T, strict=True)
        ]
        nonces: list[bytes] = []
        public_shares: list[bytes] = []
        input_shares: list[bytes] = []
        damaged: list[int] = []
        for number, (report_id, opened) in enumerate(zip(ids, zip(*rounds, strict=True), strict=True)):
            found = [one for one in opened if one is not None]
            if len(found) < len(opened):
                damaged.append(number)
                continue
            nonces.append(report_id)
            public_shares.append(found[-1][0])
            input_shares += [part for _, part in found]
        return LoadedReports(
            batch=ProofBatch(
                nonces=b"".join(nonces), public_shares=b"".join(public_shares), input_shares=b"".join(input_shares)
            ),
            damaged=tuple(damaged),
        )


_Opened = tuple[bytes, bytes]
"""Public share and part of one instalment."""
_GAP: Final = 4
"""Blocks of a frame are read in one piece if no more than so many lie unasked between two of them."""


class _Parts:
    """Opens instalments of one log."""

    def __init__(self, descriptor: int, path: Path, task_id: TaskId, log_key: bytes) -> None:
        self._descriptor = descriptor
        self._path = path
        self._task_id = task_id
        self._log_key = log_key

    def open(self, ids: Sequence[bytes], offsets: NDArray[np.int64], places: NDArray[np.int64]) -> list[_Opened | None]:
        """Return the instalments of one round, report by report; None for one that is damaged."""
        opened: list[_Opened | None] = [None] * len(ids)
        for offset in np.unique(offsets).tolist():
            numbers = np.flatnonzero(offsets == offset)
            for number, one in zip(numbers.tolist(), self._of_frame(ids, offset, numbers, places), strict=True):
                opened[number] = one
        return opened

    def _of_frame(
        self, ids: Sequence[bytes], offset: int, numbers: NDArray[np.int64], places: NDArray[np.int64]
    ) -> Iterator[_Opened | None]:
        head = read_head(self._descriptor, self._path, offset, self._log_key)
        blocks = self._open_blocks(offset, head, np.unique(places[numbers] // head.block_rows))
        for number, place in zip(numbers.tolist(), places[numbers].tolist(), strict=True):
            block, at = divmod(place, head.block_rows)
            yield blocks[block].row(at, ids[number])

    def _open_blocks(self, offset: int, head: FrameHead, wanted: NDArray[np.int64]) -> "dict[int, _Block]":
        seal = FrameSeal(self._log_key, head.salt, self._task_id, head.round)
        opened: dict[int, _Block] = {}
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP) + 1):
            first, last = int(run[0]), int(run[-1])
            row, end = first * head.block_rows, min((last + 1) * head.block_rows, head.count)
            ids = self._read(offset + head.id_at(row), (end - row) * ID_BYTES)
            publics = self._read(offset + head.public_at(row), (end - row) * head.public_bytes)
            sealed = self._read(offset + head.block_at(first), head.block_at(last + 1) - head.block_at(first))
            for block in run.tolist():
                rows = slice(block * head.block_rows - row, min((block + 1) * head.block_rows, head.count) - row)
                block_ids = ids[rows.start * ID_BYTES : rows.stop * ID_BYTES]
                shares = publics[rows.start * head.public_bytes : rows.stop * head.public_bytes]
                start, stop = (head.block_at(one) - head.block_at(first) for one in (block, block + 1))
                parts = seal.open_block(block, sealed[start:stop], block_ids + shares)
                opened[block] = _Block(block_ids, shares, parts, head.public_bytes, head.part_bytes)
        return opened

    def _read(self, offset: int, count: int) -> bytes:
        return read_at(self._descriptor, self._path, offset, count)


@dataclass(frozen=True, slots=True)
class _Block:
    """Instalments sealed together, as columns; no parts if the block is damaged."""

    ids: bytes
    public_shares: bytes
    parts: bytes | None = field(repr=False)
    public_bytes: int
    part_bytes: int

    def row(self, at: int, report_id: bytes) -> _Opened | None:
        """Return the instalment in this place, or None if it is damaged."""
        if self.parts is None or self.ids[at * ID_BYTES : (at + 1) * ID_BYTES] != report_id:
            return None
        public_share = self.public_shares[at * self.public_bytes : (at + 1) * self.public_bytes]
        return public_share, self.parts[at * self.part_bytes : (at + 1) * self.part_bytes]


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
        self._complete = complete
        self._frames = {
            number: (np.array(first, dtype=np.uint32), np.array(offsets, dtype=np.int64))
            for number, (first, offsets) in frames.items()
        }

    def source(self, positions: NDArray[np.integer]) -> LogSlice:
        """See `CompleteReports.source`."""
        rows = self._complete.rows[positions]
        offsets = np.empty(rows.shape, dtype=np.int64)
        places = np.empty(rows.shape, dtype=np.int64)
        for column, number in enumerate(self._complete.rounds):
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
