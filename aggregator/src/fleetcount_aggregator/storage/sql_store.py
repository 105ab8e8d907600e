"""The durable store: reports in append-only logs, the rest in a database; one writer thread, one reader thread.

What is written goes through one queue (`write_queue`). Decides nothing about the protocol.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self, TypeVar

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.malloc import give_back
from fleetcount_aggregator.host.states import FINAL_STATES, AbortReason
from fleetcount_aggregator.storage import question_rows
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.archive_rows import purge_window, read_cost, read_unpurged
from fleetcount_aggregator.storage.data_keys import DataKeys
from fleetcount_aggregator.storage.engine import Engine, SealedEngine
from fleetcount_aggregator.storage.epochs import SqlEpochs
from fleetcount_aggregator.storage.errors import Damage, StoreError
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.key_move import move_to_present_key
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.mending import is_restored
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_scan import damage_at_start
from fleetcount_aggregator.storage.row_seal import SealedDatabase
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    Charged,
    Cost,
    DecidedWindow,
    LedgerRow,
    QuestionRow,
    SessionRow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.sql_archive import SqlArchive
from fleetcount_aggregator.storage.sqlite_engine import SqliteEngine
from fleetcount_aggregator.storage.store_keys import StoreKeys
from fleetcount_aggregator.storage.write_queue import WriteQueue

T = TypeVar("T")


class SqlStore(SqlArchive, SqlEpochs):
    """Implements `Store` over `path` and logs beside it. A write is answered after the disk has it."""

    def __init__(
        self,
        engine: SealedEngine,
        logs: ReportLogs,
        data_keys: DataKeys,
        unpurged: Sequence[WindowId],
        damaged: Sequence[Damage],
    ) -> None:
        self.data_keys = data_keys
        self._sealed = engine
        self._engine = self.engine = engine.plain
        self._place = engine.plain.place
        self._damaged = tuple(damaged)
        self.logs = logs
        """Who shares the windows of this store with other processes says here which shards are its own."""
        self._closed = False
        self._unpurged = tuple(unpurged)
        self._writes = WriteQueue(engine, logs)
        self._read_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")

    @classmethod
    def open(cls, path: Path, at_rest_key: bytes, former: bytes | None = None) -> Self:
        """Open or make a store in a SQLite file; see `over`."""
        return cls.over(SqliteEngine.open(path), path, at_rest_key, former)

    @classmethod
    def over(cls, engine: Engine, path: Path, at_rest_key: bytes, former: bytes | None = None) -> Self:
        """Return the store of an open database, which is closed with it; files beside it are named after `path`.

        What a crash left of purging is `unpurged`, and what is damaged of single windows is `damaged`. The keys are
        those of `DataKeys`.

        Raises:
            StoreError: the database is damaged, or the store lies under another key.
        """
        with ExitStack() as opened:
            opened.callback(engine.close)
            data_keys = DataKeys(at_rest_key, engine.key_place(), former)
            sealed = SealedEngine(engine, StoreKeys(at_rest_key, former).row_seal)
            # Before the first row is read: under a wrong key every one of them seems damaged.
            data_keys.seals_store()
            home = engine.frame_home(path)
            logs = opened.enter_context(closing(ReportLogs(home, data_keys, alone=engine.alone)))
            states = sealed.read(sql.read_log_states)
            if given_up := home.given_up(states):
                sealed.write(lambda db: _end_lost(db, given_up))
                states = sealed.read(sql.read_log_states)
            needed = [one.window_id for one in states if not one.ended or home.holds(one.window_id)]
            damaged = data_keys.take_up(needed)
            move_to_present_key(sealed, data_keys)
            keyless = {one.window_id for one in damaged}
            # Without its key a log cannot be read either, which is one damage and not two.
            damaged += [one for one in logs.open(states) if one.window_id not in keyless]
            damaged += sealed.read(damage_at_start)
            rows, ended = sealed.read(read_unpurged), [one.window_id for one in states if one.ended]
            keys = data_keys.held()
            left = [one for one in ended if one in rows or home.leaves(one) or one in keys]
            engine.slim()
            give_back()
            opened.pop_all()
        return cls(sealed, logs, data_keys, left, damaged)

    async def _write(self, operation: Callable[[SealedDatabase], Any], *, leading: bool = False) -> Any:
        self._check_open()
        return await self._writes.write(operation, leading=leading)

    async def _lead(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        return await self._write(operation, leading=True)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._place} is closed")

    async def _read(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._read_pool, self._sealed.read, operation)

    @property
    def begun_again(self) -> int:
        """See `Store.begun_again`."""
        return self._engine.begun_again

    async def probe(self) -> None:
        """See `Store.probe`."""
        await self._write(lambda db: db.execute("UPDATE instance SET standing = standing"))

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self._writes.close()
        self._read_pool.shutdown()
        self.logs.close()
        self._engine.close()

    # The rows. Each method names its statement; the types are those of `Store`.

    async def add_session(self, row: SessionRow, *, most: int, now: int) -> SessionRow | None:
        """See `Store.add_session`."""
        stored: SessionRow | None = await self._write(lambda db: sql.add_session(db, row, most, now))
        return stored

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """See `Store.session`."""
        row: SessionRow | None = await self._read(lambda db: sql.read_session(db, session_id))
        return row

    async def sessions(self, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
        """See `Store.sessions`."""
        rows: Sequence[SessionRow] = await self._read(lambda db: sql.read_sessions(db, session_ids))
        return rows

    async def sessions_of(self, certificate: Digest, now: int) -> int:
        """See `Store.sessions_of`."""
        count: int = await self._read(lambda db: sql.read_sessions_of(db, certificate, now))
        return count

    async def forget_sessions(self, expired_before: int) -> None:
        """See `Store.forget_sessions`."""
        await self._write(lambda db: sql.forget_sessions(db, expired_before))

    async def chains(self, session_ids: Sequence[bytes]) -> Sequence[tuple[bytes, bytes]]:
        """See `Store.chains`."""
        rows: Sequence[tuple[bytes, bytes]] = await self._read(lambda db: sql.read_chains(db, session_ids))
        return rows

    async def put_chains(self, chains: Sequence[tuple[bytes, bytes]]) -> None:
        """See `Store.put_chains`."""
        await self._lead(lambda db: sql.put_chains(db, chains))

    async def key_uses(self, window_id: WindowId) -> bytes:
        """See `Store.key_uses`."""
        uses: bytes = await self._read(lambda _: self.logs.key_uses(window_id))
        return uses

    async def _ensure_key(self, row: WindowRow) -> None:
        if row.state not in FINAL_STATES:
            await asyncio.to_thread(self.data_keys.make, row.window_id)

    async def window(self, window_id: WindowId) -> WindowRow | None:
        """See `Store.window`."""
        row: WindowRow | None = await self._read(lambda db: sql.read_window(db, window_id))
        return row

    async def canonical(self, window_id: WindowId) -> bytes | None:
        """See `Store.canonical`."""
        canonical: bytes | None = await self._read(lambda db: sql.read_canonical(db, window_id))
        return canonical

    async def damaged(self) -> Sequence[Damage]:
        """See `Store.damaged`; another process may have settled some of it since this one started."""
        if self._damaged and not self._engine.alone:
            self._damaged = await self._read(self._still_damaged)
        return self._damaged

    def _still_damaged(self, db: SealedDatabase) -> tuple[Damage, ...]:
        unended = {one.window_id for one in sql.read_log_states(db) if not one.ended}
        files = (one for one in self._damaged if one.table in {"log", "data key"} and one.window_id in unended)
        return *files, *damage_at_start(db)

    async def look(self, work: Callable[[SealedDatabase], T]) -> T:
        """Run work that only reads."""
        found: T = await self._read(work)
        return found

    async def mend(self, work: Callable[[SealedDatabase], T]) -> T:
        """Run work that repairs rows (`mending`), in one transaction."""
        result: T = await self._lead(work)
        return result

    async def restored(self) -> bool:
        """See `Store.restored`."""
        return await self.look(is_restored)

    async def install_question(self, row: QuestionRow, notes: Mapping[str, bytes]) -> QuestionRow:
        """See `Store.install_question`."""
        stored: QuestionRow = await self._lead(lambda db: question_rows.install_question(db, row, notes))
        return stored

    async def questions(self, *, ended_after: int = -1) -> Sequence[QuestionRow]:
        """See `Store.question`."""
        rows: Sequence[QuestionRow] = await self._read(lambda db: question_rows.read_questions(db, ended_after))
        return rows

    async def one_question(self, question_id: QuestionId) -> QuestionRow | None:
        """See `Store.one_question`."""
        row: QuestionRow | None = await self._read(lambda db: question_rows.read_one_question(db, question_id))
        return row

    async def note_question(self, question_id: QuestionId, name: str, note: bytes) -> None:
        """See `Store.note_question`."""
        await self._lead(lambda db: question_rows.note_question(db, question_id, name, note))

    async def question_notes(self, question_id: QuestionId) -> Mapping[str, bytes]:
        """See `Store.question_notes`."""
        notes: Mapping[str, bytes] = await self._read(lambda db: question_rows.read_notes(db, question_id))
        return notes

    async def decide_windows(self, rows: Sequence[DecidedWindow], window: WindowRow | None = None) -> None:
        """See `Store.decide_windows`."""
        if window is not None:
            await self._ensure_key(window)
        await self._lead(lambda db: self._decide_windows(db, rows, window))

    def _decide_windows(self, db: SealedDatabase, rows: Sequence[DecidedWindow], window: WindowRow | None) -> None:
        question_rows.decide_windows(db, rows, window)
        if window is not None:
            self.logs.home.install(db, window.window_id)

    async def decided(
        self, question_id: QuestionId, *, above: int = -1, below: int = MAX_QUESTION_WINDOWS
    ) -> Sequence[DecidedWindow]:
        """See `Store.decided`."""
        rows: Sequence[DecidedWindow] = await self._read(
            lambda db: question_rows.read_decided(db, question_id, above, below)
        )
        return rows

    async def costs(self, asked: Sequence[Charged]) -> Sequence[Cost]:
        """See `Store.costs`."""
        costs: Sequence[Cost] = await self._read(lambda db: [read_cost(db, one) for one in asked])
        return costs

    async def decided_of(self, window_id: WindowId) -> DecidedWindow | None:
        """See `Store.decided_of`."""
        row: DecidedWindow | None = await self._read(lambda db: question_rows.read_decided_of(db, window_id))
        return row

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`."""
        self._check_open()
        outcomes: Sequence[bytes] = await self._writes.append(runs)
        return outcomes

    async def instalment_digest(self, window_id: WindowId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        digest: Digest | None = await self._read(lambda _: self.logs.digest(window_id, report_id, round_number))
        return digest

    async def count_rejections(self, window_id: WindowId, counts: Mapping[RejectReason, int]) -> None:
        """See `Store.count_rejections`."""
        await self._write(lambda db: sql.count_rejections(db, window_id, counts))

    async def rejections(self, window_id: WindowId) -> Mapping[RejectReason, int]:
        """See `Store.rejections`."""
        counts: Mapping[RejectReason, int] = await self._read(lambda db: sql.read_rejections(db, window_id))
        return counts

    async def complete_reports(self, window_id: WindowId) -> CompleteReports:
        """See `Store.complete_reports`."""
        found: CompleteReports = await self._read(
            lambda db: self.logs.complete(window_id, closed=not sql.takes_instalments(db, window_id))
        )
        return found

    async def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        found: bytes = await self._read(lambda _: self.logs.reports_of(window_id, devices))
        return found

    async def batches(self, window_id: WindowId, *, above: int = -1) -> Sequence[BatchRow]:
        """See `Store.batches`."""
        rows: Sequence[BatchRow] = await self._read(lambda db: sql.read_batches(db, window_id, above))
        return rows

    async def batch(self, window_id: WindowId, number: int) -> BatchRow | None:
        """See `Store.batch`."""
        row: BatchRow | None = await self._read(lambda db: sql.read_batch(db, window_id, number))
        return row

    async def chosen(self, window_id: WindowId) -> bytes | None:
        """See `Store.chosen`."""
        chosen: bytes | None = await self._read(lambda db: sql.read_chosen(db, window_id))
        return chosen

    async def step(self, window_id: WindowId, name: str) -> StepRow | None:
        """See `Store.step`."""
        step: StepRow | None = await self._read(lambda db: sql.read_step(db, window_id, name))
        return step

    async def apply(self, change: WindowChange) -> StepRow | None:
        """See `Store.apply`."""
        if change.new_state is WindowState.AGREEING and not self._engine.alone:
            # Other owners stop first. What they have is read back here, and not in the transaction that counts it.
            await self._lead(lambda db: self._stop(db, change.window_id))
            await self._read(lambda _: self.logs.incomplete(change.window_id))
        step: StepRow | None = await self._lead(lambda db: self._apply(db, change))
        return step

    def _stop(self, db: SealedDatabase, window_id: WindowId) -> None:
        if sql.takes_instalments(db, window_id):
            self.logs.home.close_window(db, window_id)

    def _apply(self, db: SealedDatabase, change: WindowChange) -> StepRow | None:
        held = None
        # A million reports are gone through once, when intake really closes, and not whenever that is asked for.
        if change.new_state is WindowState.AGREEING and sql.takes_instalments(db, change.window_id):
            held = sql.Closing(self.logs.length(change.window_id), self.logs.incomplete(change.window_id))
        if change.new_state not in {None, WindowState.ANNOUNCED, WindowState.COLLECTING}:
            self.logs.home.close_window(db, change.window_id)
        return sql.apply_change(db, change, held)

    async def ledger(self) -> Sequence[LedgerRow]:
        """See `Store.ledger`."""
        rows: Sequence[LedgerRow] = await self._read(sql.read_ledger)
        return rows

    async def raise_high_water(self, peer: AggregatorId, ledger_rows: int) -> None:
        """See `Store.raise_high_water`."""
        await self._lead(lambda db: sql.raise_high_water(db, peer, ledger_rows))

    async def high_water(self) -> Mapping[AggregatorId, int]:
        """See `Store.high_water`."""
        marks: Mapping[AggregatorId, int] = await self._read(sql.read_high_water)
        return marks

    async def unpurged(self) -> Sequence[WindowId]:
        """See `Store.unpurged`."""
        return self._unpurged

    def forget_destroyed(self) -> None:
        """Hold nothing of windows whose data key another process has destroyed; for a thread. Raises StoreError."""
        for window_id in self.data_keys.forget_destroyed():
            self.logs.let_go(window_id)

    async def purge(self, window_id: WindowId) -> None:
        """See `Store.purge`."""
        await self._lead(lambda db: self._purge(db, window_id))
        # Only when the end of the window and of its rows is on the disk: a key that is gone cannot be had back.
        await asyncio.to_thread(self.data_keys.destroy, window_id)

    def _purge(self, db: SealedDatabase, window_id: WindowId) -> None:
        sql.check_ended(db, window_id)
        self.logs.purge(window_id, sql.read_chosen(db, window_id) or b"")
        purge_window(db, window_id)
        self._writes.erased = True


def _end_lost(db: SealedDatabase, window_ids: Sequence[WindowId]) -> None:
    """Abort the windows whose logs are lost: receipts were given for reports that no release can count any more."""
    open_states = frozenset({WindowState.ANNOUNCED, WindowState.COLLECTING, WindowState.AGREEING})
    for window_id in window_ids:
        change = WindowChange(
            window_id=window_id,
            required=open_states,
            new_state=WindowState.ABORTED,
            abort_reason=AbortReason.LOG_LOST.value,
        )
        sql.apply_change(db, change, None)
        log.error("window_ended_without_its_log", window=window_id.hex())
