"""A store in memory, for tests and simulations: the same rules as the durable one, its rows in plain dictionaries.

Outlives no process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SeriesId, SessionId, TaskId
from fleetcount_protocol.limits import MAX_SERIES_WINDOWS

from fleetcount_aggregator.host.states import FINAL_STATES, State, StateConflictError, check_move
from fleetcount_aggregator.storage.archive import AT_ONCE, Place, Rest, RestRow
from fleetcount_aggregator.storage.at_rest import AT_REST_KEY_BYTES
from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.frame_homes import MemoryHome
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_seal import Damage
from fleetcount_aggregator.storage.store import (
    BATCHES_AT_ONCE,
    BatchRow,
    Charged,
    CompleteReports,
    Cost,
    DecidedWindow,
    LedgerRow,
    SeriesRow,
    SessionRow,
    StepRow,
    StoreError,
    TaskChange,
    TaskRow,
)

__all__ = ["MemoryStore"]

_OPEN = frozenset({State.ANNOUNCED, State.COLLECTING})


class MemoryStore:
    """Implements `Store`. Not for more than one event loop."""

    begun_again = 0

    def __init__(self) -> None:
        self.data_keys = DataKeys(SystemRandom().random_bytes(AT_REST_KEY_BYTES))
        self._sessions: dict[SessionId, SessionRow] = {}
        self._tasks: dict[TaskId, TaskRow] = {}
        self._logs = ReportLogs(MemoryHome(), self.data_keys)
        self._rejections: dict[TaskId, dict[RejectReason, int]] = {}
        self._steps: dict[tuple[TaskId, str], StepRow] = {}
        self._batches: dict[TaskId, dict[int, BatchRow]] = {}
        self._chosen: dict[TaskId, bytes] = {}
        self._ledger: dict[TaskId, LedgerRow] = {}
        self._debits = 0
        self._rest: dict[TaskId, tuple[Rest, RestRow]] = {}
        self._ends: dict[SeriesId, int] = {}
        self._marks: dict[AggregatorId, int] = {}
        self._epochs: dict[str, bytes] = {}
        self._series: dict[SeriesId, SeriesRow] = {}
        self._notes: dict[SeriesId, dict[str, bytes]] = {}
        self._decided: dict[SeriesId, dict[int, DecidedWindow]] = {}

    async def add_session(self, row: SessionRow, *, most: int, now: int) -> SessionRow | None:
        """See `Store.add_session`."""
        if row.session_id not in self._sessions and await self.sessions_of(row.certificate, now) >= most:
            return None
        return self._sessions.setdefault(row.session_id, row)

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

    async def chains(self, session_ids: Sequence[bytes]) -> Sequence[tuple[bytes, bytes]]:
        """See `Store.chains`."""
        found = await self.sessions([SessionId(session_id) for session_id in session_ids])
        return [(row.session_id, row.chain) for row in found]

    async def put_chains(self, chains: Sequence[tuple[bytes, bytes]]) -> None:
        """See `Store.put_chains`."""
        for session_id, chain in chains:
            if (row := self._sessions.get(SessionId(session_id))) is not None:
                self._sessions[row.session_id] = replace(row, chain=chain)

    async def key_uses(self, task_id: TaskId) -> bytes:
        """See `Store.key_uses`."""
        return self._logs.key_uses(task_id)

    async def task(self, task_id: TaskId) -> TaskRow | None:
        """See `Store.task`."""
        return self._tasks.get(task_id)

    async def canonical(self, task_id: TaskId) -> bytes | None:
        """See `Store.canonical`."""
        row = await self.task(task_id)
        return None if row is None else row.canonical

    async def damaged(self) -> Sequence[Damage]:
        """See `Store.damaged`: memory has no damage."""
        return ()

    async def install_series(self, row: SeriesRow, notes: Mapping[str, bytes]) -> SeriesRow:
        """See `Store.install_series`."""
        if row.series_id not in self._series:
            self._notes.setdefault(row.series_id, {}).update(notes)
        return self._series.setdefault(row.series_id, row)

    async def series(self, *, ended_after: int = -1) -> Sequence[SeriesRow]:
        """See `Store.series`."""
        return [row for row in self._series.values() if self._ends.get(row.series_id, ended_after + 1) > ended_after]

    async def one_series(self, series_id: SeriesId) -> SeriesRow | None:
        """See `Store.one_series`."""
        return self._series.get(series_id)

    async def note_series(self, series_id: SeriesId, name: str, note: bytes) -> None:
        """See `Store.note_series`."""
        self._notes.setdefault(series_id, {})[name] = note

    async def series_notes(self, series_id: SeriesId) -> Mapping[str, bytes]:
        """See `Store.series_notes`."""
        return dict(self._notes.get(series_id, {}))

    async def decide_windows(self, rows: Sequence[DecidedWindow], task: TaskRow | None = None) -> None:
        """See `Store.decide_windows`."""
        if any(row.index in self._decided.get(row.series_id, {}) for row in rows):
            raise StoreError("a window is decided already")
        for row in rows:
            self._decided.setdefault(row.series_id, {})[row.index] = row
        if task is not None:
            self.data_keys.make(task.task_id)
            self._tasks.setdefault(task.task_id, task)

    async def decided(
        self, series_id: SeriesId, *, above: int = -1, below: int = MAX_SERIES_WINDOWS
    ) -> Sequence[DecidedWindow]:
        """See `Store.decided`."""
        rows = self._decided.get(series_id, {})
        return [rows[index] for index in sorted(rows) if above < index < below]

    async def costs(self, asked: Sequence[Charged]) -> Sequence[Cost]:
        """See `Store.costs`."""

        def cost(one: Charged) -> Cost:
            rows = self._decided.get(one.series_id, {}).values()
            named = [row.task_id for row in rows if row.task_id is not None and not row.missing]
            held = ((self._tasks.get(task_id), task_id in self._ledger) for task_id in named)
            states = ((None if task is None else task.state, debited) for task, debited in held)
            return one.cost(len(rows), states)

        return [cost(one) for one in asked]

    async def decided_of(self, task_id: TaskId) -> DecidedWindow | None:
        """See `Store.decided_of`."""
        found = (row for rows in self._decided.values() for row in rows.values() if row.task_id == task_id)
        return next(found, None)

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`."""
        [answer] = self._logs.add([runs], self._is_open)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _is_open(self, task_id: TaskId) -> bool:
        task = self._tasks.get(task_id)
        return task is not None and task.state in _OPEN

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        return self._logs.digest(task_id, report_id, round_number)

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
        return self._logs.complete(task_id, closed=not self._is_open(task_id))

    async def reports_of(self, task_id: TaskId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        return self._logs.reports_of(task_id, devices)

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
            self._rest.pop(change.task_id, None)
        if change.step is not None:
            self._steps[change.task_id, change.step.name] = change.step
        if change.batch is not None:
            self._batches.setdefault(change.task_id, {})[change.batch.number] = change.batch
        if change.chosen is not None:
            self._chosen[change.task_id] = change.chosen
        if change.debit is not None and change.debit.task_id not in self._ledger:
            self._ledger[change.debit.task_id] = change.debit
            self._debits += 1
        self._count(change.task_id, change.rejections)
        if change.new_state is State.AGREEING:
            halves = self._logs.incomplete(change.task_id)
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

    async def note_epoch(self, name: str, epoch: bytes) -> None:
        """See `Store.note_epoch`."""
        self._epochs[name] = max(epoch, self._epochs.get(name, b""))

    async def epochs(self) -> Mapping[str, bytes]:
        """See `Store.epochs`."""
        return dict(self._epochs)

    async def unpurged(self) -> Sequence[TaskId]:
        """See `Store.unpurged`: no crash leaves any in memory."""
        return ()

    async def purge(self, task_id: TaskId) -> None:
        """See `Store.purge`."""
        task = self._tasks.get(task_id)
        if task is None or task.state not in FINAL_STATES:
            raise StoreError(f"task {task_id.hex()} has not ended: only of an ended task anything is deleted")
        self._tasks[task_id] = replace(task, verify_key=b"")
        self._logs.purge(task_id, self._chosen.get(task_id, b""))
        self._batches.pop(task_id, None)
        self._chosen.pop(task_id, None)
        self._steps = {key: step for key, step in self._steps.items() if key[0] != task_id or not step.passing}
        self.data_keys.destroy(task_id)

    async def probe(self) -> None:
        """See `Store.probe`."""

    async def restored(self) -> bool:
        """See `Store.restored`: no backup is made of memory."""
        return False

    # The archive.

    async def tasks_in_work(self) -> Sequence[TaskId]:
        """See `Archive.tasks_in_work`."""
        return [task_id for task_id in self._tasks if task_id not in self._rest]

    async def put_to_rest(self, rows: Sequence[RestRow]) -> None:
        """See `Archive.put_to_rest`."""
        if any(row.task_id not in self._tasks or self._tasks[row.task_id].state not in FINAL_STATES for row in rows):
            raise StoreError("a task that has not ended is not put to rest")
        for row in rows:
            self._rest.setdefault(row.task_id, (Rest.AT_REST, row))

    async def resting(self, rest: Rest, above: Place, until: int) -> Sequence[RestRow]:
        """See `Archive.resting`."""
        rows = [row for found, row in self._rest.values() if found is rest and above < row.place]
        return sorted((row for row in rows if row.expiry <= until), key=lambda row: row.place)[:AT_ONCE]

    async def retire(self, task_ids: Sequence[TaskId], kept: Mapping[State, Sequence[str]]) -> None:
        """See `Archive.retire`."""
        for task_id in task_ids:
            if task_id in self._rest:
                self._rest[task_id] = Rest.RETIRED, self._rest[task_id][1]
                self._logs.forget(task_id)
                self._drop_steps(task_id, kept[self._tasks[task_id].state])

    def _drop_steps(self, task_id: TaskId, kept: Sequence[str]) -> None:
        self._steps = {key: one for key, one in self._steps.items() if key[0] != task_id or key[1] in kept}

    async def forget(self, task_ids: Sequence[TaskId]) -> Sequence[TaskId]:
        """See `Archive.forget`."""
        running = [rows for series_id, rows in self._decided.items() if series_id not in self._ends]
        standing = {row.task_id for rows in running for row in rows.values()}
        gone = [one for one in task_ids if self._rest.get(one, (None,))[0] is Rest.RETIRED and one not in standing]
        for task_id in gone:
            self._drop_steps(task_id, ())
            for rows in (self._tasks, self._rest, self._rejections, self._ledger):
                rows.pop(task_id, None)
        for series_id in [one for one in self._ends if not self._window_tasks(one) & self._tasks.keys()]:
            for known in (self._series, self._notes, self._decided, self._ends):
                known.pop(series_id, None)
        return gone

    def _window_tasks(self, series_id: SeriesId) -> set[TaskId | None]:
        return {row.task_id for row in self._decided.get(series_id, {}).values()}

    async def rest_series(self, series_id: SeriesId, end: int, dropped: str) -> None:
        """See `Archive.rest_series`."""
        self._ends[series_id] = end
        notes = self._notes.get(series_id, {})
        self._notes[series_id] = {name: note for name, note in notes.items() if not name.startswith(dropped)}

    async def debit(self, task_id: TaskId) -> LedgerRow | None:
        """See `Archive.debit`."""
        return self._ledger.get(task_id)

    async def ledger_rows(self) -> int:
        """See `Archive.ledger_rows`."""
        return self._debits

    async def close(self) -> None:
        """See `Store.close`."""
