"""Time as an argument for what waits: a clock and a sleep.

Never decides how long to wait.
"""

import asyncio
import heapq
from typing import Final, Protocol

from fleetcount_protocol.clock import AnchoredClock, Clock

_LONGEST_SLEEP_S: Final = 30.0
_BELIEVED_AFTER_S: Final = 60.0
_CALM_STEPS: Final = 20
"""How many turns of the event loop others get before the manual clock moves."""


class Timer(Clock, Protocol):
    """A clock one can also sleep by."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemTimer(AnchoredClock):
    """The operating system's time and the event loop's sleep. A wall clock that jumps is believed a minute later.

    A jump that is taken back before moves nothing; a device that started before its clock was set has it right then.
    """

    def __init__(self) -> None:
        super().__init__(believes_after_s=_BELIEVED_AFTER_S)

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class ManualTimer:
    """A clock that only sleepers move, the earliest first: hours pass in milliseconds, always in the same order.

    For tests and simulations in which nothing waits for a real network.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._number = 0

    def now(self) -> float:
        """Return the time, seconds since the Unix epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError for going back."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}, not >= 0")
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Return when every earlier sleeper has had its turn and the clock has moved on by `seconds`."""
        self._number += 1
        sleeper = (self._now + max(0.0, seconds), self._number, asyncio.Event())
        heapq.heappush(self._sleepers, sleeper)
        try:
            await self._turn(sleeper)
            self._now = max(self._now, sleeper[0])
        finally:
            self._sleepers.remove(sleeper)
            heapq.heapify(self._sleepers)
            self._wake_first()

    async def _turn(self, sleeper: tuple[float, int, asyncio.Event]) -> None:
        """Return when the sleeper is the earliest and everything that could run before it has run."""
        calm = 0
        while calm < _CALM_STEPS:
            await asyncio.sleep(0)
            calm += 1
            if self._sleepers[0] is not sleeper:
                calm = 0
                sleeper[2].clear()
                self._wake_first()
                await sleeper[2].wait()

    def _wake_first(self) -> None:
        if self._sleepers:
            self._sleepers[0][2].set()


async def sleep_until(timer: Timer, moment: float) -> None:
    """Return when the wall clock says `moment`, in steps of at most 30 s so that a clock set anew is noticed."""
    while (left := moment - timer.now()) > 0:
        await timer.sleep(min(left, _LONGEST_SLEEP_S))
