"""The relay towards devices: DeviceService, each call for the aggregator that its metadata names.

Reads of an upload only where one instalment ends and the next begins, and that every one has its canonical form; never
what is in it. Holds no session, makes no receipt and stores nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import DecodeError, PeerProblem, RejectReason
from fleetcount_protocol.wire.device_columns import (
    InstalmentColumns,
    ReplyColumns,
    read_instalments,
    split_entries,
    write_replies,
)
from fleetcount_protocol.wire.relay import AGGREGATOR_HEADER
from fleetcount_transport.logs import log
from fleetcount_transport.pipelining import ByteBudget, in_order
from fleetcount_transport.quotas import CallLimits, Quotas

from fleetcount_relay.forwarding import Forwarder, UpstreamError
from fleetcount_relay.metrics import RelayMetrics

__all__ = ["RelayShell"]

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
_SERVICE: Final = "fleetcount_protocol.v1.DeviceService"
_DEVICES: Final = frozenset({Purpose.DEVICE})
_READERS: Final = _DEVICES | {Purpose.READER}
_UNARY: Final = {
    "ListTasks": _READERS,
    "ListSeries": _READERS,
    "OpenSessions": _DEVICES,
    "GetRelease": _READERS,
}
"""Whose certificates each call is for: beyond this relay, they count as the relay's."""
_BATCHES_IN_FLIGHT: Final = 4
_UNKNOWN_AGGREGATOR: Final = "unknown_aggregator"
_PASSED_ON: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: PeerProblem.MALFORMED.value,
    grpc.StatusCode.NOT_FOUND: PeerProblem.UNKNOWN_TASK.value,
}
"""What an aggregator may say of a single call; everything else is "not now"."""


class RelayShell:
    """DeviceService over gRPC in front of aggregators, by their ids; at most `bytes_in_memory` wait for answers."""

    def __init__(
        self,
        forwarders: Mapping[str, Forwarder],
        metrics: RelayMetrics,
        bytes_in_memory: int,
        limits: CallLimits | None = None,
        denies: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._forwarders = forwarders
        self._metrics = metrics
        self._callers = Quotas(limits or CallLimits(), ByteBudget(bytes_in_memory), denies)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of device.proto."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: self._callers.unary(partial(self._ask, name), purposes) for name, purposes in _UNARY.items()
        }
        methods["Upload"] = self._callers.stream(self._upload, _DEVICES)
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _forwarder(self, context: _Context) -> Forwarder:
        named = dict(context.invocation_metadata() or ()).get(AGGREGATOR_HEADER)
        found = self._forwarders.get(str(named))
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, _UNKNOWN_AGGREGATOR)
            raise AssertionError("context.abort always raises")
        return found

    async def _ask(self, method: str, query: bytes, context: _Context) -> bytes:
        """Pass a single call on, and its answer back, both unread."""
        forwarder = await self._forwarder(context)
        try:
            return await forwarder.ask(method, query)
        except grpc.aio.AioRpcError as error:
            word = _PASSED_ON.get(error.code())
            code = grpc.StatusCode.UNAVAILABLE if word is None else error.code()
            await context.abort(code, word or PeerProblem.BUSY.value)
            raise AssertionError("context.abort always raises") from None

    async def _upload(self, requests: AsyncIterator[bytes], context: _Context, budget: ByteBudget) -> None:
        """Pass uploads on, mixed with those of other devices, and each its own answers back, in order."""
        forwarder = await self._forwarder(context)

        async def deliver(answer: Awaitable[bytes]) -> None:
            await context.write(await self._answer(answer, context))

        pass_on = partial(self._pass_on, forwarder, budget)
        await in_order(requests, pass_on, deliver, _BATCHES_IN_FLIGHT, self._callers.limits.idle_s)

    async def _pass_on(self, forwarder: Forwarder, budget: ByteBudget, request: bytes) -> bytes:
        batch = read_instalments(request)
        if not budget.take(len(request)):
            self._metrics.busy()
            return write_replies(map(_busy, batch))
        self._metrics.in_memory(len(request))
        try:
            return b"".join(await forwarder.send(split_entries(request)))
        finally:
            budget.give_back(len(request))
            self._metrics.in_memory(-len(request))

    async def _answer(self, answer: Awaitable[bytes], context: _Context) -> bytes:
        """Return an upload's answer; an error becomes a status with a word of a closed list.

        This is the top of an RPC: what nobody expected is logged by its type and hidden from the device.
        """
        try:
            return await answer
        except DecodeError:
            self._metrics.malformed()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PeerProblem.MALFORMED.value)
        except UpstreamError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, PeerProblem.BUSY.value)
        except Exception as error:
            log.error("call_failed", error=type(error).__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "internal")
        raise AssertionError("context.abort always raises")


def _busy(columns: InstalmentColumns) -> ReplyColumns:
    count = len(columns)
    return ReplyColumns(
        instalments=columns, reasons=[RejectReason.BUSY] * count, digests=[b""] * count, macs=[b""] * count
    )
