"""Many devices on few connections: messages to one aggregator are sent in batches, and each device gets its own answer.

It must not read a message or retry. An aggregator identifies a device by the signature of its session, not by the
connection, so that devices may share a connection (docs/wire.md, "Session").
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from fleetcount_client.transport import PassingTransport, Transport, Unreachable
from fleetcount_protocol.errors import DecodeError, MachineError, PeerError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_INSTALMENTS_PER_BATCH, MAX_SESSIONS_PER_REQUEST
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

_ItemT = TypeVar("_ItemT")
_AnswerT = TypeVar("_AnswerT")
_ENTRY_BYTES: Final = 128
"""An upper bound of the bytes of one instalment's ids, tags and lengths in a batch."""
_IN_FLIGHT: Final = 2
"""Batches sent at once: while the aggregator works on one, the next one fills and is sent."""
_MOST_LISTING: Final = 1 << 16
"""Devices that share one answer to `list_questions`: all that ask at about the same time."""
_GATHER_S: Final = 0.2
"""Seconds that a batch waits at most to fill up: a call costs as much as some ten messages in it."""
_GATHER_SHARE: Final = 0.025
"""The share of what is left of a round that a batch of its messages waits at most."""


class Channel(Generic[_ItemT, _AnswerT]):
    """One kind of message to one aggregator: `send` sends the waiting items, at most `most` at once, in order.

    Where fewer wait, it gathers them for `gather_s()` seconds first.
    """

    def __init__(
        self,
        send: Callable[[list[_ItemT]], Awaitable[Sequence[_AnswerT]]],
        most: int,
        gather_s: Callable[[], float] = lambda: _GATHER_S,
    ) -> None:
        self._send = send
        self._most = most
        self._gather_s = gather_s
        self._waiting: deque[tuple[_ItemT, asyncio.Future[_AnswerT]]] = deque()
        self._pumps: set[asyncio.Task[None]] = set()

    async def put(self, item: _ItemT) -> _AnswerT:
        """Send one item together with the others that wait; return its own answer.

        Raises:
            Unreachable: no answer came for its batch. PeerError: an answer that the protocol does not allow.
        """
        answer: asyncio.Future[_AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if len(self._pumps) < _IN_FLIGHT:
            pump = asyncio.create_task(self._pump(), name="channel")
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        return await answer

    async def put_all(self, items: Sequence[_ItemT]) -> tuple[_AnswerT, ...]:
        """Send items as `put` does, one without a task of its own; return their answers, in order."""
        return (await self.put(items[0]),) if len(items) == 1 else tuple(await asyncio.gather(*map(self.put, items)))

    async def close(self) -> None:
        """Stop sending; callers that still wait get Unreachable."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        _fail([answer for _, answer in self._waiting], Unreachable("the connection was closed"))
        self._waiting.clear()

    async def _pump(self) -> None:
        while self._waiting:
            if len(self._waiting) < self._most:
                await asyncio.sleep(self._gather_s())
            batch = self._take()
            if not batch:
                continue
            answers = [answer for _, answer in batch]
            try:
                replies = await self._send([item for item, _ in batch])
            except (MachineError, PeerError) as error:
                _fail(answers, error)
            except BaseException:
                _fail(answers, Unreachable("the connection was closed"))
                raise
            else:
                for answer, reply in zip(answers, replies, strict=True):
                    if not answer.done():
                        answer.set_result(reply)
        # Now, not in the done callback: until that runs, `put` would count this pump and start no other for its item.
        self._pumps.discard(asyncio.current_task())

    def _take(self) -> list[tuple[_ItemT, asyncio.Future[_AnswerT]]]:
        batch: list[tuple[_ItemT, asyncio.Future[_AnswerT]]] = []
        while self._waiting and len(batch) < self._most:
            entry = self._waiting.popleft()
            # A device that was switched off while it waited has cancelled its future: its item is not sent.
            if not entry[1].done():
                batch.append(entry)
        return batch


def _fail(answers: Sequence["asyncio.Future[_AnswerT]"], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            # One exception per caller: one object raised in many places collects all their tracebacks.
            answer.set_exception((Unreachable if isinstance(error, MachineError) else DecodeError)(str(error)))


class SharedTransport(PassingTransport):
    """A transport for all devices of a process over one inner transport, safe for concurrent use."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._listing: Channel[None, tuple[QuestionOffer, ...]] = Channel(self._all_questions, _MOST_LISTING)
        self._sessions: dict[AggregatorId, Channel[SessionRequest, SessionAccepted | SessionRefused]] = {}
        self._uploads: dict[tuple[WindowId, int], Channel[Instalment, Receipt | Refusal]] = {}

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Ask for the questions on offer together with other devices; all get the same answer."""
        return await self._listing.put(None)

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Open sessions together with those of other devices; one answer per request, in order."""
        name = aggregator.aggregator_id
        if name not in self._sessions:
            self._sessions[name] = Channel(
                lambda waiting: self._inner.open_sessions(aggregator, waiting), MAX_SESSIONS_PER_REQUEST
            )
        return await self._sessions[name].put_all(requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Upload together with other devices; one answer per instalment, in order."""
        name = (window.window_id, position)
        if name not in self._uploads:
            self._uploads[name] = Channel(
                lambda waiting: self._inner.upload(window, position, waiting),
                _batch_of(instalments[0]),
                lambda: _gather_s(window),
            )
        return await self._uploads[name].put_all(instalments)

    async def close(self) -> None:
        """Do nothing: all devices share the connection."""

    async def disconnect(self) -> None:
        """Close the channels and the inner transport."""
        channels: list[Channel[Any, Any]] = [*self._sessions.values(), *self._uploads.values()]
        for channel in (*channels, self._listing):
            await channel.close()
        await super().close()

    async def _all_questions(self, asking: list[None]) -> list[tuple[QuestionOffer, ...]]:
        return [await self._inner.list_questions()] * len(asking)


def _gather_s(window: Window) -> float:
    """Return how long a batch of a window's messages waits to fill up."""
    now = time.time()
    closes = window.round_one_closes if now < window.round_one_closes else window.round_two_closes
    return min(max(0.0, closes - now) * _GATHER_SHARE, _GATHER_S)


def _batch_of(instalment: Instalment) -> int:
    """Return how many instalments of this size fit a batch; those of a round have one size (docs/wire.md, "Sizes")."""
    size = len(instalment.public_share) + len(instalment.ciphertext) + _ENTRY_BYTES
    return max(1, min(MAX_INSTALMENTS_PER_BATCH, MAX_BATCH_BYTES // size))
