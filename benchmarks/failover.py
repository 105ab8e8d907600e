"""From the end of one process of an aggregator to what another does in its place: coordinators and workers.

Real processes over a PostgreSQL server of its own, killed (SIGKILL) or stopped (SIGSTOP, and continued once another has
taken over). A coordinator is hit at the second at which a window has to be closed; the row beside it is what that takes
where nobody is hit. A worker is hit in the middle of a batch; the row beside it is the batch alone.
"""

import asyncio
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
from bench_million import NAMES, new_question
from bench_workers import PORTS, VALUES, Asked, context_of, fill
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.memory.installed import installed_of
from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.opening import open_engine, server_of
from fleetcount_aggregator.storage.postgres import GRANTED
from fleetcount_aggregator.storage.postgres_engine import LEAD_LOCK, PostgresEngine
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.remote_workers import RemoteWorkers
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports, verify_reports
from fleetcount_aggregator.verification.workers import ProcessWorkers
from fleetcount_protocol.question.question import decode_signed_question, encode_signed_question
from fleetcount_protocol.window.window import Window
from rows import Row, report, smoke

from tests.support.deployment import LiveDeployment
from tests.support.postgres import Cluster, own_cluster
from tests.support.replicas import Replicas

COORDINATORS: Final = ("coordinator-1", "coordinator-2")
WORKERS: Final = ("worker-1", "worker-2")
LOOK_S: Final = 0.005
PATIENCE_S: Final = 60.0
STOPPED_S: Final = 10.0
"""What may pass until a process that is stopped has been followed."""
BATCH: Final = 4_096
_LEADS: Final = (
    f"SELECT application_name FROM pg_stat_activity WHERE pid IN (SELECT pid {GRANTED} AND objid::bigint = {LEAD_LOCK})"
).encode()
HITS_OF_WORKERS: Final = ((signal.SIGKILL, "SIGKILL", 1.0), (signal.SIGSTOP, "SIGSTOP", STOPPED_S))
HITS_OF_COORDINATORS: Final = ((signal.SIGKILL, "SIGKILL", 2.0), (signal.SIGSTOP, "SIGSTOP", STOPPED_S))


def until(condition: Callable[[], bool], what: str) -> float:
    """Return the seconds until a condition holds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > PATIENCE_S:
            raise SystemExit(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
    return time.monotonic() - start


def told(name: str, taken: Sequence[float], alone: str, beside: Sequence[float], must_s: float) -> None:
    """Report the slowest of some trials without what the same takes where nobody is hit, beside its limit."""
    ours = max(0.0, max(taken) - statistics.median(beside))
    report(
        Row(
            path=name,
            ours=ours,
            unit="s",
            peer="the limit",
            peer_value=must_s,
            ratio=ours / must_s,
            must=1.0,
            larger_is_better=False,
            note=f"slowest of {len(taken)}: {max(taken):.2f} s, of it {alone} {statistics.median(beside):.2f} s",
        )
    )


# Coordinators.


@contextmanager
def coordinators(cluster: Cluster, root: Path) -> Iterator[tuple[LiveDeployment, Replicas]]:
    """Give aggregator alpha as two processes that coordinate and one that serves devices, beta as one."""
    deployment = LiveDeployment(root, 2)
    replicas = Replicas(deployment, cluster.url("postgres"))
    for name in COORDINATORS:
        replicas.add(name, "coordinator,worker")
        # Names tell the server's sessions apart, and who is stopped keeps a port that another machine would have free.
        config, plan = deployment.config(0).with_name(f"{name}.toml"), deployment.written.plans[0]
        text = config.read_text().replace(f'"{plan.host}:{plan.peer_port}"', '"127.0.0.1:0"')
        config.write_text(text.replace(cluster.url("postgres"), named(cluster.url("postgres"), name)))
    try:
        deployment.start(1)
        replicas.start(COORDINATORS)
        deployment.children[1].ready()
        yield deployment, replicas
    finally:
        deployment.children[1].terminate()
        for process in replicas.processes.values():
            if process.running:
                os.kill(process.pid, signal.SIGCONT)
        replicas.stop_all()
        deployment.children[1].ended()


def closing_s(
    deployment: LiveDeployment, replicas: Replicas, looker: "psycopg.Connection[Any]", hit: int | None
) -> float:
    """Ask a question of one window, hit who coordinates as the window closes; return the seconds until it has."""
    leader = replicas.processes[led(looker)]
    window: Window = deployment.ask(4, lead_s=4.0, windows_s=(2.0, 2.0))
    states = [state_of(looker, window)]
    time.sleep(max(0.0, window.round_two_closes - time.time()))
    states.append(state_of(looker, window))
    if hit is not None:
        os.kill(leader.pid, hit)
    taken = until(lambda: state_of(looker, window) != states[-1], "the window was closed")
    if hit == signal.SIGSTOP:
        os.kill(leader.pid, signal.SIGCONT)
        until(lambda: replicas.said(leader.name, "coordinator_ended"), "the stopped process coordinates no more")
    if hit == signal.SIGKILL:
        leader.ended()
        replicas.start([leader.name])
    return taken


def led(looker: "psycopg.Connection[Any]") -> str:
    """Wait until a process coordinates, and return which: its session holds the lock that only one can hold."""
    until(lambda: bool(looker.execute(_LEADS).fetchall()), "a coordinator")
    [(name,)] = looker.execute(_LEADS).fetchall()
    return str(name)


def named(url: str, name: str) -> str:
    """Return the address of a database whose sessions say who they are of."""
    return f"{url}&application_name={name}"


def state_of(looker: "psycopg.Connection[Any]", window: Window) -> object:
    """Return a window's state as the tables have it."""
    rows = looker.execute(b"SELECT state FROM windows WHERE window_id = %s", (window.window_id,)).fetchall()
    return rows[0][0] if rows else None


