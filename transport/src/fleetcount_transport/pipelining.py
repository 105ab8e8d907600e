"""Pipelined streams of batches: the next is read while earlier ones are worked on, and answers keep the order.

It must not read a batch.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class IdleStreamError(Exception):
    """The other side of a stream sent nothing for too long."""


async def in_order(
    requests: AsyncIterator[RequestT],
    work: Callable[[RequestT], Awaitable[AnswerT]],
    deliver: Callable[[Awaitable[AnswerT]], Awaitable[None]],
    depth: int,
    idle_s: float,
) -> None:
    """Begin `work` on requests as they arrive, and `deliver` the answers, each an awaitable, in the requests' order.

    At most `depth` requests are read and not delivered. An error of `work` is raised by its awaitable; an error of
    `deliver` or of the stream, or a cancellation, cancels all work under way.

    Raises:
        IdleStreamError: no request arrived for `idle_s` seconds, and no answer was outstanding. `deliver` limits the
            time of an answer itself.
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
    clock = asyncio.get_running_loop().time
    limit = asyncio.timeout(idle_s)
    try:
        async with limit:
            while (current := await begun.get()) is not None:
                limit.reschedule(None)
                await deliver(current)
                free.release()
                limit.reschedule(clock() + idle_s)
            await reader
    except TimeoutError:
        if limit.expired():
            raise IdleStreamError from None
        raise
    finally:
        reader.cancel()
        left = [future for future in (current, *_drain(begun)) if future is not None]
        for future in left:
            future.cancel()
        await asyncio.gather(reader, *left, return_exceptions=True)


def _drain(queue: "asyncio.Queue[asyncio.Future[AnswerT] | None]") -> list["asyncio.Future[AnswerT] | None"]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
