"""The aggregators of a test deployment behind a real gRPC server and a real MQTT broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import grpc
from amqtt.broker import Broker
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.messages import QuestionList
from fleetcount_protocol.wire.device import (
    RELEASE_ANSWER,
    RELEASE_QUERY,
    SESSION_REPLY,
    SESSION_REQUEST,
)
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, UploadAnswer
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY, QUESTION_OFFER
from fleetcount_protocol.wire.topics import (
    TopicKind,
    parse_topic,
    question_topic,
    receipt_topic,
    release_topic,
    report_filters,
    session_filters,
    session_reply_topic,
)
from fleetcount_simulator.network.ports import free_ports
from fleetcount_transport.key_files import TlsFiles

from tests.client.deployment import Deployment
from tests.support.pem import pem_pair

_SERVICE = "fleetcount_protocol.v1.DeviceService"


def tls_files(authority: CertificateAuthority, identity: DeviceIdentity) -> TlsFiles:
    """Return what a device needs to call aggregators under an authority."""
    key, certificate = pem_pair(identity)
    return TlsFiles(
        authorities=authority.certificate.public_bytes(Encoding.PEM), certificate=certificate, private_key=key
    )


class GrpcShell:
    """One aggregator of the deployment behind gRPC: decodes, asks the intake, encodes."""

    def __init__(self, world: Deployment, name: str) -> None:
        self.world = world
        self.name = name
        self.calls = 0
        self.streams = 0
        self.listed = 1
        """How many questions one list has: several lists are asked for."""

    async def list_questions(self, request: bytes, context: Any) -> bytes:
        query = QUESTION_LIST_QUERY.decode(request)
        assert (query.aggregator_id, query.deployment) == (self.name, "test")
        offers = {one.signed.question.question_id: one for one in self.world.offers}
        above = [question_id for question_id in sorted(offers) if query.after is None or question_id > query.after]
        listed = tuple(offers[question_id] for question_id in above[: self.listed])
        return QUESTION_LIST.encode(QuestionList(offers=listed, more=len(above) > self.listed))

    async def release(self, request: bytes, context: Any) -> bytes:
        query = RELEASE_QUERY.decode(request)
        window_id = query.window_id
        assert query.aggregator_id == self.name
        if window_id not in self.world.releases:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown window")
        return RELEASE_ANSWER.encode(self.world.releases[window_id])

    async def answer(self, stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        intake = self.world.intakes[self.name]  # type: ignore[index]
        self.streams += 1
        async for data in stream:
            message = DEVICE_MESSAGE.decode(data)
            if message.upload is None:
                yield AGGREGATOR_MESSAGE.encode(
                    AggregatorMessage(replies=tuple(map(intake.open_session, message.requests)))
                )
                continue
            self.calls += 1
            assert message.upload.aggregator_id == self.name
            replies = [intake.take(self.world.windows()[one.window_id], one) for one in message.upload.instalments()]
            yield AGGREGATOR_MESSAGE.encode(AggregatorMessage(upload=UploadAnswer.of(replies)))

    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "ListQuestions": grpc.unary_unary_rpc_method_handler(self.list_questions),
            "GetRelease": grpc.unary_unary_rpc_method_handler(self.release),
            "Answer": grpc.stream_stream_rpc_method_handler(self.answer),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)


@asynccontextmanager
async def grpc_servers(world: Deployment, authority: CertificateAuthority) -> AsyncIterator[None]:
    """Run every aggregator behind mutual TLS; what is offered from then on names their ports."""
    servers, described = [], []
    for one in world.described:
        name = one.aggregator_id
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((GrpcShell(world, name).handlers(),))
        credentials = grpc.ssl_server_credentials(
            [pem_pair(authority.issue_aggregator(name, ["127.0.0.1"]))],
            root_certificates=world.authority.certificate.public_bytes(Encoding.PEM),
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        described.append(replace(one, grpc_endpoint=f"127.0.0.1:{port}"))
        await server.start()
        servers.append(server)
    world.described = tuple(described)
    try:
        yield
    finally:
        for server in servers:
            await server.stop(None)


def free_port() -> int:
    """Return a port of this machine that nothing listens on, and nobody else is given."""
    return free_ports("127.0.0.1", 1)[0]


@asynccontextmanager
async def mqtt_broker(port: int, certificate: Path | None = None, key: Path | None = None) -> AsyncIterator[None]:
    """Run an MQTT 3.1.1 broker in this process, with a certificate over TLS."""
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listener: dict[str, Any] = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
    if certificate is not None:
        listener |= {"ssl": True, "certfile": str(certificate), "keyfile": str(key)}
    broker = Broker({"listeners": {"default": listener}, "plugins": plugins})
    await broker.start()
    try:
        yield
    finally:
        handlers = [handler for _, handler in broker._sessions.values()]
        ending = asyncio.create_task(broker.shutdown())
        while not (await asyncio.wait([ending], timeout=2))[0]:
            # A reader that has a packet in the moment in which it is cancelled goes on reading: asyncio.wait_for of
            # Python 3.11 forgets the cancellation, and the broker waits for that reader.
            for handler in handlers:
                if handler._reader_task:
                    handler._reader_task.cancel()
        await ending


@asynccontextmanager
async def mqtt_aggregators(world: Deployment, port: int) -> AsyncIterator[None]:
    """Run every aggregator of the deployment as an MQTT client."""
    ready = asyncio.Event()
    runner = asyncio.create_task(_serve_mqtt(world, port, ready))
    await ready.wait()
    try:
        yield
    finally:
        runner.cancel()
        with suppress(asyncio.CancelledError):
            await runner


async def _serve_mqtt(world: Deployment, port: int, ready: asyncio.Event) -> None:
    async with aiomqtt.Client("127.0.0.1", port, identifier="aggregators") as client:
        for window in world.windows().values():
            for one in window.aggregators:
                for topic in report_filters("test", one.aggregator_id, window.window_id):
                    await client.subscribe(topic, qos=1)
        for offer in world.offers:
            for described in world.described:
                topic = question_topic("test", described.aggregator_id, offer.signed.question.question_id)
                await client.publish(topic, QUESTION_OFFER.encode(offer), qos=1, retain=True)
        for window_id, answer in world.releases.items():
            topic = release_topic("test", world.described[0].aggregator_id, window_id)
            await client.publish(topic, RELEASE_ANSWER.encode(answer), qos=1, retain=True)
        for name in world.intakes:
            for topic in session_filters("test", name):
                await client.subscribe(topic, qos=1)
        ready.set()
        async for message in client.messages:
            topic, payload = _answer(world, str(message.topic), message.payload)
            await client.publish(topic, payload, qos=1)


def _answer(world: Deployment, topic: str, payload: bytes) -> tuple[str, bytes]:
    asked = parse_topic(topic)
    assert asked.user is not None
    intake, address = world.intakes[asked.aggregator_id], ("test", asked.aggregator_id, asked.user)
    if asked.kind is TopicKind.SESSION:
        request = SESSION_REQUEST.decode(payload)
        return session_reply_topic(*address, request.session_id), SESSION_REPLY.encode(intake.open_session(request))
    [instalment] = UPLOAD.decode(payload).instalments()
    reply = intake.take(world.windows()[asked.subject], instalment)
    return receipt_topic(*address, instalment.session_id), UPLOAD_ANSWER.encode(UploadAnswer.of([reply]))


def write_private(path: Path, content: bytes) -> Path:
    """Write a file of mode 0600."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
