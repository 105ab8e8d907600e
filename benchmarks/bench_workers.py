"""Verification by workers that take batches, beside the worker of one process: over the same tables, and over a file.

The same window, reports and sizes of batches every way. CPU is user and system time of this process (which asks and
collects) and of its worker processes; the server's is a row of its own. What asking costs is held against one
process over the same PostgreSQL; over a file only reading differs besides, which is a row of its own too: nothing that
a worker does makes a socket as cheap as a file in the cache. Decides nothing.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench_million import NAMES, Filler, described, new_question
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.memory.installed import installed_of
from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.log_slice import ReportSource
from fleetcount_aggregator.storage.opening import open_engine, server_of
from fleetcount_aggregator.storage.row_types import WindowChange
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.remote_workers import RemoteWorkers
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports, verify_reports
from fleetcount_aggregator.verification.workers import ProcessWorkers, Workers
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import SignedQuestion, window_at
from fleetcount_protocol.vdaf.field import FIELD64
from rows import Row, quick, report, smoke
from stored_window import context_over, identity_of, put

from tests.support.inline_workers import InlineWorkers
from tests.support.postgres import find_postgres, own_cluster

KEY: Final = os.urandom(32)
VALUES: Final = 1_000
PORTS: Final = (1, 2)
"""Nobody calls there."""
BATCH: Final = 512
AT_ONCE: Final = 4
"""Batches that are asked for at once."""
TURNS: Final = 5
"""Of these the best counts: what disturbs one of them disturbs the ratio."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Took:
    """Seconds, and CPU seconds of this process and its worker processes, and of the server's; of the best turns."""

    wall_s: float
    cpu_s: float
    server_s: float = 0.0


@dataclass(frozen=True)
class Asked:
    """A question of one window, and the keys of those who signed it."""

    signed: SignedQuestion
    keys: tuple[Ed25519PrivateKey, ...]

    @property
    def window_id(self) -> WindowId:
        """The window's."""
        return window_at(self.signed.question, 0).window_id


class Verified(NamedTuple):
    """What verification took, the sums, and the CPU (us) of reading and opening a report."""

    took: Took
    sums: list[int]
    loading_us: float


async def fill(store: Store, asked: Asked, count: int) -> None:
    """Put the leader's shares of so many devices into a store, and close the window."""
    window = await put(context_of(store, InlineWorkers(), asked), asked.signed, WindowState.COLLECTING)
    await Filler(window.asked, 0, store).add(count, np.random.SeedSequence(1))
    closing = WindowChange(
        window_id=window.window_id, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING
    )
    await store.apply(closing)


def context_of(store: Store, workers: Workers, asked: Asked) -> Context:
    """Return what a worker's rules need of the leader."""
    return context_over(store, identity_of(described(asked.keys, PORTS), 0, asked.keys[0]), workers)


async def verify(store: Store, asked: Asked, workers: Workers, server: int) -> tuple[Took, list[int]]:
    """Verify every report in batches; return what it took, once code is loaded, and the sums. `server`: its process."""
    row = await store.read(read_window, asked.window_id)
    if row is None:
        raise SystemExit("the window is not in the store")
    window = installed_of(store, context_of(store, workers, asked).host.aggregator_id, row)
    reports = await store.complete_reports(window.window_id)
    batches = [np.arange(start, min(start + BATCH, len(reports.ids))) for start in range(0, len(reports.ids), BATCH)]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(positions: np.ndarray) -> VerifiedReports:
        async with room:
            return await workers.run(verify_reports, window.setting, reports.source(positions))

    await asyncio.gather(*(one(batches[0]) for _ in range(2 * AT_ONCE)))
    turns: list[Took] = []
    for _ in range(TURNS):
        start, used, served = time.perf_counter(), cpu_s(), family_s(server)
        verified = await asyncio.gather(*map(one, batches))
        turns.append(Took(time.perf_counter() - start, cpu_s() - used, family_s(server) - served))
    if any(set(one.reasons) != {0} for one in verified):
        raise SystemExit("a report did not hold")
    best = Took(*(min(getattr(turn, one.name) for turn in turns) for one in fields(Took)))
    return best, added(one.output_sum for one in verified)


def load(source: ReportSource) -> None:
    """Read and open reports as verification does, in a worker process."""
    source.load()


