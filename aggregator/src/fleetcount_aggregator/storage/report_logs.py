"""The report logs of one store: what of each window is written here, groups of instalments, what a window leaves.

Beside a file a window has one log, written here. Where several processes share the windows each writes a lane of its
own, and what lies in a window is all of its lanes, joined. Run by the store's writer thread; `digests` and `complete`
by any. Knows window states only as it is told, and not where frames lie (`frames`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from fleetcount_protocol.ids import Digest, ReportId, WindowId

from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.errors import (
    Damage,
    DamagedError,
    DamagedFrameError,
    StoreAwayError,
    StoreBusyError,
    StoreError,
    UnknownWriteError,
)
from fleetcount_aggregator.storage.frames import LogBackend, LogState
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.report_log import JoinedLog, ReportLog

Result = TypeVar("Result")
GroupAnswer = list[bytes] | StoreError
"""What became of one list of runs of a group: `StoreOutcome` bytes, run by run."""


class ReportLogs:
    """All logs of a store. `keys`: under what the share parts of each window are sealed.

    Who is `alone` looks through everything when it is opened; others read a window's lanes when they need them.
    """

    def __init__(self, backend: LogBackend, keys: DataKeys, *, alone: bool = True) -> None:
        self.backend = backend
        self._keys = keys
        self._alone = alone
        self._logs: dict[WindowId, ReportLog] = {}
        """What is written here, where it holds something."""
        self._joined: dict[WindowId, JoinedLog] = {}
        self._whole: dict[WindowId, CompleteReports] = {}
        self._noted: dict[WindowId, int] = {}
        self._damaged: dict[WindowId, Damage] = {}
        self._lock = threading.RLock()
        self._joining = threading.RLock()
        """Held while lanes are read, for seconds where they are large: nobody who writes waits for that."""

    # What is here.

    def open(self, states: Sequence[LogState]) -> list[Damage]:
        """Read back everything of a store that nobody else has; also of an ended window whose purge a crash has cut
        off.

        Returns which are damaged, or missing though instalments were promised, or without their key: they are left as
        they are, and nothing is written to them or read from them.

        Raises:
            StoreError: a server is away, which is no damage.
        """
        self.backend.expect_lengths(states)
        for state in states:
            if not self._alone or (state.ended and not self.backend.holds(state.window_id)):
                continue
            try:
                self._keys.of(state.window_id)
            except StoreAwayError:
                raise
            except StoreError as error:
                self._damaged[state.window_id] = Damage(table="log", what=str(error), window_id=state.window_id)
                continue
            with suppress(DamagedError):
                self._read_back(state.window_id)
                self._noted[state.window_id] = state.durable_length
        return list(self._damaged.values())

    def writes(self, window_id: WindowId) -> bool:
        """Whether something of a window was written here."""
        return window_id in self._logs

    def _read_back(self, window_id: WindowId) -> None:
        """Read back what lies of a window.

        Raises:
            DamagedError: it is damaged; from now on nothing is written to the window or read of it.
        """
        if self.backend.shared:
            self._join(window_id)
            return
        log_key = self._keys.of(window_id).log_key
        log = self._unless_damaged(
            window_id, lambda: ReportLog.open(self.backend.frames(window_id, log_key), window_id, log_key)
        )
        if log is not None:
            self._logs[window_id] = log

    def _unless_damaged(self, window_id: WindowId, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except DamagedFrameError as error:
            damage = self._damaged[window_id] = Damage(table="log", what=str(error), window_id=window_id)
            raise DamagedError(damage) from error

    def _check(self, window_id: WindowId) -> None:
        if window_id in self._damaged:
            raise DamagedError(self._damaged[window_id])

    def _join(self, window_id: WindowId) -> JoinedLog | None:
        """Return all lanes of a window as they are now; None where there is nothing.

        What lies in a closed window is joined from the beginning, so that every process finds the same.
        """
        with self._joining:
            if not self.backend.holds(window_id):
                self.evict(window_id)  # Another process has ended and purged it.
                return None
            held = self._joined.get(window_id)
            if held is not None and held.is_final:
                return held
            # Before the lanes are looked for: of a closed window there comes no other.
            final = self.backend.is_closed(window_id)
            log_key = self._keys.of(window_id).log_key
            lanes = {lane: self.backend.frames(window_id, log_key, lane) for lane in self.backend.lanes(window_id)}
            if not lanes:
                return None
            if held is None or final:
                held = JoinedLog(next(iter(lanes.values())), window_id, log_key, is_final=final)
            joined = held
            self._unless_damaged(window_id, lambda: joined.take(lanes))
            with self._lock:
                self._joined[window_id] = joined
                if final and (own := self._logs.pop(window_id, None)) is not None:
                    own.close()
            return joined

    def _to_read(self, window_id: WindowId) -> ReportLog | None:
        """Return all that lies of a window; None where there is nothing."""
        self._check(window_id)
        return self._join(window_id) if self.backend.shared else self._logs.get(window_id)

    def _held(self, window_id: WindowId) -> ReportLog | None:
        """Return all that is known of a window; of a damaged one, to who is alone and ends it, nothing."""
        if self._alone and window_id in self._damaged:
            return None
        return self._to_read(window_id)

    def _to_write(self, window_id: WindowId, expected: int) -> ReportLog:
        """Return what is written here of an open window."""
        self._check(window_id)
        with self._lock:
            log = self._logs.get(window_id)
            if log is None:
                log_key = self._keys.of(window_id).log_key
                frames = self.backend.frames(window_id, log_key)
                log = self._logs[window_id] = ReportLog(frames, window_id, log_key, expected)
            return log

    def unnoted(self) -> dict[WindowId, int]:
        """Return the durable lengths of the logs that grew since `note`, where they are to be noted."""
        if not self.backend.counts_bytes:
            return {}
        return {window: log.length for window, log in self._logs.items() if log.length != self._noted.get(window, 0)}

    def note(self, lengths: Mapping[WindowId, int]) -> None:
        """Take it that these lengths are remembered."""
        self._noted.update(lengths)

    def close(self) -> None:
        """Close every log."""
        for log in (*self._logs.values(), *self._joined.values()):
            log.close()
        self.backend.close()

    # Writing.

    def add(self, groups: Sequence[Sequence[InstalmentRun]], is_open: Callable[[WindowId], bool]) -> list[GroupAnswer]:
        """Decide and store a group of lists of runs, with one sync a window; one answer a list.

        A list with an instalment of a window that cannot be written fails as a whole; the others do not.
        """
        runs = [run for group in groups for run in group]
        outcomes = [b""] * len(runs)
        by_window: dict[WindowId, list[int]] = {}
        for number, run in enumerate(runs):
            by_window.setdefault(run.window_id, []).append(number)
        failed: dict[int, StoreError] = {}
        deciding: dict[WindowId, ReportLog] = {}
        try:
            for window_id, numbers in by_window.items():
                opened, ours = is_open(window_id), [runs[number] for number in numbers]
                try:
                    log = self._to_write(window_id, ours[0].expected) if opened else self._to_read(window_id)
                    if log is not None:
                        deciding[window_id] = log
                        decided = log.decide(ours, is_open=opened)
                    else:
                        decided = [self._decide_ended(run) for run in ours]
                except StoreError as error:
                    # What lies of one window and cannot be read is no matter of the others in the group.
                    if (undecided := deciding.pop(window_id, None)) is not None:
                        undecided.drop()
                    failed |= dict.fromkeys(numbers, error)
                    continue
                for number, outcome in zip(numbers, decided, strict=True):
                    outcomes[number] = outcome
        except BaseException:
            for log in deciding.values():
                log.drop()
            raise
        for window_id, log in deciding.items():
            if (failure := self._write(window_id, log)) is not None:
                failed |= dict.fromkeys(by_window[window_id], failure)
        return _split(groups, outcomes, failed)

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

    def _write(self, window_id: WindowId, log: ReportLog) -> StoreError | None:
        """Make durable what a log took; return why it could not be."""
        try:
            log.write()
        except (StoreBusyError, UnknownWriteError) as error:
            # The lane is closed, or its end is not known any more: what lies in it lies there, and another is begun.
            with self._lock:
                if self._logs.get(window_id) is log:
                    self._logs.pop(window_id).close()
            return error
        except StoreError as error:
            return error
        return None

    # Reading.

    def digests(self, window_id: WindowId, report_ids: Sequence[ReportId], round_number: int) -> list[Digest | None]:
        """See `Store.instalment_digests`."""
        self._check(window_id)
        with self._lock:
            own = self._logs.get(window_id)
        if own is not None and self.backend.holds(window_id):
            known = [own.digest(report_id, round_number) for report_id in report_ids]
            if None not in known:
                return known
        log = self._to_read(window_id)
        if log is not None:
            return [log.digest(report_id, round_number) for report_id in report_ids]
        ended = self.backend.ended(window_id)
        found = [ended.find(report_id, round_number) for report_id in report_ids]
        return [None if held is None else held.digest for held in found]

    def length(self, window_id: WindowId) -> int:
        """Return how much of a window's log is durable: bytes of its file."""
        log = self._held(window_id)
        return 0 if log is None else log.length

    def incomplete(self, window_id: WindowId) -> int:
        """Return how many reports of a window lack an instalment."""
        log = self._held(window_id)
        return 0 if log is None else log.incomplete

    def left_out(self, window_id: WindowId) -> tuple[int, int]:
        """Return how many devices of a window sent two different reports, and how many reports are too many."""
        log = self._held(window_id)
        return log.left_out if isinstance(log, JoinedLog) else (0, 0)

    def complete(self, window_id: WindowId, *, closed: bool) -> CompleteReports:
        """See `Store.complete_reports`."""
        self._check(window_id)
        with self._lock:
            if window_id in self._whole:
                return self._whole[window_id]
        log = self._to_read(window_id)
        log_key = b"" if log is None else self._keys.of(window_id).log_key
        complete = None if log is None else log.complete_log()
        whole = CompleteReports(self.backend.reader(window_id), window_id, log_key, complete)
        if closed and log is not None:
            with self._lock:
                whole = self._whole.setdefault(window_id, whole)
        return whole

    def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        log = self._held(window_id)
        return b"" if log is None else log.reports_of(devices)

    def key_uses(self, window_id: WindowId) -> bytes:
        """See `Store.key_uses`."""
        log = self._held(window_id)
        return b"" if log is None else log.key_uses()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all indexes."""
        return sum(log.memory_bytes for log in (*self._logs.values(), *self._joined.values()))

    # The end of a window.

    def purge(self, window_id: WindowId, included: bytes) -> None:
        """Keep the digests of an ended window and delete its frames; doing it again changes nothing.

        `included` is the sealed set by position, or nothing. The digests are durable before the frames go; of a damaged
        log none are kept: its reports are not known any more.
        """
        with self._joining, self._lock:
            log = None if self._damaged.pop(window_id, None) else self._to_read(window_id)
            if log is not None:
                records = (block.encode() for block in log.records(included))
                self.backend.ended(window_id).write(log.row_count, records)
            self.evict(window_id)
            self.backend.drop(window_id)

    def forget(self, window_id: WindowId) -> None:
        """Delete what is left of an ended window; doing it again changes nothing."""
        self.backend.ended(window_id).delete()

    def evict(self, window_id: WindowId) -> None:
        """Evict an ended window: hold nothing of it."""
        with self._lock:
            for held in (self._logs, self._joined):
                if (log := held.pop(window_id, None)) is not None:
                    log.close()
            self._whole.pop(window_id, None)
            self._noted.pop(window_id, None)


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
