"""Which member writes which shard: taken under the next epoch when no member that lives owns it, found by its address.

Statements alone; who takes how many is the keeper's (`intake.shard_keeper`).
"""

from collections.abc import Collection
from typing import NamedTuple

from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.leases import Member


class TakenShard(NamedTuple):
    """A shard of an open window, and the epoch under which it is written."""

    window_id: WindowId
    shard: int
    epoch: int


class ShardLeases:
    """The shards of open windows, as one member sees them; every method raises StoreError as `AsyncLink.rows` does."""

    def __init__(self, link: AsyncLink, member: Member) -> None:
        self._link = link
        self._member = member

    async def take(self, members: int, passed: Collection[tuple[WindowId, int]] = ()) -> list[TakenShard]:
        """Take shards that nobody living owns: of each window no more than this member's part among so many members.

        Those that are `passed` over are left to others.
        """
        rows = await self._link.rows(
            # Who has run out in what this statement sees may have been heard of since: locked, the row says so itself.
            "WITH gone AS (SELECT member FROM members WHERE until <= clock_timestamp()"
            " AND member IN (SELECT owner FROM shards WHERE closed_seq IS NULL) FOR SHARE SKIP LOCKED),"
            " open AS (SELECT window_id, shard, owner,"
            " row_number() OVER (PARTITION BY window_id ORDER BY shard) AS place"
            " FROM shards WHERE closed_seq IS NULL"
            " AND (owner IN (SELECT member FROM gone) OR owner NOT IN (SELECT member FROM members))"
            " AND NOT EXISTS (SELECT 1 FROM unnest(%s::bytea[], %s::integer[]) AS passed(window_id, shard)"
            " WHERE passed.window_id = shards.window_id AND passed.shard = shards.shard)),"
            " room AS (SELECT window_id, ceil(count(*)::numeric / %s) - count(*) FILTER (WHERE owner = %s) AS free"
            " FROM shards WHERE closed_seq IS NULL GROUP BY window_id),"
            " found AS (SELECT s.window_id, s.shard FROM shards s"
            " JOIN open USING (window_id, shard) JOIN room USING (window_id)"
            # Who has taken one since may be a member that this statement does not see.
            " WHERE place <= free AND s.closed_seq IS NULL AND s.owner = open.owner"
            " FOR UPDATE OF s SKIP LOCKED)"
            " UPDATE shards SET epoch = epoch + 1, owner = %s FROM found"
            " WHERE shards.window_id = found.window_id AND shards.shard = found.shard"
            " AND %s IN (SELECT member FROM living)"
            " RETURNING shards.window_id, shards.shard, shards.epoch",
            [bytes(window_id) for window_id, _ in passed],
            [shard for _, shard in passed],
            members,
            self._member.name,
            self._member.name,
            self._member.name,
        )
        return [TakenShard(WindowId(bytes(window)), int(shard), int(epoch)) for window, shard, epoch in rows]

    async def address(self, window_id: WindowId, shard: int) -> str | None:
        """Return where the owner of a shard is reached, None if nobody living owns it."""
        found = await self._link.row(
            "SELECT address FROM shards JOIN living ON member = owner WHERE window_id = %s AND shard = %s",
            bytes(window_id),
            shard,
        )
        return None if found is None else str(found[0])

    async def keep_only(self, kept: Collection[tuple[WindowId, int]]) -> None:
        """Let go of every open shard that is this member's by its row and not one of these."""
        await self._link.rows(
            "UPDATE shards SET owner = '' WHERE owner = %s AND closed_seq IS NULL AND NOT EXISTS (SELECT 1"
            " FROM unnest(%s::bytea[], %s::integer[]) AS kept(window_id, shard)"
            " WHERE kept.window_id = shards.window_id AND kept.shard = shards.shard)",
            self._member.name,
            [bytes(window_id) for window_id, _ in kept],
            [shard for _, shard in kept],
        )

    async def free(self, taken: TakenShard) -> None:
        """Let another member take a shard that this one could not read back."""
        await self._link.rows(
            "UPDATE shards SET owner = '' WHERE window_id = %s AND shard = %s AND epoch = %s",
            bytes(taken.window_id),
            taken.shard,
            taken.epoch,
        )
