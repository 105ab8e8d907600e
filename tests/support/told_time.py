"""The running event loop's clock, told by a test: what waits for a time is due when the test says so, however busy the
machine is. Programs and threads beside the loop keep their own clocks.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LIMIT_S = 60.0
"""What no loop needs for what is due; a test that waits in vain fails after that."""
_EAGER_S = 0.5


class ToldTime:
    """A loop's time, which stands still unless it is told to pass."""

    def __init__(self, now: float) -> None:
        self.now = now

    def passes(self, seconds: float) -> None:
        """Let so much time pass at once; what is due then runs as soon as the loop has its turn."""
        self.now += seconds


async def turns_until(condition: Callable[[], object]) -> None:
    """Give the loop its turns until a condition holds, under a told time as well."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < _LIMIT_S, f"not within {_LIMIT_S:.0f} s"
        if waited_s > _EAGER_S:  # Who waits for other programs, or in vain, need not take a core meanwhile.
            time.sleep(0.001)
        await asyncio.sleep(0)


@contextmanager
def told_time() -> Iterator[ToldTime]:
    """Tell the running loop its time within the block, from what it is; afterwards its own clock holds again.

    Within the block `asyncio.sleep` of anything but 0 ends only when its time was told.
    """
    loop = asyncio.get_running_loop()
    real, told = loop.time, ToldTime(loop.time())
    loop.time = lambda: told.now  # type: ignore[method-assign]  # What every timer and timeout of asyncio asks.
    try:
        yield told
    finally:
        loop.time = real  # type: ignore[method-assign]
