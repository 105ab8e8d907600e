"""The shells around the rules: gRPC with mutual TLS, worker processes, metrics; MQTT is in test_mqtt_intake.py."""

import os
import signal
from collections.abc import AsyncIterator

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
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
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.states import State
from fleetcount_aggregator.workers import ProcessWorkers
from fleetcount_protocol.certificates import CertificateAuthority, Credential
from fleetcount_protocol.codec import (
    INSTALMENT_REPLIES,
    INSTALMENTS,
    TASK_LIST,
    TASK_LIST_QUERY,
)
from fleetcount_protocol.errors import DecodeError, MachineError
from fleetcount_protocol.ids import AggregatorId, Digest, TaskId
from fleetcount_protocol.limits import MAX_IDS_PER_CHUNK
from fleetcount_protocol.messages import AbortTask, Receipt, SealSet
from fleetcount_protocol.peer_codec import split_seal_set
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.v1.device_pb2_grpc import DeviceServiceStub

from tests.support.aggregators import Network, TestDevice

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
    ids = b"".join(number.to_bytes(16) for number in range(MAX_IDS_PER_CHUNK + 1))
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
