"""The shells around the rules: gRPC with mutual TLS, MQTT, worker processes, metrics."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import aiomqtt
import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.grpc_peers import GrpcPeer
from fleetcount_aggregator.grpc_server import (
    DeviceShell,
    PeerShell,
    _gather_chunks,
    certified_peer,
    device_server,
    peer_server,
)
from fleetcount_aggregator.metrics import Metrics
from fleetcount_aggregator.mqtt_intake import MqttIntake
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.states import State
from fleetcount_aggregator.store import StoreError
from fleetcount_aggregator.workers import ProcessWorkers
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.certificates import CertificateAuthority, Credential
from fleetcount_protocol.codec import (
    INSTALMENT,
    INSTALMENT_REPLIES,
    INSTALMENT_REPLY,
    INSTALMENTS,
    SESSION_REPLY,
    SESSION_REQUEST,
    SIGNED_TASK,
    TASK_LIST,
    TASK_LIST_QUERY,
)
from fleetcount_protocol.errors import DecodeError, MachineError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, TaskId
from fleetcount_protocol.limits import MAX_IDS_PER_CHUNK
from fleetcount_protocol.messages import AbortTask, Receipt, SealSet, SessionAccepted
from fleetcount_protocol.peer_codec import split_seal_set
from fleetcount_protocol.session import new_session
from fleetcount_protocol.topics import receipt_topic, report_topic, session_reply_topic, session_topic
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.v1.device_pb2_grpc import DeviceServiceStub

from tests.support.aggregators import START, Network, TestDevice, device_identity

ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")


def pem_pair(credential: Credential) -> tuple[bytes, bytes]:
    key = credential.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key, credential.certificate.public_bytes(Encoding.PEM)


class Listening:
    """beta's peer listener behind TLS."""

    def __init__(self) -> None:
        self.network = Network(2)
        self.authority = CertificateAuthority.create("aggregators")
        self.port = 0

    async def start(self) -> "grpc.aio.Server":
        await self.network.start_all()
        shell = PeerShell(self.network.core(1).helper, Metrics(), certified_peer([ALPHA, BETA]))
        server = peer_server(shell)
        credentials = grpc.ssl_server_credentials(
            [pem_pair(self.authority.issue_aggregator("beta", ["127.0.0.1"]))],
            root_certificates=self.authority.certificate.public_bytes(Encoding.PEM),
            require_client_auth=True,
        )
        self.port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        return server

    def peer(self, name: str, *, expects: str = "beta", authority: CertificateAuthority | None = None) -> GrpcPeer:
        key, certificate = pem_pair((authority or self.authority).issue_aggregator(name, ["127.0.0.1"]))
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.authority.certificate.public_bytes(Encoding.PEM),
            private_key=key,
            certificate_chain=certificate,
        )
        return GrpcPeer(
            AggregatorId(expects),
            f"127.0.0.1:{self.port}",
            caller=AggregatorId(name),
            timeout_s=5,
            credentials=credentials,
        )


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    here = Listening()
    server = await here.start()
    yield here
    await server.stop(0)


async def test_a_peer_is_who_its_certificate_says(listening: Listening) -> None:
    task = await listening.network.ask(values=4)
    leader, stranger = listening.peer("alpha"), listening.peer("mallory")

    status = await leader.status(task.task_id)
    with pytest.raises(PeerRefusalError) as refusal:
        await stranger.status(task.task_id)

    assert status.state is State.ANNOUNCED
    assert refusal.value.problem is PeerProblem.NOT_LEADER
    await leader.close()
    await stranger.close()


async def test_a_helper_s_certificate_does_not_lead(listening: Listening) -> None:
    task = await listening.network.ask(values=4)
    helper = listening.peer("beta")

    with pytest.raises(PeerRefusalError) as refusal:
        await helper.abort(AbortTask(task_id=task.task_id, reason="because"))

    assert refusal.value.problem is PeerProblem.NOT_LEADER
    await helper.close()


async def test_another_authority_and_another_name_do_not_connect(listening: Listening) -> None:
    foreign = listening.peer("alpha", authority=CertificateAuthority.create("others"))
    misled = listening.peer("alpha", expects="gamma")

    for peer in (foreign, misled):
        with pytest.raises(PeerUnreachableError):
            await peer.status(TaskId(bytes(32)))
        await peer.close()


