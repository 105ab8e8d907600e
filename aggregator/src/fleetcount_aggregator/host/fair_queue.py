"""Turns at a scarce resource: a few at a time, and all who wait are served in turn, however many turns each asks for.

Does not know what is done in a turn.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

__all__ = ["FairQueue"]


class FairQueue:
    """Gives at most `at_once` turns at a time; those who wait get one each, round and round, each its oldest first."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, who: Hashable) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it in the context."""
        await self._begin(who)
        try:
            yield
        finally:
            self._free += 1
            self._next()

    async def _begin(self, who: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free += 1
            self._next()
            raise

    def _next(self) -> None:
        """Give the turns that are free to those who wait."""
        while self._free and self._waiting:
            who = next(iter(self._waiting))
            turns = self._waiting.pop(who)
            turn = turns.popleft()
            if turns:
                # Behind the others: a dictionary keeps the order in which its keys came.
                self._waiting[who] = turns
            if not turn.done():
                turn.set_result(None)
                self._free -= 1
