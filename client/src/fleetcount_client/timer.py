"""Time as an argument for what waits: a clock and a sleep.

Decides no delay but those of retries.
"""

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from fleetcount_mechanisms.randomness import RandomSource, UniformBelow
from fleetcount_protocol.clock import AnchoredClock, Clock
from fleetcount_protocol.errors import Refused, RejectReason

_LONGEST_SLEEP_S: Final = 30.0
_BELIEVED_AFTER_S: Final = 60.0
_CALM_STEPS: Final = 20
"""How many turns of the event loop others get before the manual clock moves."""


class Timer(Clock, Protocol):
    """A clock one can also sleep by."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemTimer(AnchoredClock):
    """The operating system's time and the event loop's sleep. A wall clock that jumps is believed a minute later.

    A jump that is taken back before moves nothing; a device that started before its clock was set has it right then.
    """

    def __init__(self) -> None:
        super().__init__(believes_after_s=_BELIEVED_AFTER_S)

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class ManualTimer:
    """A clock that only sleepers move, the earliest first: hours pass in milliseconds, always in the same order.

    For tests and simulations in which nothing waits for a real network.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._number = 0

    def now(self) -> float:
        """Return the time, seconds since the Unix epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError for going back."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}, not >= 0")
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Return when every earlier sleeper has had its turn and the clock has moved on by `seconds`."""
        self._number += 1
        sleeper = (self._now + max(0.0, seconds), self._number, asyncio.Event())
        heapq.heappush(self._sleepers, sleeper)
        try:
            await self._turn(sleeper)
            self._now = max(self._now, sleeper[0])
        finally:
            self._sleepers.remove(sleeper)
            heapq.heapify(self._sleepers)
            self._wake_first()

    async def _turn(self, sleeper: tuple[float, int, asyncio.Event]) -> None:
        """Return when the sleeper is the earliest and everything that could run before it has run."""
        calm = 0
        while calm < _CALM_STEPS:
            await asyncio.sleep(0)
            calm += 1
            if self._sleepers[0] is not sleeper:
                calm = 0
                sleeper[2].clear()
                self._wake_first()
                await sleeper[2].wait()

    def _wake_first(self) -> None:
        if self._sleepers:
            self._sleepers[0][2].set()


async def sleep_until(timer: Timer, moment: float, now: float | None = None, *, again: bool = False) -> float:
    """Return when the clock says `moment`, in steps of at most 30 s so that a clock set anew is noticed.

    `now` is what it has just said; the answer is what it says then. Who looks `again` anyhow is woken sooner by a clock
    that was set back.
    """
    before, now = math.inf, timer.now() if now is None else now
    while (left := moment - now) > 0 and (left < before or not again):
        await timer.sleep(min(left, _LONGEST_SLEEP_S))
        before, now = left, timer.now()
    return now


_STEP: Final = UniformBelow(bound=1 << 20)
_LONGEST_HINT_S: Final = 300.0


def uniform_seconds(source: RandomSource, seconds: float) -> float:
    """Return a time drawn uniformly from [0, `seconds`), in 2^20 steps; raises ValueError for less than 0."""
    if seconds < 0:
        raise ValueError(f"seconds is {seconds}, not >= 0")
    return seconds * _STEP.draw(source) / _STEP.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How to try again: first delay `base_s`, doubled each time up to `cap_s`, each cut by up to one half at random."""

    base_s: float = 0.5
    cap_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s <= 86_400:
            raise ValueError(f"base_s {self.base_s} and cap_s {self.cap_s} must satisfy 0 < base_s <= cap_s <= 86400")


class Backoff:
    """The delays of one row of attempts; the jitter keeps a fleet from returning in step after an outage."""

    __slots__ = ("_attempt", "_hint_s", "_retry", "_source")

    def __init__(self, retry: Retry, source: RandomSource) -> None:
        self._retry = retry
        self._source = source
        self._attempt = 0
        self._hint_s = 0.0

    def heed(self, hint_s: float) -> None:
        """Wait at least so long before the next attempt; who says so may be anybody, so five minutes at most."""
        self._hint_s = max(self._hint_s, min(hint_s, _LONGEST_HINT_S))

    def next_delay(self) -> float:
        """Return the next delay in seconds, between one half and the whole of min(cap, base * 2^attempt).

        After a hint it is no less than once and twice the hint, drawn at random: all were told the same.
        """
        # 2^63 seconds is beyond every cap; the bound keeps the power small after days of attempts.
        whole = min(self._retry.cap_s, self._retry.base_s * 2.0 ** min(self._attempt, 63))
        self._attempt += 1
        delay = whole / 2 + uniform_seconds(self._source, whole / 2)
        hint_s, self._hint_s = self._hint_s, 0.0
        return max(delay, hint_s + uniform_seconds(self._source, hint_s)) if hint_s else delay


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

    async def pause_until(self, moment: float, now: float | None = None, *, again: bool = False) -> float:
        """Wait as `sleep_until` inside what is under way; close what is idle if all the rest waits as well."""
        now = self._timer.now() if now is None else now
        if moment - now <= self._idle_close_s:
            return await sleep_until(self._timer, moment, now, again=again)
        self._busy -= 1
        self._waiting += 1
        try:
            if self._busy == 0:
                await self._close()
            return await sleep_until(self._timer, moment, again=again)
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
        self._busy -= 1  # It only waits for its parts, which are counted instead.
        try:
            async with asyncio.TaskGroup() as group:
                # One runs here: a task costs as much as a part.
                tasks = [group.create_task(self._part(part)) for part in parts[1:]]
                first = await self._part(parts[0])
        except BaseExceptionGroup as ended:
            error = ended.exceptions[0]
            if isinstance(error, Refused):
                return error.reason
            raise error from None
        finally:
            self._busy += 1
            for part in parts:
                part.close()  # One that the first has kept from beginning.
        return [first, *(task.result() for task in tasks)]

    async def _part(self, part: Coroutine[Any, Any, _AnswerT | RejectReason]) -> _AnswerT:
        self._busy += 1
        try:
            answer = await part
        finally:
            self._busy -= 1
        if self._waiting:
            await self.close_if_resting()
        if isinstance(answer, RejectReason):
            raise Refused(answer)
        return answer
