"""What only one process at a time may do is done by the one that holds the slot, and by the next when that is gone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles.slots import SlotKeeper
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.leases import Member, Slot

from tests.support.members import Members, members_of
from tests.support.processes import pace


@pytest.fixture
async def members(postgres_url: str) -> AsyncIterator[Members]:
    async with members_of(postgres_url) as made:
        yield made


async def test_a_slot_is_worked_in_by_its_holder_alone_and_taken_over_when_it_is_gone(members: Members) -> None:
    working: list[tuple[str, Slot]] = []
    ended: list[str] = []
    changed = asyncio.Event()
    both = [await members.join(length_s=1.0) for _ in range(2)]

    async def hold(number: int) -> None:
        async def work(slot: Slot) -> None:
            working.append((f"member {number}", slot))
            changed.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(f"member {number}")
                changed.set()

        await SlotKeeper(both[number], 1, "intake", work).run()

    async def until(count: int, of: list[str] | list[tuple[str, Slot]]) -> None:
        async with asyncio.timeout(60):
            while len(of) < count:
                changed.clear()
                await changed.wait()

    link = await members.link()
    await link.rows("UPDATE members SET until = clock_timestamp() + interval '1 hour'")
    holding = [asyncio.create_task(hold(number)) for number in range(2)]
    await until(1, working)
    [(first, slot)] = working
    await members.run_out(both[int(first[-1])])

    await until(2, working)

    assert [one for _, one in working] == [slot, Slot(slot.slot, slot.token + 1)]
    assert working[1][0] != first
    await until(1, ended)
    assert ended == [first]
    for task in holding:
        task.cancel()
    await asyncio.wait(holding)


async def test_work_that_fails_is_begun_again_and_a_slot_whose_taking_had_its_answer_lost_is_taken_again(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, taking = await members.join(length_s=1.0), Member.take_slot
    link = await members.link()
    await link.rows("UPDATE members SET until = clock_timestamp() + interval '1 hour'")
    monkeypatch.setattr(Member, "holds", True)
    worked: list[int] = []
    again = asyncio.Event()

    async def lost(member: Member, slots: int) -> Slot | None:
        monkeypatch.setattr(Member, "take_slot", taking)
        await taking(member, slots)
        raise StoreError("the database does not answer")

    async def work(slot: Slot) -> None:
        worked.append(slot.token)
        if len(worked) == 1:
            raise StoreError("the broker is away")
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Member, "take_slot", lost)
    holding = asyncio.create_task(SlotKeeper(member, 1, "intake", work).run())
    async with asyncio.timeout(20):
        await again.wait()
    holding.cancel()
    await asyncio.wait([holding])

    assert worked == [2, 3]


class Working:
    """Who works in which slot at the moment."""

    def __init__(self) -> None:
        self.now: dict[int, set[int]] = {}
        self.began: list[tuple[int, Slot]] = []
        self._changed = asyncio.Event()

    async def work(self, number: int, slot: Slot) -> None:
        """Work for a member until cancelled."""
        own = self.now.setdefault(number, set())
        own.add(slot.slot)
        self.began.append((number, slot))
        self._changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            own.discard(slot.slot)
            self._changed.set()

    async def until(self, slots: int, *most: int) -> None:
        """Wait until so many slots are worked in, each by one member, and none works in more than it may at most."""
        async with asyncio.timeout(10 * pace()):
            while not self._is_so(slots, most):
                self._changed.clear()
                await self._changed.wait()

    def _is_so(self, slots: int, most: tuple[int, ...]) -> bool:
        shares = [self.now.get(number, set()) for number in range(len(most))]
        within = all(len(share) <= allowed for share, allowed in zip(shares, most, strict=True))
        return within and sorted(one for share in shares for one in share) == list(range(slots))


async def test_each_living_member_has_its_part_of_the_slots_and_the_last_has_all(members: Members) -> None:
    """With M living intakes none holds more than N / M of N slots, rounded up; a lone one holds all N."""
    working, joined = Working(), list[Member]()
    link, holding = await members.link(), list[asyncio.Task[None]]()

    async def come() -> None:
        number, member = len(joined), await members.join(length_s=1.0, roles="intake,worker")
        await link.rows(
            "UPDATE members SET until = clock_timestamp() + interval '1 hour' WHERE member = %s", member.name
        )
        joined.append(member)
        keeper = SlotKeeper(member, 5, "intake", lambda slot: working.work(number, slot))
        holding.append(asyncio.create_task(keeper.run()))

    await members.join(roles="worker")
    await come()
    await working.until(5, 5)
    await come()
    await working.until(5, 3, 2)
    assert working.now[0] == {0, 1, 2}, "the first stay where they are"
    await come()
    await working.until(5, 2, 2, 1)
    await members.run_out(joined[0])
    await working.until(5, 0, 3, 3)
    await members.run_out(joined[1])
    await working.until(5, 0, 0, 5)

    tokens = {slot: [one.token for _, one in working.began if one.slot == slot] for slot in range(5)}
    assert all(found == sorted(set(found)) for found in tokens.values()), tokens
    for task in holding:
        task.cancel()
    await asyncio.wait(holding)
    assert working.now[2] == set()


async def test_what_a_member_cannot_renew_it_works_in_no_more_after_half_a_lease(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, working = await members.join(length_s=1.0), Working()
    link = await members.link()
    await link.rows("UPDATE members SET until = clock_timestamp() + interval '1 hour'")
    failing = asyncio.Event()

    async def silent(member: Member) -> set[Slot]:
        failing.set()
        raise StoreError("the database does not answer")

    monkeypatch.setattr(Member, "holds", True)
    holding = asyncio.create_task(SlotKeeper(member, 2, "intake", lambda slot: working.work(0, slot)).run())
    await working.until(2, 2)
    monkeypatch.setattr(Member, "held_slots", silent)
    async with asyncio.timeout(10 * pace()):
        await failing.wait()
        failing.clear()
        await failing.wait()
    assert working.now == {0: {0, 1}}

    monkeypatch.setattr(Member, "holds", False)
    await working.until(0, 0)

    holding.cancel()
    await asyncio.wait([holding])
