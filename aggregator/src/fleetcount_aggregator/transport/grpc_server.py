"""The two gRPC listeners: devices on one, aggregators on the other, each with its own authority.

Thin shells: decode, call, encode. Messages arrive as bytes: the strict codec reads them, not the RPC library. The
caller is named by its peer certificate alone; an error is told to the other side as one word of a closed list, and
nothing more.
"""

import time
from asyncio import timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import grpc
from cryptography import x509
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import DecodeError, PeerProblem
from fleetcount_protocol.ids import AggregatorId, ReportId
from fleetcount_protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_IDS_PER_CHUNK,
    MAX_PEER_MESSAGE_BYTES,
)
from fleetcount_protocol.messages import SealSet
from fleetcount_protocol.v1 import peer_pb2 as peer_pb
from fleetcount_protocol.wire.call_metadata import GREETING_HEADER
from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage, DeviceMessage
from fleetcount_protocol.wire.peer import SET_ANSWER, SealSetChunks
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY
from fleetcount_transport.admission.admission import Admission, BusyError
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import ForeignError, GrpcAdmission, Name, certified
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.health_service import health_handlers
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.callers import caller_of, issued_by
from fleetcount_transport.channels import DEVICE_OPTIONS
from fleetcount_transport.listening import grpc_server
from fleetcount_transport.logs import log
from fleetcount_transport.pipelining import IdleStreamError
from google.protobuf.message import DecodeError as ProtobufError

from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.intake.device_service import DeviceService, UnknownWindowError
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.transport import peer_calls as calls
from fleetcount_aggregator.transport.peer_calls import AnswerT, RequestT

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""
Response = TypeVar("Response")
_DEVICE_SERVICE: Final = "fleetcount_protocol.v1.DeviceService"

