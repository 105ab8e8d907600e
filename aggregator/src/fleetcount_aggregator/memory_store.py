"""A store in memory, for tests and simulations: the same rules as the durable one, in plain dictionaries.

Outlives no process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId

from fleetcount_aggregator.states import State, StateConflictError, check_move
from fleetcount_aggregator.store import (
    PAGE,
    CompleteReport,
    InstalmentRow,
    LedgerRow,
    Outcome,
    ReportRow,
    ReportStatus,
    SessionRow,
    Step,
    StoredInstalment,
    StoreError,
    TaskChange,
    TaskRow,
    Verdict,
)

__all__ = ["MemoryStore"]

_OPEN = frozenset({State.ANNOUNCED, State.COLLECTING})


class MemoryStore:
    """Implements `Store`. Not for more than one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, SessionRow] = {}
        self._tasks: dict[TaskId, TaskRow] = {}
        self._reports: dict[TaskId, dict[ReportId, ReportRow]] = {}
        self._owners: dict[tuple[TaskId, ReportId], Digest] = {}
        self._devices: dict[tuple[TaskId, Digest], ReportId] = {}
        self._instalments: dict[tuple[TaskId, ReportId], dict[int, InstalmentRow]] = {}
        self._rejections: dict[TaskId, dict[RejectReason, int]] = {}
        self._steps: dict[tuple[TaskId, str], Step] = {}
        self._ledger: dict[TaskId, LedgerRow] = {}
        self._marks: dict[AggregatorId, int] = {}

    async def add_session(self, row: SessionRow) -> None:
        """See `Store.add_session`."""
        self._sessions.setdefault(row.session_id, row)

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """See `Store.session`."""
        return self._sessions.get(session_id)

    async def sessions_of(self, certificate: Digest, now: int) -> int:
        """See `Store.sessions_of`."""
        return sum(row.certificate == certificate and row.expiry > now for row in self._sessions.values())

    async def forget_sessions(self, expired_before: int) -> None:
        """See `Store.forget_sessions`."""
        self._sessions = {key: row for key, row in self._sessions.items() if row.expiry >= expired_before}

    async def install(self, row: TaskRow) -> TaskRow:
        """See `Store.install`."""
        return self._tasks.setdefault(row.task_id, row)

    async def tasks(self) -> Sequence[TaskRow]:
        """See `Store.tasks`."""
        return list(self._tasks.values())

    async def task(self, task_id: TaskId) -> TaskRow | None:
        """See `Store.task`."""
        return self._tasks.get(task_id)

    async def add_instalments(self, rows: Sequence[InstalmentRow]) -> Sequence[Outcome]:
        """See `Store.add_instalments`."""
        return [self._add_instalment(row) for row in rows]

    def _add_instalment(self, row: InstalmentRow) -> Outcome:
        report = (row.task_id, row.report_id)
        held = self._instalments.get(report, {})
        if row.round in held:
            same = held[row.round].digest == row.digest and held[row.round].certificate == row.certificate
            return Outcome.SAME if same else Outcome.OTHER_BYTES
        task = self._tasks.get(row.task_id)
        if task is None or task.state not in _OPEN:
            return Outcome.CLOSED
        if self._owners.get(report, row.certificate) != row.certificate:
            return Outcome.OTHER_BYTES
        if self._devices.get((row.task_id, row.certificate), row.report_id) != row.report_id:
            return Outcome.SECOND_REPORT
        self._owners[report] = row.certificate
        self._devices[row.task_id, row.certificate] = row.report_id
        self._instalments.setdefault(report, {})[row.round] = row
        complete = len(self._instalments[report]) >= row.expected
        self._reports.setdefault(row.task_id, {})[row.report_id] = ReportRow(
            report_id=row.report_id,
            status=ReportStatus.COMPLETE if complete else ReportStatus.INCOMPLETE,
            batch=None,
            reason=None,
            public_share_digest=None,
            verification=b"",
        )
        return Outcome.STORED

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        row = self._instalments.get((task_id, report_id), {}).get(round_number)
        return row.digest if row else None

    async def count_rejections(self, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
        """See `Store.count_rejections`."""
        self._count(task_id, counts)

    def _count(self, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
        counters = self._rejections.setdefault(task_id, {})
        for reason, count in counts.items():
            counters[reason] = counters.get(reason, 0) + count

    async def rejections(self, task_id: TaskId) -> Mapping[RejectReason, int]:
        """See `Store.rejections`."""
        return dict(self._rejections.get(task_id, {}))

    async def complete_reports(self, task_id: TaskId, limit: int) -> Sequence[CompleteReport]:
        """See `Store.complete_reports`."""
        ids = sorted(k for k, row in self._reports.get(task_id, {}).items() if row.status is ReportStatus.COMPLETE)
        return [self._complete(task_id, report_id) for report_id in ids[:limit]]

    def _complete(self, task_id: TaskId, report_id: ReportId) -> CompleteReport:
        rows = self._instalments[task_id, report_id]
        return CompleteReport(
            report_id=report_id,
            instalments=tuple(
                StoredInstalment(
                    round=number,
                    session_id=rows[number].session_id,
                    public_share=rows[number].public_share,
                    ciphertext=rows[number].ciphertext,
                )
                for number in sorted(rows)
            ),
        )

    async def reports(
        self, task_id: TaskId, *, status: ReportStatus | None = None, batch: int | None = None, after: bytes = b""
    ) -> Sequence[ReportRow]:
        """See `Store.reports`."""
        rows = self._reports.get(task_id, {})
        chosen = (rows[report_id] for report_id in sorted(rows) if report_id > after)
        return [row for row in chosen if status in (None, row.status) and batch in (None, row.batch)][:PAGE]

    async def report(self, task_id: TaskId, report_id: ReportId) -> ReportRow | None:
        """See `Store.report`."""
        return self._reports.get(task_id, {}).get(report_id)

    async def step(self, task_id: TaskId, name: str) -> Step | None:
        """See `Store.step`."""
        return self._steps.get((task_id, name))

    async def apply(self, change: TaskChange) -> Step | None:
        """See `Store.apply`."""
        task = self._tasks.get(change.task_id)
        if task is None:
            raise StoreError(f"task {change.task_id!r} is not installed")
        if change.step is not None and (known := self._steps.get((change.task_id, change.step.name))) is not None:
            return known
        if task.state not in change.required:
            raise StateConflictError(task.state, change.step.name if change.step else "this change")
        if change.new_state is not None:
            check_move(task.state, change.new_state)
            self._tasks[change.task_id] = replace(task, state=change.new_state, abort_reason=change.abort_reason)
        if change.step is not None:
            self._steps[change.task_id, change.step.name] = change.step
        if change.debit is not None:
            self._ledger.setdefault(change.debit.task_id, change.debit)
        self._judge(change)
        return None

    def _judge(self, change: TaskChange) -> None:
        reports = self._reports.setdefault(change.task_id, {})
        verdicts = list(change.verdicts)
        if change.refuse_incomplete:
            verdicts += [
                Verdict(report_id=row.report_id, status=ReportStatus.REFUSED, reason=RejectReason.HALF_PAIR)
                for row in reports.values()
                if row.status is ReportStatus.INCOMPLETE
            ]
        for verdict in verdicts:
            old = reports.get(verdict.report_id)
            if old is None or old.status is ReportStatus.REFUSED:
                continue
            reports[verdict.report_id] = _judged(old, verdict)
            if verdict.status is ReportStatus.REFUSED and verdict.reason is not None:
                self._count(change.task_id, {verdict.reason: 1})
        self._count(change.task_id, change.rejections)

    async def ledger(self) -> Sequence[LedgerRow]:
        """See `Store.ledger`."""
        return list(self._ledger.values())

    async def remember_mark(self, peer: AggregatorId, ledger_rows: int) -> None:
        """See `Store.remember_mark`."""
        self._marks[peer] = max(ledger_rows, self._marks.get(peer, 0))

    async def marks(self) -> Mapping[AggregatorId, int]:
        """See `Store.marks`."""
        return dict(self._marks)

    async def purge(self, task_id: TaskId) -> None:
        """See `Store.purge`."""
        for (owner, _), rows in self._instalments.items():
            if owner == task_id:
                for number, row in rows.items():
                    rows[number] = replace(row, ciphertext=b"")
        for report_id, report in self._reports.get(task_id, {}).items():
            self._reports[task_id][report_id] = replace(report, verification=b"")

    async def close(self) -> None:
        """See `Store.close`."""


def _judged(old: ReportRow, verdict: Verdict) -> ReportRow:
    return ReportRow(
        report_id=old.report_id,
        status=verdict.status,
        batch=old.batch if verdict.batch is None else verdict.batch,
        reason=old.reason if verdict.reason is None else verdict.reason,
        public_share_digest=verdict.public_share_digest or old.public_share_digest,
        verification=old.verification if verdict.verification is None else verdict.verification,
    )