def time_coordinators(cluster: Cluster, root: Path, trials: int) -> None:
    """Report what passes until another coordinator has taken the step that was due."""
    with (
        coordinators(cluster, root) as (deployment, replicas),
        psycopg.connect(cluster.url("postgres"), autocommit=True) as looker,
    ):
        undisturbed = [closing_s(deployment, replicas, looker, None) for _ in range(trials)]
        for hit, name, must_s in HITS_OF_COORDINATORS:
            taken = [closing_s(deployment, replicas, looker, hit) for _ in range(trials)]
            told(f"{name} of the coordinator to the next step", taken, "the step undisturbed", undisturbed, must_s)


# Workers.


def work(url: str, root: Path, key: bytes, signed: bytes, keys: Sequence[bytes]) -> None:
    """Be a worker of a PostgreSQL store until killed; run in a process of its own."""
    asked = Asked(decode_signed_question(signed), tuple(map(Ed25519PrivateKey.from_private_bytes, keys)))
    place = StorePlace(directory=root, url=url)

    async def serve() -> None:
        store = Store.over(open_engine(place, alone=False), place.file, key)
        local = ProcessWorkers(1)
        context = context_of(store, local, asked)
        await context.windows.follow(asked.window_id)
        await WorkerRole(context.windows, server_of(place).connect_unsure, local, store.logs.backend.reader).run()

    asyncio.run(serve())


