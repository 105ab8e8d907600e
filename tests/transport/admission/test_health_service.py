"""The health service of gRPC at our door: one question, one word, and only for who may call at all."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.grpc_admission import ForeignError, GrpcAdmission
from fleetcount_transport.admission.health_service import health_handlers
from fleetcount_transport.admission.identity import Identity
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "fleetcount_protocol.v1.DeviceService"


class Listener:
    """A server with the health service alone; a test says whether it serves and whether callers are strangers."""

    def __init__(self) -> None:
        self.is_serving = True
        self.are_strangers = False
        self.channel: Any = None

    def name(self, _: Any) -> Identity:
        if self.are_strangers:
            raise ForeignError("certificate")
        return Identity(b"balancer")

    async def asked(self, service: str) -> str:
        """Return what a client of the standard library hears."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made, server = Listener(), grpc.aio.server()
    handlers = health_handlers(GrpcAdmission(Admission()), made.name, SERVICE, lambda: made.is_serving)
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made.channel:
        yield made
    await server.stop(0)


async def test_a_check_is_answered_as_things_are_when_it_comes(listener: Listener) -> None:
    assert [await listener.asked(name) for name in ("", SERVICE)] == ["SERVING"] * 2
    listener.is_serving = False
    assert [await listener.asked(name) for name in ("", SERVICE)] == ["NOT_SERVING"] * 2


async def test_another_service_is_unknown_and_a_stranger_is_told_nothing(listener: Listener) -> None:
    assert await listener.asked("fleetcount_protocol.v1.PeerService") == "NOT_FOUND unknown_service"
    listener.are_strangers = True
    assert await listener.asked("") == "PERMISSION_DENIED certificate"


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x00", b"\x10\x01", b"\x0a\x80\x02" + bytes(256)])
async def test_what_is_not_exactly_a_question_is_malformed(listener: Listener, data: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await listener.channel.unary_unary("/grpc.health.v1.Health/Check")(data, timeout=5)

    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed")


async def test_a_watch_is_not_there(listener: Listener) -> None:
    stub: Any = health_pb2_grpc.HealthStub(listener.channel)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(stub.Watch(health_pb2.HealthCheckRequest(), timeout=5)))

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
