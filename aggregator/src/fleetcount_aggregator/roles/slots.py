"""Shares out slots among the processes of an aggregator: a process works in a slot while it holds its lock.

Locks are those of `storage.slot_locks`; this module must not know the work. Two processes may work in one slot for a
moment, which does no harm over MQTT: the broker keeps only the newest connection of a client id.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from fleetcount_protocol.errors import MachineError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.slot_locks import SlotLocks

_LOOK_S: Final = 1.0
"""Seconds between two checks whether this process still holds its slots and whether another is free."""


class SlotKeeper:
    """Runs `work` in each slot that this process holds, of `slots` in all.

    With M processes none holds more than its M-th part, rounded up, so that a later process finds free ones.
    """

    def __init__(self, locks: SlotLocks, slots: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self._locks = locks
        self._slots = slots
        self._work = work
        self._working: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Hold slots until cancelled, and begin work that failed again.

        Raises:
            Exception: the work raised it and it is not a MachineError.
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
        """Free slots whose work has ended or that exceed this process's part, and lock free ones up to that part."""
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
            # If the session has failed, other processes lock its slots; else the next look locks them again.
            await self._end(tuple(self._working))
            await self._locks.close()
            raise

    async def _end(self, slots: Collection[int]) -> None:
        """Cancel the work in some slots and wait for its end; its errors are dropped."""
        for one in slots:
            self._working[one].cancel()
        await asyncio.gather(*(self._working[one] for one in slots), return_exceptions=True)
        for one in slots:
            del self._working[one]
            log.info("slot_given_up", slot=one)


def _check(done: "asyncio.Task[None]") -> None:
    """Raise the error that ended work; a MachineError is logged instead."""
    try:
        done.result()
    except MachineError as error:
        log.warning("slot_work_failed", reason=str(error))
