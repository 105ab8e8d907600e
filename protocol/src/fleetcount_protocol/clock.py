"""Time as an argument: the protocol reads it only through `Clock`."""

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Seconds since the Unix epoch, UTC."""

    def now(self) -> float:
        """Return the present time in seconds since 1970-01-01T00:00:00Z."""
        ...


class SystemClock:
    """The operating system's wall clock."""

    def now(self) -> float:
        """Return the present time in seconds since 1970-01-01T00:00:00Z."""
        return time.time()


class ManualClock:
    """A clock that moves only when told, for tests and simulations."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; refuse to go back."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}, not >= 0")
        self._now += seconds
