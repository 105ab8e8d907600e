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
from fleetcount_aggregator.storage.store import InstalmentRow, Outcome, StoreError

__all__ = ["GroupAnswer", "LogState", "ReportLogs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What the store knows of a task when it starts: how long its log was when intake closed, None before."""

    task_id: TaskId
    ended: bool
    closed_length: int | None


GroupAnswer = list[Outcome] | StoreError
"""What became of one list of instalments of a group."""


class ReportLogs:
    """All logs beside one database file. `log_key` is what share parts are sealed under (`at_rest.report_log_key`)."""

    def __init__(self, database: Path, log_key: bytes) -> None:
        self._directory = database.parent
        self._stem = database.stem
        self._log_key = log_key
        self._logs: dict[TaskId, ReportLog] = {}

    def open(self, states: Sequence[LogState]) -> None:
        """Read every log that is there, also one of an ended task whose purge a crash has cut off.

        Raises:
            StoreError: a log is damaged, or missing though instalments were promised.
        """
        for state in states:
            path = self._log_path(state.task_id)
            if path.exists():
                length = None if state.ended else state.closed_length
                log = ReportLog.open(path, state.task_id, self._log_key, length)
                if log is not None:
                    self._logs[state.task_id] = log
            elif state.closed_length and not state.ended:
                raise StoreError(f"{path} is missing: intake closed with {state.closed_length} bytes")

    def close(self) -> None:
        """Let go of every file."""
        for log in self._logs.values():
            log.close()

    def _log_path(self, task_id: TaskId) -> Path:
        return self._directory / f"{self._stem}.{task_id.hex()}.log"

    def digest_file(self, task_id: TaskId) -> DigestFile:
        """Return what is left of an ended task."""
        return DigestFile(self._directory / f"{self._stem}.{task_id.hex()}.digests", task_id)

    # Writing.

    def add(self, groups: Sequence[Sequence[InstalmentRow]], is_open: Callable[[TaskId], bool]) -> list[GroupAnswer]:
        """Decide and store a group of lists of instalments, with one sync a task; one answer a list.

        A list with an instalment of a log that cannot be written fails as a whole; the others do not.
        """
        rows = [row for group in groups for row in group]
        task_ids = list({row.task_id for row in rows})
        try:
            outcomes = self._decide_all(task_ids, rows, is_open)
        except BaseException:
            for task_id in task_ids:
                if task_id in self._logs:
                    self._logs[task_id].drop()
            raise
        return _split(groups, outcomes, self._write(task_ids))

    def _decide_all(
        self, task_ids: Sequence[TaskId], rows: Sequence[InstalmentRow], is_open: Callable[[TaskId], bool]
    ) -> list[Outcome]:
        """Return what becomes of each instalment of a group."""
        if len(task_ids) == 1:
            return self._decide(task_ids[0], rows, is_open=is_open(task_ids[0]))
        by_task: dict[TaskId, list[int]] = {task_id: [] for task_id in task_ids}
        for place, row in enumerate(rows):
            by_task[row.task_id].append(place)
        outcomes = [Outcome.CLOSED] * len(rows)
        for task_id, places in by_task.items():
            decided = self._decide(task_id, [rows[place] for place in places], is_open=is_open(task_id))
            for place, outcome in zip(places, decided, strict=True):
                outcomes[place] = outcome
        return outcomes

    def _decide(self, task_id: TaskId, rows: Sequence[InstalmentRow], *, is_open: bool) -> list[Outcome]:
        log = self._logs.get(task_id)
        if log is None:
            if not is_open:
                return [self._decide_ended(row) for row in rows]
            log = ReportLog(self._log_path(task_id), task_id, self._log_key, rows[0].expected)
            self._logs[task_id] = log
        return log.decide(rows, is_open=is_open)

    def _decide_ended(self, row: InstalmentRow) -> Outcome:
        held = self.digest_file(row.task_id).find(row.report_id, row.round)
        if held is None:
            return Outcome.CLOSED
        same = (held.digest, held.certificate) == (row.digest, row.certificate)
        return Outcome.SAME if same else Outcome.OTHER_BYTES

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

    @property
    def memory_bytes(self) -> int:
        """Bytes of all indexes."""
        return sum(log.memory_bytes for log in self._logs.values())

    # The end of a task.

    def purge(self, task_id: TaskId, chosen: bytes) -> None:
        """Keep the digests of an ended task and delete its log; doing it again changes nothing.

        `chosen` is the sealed set by position, or nothing. The digests are durable before the log goes.
        """
        log = self._logs.get(task_id)
        if log is None:
            return
        self.digest_file(task_id).write(log.row_count, log.records(chosen))
        sync_directory(self._directory)
        del self._logs[task_id]
        log.delete()
        sync_directory(self._directory)


def _split(
    groups: Sequence[Sequence[InstalmentRow]], outcomes: Sequence[Outcome], failures: Mapping[TaskId, StoreError]
) -> list[GroupAnswer]:
    """Return the outcomes list by list, or why a list failed."""
    answers: list[GroupAnswer] = []
    start = 0
    for rows in groups:
        failed = [failures[row.task_id] for row in rows if row.task_id in failures] if failures else []
        answers.append(failed[0] if failed else list(outcomes[start : start + len(rows)]))
        start += len(rows)
    return answers
