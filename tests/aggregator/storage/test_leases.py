"""What one member holds nobody else holds; who has run out holds nothing, and every taking has a number of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.leases import LeaseLostError, Member, SchemaMovedError
from fleetcount_aggregator.storage.schema import FRAME_TABLES
from fleetcount_aggregator.storage.shard_leases import ShardLeases
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
    await member.join()
    assert member.name != name
    assert member.holds


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
    link = members.links[id(member)]
    for statement in FRAME_TABLES:
        await link.rows(statement)
    await link.rows("INSERT INTO shards (window_id, shard) VALUES ('t', 0)")
    with postgres_cluster.standby_away():
        taking = asyncio.create_task(ShardLeases(link, member).take(1))
        await asyncio.to_thread(postgres_cluster.interrupt_wait)
        with pytest.raises(StoreError, match="standby"):
            await taking


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
