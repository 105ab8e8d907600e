"""The relay towards devices: DeviceService, each call for the aggregator that its request names.

It checks the canonical form of a request and reads which aggregator it is for; it cannot read what is sealed. It has no
session, makes no receipt and stores nothing.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import DecodeError, PeerError, PeerProblem, RejectReason
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import SessionRequest
from fleetcount_protocol.wire.call_metadata import RETRY_TRAILER
from fleetcount_protocol.wire.device import RELEASE_QUERY
from fleetcount_protocol.wire.device_columns import InstalmentReplyColumns, UploadAnswer
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY
from fleetcount_transport.admission.admission import Admission, BusyError
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import GrpcAdmission, certified
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.health_service import health_handlers
from fleetcount_transport.logs import log

from fleetcount_relay.carried import Carried
from fleetcount_relay.forwarding import Forwarder, UpstreamError
from fleetcount_relay.metrics import RelayMetrics

_SERVICE: Final = "fleetcount_protocol.v1.DeviceService"
_DEVICES: Final = frozenset({Purpose.DEVICE})
_READERS: Final = _DEVICES | {Purpose.READER}
_UNARY: Final = {
    "ListQuestions": _READERS,
    "GetRelease": _READERS,
}
"""The certificates that may make each call: the aggregator sees the relay's certificate only, so the relay checks."""
_PASSED_ON: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: PeerProblem.MALFORMED.value,
    grpc.StatusCode.NOT_FOUND: PeerProblem.UNKNOWN_WINDOW.value,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PeerProblem.BUSY.value,
}
"""The statuses of an aggregator that are passed on; every other one becomes "busy"."""


class UnknownAggregatorError(PeerError):
    """A request names an aggregator that is not behind this relay."""


def _target_of_sessions(requests: Sequence[SessionRequest]) -> AggregatorId:
    named = {one.aggregator_id for one in requests}
    if len(named) != 1:
        raise DecodeError(f"session requests name {len(named)} aggregators, allowed: one")
    return named.pop()


_TARGETS: Final[Mapping[str, Callable[[bytes], AggregatorId]]] = {
    "ListQuestions": lambda query: QUESTION_LIST_QUERY.decode(query).aggregator_id,
    "GetRelease": lambda query: RELEASE_QUERY.decode(query).aggregator_id,
}
"""By method, the function that reads the aggregator that a request names."""


class RelayShell:
    """DeviceService over gRPC in front of aggregators, by their ids; `admission` limits what waits for answers."""

    def __init__(
        self,
        forwarders: Mapping[str, Forwarder],
        metrics: RelayMetrics,
        admission: Admission | None = None,
        denies: Callable[[bytes], bool] = lambda _: False,
        front: HandshakeGate | None = None,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self._forwarders = forwarders
        self._metrics = metrics
        self._denies = denies
        self.grpc_admission = GrpcAdmission(admission or Admission(), front)
        self._naming_key = os.urandom(32)
        self._is_serving = is_serving
        self._carried = Carried()

    def health(self) -> grpc.GenericRpcHandler:
        """Return the relay's own health service; health calls are not passed on."""
        return health_handlers(self.grpc_admission, certified(_READERS, self._denies), _SERVICE, self._is_serving)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service's methods, by the names of device.proto."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: self.grpc_admission.unary(partial(self._ask, name), certified(purposes, self._denies))
            for name, purposes in _UNARY.items()
        }
        methods["Answer"] = self.grpc_admission.messages(self._take, self._tell, certified(_DEVICES, self._denies))
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    def _forwarder(self, aggregator_id: AggregatorId) -> Forwarder:
        found = self._forwarders.get(aggregator_id)
        if found is None:
            raise UnknownAggregatorError(f"no aggregator {aggregator_id} behind this relay")
        return found

    async def _ask(self, method: str, query: bytes, call: Call) -> bytes:
        """Pass a single call on to the aggregator that it names, and its answer back unread."""

        async def work() -> bytes:
            return await self._forwarder(_TARGETS[method](query)).ask(method, query)

        return await self._tell(work(), call)

    def _name(self, call: Call) -> str:
        """Return a pseudonym of a caller, constant while this relay runs; only its key links it to the certificate."""
        return hmac.digest(self._naming_key, call.who.key, "sha256")[:16].hex()

    async def _take(self, request: bytes, call: Call) -> bytes:
        """Pass a message on and return its answer: session requests as a call of their own, unread, under a name for
        the device; uploads mixed with those of other devices.
        """
        message = DEVICE_MESSAGE.decode(request)
        if message.upload is None:
            with call.hold(len(request)):
                return await self._forwarder(_target_of_sessions(message.requests)).ask(
                    "Answer", request, self._name(call)
                )
        forwarder = self._forwarder(message.upload.aggregator_id)
        try:
            with call.hold(len(request)), self._metrics.in_memory(len(request)):
                answers = await forwarder.send(message.upload.runs)
        except BusyError:
            answers = [InstalmentReplyColumns.refused(run, RejectReason.BUSY) for run in message.upload.runs]
        else:
            for run in message.upload.runs:
                self._carried.note(run.window_id, forwarder.aggregator_id)
        return AGGREGATOR_MESSAGE.encode(AggregatorMessage(upload=UploadAnswer(runs=tuple(answers))))

    async def _tell(self, answer: Awaitable[bytes], call: Call) -> bytes:
        """Return an answer; an error becomes a status with a word of a closed list.

        This is the top of an RPC: an unexpected error is logged by its type and hidden from the device.
        """
        abort = call.context.abort
        try:
            return await answer
        except DecodeError:
            self._metrics.malformed()
            await abort(grpc.StatusCode.INVALID_ARGUMENT, PeerProblem.MALFORMED.value)
        except UnknownAggregatorError:
            await abort(grpc.StatusCode.NOT_FOUND, PeerProblem.UNKNOWN_AGGREGATOR.value)
        except UpstreamError:
            await abort(grpc.StatusCode.UNAVAILABLE, PeerProblem.BUSY.value)
        except grpc.aio.AioRpcError as error:
            word = _PASSED_ON.get(error.code())
            code = grpc.StatusCode.UNAVAILABLE if word is None else error.code()
            hint = [(key, value) for key, value in error.trailing_metadata() or () if key == RETRY_TRAILER]
            await abort(code, word or PeerProblem.BUSY.value, tuple(hint))
        except BusyError:
            raise
        except Exception as error:
            log.error("call_failed", error=type(error).__name__)
            await abort(grpc.StatusCode.INTERNAL, "internal")
        raise AssertionError("context.abort always raises")
