"""A store in memory, for tests and simulations: the same rules as the durable one, its rows in plain dictionaries.

Outlives no process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS
from fleetcount_protocol.messages import WindowState

from fleetcount_aggregator.host.states import FINAL_STATES, StateConflictError, check_move
from fleetcount_aggregator.storage.archive import AT_ONCE, Place, RestRow
from fleetcount_aggregator.storage.at_rest import AT_REST_KEY_BYTES
from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.errors import Damage, StoreError
from fleetcount_aggregator.storage.frame_homes import MemoryHome
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    Charged,
    Cost,
    DecidedWindow,
    LedgerRow,
    QuestionRow,
    Rest,
    SessionRow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.rows import BATCHES_AT_ONCE

_OPEN = frozenset({WindowState.ANNOUNCED, WindowState.COLLECTING})


class MemoryStore:
    """Implements `Store`. Not for more than one event loop."""

    begun_again = 0

    def __init__(self) -> None:
        self.data_keys = DataKeys(SystemRandom().random_bytes(AT_REST_KEY_BYTES))
        self._sessions: dict[SessionId, SessionRow] = {}
        self._windows: dict[WindowId, WindowRow] = {}
        self._logs = ReportLogs(MemoryHome(), self.data_keys)
        self._rejections: dict[WindowId, dict[RejectReason, int]] = {}
        self._steps: dict[tuple[WindowId, str], StepRow] = {}
        self._batches: dict[WindowId, dict[int, BatchRow]] = {}
        self._chosen: dict[WindowId, bytes] = {}
        self._ledger: dict[WindowId, LedgerRow] = {}
        self._debits = 0
        self._rest: dict[WindowId, tuple[Rest, RestRow]] = {}
        self._ends: dict[QuestionId, int] = {}
        self._marks: dict[AggregatorId, int] = {}
        self._epochs: dict[str, bytes] = {}
        self._questions: dict[QuestionId, QuestionRow] = {}
        self._notes: dict[QuestionId, dict[str, bytes]] = {}
        self._decided: dict[QuestionId, dict[int, DecidedWindow]] = {}

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

    async def key_uses(self, window_id: WindowId) -> bytes:
        """See `Store.key_uses`."""
        return self._logs.key_uses(window_id)

    async def window(self, window_id: WindowId) -> WindowRow | None:
        """See `Store.window`."""
        return self._windows.get(window_id)

    async def canonical(self, window_id: WindowId) -> bytes | None:
        """See `Store.canonical`."""
        row = await self.window(window_id)
        return None if row is None else row.canonical

    async def damaged(self) -> Sequence[Damage]:
        """See `Store.damaged`: memory has no damage."""
        return ()

    async def install_question(self, row: QuestionRow, notes: Mapping[str, bytes]) -> QuestionRow:
        """See `Store.install_question`."""
        if row.question_id not in self._questions:
            self._notes.setdefault(row.question_id, {}).update(notes)
        return self._questions.setdefault(row.question_id, row)

    async def questions(self, *, ended_after: int = -1) -> Sequence[QuestionRow]:
        """See `Store.question`."""
        return [
            row for row in self._questions.values() if self._ends.get(row.question_id, ended_after + 1) > ended_after
        ]

    async def one_question(self, question_id: QuestionId) -> QuestionRow | None:
        """See `Store.one_question`."""
        return self._questions.get(question_id)

    async def note_question(self, question_id: QuestionId, name: str, note: bytes) -> None:
        """See `Store.note_question`."""
        self._notes.setdefault(question_id, {})[name] = note

    async def question_notes(self, question_id: QuestionId) -> Mapping[str, bytes]:
        """See `Store.question_notes`."""
        return dict(self._notes.get(question_id, {}))

    async def decide_windows(self, rows: Sequence[DecidedWindow], window: WindowRow | None = None) -> None:
        """See `Store.decide_windows`."""
        if any(row.index in self._decided.get(row.question_id, {}) for row in rows):
            raise StoreError("a window is decided already")
        for row in rows:
            self._decided.setdefault(row.question_id, {})[row.index] = row
        if window is not None:
            self.data_keys.make(window.window_id)
            self._windows.setdefault(window.window_id, window)

    async def decided(
        self, question_id: QuestionId, *, above: int = -1, below: int = MAX_QUESTION_WINDOWS
    ) -> Sequence[DecidedWindow]:
        """See `Store.decided`."""
        rows = self._decided.get(question_id, {})
        return [rows[index] for index in sorted(rows) if above < index < below]

    async def costs(self, asked: Sequence[Charged]) -> Sequence[Cost]:
        """See `Store.costs`."""

        def cost(one: Charged) -> Cost:
            rows = self._decided.get(one.question_id, {}).values()
            named = [row.window_id for row in rows if row.window_id is not None and not row.missing]
            held = ((self._windows.get(window_id), window_id in self._ledger) for window_id in named)
            states = ((None if window is None else window.state, debited) for window, debited in held)
            return one.cost(len(rows), states)

        return [cost(one) for one in asked]

    async def decided_of(self, window_id: WindowId) -> DecidedWindow | None:
        """See `Store.decided_of`."""
        found = (row for rows in self._decided.values() for row in rows.values() if row.window_id == window_id)
        return next(found, None)

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`."""
        [answer] = self._logs.add([runs], self._is_open)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _is_open(self, window_id: WindowId) -> bool:
        window = self._windows.get(window_id)
        return window is not None and window.state in _OPEN

    async def instalment_digest(self, window_id: WindowId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        return self._logs.digest(window_id, report_id, round_number)

    async def count_rejections(self, window_id: WindowId, counts: Mapping[RejectReason, int]) -> None:
        """See `Store.count_rejections`."""
        self._count(window_id, counts)

    def _count(self, window_id: WindowId, counts: Mapping[RejectReason, int]) -> None:
        counters = self._rejections.setdefault(window_id, {})
        for reason, count in counts.items():
            counters[reason] = counters.get(reason, 0) + count

    async def rejections(self, window_id: WindowId) -> Mapping[RejectReason, int]:
        """See `Store.rejections`."""
        return dict(self._rejections.get(window_id, {}))

    async def complete_reports(self, window_id: WindowId) -> CompleteReports:
        """See `Store.complete_reports`."""
        return self._logs.complete(window_id, closed=not self._is_open(window_id))

    async def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        return self._logs.reports_of(window_id, devices)

    async def batches(self, window_id: WindowId, *, above: int = -1) -> Sequence[BatchRow]:
        """See `Store.batches`."""
        rows = self._batches.get(window_id, {})
        return [rows[number] for number in sorted(rows) if number > above][:BATCHES_AT_ONCE]

    async def batch(self, window_id: WindowId, number: int) -> BatchRow | None:
        """See `Store.batch`."""
        return self._batches.get(window_id, {}).get(number)

    async def chosen(self, window_id: WindowId) -> bytes | None:
        """See `Store.chosen`."""
        return self._chosen.get(window_id)

    async def step(self, window_id: WindowId, name: str) -> StepRow | None:
        """See `Store.step`."""
        return self._steps.get((window_id, name))

    async def apply(self, change: WindowChange) -> StepRow | None:
        """See `Store.apply`."""
        window = self._windows.get(change.window_id)
        if window is None:
            raise StoreError(f"window {change.window_id!r} is not installed")
        if change.step is not None and (known := self._steps.get((change.window_id, change.step.name))) is not None:
            return known
        if window.state not in change.required:
            raise StateConflictError(window.state, change.step.name if change.step else "this change")
        if change.new_state is not None:
            check_move(window.state, change.new_state)
            self._windows[change.window_id] = replace(window, state=change.new_state, abort_reason=change.abort_reason)
            self._rest.pop(change.window_id, None)
        if change.step is not None:
            self._steps[change.window_id, change.step.name] = change.step
        if change.batch is not None:
            self._batches.setdefault(change.window_id, {})[change.batch.number] = change.batch
        if change.chosen is not None:
            self._chosen[change.window_id] = change.chosen
        if change.debit is not None and change.debit.window_id not in self._ledger:
            self._ledger[change.debit.window_id] = change.debit
            self._debits += 1
        self._count(change.window_id, change.rejections)
        if change.new_state is WindowState.AGREEING:
            halves = self._logs.incomplete(change.window_id)
            self._count(change.window_id, {RejectReason.HALF_PAIR: halves} if halves else {})
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

    async def unpurged(self) -> Sequence[WindowId]:
        """See `Store.unpurged`: no crash leaves any in memory."""
        return ()

    async def purge(self, window_id: WindowId) -> None:
        """See `Store.purge`."""
        window = self._windows.get(window_id)
        if window is None or window.state not in FINAL_STATES:
            raise StoreError(f"window {window_id.hex()} has not ended: only of an ended window anything is deleted")
        self._windows[window_id] = replace(window, verify_key=b"")
        self._logs.purge(window_id, self._chosen.get(window_id, b""))
        self._batches.pop(window_id, None)
        self._chosen.pop(window_id, None)
        self._steps = {key: step for key, step in self._steps.items() if key[0] != window_id or not step.passing}
        self.data_keys.destroy(window_id)

    async def probe(self) -> None:
        """See `Store.probe`."""

    async def restored(self) -> bool:
        """See `Store.restored`: no backup is made of memory."""
        return False

    # The archive.

    async def windows_in_work(self) -> Sequence[WindowId]:
        """See `Archive.windows_in_work`."""
        return [window_id for window_id in self._windows if window_id not in self._rest]

    async def put_to_rest(self, rows: Sequence[RestRow]) -> None:
        """See `Archive.put_to_rest`."""
        if any(
            row.window_id not in self._windows or self._windows[row.window_id].state not in FINAL_STATES for row in rows
        ):
            raise StoreError("a window that has not ended is not put to rest")
        for row in rows:
            self._rest.setdefault(row.window_id, (Rest.AT_REST, row))

    async def resting(self, rest: Rest, above: Place, until: int) -> Sequence[RestRow]:
        """See `Archive.resting`."""
        rows = [row for found, row in self._rest.values() if found is rest and above < row.place]
        return sorted((row for row in rows if row.expiry <= until), key=lambda row: row.place)[:AT_ONCE]

    async def retire(self, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]) -> None:
        """See `Archive.retire`."""
        for window_id in window_ids:
            if window_id in self._rest:
                self._rest[window_id] = Rest.RETIRED, self._rest[window_id][1]
                self._logs.forget(window_id)
                self._drop_steps(window_id, kept[self._windows[window_id].state])

    def _drop_steps(self, window_id: WindowId, kept: Sequence[str]) -> None:
        self._steps = {key: one for key, one in self._steps.items() if key[0] != window_id or key[1] in kept}

    async def forget(self, window_ids: Sequence[WindowId]) -> Sequence[WindowId]:
        """See `Archive.forget`."""
        running = [rows for question_id, rows in self._decided.items() if question_id not in self._ends]
        standing = {row.window_id for rows in running for row in rows.values()}
        gone = [one for one in window_ids if self._rest.get(one, (None,))[0] is Rest.RETIRED and one not in standing]
        for window_id in gone:
            self._drop_steps(window_id, ())
            for rows in (self._windows, self._rest, self._rejections, self._ledger):
                rows.pop(window_id, None)
        for question_id in [one for one in self._ends if not self._window_windows(one) & self._windows.keys()]:
            for known in (self._questions, self._notes, self._decided, self._ends):
                known.pop(question_id, None)
        return gone

    def _window_windows(self, question_id: QuestionId) -> set[WindowId | None]:
        return {row.window_id for row in self._decided.get(question_id, {}).values()}

    async def rest_question(self, question_id: QuestionId, end: int, dropped: str) -> None:
        """See `Archive.rest_question`."""
        self._ends[question_id] = end
        notes = self._notes.get(question_id, {})
        self._notes[question_id] = {name: note for name, note in notes.items() if not name.startswith(dropped)}

    async def debit(self, window_id: WindowId) -> LedgerRow | None:
        """See `Archive.debit`."""
        return self._ledger.get(window_id)

    async def ledger_rows(self) -> int:
        """See `Archive.ledger_rows`."""
        return self._debits

    async def close(self) -> None:
        """See `Store.close`."""
