"""The shells around the rules: gRPC with mutual TLS, worker processes, metrics; MQTT is in test_mqtt_intake.py."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.process.serving import DRAIN_S, Listener
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_aggregator.transport.grpc_server import (
    DeviceShell,
    PeerShell,
    certified_peer,
    device_server,
    peer_server,
)
from fleetcount_aggregator.transport.peer_calls import PEER_SERVICE
from fleetcount_aggregator.verification.workers import ProcessWorkers
from fleetcount_protocol.channel.certificates import CertificateAuthority, Credential, Purpose, key_digest
from fleetcount_protocol.channel.greetings import Greeting, Meeting, sign_epoch, sign_greeting
from fleetcount_protocol.errors import MachineError, PeerProblem, RejectReason
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_IDS_PER_CHUNK
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchProposal,
    InstallQuestion,
    Instalment,
    QuestionQuery,
    Receipt,
    Refusal,
    SealSet,
    WindowState,
)
from fleetcount_protocol.question.key_list import verify_key_list
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.v1.device_pb2_grpc import DeviceServiceStub
from fleetcount_protocol.wire.device_columns import Upload, UploadAnswer
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage, DeviceMessage
from fleetcount_protocol.wire.peer import split_seal_set
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY
from fleetcount_transport.admission.admission import Admission, AdmissionTable
from fleetcount_transport.admission.handshake_gate import HandshakeGate

from tests.support.aggregators import Network, TestDevice, answer_all, device_authority
from tests.support.pem import pem_pair
from tests.support.twins import twin_of

_SERVICE = "/fleetcount_protocol.v1.DeviceService"
ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")


class Listening:
    """beta's peer listener behind TLS; `authority` certifies aggregators, alpha that of alpha's operator if given."""

    def __init__(self, of_alpha: CertificateAuthority | None = None) -> None:
        self.network = Network(2)
        self.authority = CertificateAuthority.create("aggregators")
        self.of_alpha = of_alpha or self.authority
        self.port = 0

    async def start(self) -> "grpc.aio.Server":
        await self.network.start_all()
        known = {ALPHA: [self.of_alpha.certificate], BETA: [self.authority.certificate]}
        shell = PeerShell(self.network.core(1).helper, Metrics(), certified_peer(known))
        server = peer_server(shell)
        credentials = grpc.ssl_server_credentials(
            [pem_pair(self.authority.issue_aggregator("beta", ["127.0.0.1"]))],
            root_certificates=b"".join(
                one.certificate.public_bytes(Encoding.PEM) for one in (self.authority, self.of_alpha)
            ),
            require_client_auth=True,
        )
        self.port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        return server

    def peer(
        self,
        name: str,
        *,
        expects: str = "beta",
        authority: CertificateAuthority | None = None,
        purpose: Purpose = Purpose.AGGREGATOR,
        greetings: Greetings | None = None,
        port: int | None = None,
    ) -> GrpcPeer:
        key, certificate = pem_pair((authority or self.authority).issue_new(purpose, name, ["127.0.0.1"]))
        digest = key_digest(load_pem_x509_certificate(certificate))
        return GrpcPeer(
            AggregatorId(expects),
            f"127.0.0.1:{port or self.port}",
            caller=AggregatorId(name),
            timeout_s=60,
            credentials=self._credentials(key, certificate),
            greetings=greetings,
            tls_key=lambda: bytes(digest),
        )

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        return self._credentials(*pem_pair(self.authority.issue_new(Purpose.AGGREGATOR, name, ["127.0.0.1"])))

    def _credentials(self, key: bytes, certificate: bytes) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=self.authority.certificate.public_bytes(Encoding.PEM),
            private_key=key,
            certificate_chain=certificate,
        )


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    here = Listening()
    server = await here.start()
    yield here
    await server.stop(0)


async def test_a_peer_is_who_its_certificate_says(listening: Listening) -> None:
    window = await listening.network.ask(values=4)
    leader, stranger = listening.peer("alpha"), listening.peer("mallory")

    status = await leader.status(window.window_id)
    with pytest.raises(PeerRefusalError) as refusal:
        await stranger.status(window.window_id)

    assert status.state is WindowState.ANNOUNCED
    assert refusal.value.problem is PeerProblem.NOT_LEADER
    await leader.close()
    await stranger.close()


async def test_an_authority_of_a_peer_certifies_that_peer_and_no_other() -> None:
    of_alpha = CertificateAuthority.create("alpha's")
    listening = Listening(of_alpha)
    server = await listening.start()
    window = await listening.network.ask(values=4)
    named = [("alpha", of_alpha), ("beta", of_alpha), ("alpha", listening.authority), ("beta", listening.authority)]
    found = []
    for name, authority in named:
        peer = listening.peer(name, authority=authority)
        try:
            found.append((await peer.status(window.window_id)).state)
        except PeerRefusalError as refusal:
            found.append(refusal.problem)
        await peer.close()
    await server.stop(0)

    refused, answered = PeerProblem.NOT_LEADER, WindowState.ANNOUNCED
    assert found == [answered, refused, refused, answered]


async def test_a_peer_that_takes_the_connection_and_says_nothing_is_unreachable_in_time(listening: Listening) -> None:
    """A half-open connection, a stopped process, a network that swallows: the call ends by its own clock."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # The system takes connections, and nobody reads them.
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        peer = GrpcPeer(BETA, endpoint, caller=ALPHA, timeout_s=0.5, credentials=listening.credentials("alpha"))
        async with asyncio.timeout(60):
            for _ in range(2):
                with pytest.raises(PeerUnreachableError, match="deadline_exceeded"):
                    await peer.status(WindowId(bytes(32)))
        await peer.close()


