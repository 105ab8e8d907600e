"""Worker processes: where the arithmetic on shares (`share_arithmetic`) runs, outside the event loop.

The pool starts fresh processes (spawn), since gRPC forbids a fork. Nothing here stores or sends.
"""

import asyncio
import os
import signal
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final, Protocol, TypeVar

from fleetcount_protocol.errors import MachineError
from fleetcount_transport.logs import log

from fleetcount_aggregator.verification.compile_ahead import crashed
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting
from fleetcount_aggregator.verification.worker_process import begin_worker, warm_up

Result = TypeVar("Result")
_ATTEMPTS: Final = 3


class Workers(Protocol):
    """Where the arithmetic runs."""

    @property
    def count(self) -> int:
        """How many calls are done at the same time."""
        ...

    async def ready(self) -> None:
        """Return once nothing that is run has to wait until code is compiled."""
        ...

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """Return `function(*arguments)`; arguments and result must survive pickling."""
        ...

    async def close(self) -> None:
        """End the workers."""
        ...


class _Spawning(SpawnContext):
    """Starts processes afresh, and remembers them: how one died is what a pool does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    # The base class has a type in this place and makes processes by calling it, which is all that a pool does.
    def Process(self, *arguments: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """Return a process that is not started yet."""
        process = SpawnProcess(*arguments, **options)
        self.started.append(process)
        return process


class _Pool:
    """A pool of processes, and whether its machine code killed one."""

    def __init__(self, count: int) -> None:
        _start_silent_tracker()
        self._context = _Spawning()
        self.executor = ProcessPoolExecutor(max_workers=count, mp_context=self._context, initializer=begin_worker)
        self.met_compiled_code = False

    async def end(self) -> bool:
        """End a pool that has lost a process, and say so; return whether compiled code crashed a process."""
        await asyncio.to_thread(self.executor.shutdown, wait=True, cancel_futures=True)
        # Those that lived on were ended with SIGTERM by the pool itself; a signal shows as its negative number.
        died = {one.exitcode or 0 for one in self._context.started} - {0, -signal.SIGTERM}
        log.warning("worker_died", exit_codes=sorted(died), effect="another one starts, and its work is done again")
        return self.met_compiled_code and any(map(crashed, self._context.started))

    async def close(self) -> None:
        """End a pool that nobody needs any more."""
        _start_silent_tracker()
        await asyncio.to_thread(self.executor.shutdown, wait=True, cancel_futures=True)


def _start_silent_tracker() -> None:
    """Let Python's tracker of semaphores write nothing to standard error, which is the JSON log of this process.

    It does not know which processes were killed, it least of all: it takes what they leave for a mistake of the
    program, and tells of each with a traceback. One that was killed itself is started again here.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resource_tracker.ensure_running()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class ProcessWorkers:
    """Runs in `count` processes of their own, started afresh; a dead worker is replaced and its work done again.

    Machine code that crashes a worker is not used again: from then on NumPy verifies.
    """

    def __init__(self, count: int = 1, *, warm: bool = True) -> None:
        self._count = count
        self._warm = warm
        self._compiled_works = True
        self._replacing = asyncio.Lock()
        self._needed = asyncio.Event()
        self._compiling: asyncio.Task[None] | None = None
        self._pool = self._start()

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return self._count

    def _start(self) -> _Pool:
        pool = _Pool(self._count)
        if self._warm:
            pool.executor.submit(warm_up)
        return pool

    def compile_ahead(self, compiling: Callable[[], Awaitable[bool]], *, pause_s: float = 0.0) -> None:
        """Begin `compile_ahead.compile_ahead` after a pause, or with the first work that needs compiled code.

        Such work waits until it has ended, other work does not. Needs a running event loop; ends with `close`.
        """

        async def follow() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._needed.wait()
            if not await compiling():
                self._without_compiled_code()

        self._compiling = asyncio.create_task(follow(), name="compile-ahead")

    async def ready(self) -> None:
        """See `Workers.ready`."""
        if self._compiling is not None:
            self._needed.set()
            await asyncio.wait((self._compiling,))

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`. Pure work may be repeated, so a broken pool is started again.

        Raises:
            MachineError: the workers died three times in a row.
        """
        if any(map(_may_compile, arguments)):
            await self.ready()
        for _ in range(_ATTEMPTS):
            pool = self._pool
            chosen = arguments if self._compiled_works else tuple(map(_without_compiling, arguments))
            pool.met_compiled_code |= any(map(_may_compile, chosen))
            try:
                return await asyncio.get_running_loop().run_in_executor(pool.executor, function, *chosen)
            except BrokenProcessPool:
                await self._replace(pool)
        raise MachineError(f"the worker process died {_ATTEMPTS} times at {function.__name__}")

    async def _replace(self, pool: _Pool) -> None:
        """Start another pool; the first that comes does it, and the others find it done."""
        async with self._replacing:
            if self._pool is not pool:
                return
            _start_silent_tracker()
            if await pool.end():
                self._without_compiled_code()
            self._pool = self._start()

    def _without_compiled_code(self) -> None:
        if self._compiled_works:
            log.error("compiled_verifier_crashed", effect="NumPy verifies until this process is started again")
        self._compiled_works = False

    async def close(self) -> None:
        """See `Workers.close`."""
        if self._compiling is not None:
            self._compiling.cancel()
            await asyncio.wait((self._compiling,))
        await self._pool.close()


def _may_compile(argument: object) -> bool:
    return isinstance(argument, ProofSetting) and argument.prefer in ("auto", "kernel")


def _without_compiling(argument: object) -> object:
    """Return an argument with "auto" taken from a setting; who asks for the compiled verifier alone still gets it."""
    if isinstance(argument, ProofSetting) and argument.prefer == "auto":
        return replace(argument, prefer="arrays")
    return argument
