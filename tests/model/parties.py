"""The parties of the model: aggregators in one thread and one loop, disks in memory, clocks that are told the time.

What is replaced is the machine alone: threads, disks, timers, connections. Nothing here decides for an aggregator.
"""

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.storage.engine import SealedEngine
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_types import WindowChange
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.write_queue import WriteQueue
from fleetcount_aggregator.verification.workers import Workers
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_transport.denials import Denials

from tests.model.remembering import RememberingWorkers, SignsOnce
from tests.support.aggregators import AheadClock, Network, Seat, SimulatedCrashError
from tests.support.stores import shut


class ModelLoop(asyncio.SelectorEventLoop):
    """Runs what goes to threads at once and asks for no file: the order of events follows from the operations alone.

    Timers of the machine's clock never go off: what waits for time waits for that of the world.
    """

    def _run_once(self) -> None:
        ready: Any = getattr(self, "_ready")  # noqa: B009 - not in the stubs.
        if not ready:
            raise AssertionError("everything waits for something that never comes")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Return a timer that never goes off."""
        return asyncio.TimerHandle(when, callback, args, self, context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Return a future that is done."""
        del executor
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # Whoever waits gets it.
            done.set_exception(error)
        return done


class NoMetrics:
    """Counts nothing: nothing is decided by counters."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class InlineWrites(WriteQueue):
    """Writes that are done where they are asked for, each a group of its own: no order of threads decides anything."""

    def _write_loop(self) -> None:
        """Nothing waits."""

    async def _submit(self, write: Any) -> Any:
        if write.operation is None:
            self._append([write])
        else:
            self._commit([write], ending=False)
        self._empty_log()
        if write.error is not None:
            raise write.error
        return write.result

    def close(self) -> None:
        """Note how long the logs are."""
        self._commit([], ending=True)


class InlineStore(Store):
    """The store in one thread."""

    def __init__(self, engine: SealedEngine, logs: ReportLogs, *others: Any) -> None:
        super().__init__(engine, logs, *others)
        self._writes.close()
        self._writes = InlineWrites(engine, logs)


class HeldStore:
    """A store in the hands of one process: once that is dead, nothing of it is written any more."""

    def __init__(self, store: Store, note: Callable[[WindowChange], None]) -> None:
        self.store, self.dead, self.failures = store, False, 0
        self._note = note

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise SimulatedCrashError("its process is dead")
        return getattr(self.store, name)

    async def apply(self, change: WindowChange) -> Any:
        """See `Store.apply`; fails while the disk is full."""
        if self.dead:
            raise SimulatedCrashError("its process is dead")
        if self.failures > 0:
            self.failures -= 1
            raise StoreError("the disk is full")
        known = await self.store.apply(change)
        if known is None:
            self._note(change)
        return known

    async def close(self) -> None:
        """Its process ends."""
        self.dead = True
        shut(self.store)


@dataclass
class ModelSeat(Seat):
    """A seat whose processes hold their store alone."""

    note: Callable[[WindowChange], None] = lambda _: None

    def open_store(self) -> Any:
        """Open the store for a new process."""
        return HeldStore(super().open_store(), self.note)

    def _open(self) -> Store:
        return InlineStore.open(self.store_path, self.at_rest_key)


class SeatSource:
    """The random bytes of one start: others at each start of a list, the same in every list, so that signatures repeat.

    A party draws what it has drawn before only if it asks for it in the same start at the same place.
    """

    def __init__(self, name: str) -> None:
        self._dice = random.Random(name)

    def random_bytes(self, count: int, /) -> bytes:
        """See `RandomSource.random_bytes`."""
        return self._dice.randbytes(count)


class ModelNetwork(Network):
    """Aggregators that are started, stopped and delayed by operations alone."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.supervised, self.greets = False, True
        self.remembering = RememberingWorkers()
        self.offsets: Counter[int] = Counter()
        self.starts: Counter[str] = Counter()
        self.sleepers: list[tuple[float, int, asyncio.Event]] = []
        self.numbers = itertools.count()
        self.drivers: dict[int, asyncio.Task[None]] = {}
        self.denials: dict[int, Denials] = {}
        self.opened: dict[AggregatorId, set[bytes]] = defaultdict(set)
        self.proved: dict[tuple[bytes, tuple[bytes, ...]], bool] = {}

    def _seat(self, name: str, directory: Path | None) -> Seat:
        made = super()._seat(name, directory)
        return ModelSeat(
            aggregator=made.aggregator,
            signing_key=cast("Any", SignsOnce(made.signing_key)),
            keys=made.keys,
            store_path=made.store_path,
            folders=made.folders,
        )

    def _parts(self, seat: Seat) -> dict[str, Any]:
        self.starts[seat.aggregator_id] += 1
        return {
            "metrics": NoMetrics(),
            "source": SeatSource(f"{seat.aggregator_id} {self.starts[seat.aggregator_id]}"),
        }

    def _workers(self, seat: Seat) -> Workers:
        del seat
        return self.remembering

    def _clock(self, seat: Seat) -> Clock:
        return AheadClock(self.clock, self.offsets[self.seats.index(seat)])

    def _peer(self, caller: Seat, other: Seat) -> Any:
        peer: Any = super()._peer(caller, other)
        send = peer._send

        async def watched(name: str, ask: Any) -> Any:
            answer = await send(name, ask)
            if name == "open_share":
                self.opened[other.aggregator_id].add(answer.blind + answer.vector)
            return answer

        peer._send = watched
        return peer

    async def start(self, position: int, failpoint: str = "") -> Core:
        """See `Network.start`."""
        core = await super().start(position, failpoint)
        if position in self.denials:
            core.context.host.denials = self.denials[position]
        return core

    async def stop(self, position: int) -> None:
        """Kill a process: nothing of it goes on."""
        driver = self.drivers.pop(position, None)
        await super().stop(position)
        if driver is not None and driver is not asyncio.current_task():
            driver.cancel()

    async def _pause(self, seconds: float) -> None:
        sleeper = (self.clock.now() + seconds, next(self.numbers), asyncio.Event())
        self.sleepers.append(sleeper)
        try:
            await sleeper[2].wait()
        finally:
            self.sleepers.remove(sleeper)

    async def settle(self) -> None:
        """Let everything go on until all wait for time to pass."""
        ready: Any = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - not in the stubs.
        await asyncio.sleep(0)
        while ready:
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, each sleeper waking at its moment."""
        end = self.clock.now() + seconds
        while due := [one for one in self.sleepers if one[0] <= end and not one[2].is_set()]:
            moment, _, event = min(due, key=lambda one: one[:2])
            self.clock.advance(max(0.0, moment - self.clock.now()))
            event.set()
            await self.settle()
        self.clock.advance(max(0.0, end - self.clock.now()))

    def look(self, position: int) -> None:
        """Let a party do what is due, if it is not at it."""
        driver = self.drivers.get(position)
        if self.seats[position].core is not None and (driver is None or driver.done()):
            self.drivers[position] = asyncio.ensure_future(self._drive(self.core(position)))

    async def _drive(self, core: Core) -> None:
        try:
            for window in core.scheduler.pending():
                await core.scheduler.look_after(window)
            await core.retention.look()
        except SimulatedCrashError:
            await self.crash()
        except MachineError:
            pass  # This machine failed; it is looked at again.