async def test_a_peer_is_called_with_the_certificate_of_now(listening: Listening) -> None:
    present = ["alpha"]
    made = {name: listening.credentials(name) for name in ("alpha", "mallory")}
    peer = GrpcPeer(
        BETA, f"127.0.0.1:{listening.port}", caller=ALPHA, timeout_s=60, credentials=lambda: made[present[0]]
    )
    problems = []
    for name in ("alpha", "mallory", "alpha"):
        present[0] = name
        with pytest.raises(PeerRefusalError) as refusal:
            await peer.status(WindowId(bytes(32)))
        problems.append(refusal.value.problem)
    await peer.close()

    assert problems == [PeerProblem.UNKNOWN_WINDOW, PeerProblem.NOT_LEADER, PeerProblem.UNKNOWN_WINDOW]


async def test_every_call_and_every_answer_is_greeted_a_refusal_too(listening: Listening) -> None:
    network = listening.network
    alpha, beta = network.core(0).context, network.core(1).context
    for position, context in enumerate((alpha, beta)):
        await context.peers.greetings.begin(network.seats[position].signing_key, context.host.source)
    leader, operator = listening.peer("alpha", greetings=alpha.peers.greetings), listening.peer("alpha")
    sealing = SealSet(window_id=WindowId(bytes(32)), leaf_digests=bytes(256 * 32))

    for call in (leader.status(WindowId(bytes(32))), leader.seal_set(sealing), operator.status(WindowId(bytes(32)))):
        with pytest.raises(PeerRefusalError) as refusal:
            await call
        assert refusal.value.problem is PeerProblem.UNKNOWN_WINDOW
    assert abs(alpha.peers.greetings.skews[BETA].seconds) <= alpha.peers.greetings.skews[BETA].give_or_take_s + 0.001
    await beta.peers.greetings.hear_call(
        ALPHA,
        sign_greeting(
            Greeting(time_ms=0, epoch=sign_epoch(ALPHA, 9, bytes(8), network.seats[0].signing_key)),
            Meeting(caller=ALPHA, callee=BETA, tls_key=b""),
            network.seats[0].signing_key,
            is_answer=False,
        ).encode(),
    )
    with pytest.raises(PeerRefusalError) as refusal:
        await leader.status(WindowId(bytes(32)))
    assert refusal.value.problem is PeerProblem.STALE_EPOCH
    assert alpha.peers.greetings.superseded.is_set()
    await leader.close()
    await operator.close()


