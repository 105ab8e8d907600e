"""Admission of the calls of a gRPC server: identity before a byte of the message, then shares, then the handler.

A caller is the public key of a TLS certificate; without TLS, a connection. It must not look into a message.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.wire.call_metadata import CARRIED_HEADER, RETRY_TRAILER

from fleetcount_transport.admission.admission import Admission, BusyError, Shed
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.callers import caller_of
from fleetcount_transport.pipelining import IdleStreamError

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
_IDLE: Final = "idle"
_BUSY: Final = "busy"
_MALFORMED: Final = "malformed"
_AT_ONCE: Final = 8
"""Single messages of one identity that are read and answered at once: what it sends beyond waits on its own side."""
_LONGEST_REST_S: Final = 30.0
"""How long nothing is read from a caller that is shut out, before its connection ends."""
_CARRIED_CHARACTERS: Final = 64


class ForeignError(Exception):
    """A caller that has no business here; `word` is told to it."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


Name = Callable[[_Context], Identity]
"""Names the caller of a call, from what gRPC's server knows of it; raises `ForeignError`."""


def certified(purposes: frozenset[Purpose], denies: Callable[[bytes], bool] = lambda _: False) -> Name:
    """Return the function that names callers by the keys of their certificates.

    A certificate of another purpose, one that has ended since the connection was made, and one whose key `denies` is
    true of, is foreign. A relay says for whom it acts.
    """

    def name(context: _Context) -> Identity:
        caller = caller_of(context)
        if not caller.may(purposes, time.time()) or denies(caller.key):
            raise ForeignError("certificate")
        carried = dict(context.invocation_metadata() or ()).get(CARRIED_HEADER, "")
        if caller.purpose is not Purpose.RELAY or len(carried) > _CARRIED_CHARACTERS:
            carried = ""
        return Identity(caller.key, str(carried).encode())

    return name


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was let in."""

    who: Identity
    context: _Context
    _door: "GrpcAdmission"

    @property
    def idle_s(self) -> float:
        """How long to wait for the caller."""
        return self._door.admission.limits.idle_s

    def hold(self, size: int) -> AbstractContextManager[None]:
        """Count the bytes of a message while it is under way; raises `BusyError`."""
        return self._door.admission.hold(self.who, size)

    async def write(self, answer: bytes) -> None:
        """Send an answer; the connection of a caller that does not take it in `idle_s` is ended."""
        clock = asyncio.get_running_loop().call_later(self.idle_s, self._door.hang_up, self.context)
        try:
            await self.context.write(answer)
        finally:
            clock.cancel()


One = Callable[[bytes, Call], Awaitable[bytes]]
"""Answers a call of one message."""
Stream = Callable[[AsyncIterator[bytes], Call], Awaitable[None]]
"""Serves a stream of messages; raises `IdleStreamError`, and `BusyError` where a message of its own cannot say so."""


class GrpcAdmission:
    """The calls of one listener. `front` is where its connections come in, None if there is nothing in front of it.

    Of one identity `at_once` calls with one message are read and answered at a time.
    """

    def __init__(self, admission: Admission, front: HandshakeGate | None = None, at_once: int = _AT_ONCE) -> None:
        self.admission = admission
        self._front = front
        self._at_once = at_once
        self._turns: WeakValueDictionary[tuple[Identity, str], asyncio.Semaphore] = WeakValueDictionary()

    def unary(self, answer: One, name: Name, *, first_alone: bool = False) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a call with one message, for which it waits `idle_s` at most.

        With `first_alone` an identity of which no signature held before has one such call of a connection read at a
        time: those behind a call that fails are refused unread.

        To its caller it is a unary call like any other; but a plain handler would read the message before it asks who
        sends it, and wait without limit for it, and for its answer to be taken.
        """

        async def serve(requests: AsyncIterator[bytes], call: Call) -> None:
            alone = first_alone and not self.admission.knows(call.who)
            # By connection: one that died with half a message must not keep its device's next one waiting.
            turn = call.who, call.context.peer() if alone else ""
            async with self._turns.setdefault(turn, asyncio.Semaphore(1 if alone else self._at_once)):
                self.admission.check(call.who)  # Others of its calls may have failed while this one waited.
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
        """Return the handler of a stream."""

        async def handle(requests: AsyncIterator[bytes], context: _Context) -> None:
            try:
                who = name(context)
            except ForeignError as foreign:
                self.admission.shed(Shed.FOREIGN)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, foreign.word)
                return
            if self._front is not None:
                self._front.prove(context.peer(), who.key)
            self._recognize(context, who)
            try:
                with self.admission.call(who):
                    await serve(requests, Call(who, context, self))
                self._recognize(context, who)
            except BusyError as busy:
                await self._refuse(context, who, busy)
            except IdleStreamError:
                self.admission.shed(Shed.IDLE)
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _IDLE)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _recognize(self, context: _Context, who: Identity) -> None:
        """Let who comes from the same address as somebody known be heard first."""
        if self._front is not None and self.admission.knows(who):
            self._front.know(context.peer())

    async def _refuse(self, context: _Context, who: Identity, busy: BusyError) -> None:
        """End a call that is not taken now, and read nothing more from a caller that is shut out."""
        if busy.reason is Shed.FAULTS and not who.carried and self._front is not None:
            self._front.rest(context.peer(), min(busy.retry_after_s, _LONGEST_REST_S))
        hint = ((RETRY_TRAILER, str(math.ceil(1000 * busy.retry_after_s))),)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY, hint)

    def hang_up(self, context: _Context) -> None:
        """End the connection of a call whose caller takes no answer; nothing else ends such a call."""
        if self._front is not None:
            self._front.hang_up(context.peer(), Shed.UNREAD)
