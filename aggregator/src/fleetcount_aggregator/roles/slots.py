"""What only one process at a time may do and any may take over: done while a slot is held (`storage.slot_locks`).

It must not know what is done. Who overlaps another by a moment must do no harm, as with MQTT, where the broker gives a
client id to its newest connection alone.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from fleetcount_protocol.errors import MachineError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.slot_locks import SlotLocks

_LOOK_S: Final = 1.0
"""Between two looks: whether what is held is held still, and whether there is a free one."""


class SlotKeeper:
    """The slots of this process, of so many in all; `work` is done in each while it is held.

    With M processes none has more than its M-th part, rounded up: one that came later finds some free.
    """

    def __init__(self, locks: SlotLocks, slots: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self._locks = locks
        self._slots = slots
        self._work = work
        self._working: dict[int, asyncio.Task[None]] = {}

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
                await asyncio.sleep(_LOOK_S)
        finally:
            await self._end(tuple(self._working))
            await self._locks.close()

    async def _look(self) -> None:
        """Let go of what is held no more, or beyond the share of this process, and take what is free."""
        try:
            found = await self._locks.look()
            for slot in [one for one, working in self._working.items() if working.done()]:
                done = self._working.pop(slot)
                await self._locks.free(slot)
                _check(done)
            most = -(-self._slots // max(1, found.processes))
            for slot in sorted(self._working)[most:]:
                await self._end([slot])
                await self._locks.free(slot)
            for slot in range(self._slots):
                if len(self._working) < most and slot not in found.held and await self._locks.take(slot):
                    log.info("slot_taken", slot=slot, processes=found.processes)
                    self._working[slot] = asyncio.create_task(self._work(slot), name=f"slot-{slot}")
        except MachineError:
            # What fails may be the session, whose slots others take; else they are taken again with the next look.
            await self._end(tuple(self._working))
            await self._locks.close()
            raise

    async def _end(self, slots: Collection[int]) -> None:
        """End the work in some slots, and wait until it has ended; how is nobody's business any more."""
        for one in slots:
            self._working[one].cancel()
        await asyncio.gather(*(self._working[one] for one in slots), return_exceptions=True)
        for one in slots:
            del self._working[one]
            log.info("slot_given_up", slot=one)


def _check(done: "asyncio.Task[None]") -> None:
    """Pass on why work ended, unless its machine failed."""
    try:
        done.result()
    except MachineError as error:
        log.warning("slot_work_failed", reason=str(error))
