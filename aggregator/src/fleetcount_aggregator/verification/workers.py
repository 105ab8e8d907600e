"""The arithmetic on shares, run outside the event loop: loading and verifying reports, combining, adding up.

Every function takes plain values and gives plain values; the pool starts fresh processes (spawn), since gRPC forbids a
fork. Reports are read from the store by the worker itself (`ReportSource`). Nothing here stores, sends or logs.
"""

import asyncio
import importlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final, Protocol, TypeVar

from fleetcount_kernel.proofs import BatchVerifier, ProofBatch, VerifierSetting, setting_of
from fleetcount_protocol.errors import MachineError, RejectReason
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.release.commitments import public_share_digest
from fleetcount_protocol.vdaf.field import SEED_SIZE
from fleetcount_protocol.window.window import decode_window
from fleetcount_transport.hardening import keep_out_of_dumps
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.malloc import keep_batches
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.log_slice import ReportSource
from fleetcount_aggregator.verification.choice import Prefer, combine, new_batch_verifier
from fleetcount_aggregator.verification.compile_ahead import crashed

Result = TypeVar("Result")
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSetting:
    """What the arithmetic of one window at one aggregator needs: its canonical bytes, verify key and share number.

    `prefer` is which implementation, as for `verifiers.new_batch_verifier`; all give the same bytes.
    """

    window: bytes
    verify_key: bytes = field(repr=False)
    position: int
    prefer: Prefer = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedReports:
    """What verification of n reports gives, in their order; see `proofs.VerifiedBatch`.

    `share_digests` n x 32: of the public shares, zeros for a report that is damaged in the store (its reason is
    MALFORMED); `damaged` are the numbers of those.
    """

    reasons: bytes
    seeds: bytes = field(repr=False)
    verifier_shares: bytes = field(repr=False)
    share_digests: bytes
    output_sum: bytes = field(repr=False)
    damaged: tuple[int, ...]


@lru_cache(maxsize=16)
def _verifier(setting: ProofSetting) -> tuple[VerifierSetting, BatchVerifier]:
    opened = setting_of(decode_window(setting.window), setting.verify_key, setting.position)
    return opened, new_batch_verifier(opened, prefer=setting.prefer)


def verify_reports(setting: ProofSetting, source: ReportSource) -> VerifiedReports:
    """Return this aggregator's verifier share of every report, or why it is out, and the sum of the verified ones."""
    loaded = source.load()
    opened, verifier = _verifier(setting)
    verified = verifier.verify(loaded.batch)
    filler = partial(_filled, damaged=loaded.damaged)
    return VerifiedReports(
        reasons=filler(verified.reasons, 1, bytes((RejectReason.MALFORMED.value,))),
        seeds=filler(verified.seeds, SEED_SIZE, bytes(SEED_SIZE)),
        verifier_shares=filler(
            verified.verifier_shares, opened.prio3.verifier_share_size, bytes(opened.prio3.verifier_share_size)
        ),
        share_digests=filler(_share_digests(loaded.batch), Digest.SIZE, bytes(Digest.SIZE)),
        output_sum=verified.output_sum,
        damaged=loaded.damaged,
    )


def _share_digests(batch: ProofBatch) -> bytes:
    if not batch.count:
        return b""
    size = len(batch.public_shares) // batch.count
    shares = (batch.public_shares[start : start + size] for start in range(0, len(batch.public_shares), size))
    return b"".join(map(public_share_digest, shares))


def _filled(column: bytes, size: int, filling: bytes, *, damaged: Sequence[int]) -> bytes:
    """Return a column with a filling in the places of the damaged reports, which verification did not see."""
    for number in damaged:
        column = column[: number * size] + filling + column[number * size :]
    return column


def combine_shares(setting: ProofSetting, shares: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return verifier messages and whether each proof holds, from all aggregators' shares; see `verifiers.combine`."""
    opened, _ = _verifier(setting)
    return combine(opened.prio3, opened.ctx, shares, prefer=setting.prefer)


def sum_reports(setting: ProofSetting, source: ReportSource) -> bytes:
    """Return the sum of the opened outputs of reports that were verified before.

    Raises:
        StoreError: one of them is damaged in the store by now.
    """
    loaded = source.load()
    if loaded.damaged:
        raise StoreError(f"{len(loaded.damaged)} reports that were verified do not open any more")
    return _verifier(setting)[1].sum_outputs(loaded.batch)


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
        self.executor = ProcessPoolExecutor(max_workers=count, mp_context=self._context, initializer=_begin_worker)
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

    Machine code that crashes a worker is not used again: from then on plain Python verifies.
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
            pool.executor.submit(_warm_up)
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
            chosen = arguments if self._compiled_works else tuple(map(_in_plain_python, arguments))
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
            log.error("compiled_verifier_crashed", effect="plain Python verifies until this process is started again")
        self._compiled_works = False

    async def close(self) -> None:
        """See `Workers.close`."""
        if self._compiling is not None:
            self._compiling.cancel()
            await asyncio.wait((self._compiling,))
        await self._pool.close()


def _may_compile(argument: object) -> bool:
    return isinstance(argument, ProofSetting) and argument.prefer != "scalar"


def _in_plain_python(argument: object) -> object:
    """Return an argument with "auto" taken from a setting; who asks for the compiled verifier alone still gets it."""
    if isinstance(argument, ProofSetting) and argument.prefer == "auto":
        return replace(argument, prefer="scalar")
    return argument


def _begin_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, and end with it, even when it is killed; leave no dump of the shares."""
    keep_out_of_dumps()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_batches()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()


def _warm_up() -> None:
    """Load what a release needs before the first one waits for it: SciPy takes a second."""
    for name in (
        "fleetcount_aggregator.release.record",
        "fleetcount_analysis.estimates",
        "fleetcount_analysis.intervals",
    ):
        importlib.import_module(name)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
