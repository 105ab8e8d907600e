"""Batches that other processes verify give the release that this process would have given, whoever of them dies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles.worker import WorkerRole
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.notices import Notices
from fleetcount_aggregator.storage.schema import DONE_CHANNEL, JOB_CHANNEL
from fleetcount_aggregator.verification.leased_workers import LeasedWorkers, open_job, open_result, seal_result
from fleetcount_aggregator.verification.workers import InlineWorkers
from fleetcount_protocol.release import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all
from tests.support.members import connector
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
    """A leader over PostgreSQL whose batches are leased, and the workers that a test adds."""

    network: Network
    replica: ReplicaStore
    leased: LeasedWorkers
    url: str
    opened: AsyncExitStack

    async def worker(self, local: InlineWorkers) -> Member:
        """Add a worker; return it as a member."""
        links = [AsyncLink(connector(self.url)) for _ in range(2)]
        for link in links:
            self.opened.push_async_callback(link.close)
        member, context = Member(links[0], length_s=60, roles="worker"), self.network.core(0).context
        await member.join()
        role = WorkerRole(
            context.windows, member, Jobs(links[1], member), local, self.replica.store.logs.backend.reader
        )
        await self.opened.enter_async_context(running(role.run()))
        hears = Notices(connector(self.url), {JOB_CHANNEL: lambda _: role.look()}, role.look)
        await self.opened.enter_async_context(running(hears.run()))
        return member

    async def ask(self) -> Window:
        """Install a question and let devices answer."""
        window = await self.network.ask()
        await self.replica.keeper.take()
        await answer_all(self.network, window, COINS)
        return window


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have something go on until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def bench(postgres_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as opened:
        replica = await opened.enter_async_context(replica_store(postgres_url, tmp_path))
        assert replica.lead() == 1
        network = Network(2)
        network.seats[0].open_store = lambda: replica.store  # type: ignore[method-assign]
        link = AsyncLink(connector(postgres_url))
        opened.push_async_callback(link.close)
        leased = LeasedWorkers(Jobs(link, replica.member), replica.store.data_keys, InlineWorkers())
        network._workers = lambda seat: leased if seat is network.seats[0] else InlineWorkers()  # type: ignore[method-assign]
        await network.start_all()
        hears = Notices(connector(postgres_url), {DONE_CHANNEL: lambda _: leased.look()}, leased.look)
        for work in (leased.keep_collecting(), hears.run()):
            await opened.enter_async_context(running(work))
        yield Bench(network, replica, leased, postgres_url, opened)


async def released(bench: Bench, window: Window) -> list[int]:
    """Let the aggregators work to the end; return the opened cells."""
    await bench.network.run_to_the_end(window)
    finished = await bench.network.core(0).service.release(window.window_id)
    assert finished.record is not None
    return [cell.raw for cell in decode_record(finished.record).cells]


async def test_leased_batches_give_the_exact_release(bench: Bench) -> None:
    await bench.worker(InlineWorkers())
    assert await released(bench, await bench.ask()) == DIFFERENCE
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []


async def test_a_worker_that_dies_in_a_batch_is_followed_and_nothing_is_lost(bench: Bench) -> None:
    stuck = Stuck()
    dead = await bench.worker(stuck)
    window = await bench.ask()
    ending = asyncio.create_task(released(bench, window))
    await stuck.begun.wait()

    await bench.replica.link.rows("UPDATE members SET until = clock_timestamp() WHERE member = %s", dead.name)
    await bench.worker(InlineWorkers())

    assert await ending == DIFFERENCE
    assert await bench.replica.link.rows("SELECT * FROM jobs") == []


async def test_a_batch_whose_result_is_lost_on_its_way_is_verified_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, lost = Jobs.collect, dict[int, bytes]()

    async def lose_first(jobs: Jobs) -> dict[int, bytes]:
        found = await collect(jobs)
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


@pytest.mark.parametrize("abandoned", ["meanwhile", "before"])
async def test_a_batch_asked_for_under_a_name_that_has_run_out_is_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, abandoned: str
) -> None:
    put, first = Jobs.put, [True]

    async def run_out(jobs: Jobs, window_id: bytes, request: bytes) -> int:
        if first and abandoned == "before":
            bench.leased.abandon()
        number = await put(jobs, window_id, request)
        if first and abandoned == "meanwhile":
            bench.leased.abandon()
        if first:
            first.clear()
            await bench.replica.member.join()
        return number

    monkeypatch.setattr(Jobs, "put", run_out)
    window = await bench.ask()
    with pytest.raises(StoreError, match="not heard of"):
        async with asyncio.timeout(10):
            await released(bench, window)

    await bench.worker(InlineWorkers())
    assert await released(bench, window) == DIFFERENCE
