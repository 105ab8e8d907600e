"""Turns many small requests into few large ones: those that arrive while a batch is under way form the next batch.

Does not know what is requested.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Coalescing"]

AskT = TypeVar("AskT")
AnswerT = TypeVar("AnswerT")


class Coalescing(Generic[AskT, AnswerT]):
    """Asks `work` for at most `most` answers at once, one batch after the other; `work` answers in order.

    An error of `work` goes to everybody who waits for that batch.
    """

    def __init__(self, work: Callable[[Sequence[AskT]], Awaitable[Sequence[AnswerT]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: list[tuple[AskT, asyncio.Future[AnswerT]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, asks: Sequence[AskT]) -> list[AnswerT]:
        """Return one answer an ask, in order."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[AnswerT]] = [loop.create_future() for _ in asks]
        self._waiting += zip(asks, futures, strict=True)
        if self._waiting and self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asyncio.gather(*futures)

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(group)
        finally:
            self._running = None

    async def _answer(self, group: Sequence[tuple[AskT, "asyncio.Future[AnswerT]"]]) -> None:
        try:
            answers = await self._work([ask for ask, _ in group])
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except Exception as error:
            # Whatever it was is for those who wait to hear of.
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)
