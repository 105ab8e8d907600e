"""One suite for the three transports: the same device, the same protocol, the same outcome."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleetcount_client import mqtt_transport
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_client.mqtt_transport import MqttLogin, MqttTransport
from fleetcount_client.policy import JoinRule
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose, save_certificates, save_private_key
from fleetcount_protocol.channel.session import (
    DeviceIdentity,
    SessionSecret,
    check_receipt,
    new_session,
    seal_instalment,
)
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, ReportId, UserName, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    QuestionList,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    WindowState,
)
from fleetcount_protocol.question.orders import OrderAction
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.question import QUESTION_LIST
from fleetcount_transport.toml_table import ConfigError

from tests.client.deployment import START, Deployment
from tests.client.shells import GrpcShell, free_port, grpc_servers, mqtt_aggregators, mqtt_broker, tls_files
from tests.support.expiries import on_the_hour
from tests.support.leftovers import nothing_left_behind
from tests.support.listening import listening
from tests.support.protocol_samples import session_secret

CAR = UserName("d-1")
RELEASED = WindowId(bytes(range(32)))
SERVER_AUTHORITY = CertificateAuthority.create("test aggregators")


@dataclasses.dataclass
class Linked:
    """A deployment behind one transport, and one device's end of it."""

    world: Deployment
    window: Window
    identity: DeviceIdentity
    transport: Transport


@asynccontextmanager
async def linked(kind: str, *, alone: bool = False) -> AsyncIterator[Linked]:
    """A deployment that asks a question and one window at the same time, or `alone` the question."""
    world = Deployment()
    world.releases[RELEASED] = ReleaseAnswer(state=WindowState.RELEASED, record=b"record", signatures=(bytes(64),) * 2)
    identity = world.identity()

    def ask() -> Window:
        question = world.question()
        world.offers = [world.offer(question, world.order(question, 1, OrderAction.PAUSE, 2))]
        return window_at(question, 0) if alone else world.ask()

    if kind == "memory":
        yield Linked(world, ask(), identity, world.transport())
    elif kind == "grpc":
        async with grpc_servers(world, SERVER_AUTHORITY):
            yield Linked(world, ask(), identity, grpc_transport(world, identity))
    else:
        window, port = ask(), free_port()
        async with mqtt_broker(port), mqtt_aggregators(world, port):
            transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=5)
            yield Linked(world, window, identity, transport)


def grpc_transport(
    world: Deployment, identity: DeviceIdentity, authority: CertificateAuthority = SERVER_AUTHORITY
) -> GrpcTransport:
    servers = [WindowServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint) for one in world.described]
    tls = tls_files(authority, identity)
    return GrpcTransport(deployment="test", servers=servers, tls=tls, call_timeout_s=5)


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_a_device_delivers_both_rounds_of_a_window_it_was_offered(tmp_path: Path, kind: str) -> None:
    async with linked(kind) as link:
        device = link.world.device(tmp_path / "device.db", link.transport, identity=link.identity)

        async with device:
            outcomes = await device.answer()

        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED], outcomes
        (report_id,) = link.world.report_ids(link.window, 2)
        assert len(link.world.verifies(link.window, report_id)) == 3


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_every_question_is_offered_over_every_transport_byte_for_byte(kind: str) -> None:
    async with linked(kind) as link:
        offers, again = [await link.transport.list_questions() for _ in range(2)]
        await link.transport.close()

        asked = {one.signed.question.question_id: one for one in link.world.offers}
        assert len(asked) == 2
        for listed in (offers, again):
            assert {one.signed.question.question_id: one for one in listed} == asked


