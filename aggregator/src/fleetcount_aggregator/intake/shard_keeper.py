"""Keeps the shards that this process writes: takes what nobody living owns, and gives up all when it is not heard of.

Which instalments go where is routing's. It must not decide about an instalment; the epoch of a shard does, with every
frame (`storage.postgres_frames`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.shard_leases import ShardLeases, TakenShard

_LOOK_S: Final = 0.5
"""How often it looks for shards whose owner is gone; what is new is told."""
_LONGEST_PAUSE_S: Final = 60.0
"""Between two tries to read back a shard that cannot be read; others may try meanwhile."""


class ShardLogs(Protocol):
    """The report logs of the store."""

    def take(self, window_id: WindowId, shard: int = 0, epoch: int = 0) -> None:
        """Read a shard back and write it from now on, under an epoch."""
        ...

    def give_up(self, window_id: WindowId, shard: int) -> None:
        """Write a shard no more, and forget what is held of it."""
        ...

    def writes(self, window_id: WindowId, shard: int) -> bool:
        """Whether a shard is written here, as far as this process knows."""
        ...

    def shard_count(self, window_id: WindowId) -> int:
        """Return into how many shards a window is cut."""
        ...


class ShardKeeper:
    """The shards of this process. `has_ended` says which windows have ended; `role` is who takes shards."""

    def __init__(
        self, member: Member, leases: ShardLeases, logs: ShardLogs, has_ended: Callable[[WindowId], bool], role: str
    ) -> None:
        self._member = member
        self._leases = leases
        self._logs = logs
        self._has_ended = has_ended
        self._role = role
        self._owned: set[tuple[WindowId, int]] = set()
        self._stale: set[tuple[WindowId, int]] = set()
        """What is held of shards that may be another's by now."""
        self._failed: dict[tuple[WindowId, int], tuple[float, float]] = {}
        """When to try again to read a shard back, by the loop's clock, and after which pause that is."""
        self._is_sure = True
        """Whether the database calls this process the owner of no other shards than `_owned`."""
        self._looking = asyncio.Event()
        self._taking = asyncio.Lock()

    def owns(self, window_id: WindowId, shard: int) -> bool:
        """Whether a shard is written here, as far as this process may know."""
        return (window_id, shard) in self._owned and self._member.holds

    @property
    def count(self) -> int:
        """How many shards are written here."""
        return len(self._owned)

    def look(self) -> None:
        """Look for shards to take now."""
        self._looking.set()

    def lost(self) -> None:
        """Give up every shard: what this process held may be another's."""
        self._stale |= self._owned
        self._owned.clear()
        self._looking.set()

    async def settle(self) -> None:
        """Hold nothing of shards that were given up: what another owner has added is not in it."""
        async with self._taking:
            await self._forget()

    async def run(self) -> None:
        """Take shards until cancelled, and let go of those of windows that have ended."""
        while True:
            try:
                await self.take()
                await self._let_go()
            except MachineError as error:
                log.warning("shards_not_taken", reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._looking.wait()
            self._looking.clear()

    async def take(self) -> None:
        """Take what nobody living owns, and read it back.

        Raises:
            StoreError: the database failed.
        """
        async with self._taking:
            await self._forget()
            if not self._member.holds:
                return
            name, members = self._member.name, max(1, await self._member.living(self._role))
            await self._share(members)
            await self._reconcile()
            self._is_sure = False
            for one in await self._leases.take(members, self._passed()):
                await self._read_back(one, name)
            self._is_sure = not self._stale  # What was taken while the lease was not sure may be this member's there.

    async def _share(self, members: int) -> None:
        """Let members that came later have their part of what this one writes; their devices hear "busy" meanwhile."""
        of_window: dict[WindowId, list[int]] = {}
        for window_id, shard in sorted(self._owned):
            of_window.setdefault(window_id, []).append(shard)
        beyond = {
            (window_id, shard)
            for window_id, shards in of_window.items()
            for shard in shards[-(-self._logs.shard_count(window_id) // members) :]
        }
        if beyond:
            self._owned -= beyond
            self._stale |= beyond
            self._is_sure = False  # Until `_reconcile` has said so to the database, which may fail.
            await self._forget()
            log.info("shards_shared", shards=len(beyond), members=members)

    def _passed(self) -> list[tuple[WindowId, int]]:
        """Return the shards that could not be read back a short while ago."""
        now = asyncio.get_running_loop().time()
        return [one for one, (due, _) in self._failed.items() if now < due]

    async def _reconcile(self) -> None:
        """Let go of shards that only the database calls this process's, whose owner would live and take nothing.

        So it is after an answer that was lost, after a shard that could not be read back once it was fenced, and after
        one that was given up here. Where it fails, it is done with the next look.
        """
        gone = {one for one in self._owned if not self._logs.writes(*one)}
        self._owned -= gone
        self._is_sure = self._is_sure and not gone
        if not self._is_sure:
            await self._leases.keep_only(self._owned)

    async def _read_back(self, taken: TakenShard, name: str) -> None:
        try:
            await asyncio.to_thread(self._logs.take, *taken)
        except MachineError as error:
            shard = taken.window_id, taken.shard
            pause_s = min(2 * self._failed.get(shard, (0.0, _LOOK_S))[1], _LONGEST_PAUSE_S)
            self._failed[shard] = asyncio.get_running_loop().time() + pause_s, pause_s
            log.error(
                "shard_not_taken", window=str(taken.window_id), shard=taken.shard, reason=str(error), again_in_s=pause_s
            )
            await self._leases.free(taken)
            return
        self._failed.pop((taken.window_id, taken.shard), None)
        held = self._member.name == name and self._member.holds
        (self._owned if held else self._stale).add((taken.window_id, taken.shard))
        if held:
            log.info("shard_taken", window=str(taken.window_id), shard=taken.shard, epoch=taken.epoch)

    async def _let_go(self) -> None:
        async with self._taking:
            over = {one for one in self._owned if self._has_ended(one[0])}
            self._owned -= over
            self._stale |= over
            self._failed = {one: due for one, due in self._failed.items() if not self._has_ended(one[0])}
            await self._forget()

    async def _forget(self) -> None:
        while self._stale:
            window_id, shard = self._stale.pop()
            await asyncio.to_thread(self._logs.give_up, window_id, shard)