async def test_the_seed_of_a_question_leaves_for_the_holder_of_the_signing_key_alone(listening: Listening) -> None:
    """A relay's certificate in a spelling of beta's name, where alpha looks for beta: it is told nothing."""
    network = listening.network
    alpha, beta = network.core(0).context, network.core(1).context
    for position, context in enumerate((alpha, beta)):
        await context.peers.greetings.begin(network.seats[position].signing_key, context.host.source)
    signed, seed = network.question()
    request = InstallQuestion(signed=signed, seed=seed, orders=())
    heard: list[bytes] = []

    async def install(requests: AsyncIterator[bytes], context: Any) -> bytes:
        said = dict(context.invocation_metadata())["fleetcount-greeting-bin"]
        await context.send_initial_metadata((("fleetcount-greeting-bin", said),))  # It has nothing better.
        heard.extend([one async for one in requests])
        return b""

    false = grpc.aio.server()
    handlers = {"InstallQuestion": grpc.stream_unary_rpc_method_handler(install)}
    false.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PEER_SERVICE, handlers),))
    pair = pem_pair(listening.authority.issue_new(Purpose.RELAY, "relay-3", ["BETA"]))
    port = false.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await false.start()
    misled = listening.peer("alpha", greetings=alpha.peers.greetings, port=port)
    leader = listening.peer("alpha", greetings=alpha.peers.greetings)
    operator = listening.peer("alpha")

    with pytest.raises(PeerUnreachableError, match="beta does not prove that it has its signing key"):
        await misled.install_question(request)
    installed = await leader.install_question(request)
    with pytest.raises(PeerRefusalError) as refusal:
        await operator.shared_question(signed.question.question_id)
    await false.stop(0)

    assert heard == []
    verify_key_list(installed.key_list, signed.question.aggregators[1])
    assert refusal.value.problem is PeerProblem.NOT_LEADER
    for one in (misled, leader, operator):
        await one.close()


@pytest.mark.parametrize("purpose", [Purpose.DEVICE, Purpose.READER])
async def test_a_server_s_certificate_must_be_one_for_servers(listening: Listening, purpose: Purpose) -> None:
    server = grpc.aio.server()
    pair = pem_pair(listening.authority.issue_new(purpose, "beta", ["127.0.0.1"]))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    peer = listening.peer("alpha", port=port)

    with pytest.raises(PeerUnreachableError, match="unavailable"):
        await peer.status(WindowId(bytes(32)))

    await peer.close()
    await server.stop(0)


async def test_a_question_and_its_orders_are_taken_from_its_aggregators_over_tls(listening: Listening) -> None:
    network = listening.network
    signed, seed = network.question()
    stop = QuestionOrder(
        question_id=signed.question.question_id, number=1, action=OrderAction.STOP, aggregator_id=ALPHA, from_window=2
    )
    order = sign_order(stop, network.seats[0].signing_key)
    leader, stranger = listening.peer("alpha"), listening.peer("mallory")
    request = InstallQuestion(signed=signed, seed=seed, orders=())

    with pytest.raises(PeerRefusalError) as unknown:
        await leader.deliver_order(order)
    with pytest.raises(PeerRefusalError) as refusal:
        await stranger.install_question(request)
    installed, again = await leader.install_question(request), await leader.install_question(request)
    delivered = await leader.deliver_order(order)

    assert (unknown.value.problem, refusal.value.problem) == (PeerProblem.UNKNOWN_WINDOW, PeerProblem.NOT_LEADER)
    assert installed == again == delivered
    verify_key_list(installed.key_list, signed.question.aggregators[1])
    assert network.core(1).context.questions[signed.question.question_id].orders == (order,)
    await leader.close()
    await stranger.close()


@pytest.mark.parametrize("purpose", [Purpose.RELAY, Purpose.READER, Purpose.DEVICE])
async def test_only_an_aggregator_s_certificate_is_a_peer_whatever_its_name(
    listening: Listening, purpose: Purpose
) -> None:
    window = await listening.network.ask(values=4)
    other = listening.peer("alpha", purpose=purpose)

    with pytest.raises(PeerRefusalError) as refusal:
        await other.status(window.window_id)

    assert refusal.value.problem is PeerProblem.NOT_LEADER
    await other.close()