async def test_a_list_of_question_that_says_more_and_brings_nothing_new_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked("grpc") as link:
        offers = tuple(link.world.offers)

        async def again(_shell: GrpcShell, _request: bytes, _context: object) -> bytes:
            return QUESTION_LIST.encode(QuestionList(offers=offers, more=True))

        monkeypatch.setattr(GrpcShell, "list_questions", again)
        async with grpc_servers(link.world, SERVER_AUTHORITY):
            with pytest.raises(Unreachable, match="holds none that is new"):
                await grpc_transport(link.world, link.identity).list_questions()


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_a_question_is_offered_with_its_orders_and_its_windows_are_answered(tmp_path: Path, kind: str) -> None:
    # Alone: the manual clock does not wait for a network that another answer uses.
    async with linked(kind, alone=True) as link:
        device = link.world.device(tmp_path / "device.db", link.transport, identity=link.identity, join=JoinRule.AUTO)

        async with device:
            offers = await link.transport.list_questions()
            outcomes = await device.answer(horizon_s=1000)

        assert {offer == link.world.offers[0] for offer in offers} == {True}
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 2, outcomes
        question = offers[0].signed.question
        for index in range(2):
            window = window_at(question, index)
            (report_id,) = link.world.report_ids(window, 2)
            link.world.verifies(window, report_id)


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_the_release_of_a_window_is_read_again_and_again_and_of_an_unknown_one_nothing(kind: str) -> None:
    async with linked(kind) as link:
        known, unknown = (
            SimpleNamespace(window_id=window_id, aggregators=link.world.described)
            for window_id in (RELEASED, WindowId(bytes(32)))
        )

        answers = [await link.transport.release(known) for _ in range(2)]  # type: ignore[arg-type]
        with pytest.raises(Unreachable):
            await link.transport.release(unknown)  # type: ignore[arg-type]
        await link.transport.close()

        assert answers == [link.world.releases[RELEASED]] * 2


def sealed_parts(window: Window, secret: SessionSecret) -> list[Instalment]:
    """Return parts of three reports for the second aggregator."""
    return [
        seal_instalment(secret.window_key, window.window_id, ReportId(bytes([n]) * 16), 1, 1, b"", bytes([n]) * 32)
        for n in range(3)
    ]


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_answers_belong_to_their_instalments_and_a_repeat_gets_the_same_receipt(kind: str) -> None:
    async with linked(kind) as link:
        window, aggregator = link.window, link.world.described[1]
        request, opening = new_session(
            aggregator, aggregator.hpke_keys[0], link.identity, on_the_hour(START, 2), SystemRandom()
        )

        strange = sealed_parts(window, dataclasses.replace(session_secret(), session_id=request.session_id))
        early = await link.transport.upload(window, 1, strange)
        opened = await link.transport.open_sessions(aggregator, [request])
        again = await link.transport.open_sessions(aggregator, [request])
        assert isinstance(opened[0], SessionAccepted)
        secret = opening.finish(opened[0])
        parts = sealed_parts(window, secret)
        other = dataclasses.replace(parts[0], ciphertext=parts[1].ciphertext)
        link.world.timer.advance(window.round_one_opens - START)
        first = await link.transport.upload(window, 1, parts)
        second = await link.transport.upload(window, 1, parts)
        (changed,) = await link.transport.upload(window, 1, [other])
        await link.transport.close()

        assert [type(one) for one in opened] == [SessionAccepted]
        assert again == opened
        assert {one.reason for one in early if isinstance(one, Refusal)} == {RejectReason.UNKNOWN_SESSION}
        assert first == second
        for part, receipt in zip(parts, first, strict=True):
            assert not isinstance(receipt, Refusal)
            check_receipt(secret, part, receipt)
        assert isinstance(changed, Refusal)
        assert changed.reason is RejectReason.DUPLICATE_OTHER_BYTES


@pytest.mark.parametrize("kind", ["memory", "grpc", "mqtt"])
async def test_a_refused_session_says_why(kind: str) -> None:
    async with linked(kind) as link:
        aggregator = link.world.described[0]
        stranger = DeviceIdentity.generate(CertificateAuthority.create("another fleet"))
        request, _ = new_session(aggregator, aggregator.hpke_keys[0], stranger, on_the_hour(START, 2), SystemRandom())

        (answer,) = await link.transport.open_sessions(aggregator, [request])
        await link.transport.close()

        assert isinstance(answer, SessionRefused)
        assert answer.reason is RejectReason.BAD_CERTIFICATE


