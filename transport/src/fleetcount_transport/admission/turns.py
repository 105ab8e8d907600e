"""Turns at a scarce resource: all who wait are served in turn, however much each asks for, and who is new first.

Does not know what is done in a turn.
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
"""Every so many turns one goes to a line behind the first, so that no line waits for ever."""

_FEW: Final = 64
"""So many who gave up stay in a line until their turn: to look for them costs a walk through it."""


class RoundRobin(Generic[ItemT]):
    """A line in which those who wait get one turn each, round and round, each their oldest first.

    Who has not been in the line goes before all who have: one request does not wait for a thousand who ask without end.
    Who was served stays behind for one more round, also with nothing to ask, so that leaving and coming again gains
    nothing (the two lists of FQ-CoDel, RFC 8290, section 4.1). `path` names who asks: a party, then whom it asks for;
    each party's turns go round among those in the same way.
    """

    def __init__(self) -> None:
        self._new: dict[Hashable, deque[ItemT] | RoundRobin[ItemT]] = {}
        self._old: dict[Hashable, deque[ItemT] | RoundRobin[ItemT]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, item: ItemT, *path: Hashable) -> None:
        """Let an item wait."""
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
            IndexError: nobody waits.
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
        raise IndexError("nobody waits")

    def keep(self, waits: Callable[[ItemT], bool]) -> None:
        """Let go of items that wait no more; the others, and all who were served of late, keep their places."""
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
    """A `RoundRobin` for each reputation, the best first: whom one knows waits for nobody of whom one knows nothing.

    Every fourth turn is for the lines behind the first of those that wait, so that who is new gets in however many are
    known.
    """

    def __init__(self) -> None:
        self._lines = {reputation: RoundRobin[ItemT]() for reputation in Reputation}
        self._turn = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, item: ItemT, reputation: Reputation, *path: Hashable) -> None:
        """Let an item wait."""
        self._lines[reputation].put(item, *path)

    def take(self) -> ItemT:
        """Return the item whose turn it is.

        Raises:
            IndexError: nobody waits.
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
    """Gives at most `at_once` turns at a time, to those who wait by their place in a `PriorityRoundRobin`."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting = PriorityRoundRobin[asyncio.Future[None]]()
        self._gone = 0
        """How many in the line have given up, about."""

    @asynccontextmanager
    async def of(self, *path: Hashable, reputation: Reputation = Reputation.KNOWN) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it in the context."""
        await self._begin(reputation, path)
        try:
            yield
        finally:
            self._free += 1
            self._next()

    async def _begin(self, reputation: Reputation, path: tuple[Hashable, ...]) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.put(turn, reputation, *path)
        self._next()
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
        """Note that one has given up; when half of the line has, those go: more may come and go than get a turn."""
        self._gone += 1
        if self._gone > max(_FEW, len(self._waiting) // 2):
            self._waiting.keep(lambda turn: not turn.done())
            self._gone = 0

    def _next(self) -> None:
        """Give the turns that are free to those who wait."""
        while self._free and self._waiting:
            turn = self._waiting.take()
            if turn.done():
                self._gone -= 1
            else:
                turn.set_result(None)
                self._free -= 1


class FairBatches(Generic[AskT, AnswerT]):
    """Turns many small requests into few large ones: those that arrive while a batch is under way form the next.

    Asks `work` for at most `most` answers at once, one batch after the other; `work` answers in order. Who is in the
    next batch is decided by a `PriorityRoundRobin`. An error of `work` goes to everybody who waits for that batch.
    """

    def __init__(self, work: Callable[[Sequence[AskT]], Awaitable[Sequence[AnswerT]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting = PriorityRoundRobin[tuple[AskT, asyncio.Future[AnswerT]]]()
        self._running: asyncio.Task[None] | None = None

    def ask(self, ask: AskT, *path: Hashable, reputation: Reputation = Reputation.KNOWN) -> "asyncio.Future[AnswerT]":
        """Return the answer to come; one that is cancelled is not worked on."""
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
            # Whatever it was is for those who wait to hear of.
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)
