"""A stream of messages of one caller, each admitted as a call of its own would be; between them it holds no share.

The first message is admitted before it is read. It must not read a message.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Final

from fleetcount_transport.admission.call import Call
from fleetcount_transport.pipelining import IdleStreamError, Pipeline

IN_FLIGHT: Final = 4
"""Messages of one stream that are read and not answered yet; one while their caller is unknown."""
Take = Callable[[bytes, Call], Awaitable[bytes]]
"""Does the work of one message and returns its answer."""
Tell = Callable[[Awaitable[bytes], Call], Awaitable[bytes]]
"""Awaits an answer when its turn has come; an error becomes the status with which the stream ends."""


_KEPT: Final = 4
"""Streams of one connection that stay without a message under way, about 30 KB each here."""


class KeptStreams:
    """The streams of a listener that stay open without a message under way, `_KEPT` of a connection at most."""

    def __init__(self) -> None:
        self._of: dict[str, set[MessageStream]] = {}
        self.is_ending = False

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, stream: "MessageStream") -> bool:
        """Return whether a stream may stay, and count it if so."""
        kept = self._of.setdefault(stream.connection, set())
        if self.is_ending or len(kept) >= _KEPT:
            return False
        kept.add(stream)
        return True

    def discard(self, stream: "MessageStream") -> None:
        """Count a stream no longer: it has a message, or it has ended."""
        kept = self._of.get(stream.connection, set())
        kept.discard(stream)
        if not kept:
            self._of.pop(stream.connection, None)

    def end(self) -> None:
        """End the streams without a message now, and every other one once its messages are answered."""
        self.is_ending = True
        for stream in [one for kept in self._of.values() for one in kept]:
            stream.end()


class MessageStream:
    """One stream. While a message is under way it counts as one call of its caller; before the first one, too.

    `again` is asked before each message but the first: it raises if the caller may not call any more. `alone` is the
    turn of a caller of whom no signature has held: of all its streams on one connection one message is worked on at a
    time, and what is behind one that fails is refused unread. It is None where nothing tells the known from others.
    """

    def __init__(
        self, call: Call, again: Callable[[], object], alone: asyncio.Semaphore | None, kept: KeptStreams
    ) -> None:
        self._call, self._who, self._admission = call, call.who, call.door.admission
        self._kept = kept
        self._again = again
        self._alone = alone
        self._held = ExitStack()
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._came, self._answered = False, False
        self._pipeline: Pipeline[bytes, bytes] | None = None

    async def run(self, requests: AsyncIterator[bytes], take: Take, tell: Tell) -> None:
        """Answer messages, in order, until the caller ends the stream, `end` does, or it was idle for `idle_s`.

        Raises:
            IdleStreamError: no message came at all.
            BusyError, ForeignError: the caller may not call any more; earlier messages are answered.
        """
        call = self._call

        async def deliver(answer: Awaitable[bytes]) -> None:
            await call.write(await tell(answer, call))
            self._done()

        self._quiet.set()
        self._requests = requests
        pipeline: Pipeline[bytes, bytes]
        pipeline = self._pipeline = Pipeline(lambda request: take(request, call), deliver, IN_FLIGHT, call.idle_s)
        try:
            with self._held:
                self._held.enter_context(self._admission.call(self._who))
                await pipeline.run(self)
        except IdleStreamError:
            if not self._answered:
                raise
        finally:
            self._kept.discard(self)

    @property
    def connection(self) -> str:
        """gRPC's name of the connection."""
        return str(self._call.context.peer())

    def end(self) -> None:
        """End the stream once what is under way is answered."""
        if self._pipeline is not None:
            self._pipeline.end()

    def __aiter__(self) -> "MessageStream":
        return self

    async def __anext__(self) -> bytes:
        """Return the next message once it is admitted."""
        if self._came and self._kept.is_ending:
            raise StopAsyncIteration
        if self._turn_of_unknown() is not None:
            await self._quiet.wait()
        if self._came:
            request = await anext(aiter(self._requests))
            self._again()
            self._kept.discard(self)
            if self._under_way:
                self._admission.check(self._who)
            else:
                self._held.enter_context(self._admission.call(self._who))
                await self._turn()
        else:
            await self._turn()
            request = await anext(aiter(self._requests))
            self._came = True
        self._under_way += 1
        self._quiet.clear()
        return request

    def _turn_of_unknown(self) -> asyncio.Semaphore | None:
        return None if self._admission.knows(self._who) else self._alone

    async def _turn(self) -> None:
        """Wait for the turn of an unknown caller, and hold it until its message is answered."""
        turn = self._turn_of_unknown()
        if turn is None:
            return
        await turn.acquire()
        self._held.callback(turn.release)
        self._admission.check(self._who)  # Others of its messages may have failed while this one waited.

    def _done(self) -> None:
        """Note that a message is answered; after the last one give back what is held, and stay if there is room."""
        self._answered = True
        self._under_way -= 1
        if self._under_way:
            return
        self._held.close()
        self._quiet.set()
        self._call.door.recognize(self._call)
        if not self._kept.add(self):
            self.end()
