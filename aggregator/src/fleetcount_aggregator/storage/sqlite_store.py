"""The durable store: reports in append-only logs, the rest in one SQLite file; one writer thread, one reader thread.

The writer takes what waits as one group: instalments first, with one sync a task (report_logs), then everything else in
one transaction (sqlite_rows). So closing intake never overtakes an instalment. Decides nothing about the protocol.
"""

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from fleetcount_protocol.errors import FleetcountError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SeriesId, SessionId, TaskId
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.states import AbortReason, State
from fleetcount_aggregator.storage import series_rows, sqlite_rows
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.sqlite_schema import connect, lock_file
from fleetcount_aggregator.storage.store import (
    BatchRow,
    CompleteReports,
    InstalmentRun,
    LedgerRow,
    SeriesRow,
    SessionRow,
    StepRow,
    StoreBusyError,
    StoreError,
    TaskChange,
    TaskRow,
    WindowRow,
)

__all__ = ["SqliteStore"]

QUEUE_LENGTH: Final = 4096
"""Writes waiting for the disk before the store says it is busy."""
QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of instalments waiting, likewise."""
GROUP: Final = 512
"""Writes committed together at most."""
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of instalments from which on a group takes no more."""
NOTE_S: Final = 1.0
"""Seconds between two notes in the database of a log's length, which show later if the file has lost its end."""


