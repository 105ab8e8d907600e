"""Who is who among the processes of one aggregator over PostgreSQL: members that live, and what they lease.

A member renews one row and nothing else; the shards it leased are free as soon as that row has run out. Every taking
raises the number of what is taken, so that whoever is late writes under a number that holds no more. The database's
clock alone says when a row has run out, and the holder gives up earlier, by its own monotonic clock. Run by every
process with a role; decides nothing about a window.
"""

import secrets
import time
from collections.abc import Callable
from typing import Final

from fleetcount_protocol.errors import UsageError

from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.errors import FencedError, StoreError
from fleetcount_aggregator.storage.schema import POSTGRES

_MEMBER_BYTES: Final = 8
_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 300.0


class SchemaMovedError(StoreError):
    """The database has tables of a newer release than this process is of: it has nothing to do there any more."""


class LeaseLostError(FencedError):
    """This process has run out as a member: what it had leased may be another's."""


class Member:
    """One process of an aggregator, by a random name that no other process has had, and a new one each time it joins.

    `length_s`: how long what it holds stays its own when it is not heard of; it gives up after half of that. `release`
    and `newest_schema` say of what version it is, and which tables it knows. `clock` is monotonic, in seconds. Every
    method raises StoreError when the database does not answer.
    """

    def __init__(
        self,
        link: AsyncLink,
        *,
        length_s: float,
        roles: str = "",
        release: str = "",
        newest_schema: int = POSTGRES.version,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not _SHORTEST_S <= length_s <= _LONGEST_S:
            raise UsageError(f"a lease of {length_s:g} s; allowed are {_SHORTEST_S:g} to {_LONGEST_S:g}")
        self.name = ""
        self.length_s = length_s
        self.address = ""
        """Where other members reach this one; set before it joins."""
        self._link = link
        self._roles = roles
        self._release = release
        self._newest_schema = newest_schema
        self._clock = clock
        self._renewed_at = -float("inf")

    @property
    def holds(self) -> bool:
        """Whether what this member leased is surely its own: it was renewed less than half a lease ago."""
        return self._clock() < self._renewed_at + self.length_s / 2

    async def join(self) -> None:
        """Become a member under a new name, so that nothing of a former one is held, and forget those long run out.

        Raises:
            SchemaMovedError: the database has newer tables than this process knows.
        """
        if self.name:
            await self.leave()
        name, asked_at = secrets.token_hex(_MEMBER_BYTES), self._clock()
        # In one statement: between a look and a row of its own, somebody might bring up the tables.
        joined = await self._link.rows(
            "INSERT INTO members (member, address, roles, until, release, newest_schema) SELECT %s, %s, %s,"
            " clock_timestamp() + make_interval(secs => %s), %s, %s FROM schema_version WHERE version <= %s"
            " RETURNING member",
            name,
            self.address,
            self._roles,
            self.length_s,
            self._release,
            self._newest_schema,
            self._newest_schema,
        )
        if not joined:
            found = await self._link.row("SELECT version FROM schema_version")
            raise self._moved(0 if found is None else int(found[0]))
        self.name, self._renewed_at = name, asked_at
        await self._link.rows("DELETE FROM members WHERE until < clock_timestamp() - interval '1 hour'")

    async def renew(self) -> None:
        """Renew everything this member holds.

        Raises:
            LeaseLostError: it has run out, even if it is heard of again.
            SchemaMovedError: the database has newer tables than this process knows.
        """
        asked_at = self._clock()
        found = await self._link.row(
            # It waits for no disk, on which every lease would depend otherwise: a renewal that a crash of the server
            # takes back lets a lease run out early, and that is no harm.
            "WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"
            " UPDATE members SET until = clock_timestamp() + make_interval(secs => %s) FROM quick"
            " WHERE member = %s AND until > clock_timestamp()"
            " RETURNING (SELECT version FROM schema_version)",
            self.length_s,
            self.name,
        )
        if found is None:
            self._renewed_at = -float("inf")
            raise LeaseLostError(f"this process was not heard of for {self.length_s:g} s and holds nothing any more")
        if found[0] > self._newest_schema:
            self._renewed_at = -float("inf")
            raise self._moved(int(found[0]))
        self._renewed_at = asked_at

    def _moved(self, version: int) -> SchemaMovedError:
        return SchemaMovedError(
            f"the database has schema version {version}; this process, of release {self._release or 'unknown'}, knows"
            f" {self._newest_schema} at most and takes nothing any more: start the newer release in its place"
        )

    async def leave(self) -> None:
        """Give up everything at once."""
        self._renewed_at = -float("inf")
        await self._link.rows("DELETE FROM members WHERE member = %s", self.name)

    async def living(self, role: str) -> int:
        """Return how many members with a role live."""
        found = await self._link.row(
            "SELECT count(*) FROM living WHERE %s = ANY (string_to_array(roles, ','))",
            role,
        )
        return 0 if found is None else int(found[0])
