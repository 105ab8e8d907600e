"""The two gRPC listeners: devices on one, aggregators on the other, each with its own authority.

Thin shells: decode, call, encode. Messages arrive as bytes: the strict codec reads them, not the RPC library. The
caller is named by its peer certificate alone; an error is told to the other side as one word of a closed list, and
nothing more.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, ReportId
from fleetcount_protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_IDS_PER_CHUNK,
    MAX_PEER_MESSAGE_BYTES,
    MAX_REPORTS_PER_TASK,
)
from fleetcount_protocol.v1 import peer_pb2 as peer_pb
from fleetcount_protocol.wire.device import (
    RELEASE_ANSWER,
    RELEASE_QUERY,
    SESSION_REPLIES,
    SESSION_REQUESTS,
    TASK_LIST,
    TASK_LIST_QUERY,
)
from fleetcount_protocol.wire.device_columns import read_instalments, write_replies
from fleetcount_protocol.wire.peer import (
    ABORT_ANSWER,
    ABORT_TASK,
    BATCH_DECISION,
    BATCH_PROPOSAL,
    BATCH_REPLY,
    COMMIT_QUERY,
    COMMITMENT,
    DELIVER_ANSWER,
    FINISH_BATCH,
    FINISHED_RECORD,
    INSTALL_ANSWER,
    INSTALL_TASK,
    NOISED_SHARE,
    OPEN_QUERY,
    RECORD_PROPOSAL,
    RECORD_SIGNATURE,
    SET_AGREED,
    STATUS,
    STATUS_QUERY,
    join_seal_set,
)
from fleetcount_protocol.wire.series import (
    DELIVER_ORDER,
    DELIVER_ORDER_ANSWER,
    INSTALL_SERIES,
    INSTALL_SERIES_ANSWER,
    SERIES_LIST,
    SERIES_LIST_QUERY,
)
from fleetcount_protocol.wire.strict import WireMessage
from fleetcount_transport.callers import caller_of
from fleetcount_transport.listening import server_options
from fleetcount_transport.logs import log
from fleetcount_transport.pipelining import ByteBudget, in_order
from fleetcount_transport.quotas import CallLimits, Quotas
from google.protobuf.message import DecodeError as ProtobufError

from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.intake.device_service import DeviceService, UnknownTaskError
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.storage.store import StoreError

__all__ = ["DeviceShell", "PeerShell", "device_server", "peer_server"]

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
Request = TypeVar("Request")
Response = TypeVar("Response")
_DEVICE_SERVICE: Final = "fleetcount_protocol.v1.DeviceService"
PEER_SERVICE: Final = "fleetcount_protocol.v1.PeerService"

_CODES: Final = {
    PeerProblem.NOT_YET: grpc.StatusCode.FAILED_PRECONDITION,
    PeerProblem.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PeerProblem.UNKNOWN_TASK: grpc.StatusCode.NOT_FOUND,
    PeerProblem.NOT_LEADER: grpc.StatusCode.PERMISSION_DENIED,
    PeerProblem.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Every other problem travels as ABORTED; the word itself is in the details."""


BATCHES_IN_FLIGHT: Final = 4
"""Batches of one stream that are read and not answered yet."""
BYTES_IN_FLIGHT: Final = 64 * MAX_BATCH_BYTES
"""Upload bytes of all streams that are read and not answered yet; in memory they are about three times as much."""
_REPORTING: Final = frozenset({Purpose.DEVICE, Purpose.RELAY})
_READING: Final = _REPORTING | {Purpose.READER, Purpose.AGGREGATOR}
"""Whose calls the device port takes: a reader and an aggregator's operator read what is public, and report nothing."""


async def _answer(context: _Context, metrics: Metrics, work: Callable[[], Awaitable[Response]]) -> Response:
    """Run one call; every error becomes a status with a word of a closed list.

    This is the top of an RPC: an unexpected error is logged by its type and hidden from the peer.
    """
    try:
        return await work()
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PeerProblem.MALFORMED.value)
    except UnknownTaskError:
        await context.abort(grpc.StatusCode.NOT_FOUND, PeerProblem.UNKNOWN_TASK.value)
    except PeerRefusalError as refusal:
        code = _CODES.get(refusal.problem, grpc.StatusCode.ABORTED)
        await context.abort(code, refusal.problem.value)
    except StoreError as error:
        metrics.store_failed()
        log.error("store_failed", reason=str(error))
        await context.abort(grpc.StatusCode.UNAVAILABLE, PeerProblem.BUSY.value)
    except Exception as error:
        log.error("call_failed", error=type(error).__name__)
        await context.abort(grpc.StatusCode.INTERNAL, "internal")
    raise AssertionError("context.abort always raises")


