"""A store in memory, for tests and simulations: the same rules as the durable one, in plain dictionaries.

Outlives no process.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from fleetcount_kernel.proofs import ProofBatch
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SeriesId, SessionId, TaskId
from fleetcount_protocol.limits import MAX_REPORTS_PER_TASK
from numpy.typing import NDArray

from fleetcount_aggregator.host.states import State, StateConflictError, check_move
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.store import (
    BATCHES_AT_ONCE,
    BatchRow,
    CompleteReports,
    InstalmentRun,
    LedgerRow,
    LoadedReports,
    SeriesRow,
    SessionRow,
    StepRow,
    StoreError,
    StoreOutcome,
    TaskChange,
    TaskRow,
    WindowRow,
)

__all__ = ["MemoryStore"]

_OPEN = frozenset({State.ANNOUNCED, State.COLLECTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One instalment."""

    report_id: ReportId
    round: int
    certificate: Digest
    digest: Digest
    public_share: bytes = field(repr=False)
    part: bytes = field(repr=False)
    expected: int


@dataclass(frozen=True, slots=True)
class _MemorySource:
    """Implements `ReportSource`: the reports themselves, each by round."""

    reports: Sequence[Sequence[_Held]] = field(repr=False)

    def load(self) -> LoadedReports:
        """See `ReportSource.load`."""
        return LoadedReports(
            batch=ProofBatch(
                nonces=b"".join(rows[0].report_id for rows in self.reports),
                public_shares=b"".join(rows[-1].public_share for rows in self.reports),
                input_shares=b"".join(row.part for rows in self.reports for row in rows),
            )
        )


@dataclass(frozen=True, slots=True)
class _MemoryReports:
    """Implements `CompleteReports`."""

    reports: Sequence[Sequence[_Held]] = field(repr=False)
    ids: ReportIds

    def source(self, positions: NDArray[np.integer]) -> _MemorySource:
        """See `CompleteReports.source`."""
        return _MemorySource([self.reports[position] for position in positions.tolist()])