async def test_a_helper_s_certificate_does_not_lead(listening: Listening) -> None:
    window = await listening.network.ask(values=4)
    helper = listening.peer("beta")

    with pytest.raises(PeerRefusalError) as refusal:
        await helper.abort(AbortWindow(window_id=window.window_id, reason="because"))

    assert refusal.value.problem is PeerProblem.NOT_LEADER
    await helper.close()


async def test_another_authority_and_another_name_do_not_connect(listening: Listening) -> None:
    foreign = listening.peer("alpha", authority=CertificateAuthority.create("others"))
    misled = listening.peer("alpha", expects="gamma")

    for peer in (foreign, misled):
        with pytest.raises(PeerUnreachableError):
            await peer.status(WindowId(bytes(32)))
        await peer.close()


async def test_a_set_is_read_from_the_leader_alone_once_at_a_time_and_no_longer_than_its_reports(
    listening: Listening,
) -> None:
    network = listening.network
    window = await network.ask(values=4)
    network.supervised = False
    await answer_all(network, window, [(0, 1), (2, 2)])
    leader, stranger = listening.peer("alpha"), listening.peer("gamma")
    ids = b"".join(number.to_bytes(16) for number in range(MAX_IDS_PER_CHUNK + 1))
    seal = SealSet(window_id=window.window_id, leaf_digests=bytes(256 * 32), accepted=ids)
    first = next(iter(split_seal_set(seal))).SerializeToString()

    async def told(peer: GrpcPeer, *chunks: bytes) -> "grpc.aio.StreamUnaryCall[bytes, bytes]":
        call: grpc.aio.StreamUnaryCall[bytes, bytes] = peer._channel.stream_unary(f"/{PEER_SERVICE}/SealSet")()
        for chunk in chunks:
            await call.write(chunk)
        return call

    async with asyncio.timeout(20):
        early = await (await told(leader, first)).details()
        await network.advance_to(window.round_two_closes)
        nothing = BatchProposal(
            window_id=window.window_id, batch=0, report_ids=b"", share_digests=b"", verifier_shares=b""
        )
        await network.core(1).helper.propose_batch(ALPHA, nothing)
        nobody = await (await told(stranger)).details()
        one_id = replace(seal, accepted=bytes(16))
        unfinished = next(iter(split_seal_set(one_id)))
        held = await told(leader, unfinished.SerializeToString())
        while not network.core(1).helper._sealing:
            await asyncio.sleep(0.01)
        second = await (await told(leader, first)).details()
        held.cancel()
        while network.core(1).helper._sealing:
            await asyncio.sleep(0.01)
        long = await (await told(leader, first)).details()
        torn = await (await told(leader, bytes(2 * 16 * MAX_IDS_PER_CHUNK))).details()

    assert (early, nobody, second, long, torn) == ("not_yet", "not_leader", "busy", "disagrees", "malformed")
    await leader.close()
    await stranger.close()


