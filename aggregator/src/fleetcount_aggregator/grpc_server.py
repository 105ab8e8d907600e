"""The two gRPC listeners: devices on one, aggregators on the other, each with its own authority.

Thin shells: decode, call, encode. Who is calling comes from the peer certificate alone; what went wrong here is never
told to the other side beyond a word of a closed list.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import grpc
from fleetcount_protocol.codec import (
    INSTALMENT_REPLIES,
    INSTALMENTS,
    RELEASE_ANSWER,
    RELEASE_QUERY,
    SESSION_REPLIES,
    SESSION_REQUESTS,
    TASK_LIST,
    TASK_LIST_QUERY,
)
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_PEER_MESSAGE_BYTES
from fleetcount_protocol.peer_codec import (
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
from fleetcount_protocol.v1 import device_pb2 as device_pb
from fleetcount_protocol.v1 import peer_pb2 as peer_pb
from fleetcount_protocol.v1.device_pb2_grpc import DeviceServiceServicer, add_DeviceServiceServicer_to_server
from fleetcount_protocol.v1.peer_pb2_grpc import PeerServiceServicer, add_PeerServiceServicer_to_server
from fleetcount_protocol.wire import WireMessage

from fleetcount_aggregator.device_service import DeviceService, UnknownTaskError
from fleetcount_aggregator.helper import Helper
from fleetcount_aggregator.logs import log
from fleetcount_aggregator.metrics import Metrics
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError
from fleetcount_aggregator.store import StoreError

__all__ = ["DeviceShell", "PeerShell", "device_server", "peer_server"]

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
Request = TypeVar("Request")
Response = TypeVar("Response")
_HEADROOM_BYTES: Final = 4096

_CODES: Final = {
    PeerProblem.NOT_YET: grpc.StatusCode.FAILED_PRECONDITION,
    PeerProblem.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PeerProblem.UNKNOWN_TASK: grpc.StatusCode.NOT_FOUND,
    PeerProblem.NOT_LEADER: grpc.StatusCode.PERMISSION_DENIED,
    PeerProblem.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Every other problem travels as ABORTED; the word itself is in the details."""


def _options(largest_message: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", largest_message + _HEADROOM_BYTES),
        ("grpc.max_send_message_length", MAX_PEER_MESSAGE_BYTES + _HEADROOM_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 256),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.default_compression_algorithm", 0),
        ("grpc.max_metadata_size", 16 * 1024),
    ]


async def _answer(context: _Context, metrics: Metrics, work: Callable[[], Awaitable[Response]]) -> Response:
    """Run one call; every error becomes a status with a word of a closed list.

    This is the top of an RPC: what nobody expected is logged by its type and hidden from the peer.
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


class DeviceShell(DeviceServiceServicer):
    """DeviceService over gRPC."""

    def __init__(self, service: DeviceService, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics

    async def ListTasks(self, request: device_pb.ListTasksRequest, context: _Context) -> device_pb.ListTasksResponse:  # noqa: N802 - gRPC's name.
        """Every task that takes reports."""

        async def work() -> device_pb.ListTasksResponse:
            deployment = TASK_LIST_QUERY.from_pb(request)
            return TASK_LIST.to_pb(await self._service.tasks(deployment))

        return await _answer(context, self._metrics, work)

    async def OpenSessions(  # noqa: N802 - gRPC's name.
        self, request: device_pb.OpenSessionsRequest, context: _Context
    ) -> device_pb.OpenSessionsResponse:
        """Open sessions."""

        async def work() -> device_pb.OpenSessionsResponse:
            requests = SESSION_REQUESTS.from_pb(request)
            return SESSION_REPLIES.to_pb(await self._service.open_sessions(requests))

        return await _answer(context, self._metrics, work)

    async def Upload(  # noqa: N802 - gRPC's name.
        self, request_iterator: AsyncIterator[device_pb.UploadRequest], context: _Context
    ) -> AsyncIterator[device_pb.UploadResponse]:
        """Take batches and answer each after its commit, in order."""
        async for request in request_iterator:
            yield await _answer(context, self._metrics, lambda request=request: self._upload(request))  # type: ignore[misc]  # the default binds this round's request.

    async def _upload(self, request: device_pb.UploadRequest) -> device_pb.UploadResponse:
        instalments = INSTALMENTS.from_pb(request)
        return INSTALMENT_REPLIES.to_pb(await self._service.upload(instalments))

    async def GetRelease(  # noqa: N802 - gRPC's name.
        self, request: device_pb.GetReleaseRequest, context: _Context
    ) -> device_pb.GetReleaseResponse:
        """A task's state or record."""

        async def work() -> device_pb.GetReleaseResponse:
            return RELEASE_ANSWER.to_pb(await self._service.release(RELEASE_QUERY.from_pb(request)))

        return await _answer(context, self._metrics, work)


