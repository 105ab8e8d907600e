"""Whoever asks for much does not keep the others waiting, and a turn is never lost."""

import asyncio

import pytest
from fleetcount_aggregator.host.fair_queue import FairQueue


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Work:
    """Holds turns until it is told; knows the order in which they began and how many ran at once."""

    def __init__(self, at_once: int) -> None:
        self.turns = FairQueue(at_once)
        self.begun: list[str] = []
        self.running = 0
        self.most = 0
        self.go_on = asyncio.Semaphore(0)

    async def run(self, who: str) -> None:
        async with self.turns.of(who):
            self.begun.append(who)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go_on.acquire()
            finally:
                self.running -= 1


async def test_those_who_wait_are_served_in_turn() -> None:
    work = Work(2)
    tasks = [asyncio.create_task(work.run("many")) for _ in range(6)]
    await settled()
    tasks += [asyncio.create_task(work.run(who)) for who in ("few", "one", "few")]

    for _ in tasks:
        await settled()
        work.go_on.release()
    await asyncio.gather(*tasks)

    assert work.begun == ["many", "many", "many", "few", "one", "many", "few", "many", "many"]
    assert work.most == 2


@pytest.mark.parametrize("granted", [False, True])
async def test_a_turn_of_one_who_gives_up_goes_to_the_next(granted: bool) -> None:
    work = Work(1)
    first = work.turns.of("first")
    await first.__aenter__()
    second, third = (asyncio.create_task(work.run(who)) for who in ("second", "third"))
    await settled()

    if granted:
        await first.__aexit__(None, None, None)  # The second has its turn and does not know it yet.
        second.cancel()
    else:
        second.cancel()
        await settled()
        await first.__aexit__(None, None, None)
    work.go_on.release()

    async with asyncio.timeout(10):
        await third
        assert work.begun == ["third"]
        async with work.turns.of("later"):
            pass


async def test_a_turn_that_fails_is_given_back() -> None:
    turns = FairQueue(1)

    with pytest.raises(ZeroDivisionError):
        async with turns.of("one"):
            raise ZeroDivisionError
    async with asyncio.timeout(10), turns.of("two"):
        pass
