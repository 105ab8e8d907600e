"""The one writer of a store: a queue, and a thread that takes what waits as one group.

Instalments go first, with one sync a window (report_logs), then everything else in one transaction (`rows`). So closing
intake never overtakes an instalment. Knows no statement but the one that notes how long logs are.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.engine import SealedEngine
from fleetcount_aggregator.storage.errors import FencedError, StoreBusyError, StoreError
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.report_logs import ReportLogs

T = TypeVar("T")

QUEUE_LENGTH: Final = 4096
"""Writes waiting for the disk before the store says it is busy."""
QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of instalments waiting, likewise."""
GROUP: Final = 512
"""Writes committed together at most."""
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of instalments from which on a group takes no more."""
TOGETHER_S: Final = 0.005
"""Seconds at most for which a write waits for others that are likely to come: a group costs as much as its writes."""
_LOOK_S: Final = 0.001
_LATEST_GROUPS: Final = 8
NOTE_S: Final = 1.0
"""Seconds between two notes in the database of a log's length, which show later if the file has lost its end."""


@dataclass(slots=True)
class _Write:
    """One queued write and the future that waits for it: instalments, or an operation on the database."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    operation: Callable[[SealedDatabase], Any] | None = None
    instalments: Sequence[InstalmentRun] = ()
    size: int = 0
    leading: bool = False
    """Whether it happens once a window, so that only who leads the aggregator may do it."""
    epoch: int | None = None
    """Under which it was asked for: who was followed meanwhile and leads again has read what is old."""
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


class WriteQueue:
    """Writes of one store, answered when they are durable. `write` and `append` are called on an event loop."""

    def __init__(self, engine: SealedEngine, logs: ReportLogs) -> None:
        self.erased = False
        """Whether something was overwritten or deleted that the database's journal still holds as it was."""
        self._sealed = engine
        self._engine = engine.unsealed
        self._place = engine.unsealed.place
        self._logs = logs
        self._queue: queue.Queue[_Write | None] = queue.Queue(QUEUE_LENGTH)
        self._queued_bytes = 0
        self._queued_lock = threading.Lock()
        self._latest = deque([1], maxlen=_LATEST_GROUPS)
        """How many writes the latest groups had."""
        self._note_at: float | None = None
        """When the lengths of logs that grew are to be noted at the latest."""
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, operation: Callable[[SealedDatabase], T], *, leading: bool) -> T:
        """Run an operation in a transaction with others; it may be run again until that is committed.

        Raises:
            FencedError: it is `leading`, and another process leads; nothing of it was written.
            StoreError: it could not be committed, the queue is full, or what the operation raises.
        """
        loop = asyncio.get_running_loop()
        epoch = self._engine.epoch
        write = _Write(loop, loop.create_future(), operation=operation, leading=leading, epoch=epoch)
        result: T = await self._submit(write)
        return result

    async def append(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """Store instalments; see `Store.add_instalments`."""
        loop = asyncio.get_running_loop()
        write = _Write(loop, loop.create_future(), instalments=runs, size=sum(run.size for run in runs))
        outcomes: Sequence[bytes] = await self._submit(write)
        return outcomes

    def close(self) -> None:
        """Finish what waits."""
        self._queue.put(None)
        self._thread.join()

    async def _submit(self, write: _Write) -> Any:
        with self._queued_lock:
            waiting = self._queued_bytes
            if waiting and waiting + write.size > QUEUE_BYTES:
                raise StoreBusyError(f"{self._place} has {waiting} bytes of instalments waiting")
            self._queued_bytes += write.size
        try:
            self._queue.put_nowait(write)
        except queue.Full as error:
            with self._queued_lock:
                self._queued_bytes -= write.size
            raise StoreBusyError(f"{self._place} has {QUEUE_LENGTH} writes waiting") from error
        return await write.future

    # The writer thread.

    def _write_loop(self) -> None:
        ending = False
        while not ending:
            group, ending = self._gather()
            if problem := self._engine.durability_problem():
                for write in group:
                    write.error = StoreError(problem)
            else:
                self._append([write for write in group if write.operation is None])
                self._commit([write for write in group if write.operation is not None], ending=ending)
                self._empty_log()
            for write in group:
                write.answer()

    def _gather(self) -> tuple[list[_Write], bool]:
        """Return the next group, empty when only lengths of logs or a heartbeat are due, and whether to end."""
        group: list[_Write] = []
        size = 0
        wait_s = self._engine.heartbeat_s if self._note_at is None else max(0.0, self._note_at - time.monotonic())
        with suppress(queue.Empty):
            following = self._queue.get(timeout=wait_s)
            self._await_others()
            while following is not None:
                group.append(following)
                size += following.size
                if len(group) == GROUP or size >= GROUP_BYTES:
                    break
                following = self._queue.get_nowait()
            else:
                return self._gathered(group, size), True
        return self._gathered(group, size), False

    def _await_others(self) -> None:
        """Wait for as many writes as the largest of the latest groups had, `TOGETHER_S` at most.

        So who writes alone, one thing after the other, waits for nobody.
        """
        for _ in range(round(TOGETHER_S / _LOOK_S)):
            if 1 + self._queue.qsize() >= max(self._latest):
                return
            time.sleep(_LOOK_S)

    def _gathered(self, group: list[_Write], size: int) -> list[_Write]:
        if group:
            self._latest.append(len(group))
        with self._queued_lock:
            self._queued_bytes -= size
        return group

    def _append(self, group: Sequence[_Write]) -> None:
        """Store the instalments of a group; nothing of what fails is promised."""
        if not group:
            return
        try:
            answers = self._logs.add([write.instalments for write in group], self._takes_instalments)
        except Exception as error:
            # The top of a queued write, as in `_run`.
            failure = StoreError(f"{self._place} could not take instalments: {type(error).__name__}")
            answers = [failure] * len(group)
        if self._note_at is None:
            self._note_at = time.monotonic() + NOTE_S
        for write, answer in zip(group, answers, strict=True):
            if isinstance(answer, StoreError):
                write.error = answer
            else:
                write.result = answer

    def _takes_instalments(self, window_id: WindowId) -> bool:
        return self._sealed.read_as_writer(lambda db: sql.takes_instalments(db, window_id))

    def _commit(self, group: Sequence[_Write], *, ending: bool) -> None:
        """Run operations in one transaction; a failed commit fails every one of them, a failed one only itself.

        The durable lengths of logs go along: with any operation, `NOTE_S` after an instalment, and at the end.
        """
        due = self._note_at is not None and (ending or time.monotonic() >= self._note_at)
        if not group and not due:
            return
        lengths = self._logs.unnoted()

        def work(db: SealedDatabase) -> None:
            sql.note_durable(db, lengths)
            leads = any(write.leading for write in group) and self._engine.leads(db)
            epoch = self._engine.epoch
            for write in group:
                self._run(db, write, leads=leads and write.epoch == epoch)

        try:
            self._sealed.write(work)
        except StoreError as failure:
            for write in group:
                write.error = failure
            if self._note_at is not None:
                self._note_at = time.monotonic() + NOTE_S
        else:
            self._logs.note(lengths)
            self._note_at = None

    def _empty_log(self) -> None:
        """Fold in the database's journal once something was erased; where that fails, the next group tries again."""
        self.erased = self.erased and not self._engine.checkpoint()

    def _run(self, db: SealedDatabase, write: _Write, *, leads: bool) -> None:
        write.result, write.error = None, None  # It may be run again.
        if write.leading and not leads:
            write.error = FencedError(f"{self._place} is led by another process: nothing was written")
            return
        db.execute("SAVEPOINT one")
        try:
            write.result = write.operation(db) if write.operation is not None else None
        except self._engine.fatal:
            raise
        except Exception as error:
            # The top of a queued write: after any error in it, the only writer thread must live on.
            expected = isinstance(error, FleetcountError)
            write.error = error if expected else StoreError(f"{self._place} could not write: {type(error).__name__}")
            db.execute("ROLLBACK TO SAVEPOINT one")
        db.execute("RELEASE SAVEPOINT one")
