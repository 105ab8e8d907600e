"""Streams of batches: order, bounds, and that nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest
from fleetcount_transport.pipelining import IdleStreamError, Pipeline

from tests.support.told_time import told_time, turns_until


async def stream(count: int, taken: list[int]) -> AsyncIterator[int]:
    for number in range(count):
        taken.append(number)
        yield number


async def test_answers_keep_the_order_and_no_more_is_read_than_may_be_under_way() -> None:
    taken: list[int] = []
    answered: list[int] = []
    under_way, most = 0, 0

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range((number * 7) % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)
        assert len(taken) - len(answered) <= 4

    await Pipeline(work, deliver, 4, 60).run(stream(50, taken))

    assert answered == list(range(50))
    assert 2 <= most <= 4


async def test_a_failed_batch_ends_the_stream_and_what_is_under_way() -> None:
    taken: list[int] = []
    answered: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> int:
        if number == 2:
            raise OSError("two")
        try:
            await asyncio.sleep(0 if number < 2 else 3600)
        finally:
            ended.append(number)
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    with pytest.raises(OSError, match="two"):
        await Pipeline(work, deliver, 4, 60).run(stream(50, taken))

    assert answered == [0, 1]
    assert sorted(ended) == [number for number in taken if number != 2]
    assert len(asyncio.all_tasks()) == 1


async def test_a_broken_stream_is_told_after_what_it_brought() -> None:
    answered: list[int] = []

    async def broken() -> AsyncIterator[int]:
        yield 1
        raise OSError("gone")

    async def work(number: int) -> int:
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    with pytest.raises(OSError, match="gone"):
        await Pipeline(work, deliver, 4, 60).run(broken())

    assert answered == [1]


async def test_a_cancelled_stream_leaves_no_window() -> None:
    never = asyncio.Event()

    async def silent() -> AsyncIterator[int]:
        yield 1
        await never.wait()

    async def work(number: int) -> int:
        await never.wait()
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        await answer

    running = asyncio.create_task(Pipeline(work, deliver, 4, 60).run(silent()))
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    assert len(asyncio.all_tasks()) == 1


async def silent_after(count: int, silent: asyncio.Event) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    silent.set()
    await asyncio.Event().wait()


async def test_a_stream_without_requests_ends_as_idle() -> None:
    answered: list[int] = []
    silent = asyncio.Event()

    async def work(number: int) -> int:
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    with told_time() as told:
        running = asyncio.create_task(Pipeline(work, deliver, 4, 10).run(silent_after(3, silent)))
        await silent.wait()
        await turns_until(lambda: len(answered) == 3)
        told.passes(9.99)
        assert await asyncio.wait([running], timeout=0) == (set(), {running})
        told.passes(0.01)
        with pytest.raises(IdleStreamError):
            await running

    assert answered == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


async def test_time_for_which_the_other_side_waits_for_us_is_not_idle() -> None:
    with told_time() as told:

        async def work(number: int) -> int:
            told.passes(20)
            await asyncio.sleep(0)  # What is due by now has its turn before the answer.
            await asyncio.sleep(0)
            return number

        answered: list[int] = []

        async def deliver(answer: Awaitable[int]) -> None:
            answered.append(await answer)

        await Pipeline(work, deliver, 1, 10).run(stream(2, []))

    assert answered == [0, 1]


async def test_a_limit_of_the_work_itself_is_not_taken_for_idleness() -> None:
    async def work(number: int) -> int:
        raise TimeoutError

    async def deliver(answer: Awaitable[int]) -> None:
        await answer

    with pytest.raises(TimeoutError):
        await Pipeline(work, deliver, 4, 60).run(stream(3, []))


async def test_a_stream_that_is_ended_answers_what_is_begun_and_reads_nothing_more() -> None:
    may_answer = asyncio.Event()
    answered: list[int] = []

    async def work(number: int) -> int:
        await may_answer.wait()
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    taken: list[int] = []
    pipeline = Pipeline(work, deliver, 2, 60)
    running = asyncio.create_task(pipeline.run(stream(50, taken)))
    await turns_until(lambda: len(taken) == 2)
    pipeline.end()
    may_answer.set()
    await running

    assert (taken, answered) == ([0, 1], [0, 1])
    assert len(asyncio.all_tasks()) == 1