def at_work(looker: "psycopg.Connection[Any]", name: str) -> bool:
    """Whether a worker holds a job: one of its sessions is in a transaction that has locked one."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state LIKE 'idle in transaction%%'"
    rows = looker.execute(query, (name,)).fetchall()
    return bool(rows[0][0])


class Pool:
    """Two workers in processes of their own, and who asks them; the whole window is one batch."""

    def __init__(
        self, place: StorePlace, key: bytes, asked: Asked, ask: Callable[[], Awaitable[VerifiedReports]]
    ) -> None:
        self._arguments = (place.directory, key, encode_signed_question(asked.signed), raw(asked.keys))
        self._url = str(place.url)
        self.verified = ask
        self.processes = {name: self._started(name) for name in WORKERS}

    def _started(self, name: str) -> SpawnProcess:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=work, args=(named(self._url, name), *self._arguments), name=name)
        process.start()
        return process

    async def hit(self, signal_number: int, looker: "psycopg.Connection[Any]", sums: bytes) -> float:
        """Hit the worker that is at the batch; return the seconds until another has done it."""
        asking = asyncio.ensure_future(self.verified())
        await asyncio.to_thread(until, lambda: any(at_work(looker, name) for name in WORKERS), "a worker at work")
        name = next(one for one in WORKERS if at_work(looker, one))
        struck = time.monotonic()
        os.kill(self.processes[name].pid or 0, signal_number)
        if (await asking).output_sum != sums:
            raise SystemExit("a batch of another worker adds up to something else")
        taken = time.monotonic() - struck
        if signal_number == signal.SIGSTOP:
            os.kill(self.processes[name].pid or 0, signal.SIGCONT)
        else:
            self.processes[name].join()
            self.processes[name] = self._started(name)
        await self._back(name, looker)
        return taken

    async def _back(self, name: str, looker: "psycopg.Connection[Any]") -> None:
        """Return once a worker that was started or continued has been seen at a batch, so that it has its code."""
        seen = False
        while not seen:
            asking = asyncio.gather(*(self.verified() for _ in WORKERS))
            while not asking.done():
                seen = seen or at_work(looker, name)
                await asyncio.sleep(LOOK_S)
            await asking

    def end(self) -> None:
        """Kill both."""
        for process in self.processes.values():
            process.kill()
            process.join()


async def time_workers(cluster: Cluster, root: Path, trials: int) -> None:
    """Report what passes until another worker has done the batch of one that is killed or stopped."""
    key, keys = os.urandom(32), tuple(Ed25519PrivateKey.generate() for _ in NAMES)
    asked = Asked(new_question(VALUES, keys, PORTS), keys)
    url = cluster.url("postgres")
    place = StorePlace(directory=root, url=url)
    async with AsyncExitStack() as opened:
        engine = open_engine(place, alone=False)
        store = Store.over(engine, place.file, key)
        opened.push_async_callback(store.close)
        if not isinstance(engine, PostgresEngine) or not await asyncio.to_thread(engine.take_lead):
            raise SystemExit("another process leads")
        await fill(store, asked, 512 if smoke() else BATCH)
        row = await store.read(read_window, asked.window_id)
        if row is None:
            raise SystemExit("the window is not in the store")
        setting = installed_of(store, NAMES[0], row).setting
        reports = await store.complete_reports(asked.window_id)
        source = reports.source(np.arange(len(reports.ids)))
        link = AsyncLink(server_of(place).connect_unsure)
        opened.push_async_callback(link.close)
        remote = RemoteWorkers(Jobs(link), store.data_keys, ProcessWorkers(1, warm=False))
        opened.push_async_callback(remote.close)
        collecting = asyncio.ensure_future(remote.keep_collecting())
        opened.callback(collecting.cancel)
        pool = Pool(place, key, asked, lambda: remote.run(verify_reports, setting, source))
        opened.callback(pool.end)
        sums = (await pool.verified()).output_sum
        alone = [await seconds(pool.verified()) for _ in range(trials + 1)]
        with psycopg.connect(url, autocommit=True) as looker:
            for number, name, must_s in HITS_OF_WORKERS:
                taken = [await pool.hit(number, looker, sums) for _ in range(trials)]
                told(f"{name} of a worker to its batch done by another", taken, "the batch alone", alone, must_s)
            [(left,)] = looker.execute("SELECT count(*) FROM jobs").fetchall()
        if left:
            raise SystemExit(f"{left} jobs are left: a late result of a stopped worker was stored")


async def seconds(asking: Awaitable[object]) -> float:
    """Return how long something takes."""
    start = time.monotonic()
    await asking
    return time.monotonic() - start


def raw(keys: Sequence[Ed25519PrivateKey]) -> list[bytes]:
    """Return private keys as bytes, for another process of this benchmark."""
    return [key.private_bytes_raw() for key in keys]


def time_failover(trials: int) -> None:
    """Report what passes after each kind of end of each kind of process, the slowest of so many trials."""
    with tempfile.TemporaryDirectory() as directory, own_cluster() as cluster:
        time_coordinators(cluster, Path(directory) / "deployed", trials)
    with tempfile.TemporaryDirectory() as directory, own_cluster() as cluster:
        asyncio.run(time_workers(cluster, Path(directory), trials))