@dataclass(slots=True)
class _Write:
    """One queued write and the future that waits for it: instalments, or an operation on the database."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    operation: Callable[[sqlite3.Connection], Any] | None = None
    instalments: Sequence[InstalmentRun] = ()
    size: int = 0
    result: Any = None
    error: Exception | None = field(default=None)

    def answer(self) -> None:
        """Hand the result to the event loop; a loop or a waiter that is gone is no error."""
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return

    def _resolve(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SqliteStore:
    """Implements `Store` over `path` and logs beside it. A write is answered after the disk has it."""

    def __init__(
        self, path: Path, lock: int, writer: sqlite3.Connection, reader: sqlite3.Connection, logs: ReportLogs
    ) -> None:
        self._path = path
        self._lock = lock
        self._writer = writer
        self._reader = reader
        self._logs = logs
        self._queue: queue.Queue[_Write | None] = queue.Queue(QUEUE_LENGTH)
        self._queued_bytes = 0
        self._queued_lock = threading.Lock()
        self._closed = False
        self._note_at: float | None = None
        """When the lengths of logs that grew are to be noted at the latest."""
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._read_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._thread.start()

    @classmethod
    def open(cls, path: Path, log_key: bytes) -> Self:
        """Open or make the store; finish what a crash left of purging. `log_key`: `at_rest.report_log_key`.

        Raises:
            StoreError: another process holds it, a file is no store, damaged, of an unknown schema or another key.
        """
        lock = lock_file(path.with_name(path.name + ".lock"))
        with ExitStack() as opened:
            opened.callback(os.close, lock)
            writer = opened.enter_context(closing(connect(path)))
            reader = opened.enter_context(closing(connect(path)))
            logs = opened.enter_context(closing(ReportLogs(path, log_key)))
            states = sqlite_rows.read_log_states(writer)
            if given_up := logs.given_up(states):
                _end_lost(writer, given_up)
                states = sqlite_rows.read_log_states(writer)
            logs.open(states)
            unpurged = sqlite_rows.read_unpurged(writer)
            left = [one.task_id for one in states if one.ended and (one.task_id in unpurged or logs.holds(one.task_id))]
            _purge_ended(writer, logs, left)
            opened.pop_all()
        return cls(path, lock, writer, reader, logs)

    # The writer thread.

    def _write_loop(self) -> None:
        ending = False
        while not ending:
            group, ending = self._gather()
            self._append([write for write in group if write.operation is None])
            self._commit([write for write in group if write.operation is not None], ending=ending)
            for write in group:
                write.answer()

    def _gather(self) -> tuple[list[_Write], bool]:
        """Return the next group, which is empty when only the lengths of logs are to be noted, and whether to end."""
        group: list[_Write] = []
        size = 0
        wait_s = None if self._note_at is None else max(0.0, self._note_at - time.monotonic())
        with suppress(queue.Empty):
            following = self._queue.get(timeout=wait_s)
            while following is not None:
                group.append(following)
                size += following.size
                if len(group) == GROUP or size >= GROUP_BYTES:
                    break
                following = self._queue.get_nowait()
            else:
                return self._gathered(group, size), True
        return self._gathered(group, size), False

    def _gathered(self, group: list[_Write], size: int) -> list[_Write]:
        with self._queued_lock:
            self._queued_bytes -= size
        return group

    def _append(self, group: Sequence[_Write]) -> None:
        """Store the instalments of a group; nothing of what fails is promised."""
        if not group:
            return
        try:
            answers = self._logs.add(
                [write.instalments for write in group], lambda task: sqlite_rows.takes_instalments(self._writer, task)
            )
        except Exception as error:
            # The top of a queued write, as in `_run`.
            failure = StoreError(f"{self._path} could not take instalments: {type(error).__name__}")
            answers = [failure] * len(group)
        if self._note_at is None:
            self._note_at = time.monotonic() + NOTE_S
        for write, answer in zip(group, answers, strict=True):
            if isinstance(answer, StoreError):
                write.error = answer
            else:
                write.result = answer

    def _commit(self, group: Sequence[_Write], *, ending: bool) -> None:
        """Run operations in one transaction; a failed commit fails every one of them, a failed one only itself.

        The durable lengths of logs go along: with any operation, `NOTE_S` after an instalment, and at the end.
        """
        due = self._note_at is not None and (ending or time.monotonic() >= self._note_at)
        if not group and not due:
            return
        lengths = self._logs.unnoted()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            sqlite_rows.note_durable(self._writer, lengths)
            for write in group:
                self._run(write)
            self._writer.execute("COMMIT")
            self._logs.note(lengths)
            self._note_at = None
        except sqlite3.Error as error:
            failure = StoreError(f"{self._path} could not commit: {error}")
            for write in group:
                write.error = failure
            if self._note_at is not None:
                self._note_at = time.monotonic() + NOTE_S
            # A failing disk may fail this too: then the next transaction cannot begin, and says so.
            with suppress(sqlite3.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _run(self, write: _Write) -> None:
        self._writer.execute("SAVEPOINT one")
        try:
            write.result = write.operation(self._writer) if write.operation is not None else None
        except sqlite3.Error:
            raise
        except Exception as error:
            # The top of a queued write: after any error in it, the only writer thread must live on.
            expected = isinstance(error, FleetcountError)
            write.error = error if expected else StoreError(f"{self._path} could not write: {type(error).__name__}")
            self._writer.execute("ROLLBACK TO one")
        self._writer.execute("RELEASE one")

    async def _write(self, operation: Callable[[sqlite3.Connection], Any]) -> Any:
        loop = asyncio.get_running_loop()
        return await self._submit(_Write(loop, loop.create_future(), operation=operation))

    async def _submit(self, write: _Write) -> Any:
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        with self._queued_lock:
            waiting = self._queued_bytes
            if waiting and waiting + write.size > QUEUE_BYTES:
                raise StoreBusyError(f"{self._path} has {waiting} bytes of instalments waiting")
            self._queued_bytes += write.size
        try:
            self._queue.put_nowait(write)
        except queue.Full as error:
            with self._queued_lock:
                self._queued_bytes -= write.size
            raise StoreBusyError(f"{self._path} has {QUEUE_LENGTH} writes waiting") from error
        return await write.future

    async def _read(self, operation: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._read_pool, operation, self._reader)
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} could not be read: {error}") from error

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._read_pool.shutdown()
        self._reader.close()
        self._writer.close()
        self._logs.close()
        os.close(self._lock)

    # The rows. Each method names its statement; the types are those of `Store`.

    async def add_session(self, row: SessionRow) -> None:
        """See `Store.add_session`."""
        await self._write(lambda db: sqlite_rows.add_session(db, row))

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """See `Store.session`."""
        row: SessionRow | None = await self._read(lambda db: sqlite_rows.read_session(db, session_id))
        return row

    async def sessions(self, session_ids: Sequence[SessionId]) -> Sequence[SessionRow]:
        """See `Store.sessions`."""
        rows: Sequence[SessionRow] = await self._read(lambda db: sqlite_rows.read_sessions(db, session_ids))
        return rows

    async def sessions_of(self, certificate: Digest, now: int) -> int:
        """See `Store.sessions_of`."""
        count: int = await self._read(lambda db: sqlite_rows.read_sessions_of(db, certificate, now))
        return count

    async def forget_sessions(self, expired_before: int) -> None:
        """See `Store.forget_sessions`."""
        await self._write(lambda db: sqlite_rows.forget_sessions(db, expired_before))

    async def install(self, row: TaskRow) -> TaskRow:
        """See `Store.install`."""
        stored: TaskRow = await self._write(lambda db: sqlite_rows.install_task(db, row))
        return stored

    async def tasks(self) -> Sequence[TaskRow]:
        """See `Store.tasks`."""
        rows: Sequence[TaskRow] = await self._read(sqlite_rows.read_tasks)
        return rows

    async def task(self, task_id: TaskId) -> TaskRow | None:
        """See `Store.task`."""
        row: TaskRow | None = await self._read(lambda db: sqlite_rows.read_task(db, task_id))
        return row

    async def states(self) -> Mapping[TaskId, State]:
        """See `Store.states`."""
        states: Mapping[TaskId, State] = await self._read(sqlite_rows.read_states)
        return states

    async def released_without(self, step: str) -> Sequence[TaskId]:
        """See `Store.released_without`."""
        found: Sequence[TaskId] = await self._read(lambda db: sqlite_rows.read_released_without(db, step))
        return found

    async def install_series(self, row: SeriesRow) -> SeriesRow:
        """See `Store.install_series`."""
        stored: SeriesRow = await self._write(lambda db: series_rows.install_series(db, row))
        return stored

    async def series(self) -> Sequence[SeriesRow]:
        """See `Store.series`."""
        rows: Sequence[SeriesRow] = await self._read(series_rows.read_series)
        return rows

    async def note_series(self, series_id: SeriesId, name: str, note: bytes) -> None:
        """See `Store.note_series`."""
        await self._write(lambda db: series_rows.note_series(db, series_id, name, note))

    async def series_notes(self, series_id: SeriesId) -> Mapping[str, bytes]:
        """See `Store.series_notes`."""
        notes: Mapping[str, bytes] = await self._read(lambda db: series_rows.read_notes(db, series_id))
        return notes

    async def decide_windows(self, rows: Sequence[WindowRow], task: TaskRow | None = None) -> None:
        """See `Store.decide_windows`."""
        await self._write(lambda db: series_rows.decide_windows(db, rows, task))

    async def windows(self, series_id: SeriesId, *, above: int = -1) -> Sequence[WindowRow]:
        """See `Store.windows`."""
        rows: Sequence[WindowRow] = await self._read(lambda db: series_rows.read_windows(db, series_id, above))
        return rows

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`."""
        loop = asyncio.get_running_loop()
        write = _Write(loop, loop.create_future(), instalments=runs, size=sum(run.size for run in runs))
        outcomes: Sequence[bytes] = await self._submit(write)
        return outcomes

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        digest: Digest | None = await self._read(lambda _: self._logs.digest(task_id, report_id, round_number))
        return digest

    async def count_rejections(self, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
        """See `Store.count_rejections`."""
        await self._write(lambda db: sqlite_rows.count_rejections(db, task_id, counts))

    async def rejections(self, task_id: TaskId) -> Mapping[RejectReason, int]:
        """See `Store.rejections`."""
        counts: Mapping[RejectReason, int] = await self._read(lambda db: sqlite_rows.read_rejections(db, task_id))
        return counts

    async def complete_reports(self, task_id: TaskId) -> CompleteReports:
        """See `Store.complete_reports`."""
        found: CompleteReports = await self._read(
            lambda db: self._logs.complete(task_id, closed=not sqlite_rows.takes_instalments(db, task_id))
        )
        return found

    async def reports_of(self, task_id: TaskId, devices: bytes) -> bytes:
        """See `Store.reports_of`."""
        found: bytes = await self._read(lambda _: self._logs.reports_of(task_id, devices))
        return found

    async def batches(self, task_id: TaskId, *, above: int = -1) -> Sequence[BatchRow]:
        """See `Store.batches`."""
        rows: Sequence[BatchRow] = await self._read(lambda db: sqlite_rows.read_batches(db, task_id, above))
        return rows

    async def batch(self, task_id: TaskId, number: int) -> BatchRow | None:
        """See `Store.batch`."""
        row: BatchRow | None = await self._read(lambda db: sqlite_rows.read_batch(db, task_id, number))
        return row

    async def chosen(self, task_id: TaskId) -> bytes | None:
        """See `Store.chosen`."""
        chosen: bytes | None = await self._read(lambda db: sqlite_rows.read_chosen(db, task_id))
        return chosen

    async def step(self, task_id: TaskId, name: str) -> StepRow | None:
        """See `Store.step`."""
        step: StepRow | None = await self._read(lambda db: sqlite_rows.read_step(db, task_id, name))
        return step

    async def apply(self, change: TaskChange) -> StepRow | None:
        """See `Store.apply`."""
        step: StepRow | None = await self._write(lambda db: self._apply(db, change))
        return step

    def _apply(self, db: sqlite3.Connection, change: TaskChange) -> StepRow | None:
        held = None
        # A million reports are gone through once, when intake really closes, and not whenever that is asked for.
        if change.new_state is State.AGREEING and sqlite_rows.takes_instalments(db, change.task_id):
            held = sqlite_rows.Closing(self._logs.length(change.task_id), self._logs.incomplete(change.task_id))
        return sqlite_rows.apply_change(db, change, held)

    async def ledger(self) -> Sequence[LedgerRow]:
        """See `Store.ledger`."""
        rows: Sequence[LedgerRow] = await self._read(sqlite_rows.read_ledger)
        return rows

    async def raise_high_water(self, peer: AggregatorId, ledger_rows: int) -> None:
        """See `Store.raise_high_water`."""
        await self._write(lambda db: sqlite_rows.raise_high_water(db, peer, ledger_rows))

    async def high_water(self) -> Mapping[AggregatorId, int]:
        """See `Store.high_water`."""
        marks: Mapping[AggregatorId, int] = await self._read(sqlite_rows.read_high_water)
        return marks

    async def purge(self, task_id: TaskId) -> None:
        """See `Store.purge`."""
        await self._write(lambda db: _purge(db, self._logs, task_id))


def _purge(db: sqlite3.Connection, logs: ReportLogs, task_id: TaskId) -> None:
    logs.purge(task_id, sqlite_rows.read_chosen(db, task_id) or b"")
    sqlite_rows.purge_task(db, task_id)


def _end_lost(db: sqlite3.Connection, task_ids: Sequence[TaskId]) -> None:
    """Abort the tasks whose logs are lost: receipts were given for reports that no release can count any more."""
    open_states = frozenset({State.ANNOUNCED, State.COLLECTING, State.AGREEING})
    db.execute("BEGIN IMMEDIATE")
    for task_id in task_ids:
        change = TaskChange(
            task_id=task_id, required=open_states, new_state=State.ABORTED, abort_reason=AbortReason.LOG_LOST.value
        )
        sqlite_rows.apply_change(db, change, None)
        log.error("task_ended_without_its_log", task=task_id.hex())
    db.execute("COMMIT")


def _purge_ended(db: sqlite3.Connection, logs: ReportLogs, task_ids: Sequence[TaskId]) -> None:
    """Finish what a crash left between the end of a task and its purge."""
    db.execute("BEGIN IMMEDIATE")
    for task_id in task_ids:
        _purge(db, logs, task_id)
    db.execute("COMMIT")