async def test_many_instalments_travel_in_batches_on_one_stream() -> None:
    async with linked("grpc") as link:
        window, aggregator = link.window, link.world.described[0]
        request, opening = new_session(
            aggregator, aggregator.hpke_keys[0], link.identity, on_the_hour(START, 2), SystemRandom()
        )
        link.world.timer.advance(window.round_one_opens - START)
        [accepted] = await link.transport.open_sessions(aggregator, [request])
        assert isinstance(accepted, SessionAccepted)
        key = opening.finish(accepted).window_key
        parts = [
            seal_instalment(key, window.window_id, ReportId(n.to_bytes(16)), 1, 0, b"", bytes(60_000))
            for n in range(40)
        ]

        answers = await link.transport.upload(window, 0, parts)
        await link.transport.close()

        assert [answer.report_id for answer in answers] == [part.report_id for part in parts]
        assert not any(isinstance(answer, Refusal) for answer in answers)


async def test_a_server_with_another_aggregators_certificate_is_not_spoken_to() -> None:
    async with linked("grpc") as link:
        alpha, beta = link.world.described
        swapped = dataclasses.replace(alpha, grpc_endpoint=beta.grpc_endpoint)
        request, _ = new_session(alpha, alpha.hpke_keys[0], link.identity, on_the_hour(START, 2), SystemRandom())

        with pytest.raises(Unreachable, match="unavailable"):
            await link.transport.open_sessions(swapped, [request])
        await link.transport.close()


async def test_a_server_of_another_authority_is_not_spoken_to() -> None:
    async with linked("grpc") as link:
        transport = grpc_transport(link.world, link.identity, CertificateAuthority.create("another"))

        with pytest.raises(Unreachable, match="unavailable"):
            await transport.list_questions()
        await transport.close()


async def test_a_device_of_another_authority_is_not_served() -> None:
    async with linked("grpc") as link:
        stranger = DeviceIdentity.generate(CertificateAuthority.create("another fleet"))
        transport = grpc_transport(link.world, stranger)

        with pytest.raises(Unreachable):
            await transport.list_questions()
        await transport.close()


async def test_plaintext_stays_on_this_machine() -> None:
    world = Deployment()
    server = WindowServer(aggregator_id=AggregatorId("alpha"), endpoint="192.0.2.1:7411")

    with pytest.raises(ConfigError, match="insecure"):
        GrpcTransport(deployment="test", servers=[server], tls=None)
    transport = GrpcTransport(deployment="test", servers=[server], tls=None, insecure=True)
    with pytest.raises(Unreachable, match="loopback"):
        await transport.list_questions()
    assert world.described


@pytest.mark.parametrize("kind", ["grpc", "mqtt"])
async def test_nobody_there_is_unreachable(kind: str) -> None:
    world = Deployment()
    port = free_port()
    world.described = tuple(dataclasses.replace(one, grpc_endpoint=f"127.0.0.1:{port}") for one in world.described)
    transport: Transport = grpc_transport(world, world.identity())
    if kind == "mqtt":
        transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=2)

    with pytest.raises(Unreachable, match=str(port)):
        await transport.list_questions()
    await transport.close()


async def test_a_relay_that_is_not_there_is_named_beside_the_aggregator_that_it_leads_to() -> None:
    server, relay = WindowServer(aggregator_id=AggregatorId("alpha"), endpoint="127.0.0.1:7411"), free_port()
    transport = GrpcTransport(
        deployment="test", servers=[server], tls=None, insecure=True, relay=f"127.0.0.1:{relay}", call_timeout_s=5
    )

    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:7411 by the relay 127\.0\.0\.1:{relay}: .* nothing listens"):
        await transport.list_questions()
    await transport.close()


