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
from cryptography.exceptions import InvalidTag
from fleetcount_protocol.ids import TaskId
from numpy.typing import NDArray

from fleetcount_aggregator.proofs import ProofBatch
from fleetcount_aggregator.report_ids import ID_BYTES, ReportIds
from fleetcount_aggregator.storage.log_format import frame_cipher, part_context, part_nonce
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
        input_shares: list[bytearray] = []
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


_Opened = tuple[bytes, bytearray]
"""Public share and part of one instalment."""
_SPREAD: Final = 4
"""Records of a frame are read in one piece if at most so many times as many lie between the first and the last."""


class _Parts:
    """Opens instalments of one log; heads and ciphers of the frames it has met are kept."""

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
        wanted = places[numbers].tolist()
        publics = self._records(offset + head.public_at(0), head.public_bytes, wanted)
        sealed = self._records(offset + head.part_at(0), head.sealed_bytes, wanted)
        decrypt = frame_cipher(self._log_key, head.salt).decrypt_into
        rows = zip(numbers.tolist(), wanted, publics, sealed, strict=True)
        for number, place, public_share, ciphertext in rows:
            part = bytearray(head.part_bytes)
            context = part_context(self._task_id, ids[number], head.round, public_share)
            try:
                decrypt(part_nonce(place), ciphertext, context, part)
            except InvalidTag:
                yield None
            else:
                yield public_share, part

    def _records(self, start: int, size: int, places: Sequence[int]) -> list[bytes]:
        """Return records of one size, by their places behind `start`."""
        first, last = min(places), max(places)
        if last - first >= _SPREAD * len(places):
            return [read_at(self._descriptor, self._path, start + place * size, size) for place in places]
        block = read_at(self._descriptor, self._path, start + first * size, (last - first + 1) * size)
        return [block[(place - first) * size : (place - first + 1) * size] for place in places]


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
