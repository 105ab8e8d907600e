"""Who calls, and how much each caller may have under way, so that one cannot take up the whole server.

A caller is a TLS certificate; without TLS, a connection. For gRPC servers that many parties can reach.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from fleetcount_transport.pipelining import ByteBudget, IdleStreamError

__all__ = ["CallLimits", "Quotas"]

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
_IDLE: Final = "idle"
_BUSY: Final = "busy"
_MALFORMED: Final = "malformed"
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
    """The calls under way, by caller; `all_bytes` is the budget of them all."""

    def __init__(self, limits: CallLimits, all_bytes: ByteBudget) -> None:
        self.limits = limits
        self._all_bytes = all_bytes
        self._callers: dict[bytes, _Caller] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def unary(self, answer: One) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a call with one message, for which it waits `idle_s` at most.

        To its caller it is a unary call like any other; but a plain handler would wait for the message without limit.
        """

        async def call(requests: AsyncIterator[bytes], context: _Context) -> bytes:
            async with self._share(context):
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

    def stream(self, serve: Stream) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a stream."""

        async def call(requests: AsyncIterator[bytes], context: _Context) -> None:
            async with self._share(context) as budget:
                try:
                    await serve(requests, context, budget)
                except IdleStreamError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _IDLE)

        return grpc.stream_stream_rpc_method_handler(call)

    @asynccontextmanager
    async def _share(self, context: _Context) -> AsyncGenerator[ByteBudget, None]:
        """Count one call while it lasts, and give its caller's budget; refuse it if the caller has too many."""
        name = _name_of(context)
        caller = self._callers.setdefault(name, _Caller(ByteBudget(self.limits.bytes_each, self._all_bytes)))
        if caller.calls >= self.limits.calls_each:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        caller.calls += 1
        try:
            yield caller.budget
        finally:
            caller.calls -= 1
            if not caller.calls:
                del self._callers[name]


def _name_of(context: _Context) -> bytes:
    [certificate] = context.auth_context().get("x509_pem_cert", [b""])
    return hashlib.sha256(certificate).digest() if certificate else str(context.peer()).encode()
