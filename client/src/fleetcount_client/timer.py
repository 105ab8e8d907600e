"""Time as an argument for what waits: a clock and a sleep.

Never decides how long to wait.
"""

import asyncio
import heapq
from typing import Final, Protocol

from fleetcount_protocol.clock import Clock, SystemClock

__all__ = ["ManualTimer", "SystemTimer", "Timer", "sleep_until"]

_LONGEST_SLEEP_S: Final = 30.0


class Timer(Clock, Protocol):
    """A clock one can also sleep by."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemTimer(SystemClock):
    """The operating system's wall clock and the event loop's sleep."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class ManualTimer:
    """A clock that only sleepers move, the earliest first: hours pass in milliseconds, always in the same order.

    For tests and simulations in which nothing waits for a real network.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._wakes: list[float] = []

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
        wake = self._now + max(0.0, seconds)
        heapq.heappush(self._wakes, wake)
        try:
            await asyncio.sleep(0)
            while self._wakes[0] < wake:  # noqa: ASYNC110 - an earlier sleeper moves the clock
                await asyncio.sleep(0)
            self._now = max(self._now, wake)
        finally:
            self._wakes.remove(wake)
            heapq.heapify(self._wakes)


async def sleep_until(timer: Timer, moment: float) -> None:
    """Return when the wall clock says `moment`, in steps of at most 30 s so that a clock set anew is noticed."""
    while (left := moment - timer.now()) > 0:
        await timer.sleep(min(left, _LONGEST_SLEEP_S))