class PeerShell(PeerServiceServicer):
    """PeerService over gRPC. `identify` turns a call's context into the aggregator that makes it."""

    def __init__(self, helper: Helper, metrics: Metrics, identify: Callable[[_Context], AggregatorId]) -> None:
        self._helper = helper
        self._metrics = metrics
        self._identify = identify

    async def _call(
        self,
        request: Any,
        context: _Context,
        decoder: WireMessage[Any, Any],
        handler: Callable[[AggregatorId, Any], Awaitable[Any]],
        encoder: WireMessage[Any, Any],
    ) -> Any:
        async def work() -> Any:
            caller = self._identify(context)
            return encoder.to_pb(await handler(caller, decoder.from_pb(request)))

        return await _answer(context, self._metrics, work)

    async def InstallTask(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, INSTALL_TASK, self._helper.install_task, INSTALL_ANSWER)

    async def ProposeBatch(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, BATCH_PROPOSAL, self._helper.propose_batch, BATCH_REPLY)

    async def FinishBatch(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, FINISH_BATCH, self._helper.finish_batch, BATCH_DECISION)

    async def SealSet(self, request_iterator: Any, context: _Context) -> peer_pb.SealSetResponse:  # noqa: N802 - gRPC's name.
        """See peer.proto."""

        async def work() -> peer_pb.SealSetResponse:
            caller = self._identify(context)
            chunks = await _gather_chunks(request_iterator)
            return SET_AGREED.to_pb(await self._helper.seal_set(caller, join_seal_set(chunks)))

        return await _answer(context, self._metrics, work)

    async def Commit(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, COMMIT_QUERY, self._helper.commit, COMMITMENT)

    async def Open(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, OPEN_QUERY, self._helper.open_share, NOISED_SHARE)

    async def SignRecord(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, RECORD_PROPOSAL, self._helper.sign_record, RECORD_SIGNATURE)

    async def DeliverRecord(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, FINISHED_RECORD, self._helper.deliver_record, DELIVER_ANSWER)

    async def Abort(self, request: Any, context: _Context) -> Any:  # noqa: N802 - gRPC's name.
        """See peer.proto."""
        return await self._call(request, context, ABORT_TASK, self._helper.abort, ABORT_ANSWER)

    async def GetStatus(self, request: Any, context: _Context) -> peer_pb.GetStatusResponse:  # noqa: N802 - gRPC's name.
        """See peer.proto."""

        async def work() -> peer_pb.GetStatusResponse:
            self._identify(context)
            return STATUS.to_pb(await self._helper.status(STATUS_QUERY.from_pb(request)))

        return await _answer(context, self._metrics, work)


_MOST_CHUNKS: Final = 2**24 // 16_384 + 1


async def _gather_chunks(stream: AsyncIterator[peer_pb.SealSetRequest]) -> list[peer_pb.SealSetRequest]:
    chunks: list[peer_pb.SealSetRequest] = []
    async for chunk in stream:
        chunks.append(chunk)
        if len(chunks) > _MOST_CHUNKS:
            raise DecodeError("a set of too many chunks")
    return chunks


def certified_peer(known: Iterable[AggregatorId]) -> Callable[[_Context], AggregatorId]:
    """Return the function that names a caller: exactly one known id among the names of its TLS certificate."""
    ids = frozenset(known)

    def identify(context: _Context) -> AggregatorId:
        names = context.auth_context().get("x509_subject_alternative_name", [])
        found = ids & {name.decode("ascii", "replace") for name in names}
        if len(found) != 1:
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
    server = grpc.aio.server(options=_options(MAX_BATCH_BYTES), maximum_concurrent_rpcs=concurrent_calls)
    add_DeviceServiceServicer_to_server(shell, server)
    return server


def peer_server(shell: PeerShell) -> grpc.aio.Server:
    """Return the server for aggregators, without a port yet."""
    server = grpc.aio.server(options=_options(MAX_PEER_MESSAGE_BYTES), maximum_concurrent_rpcs=64)
    add_PeerServiceServicer_to_server(shell, server)
    return server
