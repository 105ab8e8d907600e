"""Time as an argument: the protocol reads it only through `Clock`."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

SLEW: Final = 0.01
"""An anchored clock follows a wall clock set anew by so many seconds a second: 36 s an hour."""
_SMALL_S: Final = 2.0
"""What is off by less follows slowly in any case."""


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


def _since_boot() -> float:
    """Return the seconds since this machine booted, those it was suspended included where the system counts them."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; elsewhere a suspended machine's clock is late after it.
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class AnchoredClock:
    """Wall time that goes on evenly whatever the wall clock does: what it said at the start, and the time passed since.

    A wall clock that was set anew is followed by `SLEW`, 1 %: ten minutes for three seconds move it by 30 ms, and it
    never goes back. With `believes_after_s`, a wall clock that has been off by more than two seconds for so long
    is taken at once, also backwards: for devices, which may start with a clock that nobody has set yet. Without, only a
    new start takes it; `off_by` says by how much the wall clock is ahead meanwhile.

    `wall` is seconds since the Unix epoch; `passed` never goes back and counts suspended time. Threads may share it.
    """

    def __init__(
        self,
        *,
        believes_after_s: float | None = None,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = _since_boot,
    ) -> None:
        self._wall, self._passed, self._believes_after_s = wall, passed, believes_after_s
        self._lock = threading.Lock()
        self._now, self._seen = wall(), passed()
        self._off_since: float | None = None

    def now(self) -> float:
        """Return the present time in seconds since 1970-01-01T00:00:00Z."""
        with self._lock:
            seen = self._passed()
            elapsed, self._seen = seen - self._seen, seen
            self._now += elapsed
            off = self._wall() - self._now
            self._now += off if self._is_believed(off, seen) else min(max(off, -SLEW * elapsed), SLEW * elapsed)
            return self._now

    def _is_believed(self, off: float, seen: float) -> bool:
        """Return whether the wall clock has been off for long enough to be right."""
        if abs(off) <= _SMALL_S:
            self._off_since = None
            return False
        self._off_since = seen if self._off_since is None else self._off_since
        return self._believes_after_s is not None and seen - self._off_since >= self._believes_after_s

    def off_by(self) -> float:
        """Return by how many seconds the wall clock is ahead of this one."""
        now = self.now()
        return self._wall() - now


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
