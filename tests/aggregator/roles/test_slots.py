"""What only one process at a time may do is done by the one that holds the slot, and by the next when that is gone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles import slots as roles_slots
from fleetcount_aggregator.roles.slots import SlotKeeper
from fleetcount_aggregator.storage import postgres
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.slot_locks import SlotLocks

from tests.support.connector import connector
from tests.support.processes import pace


class Working:
    """Who works in which slot at the moment."""

    def __init__(self) -> None:
        self.now: dict[int, set[int]] = {}
        self.began: list[tuple[int, int]] = []
        self._changed = asyncio.Event()

    async def work(self, number: int, slot: int) -> None:
        """Work for a process until cancelled."""
        own = self.now.setdefault(number, set())
        own.add(slot)
        self.began.append((number, slot))
        self._changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            own.discard(slot)
            self._changed.set()

    async def until(self, slots: int, *most: int) -> None:
        """Wait until so many slots are worked in, each by one process, and none works in more than it may at most."""
        async with asyncio.timeout(20 * pace()):
            while not self._is_so(slots, most):
                self._changed.clear()
                await self._changed.wait()

    def _is_so(self, slots: int, most: tuple[int, ...]) -> bool:
        shares = [self.now.get(number, set()) for number in range(len(most))]
        within = all(len(share) <= allowed for share, allowed in zip(shares, most, strict=True))
        return within and sorted(one for share in shares for one in share) == list(range(slots))


@dataclass
class Keepers:
    """The keepers of slots that a test starts, each as a process of its own."""

    url: str
    slots: int
    working: Working = field(default_factory=Working)
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    locks: list[SlotLocks] = field(default_factory=list[SlotLocks])

    def come(self) -> None:
        number, locks = len(self.tasks), SlotLocks(connector(self.url), self.slots)
        self.locks.append(locks)
        keeper = SlotKeeper(locks, self.slots, lambda slot: self.working.work(number, slot))
        self.tasks.append(asyncio.create_task(keeper.run()))

    async def leave(self, number: int) -> None:
        self.tasks[number].cancel()
        await asyncio.wait([self.tasks[number]])


@pytest.fixture
async def keepers(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[int], Keepers]]:
    """What makes keepers of so many slots, who look twenty times as often."""
    monkeypatch.setattr(roles_slots, "_LOOK_S", 0.05)
    async with AsyncExitStack() as opened:

        def make(slots: int) -> Keepers:
            made = Keepers(postgres_url, slots)

            async def end() -> None:
                for number in range(len(made.tasks)):
                    await made.leave(number)

            opened.push_async_callback(end)
            return made

        yield make


async def test_each_process_has_its_part_of_the_slots_and_the_last_has_all(
    keepers: Callable[[int], Keepers],
) -> None:
    """With M intakes none holds more than N / M of N slots, rounded up; a lone one holds all N."""
    made = keepers(5)
    working = made.working
    made.come()
    await working.until(5, 5)
    made.come()
    await working.until(5, 3, 2)
    assert working.now[0] == {0, 1, 2}, "the first stay where they are"
    made.come()
    await working.until(5, 2, 2, 1)
    await made.leave(0)
    await working.until(5, 0, 3, 3)
    await made.leave(1)
    await working.until(5, 0, 0, 5)
    await made.leave(2)
    assert working.now[2] == set()


async def test_a_process_that_hangs_is_followed_and_works_in_no_slot_when_it_goes_on(
    keepers: Callable[[int], Keepers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped; one that only looks keeps what it has."""
    monkeypatch.setattr(postgres, "HANGS_S", 1.0)
    made, look, hung = keepers(1), SlotLocks.look, asyncio.Event()
    made.come()
    await made.working.until(1, 1)
    made.come()
    await asyncio.sleep(1.5)
    assert made.working.began == [(0, 0)]

    async def hang(locks: SlotLocks) -> object:
        if locks is made.locks[0]:
            await hung.wait()
        return await look(locks)

    monkeypatch.setattr(SlotLocks, "look", hang)
    async with asyncio.timeout(20 * pace()):
        while (1, 0) not in made.working.began:
            await asyncio.sleep(0.05)
    hung.set()
    await made.working.until(1, 0, 1)


async def test_a_session_that_is_ended_is_one_more_look_and_work_that_fails_is_begun_again(
    keepers: Callable[[int], Keepers],
) -> None:
    made = keepers(1)
    failed: list[int] = []
    again = asyncio.Event()

    async def work(slot: int) -> None:
        failed.append(slot)
        if len(failed) == 1:
            raise StoreError("the broker is away")
        if len(failed) == 2:
            assert locks._connection is not None
            await locks._connection.close()
            await asyncio.Event().wait()
        again.set()
        await asyncio.Event().wait()

    locks = SlotLocks(connector(made.url), 1)
    holding = asyncio.create_task(SlotKeeper(locks, 1, work).run())
    try:
        async with asyncio.timeout(20 * pace()):
            await again.wait()
    finally:
        holding.cancel()
        await asyncio.wait([holding])


async def test_a_server_that_does_not_answer_ends_the_work_before_another_takes_the_slots(
    keepers: Callable[[int], Keepers], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keepers(2)
    made.come()
    await made.working.until(2, 2)

    async def silent(locks: SlotLocks) -> object:
        raise StoreError("the database does not answer")

    monkeypatch.setattr(SlotLocks, "look", silent)
    await made.working.until(0, 0)
