"""What one device does at the same time: what is idle is closed while all of it waits for long.

Decides no moment; whoever waits says until when.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fleetcount_protocol.errors import RejectReason

from fleetcount_client.timer import Timer, sleep_until

_AnswerT = TypeVar("_AnswerT")


class Activity:
    """Counts what is under way on one device, whose connections and file `close` gives up.

    `idle_close_s` is the shortest wait (seconds) worth closing for; infinity keeps all open.
    """

    def __init__(self, timer: Timer, idle_close_s: float, close: Callable[[], Awaitable[None]]) -> None:
        self._timer = timer
        self._idle_close_s = idle_close_s
        self._close = close
        self._busy = 0
        self._waiting = 0

    @property
    def resting(self) -> bool:
        """Whether nothing is under way, or all of it waits for long."""
        return self._busy == 0

    @contextmanager
    def begun(self) -> Generator[None]:
        """Count the block as under way."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    async def pause_until(self, moment: float) -> None:
        """Wait inside what is under way; close what is idle if all the rest waits as well."""
        if moment - self._timer.now() <= self._idle_close_s:
            await sleep_until(self._timer, moment)
            return
        self._busy -= 1
        self._waiting += 1
        try:
            if self._busy == 0:
                await self._close()
            await sleep_until(self._timer, moment)
        finally:
            self._waiting -= 1
            self._busy += 1

    async def close_if_resting(self) -> None:
        """Close what is idle: all that is left waits already, and closed nothing while this was under way."""
        if self._busy == 0 and self._idle_close_s < math.inf:
            await self._close()

    async def together(
        self, parts: Sequence[Coroutine[Any, Any, _AnswerT | RejectReason]]
    ) -> list[_AnswerT] | RejectReason:
        """Run parts of what is under way, each with pauses of its own; return their answers in order.

        The first reason to refuse ends the others and is the answer.

        Raises:
            Exception: what the first part that failed has raised; the others are ended.
        """
        tasks = [asyncio.create_task(self._part(part)) for part in parts]
        self._busy -= 1  # It only waits for its parts, which are counted instead.
        try:
            for done in asyncio.as_completed(tasks):
                if isinstance(answer := await done, RejectReason):
                    return answer
            answers = [task.result() for task in tasks]
        finally:
            self._busy += 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, RejectReason)]

    async def _part(self, part: Coroutine[Any, Any, _AnswerT]) -> _AnswerT:
        with self.begun():
            answer = await part
        if self._waiting:
            await self.close_if_resting()
        return answer
