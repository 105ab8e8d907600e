"""The append-only log of one task's instalments: one file, one sync a group, an index in memory.

Written by one thread; other threads may look up digests and complete reports. Decides nothing about a task.
"""

import os
import secrets
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from numpy.typing import NDArray

from fleetcount_aggregator.storage.digest_file import DigestRecords
from fleetcount_aggregator.storage.log_format import (
    FILE_HEADER_BYTES,
    MOST_ROWS,
    NewFrame,
    encode_file_header,
)
from fleetcount_aggregator.storage.log_scan import LogScan, ScannedFrame, read_at, read_head
from fleetcount_aggregator.storage.log_slice import CompleteLog
from fleetcount_aggregator.storage.report_index import NO_ROW, ReportIndex
from fleetcount_aggregator.storage.store import InstalmentRun, StoreError

__all__ = ["ReportLog", "sync_directory"]

_SALT_BYTES: Final = 32
_DIGESTS_AT_ONCE: Final = 8_192
"""How many reports' digests are sorted and written at once."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Frames:
    """Where the frames of one round lie: the number of the first row and the file offset of each."""

    first_rows: "array[int]" = field(default_factory=lambda: array("I"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))

    def add(self, first_row: int, offset: int) -> None:
        """Remember the next frame."""
        self.first_rows.append(first_row)
        self.offsets.append(offset)

    def of_row(self, row: int) -> tuple[int, int]:
        """Return the offset of the row's frame and the row's place in it."""
        number = bisect_right(self.first_rows, row) - 1
        return self.offsets[number], row - self.first_rows[number]


class ReportLog:
    """The log of one task. The file is made with the first instalment.

    `decide` and `write` belong together: rows that `decide` takes are in the index at once, and `write` makes them
    durable or drops them all again.
    """

    def __init__(self, path: Path, task_id: TaskId, log_key: bytes, expected: int) -> None:
        self.path = path
        self.length = 0
        """Bytes that are durable."""
        self._task_id = task_id
        self._log_key = log_key
        self._index = ReportIndex(expected)
        self._frames: dict[int, _Frames] = {}
        self._sequence = 0
        self._descriptor = -1
        self._is_cut = True
        """False when what a failed write left could not be cut off."""
        self._waiting: dict[int, list[InstalmentRun]] = {}
        """What `decide` took, by round."""
        self._lock = threading.Lock()
        self._whole: CompleteLog | None = None

    @classmethod
    def open(
        cls, path: Path, task_id: TaskId, log_key: bytes, closed_length: int | None, durable_length: int = 0
    ) -> "ReportLog | None":
        """Read a log's index back; cut what the last write left torn.

        `closed_length`: its bytes when intake closed; `durable_length`: bytes known to have been durable. Returns None,
        and deletes the file, if not even its first write is whole.

        Raises:
            StoreError: it is damaged before its end, not what it was when intake closed, or bytes that were durable
                are missing; the text names the place, and the file is left as it is.
        """
        with LogScan(path, task_id, log_key) as scan:
            log = cls(path, task_id, log_key, scan.expected)
            for frame in scan.frames():
                log._load(frame)
        if closed_length is not None and scan.end != closed_length:
            raise StoreError(f"{path} is damaged at byte {scan.end}: intake closed with {closed_length} bytes")
        if scan.end < durable_length:
            raise StoreError(
                f"{path} is damaged at byte {scan.end}: {durable_length} bytes of it were durable, and have receipts"
            )
        if not scan.expected:
            path.unlink()
            return None
        log._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # What was read may still be on its way to the disk, and from now on receipts are given for it.
        os.ftruncate(log._descriptor, scan.end)
        os.fdatasync(log._descriptor)
        log.length = scan.end
        return log

    def _load(self, frame: ScannedFrame) -> None:
        """Take a frame's rows into the index."""
        head = frame.head
        self._remember(head.round, frame.offset, self._index.row_count(head.round))
        ids, certificates, _ = head.split_columns(frame.columns)
        if not self._index.load(ids, certificates, head.round):
            raise StoreError(f"{self.path} is damaged at byte {frame.offset}: an instalment is there twice")

    def _remember(self, round_number: int, offset: int, first_row: int) -> None:
        self._frames.setdefault(round_number, _Frames()).add(first_row, offset)
        self._sequence += 1

    # The writer.

    def decide(self, runs: Sequence[InstalmentRun], *, is_open: bool) -> list[bytes]:
        """Return what becomes of instalments (`Store.add_instalments`), and take those that are to be stored."""
        with self._lock:
            outcomes, taken = self._index.decide(runs, is_open=is_open, digest_of=self._stored_digest)
            ends = list(accumulate(map(len, runs), initial=0))
            for places in taken:
                bounds = np.searchsorted(places, ends).tolist()
                for run, start, (first, last) in zip(runs, ends, pairwise(bounds), strict=False):
                    if first < last:
                        self._waiting.setdefault(run.round, []).append(run.only(places[first:last] - start))
        data = outcomes.tobytes()
        return [data[start:end] for start, end in pairwise(ends)]

    def _stored_digest(self, round_number: int, row: int) -> bytes:
        offset, place = self._frames[round_number].of_row(row)
        head = read_head(self._descriptor, self.path, offset, self._log_key)
        return read_at(self._descriptor, self.path, offset + head.digest_at(place), Digest.SIZE)

    def write(self) -> None:
        """Append what was taken and make it durable, with one sync.

        Raises:
            StoreError: the disk is full or failed; the file is cut back, and nothing that was taken is there any more.
        """
        if not self._waiting:
            return
        # A flag and not `except`: what was taken must also be dropped when the process is interrupted here.
        written = False
        try:
            frames = self._build()
            self._append(frames)
            written = True
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path} could not be written: {error}") from error
        finally:
            if not written:
                self._take_back()
        self._keep(frames)

    def _build(self) -> list[NewFrame]:
        """Return the frames of what waits."""
        # Frames of one write carry the number of its first: after a crash only the last group may be torn.
        group = self._sequence
        alike = [runs for waiting in self._waiting.values() for runs in _alike(waiting)]
        return [
            NewFrame(
                runs, sequence=group + number, group=group, log_key=self._log_key, salt=secrets.token_bytes(_SALT_BYTES)
            )
            for number, runs in enumerate(alike)
        ]

    def _append(self, frames: Sequence[NewFrame]) -> None:
        """Write frames, before them the file's header if it is new, with one sync."""
        created = self._descriptor < 0
        if created:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._cut()
        offset = self.length
        if not offset:
            offset = self._put(encode_file_header(self._log_key, self._task_id, self._index.expected), 0)
        for frame in frames:
            for piece in frame.pieces():
                offset = self._put(piece, offset)
        # fdatasync also makes the new length durable. A new file's name is in its directory, which has its own sync.
        os.fdatasync(self._descriptor)
        if created:
            sync_directory(self.path.parent)

    def _put(self, piece: bytes | memoryview, offset: int) -> int:
        """Write bytes at an offset, and return where they end."""
        view = memoryview(piece)
        while view:  # The system may write fewer bytes than it is given.
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count
        return offset

    def drop(self) -> None:
        """Forget what was taken and is not written."""
        with self._lock:
            self._index.drop()
            self._waiting.clear()

    def _take_back(self) -> None:
        """Drop what could not be written, from the index and from the file."""
        self.drop()
        if self._descriptor < 0:
            return
        self._is_cut = False
        # If even this fails, the next write tries it again, or the next start cuts what is torn.
        with suppress(OSError):
            self._cut()
        if not self.length:
            os.close(self._descriptor)
            self._descriptor = -1

    def _cut(self) -> None:
        """Cut off what a failed write left: its whole frames must not follow a shorter group that is written next."""
        if not self._is_cut:
            os.ftruncate(self._descriptor, self.length)
            self._is_cut = True

    def _keep(self, frames: Sequence[NewFrame]) -> None:
        """Make what has become durable visible to readers."""
        with self._lock:
            # Only here does the new length count, after the sync: readers never see rows that a crash could take back.
            first_rows = {
                number: self._index.row_count(number) - self._waiting_rows(number) for number in self._waiting
            }
            self.length = self.length or FILE_HEADER_BYTES
            for head in (frame.head for frame in frames):
                self._remember(head.round, self.length, first_rows[head.round])
                first_rows[head.round] += head.count
                self.length += head.frame_bytes
            self._index.keep()
            self._waiting.clear()

    def _waiting_rows(self, round_number: int) -> int:
        return sum(map(len, self._waiting.get(round_number, ())))

    # Any thread.

    def digest(self, report_id: ReportId, round_number: int) -> Digest | None:
        """Return the digest of an instalment that is durable, or None."""
        with self._lock:
            row = self._index.row(report_id, round_number)
            durable = self._index.row_count(round_number) - self._waiting_rows(round_number)
            if row == NO_ROW or row >= durable:
                return None
            return Digest(self._stored_digest(round_number, row))

    @property
    def incomplete(self) -> int:
        """How many reports lack an instalment."""
        with self._lock:
            return self._index.incomplete

    @property
    def memory_bytes(self) -> int:
        """Bytes of the index."""
        return self._index.memory_bytes

    def complete(self, *, closed: bool) -> CompleteLog:
        """Return the complete reports; once the task is `closed` it is the same object every time."""
        with self._lock:
            if self._whole is not None:
                return self._whole
            found = self._index.complete()
            frames = {number: (list(one.first_rows), list(one.offsets)) for number, one in self._frames.items()}
            whole = CompleteLog(
                path=self.path, task_id=self._task_id, log_key=self._log_key, complete=found, frames=frames
            )
            if closed:
                self._whole = whole
            return whole

    def reports_of(self, devices: bytes) -> bytes:
        """Return the ids of the reports of these devices (digests, n x 32), joined."""
        with self._lock:
            return self._index.of_certificates(devices)

    # The end of the task.

    @property
    def row_count(self) -> int:
        """How many instalments there are, of all rounds."""
        return sum(self._index.row_count(number) for number in self._frames)

    def records(self, chosen: bytes) -> Iterator[DigestRecords]:
        """Yield what is remembered of every report, by ascending id; `chosen` as in `Store.chosen`, or nothing."""
        complete = self.complete(closed=False).rows
        rounds = tuple(sorted(self._frames))
        digests = {number: self._digests(number) for number in rounds}
        in_set = {number: np.zeros(len(digests[number]), dtype=np.uint8) for number in rounds}
        wanted = np.flatnonzero(np.frombuffer(chosen, dtype=np.uint8))
        for at, number in enumerate(complete.rounds):
            rows = complete.rows[wanted, at]
            in_set[number][rows[rows != NO_ROW]] = 1
        for known in self._index.by_id(_DIGESTS_AT_ONCE):
            held = np.stack([known.rows[number] != NO_ROW for number in rounds], axis=1)
            rows = {number: np.where(known.rows[number] != NO_ROW, known.rows[number], 0) for number in rounds}
            yield DigestRecords(
                rounds,
                known.ids,
                known.certificates,
                held,
                np.stack([digests[number][rows[number]] for number in rounds], axis=1),
                np.stack([in_set[number][rows[number]] for number in rounds], axis=1),
            )

    def _digests(self, round_number: int) -> NDArray[np.uint8]:
        """Return the digests of a round's instalments by row, n x 32."""
        digests = np.empty((self._index.row_count(round_number), Digest.SIZE), dtype=np.uint8)
        frames = self._frames[round_number]
        for first, offset in zip(frames.first_rows, frames.offsets, strict=True):
            head = read_head(self._descriptor, self.path, offset, self._log_key)
            column = read_at(self._descriptor, self.path, offset + head.digest_at(0), head.count * Digest.SIZE)
            digests[first : first + head.count] = np.frombuffer(column, dtype=np.uint8).reshape(-1, Digest.SIZE)
        return digests

    def delete(self) -> None:
        """Delete the file, and every share in it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def _alike(runs: Sequence[InstalmentRun]) -> list[list[InstalmentRun]]:
    """Return the runs of one round as they go into frames: sizes alike, and not more rows than a frame has."""
    frames: list[list[InstalmentRun]] = []
    shape, rows = (-1, -1), 0
    for run in runs:
        for piece in _cut_up(run):
            if shape != (piece.public_bytes, piece.part_bytes) or rows + len(piece) > MOST_ROWS:
                frames.append([])
                shape, rows = (piece.public_bytes, piece.part_bytes), 0
            frames[-1].append(piece)
            rows += len(piece)
    return frames


def _cut_up(run: InstalmentRun) -> list[InstalmentRun]:
    if len(run) <= MOST_ROWS:
        return [run]
    places = np.arange(len(run))
    return [run.only(places[start : start + MOST_ROWS]) for start in range(0, len(run), MOST_ROWS)]
