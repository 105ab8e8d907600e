"""The durable store: reports in append-only logs, the rest in a database; one writer thread, one reader thread.

What is written goes through one queue (`write_queue`). Decides nothing about the protocol.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import numpy as np
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.ids import Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.malloc import give_back
from fleetcount_aggregator.host.states import FINAL_STATES, AbortReason
from fleetcount_aggregator.storage import ended, question_rows
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.data_keys import ChainSeal, DataKeys, StoreKeys
from fleetcount_aggregator.storage.database import Database, SealedDatabase, reseal
from fleetcount_aggregator.storage.engine import Engine, SealedEngine
from fleetcount_aggregator.storage.errors import Damage, FencedError, StoreError
from fleetcount_aggregator.storage.instalment_run import USE_BYTES, InstalmentRun
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.question_rows import reseal_seeds
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_repair import damage_at_start
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    DecidedWindow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.session_chains import PackedSession, moved_on
from fleetcount_aggregator.storage.session_rows import put_chains, read_chains
from fleetcount_aggregator.storage.sqlite_engine import SqliteEngine
from fleetcount_aggregator.storage.write_queue import WriteQueue

T = TypeVar("T")
P = ParamSpec("P")
_MOVED_AT_ONCE = 4096


def move_to_present_key(engine: SealedEngine, data_keys: DataKeys) -> None:
    """Seal rows, seeds and sessions' chains under the present key if the store lies under the one before it.

    A crash leaves the store as it was, or moved: what is moved already is passed over. A million sessions take seconds.

    Raises:
        StoreError: the store lies under another key than both, or the disk failed.
    """
    if data_keys.seals_store():
        return
    engine.write(lambda db: _reseal(db, data_keys))
    engine.unsealed.checkpoint()
    data_keys.note_seals_store()


def _reseal(db: SealedDatabase, data_keys: DataKeys) -> None:
    seal = ChainSeal(data_keys.chain_keys, SystemRandom())
    reseal_seeds(db, data_keys)
    reseal(db)
    above = b""
    while rows := db.execute(
        "SELECT session_id, chain FROM chains WHERE session_id > ? ORDER BY session_id LIMIT ?",
        (above, _MOVED_AT_ONCE),
    ).fetchall():
        put_chains(db, [(name, moved) for name, chain in rows if (moved := seal.resealed(name, chain)) is not None])
        above = rows[-1][0]


_OPEN: Final = frozenset({None, WindowState.ANNOUNCED, WindowState.COLLECTING})
"""States of a window that takes instalments, and none, which a change does not move it to."""
USES_AT_ONCE: Final = 256
"""Keys erased between two turns of the event loop: some 10 ms."""


class Store:
    """The durable memory of one aggregator; a write returns after it is durable, any method may raise StoreError."""

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
        self._engine = self.engine = engine.unsealed
        self._place = engine.unsealed.place
        self._damaged = tuple(damaged)
        self.logs = logs
        """The report logs."""
        self._closed = False
        self.unpurged: Final = tuple(unpurged)
        """The ended windows whose purge a crash has cut off before this start."""
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
            data_keys = DataKeys(at_rest_key, engine.key_store(), former)
            sealed = SealedEngine(engine, StoreKeys(at_rest_key, former).row_seal)
            # Before the first row is read: under a wrong key every one of them seems damaged.
            data_keys.seals_store()
            backend = engine.log_backend(path)
            logs = opened.enter_context(closing(ReportLogs(backend, data_keys, alone=engine.alone)))
            states = sealed.read(sql.read_log_states)
            if aside := backend.put_aside(states):
                sealed.write(lambda db: _end_lost(db, aside))
                states = sealed.read(sql.read_log_states)
            needed = [one.window_id for one in states if not one.ended or backend.holds(one.window_id)]
            damaged = data_keys.take_up(needed)
            # After the data keys, which `take_up` wraps anew: what it notes last says that nothing is left to move.
            move_to_present_key(sealed, data_keys)
            keyless = {one.window_id for one in damaged}
            # Without its key a log cannot be read either, which is one damage and not two.
            damaged += [one for one in logs.open(states) if one.window_id not in keyless]
            damaged += sealed.read(damage_at_start)
            rows, over = sealed.read(ended.read_unpurged), [one.window_id for one in states if one.ended]
            keys = data_keys.held()
            left = [one for one in over if one in rows or backend.has_leftovers(one) or one in keys]
            engine.release_memory()
            give_back()
            opened.pop_all()
        return cls(sealed, logs, data_keys, left, damaged)

    # What is read and written is said by functions of a database (`rows`, `question_rows`, `ended`, `row_repair`).

    async def read(self, work: Callable[Concatenate[SealedDatabase, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Run work that only reads, on the database and these arguments."""

        def reading(db: SealedDatabase) -> T:
            return work(db, *args, **named)

        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._read_pool, self._sealed.read, reading)

    async def write(self, work: Callable[Concatenate[SealedDatabase, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Run work that writes, in one transaction: all or nothing, and nothing from a process that does not lead.

        Raises:
            FencedError: another process leads.
        """
        self._check_open()
        return await self._writes.write(lambda db: work(db, *args, **named), leading=True)

    async def write_unfenced(
        self, work: Callable[Concatenate[SealedDatabase, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run work that writes, also from a process that does not lead; for what does not happen once a window.

        Such are opening sessions, counting refusals and showing that it can write.
        """
        self._check_open()
        return await self._writes.write(lambda db: work(db, *args, **named), leading=False)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._place} is closed")

    @property
    def retries(self) -> int:
        """How many of its transactions were begun again since others stood in their way."""
        return self._engine.retries

    async def probe(self) -> None:
        """Write something that changes nothing, durably; raises StoreError if nothing can be written."""
        await self.write_unfenced(lambda db: db.execute("UPDATE instance SET store_state = store_state"))

    async def close(self) -> None:
        """Finish the queued writes and close the files."""
        if self._closed:
            return
        self._closed = True  # First, so that nothing is queued behind the end of the queue.
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self._writes.close()
        self._read_pool.shutdown()
        self.logs.close()
        self._engine.close()

    async def key_uses(self, window_id: WindowId) -> bytes:
        """Return which keys opened a window's instalments (`InstalmentRun.key_uses`), in any order; none once
        purged.
        """
        return await self.read(lambda _: self.logs.key_uses(window_id))

    async def erase_window_keys(
        self, seal: ChainSeal, live: MutableMapping[bytes, PackedSession], window_id: WindowId
    ) -> None:
        """Take the keys of an ended window's reports out of every chain, in the store and in memory.

        In slices, each durable: doing it again after a crash finishes it, and then changes nothing.
        """
        uses = await self.key_uses(window_id)
        # Sorted as the store has them, so that each of its pages is written once; a million take a second.
        rows = await asyncio.to_thread(np.unique, np.frombuffer(uses, dtype=f"V{USE_BYTES}"))
        for start in range(0, len(rows), USES_AT_ONCE):
            numbers: dict[bytes, list[int]] = {}
            for row in map(bytes, rows[start : start + USES_AT_ONCE]):
                numbers.setdefault(row[: SessionId.SIZE], []).append(int.from_bytes(row[SessionId.SIZE :]))
            found = await self.read(read_chains, list(numbers))
            moved = await asyncio.to_thread(moved_on, seal, found, numbers)
            for session_id, _, chain in moved:
                if chain is None:
                    live.pop(session_id, None)
                elif session_id in live:
                    live[session_id] = live[session_id].with_chain(chain)
            if moved:
                await self.write(put_chains, [(session_id, sealed) for session_id, sealed, _ in moved])

    async def damaged(self) -> Sequence[Damage]:
        """Return what was found damaged when the store was opened; of ended windows it shows later.

        Another process may have settled some of it since this one started.
        """
        if self._damaged and not self._engine.alone:
            self._damaged = await self.read(self._still_damaged)
        return self._damaged

    def _still_damaged(self, db: SealedDatabase) -> tuple[Damage, ...]:
        unended = {one.window_id for one in sql.read_log_states(db) if not one.ended}
        files = (one for one in self._damaged if one.table in {"log", "data key"} and one.window_id in unended)
        return *files, *damage_at_start(db)

    async def decide_windows(self, rows: Sequence[DecidedWindow], window: WindowRow | None = None) -> None:
        """Remember what was decided about windows and install the window of one of them: all of it or nothing.

        A window that is there stays as it is.

        Raises:
            StoreError: one of the windows is decided already, otherwise; then nothing changes.
        """
        if window is not None and window.state not in FINAL_STATES:
            # Durable before the row that needs it: a key without a window does no harm, a window without one is lost.
            await asyncio.to_thread(self.data_keys.make, window.window_id)
        await self.write(self._decide_windows, rows, window)

    def _decide_windows(self, db: SealedDatabase, rows: Sequence[DecidedWindow], window: WindowRow | None) -> None:
        question_rows.decide_windows(db, rows, window)
        if window is not None:
            self.logs.backend.install(db, window.window_id)

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """Store instalments with one sync a window; for each run one byte of `StoreOutcome` an instalment, in order."""
        self._check_open()
        return await self._writes.append(runs)

    async def instalment_digests(
        self, window_id: WindowId, report_ids: Sequence[ReportId], round_number: int
    ) -> list[Digest | None]:
        """Return the digests of stored instalments, in order, None for each that is not stored."""
        return await self.read(lambda _: self.logs.digests(window_id, report_ids, round_number))

    async def complete_reports(self, window_id: WindowId) -> CompleteReports:
        """Return the complete reports of a window, until it is purged: the same ever after intake is closed."""
        return await self.read(
            lambda db: self.logs.complete(window_id, closed=not sql.takes_instalments(db, window_id))
        )

    async def reports_of(self, window_id: WindowId, devices: bytes) -> bytes:
        """Return the ids of the reports of a window under way that these devices sent, joined, in any order.

        `devices` are the digests of their public keys, n x 32.
        """
        return await self.read(lambda _: self.logs.reports_of(window_id, devices))

    async def apply(self, change: WindowChange) -> StepRow | None:
        """Apply a change; return the stored step if `change.step` had been taken before (then nothing is applied).

        Raises:
            StateConflictError: the window is not in a required state, or the table forbids the move.
        """
        if change.new_state not in _OPEN and self.logs.backend.shared:
            # First nothing more is taken by anybody. What lies there is read here, and not in the transaction that
            # counts it.
            await asyncio.to_thread(self._close_window, change)
            if change.new_state is WindowState.AGREEING:
                await self.read(lambda _: self.logs.incomplete(change.window_id))
        return await self.write(self._apply, change)

    def _close_window(self, change: WindowChange) -> None:
        if problem := self._engine.durability_problem():
            raise StoreError(problem)
        self._engine.write_blocking(lambda db: self._close(db, change))

    def _close(self, db: Database, change: WindowChange) -> None:
        if not self._engine.leads(db):
            raise FencedError(f"{self._place} is led by another process: nothing was written")
        # Who is refused below closes nothing.
        if sql.plain_state(db, change.window_id) in change.required:
            self.logs.backend.close_window(db, change.window_id)

    def _apply(self, db: SealedDatabase, change: WindowChange) -> StepRow | None:
        held = None
        # A million reports are gone through once, when intake really closes, and not whenever that is asked for.
        if change.new_state is WindowState.AGREEING and sql.takes_instalments(db, change.window_id):
            logs, window_id = self.logs, change.window_id
            held = sql.Closing(logs.length(window_id), logs.incomplete(window_id), *logs.left_out(window_id))
        return sql.apply_change(db, change, held)

    def forget_destroyed(self) -> None:
        """Evict the windows whose data key another process has destroyed; for a thread. Raises StoreError."""
        for window_id in self.data_keys.forget_destroyed():
            self.logs.evict(window_id)

    async def purge(self, window_id: WindowId) -> None:
        """Delete what an ended window no longer needs: share parts, batches, transient steps, its data key; never
        digests.

        An instalment that comes again is still known by its bytes, and which reports were in the set stays known. The
        data key goes last, once the end of the window is durable.

        Raises:
            StoreError: the window has not ended.
        """
        if self._engine.heartbeat_s is None:
            await self.write(self._purge, window_id)
        else:
            # A server ends a transaction in which nothing is said for long, and a million digests take that long.
            included = await self.write(self._ended_set, window_id)
            await self.read(lambda _: self.logs.purge(window_id, included))
            await self.write(ended.purge_window, window_id)
        # Only when the end of the window and of its rows is on the disk: a key that is gone cannot be had back.
        await asyncio.to_thread(self.data_keys.destroy, window_id)

    def _purge(self, db: SealedDatabase, window_id: WindowId) -> None:
        self.logs.purge(window_id, self._ended_set(db, window_id))
        ended.purge_window(db, window_id)
        self._writes.erased = True

    def _ended_set(self, db: SealedDatabase, window_id: WindowId) -> bytes:
        sql.check_ended(db, window_id)
        return sql.read_included(db, window_id) or b""

    async def retire(self, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]) -> None:
        """Delete the digests of archived windows, and their steps but for those kept by the state they ended in.

        Doing it again changes nothing; an active window is passed over.
        """
        await self.write(self._retire, window_ids, kept)

    def _retire(
        self, db: SealedDatabase, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]
    ) -> None:
        # Before the commit: a crash in between leaves archived windows, which are retired again.
        for window_id in ended.retire_windows(db, window_ids, kept):
            self.logs.forget(window_id)


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


async def every_batch(store: Store, window_id: WindowId) -> AsyncIterator[BatchRow]:
    """Yield the batches of a window by number; few are in memory at a time."""
    above = -1
    while rows := await store.read(sql.read_batches, window_id, above):
        for row in rows:
            yield row
        above = rows[-1].number
