"""The standard health service of gRPC (grpc.health.v1) for load balancers: the method `Check`.

Its calls need the same admission as all others, with a certificate. `Watch` is left out, which the standard allows: an
endless stream per caller would occupy a share of `[admission] calls`.
"""

from collections.abc import Callable
from typing import Any, Final

import grpc
from fleetcount_protocol.errors import PeerProblem
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import GrpcAdmission, Name

_LARGEST_BYTES: Final = 256
_UNKNOWN: Final = "unknown_service"


def health_handlers(
    door: GrpcAdmission, name: Name, service: str, is_serving: Callable[[], bool]
) -> grpc.GenericRpcHandler:
    """Return the health service of a listener with one service; each `Check` calls `is_serving`.

    A `Check` of "" or of the service's name is answered SERVING or NOT_SERVING; of another one with NOT_FOUND.
    """

    async def check(data: bytes, call: Call) -> bytes:
        asked = _asked(data)
        if asked is None:
            await call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, PeerProblem.MALFORMED.value)
        if asked not in ("", service):
            await call.context.abort(grpc.StatusCode.NOT_FOUND, _UNKNOWN)
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if is_serving() else statuses.NOT_SERVING
        return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Check": door.unary(check, name)}
    return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)


def _asked(data: bytes) -> str | None:
    """Return the service that a request names, None for bytes that are not its canonical encoding."""
    if len(data) > _LARGEST_BYTES:
        return None
    try:
        request = health_pb2.HealthCheckRequest.FromString(data)
    except DecodeError:
        return None
    service = str(request.service)
    return service if health_pb2.HealthCheckRequest(service=service).SerializeToString() == data else None
