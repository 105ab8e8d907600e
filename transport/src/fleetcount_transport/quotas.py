"""Who calls, and how much each caller may have under way, so that one cannot take up the whole server.

A caller is the public key of a TLS certificate; without TLS, a connection. For gRPC servers that many can reach.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from fleetcount_protocol.channel.certificates import Purpose

from fleetcount_transport.callers import caller_of
from fleetcount_transport.pipelining import ByteBudget, IdleStreamError

__all__ = ["CallLimits", "Quotas"]

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
_IDLE: Final = "idle"
_BUSY: Final = "busy"
_MALFORMED: Final = "malformed"
_CERTIFICATE: Final = "certificate"
One = Callable[[bytes, _Context], Awaitable[bytes]]
"""Answers a call of one message."""
Stream = Callable[[AsyncIterator[bytes], _Context, ByteBudget], Awaitable[None]]
"""Serves a stream of messages, whose bytes come out of the caller's budget; raises `IdleStreamError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """`idle_s`: how long a call waits for its caller; then what one caller may have under way: calls, upload bytes."""

    idle_s: float = 60.0
    calls_each: int = 256
    bytes_each: int = 16 << 20


@dataclass(slots=True)
class _Caller:
    budget: ByteBudget
    calls: int = 0


class Quotas:
    """The calls under way, by caller; `all_bytes` is the budget of them all.

    `denies` says of the digest of a public key whether it is shut out. A call names the purposes it is for: with a
    certificate of another one, or one that has ended since the connection was made, it ends with PERMISSION_DENIED.
    """

    def __init__(
        self, limits: CallLimits, all_bytes: ByteBudget, denies: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        self.limits = limits
        self._all_bytes = all_bytes
        self._denies = denies
        self._callers: dict[bytes, _Caller] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def unary(self, answer: One, purposes: frozenset[Purpose]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a call with one message, for which it waits `idle_s` at most.

        To its caller it is a unary call like any other; but a plain handler would wait for the message without limit.
        """

        async def call(requests: AsyncIterator[bytes], context: _Context) -> bytes:
            async with self._share(context, purposes):
                return await answer(await self._message(requests, context), context)

        return grpc.stream_unary_rpc_method_handler(call)

    async def _message(self, requests: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            async with asyncio.timeout(self.limits.idle_s):
                return await anext(aiter(requests))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _IDLE)
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        raise AssertionError("context.abort always raises")

    def stream(self, serve: Stream, purposes: frozenset[Purpose]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a stream."""

        async def call(requests: AsyncIterator[bytes], context: _Context) -> None:
            async with self._share(context, purposes) as budget:
                try:
                    await serve(requests, context, budget)
                except IdleStreamError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _IDLE)

        return grpc.stream_stream_rpc_method_handler(call)

    @asynccontextmanager
    async def _share(self, context: _Context, purposes: frozenset[Purpose]) -> AsyncGenerator[ByteBudget, None]:
        """Count one call while it lasts, and give its caller's budget; refuse it if the caller has too many."""
        who = caller_of(context)
        if not who.may(purposes, time.time()) or self._denies(who.key):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, _CERTIFICATE)
        caller = self._callers.setdefault(who.key, _Caller(ByteBudget(self.limits.bytes_each, self._all_bytes)))
        if caller.calls >= self.limits.calls_each:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        caller.calls += 1
        try:
            yield caller.budget
        finally:
            caller.calls -= 1
            if not caller.calls:
                del self._callers[who.key]