class DeviceShell:
    """DeviceService over gRPC. Beyond `bytes_in_flight` of uploads, over all streams, instalments are refused as busy.

    The purpose of the caller's certificate decides what it may call. It does not identify a report's device: the
    signature of the session does, so that a relay may carry what it cannot read. `limits` are each caller's; `denies`
    is true of public keys that are shut out.
    """

    def __init__(
        self,
        service: DeviceService,
        metrics: Metrics,
        bytes_in_flight: int = BYTES_IN_FLIGHT,
        limits: CallLimits | None = None,
        denies: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._callers = Quotas(limits or CallLimits(), ByteBudget(bytes_in_flight), denies)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of device.proto."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ListTasks": self._callers.unary(self._list_tasks, _READING),
            "ListSeries": self._callers.unary(self._list_series, _READING),
            "OpenSessions": self._callers.unary(self._open_sessions, _REPORTING),
            "Upload": self._callers.stream(self._upload, _REPORTING),
            "GetRelease": self._callers.unary(self._get_release, _READING),
        }
        return grpc.method_handlers_generic_handler(_DEVICE_SERVICE, methods)

    async def _list_tasks(self, request: bytes, context: _Context) -> bytes:
        """Every task that takes reports."""

        async def work() -> bytes:
            deployment = TASK_LIST_QUERY.decode(request)
            return TASK_LIST.encode(await self._service.tasks(deployment))

        return await _answer(context, self._metrics, work)

    async def _list_series(self, request: bytes, context: _Context) -> bytes:
        """Every series that is not over."""

        async def work() -> bytes:
            return SERIES_LIST.encode(self._service.series(SERIES_LIST_QUERY.decode(request)))

        return await _answer(context, self._metrics, work)

    async def _open_sessions(self, request: bytes, context: _Context) -> bytes:
        """Open sessions."""

        async def work() -> bytes:
            requests = SESSION_REQUESTS.decode(request)
            return SESSION_REPLIES.encode(await self._service.open_sessions(requests))

        return await _answer(context, self._metrics, work)

    async def _upload(self, requests: AsyncIterator[bytes], context: _Context, budget: ByteBudget) -> None:
        """Take batches, the next while earlier ones are under way, and answer each after its commit, in order."""

        async def deliver(answer: Awaitable[bytes]) -> None:
            await context.write(await _answer(context, self._metrics, lambda: answer))

        take = partial(self._take, budget)
        await in_order(requests, take, deliver, BATCHES_IN_FLIGHT, self._callers.limits.idle_s)

    async def _take(self, budget: ByteBudget, request: bytes) -> bytes:
        if not budget.take(len(request)):
            return write_replies(self._service.refuse_busy(read_instalments(request)))
        try:
            return write_replies(await self._service.take(read_instalments(request)))
        finally:
            budget.give_back(len(request))

    async def _get_release(self, request: bytes, context: _Context) -> bytes:
        """A task's state or record."""

        async def work() -> bytes:
            return RELEASE_ANSWER.encode(await self._service.release(RELEASE_QUERY.decode(request)))

        return await _answer(context, self._metrics, work)