async def test_an_aggregator_that_is_silent_behind_the_broker_is_unreachable_and_a_puback_is_no_receipt() -> None:
    world = Deployment()
    port = free_port()
    window = world.window()
    leader = world.described[0]
    request, _ = new_session(leader, leader.hpke_keys[0], world.identity(), on_the_hour(START, 2), SystemRandom())
    part = seal_instalment(session_secret().window_key, window.window_id, ReportId(bytes(16)), 1, 0, b"", bytes(32))
    async with mqtt_broker(port):
        transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=0.3)

        with pytest.raises(Unreachable, match="did not answer"):
            await transport.open_sessions(leader, [request])
        with pytest.raises(Unreachable, match="did not answer"):
            await transport.upload(window, 0, [part])
        await transport.close()


async def test_a_list_that_does_not_end_is_read_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(mqtt_transport, "_LONGEST_LISTING_S", 0.3, raising=False)
    async with mqtt_broker(port):
        transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=5)

        async def keep_coming() -> None:
            while True:
                transport._offer_arrived.set()
                await asyncio.sleep(0.01)

        coming = asyncio.create_task(keep_coming())
        async with asyncio.timeout(20):
            assert await transport.list_questions() == ()
        coming.cancel()
        await transport.close()


async def test_a_lost_broker_is_noticed_at_once_and_a_new_one_is_used_again() -> None:
    world = Deployment()
    world.ask()
    port = free_port()
    transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=5)

    async with mqtt_broker(port), mqtt_aggregators(world, port):
        before = await transport.list_questions()
    with pytest.raises(Unreachable):
        await transport.list_questions()
    async with mqtt_broker(port), mqtt_aggregators(world, port):
        after = await transport.list_questions()
        await transport.close()

    assert [len(before), len(after)] == [2, 2]  # One an aggregator.


async def test_a_broker_that_dies_while_a_receipt_is_awaited_is_noticed_at_once() -> None:
    world = Deployment()
    port = free_port()
    window = world.window()
    part = seal_instalment(session_secret().window_key, window.window_id, ReportId(bytes(16)), 1, 0, b"", bytes(32))
    transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=60)

    async with asyncio.timeout(40):
        async with mqtt_broker(port):
            waiting = asyncio.create_task(transport.upload(window, 0, [part]))
            while not transport._receipts:  # A broker that ends while somebody connects may serve that one on.
                await asyncio.sleep(0.01)
            assert not waiting.done()
        with pytest.raises(Unreachable, match=str(port)):
            await waiting
        await transport.close()


async def test_a_server_that_accepts_and_says_nothing_is_given_up_at_the_deadline() -> None:
    world = Deployment()
    async with answering(b"") as port:
        servers = [WindowServer(aggregator_id=AggregatorId("alpha"), endpoint=f"127.0.0.1:{port}")]
        tls = tls_files(SERVER_AUTHORITY, world.identity())
        rpc = GrpcTransport(deployment="test", servers=servers, tls=tls, call_timeout_s=0.5)
        mqtt = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=0.5)

        async with asyncio.timeout(60):
            with pytest.raises(Unreachable):
                await rpc.list_questions()
            await rpc.close()
            async with nothing_left_behind():
                with pytest.raises(Unreachable, match="did not answer within"):
                    await mqtt.list_questions()
                await mqtt.close()


