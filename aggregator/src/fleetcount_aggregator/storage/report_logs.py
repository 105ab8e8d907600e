"""The report logs of one store: which file belongs to which task, groups of instalments, what is left after a task.

Run by the store's writer thread; `digest` and `complete` by any. Knows task states only as it is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetcount_protocol.ids import Digest, ReportId, TaskId

from fleetcount_aggregator.storage.digest_file import DigestFile
from fleetcount_aggregator.storage.log_slice import CompleteLog
from fleetcount_aggregator.storage.report_index import CompleteRows
from fleetcount_aggregator.storage.report_log import ReportLog, sync_directory
from fleetcount_aggregator.storage.store import InstalmentRun, StoreError, StoreOutcome

__all__ = ["GroupAnswer", "LogState", "ReportLogs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What the store knows of a task when it starts: so many bytes of its log were durable, at least.

    `closed_length`: how long it was when intake closed, None before.
    """

    task_id: TaskId
    ended: bool
    durable_length: int
    closed_length: int | None
    set_sealed: bool


GroupAnswer = list[bytes] | StoreError
"""What became of one list of runs of a group: `StoreOutcome` bytes, run by run."""


class ReportLogs:
    """All logs beside one database file. `log_key` is what share parts are sealed under (`at_rest.report_log_key`)."""

    def __init__(self, database: Path, log_key: bytes) -> None:
        self._directory = database.parent
        self._stem = database.stem
        self._log_key = log_key
        self._logs: dict[TaskId, ReportLog] = {}
        self._noted: dict[TaskId, int] = {}

    def given_up(self, states: Sequence[LogState]) -> list[TaskId]:
        """Return the tasks whose logs the operator has put aside, before their set was sealed: they can only end."""
        return [
            state.task_id
            for state in states
            if not state.ended
            and not state.set_sealed
            and not self._log_path(state.task_id).exists()
            and self._lost_path(state.task_id).exists()
        ]

    def open(self, states: Sequence[LogState]) -> None:
        """Read every log that is there, also one of an ended task whose purge a crash has cut off.

        Raises:
            StoreError: a log is damaged, or missing though instalments were promised.
        """
        for state in states:
            path, durable = self._log_path(state.task_id), 0 if state.ended else state.durable_length
            if path.exists():
                closed = None if state.ended else state.closed_length
                log = ReportLog.open(path, state.task_id, self._log_key, closed, durable)
                if log is not None:
                    self._logs[state.task_id] = log
                    self._noted[state.task_id] = state.durable_length
            elif state.closed_length and not state.ended:
                raise StoreError(f"{path} is missing: intake closed with {state.closed_length} bytes")
            elif durable:
                raise StoreError(f"{path} is missing: {durable} bytes of it were durable, and have receipts")

    def unnoted(self) -> dict[TaskId, int]:
        """Return the durable lengths of the logs that grew since `note`."""
        return {task: log.length for task, log in self._logs.items() if log.length != self._noted.get(task, 0)}

    def note(self, lengths: Mapping[TaskId, int]) -> None:
        """Take it that these lengths are remembered."""
        self._noted.update(lengths)

    def close(self) -> None:
        """Let go of every file."""
        for log in self._logs.values():
            log.close()

    def _log_path(self, task_id: TaskId) -> Path:
        return self._directory / f"{self._stem}.{task_id.hex()}.log"

    def _lost_path(self, task_id: TaskId) -> Path:
        """Where the operator puts a log that is lost, to end its task."""
        return self._directory / f"{self._stem}.{task_id.hex()}.log.lost"

    def digest_file(self, task_id: TaskId) -> DigestFile:
        """Return what is left of an ended task."""
        return DigestFile(self._directory / f"{self._stem}.{task_id.hex()}.digests", task_id)

    # Writing.

    def add(self, groups: Sequence[Sequence[InstalmentRun]], is_open: Callable[[TaskId], bool]) -> list[GroupAnswer]:
        """Decide and store a group of lists of runs, with one sync a task; one answer a list.

        A list with an instalment of a log that cannot be written fails as a whole; the others do not.
        """
        runs = [run for group in groups for run in group]
        by_task: dict[TaskId, list[int]] = {}
        for place, run in enumerate(runs):
            by_task.setdefault(run.task_id, []).append(place)
        outcomes = [b""] * len(runs)
        try:
            for task_id, places in by_task.items():
                decided = self._decide(task_id, [runs[place] for place in places], is_open=is_open(task_id))
                for place, outcome in zip(places, decided, strict=True):
                    outcomes[place] = outcome
        except BaseException:
            for task_id in by_task:
                if task_id in self._logs:
                    self._logs[task_id].drop()
            raise
        return _split(groups, outcomes, self._write(list(by_task)))

    def _decide(self, task_id: TaskId, runs: Sequence[InstalmentRun], *, is_open: bool) -> list[bytes]:
        log = self._logs.get(task_id)
        if log is None:
            if not is_open:
                return [self._decide_ended(run) for run in runs]
            log = ReportLog(self._log_path(task_id), task_id, self._log_key, runs[0].expected)
            self._logs[task_id] = log
        return log.decide(runs, is_open=is_open)

    def _decide_ended(self, run: InstalmentRun) -> bytes:
        file, size = self.digest_file(run.task_id), Digest.SIZE
        outcomes: list[StoreOutcome] = []
        for at in range(len(run)):
            held = file.find(ReportId(run.report_ids[at * ReportId.SIZE : (at + 1) * ReportId.SIZE]), run.round)
            came = run.digests[at * size : (at + 1) * size], run.certificates[at * size : (at + 1) * size]
            same = held is not None and (held.digest, held.certificate) == came
            outcomes.append(
                StoreOutcome.CLOSED if held is None else StoreOutcome.SAME if same else StoreOutcome.OTHER_BYTES
            )
        return bytes(outcomes)

    def _write(self, task_ids: Sequence[TaskId]) -> dict[TaskId, StoreError]:
        failures: dict[TaskId, StoreError] = {}
        for task_id in task_ids:
            log = self._logs.get(task_id)
            if log is None:
                continue
            try:
                log.write()
            except StoreError as error:
                failures[task_id] = error
        return failures

    # Reading.

    def digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        log = self._logs.get(task_id)
        if log is not None:
            return log.digest(report_id, round_number)
        held = self.digest_file(task_id).find(report_id, round_number)
        return None if held is None else held.digest

    def length(self, task_id: TaskId) -> int:
        """Return how many bytes of a task's log are durable."""
        log = self._logs.get(task_id)
        return 0 if log is None else log.length

    def incomplete(self, task_id: TaskId) -> int:
        """Return how many reports of a task lack an instalment."""
        log = self._logs.get(task_id)
        return 0 if log is None else log.incomplete

    def complete(self, task_id: TaskId, *, closed: bool) -> CompleteLog:
        """See `Store.complete_reports`."""
        log = self._logs.get(task_id)
        if log is not None:
            return log.complete(closed=closed)
        return CompleteLog(
            path=self._log_path(task_id),
            task_id=task_id,
            log_key=self._log_key,
            complete=CompleteRows.none(),
            frames={},
        )

    def reports_of(self, task_id: TaskId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        log = self._logs.get(task_id)
        return b"" if log is None else log.reports_of(devices)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all indexes."""
        return sum(log.memory_bytes for log in self._logs.values())

    # The end of a task.

    def holds(self, task_id: TaskId) -> bool:
        """Whether there is something of a task that `purge` deletes."""
        return task_id in self._logs or self._lost_path(task_id).exists()

    def purge(self, task_id: TaskId, chosen: bytes) -> None:
        """Keep the digests of an ended task and delete its log; doing it again changes nothing.

        `chosen` is the sealed set by position, or nothing. The digests are durable before the log goes.
        """
        self._lost_path(task_id).unlink(missing_ok=True)
        log = self._logs.get(task_id)
        if log is None:
            return
        self.digest_file(task_id).write(log.row_count, log.records(chosen))
        sync_directory(self._directory)
        del self._logs[task_id]
        self._noted.pop(task_id, None)
        log.delete()
        sync_directory(self._directory)


def _split(
    groups: Sequence[Sequence[InstalmentRun]], outcomes: Sequence[bytes], failures: Mapping[TaskId, StoreError]
) -> list[GroupAnswer]:
    """Return the outcomes list by list, or why a list failed."""
    answers: list[GroupAnswer] = []
    start = 0
    for runs in groups:
        failed = [failures[run.task_id] for run in runs if run.task_id in failures] if failures else []
        answers.append(failed[0] if failed else list(outcomes[start : start + len(runs)]))
        start += len(runs)
    return answers
