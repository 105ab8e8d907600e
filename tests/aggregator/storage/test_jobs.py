"""A job is done in the transaction that locks it: by nobody twice at once, and again when its worker is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage import postgres
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.jobs import Job, Jobs, JobSession
from fleetcount_aggregator.storage.schema import PROCESS_TABLES

from tests.support.connector import connector

WINDOW = bytes(32)


@dataclass
class Board:
    """The jobs of an aggregator, and what makes sessions of workers."""

    url: str
    link: AsyncLink
    opened: AsyncExitStack

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.link)

    def session(self) -> JobSession:
        session = JobSession(connector(self.url))
        self.opened.push_async_callback(session.close)
        return session

    async def rows(self) -> list[tuple[Any, ...]]:
        return await self.link.rows("SELECT job, result FROM jobs ORDER BY job")


@pytest.fixture
async def board(postgres_url: str) -> AsyncIterator[Board]:
    async with AsyncExitStack() as opened:
        link = AsyncLink(connector(postgres_url))
        opened.push_async_callback(link.close)
        for statement in PROCESS_TABLES:
            await link.rows(statement)
        yield Board(postgres_url, link, opened)


async def taken_soon(session: JobSession) -> Job:
    """Take a job as soon as the server has noticed that its worker is gone."""
    async with asyncio.timeout(30):
        while (job := await session.take()) is None:
            await asyncio.sleep(0.02)
    return job


async def test_a_job_is_taken_once_and_what_comes_out_is_collected_once(board: Board) -> None:
    numbers = [await board.jobs.put(WINDOW, b"job %d" % number) for number in range(2)]
    sessions = [board.session() for _ in range(3)]
    assert await sessions[0].waiting()

    taken = await asyncio.gather(*(one.take() for one in sessions))

    assert sorted(job.job for job in taken if job is not None) == numbers
    assert await board.jobs.collect(numbers) == {}
    for session, job in zip(sessions, taken, strict=True):
        if job is not None:
            await session.finish(job, b"done " + job.request)
    assert not await sessions[0].waiting()
    assert await board.jobs.collect(numbers[:1]) == {numbers[0]: b"done job 0"}
    assert await board.jobs.collect(numbers) == {numbers[1]: b"done job 1"}
    assert await board.rows() == []


async def test_a_worker_that_is_gone_gives_its_job_back_at_once(board: Board) -> None:
    await board.jobs.put(WINDOW, b"job")
    first, second = board.session(), board.session()
    job = await first.take()
    assert await second.take() is None

    await first.close()

    assert await taken_soon(second) == job


@pytest.mark.parametrize("in_work", [True, False])
async def test_a_worker_that_hangs_loses_its_job_and_its_late_result_is_not_stored(
    board: Board, monkeypatch: pytest.MonkeyPatch, in_work: bool
) -> None:
    """As one that is stopped; one that is heard of keeps what it has."""
    monkeypatch.setattr(postgres, "HANGS_S", 1.5)  # Seven times what it is heard of in.
    number = await board.jobs.put(WINDOW, b"job")
    hung, second = board.session(), board.session()
    late = await hung.take()
    assert late is not None
    for _ in range(10):
        await asyncio.sleep(0.2)
        await hung.keep()
        assert await second.take() is None
    if not in_work:
        await hung.finish(late, b"in time")
        await asyncio.sleep(2.5)
        with pytest.raises(StoreError):
            await hung.take()
        assert await board.rows() == [(number, b"in time")]
        return

    job = await taken_soon(second)
    with pytest.raises(StoreError, match="session of a worker has ended"):
        await hung.finish(late, b"late")
    await second.finish(job, b"from the second")

    assert await board.jobs.collect([number]) == {number: b"from the second"}


async def test_the_jobs_of_a_former_coordinator_are_forgotten_and_no_worker_is_waited_for(board: Board) -> None:
    at_work = await board.jobs.put(WINDOW, b"in work")
    session = board.session()
    job = await session.take()
    assert job is not None
    await board.jobs.put(WINDOW, b"waiting")

    async with asyncio.timeout(10):
        await board.jobs.tidy()
    new = await board.jobs.put(WINDOW, b"new")
    await session.finish(job, b"for nobody")

    assert await board.rows() == [(at_work, b"for nobody"), (new, None)]
    await board.jobs.tidy()
    assert await board.rows() == []


async def test_a_job_nobody_waits_for_is_dropped_unless_a_worker_is_at_it(board: Board) -> None:
    numbers = [await board.jobs.put(WINDOW, b"job") for _ in range(2)]
    session = board.session()
    job = await session.take()
    assert job is not None
    async with asyncio.timeout(10):
        assert [await board.jobs.drop(number) for number in numbers] == [False, True]
    await session.finish(job, None)
    assert await board.rows() == [], "what nobody can read is not stored"