async def loading_us(store: Store, asked: Asked, workers: Workers) -> float:
    """Return the CPU (us) of reading and opening a report in a worker process, and of nothing else."""
    reports = await store.complete_reports(asked.window_id)
    count, cpu = len(reports.ids), []
    batches = [np.arange(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    await workers.run(load, reports.source(batches[0]))
    for _ in range(TURNS):
        used = cpu_s()
        for positions in batches:
            await workers.run(load, reports.source(positions))
        cpu.append(cpu_s() - used)
    return 1e6 * min(cpu) / count


def added(sums: Iterable[bytes]) -> list[int]:
    """Return the sum of vectors of the field, as every way of cutting reports into batches gives it."""
    vectors = [FIELD64.unpack_words(one) for one in sums]
    return [sum(column) % FIELD64.modulus for column in zip(*vectors, strict=True)]


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that run."""
    return time.process_time() + family_s(os.getpid(), itself=False)


def family_s(parent: int, *, itself: bool = True) -> float:
    """Return the CPU seconds of the children of a process that run, and of the process with those that have ended."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[1]) == parent:
            total += sum(map(int, stat[11:13]))
        elif itself and path.parent.name == str(parent):
            total += sum(map(int, stat[11:15]))
    return total / _TICKS


async def embedded(store: Store, asked: Asked, count: int, server: int) -> Verified:
    """Fill a store and verify in this process, with one worker process; say what reading alone takes there too."""
    await fill(store, asked, count)
    workers = ProcessWorkers(1)
    try:
        took, sums = await verify(store, asked, workers, server)
        return Verified(took, sums, await loading_us(store, asked, workers))
    finally:
        await workers.close()
        await store.close()


@asynccontextmanager
async def asking(place: StorePlace, asked: Asked, count: int) -> AsyncIterator[tuple[Store, RemoteWorkers]]:
    """Give a store in PostgreSQL, and what asks so many workers, each with a process of its own."""
    connect = server_of(place).connect_unsure
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        store = Store.over(open_engine(place, alone=False), place.file, KEY)
        opened.push_async_callback(store.close)
        link = AsyncLink(connect)
        opened.push_async_callback(link.close)
        remote = RemoteWorkers(Jobs(link), store.data_keys, ProcessWorkers(1, warm=False))
        opened.push_async_callback(remote.close)
        going = [remote.keep_collecting()]
        for _ in range(count):
            local = ProcessWorkers(1)
            opened.push_async_callback(local.close)
            context = context_of(store, local, asked)
            await context.windows.follow(asked.window_id)
            going.append(WorkerRole(context.windows, connect, local, store.logs.backend.reader).run())
        tasks = [group.create_task(work) for work in going]
        try:
            yield store, remote
        finally:
            for task in tasks:
                task.cancel()


async def run(directory: Path, url: str, server: int, count: int) -> None:
    """Report remote workers, one and two, beside the embedded one over the same tables and over a file."""
    keys = tuple(Ed25519PrivateKey.generate() for _ in NAMES)
    asked = Asked(new_question(VALUES, keys, PORTS), keys)
    from_file = await embedded(Store.open(directory / "bench.db", KEY), asked, count, server)
    place = StorePlace(directory=directory, url=url)
    from_server = await embedded(Store.over(open_engine(place), place.file, KEY), asked, count, server)
    remote: list[Took] = []
    for workers in (1, 2):
        async with asking(place, asked, workers) as (store, asker):
            took, found = await verify(store, asked, asker, server)
        if not found == from_server.sums == from_file.sums:
            raise SystemExit("batches of remote workers add up to something else")
        remote.append(took)
    note = f"{count:,} reports of {VALUES:,} values at the leader, {BATCH} a batch, best of {TURNS}"
    report_cpu(from_file, from_server, remote[0], count, note)
    report(
        Row(
            path="reports verified by two remote workers",
            ours=count / remote[1].wall_s,
            unit="/s",
            peer="one remote worker",
            peer_value=count / remote[0].wall_s,
            ratio=remote[0].wall_s / remote[1].wall_s,
            must=1.7 if len(os.sched_getaffinity(0)) > 2 else None,
            aim=1.7,
            note="one machine: two workers, who asks and the server share its cores",
        )
    )


def report_cpu(from_file: Verified, from_server: Verified, remote: Took, count: int, note: str) -> None:
    """Report the CPU of a report: of one remote worker, of reading alone, and of the server."""
    path, each = "CPU of a report verified by a remote worker", 1e6 / count
    for peer, beside, must in (
        ("a worker of one process over the same tables", from_server.took, 1.15),
        ("a worker of one process over its file", from_file.took, None),
    ):
        report(
            Row(
                path=path,
                ours=each * remote.cpu_s,
                unit="us",
                peer=peer,
                peer_value=each * beside.cpu_s,
                ratio=remote.cpu_s / beside.cpu_s,
                must=must,
                aim=1.15,
                larger_is_better=False,
                note=note + "; without the server's",
            )
        )
    report(
        Row(
            path="of it: reading and opening a report, from the server",
            ours=from_server.loading_us,
            unit="us",
            peer="from a file in the cache",
            peer_value=from_file.loading_us,
            ratio=from_server.loading_us / from_file.loading_us,
            larger_is_better=False,
            note="16 kB a report; a process of its own does nothing else",
        )
    )
    report(
        Row(
            path="the server's CPU of a report that is verified by a remote worker",
            ours=each * remote.server_s,
            unit="us",
            peer="by a worker of one process over the same tables",
            peer_value=each * from_server.took.server_s,
            # In the smallest size both may be less than a tick of the kernel's clock, which counts them.
            ratio=remote.server_s / from_server.took.server_s if from_server.took.server_s else None,
            larger_is_better=False,
            note=note,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    if find_postgres() is None:
        report(Row(path="remote workers", ours=None, unit="us", note="needs PostgreSQL (scripts/programs)"))
        return 0
    count = BATCH if smoke() else 8 * BATCH if quick() else 32 * BATCH
    with tempfile.TemporaryDirectory() as directory, own_cluster("shared_buffers=128MB", "max_wal_size=1GB") as cluster:
        server = int((cluster.data / "postmaster.pid").read_text().split()[0])
        asyncio.run(run(Path(directory), cluster.url("postgres"), server, count))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