async def test_an_error_inside_shows_a_peer_no_text(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("secret-canary")

    monkeypatch.setattr(listening.network.core(1).context.store, "read", broken)
    leader = listening.peer("alpha")

    with pytest.raises(PeerUnreachableError) as failure:
        await leader.status(WindowId(bytes(32)))

    assert "canary" not in str(failure.value)
    await leader.close()


async def test_devices_upload_over_one_stream_and_bad_messages_end_it() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    server = device_server(DeviceShell(network.core(0).service, Metrics()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    device = TestDevice(network, window, 0)
    await device.open_sessions()
    await network.advance_to(window.round_one_opens)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = DeviceServiceStub(channel)
        listed = QUESTION_LIST.from_pb(
            await stub.ListQuestions(QUESTION_LIST_QUERY.to_pb(QuestionQuery(aggregator_id=ALPHA, deployment="test")))
        )
        call = stub.Answer()
        for _ in range(2):
            await call.write(DEVICE_MESSAGE.to_pb(DeviceMessage(upload=Upload.of(ALPHA, device.first(0)[:1]))))
            answered = AGGREGATOR_MESSAGE.from_pb(await call.read()).upload
            assert answered is not None
            answer = answered.only_one
            assert isinstance(answer, Receipt)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as malformed:
            await stub.GetRelease(pb.GetReleaseRequest(aggregator_id="alpha", window_id=b"short"))
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetRelease(pb.GetReleaseRequest(aggregator_id="alpha", window_id=bytes(32)))

    assert [window_at(one.signed.question, 0) for one in listed.offers] == [window]
    assert (malformed.value.code(), malformed.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
    assert (unknown.value.code(), unknown.value.details()) == (grpc.StatusCode.NOT_FOUND, "unknown_window")
    await server.stop(0)


async def test_a_bad_message_ends_its_stream_after_what_came_before_and_what_is_behind_it_is_taken_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    core, go_on = network.core(0), asyncio.Event()
    take = core.service.take

    async def taken_later(*upload: Any, **more: Any) -> Any:
        await go_on.wait()
        return await take(*upload, **more)

    monkeypatch.setattr(core.service, "take", taken_later)
    server = device_server(DeviceShell(core.service, Metrics(), core.context.host.admission))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    devices = [TestDevice(network, window, number) for number in range(3)]
    for device in devices:
        await device.open_sessions()
    await network.advance_to(window.round_one_opens)
    request = DEVICE_MESSAGE.encode(DeviceMessage(requests=(devices[0].requests[0],)))
    parts = [DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(ALPHA, one.first(0)[:1]))) for one in devices]

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: Any = channel.stream_stream(f"{_SERVICE}/Answer")()
        found: list[AggregatorMessage] = []
        go_on.set()
        for message in (request, parts[0]):
            await stream.write(message)
            found.append(AGGREGATOR_MESSAGE.decode(await stream.read()))
        go_on.clear()  # Until all has left: the end of the stream waits for what came before.
        for message in (parts[1], parts[1][:-1], parts[2]):
            await stream.write(message)
        go_on.set()
        found.append(AGGREGATOR_MESSAGE.decode(await stream.read()))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        second: Any = channel.stream_stream(f"{_SERVICE}/Answer")()
        for message in (*parts, request):
            await second.write(message)
        again = [AGGREGATOR_MESSAGE.decode(await second.read()) for _ in range(4)]
        await server.stop(0)

    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
    assert all(one.upload is None or isinstance(one.upload.only_one, Receipt) for one in (*found, *again))
    assert found == [again[3], again[0], again[1]]


async def test_a_listener_that_drains_ends_idle_streams_at_once_and_answers_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC's server would wait `DRAIN_S` for each stream of a device that stays connected."""
    network = Network(2)
    await network.start_all()
    service, admission = network.core(0).service, Admission(AdmissionTable())
    front = HandshakeGate(admission.limits, 16)
    shell = DeviceShell(service, Metrics(), admission, front=front)
    listener = Listener(device_server(shell), front, None, shell.grpc_admission.kept.end)
    port = await listener.open("127.0.0.1:0")
    arrived, release, honest = asyncio.Event(), asyncio.Event(), service.take

    async def slow(upload: Upload) -> UploadAnswer:
        arrived.set()
        await release.wait()
        return await honest(upload)

    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        idle, busy = (one.stream_stream(f"{_SERVICE}/Answer")() for one in (channel, other))
        await send(idle)
        assert isinstance(await idle.read(), bytes)
        monkeypatch.setattr(service, "take", slow)
        await send(busy)
        await arrived.wait()
        draining = asyncio.create_task(listener.drain())
        async with asyncio.timeout(DRAIN_S / 2):
            ended = await idle.code()
        waits = draining.done()
        release.set()
        async with asyncio.timeout(DRAIN_S / 2):
            await draining
        answer = await busy.read()
        codes = [ended, await busy.code()]
    await listener.close()

    assert (waits, codes) == (False, [grpc.StatusCode.OK] * 2)
    assert isinstance(answer, bytes)


# What one caller may hold.


async def send(call: Any) -> None:
    """Send one instalment of an unknown window."""
    instalment = Instalment(
        window_id=WindowId(bytes(32)),
        report_id=ReportId(bytes(16)),
        session_id=SessionId(bytes(16)),
        key_number=1,
        round=1,
        public_share=b"",
        ciphertext=bytes(48),
    )
    await call.write(DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(ALPHA, [instalment]))))


