"""Streams of batches: order, bounds, and that nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest
from fleetcount_transport.pipelining import ByteBudget, IdleStreamError, in_order


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

    await in_order(stream(50, taken), work, deliver, 4, 60)

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
        await in_order(stream(50, taken), work, deliver, 4, 60)

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
        await in_order(broken(), work, deliver, 4, 60)

    assert answered == [1]


async def test_a_cancelled_stream_leaves_no_task() -> None:
    never = asyncio.Event()

    async def silent() -> AsyncIterator[int]:
        yield 1
        await never.wait()

    async def work(number: int) -> int:
        await never.wait()
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        await answer

    running = asyncio.create_task(in_order(silent(), work, deliver, 4, 60))
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    assert len(asyncio.all_tasks()) == 1


def test_a_budget_is_kept_and_one_alone_always_fits() -> None:
    budget = ByteBudget(10)

    assert [budget.take(20), budget.take(1)] == [True, False]
    budget.give_back(20)
    assert [budget.take(6), budget.take(4), budget.take(1)] == [True, True, False]
    budget.give_back(4)
    assert budget.take(3)


def test_a_budget_within_another_takes_of_both() -> None:
    all_bytes = ByteBudget(10)
    one, other = ByteBudget(6, all_bytes), ByteBudget(6, all_bytes)

    assert [one.take(6), one.take(1), other.take(5), other.take(4)] == [True, False, False, True]
    one.give_back(6)
    assert [other.take(3), other.take(2), one.take(5), one.take(4)] == [False, True, False, True]


async def silent_after(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    await asyncio.Event().wait()


async def test_a_stream_without_requests_ends_as_idle() -> None:
    answered: list[int] = []

    async def work(number: int) -> int:
        return number

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    with pytest.raises(IdleStreamError):
        await in_order(silent_after(3), work, deliver, 4, 0.01)

    assert answered == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


async def test_time_for_which_the_other_side_waits_for_us_is_not_idle() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.2)
        return number

    answered: list[int] = []

    async def deliver(answer: Awaitable[int]) -> None:
        answered.append(await answer)

    await in_order(stream(2, []), work, deliver, 1, 0.1)

    assert answered == [0, 1]


async def test_a_limit_of_the_work_itself_is_not_taken_for_idleness() -> None:
    async def work(number: int) -> int:
        raise TimeoutError

    async def deliver(answer: Awaitable[int]) -> None:
        await answer

    with pytest.raises(TimeoutError):
        await in_order(stream(3, []), work, deliver, 4, 60)
