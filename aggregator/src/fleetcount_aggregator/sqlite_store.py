"""The durable store: one SQLite file, one writer thread that commits many writes together, one reader thread.

Runs statements (sqlite_rows) and owns transactions; decides nothing about the protocol.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from fleetcount_protocol.errors import FleetcountError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId

from fleetcount_aggregator import sqlite_rows
from fleetcount_aggregator.sqlite_schema import connect, lock_file
from fleetcount_aggregator.store import (
    CompleteReport,
    InstalmentRow,
    LedgerRow,
    Outcome,
    ReportRow,
    ReportStatus,
    SessionRow,
    Step,
    StoreBusyError,
    StoreError,
    TaskChange,
    TaskRow,
)

__all__ = ["SqliteStore"]

QUEUE_LENGTH: Final = 4096
"""Writes waiting for the disk before the store says it is busy."""
GROUP: Final = 512
"""Writes committed together at most."""


@dataclass(slots=True)
class _Write:
    """One queued write and the future that waits for its commit."""

    operation: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
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
    """Implements `Store` over `path`. WAL, synchronous FULL: a write is answered after the disk has it."""

    def __init__(self, path: Path, lock: int, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self._path = path
        self._lock = lock
        self._writer = writer
        self._reader = reader
        self._queue: queue.Queue[_Write | None] = queue.Queue(QUEUE_LENGTH)
        self._closed = False
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._read_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._thread.start()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or make the store.

        Raises:
            StoreError: another process holds it, the file is no store, or its schema is unknown.
        """
        lock = lock_file(path.with_name(path.name + ".lock"))
        try:
            writer = connect(path)
            reader = connect(path)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, writer, reader)

    # The writer thread.

    def _write_loop(self) -> None:
        while (first := self._queue.get()) is not None:
            group, ending = self._gather(first)
            self._commit(group)
            for write in group:
                write.answer()
            if ending:
                return

    def _gather(self, first: _Write) -> tuple[list[_Write], bool]:
        group = [first]
        while len(group) < GROUP:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return group, True
            group.append(following)
        return group, False

    def _commit(self, group: Sequence[_Write]) -> None:
        """Run a group in one transaction; a failed commit fails every write of it, a failed write only itself."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for write in group:
                self._run(write)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            failure = StoreError(f"{self._path} could not commit: {error}")
            for write in group:
                write.error = failure
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _run(self, write: _Write) -> None:
        self._writer.execute("SAVEPOINT one")
        try:
            write.result = write.operation(self._writer)
        except sqlite3.Error:
            raise
        except Exception as error:
            # The top of a queued write: whatever went wrong in it, the only writer thread must live on.
            expected = isinstance(error, FleetcountError)
            write.error = error if expected else StoreError(f"{self._path} could not write: {type(error).__name__}")
            self._writer.execute("ROLLBACK TO one")
        self._writer.execute("RELEASE one")

    async def _write(self, operation: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        loop = asyncio.get_running_loop()
        write = _Write(operation, loop, loop.create_future())
        try:
            self._queue.put_nowait(write)
        except queue.Full as error:
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
        os.close(self._lock)

    # The rows. Each method names its statement; the types are those of `Store`.

    async def add_session(self, row: SessionRow) -> None:
        """See `Store.add_session`."""
        await self._write(lambda db: sqlite_rows.add_session(db, row))

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """See `Store.session`."""
        row: SessionRow | None = await self._read(lambda db: sqlite_rows.read_session(db, session_id))
        return row

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

    async def add_instalments(self, rows: Sequence[InstalmentRow]) -> Sequence[Outcome]:
        """See `Store.add_instalments`."""
        outcomes: Sequence[Outcome] = await self._write(
            lambda db: [sqlite_rows.add_instalment(db, row) for row in rows]
        )
        return outcomes

    async def instalment_digest(self, task_id: TaskId, report_id: ReportId, round_number: int) -> Digest | None:
        """See `Store.instalment_digest`."""
        digest: Digest | None = await self._read(
            lambda db: sqlite_rows.read_digest(db, task_id, report_id, round_number)
        )
        return digest

    async def count_rejections(self, task_id: TaskId, counts: Mapping[RejectReason, int]) -> None:
        """See `Store.count_rejections`."""
        await self._write(lambda db: sqlite_rows.count_rejections(db, task_id, counts))

    async def rejections(self, task_id: TaskId) -> Mapping[RejectReason, int]:
        """See `Store.rejections`."""
        counts: Mapping[RejectReason, int] = await self._read(lambda db: sqlite_rows.read_rejections(db, task_id))
        return counts

    async def complete_reports(self, task_id: TaskId, limit: int) -> Sequence[CompleteReport]:
        """See `Store.complete_reports`."""
        rows: Sequence[CompleteReport] = await self._read(lambda db: sqlite_rows.complete_reports(db, task_id, limit))
        return rows

    async def reports(
        self, task_id: TaskId, *, status: ReportStatus | None = None, batch: int | None = None, after: bytes = b""
    ) -> Sequence[ReportRow]:
        """See `Store.reports`."""
        rows: Sequence[ReportRow] = await self._read(
            lambda db: sqlite_rows.read_reports(db, task_id, status, batch, after)
        )
        return rows

    async def report(self, task_id: TaskId, report_id: ReportId) -> ReportRow | None:
        """See `Store.report`."""
        row: ReportRow | None = await self._read(lambda db: sqlite_rows.read_report(db, task_id, report_id))
        return row

    async def step(self, task_id: TaskId, name: str) -> Step | None:
        """See `Store.step`."""
        step: Step | None = await self._read(lambda db: sqlite_rows.read_step(db, task_id, name))
        return step

    async def apply(self, change: TaskChange) -> Step | None:
        """See `Store.apply`."""
        step: Step | None = await self._write(lambda db: sqlite_rows.apply_change(db, change))
        return step

    async def ledger(self) -> Sequence[LedgerRow]:
        """See `Store.ledger`."""
        rows: Sequence[LedgerRow] = await self._read(sqlite_rows.read_ledger)
        return rows

    async def remember_mark(self, peer: AggregatorId, ledger_rows: int) -> None:
        """See `Store.remember_mark`."""
        await self._write(lambda db: sqlite_rows.remember_mark(db, peer, ledger_rows))

    async def marks(self) -> Mapping[AggregatorId, int]:
        """See `Store.marks`."""
        marks: Mapping[AggregatorId, int] = await self._read(sqlite_rows.read_marks)
        return marks

    async def purge(self, task_id: TaskId) -> None:
        """See `Store.purge`."""
        await self._write(lambda db: sqlite_rows.purge_task(db, task_id))