class DeviceListening:
    """alpha's device listener behind TLS, and devices with certificates."""

    def __init__(self, limits: AdmissionTable) -> None:
        self.network = Network(2)
        self.authority = CertificateAuthority.create("aggregators")
        self.limits = limits
        self.port = 0

    async def __aenter__(self) -> "DeviceListening":
        await self.network.start_all()
        self.admission = Admission(self.limits)
        self._server = device_server(DeviceShell(self.network.core(0).service, Metrics(), self.admission))
        credentials = grpc.ssl_server_credentials(
            [pem_pair(self.authority.issue_aggregator("alpha", ["127.0.0.1"]))],
            root_certificates=device_authority().certificate.public_bytes(Encoding.PEM),
            require_client_auth=True,
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    def channel(self, device: Credential) -> grpc.aio.Channel:
        """Return a connection of its own."""
        credentials = grpc.ssl_channel_credentials(
            self.authority.certificate.public_bytes(Encoding.PEM), *pem_pair(device)
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)

    async def upload(self, channel: grpc.aio.Channel) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
        """Return a stream on which one instalment of an unknown window has been sent."""
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"{_SERVICE}/Answer")()
        await send(call)
        return call

    async def answer(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> RejectReason:
        """Return why the instalment was refused."""
        data = await call.read()
        assert isinstance(data, bytes)
        answered = AGGREGATOR_MESSAGE.decode(data).upload
        assert answered is not None
        refusal = answered.only_one
        assert isinstance(refusal, Refusal)
        return refusal.reason

    async def wait_for(self, callers: int) -> None:
        """Wait until so many callers have calls under way."""
        async with asyncio.timeout(60):
            while self.admission.callers != callers:
                await asyncio.sleep(0.01)


async def test_a_caller_that_sends_nothing_is_let_go() -> None:
    async with (
        DeviceListening(AdmissionTable(idle_s=0.05)) as here,
        here.channel(device_authority().issue_device()) as channel,
    ):
        for method in ("Answer", "ListQuestions", "GetRelease"):
            call = channel.stream_stream(f"{_SERVICE}/{method}")()
            async with asyncio.timeout(30):
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert await call.details() == "idle"
        await here.wait_for(0)


async def test_a_certificate_has_so_many_calls_over_all_its_connections() -> None:
    one, other = device_authority().issue_device(), device_authority().issue_device()
    async with (
        DeviceListening(AdmissionTable(calls_each=2)) as here,
        here.channel(one) as first,
        here.channel(one) as second,
        here.channel(other) as third,
    ):
        idle = [await here.upload(channel) for channel in (first, second)]
        assert [await here.answer(call) for call in idle] == [RejectReason.UNKNOWN_WINDOW] * 2
        held: list[Any] = [channel.stream_stream(f"{_SERVICE}/Answer")() for channel in (first, second)]
        async with asyncio.timeout(60):
            while here.admission._calls.used < 2:
                await asyncio.sleep(0.01)
        query = QUESTION_LIST_QUERY.encode(QuestionQuery(aggregator_id=ALPHA, deployment="test"))

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.unary_unary(f"{_SERVICE}/ListQuestions")(query)
        await send(idle[0])
        assert await idle[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # A message of it is a call, too.
        await here.answer(await here.upload(third))
        await send(held[0])
        await here.answer(held[0])

        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        assert await second.unary_unary(f"{_SERVICE}/ListQuestions")(query) == b""


async def test_a_call_for_another_aggregator_is_refused() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    device = TestDevice(network, window, 0)
    await device.open_sessions()
    await network.advance_to(window.round_one_opens)
    core = network.core(0)
    upload = Upload.of(BETA, device.first(0)[:1])

    with pytest.raises(PeerRefusalError) as refusal:
        await core.service.take(upload)
    assert refusal.value.problem is PeerProblem.UNKNOWN_AGGREGATOR
    with pytest.raises(PeerRefusalError):
        core.service.refuse_busy(upload)
    with pytest.raises(PeerRefusalError):
        core.service.questions(QuestionQuery(aggregator_id=BETA, deployment="test"))
    assert await core.context.store.read(read_rejections, window.window_id) == {}


async def test_a_certificate_has_so_many_bytes_under_way_and_leaves_the_rest_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = device_authority().issue_device(), device_authority().issue_device()
    async with (
        DeviceListening(AdmissionTable(bytes_each=1)) as here,
        here.channel(one) as first,
        here.channel(one) as second,
        here.channel(other) as third,
    ):
        service, arrived, release = here.network.core(0).service, asyncio.Event(), asyncio.Event()
        honest = service.take

        async def slow(upload: Upload) -> UploadAnswer:
            arrived.set()
            await release.wait()
            return await honest(upload)

        monkeypatch.setattr(service, "take", slow)
        async with asyncio.timeout(60):
            waiting = [await here.upload(first)]
            await arrived.wait()
            refused = await here.answer(await here.upload(second))
            arrived.clear()
            waiting.append(await here.upload(third))
            await arrived.wait()
            release.set()
            answers = [await here.answer(call) for call in waiting]

        assert refused is RejectReason.BUSY
        assert answers == [RejectReason.UNKNOWN_WINDOW] * 2


async def test_each_purpose_may_call_what_is_its_own_at_the_device_port() -> None:
    reading = {
        "ListQuestions": QUESTION_LIST_QUERY.encode(QuestionQuery(aggregator_id=ALPHA, deployment="test")),
        "GetRelease": b"",
    }
    calls = {**reading, "Answer": b""}
    found: dict[Purpose, set[str]] = {}
    async with DeviceListening(AdmissionTable()) as here:
        for purpose in (Purpose.DEVICE, Purpose.READER, Purpose.RELAY, Purpose.AGGREGATOR):
            async with here.channel(device_authority().issue_new(purpose, "somebody")) as channel:
                for method, query in calls.items():
                    call = channel.unary_stream(f"{_SERVICE}/{method}")(query)
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        while await call.read() is not grpc.aio.EOF:
                            pass
                    if await call.code() is not grpc.StatusCode.PERMISSION_DENIED:
                        found.setdefault(purpose, set()).add(method)

    assert found == {
        Purpose.DEVICE: set(calls),
        Purpose.RELAY: set(calls),
        Purpose.READER: set(reading),
        Purpose.AGGREGATOR: set(reading),
    }


async def test_a_second_certificate_for_the_same_key_has_no_second_limits() -> None:
    one = device_authority().issue_device()
    twin = Credential(certificate=twin_of(one.certificate), private_key=one.private_key)
    query = QUESTION_LIST_QUERY.encode(QuestionQuery(aggregator_id=ALPHA, deployment="test"))
    async with (
        DeviceListening(AdmissionTable(calls_each=1)) as here,
        here.channel(one) as first,
        here.channel(twin) as second,
    ):
        held: Any = first.stream_stream(f"{_SERVICE}/Answer")()
        await here.wait_for(1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.unary_unary(f"{_SERVICE}/ListQuestions")(query)
        held.cancel()

    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")


# Workers.


@pytest.mark.processes
async def test_workers_are_other_processes_and_a_dead_one_is_replaced() -> None:
    workers = ProcessWorkers(1, warm=False)

    first = await workers.run(os.getpid)
    os.kill(first, signal.SIGKILL)
    second = await workers.run(os.getpid)

    assert len({os.getpid(), first, second}) == 3
    await workers.close()


@pytest.mark.processes
async def test_work_that_always_kills_its_worker_is_given_up() -> None:
    workers = ProcessWorkers(1, warm=False)

    with pytest.raises(MachineError, match="died 3 times"):
        await workers.run(os.abort)
    await workers.close()


def test_metrics_carry_no_device_and_no_count_of_reports() -> None:
    metrics = Metrics()
    metrics.window_moved(WindowState.RELEASED)

    text = metrics.render().decode()

    assert 'fleetcount_window_moves_total{state="released"} 1.0' in text
    assert not any(word in text for word in ("receipt", "device", "report_", "accepted"))
