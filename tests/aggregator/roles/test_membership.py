"""One process coordinates at a time; who is overtaken, fenced off or not heard of ends, and stands again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles import membership as roles_membership
from fleetcount_aggregator.roles.membership import Membership
from fleetcount_aggregator.storage.store import FencedError
from structlog.testing import capture_logs

from tests.support.members import Members, members_of

LENGTH_S = 24.0
"""Of a lease: nothing runs out because the machine is slow, but because a test says so."""


@pytest.fixture
async def members(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Members]:
    """Return members whose clock stands still, and who look as often as those whose leases are a tenth as long."""
    monkeypatch.setattr(roles_membership, "_RENEWALS", 80)
    monkeypatch.setattr(roles_membership, "_LOOKS", 400)
    async with members_of(postgres_url) as made:
        yield made


@dataclass
class Fence:
    """Stands for the store, which writes under this epoch."""

    epoch: int | None = None


@dataclass
class Coordinators:
    """What the coordinators of a test do: they say that they do it, until they are told to fail."""

    working: dict[str, int] = field(default_factory=dict[str, int])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    fail: asyncio.Event = field(default_factory=asyncio.Event)
    lost: list[str] = field(default_factory=list[str])
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def process(
        self, members: Members, name: str, *, stands: bool = True, length_s: float = LENGTH_S
    ) -> AsyncIterator[Membership]:
        member, fence = await members.join(length_s=length_s), Fence()

        async def coordinate() -> None:
            assert fence.epoch is not None
            await self._note(name, fence.epoch)
            try:
                await self.fail.wait()
                self.fail.clear()
                raise FencedError("somebody else writes")
            finally:
                await asyncio.shield(asyncio.create_task(self._note(name, None)))

        def give_up() -> None:
            self.lost.append(name)
            self.gave_up.set()

        standing = Membership(member, fence, coordinate, [give_up], stands=stands)
        running = asyncio.create_task(standing.run())
        try:
            yield standing
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _note(self, name: str, epoch: int | None) -> None:
        async with self.changed:
            if epoch is None:
                del self.working[name]
            else:
                self.working[name] = epoch
            self.changed.notify_all()

    async def until(self, **expected: int) -> None:
        """Wait until exactly these coordinate, each under its epoch."""
        async with self.changed, asyncio.timeout(60):
            await self.changed.wait_for(lambda: self.working == expected)


async def test_another_takes_over_from_a_coordinator_that_stops(members: Members) -> None:
    coordinators = Coordinators()
    async with coordinators.process(members, "second", stands=False) as second:
        async with coordinators.process(members, "first") as first:
            await coordinators.until(first=1)
            assert (first.is_coordinator, second.is_coordinator) == (True, False)
            async with coordinators.process(members, "third") as third:
                assert not third.is_coordinator
                await coordinators.until(first=1)
        async with coordinators.process(members, "third"):
            await coordinators.until(third=2)


async def test_a_fenced_coordinator_ends_says_so_in_one_line_and_stands_again(members: Members) -> None:
    coordinators = Coordinators()
    with capture_logs() as logs:
        async with coordinators.process(members, "only"):
            await coordinators.until(only=1)
            coordinators.fail.set()
            await coordinators.until(only=2)
    ended = [one for one in logs if one["event"] == "coordinator_ended"]
    assert [(one["epoch"], one["reason"]) for one in ended][:1] == [(1, "somebody else writes")]


async def test_a_coordinator_that_ran_out_ends_and_gives_up_what_it_held(members: Members) -> None:
    coordinators = Coordinators()
    async with coordinators.process(members, "only"):
        await coordinators.until(only=1)
        link = await members.link()
        await link.rows("UPDATE members SET until = clock_timestamp() - interval '1 second'")
        await coordinators.until(only=2)
    assert coordinators.lost == ["only"]


async def test_who_was_not_heard_of_for_half_a_lease_begins_anew_under_another_name(members: Members) -> None:
    coordinators = Coordinators()
    async with coordinators.process(members, "only", length_s=8.0):  # A quarter of it passes.
        await coordinators.until(only=1)
        link = await members.link()
        [(name,)] = await link.rows("SELECT owner FROM coordinator")
        # Whoever waits for this lock is not heard of; the lease itself has not run out when it is over.
        await link.rows("UPDATE members SET until = clock_timestamp() + interval '1 hour' WHERE member = %s", name)
        await link.rows("BEGIN")
        await link.rows("SELECT 1 FROM members WHERE member = %s FOR UPDATE", name)
        members.now += 4.0
        await coordinators.until()
        await coordinators.gave_up.wait()
        await link.rows("ROLLBACK")
        await coordinators.until(only=2)
        assert coordinators.lost == ["only"]
        assert await link.rows("SELECT 1 FROM members WHERE member = %s", name) == []


class Elected:
    """A member that is elected whenever it stands."""

    length_s, holds, epoch, stood = 8.0, True, 0, 0

    async def stand(self) -> int:
        self.stood += 1
        self.epoch += 1
        return self.epoch

    async def resign(self) -> None:
        pass


async def test_a_coordinator_whose_work_fails_at_once_stands_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise FencedError("the same as before")

    member, pauses = Elected(), list[float]()
    standing = Membership(member, Fence(), fails)  # type: ignore[arg-type]  # What an election asks of a member.
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("fleetcount_aggregator.roles.membership.asyncio.sleep", sleep)
    election = asyncio.create_task(standing._elect())
    while member.stood < 14:
        await real(0)
    election.cancel()
    await asyncio.wait([election])

    waited = [one for one in pauses if one > member.length_s / 40]  # Who watches the coordinator looks as often.
    assert waited == sorted(waited)
    assert waited[:3] == [0.4, 0.8, 1.6]
    assert waited[-1] == 60.0
