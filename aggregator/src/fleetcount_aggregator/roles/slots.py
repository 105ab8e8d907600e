"""What only one process at a time may do and any may take over: done while a slot is held (`storage.leases`).

It must not know what is done. The number of a slot's taking is in no write: who overlaps another by a moment must do no
harm, as with MQTT, where the broker gives a client id to its newest connection alone.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from fleetcount_protocol.errors import MachineError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.leases import Member, Slot

_LOOKS: Final = 8
"""Looks in the time of one lease: whether what is held is held still, and whether there is a free one."""


class SlotKeeper:
    """The slots of this process, of so many in all; `work` is done in each while it is held.

    With M living members of `role` none has more than its M-th part, rounded up: one that came later finds some free.
    """

    def __init__(
        self, member: Member, slots: int, role: str, work: Callable[[Slot], Coroutine[Any, Any, None]]
    ) -> None:
        self._member = member
        self._slots = slots
        self._role = role
        self._work = work
        self._working: dict[Slot, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Hold slots until cancelled; work that fails is begun again.

        Raises:
            Exception: what the work raises, if it is no failing machine.
        """
        try:
            while True:
                try:
                    await self._look()
                except MachineError as error:
                    log.warning("slot_not_held", reason=str(error))
                await asyncio.sleep(self._member.length_s / _LOOKS)
        finally:
            await self._end(tuple(self._working))

    async def _look(self) -> None:
        """Let go of what is held no more, or beyond the share of this process, and take what is free."""
        for slot in [one for one, working in self._working.items() if working.done()]:
            self._working.pop(slot).result()
        held = await self._held()
        if lost := [one for one in self._working if one not in held]:
            await self._end(lost)
        if held - self._working.keys():
            # Taken with an answer that was lost, or its work has failed: nobody's while this one lives.
            await self._member.keep_slots(self._working)
        if not self._member.holds:
            return
        members = max(1, await self._member.living(self._role))
        most = -(-self._slots // members)
        if beyond := sorted(self._working, key=lambda one: one.slot)[most:]:
            await self._end(beyond)
            await self._member.keep_slots(self._working)
            log.info("slots_shared", slots=[one.slot for one in beyond], members=members)
        while len(self._working) < most and (taken := await self._member.take_slot(self._slots)) is not None:
            log.info("slot_taken", slot=taken.slot, taking=taken.token)
            self._working[taken] = asyncio.create_task(self._work(taken), name=f"slot-{taken.slot}")

    async def _held(self) -> set[Slot]:
        """Return what is held still; a database that does not answer decides nothing before half a lease is over."""
        try:
            return await self._member.held_slots()
        except MachineError:
            if not self._member.holds:
                await self._end(tuple(self._working))
            raise

    async def _end(self, slots: Collection[Slot]) -> None:
        """End the work in some slots, and wait until it has ended; how is nobody's business any more."""
        for one in slots:
            self._working[one].cancel()
        await asyncio.gather(*(self._working[one] for one in slots), return_exceptions=True)
        for one in slots:
            del self._working[one]
            log.info("slot_given_up", slot=one.slot)