@asynccontextmanager
async def answering(answer: bytes, *, hang_up: bool = False) -> AsyncIterator[int]:
    """A server that answers the first bytes of each connection, then hangs up at the next or says nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        if hang_up:
            if answer:
                await reader.read(1000)
            writer.transport.abort()

    async with listening(serve) as port:
        yield port


CONNECTION_ACCEPTED = bytes.fromhex("20020000")


@pytest.mark.parametrize("answer", [b"", CONNECTION_ACCEPTED], ids=["connection", "subscription"])
async def test_a_broker_that_hangs_up_before_it_acknowledges_is_noticed_at_once(answer: bytes) -> None:
    async with asyncio.timeout(40), answering(answer, hang_up=True) as port, nothing_left_behind():
        transport = MqttTransport(deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=60)
        with pytest.raises(Unreachable, match=str(port)):
            await transport.list_questions()
        await transport.close()


@pytest.mark.parametrize("answer", [b"", CONNECTION_ACCEPTED], ids=["connection", "subscription"])
async def test_a_device_that_gives_up_at_any_moment_leaves_no_connection_behind(answer: bytes) -> None:
    async with answering(answer) as port, nothing_left_behind():
        for turns in range(30):
            transport = MqttTransport(
                deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", call_timeout_s=60
            )
            async with asyncio.timeout(40), nothing_left_behind():
                waiting = asyncio.create_task(transport.list_questions())
                for _ in range(turns):
                    await asyncio.sleep(0.0002)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await transport.close()
        # The library connects in threads, which go on by themselves.
        await asyncio.get_running_loop().shutdown_default_executor()


# The MQTT library leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_over_tls_must_be_one_of_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_transport, "_OFFER_WAIT_S", 0.2)
    port = free_port()
    credential = SERVER_AUTHORITY.issue_new(Purpose.BROKER, "broker", ["127.0.0.1"])
    save_certificates(tmp_path / "broker.crt", [credential.certificate])
    save_private_key(tmp_path / "broker.key", credential.private_key)
    save_certificates(tmp_path / "ca.crt", [SERVER_AUTHORITY.certificate])
    save_certificates(tmp_path / "other.crt", [CertificateAuthority.create("another").certificate])

    async with mqtt_broker(port, tmp_path / "broker.crt", tmp_path / "broker.key"):
        for name, trusted in (("ca.crt", True), ("other.crt", False)):
            login = MqttLogin(ca_file=tmp_path / name)
            transport = MqttTransport(
                deployment="test", user=lambda: CAR, broker=f"127.0.0.1:{port}", login=login, call_timeout_s=3
            )
            if trusted:
                assert await transport.list_questions() == ()
            else:
                with pytest.raises(Unreachable, match="certificate"):
                    await transport.list_questions()
            await transport.close()


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (MqttLogin(ca_file=Path("/nowhere/ca.crt")), "mqtt.ca_file"),
        (MqttLogin(username="u", password_file=Path("/nowhere/password")), "mqtt.password_file"),
    ],
)
async def test_a_login_whose_files_cannot_be_read_is_named_and_tried_again(login: MqttLogin, said: str) -> None:
    transport = MqttTransport(deployment="test", user=lambda: CAR, broker="127.0.0.1:1", login=login)

    with pytest.raises(ConfigError, match=said):
        login.password(), login.tls_context()
    with pytest.raises(Unreachable, match=said):
        await transport.list_questions()


async def test_a_connection_that_closes_before_the_loop_gets_to_it_leaves_other_sockets_alone() -> None:
    class Library:
        def loop_write(self) -> None:
            raise BrokenPipeError

    transport = MqttTransport(deployment="test", user=lambda: CAR, broker="127.0.0.1:1")
    client = transport._new_connection()
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context["message"]))
    mine, peer = socket.socketpair()
    number = mine.fileno()
    client._on_socket_register_write(Library(), None, mine)  # type: ignore[arg-type]
    mine.close()
    other, other_peer = socket.socketpair()
    await asyncio.sleep(0)

    assert number in (other.fileno(), other_peer.fileno())
    assert not asyncio.get_running_loop().remove_writer(number)
    assert not client._disconnected.done()
    assert troubles == []
    client._on_socket_register_write(Library(), None, peer)  # type: ignore[arg-type]
    with pytest.raises(BrokenPipeError):
        await client._disconnected
    asyncio.get_running_loop().remove_writer(peer.fileno())
    for one in (peer, other, other_peer):
        one.close()


async def test_a_cancellation_that_comes_together_with_an_acknowledgement_is_not_lost() -> None:
    client = MqttTransport(deployment="test", user=lambda: CAR, broker="127.0.0.1:1")._new_connection()
    acknowledged = asyncio.Event()
    waiting = asyncio.create_task(client._wait_for(acknowledged.wait(), None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    acknowledged.set()
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
