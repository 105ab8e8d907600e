"""Pipelined streams: the next message is read while earlier ones are worked on, and answers keep the order.

It must not read a message.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class IdleStreamError(Exception):
    """The other side of a stream sent nothing for too long."""


class Pipeline(Generic[RequestT, AnswerT]):
    """Begins `work` on requests as they arrive, and delivers the answers, each an awaitable, in the requests' order.

    At most `depth` requests are read and not delivered. An error of `work` is raised by its awaitable; an error of
    `deliver` or of the stream, or a cancellation, cancels all work under way.
    """

    def __init__(
        self,
        work: Callable[[RequestT], Awaitable[AnswerT]],
        deliver: Callable[[Awaitable[AnswerT]], Awaitable[None]],
        depth: int,
        idle_s: float,
    ) -> None:
        self._work = work
        self._deliver = deliver
        self._free = asyncio.Semaphore(depth)
        self._idle_s = idle_s
        self._begun: asyncio.Queue[asyncio.Future[AnswerT] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[RequestT]) -> None:
        """Answer the requests until there are no more.

        Raises:
            IdleStreamError: no request arrived for `idle_s` seconds, and no answer was outstanding. `deliver` limits
                the time of an answer itself.
        """
        reader = self._reader = asyncio.create_task(self._read(requests))
        current: asyncio.Future[AnswerT] | None = None
        clock = asyncio.get_running_loop().time
        limit = asyncio.timeout(self._idle_s)
        try:
            async with limit:
                while (current := await self._begun.get()) is not None:
                    limit.reschedule(None)
                    await self._deliver(current)
                    self._free.release()
                    limit.reschedule(clock() + self._idle_s)
            await asyncio.wait([reader])
            if not reader.cancelled():
                reader.result()
        except TimeoutError:
            if limit.expired():
                raise IdleStreamError from None
            raise
        finally:
            reader.cancel()
            left = [future for future in (current, *self._drained()) if future is not None]
            for future in left:
                future.cancel()
            await asyncio.gather(reader, *left, return_exceptions=True)

    def end(self) -> None:
        """Read nothing more, as if the other side had ended: what is begun is answered, and then `run` returns."""
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: AsyncIterator[RequestT]) -> None:
        try:
            await self._free.acquire()
            async for request in requests:
                self._begun.put_nowait(asyncio.ensure_future(self._work(request)))
                await self._free.acquire()
        finally:
            self._begun.put_nowait(None)

    def _drained(self) -> "list[asyncio.Future[AnswerT] | None]":
        return [self._begun.get_nowait() for _ in range(self._begun.qsize())]
