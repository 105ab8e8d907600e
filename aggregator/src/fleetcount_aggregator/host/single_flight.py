"""Work that is done once although it is asked for again meanwhile; it goes on when the one who asked stops waiting.

Does not know what the work is and keeps no result.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")


class SingleFlight(Generic[KeyT, ResultT]):
    """What is being done now, by its key."""

    def __init__(self) -> None:
        self._running: dict[KeyT, asyncio.Task[ResultT]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._running

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._running)

    async def once(self, key: KeyT, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Return what the work being done under this key gives, or begin it."""
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.create_task(work(), name=f"once {key}")
            running.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(running)

    def _done(self, key: KeyT, done: "asyncio.Task[ResultT]") -> None:
        del self._running[key]
        # Perhaps nobody waits any more; the next one who asks starts the work again and gets its error.
        if not done.cancelled():
            done.exception()
