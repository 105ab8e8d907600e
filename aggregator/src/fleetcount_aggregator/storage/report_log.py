"""The log of one window's instalments, or a lane of it, or its lanes joined: durable frames, and an index in memory.

Written by one thread; other threads may look up digests and complete reports. Decides nothing about a window, and does
not know where its frames lie (frames).
"""

import secrets
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from numpy.typing import NDArray

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import DigestRecords, FrameRange, Frames, ReadFrame, read_heads
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.log_format import MOST_ROWS, NewFrame
from fleetcount_aggregator.storage.log_slice import CompleteLog, CompleteReports
from fleetcount_aggregator.storage.report_index import NO_ROW, Copies, ReportIndex

_SALT_BYTES: Final = 32
_DIGESTS_AT_ONCE: Final = 8_192
"""How many reports' digests are sorted and written at once."""
_ROWS_AT_ONCE: Final = 16_384
"""Rows read back that go into the index together: devices that come one by one leave frames of a few rows."""


@dataclass(slots=True)
class _Round:
    """Where the frames of one round lie: by frame the number of its first row and its own."""

    first_rows: "array[int]" = field(default_factory=lambda: array("I"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, first_row: int, number: int) -> None:
        """Remember the next frame."""
        self.first_rows.append(first_row)
        self.numbers.append(number)

    def columns(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return both as they are now."""
        return np.array(self.first_rows, dtype=np.uint32), np.array(self.numbers, dtype=np.int64)


class ReportLog:
    """A log that holds nothing yet; `open` reads one back.

    `decide` and `write` belong together: rows that `decide` takes are in the index at once, and `write` makes them
    durable or drops them all again.
    """

    def __init__(self, frames: Frames, window_id: WindowId, log_key: bytes, expected: int) -> None:
        self._frames = frames
        self._window_id = window_id
        self._log_key = log_key
        self._index = ReportIndex(expected)
        self._rounds: dict[int, _Round] = {}
        self._sequence = 0
        self._waiting: dict[int, list[InstalmentRun]] = {}
        """What `decide` took, by round."""
        self._lock = threading.Lock()

    @classmethod
    def open(cls, frames: Frames, window_id: WindowId, log_key: bytes) -> "ReportLog | None":
        """Read a log's index back, None if there is nothing.

        Raises:
            StoreError: it is damaged, as `Frames.columns` says; the text names the place.
        """
        read = frames.columns()
        first = next(read, None)
        if not frames.expected:
            return None
        log = cls(frames, window_id, log_key, frames.expected)
        for alike in _by_round(chain([] if first is None else [first], read)):
            log._load(alike)
        return log

    def _columns(self, frames: Sequence[ReadFrame]) -> tuple[bytes, bytes]:
        """Note where the rows of some frames of one round lie; return their report ids and certificate digests."""
        number = frames[0].head.round
        first_row = self._index.row_count(number)
        for frame in frames:
            self._remember(number, frame.frame, first_row)
            first_row += frame.head.count
        columns = [frame.head.split_columns(frame.columns) for frame in frames]
        return b"".join([one[0] for one in columns]), b"".join([one[1] for one in columns])

    def _load(self, frames: Sequence[ReadFrame]) -> None:
        """Take the rows of some frames of one round into the index: at once, since each time costs as much as a row."""
        if not self._index.load(*self._columns(frames), frames[0].head.round):
            after = f" or of the next {len(frames) - 1} of its round" if len(frames) > 1 else ""
            raise self._frames.damaged(frames[0].frame, f"an instalment of it{after} is there twice")

    def _remember(self, round_number: int, frame: int, first_row: int) -> None:
        self._rounds.setdefault(round_number, _Round()).add(first_row, frame)
        self._sequence += 1

    @property
    def length(self) -> int:
        """See `Frames.length`."""
        return self._frames.length

    # The writer.

    def decide(self, runs: Sequence[InstalmentRun], *, is_open: bool) -> list[bytes]:
        """Return what becomes of instalments (`Store.add_instalments`), and take those that are to be stored.

        Raises:
            StoreError: what is stored cannot be compared with.
        """
        with self._lock:
            outcomes, taken = self._index.decide(runs, is_open=is_open, digests_of=self._stored_digests)
            ends = list(accumulate(map(len, runs), initial=0))
            for places in taken:
                bounds = np.searchsorted(places, ends).tolist()
                for run, start, (first, last) in zip(runs, ends, pairwise(bounds), strict=False):
                    if first < last:
                        self._waiting.setdefault(run.round, []).append(run.only(places[first:last] - start))
        data = outcomes.tobytes()
        return [data[start:end] for start, end in pairwise(ends)]

    def _stored_digests(self, round_number: int, rows: NDArray[np.uint32]) -> NDArray[np.uint8]:
        first_rows, numbers = self._rounds[round_number].columns()
        at = np.searchsorted(first_rows, rows, side="right") - 1
        used, which = np.unique(at, return_inverse=True)
        heads = read_heads(self._frames, numbers[used].tolist(), self._log_key)
        ranges = [
            FrameRange(int(numbers[frame]), heads[head].digest_at(place), Digest.SIZE)
            for frame, head, place in zip(at.tolist(), which.tolist(), (rows - first_rows[at]).tolist(), strict=True)
        ]
        return np.frombuffer(b"".join(self._frames.read(ranges)), dtype=np.uint8).reshape(-1, Digest.SIZE)

    def write(self) -> None:
        """Append what was taken and make it durable, as one group.

        Raises:
            StoreError: as `Frames.append`; then nothing that was taken is there any more.
        """
        if not self._waiting:
            return
        # A flag and not `except`: what was taken must also be dropped when the process is interrupted here.
        written = False
        try:
            frames = self._build()
            numbers = self._frames.append(frames, self._index.expected)
            written = True
        except ValueError as error:
            raise StoreError(f"window {self._window_id.hex()}: instalments could not be written: {error}") from error
        finally:
            if not written:
                self.drop()
        self._keep(frames, numbers)

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

    def drop(self) -> None:
        """Forget what was taken and is not written."""
        with self._lock:
            self._index.drop()
            self._waiting.clear()

    def _keep(self, frames: Sequence[NewFrame], numbers: Sequence[int]) -> None:
        """Make what has become durable visible to readers."""
        with self._lock:
            # Only here, after the sync: readers never see rows that a crash could take back.
            first_rows = {
                number: self._index.row_count(number) - self._waiting_rows(number) for number in self._waiting
            }
            for head, number in zip((frame.head for frame in frames), numbers, strict=True):
                self._remember(head.round, number, first_rows[head.round])
                first_rows[head.round] += head.count
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
            return Digest(self._stored_digests(round_number, np.array([row], dtype=np.uint32)).tobytes())

    @property
    def incomplete(self) -> int:
        """How many reports lack an instalment."""
        with self._lock:
            return self._index.incomplete

    @property
    def memory_bytes(self) -> int:
        """Bytes of the index."""
        return self._index.memory_bytes

    def complete_log(self) -> CompleteLog:
        """Return the complete reports, and where they lie."""
        with self._lock:
            return CompleteLog(self._index.complete(), {number: one.columns() for number, one in self._rounds.items()})

    def complete(self) -> CompleteReports:
        """Return the complete reports of this log alone."""
        return CompleteReports(self._frames.reader, self._window_id, self._log_key, self.complete_log())

    def reports_of(self, devices: bytes) -> bytes:
        """Return the ids of the reports of these devices (digests, n x 32), joined."""
        with self._lock:
            return self._index.of_certificates(devices)

    # The end of the window.

    @property
    def row_count(self) -> int:
        """How many instalments there are, of all rounds, each once."""
        return self._index.held_count

    def key_uses(self) -> bytes:
        """Return which keys opened the instalments (`Store.key_uses`)."""
        with self._lock:
            numbers = [number for frames in self._rounds.values() for number in frames.numbers]
        heads = read_heads(self._frames, numbers, self._log_key)
        ranges = [
            FrameRange(number, head.uses_at, head.count * head.use_bytes)
            for number, head in zip(numbers, heads, strict=True)
        ]
        return b"".join(self._frames.read(ranges))

    def records(self, included: bytes) -> Iterator[DigestRecords]:
        """Yield what is remembered of every report, by ascending id; `included` as in `read_included`, or nothing."""
        complete = self.complete_log().complete
        rounds = tuple(sorted(self._rounds))
        digests = {number: self._digests(number) for number in rounds}
        in_set = {number: np.zeros(len(digests[number]), dtype=np.uint8) for number in rounds}
        wanted = np.flatnonzero(np.frombuffer(included, dtype=np.uint8))
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
        _, numbers = self._rounds[round_number].columns()
        heads = read_heads(self._frames, numbers.tolist(), self._log_key)
        ranges = [
            FrameRange(number, head.digest_at(0), head.count * Digest.SIZE)
            for number, head in zip(numbers.tolist(), heads, strict=True)
        ]
        return np.frombuffer(b"".join(self._frames.read(ranges)), dtype=np.uint8).reshape(-1, Digest.SIZE)

    def close(self) -> None:
        """Let go of the frames."""
        with self._lock:
            self._frames.close()


class JoinedLog(ReportLog):
    """All lanes of one window, in their order, as one log that is only read.

    What lies in several lanes is taken once. With `is_final` the window is closed and `take` is called once: then a
    device of which two different reports lie there is left out, and what is more than a set may have.
    """

    def __init__(self, frames: Frames, window_id: WindowId, log_key: bytes, *, is_final: bool) -> None:
        super().__init__(frames, window_id, log_key, 0)
        self.is_final = is_final
        self.left_out = (0, 0)
        """How many devices sent two different reports, and how many reports there are too many; once it is final."""
        self._lanes: dict[int, Frames] = {}

    @property
    def length(self) -> int:
        """See `Frames.length`: of all lanes."""
        return sum(frames.length for frames in self._lanes.values())

    def take(self, lanes: Mapping[int, Frames]) -> None:
        """Take what lies in lanes and was not taken yet; raises StoreError as `Frames.columns`."""
        digests: dict[int, list[NDArray[np.uint8]]] = {}
        copies: dict[int, list[Copies]] = {}
        with self._lock:
            for lane, fresh in lanes.items():
                frames = self._lanes.setdefault(lane, fresh)
                for alike in _by_round(frames.columns()):
                    self._index.expected = frames.expected
                    number = alike[0].head.round
                    copies.setdefault(number, []).append(self._index.join(*self._columns(alike), alike[0].head.round))
                    if self.is_final:
                        digests.setdefault(number, []).append(_digests_of(alike))
            if self.is_final:
                for number, pairs in copies.items():
                    of_round = np.concatenate(digests[number])
                    slots, held, came = (np.concatenate(column) for column in zip(*pairs, strict=True))
                    self._index.leave_out(slots[(of_round[held] != of_round[came]).any(axis=1)])
                self.left_out = self._index.left_out_count, self._index.limit()

    def close(self) -> None:
        """See `ReportLog.close`."""
        for frames in self._lanes.values():
            frames.close()


def _digests_of(frames: Sequence[ReadFrame]) -> NDArray[np.uint8]:
    """Return the digests of the instalments in some frames, n x 32."""
    joined = b"".join([frame.head.split_columns(frame.columns)[2] for frame in frames])
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, Digest.SIZE)


def _by_round(frames: Iterable[ReadFrame]) -> Iterator[list[ReadFrame]]:
    """Yield frames of one round together, as many as have `_ROWS_AT_ONCE` rows."""
    waiting: dict[int, list[ReadFrame]] = {}
    rows: Counter[int] = Counter()
    for frame in frames:
        number = frame.head.round
        waiting.setdefault(number, []).append(frame)
        rows[number] += frame.head.count
        if rows[number] >= _ROWS_AT_ONCE:
            yield waiting.pop(number)
            del rows[number]
    yield from waiting.values()


def _alike(runs: Sequence[InstalmentRun]) -> list[list[InstalmentRun]]:
    """Return the runs of one round as they go into frames: sizes alike, and not more rows than a frame has."""
    frames: list[list[InstalmentRun]] = []
    shape, rows = (-1, -1, -1), 0
    for run in runs:
        found = run.public_bytes, run.part_bytes, run.use_bytes
        for piece in _cut_up(run):
            if shape != found or rows + len(piece) > MOST_ROWS:
                frames.append([])
                shape, rows = found, 0
            frames[-1].append(piece)
            rows += len(piece)
    return frames


def _cut_up(run: InstalmentRun) -> list[InstalmentRun]:
    if len(run) <= MOST_ROWS:
        return [run]
    places = np.arange(len(run))
    return [run.only(places[start : start + MOST_ROWS]) for start in range(0, len(run), MOST_ROWS)]