class MemoryStore:
    """Implements `Store`. Not for more than one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, SessionRow] = {}
        self._tasks: dict[TaskId, TaskRow] = {}
        self._reports: dict[TaskId, dict[ReportId, dict[int, _Held]]] = {}
        self._devices: dict[tuple[TaskId, Digest], ReportId] = {}
        self._rejections: dict[TaskId, dict[RejectReason, int]] = {}
        self._steps: dict[tuple[TaskId, str], StepRow] = {}
        self._batches: dict[TaskId, dict[int, BatchRow]] = {}
        self._chosen: dict[TaskId, bytes] = {}
        self._purged: set[TaskId] = set()
        self._ledger: dict[TaskId, LedgerRow] = {}
        self._marks: dict[AggregatorId, int] = {}
        self._series: dict[SeriesId, SeriesRow] = {}
        self._notes: dict[SeriesId, dict[str, bytes]] = {}
        self._windows: dict[SeriesId, dict[int, WindowRow]] = {}

    async def add_session(self, row: SessionRow) -> None:
        """See `Store.add_session`."""
        self._sessions.setdefault(row.session_id, row)

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """See `Store.session`."""
        return self._sessions.get(session_id)

    async def sessions(self, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
        """See `Store.sessions`."""
        return [self._sessions[session_id] for session_id in session_ids if session_id in self._sessions]

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

    async def states(self) -> Mapping[TaskId, State]:
        """See `Store.states`."""
        return {task_id: row.state for task_id, row in self._tasks.items()}

    async def released_without(self, step: str) -> Sequence[TaskId]:
        """See `Store.released_without`."""
        released = [task_id for task_id, row in self._tasks.items() if row.state is State.RELEASED]
        return [task_id for task_id in released if (task_id, step) not in self._steps]

    async def install_series(self, row: SeriesRow) -> SeriesRow:
        """See `Store.install_series`."""
        return self._series.setdefault(row.series_id, row)

    async def series(self) -> Sequence[SeriesRow]:
        """See `Store.series`."""
        return list(self._series.values())

    async def note_series(self, series_id: SeriesId, name: str, note: bytes) -> None:
        """See `Store.note_series`."""
        self._notes.setdefault(series_id, {})[name] = note

    async def series_notes(self, series_id: SeriesId) -> Mapping[str, bytes]:
        """See `Store.series_notes`."""
        return dict(self._notes.get(series_id, {}))

    async def decide_windows(self, rows: Sequence[WindowRow], task: TaskRow | None = None) -> None:
        """See `Store.decide_windows`."""
        if any(row.index in self._windows.get(row.series_id, {}) for row in rows):
            raise StoreError("a window is decided already")
        for row in rows:
            self._windows.setdefault(row.series_id, {})[row.index] = row
        if task is not None:
            await self.install(task)

    async def windows(self, series_id: SeriesId, *, above: int = -1) -> Sequence[WindowRow]:
        """See `Store.windows`."""
        rows = self._windows.get(series_id, {})
        return [rows[index] for index in sorted(rows) if index > above]

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`."""
        return [bytes(self._add_instalment(run.task_id, one) for one in _instalments(run)) for run in runs]

    def _add_instalment(self, task_id: TaskId, one: _Held) -> StoreOutcome:
        reports = self._reports.setdefault(task_id, {})
        held = reports.get(one.report_id, {})
        if one.round in held:
            stored = held[one.round]
            same = (stored.digest, stored.certificate) == (one.digest, one.certificate)
            return StoreOutcome.SAME if same else StoreOutcome.OTHER_BYTES
        task = self._tasks.get(task_id)
        if task is None or task.state not in _OPEN:
            return StoreOutcome.CLOSED
        if any(other.certificate != one.certificate for other in held.values()):
            return StoreOutcome.OTHER_BYTES
        if self._devices.get((task_id, one.certificate), one.report_id) != one.report_id:
            return StoreOutcome.SECOND_REPORT
        if not held and len(reports) >= MAX_REPORTS_PER_TASK:
            return StoreOutcome.FULL
        self._devices[task_id, one.certificate] = one.report_id
        reports.setdefault(one.report_id, {})[one.round] = one
        return StoreOutcome.STORED

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        row = self._reports.get(task_id, {}).get(report_id, {}).get(round_number)
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

    async def complete_reports(self, task_id: TaskId) -> CompleteReports:
        """See `Store.complete_reports`."""
        reports = [] if task_id in self._purged else list(self._reports.get(task_id, {}).values())
        whole = [[rows[number] for number in sorted(rows)] for rows in reports if _is_complete(rows)]
        return _MemoryReports(whole, ReportIds(b"".join(rows[0].report_id for rows in whole)))

    async def reports_of(self, task_id: TaskId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        wanted = [Digest(devices[at : at + Digest.SIZE]) for at in range(0, len(devices), Digest.SIZE)]
        return b"".join(self._devices.get((task_id, one), b"") for one in wanted)

    async def batches(self, task_id: TaskId, *, above: int = -1) -> Sequence[BatchRow]:
        """See `Store.batches`."""
        rows = self._batches.get(task_id, {})
        return [rows[number] for number in sorted(rows) if number > above][:BATCHES_AT_ONCE]

    async def batch(self, task_id: TaskId, number: int) -> BatchRow | None:
        """See `Store.batch`."""
        return self._batches.get(task_id, {}).get(number)

    async def chosen(self, task_id: TaskId) -> bytes | None:
        """See `Store.chosen`."""
        return self._chosen.get(task_id)

    async def step(self, task_id: TaskId, name: str) -> StepRow | None:
        """See `Store.step`."""
        return self._steps.get((task_id, name))

    async def apply(self, change: TaskChange) -> StepRow | None:
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
        if change.batch is not None:
            self._batches.setdefault(change.task_id, {})[change.batch.number] = change.batch
        if change.chosen is not None:
            self._chosen[change.task_id] = change.chosen
        if change.debit is not None:
            self._ledger.setdefault(change.debit.task_id, change.debit)
        self._count(change.task_id, change.rejections)
        if change.new_state is State.AGREEING:
            halves = sum(not _is_complete(rows) for rows in self._reports.get(change.task_id, {}).values())
            self._count(change.task_id, {RejectReason.HALF_PAIR: halves} if halves else {})
        return None

    async def ledger(self) -> Sequence[LedgerRow]:
        """See `Store.ledger`."""
        return list(self._ledger.values())

    async def raise_high_water(self, peer: AggregatorId, ledger_rows: int) -> None:
        """See `Store.raise_high_water`."""
        self._marks[peer] = max(ledger_rows, self._marks.get(peer, 0))

    async def high_water(self) -> Mapping[AggregatorId, int]:
        """See `Store.high_water`."""
        return dict(self._marks)

    async def purge(self, task_id: TaskId) -> None:
        """See `Store.purge`."""
        for rows in self._reports.get(task_id, {}).values():
            for number, row in rows.items():
                rows[number] = replace(row, part=b"", public_share=b"")
        self._purged.add(task_id)
        self._batches.pop(task_id, None)
        self._chosen.pop(task_id, None)
        self._steps = {key: step for key, step in self._steps.items() if key[0] != task_id or not step.passing}

    async def close(self) -> None:
        """See `Store.close`."""


def _instalments(run: InstalmentRun) -> Iterator[_Held]:
    def cut(column: bytes, at: int) -> bytes:
        size = len(column) // len(run)
        return column[at * size : (at + 1) * size]

    for at in range(len(run)):
        yield _Held(
            report_id=ReportId(cut(run.report_ids, at)),
            round=run.round,
            certificate=Digest(cut(run.certificates, at)),
            digest=Digest(cut(run.digests, at)),
            public_share=cut(run.public_shares, at),
            part=cut(run.parts, at),
            expected=run.expected,
        )


def _is_complete(rows: Mapping[int, _Held]) -> bool:
    return bool(rows) and len(rows) >= next(iter(rows.values())).expected