class PeerShell:
    """PeerService over gRPC. `identify` turns a call's context into the aggregator that makes it."""

    def __init__(self, helper: Helper, metrics: Metrics, identify: Callable[[_Context], AggregatorId]) -> None:
        self._helper = helper
        self._metrics = metrics
        self._identify = identify

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of peer.proto."""
        helper = self._helper
        methods = {
            "InstallTask": self._method(INSTALL_TASK, helper.install_task, INSTALL_ANSWER),
            "InstallSeries": self._method(INSTALL_SERIES, helper.install_series, INSTALL_SERIES_ANSWER),
            "DeliverOrder": self._method(DELIVER_ORDER, helper.deliver_order, DELIVER_ORDER_ANSWER),
            "ProposeBatch": self._method(BATCH_PROPOSAL, helper.propose_batch, BATCH_REPLY),
            "FinishBatch": self._method(FINISH_BATCH, helper.finish_batch, BATCH_DECISION),
            "SealSet": grpc.stream_unary_rpc_method_handler(self._seal_set),
            "Commit": self._method(COMMIT_QUERY, helper.commit, COMMITMENT),
            "Open": self._method(OPEN_QUERY, helper.open_share, NOISED_SHARE),
            "SignRecord": self._method(RECORD_PROPOSAL, helper.sign_record, RECORD_SIGNATURE),
            "DeliverRecord": self._method(FINISHED_RECORD, helper.deliver_record, DELIVER_ANSWER),
            "Abort": self._method(ABORT_TASK, helper.abort, ABORT_ANSWER),
            "GetStatus": self._method(STATUS_QUERY, lambda caller, task_id: helper.status(task_id, caller), STATUS),
        }
        return grpc.method_handlers_generic_handler(PEER_SERVICE, methods)

    def _method(
        self,
        decoder: WireMessage[Any, Any],
        handler: Callable[[AggregatorId, Any], Awaitable[Any]],
        encoder: WireMessage[Any, Any],
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def call(request: bytes, context: _Context) -> bytes:
            async def work() -> bytes:
                caller = self._identify(context)
                return encoder.encode(await handler(caller, decoder.decode(request)))

            return await _answer(context, self._metrics, work)

        return grpc.unary_unary_rpc_method_handler(call)

    async def _seal_set(self, requests: AsyncIterator[bytes], context: _Context) -> bytes:
        """The one call with a stream of chunks: a set may be larger than a message."""

        async def work() -> bytes:
            caller = self._identify(context)
            chunks = await _gather_chunks(requests)
            return SET_AGREED.encode(await self._helper.seal_set(caller, join_seal_set(chunks)))

        return await _answer(context, self._metrics, work)


_MOST_CHUNKS: Final = MAX_REPORTS_PER_TASK // MAX_IDS_PER_CHUNK + 1
_CHUNK_BYTES: Final = MAX_IDS_PER_CHUNK * (ReportId.SIZE + 2) + 1_024
"""A full chunk; were each as long as a message may be, a stream of them would fill 3 GiB before it is looked at."""


async def _gather_chunks(stream: AsyncIterator[bytes]) -> list[peer_pb.SealSetRequest]:
    chunks: list[peer_pb.SealSetRequest] = []
    async for data in stream:
        if len(data) > _CHUNK_BYTES:
            raise DecodeError(f"a chunk of a set has {len(data)} bytes, more than {_CHUNK_BYTES}")
        try:
            chunks.append(peer_pb.SealSetRequest.FromString(data))
        except ProtobufError as error:
            raise DecodeError("a chunk of a set is no protobuf message") from error
        if len(chunks) > _MOST_CHUNKS:
            raise DecodeError("a set of too many chunks")
    return chunks


_PEERS: Final = frozenset({Purpose.AGGREGATOR})


def certified_peer(
    known: Iterable[AggregatorId], denies: Callable[[bytes], bool] = lambda _: False
) -> Callable[[_Context], AggregatorId]:
    """Return the function that names a caller: exactly one known id among the names of its TLS certificate.

    The certificate must be an aggregator's, still valid, and its public key none that `denies` is true of.
    """
    ids = frozenset(known)

    def identify(context: _Context) -> AggregatorId:
        caller = caller_of(context)
        names = context.auth_context().get("x509_subject_alternative_name", [])
        found = ids & {name.decode("ascii", "replace") for name in names}
        if len(found) != 1 or not caller.may(_PEERS, time.time()) or denies(caller.key):
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        return AggregatorId(next(iter(found)))

    return identify


def claimed_peer(known: Iterable[AggregatorId]) -> Callable[[_Context], AggregatorId]:
    """Return the same for listeners without TLS (`[grpc] insecure`, loopback only): the caller says who it is."""
    ids = frozenset(known)

    def identify(context: _Context) -> AggregatorId:
        claimed = dict(context.invocation_metadata() or ()).get(CLAIM_HEADER)
        if claimed not in ids:
            raise PeerRefusalError(PeerProblem.NOT_LEADER)
        return AggregatorId(str(claimed))

    return identify


CLAIM_HEADER: Final = "fleetcount-insecure-aggregator"


def device_server(shell: DeviceShell, concurrent_calls: int) -> grpc.aio.Server:
    """Return the server for devices, without a port yet."""
    server = grpc.aio.server(options=server_options(MAX_BATCH_BYTES), maximum_concurrent_rpcs=concurrent_calls)
    server.add_generic_rpc_handlers((shell.handlers(),))
    return server


def peer_server(shell: PeerShell) -> grpc.aio.Server:
    """Return the server for aggregators, without a port yet."""
    server = grpc.aio.server(options=server_options(MAX_PEER_MESSAGE_BYTES), maximum_concurrent_rpcs=64)
    server.add_generic_rpc_handlers((shell.handlers(),))
    return server