async def test_chunks_of_a_set_are_capped_as_they_come() -> None:
    """A thousand chunks, each as long as a message may be, would fill 3 GiB before anybody looked at them."""
    ids = tuple(ReportId(number.to_bytes(16)) for number in range(MAX_IDS_PER_CHUNK + 1))
    chunks = list(split_seal_set(SealSet(task_id=TaskId(bytes(32)), accepted=ids, set_digest=Digest(bytes(32)))))
    taken: list[int] = []

    async def stream(*messages: bytes) -> AsyncIterator[bytes]:
        for number, message in enumerate(messages):
            taken.append(number)
            yield message

    assert await _gather_chunks(stream(*(chunk.SerializeToString() for chunk in chunks))) == chunks
    assert len(chunks) == 2
    taken.clear()
    with pytest.raises(DecodeError, match="a chunk of a set has"):
        await _gather_chunks(stream(bytes(2 * 16 * MAX_IDS_PER_CHUNK), b""))
    assert taken == [0]


async def test_an_error_inside_shows_a_peer_no_text(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        raise ValueError("secret-canary")

    monkeypatch.setattr(listening.network.core(1).party.store, "task", broken)
    leader = listening.peer("alpha")

    with pytest.raises(PeerUnreachableError) as failure:
        await leader.status(TaskId(bytes(32)))

    assert "canary" not in str(failure.value)
    await leader.close()


async def test_devices_upload_over_one_stream_and_bad_messages_end_it() -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    server = device_server(DeviceShell(network.core(0).service, Metrics()), 100)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    device = TestDevice(network, task, 0)
    await device.open_sessions()
    await network.advance_to(task.round_one_opens)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = DeviceServiceStub(channel)
        listed = TASK_LIST.from_pb(await stub.ListTasks(TASK_LIST_QUERY.to_pb("test")))
        call = stub.Upload()
        for _ in range(2):
            await call.write(INSTALMENTS.to_pb([device.first(0)[0]]))
            [answer] = INSTALMENT_REPLIES.from_pb(await call.read())
            assert isinstance(answer, Receipt)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as malformed:
            await stub.GetRelease(pb.GetReleaseRequest(task_id=b"short"))
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetRelease(pb.GetReleaseRequest(task_id=bytes(32)))

    assert [one.task.task_id for one in listed] == [task.task_id]
    assert (malformed.value.code(), malformed.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
    assert (unknown.value.code(), unknown.value.details()) == (grpc.StatusCode.NOT_FOUND, "unknown_task")
    await server.stop(0)


# MQTT, against the broker the demo uses.


@pytest.fixture
async def broker_port() -> AsyncIterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fleetcount_simulator.broker", "--port", str(port), stdout=asyncio.subprocess.PIPE
    )
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            break
    yield port
    process.send_signal(signal.SIGTERM)
    await process.wait()
    if process._transport is not None:  # type: ignore[attr-defined]  # asyncio leaves the pipe to the collector.
        process._transport.close()  # type: ignore[attr-defined]  # as above.


async def next_on(client: "aiomqtt.Client", kind: str) -> bytes:
    """Return the next message of a kind: a retained one may come again at any time."""
    async for message in client.messages:
        if kind in str(message.topic).split("/") and message.payload:
            return bytes(message.payload)
    raise AssertionError("the broker has gone away")


async def test_mqtt_takes_reports_counts_poison_and_goes_on(broker_port: int) -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await network.advance_to(task.round_one_opens)
    core = network.core(0)
    intake = MqttIntake(core.party, core.service, MqttTable(broker=f"127.0.0.1:{broker_port}"))
    running = asyncio.create_task(intake.run())
    device = TestDevice(network, task, 0)
    aggregator = network.seats[0].aggregator
    request, secret = new_session(aggregator, aggregator.hpke_keys[0], device_identity(0), START + 5000, SystemRandom())
    device.secrets = [secret, secret]
    reports = report_topic("test", task.task_id, 0)

    async with asyncio.timeout(20), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe("fleetcount/v1/test/+/task", qos=1)
        announced = SIGNED_TASK.decode(await next_on(client, "task"))
        await client.subscribe(session_reply_topic("test", request.session_id), qos=1)
        await client.subscribe(receipt_topic("test", request.session_id), qos=1)
        await client.publish(session_topic("test", ALPHA), SESSION_REQUEST.encode(request), qos=1)
        accepted = SESSION_REPLY.decode(await next_on(client, "session-reply"))
        for payload in (b"", b"poison", b"\x00" * 1000):
            await client.publish(reports, payload, qos=1)
        for _ in range(40):
            await client.publish(reports, INSTALMENT.encode(device.first(0)[0]), qos=1)
        answers = [INSTALMENT_REPLY.decode(await next_on(client, "receipt")) for _ in range(40)]

    assert announced.task.task_id == task.task_id
    assert isinstance(accepted, SessionAccepted)
    assert set(map(type, answers)) == {Receipt}
    assert len(set(answers)) == 1
    assert b"fleetcount_poison_messages_total 3.0" in core.party.metrics.render()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_mqtt_acknowledges_nothing_that_was_not_stored(broker_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails once: the message comes again and is stored then."""
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await network.advance_to(task.round_one_opens)
    core = network.core(0)
    device = TestDevice(network, task, 0)
    await device.open_sessions()
    store = core.party.store
    honest, calls = store.add_instalments, 0

    async def failing_once(rows: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreError("disk")
        return await honest(rows)  # type: ignore[arg-type]  # passes on what it was given.

    monkeypatch.setattr(store, "add_instalments", failing_once)
    running = asyncio.create_task(
        MqttIntake(core.party, core.service, MqttTable(broker=f"127.0.0.1:{broker_port}")).run()
    )

    async with asyncio.timeout(20), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe("fleetcount/v1/test/+/task", qos=1)
        await next_on(client, "task")
        await client.subscribe(receipt_topic("test", device.secrets[0].session_id), qos=1)
        payload = INSTALMENT.encode(device.first(0)[0])
        receipt = None
        while receipt is None:
            await client.publish(report_topic("test", task.task_id, 0), payload, qos=1)
            try:
                async with asyncio.timeout(1):
                    receipt = INSTALMENT_REPLY.decode(await next_on(client, "receipt"))
            except TimeoutError:
                continue

    assert isinstance(receipt, Receipt)
    assert calls >= 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class OneMessageBroker:
    """Just enough of MQTT 3.1.1 to deliver one QoS 1 message and to see when it is acknowledged."""

    def __init__(self, topic: str, payload: bytes) -> None:
        name = topic.encode()
        self._message = packet(0x32, len(name).to_bytes(2) + name + (7).to_bytes(2) + payload)
        self.acknowledged = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                kind, body = await read_packet(reader)
            except asyncio.IncompleteReadError:
                writer.close()
                return
            if kind >> 4 == 1:
                writer.write(packet(0x20, b"\x00\x00"))
            elif kind >> 4 == 8:
                writer.write(packet(0x90, body[:2] + b"\x01"))
                if b"/report" in body:
                    writer.write(self._message)
            elif kind >> 4 == 3:
                length = int.from_bytes(body[:2])
                writer.write(packet(0x40, body[2 + length : 4 + length]))
            elif kind >> 4 == 4:
                self.acknowledged.set()


def packet(kind: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([kind]) + bytes(encoded) + body


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind, length, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        digit = (await reader.readexactly(1))[0]
        length |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return kind, await reader.readexactly(length)


async def test_mqtt_acknowledges_after_the_commit_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2)
    await network.start_all()
    task = await network.ask(values=4)
    await network.advance_to(task.round_one_opens)
    core, device = network.core(0), TestDevice(network, task, 0)
    await device.open_sessions()
    committing, may_commit = asyncio.Event(), asyncio.Event()
    honest = core.party.store.add_instalments

    async def slow(rows: object) -> object:
        committing.set()
        await may_commit.wait()
        return await honest(rows)  # type: ignore[arg-type]  # passes on what it was given.

    monkeypatch.setattr(core.party.store, "add_instalments", slow)
    broker = OneMessageBroker(report_topic("test", task.task_id, 0), INSTALMENT.encode(device.first(0)[0]))
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    running = asyncio.create_task(MqttIntake(core.party, core.service, MqttTable(broker=f"127.0.0.1:{port}")).run())

    async with asyncio.timeout(10):
        await committing.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.acknowledged.wait(), 0.3)
        may_commit.set()
        await broker.acknowledged.wait()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    await server.wait_closed()


# Workers.


async def test_workers_are_other_processes_and_a_dead_one_is_replaced() -> None:
    workers = ProcessWorkers(1, warm=False)

    first = await workers.run(os.getpid)
    os.kill(first, signal.SIGKILL)
    second = await workers.run(os.getpid)

    assert len({os.getpid(), first, second}) == 3
    await workers.close()


async def test_work_that_always_kills_its_worker_is_given_up() -> None:
    workers = ProcessWorkers(1, warm=False)

    with pytest.raises(MachineError, match="died 3 times"):
        await workers.run(os.abort)
    await workers.close()


def test_metrics_carry_no_device_and_no_count_of_reports() -> None:
    metrics = Metrics()
    metrics.task_moved(State.RELEASED)

    text = metrics.render().decode()

    assert 'fleetcount_task_moves_total{state="released"} 1.0' in text
    assert not any(word in text for word in ("receipt", "device", "report_", "accepted"))
