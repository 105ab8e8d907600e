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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Protocol, TypeVar

from fleetcount_protocol.errors import MachineError, RejectReason
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.set_digest import public_share_digest
from fleetcount_protocol.task_codec import decode_task
from fleetcount_protocol.xof import SEED_SIZE

from fleetcount_aggregator.proofs import (
    BatchVerifier,
    Prefer,
    ProofBatch,
    VerifierSetting,
    combine,
    new_batch_verifier,
    setting_of,
)
from fleetcount_aggregator.storage.store import ReportSource, StoreError

__all__ = [
    "InlineWorkers",
    "ProcessWorkers",
    "ProofSetting",
    "VerifiedReports",
    "Workers",
    "combine_shares",
    "sum_reports",
    "verify_reports",
]

Result = TypeVar("Result")
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSetting:
    """What the arithmetic of one task at one aggregator needs: its canonical bytes, verify key and share number.

    `prefer` is which implementation, as for `proofs.new_batch_verifier`; all give the same bytes.
    """

    task: bytes
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
    opened = setting_of(decode_task(setting.task), setting.verify_key, setting.position)
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
    """Return verifier messages and whether each proof holds, from all aggregators' shares; see `proofs.combine`."""
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
    for name in ("fleetcount_aggregator.publication", "fleetcount_analysis.estimates", "fleetcount_analysis.intervals"):
        importlib.import_module(name)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
