"""Streams of batches: the next is read while earlier ones are under way, answers keep the order, memory is bounded.

Knows nothing of what a batch holds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

__all__ = ["ByteBudget", "in_order"]

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class ByteBudget:
    """Bytes that may be in flight at once, over all streams."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes if there is room, and return whether there was; one ask alone always has room."""
        if self._taken and self._taken + size > self._most:
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._taken -= size


async def in_order(
    requests: AsyncIterator[RequestT],
    work: Callable[[RequestT], Awaitable[AnswerT]],
    deliver: Callable[[Awaitable[AnswerT]], Awaitable[None]],
    depth: int,
) -> None:
    """Begin `work` on requests as they come and `deliver` the answers, to be awaited, in the requests' order.

    At most `depth` requests are read and not delivered. An error of `work` comes out of its answer; an error of
    `deliver` or of the stream, or a cancellation, takes along what is under way.
    """
    free = asyncio.Semaphore(depth)
    begun: asyncio.Queue[asyncio.Future[AnswerT] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            await free.acquire()
            async for request in requests:
                begun.put_nowait(asyncio.ensure_future(work(request)))
                await free.acquire()
        finally:
            begun.put_nowait(None)

    reader = asyncio.create_task(read())
    current: asyncio.Future[AnswerT] | None = None
    try:
        while (current := await begun.get()) is not None:
            await deliver(current)
            free.release()
        await reader
    finally:
        reader.cancel()
        left = [future for future in (current, *_drain(begun)) if future is not None]
        for future in left:
            future.cancel()
        await asyncio.gather(reader, *left, return_exceptions=True)


def _drain(queue: "asyncio.Queue[asyncio.Future[AnswerT] | None]") -> list["asyncio.Future[AnswerT] | None"]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
