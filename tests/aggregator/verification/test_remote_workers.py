"""Batches that other processes verify give the release that this process would have given, whoever of them dies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.verification.remote_workers import RemoteWorkers, open_job, open_result, seal_result
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all
from tests.support.connector import connector
from tests.support.inline_workers import InlineWorkers
from tests.support.replica_stores import ReplicaStore, replica_store

Result = TypeVar("Result")
COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]
DIFFERENCE = [1, 1, 0, 0, 1, 0, 0, 0]


class Stuck(InlineWorkers):
    """Workers of a process that hangs in the middle of a batch for ever."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`."""
        self.begun.set()
        for_ever: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        return await for_ever


@dataclass
class Bench:
    """A leader over PostgreSQL whose batches others verify, and the workers that a test adds."""

    network: Network
    replica: ReplicaStore
    remote: RemoteWorkers
    url: str
    opened: AsyncExitStack

    async def worker(self, local: InlineWorkers) -> asyncio.Task[None]:
        """Add a worker; its end is that of its sessions, as when it is killed."""
        context = self.network.core(0).context
        role = WorkerRole(context.windows, connector(self.url), local, self.replica.store.logs.backend.reader)
        task = asyncio.create_task(role.run())
        self.opened.push_async_callback(ended, task)
        return task

    async def ask(self) -> Window:
        """Install a question and let devices answer."""
        window = await self.network.ask()
        await answer_all(self.network, window, COINS)
        return window


async def ended(task: asyncio.Task[Any]) -> None:
    """End what goes on."""
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def bench(postgres_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as opened:
        replica = await opened.enter_async_context(replica_store(postgres_url, tmp_path))
        assert replica.lead() == 1
        network = Network(2)
        network.seats[0].open_store = lambda: replica.store  # type: ignore[method-assign]
        link = AsyncLink(connector(postgres_url))
        opened.push_async_callback(link.close)
        remote = RemoteWorkers(Jobs(link), replica.store.data_keys, InlineWorkers())
        network._workers = lambda seat: remote if seat is network.seats[0] else InlineWorkers()  # type: ignore[method-assign]
        await network.start_all()
        opened.push_async_callback(ended, asyncio.create_task(remote.keep_collecting()))
        yield Bench(network, replica, remote, postgres_url, opened)


async def released(bench: Bench, window: Window) -> list[int]:
    """Let the aggregators work to the end; return the opened cells."""
    await bench.network.run_to_the_end(window)
    finished = await bench.network.core(0).service.release(window.window_id)
    assert finished.record is not None
    return [cell.raw for cell in decode_record(finished.record).cells]


async def test_batches_that_others_verify_give_the_exact_release(bench: Bench) -> None:
    await bench.worker(InlineWorkers())
    assert await released(bench, await bench.ask()) == DIFFERENCE
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []


async def test_a_worker_that_dies_in_a_batch_is_followed_and_nothing_is_lost(bench: Bench) -> None:
    stuck = Stuck()
    dead = await bench.worker(stuck)
    window = await bench.ask()
    ending = asyncio.create_task(released(bench, window))
    await stuck.begun.wait()

    dead.cancel()
    await bench.worker(InlineWorkers())

    assert await ending == DIFFERENCE
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []


async def test_a_batch_whose_result_is_lost_on_its_way_is_verified_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, lost = Jobs.collect, dict[int, bytes]()

    async def lose_first(jobs: Jobs, numbers: Collection[int]) -> dict[int, bytes]:
        found = await collect(jobs, numbers)
        if found and not lost:
            lost.update(found)
            raise StoreError("the database does not answer")
        return found

    monkeypatch.setattr(Jobs, "collect", lose_first)
    await bench.worker(InlineWorkers())
    window = await bench.ask()
    with pytest.raises(StoreError, match="lost on its way"):
        async with asyncio.timeout(30):
            await released(bench, window)

    assert lost
    assert await released(bench, window) == DIFFERENCE


async def test_what_a_worker_cannot_do_is_said_to_who_asked_and_no_other_result_is_taken(bench: Bench) -> None:
    window = await bench.ask()
    key = bench.replica.store.data_keys.of(window.window_id)
    sealed = seal_result(key, window.window_id, b"this job", b"result")
    assert open_result(key, window.window_id, b"this job", sealed) == b"result"
    with pytest.raises(StoreError, match="do not open"):
        open_result(key, window.window_id, b"another job", sealed)
    with pytest.raises(StoreError, match="do not open"):
        open_job(key, window.window_id, sealed)


async def test_a_job_of_a_window_that_has_ended_is_in_nobody_s_way(bench: Bench) -> None:
    window = await bench.ask()
    await Jobs(bench.replica.link).put(bytes(32), b"of a window whose key is gone")
    await bench.worker(InlineWorkers())

    assert await released(bench, window) == DIFFERENCE
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []


class Compiling(InlineWorkers):
    """Workers whose code is compiled when the test says so."""

    def __init__(self) -> None:
        self.compiled = asyncio.Event()
        self.asked = asyncio.Event()

    async def ready(self) -> None:
        """See `Workers.ready`."""
        self.asked.set()
        await self.compiled.wait()


async def test_a_worker_compiles_before_it_takes_a_job(bench: Bench) -> None:
    compiling = Compiling()
    await bench.worker(compiling)
    window = await bench.ask()
    ending = asyncio.create_task(released(bench, window))
    await compiling.asked.wait()

    await bench.worker(InlineWorkers())

    assert await ending == DIFFERENCE, "another does the job meanwhile"


async def test_a_batch_that_nobody_waits_for_any_more_is_not_asked_for_and_the_next_is(bench: Bench) -> None:
    window = await bench.ask()
    stopped = asyncio.create_task(released(bench, window))
    async with asyncio.timeout(30):
        while not await bench.replica.link.rows("SELECT * FROM jobs"):
            await asyncio.sleep(0.01)
    await ended(stopped)
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []

    await bench.worker(InlineWorkers())
    assert await released(bench, window) == DIFFERENCE
