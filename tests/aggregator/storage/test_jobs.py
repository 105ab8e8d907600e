"""A job is done under the token it was leased with, by nobody twice, and again when its worker is gone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from tests.support.members import Members, members_of

WINDOW = bytes(32)


@pytest.fixture
async def members(postgres_url: str) -> AsyncIterator[Members]:
    async with members_of(postgres_url) as made:
        yield made


async def test_a_job_is_leased_once_and_what_comes_out_is_collected_once(members: Members) -> None:
    asker, *workers = [await members.join() for _ in range(4)]
    numbers = [await members.jobs(asker).put(WINDOW, b"job %d" % number) for number in range(2)]

    leased = await asyncio.gather(*(members.jobs(one).lease() for one in workers))

    found = sorted(job.job for job in leased if job is not None)
    assert found == numbers
    for worker, job in zip(workers, leased, strict=True):
        if job is not None:
            assert await members.jobs(worker).finish(job, b"done " + job.request)
    assert await members.jobs(workers[0]).collect() == {}
    assert await members.jobs(asker).collect() == {number: b"done job %d" % at for at, number in enumerate(numbers)}
    assert await members.jobs(asker).collect() == {}


async def test_a_worker_that_has_run_out_stores_nothing(members: Members) -> None:
    asker, first, second = [await members.join() for _ in range(3)]
    number = await members.jobs(asker).put(WINDOW, b"job")
    late = await members.jobs(first).lease()
    assert late is not None
    assert await members.jobs(second).lease() is None

    await members.run_out(first)
    job = await members.jobs(second).lease()

    assert job is not None
    assert (job.job, job.token) == (number, late.token + 1)
    assert not await members.jobs(first).finish(late, b"late")
    assert await members.jobs(second).finish(job, b"in time")
    assert not await members.jobs(first).finish(late, b"late")
    assert await members.jobs(asker).collect() == {number: b"in time"}


async def test_a_job_given_back_is_anybodys_at_once(members: Members) -> None:
    asker, first, second = [await members.join() for _ in range(3)]
    await members.jobs(asker).put(WINDOW, b"job")
    job = await members.jobs(first).lease()
    assert job is not None
    await members.jobs(first).give_back(job)
    again = await members.jobs(second).lease()
    assert again is not None
    assert again.token == job.token + 1


async def test_a_job_whose_lease_or_end_had_its_answer_lost_is_leased_again_by_who_lives(members: Members) -> None:
    asker, worker = await members.join(), await members.join()
    number = await members.jobs(asker).put(WINDOW, b"job")
    lost = await members.jobs(worker).lease()
    assert lost is not None
    assert await members.jobs(worker).lease([number]) is None

    again = await members.jobs(worker).lease([number + 1])

    assert again is not None
    assert (again.job, again.token) == (number, lost.token + 1)
    assert not await members.jobs(worker).finish(lost, b"late")
    assert await members.jobs(worker).finish(again, b"done")


async def test_nobody_works_for_an_asker_that_is_gone(members: Members) -> None:
    asker, worker = await members.join(), await members.join()
    await members.jobs(asker).put(WINDOW, b"job")
    await members.run_out(asker)
    assert await members.jobs(worker).lease() is None
    await members.jobs(worker).tidy()
    assert await members.links[id(worker)].rows("SELECT * FROM jobs") == []


async def test_a_job_nobody_waits_for_is_dropped(members: Members) -> None:
    asker, worker = await members.join(), await members.join()
    number = await members.jobs(asker).put(WINDOW, b"job")
    job = await members.jobs(worker).lease()
    assert job is not None
    await members.jobs(asker).drop([number])
    assert not await members.jobs(worker).finish(job, b"for nobody")
    assert await members.jobs(asker).collect() == {}
