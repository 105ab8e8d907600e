"""Time as an argument: the protocol reads it only through `Clock`."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

SLEW: Final = 0.01
"""Seconds per second by which an anchored clock approaches a wall clock that was set: 36 s an hour."""
LARGEST_LEAD_S: Final = 300.0
"""Seconds by which a signed time may be ahead of one's own clock; beyond it what bears it is from the future."""
_SMALL_S: Final = 2.0
"""A difference in seconds up to which an anchored clock only slews and never jumps."""


def utc_text(moment: float) -> str:
    """Return a time (Unix seconds) as people read it: ISO 8601, UTC; one that no calendar has is the last or first."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59Z" if moment > 0 else "0001-01-01T00:00:00Z"


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


_since_boot: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Returns the seconds since this machine booted; with the time that it was suspended on Linux only."""


class AnchoredClock:
    """A clock that is steady when the wall clock is set: the wall time at the start plus the time elapsed since.

    It approaches the wall clock by `SLEW`, 1 %, and does not go backwards. With `believes_after_s`, it jumps, also
    backwards, to a wall clock that has differed by more than two seconds for that long: for devices, whose wall clock
    may not be set yet when they start. Without it, only a restart adopts a wall clock that was set.

    `wall` returns seconds since the Unix epoch; `passed` a monotonic time in seconds that counts suspension. Threads
    may share the clock.
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
            if -_SMALL_S <= off <= _SMALL_S:
                self._off_since = None
            elif self._is_believed(seen):
                self._now += off
                return self._now
            self._now += min(max(off, -SLEW * elapsed), SLEW * elapsed)
            return self._now

    def _is_believed(self, seen: float) -> bool:
        """Return whether the wall clock, which differs, has done so long enough to be adopted at once."""
        self._off_since = seen if self._off_since is None else self._off_since
        return self._believes_after_s is not None and seen - self._off_since >= self._believes_after_s
