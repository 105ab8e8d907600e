"""What one member holds nobody else holds; who has run out holds nothing, and every taking has a number of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.leases import LeaseLostError, Member, SchemaMovedError
from fleetcount_protocol.errors import UsageError

from tests.support.members import Members, members_of
from tests.support.postgres import Cluster, own_cluster


@pytest.fixture(scope="module")
def postgres_cluster() -> Iterator[Cluster]:
    """A cluster of this module's own: one of its tests lets every commit wait."""
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture
async def members(postgres_url: str) -> AsyncIterator[Members]:
    async with members_of(postgres_url) as made:
        yield made


async def test_who_has_run_out_is_not_revived_and_holds_nothing(members: Members) -> None:
    member = await members.join()
    name = member.name
    await members.run_out(member)

    with pytest.raises(LeaseLostError, match="60 s"):
        await member.renew()

    assert not member.holds
    assert await member.take_slot(1) is None
    await member.join()
    assert member.name != name
    assert await member.take_slot(1) is not None


async def test_who_does_not_know_the_tables_any_more_neither_renews_nor_joins(members: Members) -> None:
    """F50: it holds nothing from the moment that it learns it, and says what to do in one line."""
    older = await members.join(release="1.0", newest_schema=6)
    newer = await members.join(release="2.0", newest_schema=7)
    said = "schema version 7; this process, of release 1.0, knows 6 at most"

    await members.links[id(older)].rows("UPDATE schema_version SET version = 7")

    with pytest.raises(SchemaMovedError, match=said):
        await older.renew()
    assert not older.holds
    with pytest.raises(SchemaMovedError, match=said):
        await older.join()
    await newer.renew()
    assert newer.holds


async def test_a_holder_gives_up_at_half_its_time_by_its_own_clock(members: Members) -> None:
    member = await members.join(length_s=60.0)

    def holds_at(now: float) -> bool:
        members.now = now
        return member.holds

    assert [holds_at(now) for now in (29.9, 30.0)] == [True, False]
    await member.renew()
    assert [holds_at(now) for now in (59.9, 60.0)] == [True, False]


async def test_what_was_leased_without_waiting_for_the_standby_is_not_taken_for_leased(
    members: Members, postgres_cluster: Cluster
) -> None:
    """A standby that takes over without it gives the same number to another."""
    member = await members.join()
    with postgres_cluster.standby_away():
        taking = asyncio.create_task(member.take_slot(1))
        await asyncio.to_thread(postgres_cluster.interrupt_wait)
        with pytest.raises(StoreError, match="standby"):
            await taking


async def test_a_slot_has_one_holder_and_a_new_number_for_the_next(members: Members) -> None:
    first, second = await members.join(), await members.join()
    taken = await asyncio.gather(first.take_slot(2), second.take_slot(2))
    assert sorted(one.slot for one in taken if one is not None) == [0, 1]
    held = taken[0]
    assert held is not None
    assert await first.take_slot(2) is None
    assert await first.held_slots() == {held}
    await members.run_out(first)
    assert await first.held_slots() == set()
    following = await second.take_slot(2)
    assert following is not None
    assert (following.slot, following.token) == (held.slot, held.token + 1)
    await first.join()
    assert await first.held_slots() == set()


async def test_a_member_keeps_the_slots_it_names_and_the_others_are_free(members: Members) -> None:
    first, second = await members.join(), await members.join()
    three = [await first.take_slot(4) for _ in range(3)]
    assert three[1] is not None

    await second.keep_slots(())
    await first.keep_slots([three[1]])

    assert await first.held_slots() == {three[1]}
    taken = [await second.take_slot(4) for _ in range(4)]
    assert [None if one is None else (one.slot, one.token) for one in taken] == [(0, 2), (2, 2), (3, 1), None]
    assert await second.held_slots() == {one for one in taken if one is not None}
    await first.keep_slots(())
    assert await first.held_slots() == set()


async def test_members_with_a_role_are_counted_while_they_live(members: Members) -> None:
    first = await members.join(roles="intake,worker")
    await members.join(roles="worker")
    assert [await first.living(role) for role in ("intake", "worker", "coordinator")] == [1, 2, 0]
    await members.run_out(first)
    assert [await first.living(role) for role in ("intake", "worker")] == [0, 1]


@pytest.mark.parametrize("length_s", [0.4, 301])
async def test_a_lease_has_a_length_within_bounds(members: Members, length_s: float) -> None:
    with pytest.raises(UsageError, match=r"allowed are 0\.5 to 300"):
        Member(await members.link(), length_s=length_s)