_CODES: Final = {
    PeerProblem.NOT_YET: grpc.StatusCode.FAILED_PRECONDITION,
    PeerProblem.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PeerProblem.UNKNOWN_WINDOW: grpc.StatusCode.NOT_FOUND,
    PeerProblem.UNKNOWN_AGGREGATOR: grpc.StatusCode.NOT_FOUND,
    PeerProblem.NOT_LEADER: grpc.StatusCode.PERMISSION_DENIED,
    PeerProblem.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Every other problem travels as ABORTED; the word itself is in the details."""


_REPORTING: Final = frozenset({Purpose.DEVICE, Purpose.RELAY})
_READING: Final = _REPORTING | {Purpose.READER, Purpose.AGGREGATOR}
"""Whose calls the device port takes: a reader and an aggregator's operator read what is public, and report nothing."""


async def answer_call(call: Call, metrics: Metrics, work: Callable[[], Awaitable[Response]]) -> Response:
    """Run one call; every error becomes a status with a word of a closed list.

    This is the top of an RPC: an unexpected error is logged by its type and hidden from the peer.
    """
    context = call.context
    try:
        return await work()
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PeerProblem.MALFORMED.value)
    except (IdleStreamError, BusyError):
        raise
    except UnknownWindowError:
        await context.abort(grpc.StatusCode.NOT_FOUND, PeerProblem.UNKNOWN_WINDOW.value)
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
    """DeviceService over gRPC. Beyond the bytes that `admission` allows, instalments are refused as busy.

    The purpose of the caller's certificate decides what it may call. It does not identify a report's device: the
    signature of the session does, so that a relay may carry what it cannot read. `denies` is true of public keys that
    are shut out; connections come in by `front`; `is_serving` is what the health service says, `now` the time by which
    certificates end, Unix seconds.
    """

    def __init__(
        self,
        service: DeviceService,
        metrics: Metrics,
        admission: Admission | None = None,
        denies: Callable[[bytes], bool] = lambda _: False,
        front: HandshakeGate | None = None,
        is_serving: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._now = now
        self._is_serving = is_serving
        self._metrics = metrics
        self.grpc_admission = GrpcAdmission(admission or Admission(), front)
        self._denies = denies

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of device.proto."""
        reading = certified(_READING, self._denies, self._now)
        reporting = certified(_REPORTING, self._denies, self._now)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ListQuestions": self.grpc_admission.unary(self._list_questions, reading),
            "Answer": self.grpc_admission.messages(self._take, self._tell, reporting, unknown_alone=True),
            "GetRelease": self.grpc_admission.unary(self._get_release, reading),
        }
        return grpc.method_handlers_generic_handler(_DEVICE_SERVICE, methods)

    def health(self) -> grpc.GenericRpcHandler:
        """Return the health service of this listener."""
        return health_handlers(
            self.grpc_admission, certified(_READING, self._denies, self._now), _DEVICE_SERVICE, self._is_serving
        )

    async def _list_questions(self, request: bytes, call: Call) -> bytes:
        """Every question that is not over."""

        async def work() -> bytes:
            return QUESTION_LIST.encode(self._service.questions(QUESTION_LIST_QUERY.decode(request)))

        return await answer_call(call, self._metrics, work)

    async def _take(self, request: bytes, call: Call) -> bytes:
        """Open sessions, or take instalments; instalments beyond the caller's share of bytes are refused as busy."""
        try:
            with call.hold(len(request)):
                answer = await self._answer(DEVICE_MESSAGE.decode(request), call.who)
        except BusyError:
            upload = DEVICE_MESSAGE.decode(request).upload
            if upload is None:
                raise
            answer = AggregatorMessage(upload=self._service.refuse_busy(upload))
        return AGGREGATOR_MESSAGE.encode(answer)

    async def _answer(self, message: DeviceMessage, who: Identity) -> AggregatorMessage:
        if message.upload is None:
            callers = [who] * len(message.requests)
            return AggregatorMessage(replies=await self._service.open_sessions(message.requests, callers))
        answer = await self._service.take(message.upload)
        if not self.grpc_admission.admission.knows(who) and any(0 in one.reasons for one in answer.runs):
            self.grpc_admission.admission.held(who)  # It brought what was sealed under a session.
        return AggregatorMessage(upload=answer)

    async def _tell(self, answer: Awaitable[bytes], call: Call) -> bytes:
        return await answer_call(call, self._metrics, lambda: answer)

    async def _get_release(self, request: bytes, call: Call) -> bytes:
        """A window's state or record."""

        async def work() -> bytes:
            query = RELEASE_QUERY.decode(request)
            self._service.check_own(query.aggregator_id)
            return RELEASE_ANSWER.encode(await self._service.release(query.window_id))

        return await answer_call(call, self._metrics, work)


class PeerShell:
    """PeerService over gRPC. `identify` names the aggregator that makes a call, before any message of it is read."""

    def __init__(
        self,
        helper: Helper,
        metrics: Metrics,
        identify: Name,
        admission: Admission | None = None,
        front: HandshakeGate | None = None,
    ) -> None:
        self._helper = helper
        self._metrics = metrics
        self._identify = identify
        admission = admission or Admission()
        # A leader verifies many batches at once, each of which takes seconds.
        self.grpc_admission = GrpcAdmission(admission, front, at_once=admission.limits.calls_each)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of peer.proto."""
        helper = self._helper
        methods = dict(
            [
                self._method(calls.INSTALL_QUESTION, helper.install_question, first=self._prove),
                self._method(calls.DELIVER_ORDER, helper.deliver_order),
                self._method(calls.PROPOSE_BATCH, helper.propose_batch),
                self._method(calls.FINISH_BATCH, helper.finish_batch),
                (calls.SEAL_SET, self.grpc_admission.stream(self._seal_set, self._identify)),
                self._method(calls.COMMIT, helper.commit),
                self._method(calls.OPEN_SHARE, helper.open_share),
                self._method(calls.SIGN_RECORD, helper.sign_record),
                self._method(calls.DELIVER_RECORD, helper.deliver_record),
                self._method(calls.ABORT, helper.abort),
                self._method(calls.OUTCOME, helper.outcome),
                self._method(calls.SHARED, helper.shared),
                self._method(calls.SHARED_QUESTION, helper.shared_question, of_proven=True),
                self._method(calls.STATUS, lambda caller, window_id: helper.status(window_id, caller)),
            ]
        )
        return grpc.method_handlers_generic_handler(calls.PEER_SERVICE, methods)

    def _method(
        self,
        asked: calls.PeerCall[RequestT, AnswerT],
        handler: Callable[[AggregatorId, RequestT], Awaitable[AnswerT]],
        *,
        first: Callable[[Call], Awaitable[None]] | None = None,
        of_proven: bool = False,
    ) -> "tuple[str, grpc.RpcMethodHandler[Any, Any]]":
        """Return a call's name and handler; `of_proven` callers have a greeting, since the answer has a secret."""

        async def answer(request: bytes, call: Call) -> bytes:
            async def work() -> bytes:
                if of_proven and not _greeting_of(call):
                    raise PeerRefusalError(PeerProblem.NOT_LEADER)
                await self._meet(call)
                return asked.answer.encode(await handler(_peer(call), asked.request.decode(request)))

            return await answer_call(call, self._metrics, work)

        return asked.name, self.grpc_admission.unary(answer, self._identify, first=first)

    async def _prove(self, call: Call) -> None:
        """Greet before the message is read: the caller sends it once it knows who this is."""
        if said := _greeting_of(call):
            own = self._helper.greetings.say(_peer(call), _tls_key(call), said)
            await call.context.send_initial_metadata(((GREETING_HEADER, own),))

    async def _meet(self, call: Call) -> None:
        """Hear who calls, before its message is decoded, and greet it with whatever the answer will be."""
        greetings, caller = self._helper.greetings, _peer(call)
        said, tls_key = _greeting_of(call), _tls_key(call)
        try:
            await greetings.hear_call(caller, said, tls_key)
            self.grpc_admission.admission.held(call.who)  # One of the configured peers, by its certificate.
        finally:
            if own := greetings.say(caller, tls_key, said):
                call.context.set_trailing_metadata(((GREETING_HEADER, own),))

    async def _seal_set(self, requests: AsyncIterator[bytes], call: Call) -> None:
        async def work() -> bytes:
            await self._meet(call)
            try:
                async with timeout(_SET_WAITS * call.idle_s):
                    sealing = await self._gather(requests, call)
            except TimeoutError:
                raise IdleStreamError from None
            return SET_ANSWER.encode(await self._helper.seal_set(_peer(call), sealing))

        await call.write(await answer_call(call, self._metrics, work))

    async def _gather(self, requests: AsyncIterator[bytes], call: Call) -> SealSet:
        """Read a set: the first chunk says whose it is, and nothing more is read before it is known who leads."""
        chunks = SealSetChunks()
        window_id = chunks.add(await _chunk(requests, call))
        async with self._helper.sealing(_peer(call), window_id) as most:
            if chunks.following > most:
                raise PeerRefusalError(PeerProblem.DISAGREES)
            while not chunks.complete:
                chunks.add(await _chunk(requests, call))
            return chunks.joined()


_CHUNK_BYTES: Final = MAX_IDS_PER_CHUNK * ReportId.SIZE + 1_024
"""A full chunk; a message may be ten times as long."""
_SET_WAITS: Final = 10
"""So many times the longest pause between two chunks, a whole set may take."""


async def _chunk(requests: AsyncIterator[bytes], call: Call) -> peer_pb.SealSetRequest:
    """Return the next chunk of a set; one that the stream ends before is an empty one, which nobody takes."""
    try:
        async with timeout(call.idle_s):
            data = await anext(aiter(requests), b"")
    except TimeoutError:
        raise IdleStreamError from None
    if len(data) > _CHUNK_BYTES:
        raise DecodeError(f"a chunk of a set has {len(data)} bytes, more than {_CHUNK_BYTES}")
    try:
        return peer_pb.SealSetRequest.FromString(data)
    except ProtobufError as error:
        raise DecodeError("a chunk of a set is no protobuf message") from error


def _greeting_of(call: Call) -> bytes:
    """Return the greeting of a call, empty if it has none."""
    said = dict(call.context.invocation_metadata() or ()).get(GREETING_HEADER, b"")
    return said if isinstance(said, bytes) else b""


def _tls_key(call: Call) -> bytes:
    """Return the digest of the key that the caller has shown in TLS, empty without TLS."""
    caller = caller_of(call.context)
    return caller.key if caller.certified else b""


def _peer(call: Call) -> AggregatorId:
    return AggregatorId(call.who.key.decode())


_PEERS: Final = frozenset({Purpose.AGGREGATOR})


def certified_peer(
    authorities: Mapping[AggregatorId, Sequence[x509.Certificate]],
    denies: Callable[[bytes], bool] = lambda _: False,
    now: Callable[[], float] = time.time,
) -> Name:
    """Return the function that names a caller: exactly one known id among the names of its TLS certificate.

    `authorities` has the known ids, each with the authorities that may certify it: TLS accepts those of all peers, so
    that one under another peer's authority is refused here. The certificate must be an aggregator's, still valid at
    `now`, and its public key none that `denies` is true of.
    """
    ids, allowed = frozenset(authorities), certified(_PEERS, denies, now)

    def identify(context: _Context) -> Identity:
        names = context.auth_context().get("x509_subject_alternative_name", [])
        found = ids & {name.decode("ascii", "replace") for name in names}
        try:
            allowed(context)
        except ForeignError:
            found = frozenset()
        if len(found) != 1 or not issued_by(context, authorities[one := next(iter(found))]):
            raise ForeignError(PeerProblem.NOT_LEADER.value)
        return Identity(one.encode())

    return identify


def claimed_peer(known: Iterable[AggregatorId]) -> Name:
    """Return the same for listeners without TLS (`[grpc] insecure`, loopback only): the caller says who it is."""
    ids = frozenset(known)

    def identify(context: _Context) -> Identity:
        claimed = dict(context.invocation_metadata() or ()).get(calls.CLAIM_HEADER)
        if claimed not in ids:
            raise ForeignError(PeerProblem.NOT_LEADER.value)
        return Identity(str(claimed).encode())

    return identify


def device_server(shell: DeviceShell) -> grpc.aio.Server:
    """Return the server for devices, without a port yet."""
    limits = shell.grpc_admission.admission.limits
    server = grpc_server(shell.handlers(), MAX_BATCH_BYTES, limits.handshake_s, DEVICE_OPTIONS)
    server.add_generic_rpc_handlers((shell.health(),))
    return server


def peer_server(shell: PeerShell) -> grpc.aio.Server:
    """Return the server for aggregators, without a port yet."""
    return grpc_server(shell.handlers(), MAX_PEER_MESSAGE_BYTES, shell.grpc_admission.admission.limits.handshake_s)
