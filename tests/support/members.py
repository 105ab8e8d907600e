"""Members of an aggregator over a PostgreSQL database of tests, and what makes one run out without waiting for it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from fleetcount_aggregator.storage.async_link import AsyncLink, Connect
from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.schema import LEASE_TABLES, POSTGRES


def connector(url: str) -> Connect:
    """Return what opens connections as an aggregator does."""

    async def connect() -> "psycopg.AsyncConnection[Any]":
        return await psycopg.AsyncConnection.connect(url, autocommit=True)

    return connect


@dataclass
class Members:
    """Members that a test makes; each has a connection of its own."""

    url: str
    opened: AsyncExitStack
    links: dict[int, AsyncLink] = field(default_factory=dict[int, AsyncLink])
    now: float = 0.0

    async def link(self) -> AsyncLink:
        """Return a new connection."""
        link = AsyncLink(connector(self.url))
        self.opened.push_async_callback(link.close)
        return link

    async def join(self, **settings: Any) -> Member:
        """Return a member that has joined, on a clock that stands still unless the test moves it."""
        link = await self.link()
        member = Member(link, **{"length_s": 60.0, "clock": lambda: self.now, **settings})
        self.links[id(member)] = link
        await member.join()
        return member

    async def run_out(self, member: Member) -> None:
        """Let a member run out now, as if it had not been heard of for its time."""
        await self.links[id(member)].rows(
            "UPDATE members SET until = clock_timestamp() - interval '1 second' WHERE member = %s", member.name
        )


@asynccontextmanager
async def members_of(url: str) -> AsyncIterator[Members]:
    """The members of an aggregator whose database has nothing but the tables of leases and jobs."""
    async with AsyncExitStack() as opened:
        members = Members(url, opened)
        link = await members.link()
        version = f"CREATE TABLE schema_version AS SELECT {POSTGRES.version}::bigint AS version"
        for statement in (*LEASE_TABLES, version):
            await link.rows(statement)
        yield members
