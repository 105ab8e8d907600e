"""Who is not heard of for half a lease gives up what it held, and begins anew under another name."""

import asyncio

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.roles import membership as roles_membership
from fleetcount_aggregator.roles.membership import Membership

from tests.support.members import members_of


async def test_who_was_not_heard_of_for_half_a_lease_begins_anew_under_another_name(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles_membership, "_RENEWALS", 80)
    async with members_of(postgres_url) as members:
        member, lost, gave_up = await members.join(length_s=8.0), list[str](), asyncio.Event()

        def give_up() -> None:
            lost.append(member.name)
            gave_up.set()

        running = asyncio.create_task(Membership(member, [give_up]).run())
        link = await members.link()
        former = member.name
        async with asyncio.timeout(60):
            while member.name == former:
                await asyncio.sleep(0.01)
        name = member.name
        # Whoever waits for this lock is not heard of; the lease itself has not run out when it is over.
        await link.rows("BEGIN")
        await link.rows("SELECT 1 FROM members WHERE member = %s FOR UPDATE", name)
        members.now += 4.0
        await gave_up.wait()
        await link.rows("ROLLBACK")
        async with asyncio.timeout(60):
            while member.name == name:
                await asyncio.sleep(0.01)
        assert lost == [name]
        running.cancel()
        await asyncio.wait([running])
