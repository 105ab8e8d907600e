"""The report logs of one store: which shard of which window is written here, groups of instalments, what a window
leaves.

Run by the store's writer thread; `digest` and `complete` by any. Knows window states only as it is told, and not where
frames lie (frame_homes).
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from numpy.typing import NDArray

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.errors import (
    Damage,
    DamagedError,
    DamagedFrameError,
    FencedError,
    StoreAwayError,
    StoreError,
    UnknownWriteError,
)
from fleetcount_aggregator.storage.frames import LEAVES, LogBackend, LogState
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.report_log import ReportLog

GroupAnswer = list[bytes] | StoreError
"""What became of one list of runs of a group: `StoreOutcome` bytes, run by run."""

Shard = tuple[WindowId, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What of a run lies in one shard: the run's number in its group, and where in the run it lay."""

    number: int
    shard: int
    run: InstalmentRun
    places: NDArray[np.int64] | slice


class ReportLogs:
    """All logs of a store. `keys`: under what the share parts of each window are sealed.

    A shard is written by who took it (`take`); who is `alone` takes all of a window with its first instalment.
    """

    def __init__(self, backend: LogBackend, keys: DataKeys, *, alone: bool = True) -> None:
        self.backend = backend
        self._keys = keys
        self._alone = alone
        self._logs: dict[Shard, ReportLog] = {}
        """Those that hold something, by window and shard."""
        self._epochs: dict[Shard, int] = {}
        """The shards this store owns."""
        self._counts: dict[WindowId, int] = {}
        self._whole: dict[WindowId, CompleteReports] = {}
        self._noted: dict[WindowId, int] = {}
        self._damaged: dict[WindowId, Damage] = {}
        self._adrift: set[WindowId] = set()
        """Windows of which what is held may not be what lies there: all is read back before it is used again."""
        self._lock = threading.RLock()
        """Held while logs are found and read back, by whichever thread asks first."""

    # Which shards are here.

    def take(self, window_id: WindowId, shard: int = 0, epoch: int = 0) -> None:
        """Read a shard back and write it from now on, under an epoch.

        Raises:
            FencedError: another epoch is in force.
            DamagedError: it is damaged; the text names the place.
        """
        self.give_up(window_id, shard)
        log = self._read_back(window_id, shard, epoch)
        with self._lock:
            self._epochs[window_id, shard] = epoch
            if log is not None:
                self._logs[window_id, shard] = log

    def give_up(self, window_id: WindowId, shard: int) -> None:
        """Write a shard no more, and forget what is held of it."""
        with self._lock:
            self._epochs.pop((window_id, shard), None)
            log = self._logs.pop((window_id, shard), None)
            if log is not None:
                log.close()

    def writes(self, window_id: WindowId, shard: int) -> bool:
        """Whether a shard is written here, as far as this process knows."""
        return (window_id, shard) in self._epochs

    def shard_count(self, window_id: WindowId) -> int:
        """Return into how many shards a window is cut."""
        if window_id not in self._counts and (count := self.backend.shard_count(window_id)):
            self._counts[window_id] = count
        return self._counts.get(window_id, 1)

    def _read_back(self, window_id: WindowId, shard: int, epoch: int | None) -> ReportLog | None:
        """Read a log back, for seconds where it is large, so not under the lock.

        Raises:
            DamagedError: it is damaged; from now on nothing is written to the window or read of it.
        """
        self._check(window_id)
        log_key = self._keys.of(window_id).log_key
        try:
            return ReportLog.open(self.backend.frames(window_id, log_key, shard, epoch), window_id, log_key)
        except DamagedFrameError as error:
            damage = self._damaged[window_id] = Damage(table="log", what=str(error), window_id=window_id)
            raise DamagedError(damage) from error

    def open(self, states: Sequence[LogState]) -> list[Damage]:
        """Read back everything of a store that nobody else has; also of an ended window whose purge a crash has cut
        off.

        Returns which are damaged, or missing though instalments were promised, or without their key: they are left as
        they are, and nothing is written to them or read from them.

        Raises:
            StoreError: a server is away, which is no damage.
        """
        self.backend.know(states)
        for state in states:
            if not self._alone or (state.ended and not self.backend.holds(state.window_id)):
                continue  # Who is not alone has nothing until it takes it.
            try:
                self._keys.of(state.window_id)
            except StoreAwayError:
                raise
            except StoreError as error:
                self._damaged[state.window_id] = Damage(table="log", what=str(error), window_id=state.window_id)
                continue
            with suppress(DamagedError):
                self._seize(state.window_id)
                self._noted[state.window_id] = state.durable_length
        return list(self._damaged.values())

    def _check(self, window_id: WindowId) -> None:
        if window_id in self._damaged:
            raise DamagedError(self._damaged[window_id])

    def _own(self, window_id: WindowId, *, first: bool = False) -> None:
        """Have all of a window here, as who is alone does: with its `first` instalment, and again after a lost answer.

        Raises:
            StoreError: it cannot be read back now; then nothing of it may be used.
        """
        with self._lock:
            if self._alone and (window_id in self._adrift or (first and (window_id, 0) not in self._epochs)):
                self._seize(window_id)

    def _seize(self, window_id: WindowId) -> None:
        self._adrift.add(window_id)
        try:
            for shard, epoch in self.backend.seize(window_id).items():
                self.take(window_id, shard, epoch)
        except DamagedError:
            self._adrift.discard(window_id)  # As it is said of the window from now on.
            raise
        self._adrift.discard(window_id)

    def _to_read(self, window_id: WindowId, shard: int, *, whole: bool = False) -> ReportLog | None:
        """Return the log of a shard, of a closed window also that of another owner; None where there is nothing.

        With `whole`, what is held of a closed shard is returned only if it is all that lies there, and no more.
        """
        self._check(window_id)
        self._own(window_id)
        key = window_id, shard
        with self._lock:
            log, mine = self._logs.get(key), self._alone or key in self._epochs
        if whole and not self._alone and (log is None or log.ends_elsewhere()):
            # Its last append is under way here while another process has closed it, or another has written it since.
            if log is not None:
                self.give_up(window_id, shard)
            log, mine = None, False
        if log is None and not mine and self.backend.holds(window_id):
            log = self._read_back(window_id, shard, None)
            with self._lock:
                # What its owner goes on writing would be old at once.
                if log is not None and log.is_final and key not in self._epochs:
                    log = self._logs.setdefault(key, log)
        return log

    def _to_write(self, window_id: WindowId, shard: int, expected: int) -> ReportLog:
        """Return the log of an open window's shard."""
        self._check(window_id)
        with self._lock:
            epoch = self._epochs.get((window_id, shard))
            if epoch is None:
                raise FencedError(f"shard {shard} of window {window_id.hex()} is not written by this process")
            log = self._logs.get((window_id, shard))
            if log is None:
                log_key = self._keys.of(window_id).log_key
                frames = self.backend.frames(window_id, log_key, shard, epoch)
                log = self._logs[window_id, shard] = ReportLog(frames, window_id, log_key, expected)
            return log

    def _held(self, window_id: WindowId) -> list[ReportLog]:
        """Return the logs of a window that are here, in the order of their shards."""
        with self._lock:
            self._own(window_id)
            return [self._logs[key] for key in sorted(key for key in self._logs if key[0] == window_id)]

    def _all(self, window_id: WindowId) -> list[ReportLog]:
        """Return the logs of a closed window, those of others read back, in the order of their shards."""
        if self._alone:
            return self._held(window_id)
        logs = [self._to_read(window_id, shard, whole=True) for shard in range(self.shard_count(window_id))]
        return [log for log in logs if log is not None]

    def unnoted(self) -> dict[WindowId, int]:
        """Return the durable lengths of the logs that grew since `note`, where they are to be noted."""
        if not self.backend.counts_bytes:
            return {}
        return {
            window: log.length for (window, _), log in self._logs.items() if log.length != self._noted.get(window, 0)
        }

    def note(self, lengths: Mapping[WindowId, int]) -> None:
        """Take it that these lengths are remembered."""
        self._noted.update(lengths)

    def close(self) -> None:
        """Close every log."""
        for log in self._logs.values():
            log.close()
        self.backend.close()

    # Writing.

    def add(self, groups: Sequence[Sequence[InstalmentRun]], is_open: Callable[[WindowId], bool]) -> list[GroupAnswer]:
        """Decide and store a group of lists of runs, with one sync a shard; one answer a list.

        A list with an instalment of a shard that cannot be written fails as a whole; the others do not.
        """
        runs = [run for group in groups for run in group]
        outcomes = [np.empty(len(run), dtype=np.uint8) for run in runs]
        by_shard: dict[Shard, list[_Piece]] = {}
        for number, run in enumerate(runs):
            for piece in self._cut(number, run):
                by_shard.setdefault((run.window_id, piece.shard), []).append(piece)
        opened = {window_id: is_open(window_id) for window_id in {run.window_id for run in runs}}
        for window_id in [window_id for window_id, one in opened.items() if one]:
            with suppress(DamagedError):  # Its own lists alone fail, in `_decide_all`.
                self._own(window_id, first=True)
        failed: dict[int, StoreError] = {}
        deciding: dict[Shard, ReportLog] = {}
        try:
            self._decide_all(by_shard, opened, deciding, outcomes, failed)
        except BaseException:
            for log in deciding.values():
                log.drop()
            raise
        for key, log in deciding.items():
            if (failure := self._write(*key, log)) is not None:
                failed.update((piece.number, failure) for piece in by_shard[key])
        return _split(groups, [one.tobytes() for one in outcomes], failed)

    def _decide_all(
        self,
        by_shard: Mapping[Shard, Sequence[_Piece]],
        opened: Mapping[WindowId, bool],
        deciding: dict[Shard, ReportLog],
        outcomes: Sequence[NDArray[np.uint8]],
        failed: dict[int, StoreError],
    ) -> None:
        """Decide pieces shard by shard: which logs took something, every outcome by its run, and why a run failed."""
        for (window_id, shard), pieces in by_shard.items():
            is_open, runs = opened[window_id], [piece.run for piece in pieces]
            try:
                log = self._to_write(window_id, shard, runs[0].expected) if is_open else self._to_read(window_id, shard)
                if log is None:
                    decided = [self._decide_ended(run) for run in runs]
                else:
                    deciding[window_id, shard] = log
                    decided = log.decide(runs, is_open=is_open)
            except StoreError as error:
                # What lies of one window and cannot be read is no matter of the others in the group.
                if (undecided := deciding.pop((window_id, shard), None)) is not None:
                    undecided.drop()
                failed.update((piece.number, error) for piece in pieces)
                continue
            for piece, outcome in zip(pieces, decided, strict=True):
                outcomes[piece.number][piece.places] = np.frombuffer(outcome, dtype=np.uint8)

    def _cut(self, number: int, run: InstalmentRun) -> Iterator[_Piece]:
        """Yield a run shard by shard: shards are ranges of the first byte of a report id."""
        count = self.shard_count(run.window_id)
        if count == 1:
            yield _Piece(number, 0, run, slice(None))
            return
        shards = np.frombuffer(run.report_ids, dtype=np.uint8)[:: ReportId.SIZE] // (LEAVES // count)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            yield _Piece(number, shard, run.only(places), places)

    def _decide_ended(self, run: InstalmentRun) -> bytes:
        ended, size = self.backend.ended(run.window_id), Digest.SIZE
        outcomes: list[StoreOutcome] = []
        for at in range(len(run)):
            held = ended.find(ReportId(run.report_ids[at * ReportId.SIZE : (at + 1) * ReportId.SIZE]), run.round)
            came = run.digests[at * size : (at + 1) * size], run.certificates[at * size : (at + 1) * size]
            same = held is not None and (held.digest, held.certificate) == came
            outcomes.append(
                StoreOutcome.CLOSED if held is None else StoreOutcome.SAME if same else StoreOutcome.OTHER_BYTES
            )
        return bytes(outcomes)

    def _write(self, window_id: WindowId, shard: int, log: ReportLog) -> StoreError | None:
        """Make durable what a log took, though it were given up meanwhile; return why it could not be."""
        try:
            log.write()
        except (FencedError, UnknownWriteError) as error:
            # Another owner, or an answer that was lost: what lies there decides, and what is held is not it.
            if self._logs.get((window_id, shard)) is log:
                self.give_up(window_id, shard)
            if self._alone:
                self._adrift.add(window_id)
            return error
        except StoreError as error:
            return error
        return None

    # Reading.

    def digest(self, window_id: WindowId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        log = self._to_read(window_id, report_id[0] // (LEAVES // self.shard_count(window_id)))
        if log is not None:
            return log.digest(report_id, round_number)
        held = self.backend.ended(window_id).find(report_id, round_number)
        return None if held is None else held.digest

    def length(self, window_id: WindowId) -> int:
        """Return how much of a window's log is durable: bytes of its file."""
        return sum(log.length for log in self._held(window_id))

    def incomplete(self, window_id: WindowId) -> int:
        """Return how many reports of a window lack an instalment."""
        return sum(log.incomplete for log in self._all(window_id))

    def complete(self, window_id: WindowId, *, closed: bool) -> CompleteReports:
        """See `Store.complete_reports`: of an open window those of the shards that are written here."""
        self._check(window_id)
        with self._lock:
            if window_id in self._whole:
                return self._whole[window_id]
        shards = [log.complete_shard() for log in (self._all(window_id) if closed else self._held(window_id))]
        log_key = self._keys.of(window_id).log_key if shards else b""
        whole = CompleteReports(self.backend.reader(window_id), window_id, log_key, shards)
        if closed and shards:
            with self._lock:
                whole = self._whole.setdefault(window_id, whole)
        return whole

    def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        return b"".join([log.reports_of(devices) for log in self._all(window_id)])

    def key_uses(self, window_id: WindowId) -> bytes:
        """See `Store.key_uses`."""
        return b"".join([log.key_uses() for log in self._all(window_id)])

    @property
    def memory_bytes(self) -> int:
        """Bytes of all indexes."""
        return sum(log.memory_bytes for log in self._logs.values())

    # The end of a window.

    def purge(self, window_id: WindowId, included: bytes) -> None:
        """Keep the digests of an ended window and delete its frames; doing it again changes nothing.

        `included` is the sealed set by position, or nothing. The digests are durable before the frames go; of a damaged
        log none are kept: its reports are not known any more.
        """
        with self._lock:
            logs = [] if self._damaged.pop(window_id, None) else self._all(window_id)
            if logs:
                self.backend.ended(window_id).write(sum(log.row_count for log in logs), _records(logs, included))
            self.evict(window_id)
            self.backend.drop(window_id)

    def forget(self, window_id: WindowId) -> None:
        """Delete what is left of an ended window; doing it again changes nothing."""
        self.backend.ended(window_id).delete()

    def evict(self, window_id: WindowId) -> None:
        """Evict an ended window: hold nothing of it, and write none of its shards."""
        with self._lock:
            for _, shard in [key for key in {*self._logs, *self._epochs} if key[0] == window_id]:
                self.give_up(window_id, shard)
            self._adrift.discard(window_id)
            self._whole.pop(window_id, None)
            self._counts.pop(window_id, None)
            self._noted.pop(window_id, None)


def _records(logs: Sequence[ReportLog], included: bytes) -> Iterator[bytes]:
    """Yield what is remembered of every report by ascending id: shards are ranges of ids."""
    start = 0
    for log in logs:
        end = start + log.complete_count
        yield from (block.encode() for block in log.records(included[start:end]))
        start = end


def _split(
    groups: Sequence[Sequence[InstalmentRun]], outcomes: Sequence[bytes], failures: Mapping[int, StoreError]
) -> list[GroupAnswer]:
    """Return the outcomes list by list, or why a list failed; `failures` are by the number of the run."""
    answers: list[GroupAnswer] = []
    start = 0
    for runs in groups:
        numbers = range(start, start + len(runs))
        failed = [failures[number] for number in numbers if number in failures] if failures else []
        answers.append(failed[0] if failed else list(outcomes[start : numbers.stop]))
        start = numbers.stop
    return answers
