"""Whoever asks for much does not keep the others waiting, and a turn is never lost."""

import asyncio
from collections.abc import Sequence

import pytest
from fleetcount_transport.admission.reputation import Reputation
from fleetcount_transport.admission.turns import FairBatches, FairQueue, PriorityRoundRobin, RoundRobin


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

    async with asyncio.timeout(60):
        await third
        assert work.begun == ["third"]
        async with work.turns.of("later"):
            pass


async def test_a_turn_that_fails_is_given_back() -> None:
    turns = FairQueue(1)

    with pytest.raises(ZeroDivisionError):
        async with turns.of("one"):
            raise ZeroDivisionError
    async with asyncio.timeout(60), turns.of("two"):
        pass


async def test_those_who_gave_up_take_no_memory_however_many_come_and_go_while_others_wait() -> None:
    work, longest = Work(1), 0
    waiting = [asyncio.create_task(work.run(f"patient {number}")) for number in range(40)]
    await settled()
    for _ in range(30):
        gone = [asyncio.create_task(work.run(f"hasty {number % 4}")) for number in range(100)]
        await settled()
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        longest = max(longest, len(work.turns._waiting))
        work.go_on.release()
        await settled()
    for _ in waiting:
        work.go_on.release()
    await asyncio.gather(*waiting)

    assert longest <= 2 * (40 + 100)
    assert [who for who in work.begun if who.startswith("patient")] == [f"patient {number}" for number in range(40)]


# The line.


def taken(line: RoundRobin[str], count: int) -> list[str]:
    return [line.take() for _ in range(count)]


def test_who_is_new_goes_before_all_who_have_been_there_and_leaving_gains_nothing() -> None:
    line = RoundRobin[str]()
    for number in range(3):
        for who in "abc":
            line.put(f"{who}{number}", who)
    assert taken(line, 4) == ["a0", "b0", "c0", "a1"]

    line.put("honest", "h")
    line.put("a3", "a")

    assert taken(line, 7) == ["honest", "b1", "c1", "a2", "b2", "c2", "a3"]
    assert len(line) == 0
    with pytest.raises(IndexError):
        line.take()


def test_one_who_asks_alone_each_time_is_not_new_while_others_wait() -> None:
    line = RoundRobin[str]()
    for number in range(4):
        line.put(f"m{number}", "many")
    line.put("s0", "single")
    assert taken(line, 2) == ["m0", "s0"]

    line.put("s1", "single")
    line.put("honest", "honest")

    assert taken(line, 4) == ["honest", "m1", "s1", "m2"]


def test_who_is_known_goes_first_and_every_fourth_turn_is_for_those_behind() -> None:
    line = PriorityRoundRobin[str]()
    for number in range(8):
        for reputation in Reputation:
            line.put(reputation.name, reputation, f"{reputation.name} {number}")

    taken = [line.take() for _ in range(8)]

    assert taken == ["KNOWN", "KNOWN", "KNOWN", "FAILED", "KNOWN", "KNOWN", "KNOWN", "NEW"]
    assert len(line) == 16
    with pytest.raises(IndexError):
        PriorityRoundRobin[str]().take()


def test_whom_a_party_acts_for_share_its_turns() -> None:
    line = RoundRobin[str]()
    for number in range(4):
        line.put(f"bad{number}", "relay", "bad")
    line.put("good", "relay", "good")
    line.put("direct", "direct", "")

    assert taken(line, 3) == ["bad0", "direct", "good"]


# Batches.


async def test_asks_that_come_together_are_one_batch_and_keep_their_answers() -> None:
    batches: list[int] = []

    async def work(asks: Sequence[int]) -> list[int]:
        batches.append(len(asks))
        await asyncio.sleep(0)
        return [10 * ask for ask in asks]

    here: FairBatches[int, int] = FairBatches(work, 50)

    answers = await asyncio.gather(*(here.ask(number, number % 7) for number in range(80)))

    assert answers == [10 * number for number in range(80)]
    assert len(batches) <= 4
    assert max(batches) == 50


async def test_a_failed_batch_fails_those_in_it_and_nobody_after() -> None:
    async def work(asks: Sequence[int]) -> list[int]:
        if 13 in asks:
            raise OSError("thirteen")
        return list(asks)

    here: FairBatches[int, int] = FairBatches(work, 2)

    results = await asyncio.gather(*(here.ask(n, n) for n in (12, 13, 14, 15)), return_exceptions=True)

    assert [isinstance(result, OSError) for result in results] == [True, True, False, False]
    assert results[2:] == [14, 15]


async def test_an_asker_who_leaves_takes_nobody_along_and_is_not_worked_for() -> None:
    release = asyncio.Event()
    worked: list[int] = []

    async def work(asks: Sequence[int]) -> list[int]:
        worked.extend(asks)
        await release.wait()
        return list(asks)

    here: FairBatches[int, int] = FairBatches(work, 1)
    first, leaving, staying = (here.ask(number, number) for number in range(3))
    await settled()
    leaving.cancel()
    release.set()

    assert [await first, await staying] == [0, 2]
    assert worked == [0, 2]


async def test_one_request_waits_for_one_batch_whoever_asked_for_thousands_before() -> None:
    groups: list[list[str]] = []

    async def work(asks: Sequence[str]) -> list[str]:
        groups.append(list(asks))
        await asyncio.sleep(0)
        return list(asks)

    here: FairBatches[str, str] = FairBatches(work, 16)
    flood = [here.ask(f"bad{number}", number % 200) for number in range(12_800)]
    await settled()
    before = len(groups)

    await here.ask("honest", "honest")

    assert ["honest" in group for group in groups[before:]].index(True) <= 1
    for one in flood:
        one.cancel()
