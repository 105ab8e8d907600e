"""Admission of the calls of a gRPC server: identity before a byte of the message, then shares, then the handler.

The identity is the public key of a TLS certificate; without TLS, the connection. It must not read a message.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.wire.call_metadata import CARRIED_HEADER, RETRY_TRAILER

from fleetcount_transport.admission.admission import Admission, BusyError, Shed
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.admission.message_stream import KeptStreams, MessageStream, Take, Tell
from fleetcount_transport.callers import caller_of
from fleetcount_transport.pipelining import IdleStreamError

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
_IDLE: Final = "idle"
_BUSY: Final = "busy"
_MALFORMED: Final = "malformed"
_AT_ONCE: Final = 8
"""Unary messages of one identity that are read and answered at once: further ones wait, unread, at the caller."""
_LONGEST_REST_S: Final = 30.0
"""Seconds for which a refused caller is not read, before its connection is closed."""
_CARRIED_CHARACTERS: Final = 64


class ForeignError(Exception):
    """The caller is not authorised; `word` is the status detail."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


Name = Callable[[_Context], Identity]
"""Returns the identity of a call's caller, from gRPC's servicer context; raises `ForeignError`."""


def certified(
    purposes: frozenset[Purpose],
    denies: Callable[[bytes], bool] = lambda _: False,
    now: Callable[[], float] = time.time,
) -> Name:
    """Return the function that identifies callers by the keys of their certificates.

    It refuses (`ForeignError`) a certificate of another purpose, one that has ended since the handshake, and one whose
    key `denies` refuses; `now` returns the time, Unix seconds. From a relay it accepts a pseudonym of the device that
    the relay acts for.
    """

    def name(context: _Context) -> Identity:
        caller = caller_of(context)
        if not caller.may(purposes, now()) or denies(caller.key):
            raise ForeignError("certificate")
        carried = dict(context.invocation_metadata() or ()).get(CARRIED_HEADER, "")
        if caller.purpose is not Purpose.RELAY or len(carried) > _CARRIED_CHARACTERS:
            carried = ""
        return Identity(caller.key, str(carried).encode())

    return name


One = Callable[[bytes, Call], Awaitable[bytes]]
"""Answers a call of one message."""
Stream = Callable[[AsyncIterator[bytes], Call], Awaitable[None]]
"""Serves a stream of messages; raises `IdleStreamError`, and `BusyError` where its messages have no refusal."""


class GrpcAdmission:
    """Admission of the calls of one listener. `front` is the gate of its connections, None without one.

    At most `at_once` unary messages of one identity are read and answered at a time.
    """

    def __init__(self, admission: Admission, front: HandshakeGate | None = None, at_once: int = _AT_ONCE) -> None:
        self.admission = admission
        self._front = front
        self._at_once = at_once
        self._turns: WeakValueDictionary[tuple[Identity, str], asyncio.Semaphore] = WeakValueDictionary()
        self.kept = KeptStreams()

    def messages(
        self, take: Take, tell: Tell, name: Name, *, unknown_alone: bool = False
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a stream whose messages are admitted one by one (`MessageStream`).

        With `unknown_alone` only one message per connection of an unknown identity is worked on at a time. A stream
        for which `kept` has no room ends once its messages are answered.
        """

        async def serve(requests: AsyncIterator[bytes], call: Call) -> None:
            # Per connection: a dead connection with half a message must not block the device's next connection.
            turn = self._turns.setdefault((call.who, call.context.peer()), asyncio.Semaphore(1))
            alone = turn if unknown_alone else None
            await MessageStream(call, partial(name, call.context), alone, self.kept).run(requests, take, tell)

        return self._handler(serve, name)

    def unary(
        self, answer: One, name: Name, *, first: Callable[[Call], Awaitable[None]] | None = None
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a call with one message, for which it waits `idle_s` at most.

        `first` is done before the message is waited for.

        It is implemented as a stream, which its caller cannot tell from a unary call: gRPC's unary handler would read
        the message before it knows the caller, and wait without limit for the message and for the answer to be read.
        """

        async def serve(requests: AsyncIterator[bytes], call: Call) -> None:
            async with self._turns.setdefault((call.who, ""), asyncio.Semaphore(self._at_once)):
                self.admission.check(call.who)  # Others of its calls may have failed while this one waited.
                if first is not None:
                    await first(call)
                request = await self._message(requests, call)
                with call.hold(len(request)):
                    await call.write(await answer(request, call))

        return self.stream(serve, name)

    async def _message(self, requests: AsyncIterator[bytes], call: Call) -> bytes:
        try:
            async with asyncio.timeout(call.idle_s):
                return await anext(aiter(requests))
        except TimeoutError:
            raise IdleStreamError from None
        except StopAsyncIteration:
            await call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        raise AssertionError("context.abort always raises")

    def stream(self, serve: Stream, name: Name) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a stream that is one call, however many messages it has."""

        async def serve_one(requests: AsyncIterator[bytes], call: Call) -> None:
            with self.admission.call(call.who):
                await serve(requests, call)
            self.recognize(call)

        return self._handler(serve_one, name)

    def _handler(self, serve: Stream, name: Name) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def handle(requests: AsyncIterator[bytes], context: _Context) -> None:
            try:
                call = Call(name(context), context, self)
                if self._front is not None:
                    self._front.prove(context.peer(), call.who.key)
                self.recognize(call)
                try:
                    await serve(requests, call)
                except BusyError as busy:
                    await self._refuse(call, busy)
            except ForeignError as foreign:
                self.admission.shed(Shed.FOREIGN)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, foreign.word)
            except IdleStreamError:
                self.admission.shed(Shed.IDLE)
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _IDLE)

        return grpc.stream_stream_rpc_method_handler(handle)

    def recognize(self, call: Call) -> None:
        """Give handshakes from the address of a known identity priority."""
        if self._front is not None and self.admission.knows(call.who):
            self._front.know(call.context.peer())

    async def _refuse(self, call: Call, busy: BusyError) -> None:
        """End a call with "busy", and stop reading from a caller that is refused for its faults."""
        context, who = call.context, call.who
        if busy.reason is Shed.FAULTS and not who.carried and self._front is not None:
            self._front.rest(context.peer(), min(busy.retry_after_s, _LONGEST_REST_S))
        hint = ((RETRY_TRAILER, str(math.ceil(1000 * busy.retry_after_s))),)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY, hint)

    def hang_up(self, context: _Context) -> None:
        """Close the connection of a call whose caller does not read its answer; nothing else ends such a call."""
        if self._front is not None:
            self._front.hang_up(context.peer(), Shed.UNREAD)
