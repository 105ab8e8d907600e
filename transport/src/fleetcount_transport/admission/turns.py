"""Fair queues for a scarce resource: callers get turns in rotation, however much each asks for, new callers first.

It does not know the work that is done in a turn.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from fleetcount_transport.admission.reputation import Reputation

AskT = TypeVar("AskT")
AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT")
_BEHIND: Final = 4
"""Every fourth turn goes to a queue behind the first, so that no queue starves."""

_FEW: Final = 64
"""Cancelled waiters that may stay in a queue: to remove them costs a walk through it."""


class RoundRobin(Generic[ItemT]):
    """A queue in which the waiting callers get one turn each in rotation, each with its oldest item first.

    A caller that is not in the queue goes before all that are: its request does not wait for a thousand busy callers.
    A served caller stays listed for one more round, also without an item, so that leaving and returning gains nothing
    (the two lists of FQ-CoDel, RFC 8290, section 4.1). `path` names the caller: a party, then the device it acts for;
    each party's turns rotate among its devices in the same way.
    """

    def __init__(self) -> None:
        self._new: dict[Hashable, deque[ItemT] | RoundRobin[ItemT]] = {}
        self._old: dict[Hashable, deque[ItemT] | RoundRobin[ItemT]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, item: ItemT, *path: Hashable) -> None:
        """Queue an item."""
        who, *rest = path
        line = self._old.get(who)
        if line is None:
            line = self._new.setdefault(who, RoundRobin[ItemT]() if rest else deque[ItemT]())
        if isinstance(line, RoundRobin):
            line.put(item, *rest)
        else:
            line.append(item)
        self._length += 1

    def take(self) -> ItemT:
        """Return the item whose turn it is.

        Raises:
            IndexError: the queue is empty.
        """
        while self._length:
            lines = self._new or self._old
            who = next(iter(lines))
            line = lines.pop(who)
            if not line:
                continue
            item = line.take() if isinstance(line, RoundRobin) else line.popleft()
            self._length -= 1
            self._old[who] = line
            if not self._length:
                self._old.clear()
            return item
        raise IndexError("the queue is empty")

    def keep(self, waits: Callable[[ItemT], bool]) -> None:
        """Remove the items for which `waits` is false; the others, and callers served lately, keep their places."""
        self._length = 0
        for lines in (self._new, self._old):
            for who, line in list(lines.items()):
                if isinstance(line, RoundRobin):
                    line.keep(waits)
                else:
                    lines[who] = deque(filter(waits, line))
                self._length += len(lines[who])
                if not lines[who] and lines is self._new:
                    del lines[who]
        if not self._length:
            self._old.clear()


class PriorityRoundRobin(Generic[ItemT]):
    """A `RoundRobin` for each reputation, the best first: known callers do not wait for unknown ones.

    Every fourth turn goes to the queues behind the first nonempty one, so that new callers get turns, however many are
    known.
    """

    def __init__(self) -> None:
        self._lines = {reputation: RoundRobin[ItemT]() for reputation in Reputation}
        self._turn = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, item: ItemT, reputation: Reputation, *path: Hashable) -> None:
        """Queue an item."""
        self._lines[reputation].put(item, *path)

    def take(self) -> ItemT:
        """Return the item whose turn it is.

        Raises:
            IndexError: the queue is empty.
        """
        first, *behind = [line for line in self._lines.values() if line] or [RoundRobin[ItemT]()]
        self._turn += 1
        if behind and not self._turn % _BEHIND:
            return behind[self._turn // _BEHIND % len(behind)].take()
        return first.take()

    def keep(self, waits: Callable[[ItemT], bool]) -> None:
        """See `RoundRobin.keep`."""
        for line in self._lines.values():
            line.keep(waits)


class FairQueue:
    """Grants at most `at_once` turns at a time, in the order of a `PriorityRoundRobin`."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting = PriorityRoundRobin[asyncio.Future[None]]()
        self._gone = 0
        """About how many waiters in the queue are cancelled."""

    @asynccontextmanager
    async def of(self, *path: Hashable, reputation: Reputation = Reputation.KNOWN) -> AsyncGenerator[None]:
        """Wait for a turn, which lasts as long as the context."""
        await self._begin(reputation, path)
        try:
            yield
        finally:
            self._free += 1
            self._next()

    async def _begin(self, reputation: Reputation, path: tuple[Hashable, ...]) -> None:
        if self._free:  # Nobody waits while a turn is free.
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.put(turn, reputation, *path)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free += 1
            else:
                self._forget_one()
            self._next()
            raise

    def _forget_one(self) -> None:
        """Count a cancelled waiter, and remove all when they are half of the queue, which would otherwise grow."""
        self._gone += 1
        if self._gone > max(_FEW, len(self._waiting) // 2):
            self._waiting.keep(lambda turn: not turn.done())
            self._gone = 0

    def _next(self) -> None:
        """Grant the free turns to waiters."""
        while self._free and self._waiting:
            turn = self._waiting.take()
            if turn.done():
                self._gone -= 1
            else:
                turn.set_result(None)
                self._free -= 1


class FairBatches(Generic[AskT, AnswerT]):
    """Turns many small requests into few large ones: those that arrive while a batch is under way form the next.

    It calls `work` with at most `most` requests, one batch after the other; `work` answers in order. A
    `PriorityRoundRobin` chooses the next batch. An error of `work` goes to every caller of that batch.
    """

    def __init__(self, work: Callable[[Sequence[AskT]], Awaitable[Sequence[AnswerT]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting = PriorityRoundRobin[tuple[AskT, asyncio.Future[AnswerT]]]()
        self._running: asyncio.Task[None] | None = None

    def ask(self, ask: AskT, *path: Hashable, reputation: Reputation = Reputation.KNOWN) -> "asyncio.Future[AnswerT]":
        """Return the future answer; a request whose future is cancelled before its batch starts is dropped."""
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting.put((ask, future), reputation, *path)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.take() for _ in range(min(self._most, len(self._waiting)))]
                await self._answer([one for one in group if not one[1].done()])
        finally:
            self._running = None

    async def _answer(self, group: Sequence[tuple[AskT, "asyncio.Future[AnswerT]"]]) -> None:
        if not group:
            return
        try:
            answers = await self._work([ask for ask, _ in group])
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except Exception as error:
            # The callers of this batch handle the error.
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)
