"""The arithmetic on shares, run outside the event loop: verifying, combining, finishing and adding reports.

Every function is pure and takes bytes; the pool starts fresh processes (spawn), since gRPC forbids a fork. Nothing here
stores, sends or logs.
"""

import asyncio
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol, TypeVar

from fleetcount_protocol.errors import DecodeError, MachineError, VerificationFailed
from fleetcount_protocol.prio3 import Prio3, VerifyState
from fleetcount_protocol.task import Task
from fleetcount_protocol.task_codec import decode_task
from fleetcount_protocol.task_rules import context_of, opened_outputs, prio3_for
from fleetcount_protocol.verifier import RejectedProof, ReportToVerify, ScalarVerifier, Verified

__all__ = [
    "InlineWorkers",
    "ProcessWorkers",
    "ProofSetting",
    "Workers",
    "combine_shares",
    "finish_reports",
    "sum_outputs",
    "verify_reports",
]

Result = TypeVar("Result")
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSetting:
    """What the arithmetic of one task at one aggregator needs: its canonical bytes, verify key and share number."""

    task: bytes
    verify_key: bytes = field(repr=False)
    position: int


@lru_cache(maxsize=16)
def _algorithm(task: bytes) -> tuple[Prio3, bytes]:
    opened: Task = decode_task(task)
    return prio3_for(opened), context_of(opened)


def verify_reports(setting: ProofSetting, reports: Sequence[ReportToVerify]) -> list[Verified | RejectedProof]:
    """Return this aggregator's verify state and verifier share of every report, or why it is out."""
    prio3, context = _algorithm(setting.task)
    verifier = ScalarVerifier(prio3=prio3, verify_key=setting.verify_key, ctx=context, aggregator=setting.position)
    return verifier.verify_batch(reports)


def combine_shares(task: bytes, reports: Sequence[Sequence[bytes]]) -> list[bytes | None]:
    """Return the verifier message of every report from all aggregators' verifier shares; None where no proof holds."""
    prio3, context = _algorithm(task)
    return [_combine(prio3, context, shares) for shares in reports]


def _combine(prio3: Prio3, context: bytes, shares: Sequence[bytes]) -> bytes | None:
    try:
        return prio3.combine_verifier_shares(context, shares)
    except (VerificationFailed, DecodeError):
        return None


def finish_reports(task: bytes, reports: Sequence[tuple[bytes, bytes]]) -> list[bool]:
    """Return, for every (verify state, verifier message), whether this aggregator accepts the report."""
    prio3, context = _algorithm(task)
    return [_finish(prio3, context, state, message) for state, message in reports]


def _finish(prio3: Prio3, context: bytes, state: bytes, message: bytes) -> bool:
    try:
        prio3.verify_next(context, VerifyState.decode(prio3, state), message)
    except (VerificationFailed, DecodeError):
        return False
    return True


def sum_outputs(task: bytes, states: Sequence[bytes]) -> list[int]:
    """Return the sum of this aggregator's output shares, field elements: the outputs the task opens, nothing else."""
    opened = opened_outputs(decode_task(task))
    prio3, _ = _algorithm(task)
    shares = [prio3.decode_output_share(VerifyState.decode(prio3, state).output_share) for state in states]
    return prio3.aggregate(shares)[opened]


class Workers(Protocol):
    """Where the arithmetic runs."""

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """Return `function(*arguments)`; arguments and result must survive pickling."""
        ...

    async def close(self) -> None:
        """End the workers."""
        ...


class InlineWorkers:
    """Runs on the event loop itself: for tests and simulations."""

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`."""
        await asyncio.sleep(0)
        return function(*arguments)

    async def close(self) -> None:
        """See `Workers.close`."""


class ProcessWorkers:
    """Runs in `count` processes of their own, started afresh; a dead worker is replaced and its work done again."""

    def __init__(self, count: int = 1, *, warm: bool = True) -> None:
        self._count = count
        self._warm = warm
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(max_workers=self._count, mp_context=context, initializer=_begin_worker)
        if self._warm:
            pool.submit(_warm_up)
        return pool

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`. Pure work may be repeated, so a broken pool is started again.

        Raises:
            MachineError: the workers died three times in a row.
        """
        for _ in range(_ATTEMPTS):
            pool = self._pool
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
            except BrokenProcessPool:
                if self._pool is pool:
                    pool.shutdown(wait=False)
                    self._pool = self._start()
        raise MachineError(f"the worker process died {_ATTEMPTS} times at {function.__name__}")

    async def close(self) -> None:
        """See `Workers.close`."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, and end with it, even when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()


def _warm_up() -> None:
    """Load what a release needs before the first one waits for it: SciPy takes a second."""
    importlib.import_module("fleetcount_aggregator.publication")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
