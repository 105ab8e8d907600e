"""Intake over MQTT: nothing is acknowledged before it is durable, and a lost broker is left without a trace."""

import asyncio
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest
from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.storage.ended import FIRST_KEY, read_archived
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import Lifecycle
from fleetcount_aggregator.transport import mqtt_announcing, mqtt_intake, mqtt_subscribing
from fleetcount_aggregator.transport.mqtt_inbox import Arrival, Inbox
from fleetcount_aggregator.transport.mqtt_intake import MqttIntake
from fleetcount_aggregator.transport.mqtt_withdrawing import Withdrawing
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.session import new_session
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, SessionId, UserName, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    Receipt,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionReply,
    SessionRequest,
)
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import (
    RELEASE_ANSWER,
    SESSION_REPLY,
    SESSION_REQUEST,
)
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, Upload, UploadAnswer
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_protocol.wire.topics import (
    question_filter,
    question_topic,
    receipt_topic,
    release_topic,
    report_topic,
    session_reply_topic,
    session_topic,
)
from fleetcount_transport.admission.admission import BusyError
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import Publication
from fleetcount_transport.settings import read_settings
from fleetcount_transport.toml_table import ConfigError, Source, Table

from tests.support.aggregators import START, Network, TestDevice, device_identity
from tests.support.expiries import on_the_hour
from tests.support.leftovers import nothing_left_behind
from tests.support.listening import listening

ALPHA = AggregatorId("alpha")
CAR = UserName("d-1")
CONNECT, PUBLISH, PUBACK, SUBSCRIBE = 1, 3, 4, 8


@asynccontextmanager
async def taking(core: Core, port: int, inflight: int = 20) -> AsyncIterator[None]:
    """Run the intake of an aggregator, and end it without a trace."""
    intake = MqttIntake(core.context, core.service, MqttTable(broker=f"127.0.0.1:{port}", inflight=inflight))
    async with nothing_left_behind():
        running = asyncio.create_task(intake.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def packet(kind: int, body: bytes) -> bytes:
    """Return an MQTT packet of a first byte and a body."""
    length, encoded = len(body), bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([kind]) + bytes(encoded) + body


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the first byte of the next packet and its body."""
    kind, length, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        digit = (await reader.readexactly(1))[0]
        length |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return kind, await reader.readexactly(length)


class FakeBroker:
    """Just enough of MQTT 3.1.1: it acknowledges everything, delivers one QoS 1 message, and dies when it is told to.

    `dies_at` are kinds of packets, one a connection from the first: it answers such a packet with a reset.
    """

    def __init__(self, topic: str = "", payload: bytes = b"", dies_at: Sequence[int] = ()) -> None:
        self._message = packet(0x32, len(topic).to_bytes(2) + topic.encode() + (7).to_bytes(2) + payload)
        self._topic = topic
        self._dies_at = list(dies_at)
        self.connections = 0
        self.acknowledged = asyncio.Event()
        self.kept = asyncio.Event()
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        deadly = self._dies_at.pop(0) if self._dies_at else 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while (kind := (await read_packet(reader)))[0] >> 4 != deadly:
                self._answer(kind[0] >> 4, kind[1], writer)
        self.closed.set()
        writer.transport.abort()

    def _answer(self, kind: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == CONNECT:
            writer.write(packet(0x20, b"\x00\x00"))
        elif kind == SUBSCRIBE:
            writer.write(packet(0x90, body[:2] + b"\x01"))
            if self._topic and b"/report" in body:
                writer.write(self._message)
        elif kind == PUBLISH:
            length = int.from_bytes(body[:2])
            writer.write(packet(0x40, body[2 + length : 4 + length]))
            self.kept.set()
        elif kind == PUBACK:
            self.acknowledged.set()


@pytest.fixture
async def broker_port() -> AsyncIterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fleetcount_simulator.network.broker", "--port", str(port), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        while process.returncode is None:
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


def published(instalment: Instalment, aggregator_id: AggregatorId = ALPHA) -> bytes:
    return UPLOAD.encode(Upload.of(aggregator_id, [instalment]))


async def next_on(client: "aiomqtt.Client", kind: str) -> bytes:
    """Return the next message of a kind: a retained one may come again at any time."""
    async for message in client.messages:
        if kind in str(message.topic).split("/") and message.payload:
            return bytes(message.payload)
    raise AssertionError("the broker has gone away")


@pytest.mark.processes
async def test_mqtt_takes_reports_counts_poison_and_goes_on(broker_port: int) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core = network.core(0)
    device = TestDevice(network, window, 0)
    aggregator = network.seats[0].aggregator
    request, opening = new_session(
        aggregator, aggregator.hpke_keys[0], device_identity(0), on_the_hour(START, 2), SystemRandom()
    )
    owner = key_name(device_identity(0).certificate)
    reports = report_topic("test", ALPHA, CAR, window.window_id)

    async with asyncio.timeout(60), taking(core, broker_port), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe(question_filter("test"), qos=1)
        announced = QUESTION_OFFER.decode(await next_on(client, "question"))
        await client.subscribe(session_reply_topic("test", ALPHA, owner, request.session_id), qos=1)
        await client.subscribe(receipt_topic("test", ALPHA, CAR, request.session_id), qos=1)
        await client.publish(session_topic("test", ALPHA, owner), SESSION_REQUEST.encode(request), qos=1)
        accepted = SESSION_REPLY.decode(await next_on(client, "session-reply"))
        assert isinstance(accepted, SessionAccepted)
        device.secrets = [opening.finish(accepted)] * 2
        for payload in (b"", b"poison", b"\x00" * 1000):
            await client.publish(reports, payload, qos=1)
        for _ in range(40):
            await client.publish(reports, published(device.first(0)[0]), qos=1)
        answers = [UPLOAD_ANSWER.decode(await next_on(client, "receipt")).only_one for _ in range(40)]

    assert window_at(announced.signed.question, 0) == window
    assert set(map(type, answers)) == {Receipt}
    assert len(set(answers)) == 1
    assert b"fleetcount_poison_messages_total 3.0" in core.context.host.metrics.render()


@pytest.mark.processes
async def test_an_offer_is_retained_follows_its_orders_and_goes_when_the_question_is_over(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_announcing, "FOLLOW_S", 0.1)
    network = Network(2)
    await network.start_all()
    question = await network.stand()
    core, key = network.core(0), network.seats[0].signing_key
    stop = QuestionOrder(
        question_id=question.question_id, number=1, action=OrderAction.STOP, aggregator_id=ALPHA, from_window=4
    )

    async with asyncio.timeout(60), taking(core, broker_port), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe(question_topic("test", ALPHA, question.question_id), qos=1)
        first = QUESTION_OFFER.decode(await next_on(client, "question"))
        await take_own_order(core.context.questions, sign_order(stop, key))
        second = QUESTION_OFFER.decode(await next_on(client, "question"))
        while second.orders == ():
            second = QUESTION_OFFER.decode(await next_on(client, "question"))
        await network.advance_to(question.schedule.end)
        async for message in client.messages:
            if not message.payload:
                break

    assert first.signed.question == second.signed.question == question
    assert [one.key_list.aggregator_id for one in first.key_lists] == [ALPHA, "beta"]
    assert [one.order for one in second.orders] == [stop]


@pytest.mark.processes
async def test_outcomes_are_retained_once_a_connection_also_those_of_windows_that_left_memory(
    broker_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    question = await network.stand()
    ids = [window_at(question, index).window_id for index in range(2)]
    asked: list[WindowId] = []
    answer = DeviceService.release

    async def counted(service: DeviceService, window_id: WindowId) -> ReleaseAnswer:
        asked.append(window_id)
        return await answer(service, window_id)

    async def end(index: int) -> None:
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens)
        await network.look_after_all()
        await network.run_to_the_end(window)

    await end(0)
    await network.stop(0)
    await network.start(0)
    monkeypatch.setattr(DeviceService, "release", counted)

    core = network.core(0)
    async with asyncio.timeout(60), aiomqtt.Client("127.0.0.1", broker_port) as client, taking(core, broker_port):
        for index, window_id in enumerate(ids):
            if index:
                await end(index)
            await client.subscribe(release_topic("test", ALPHA, window_id), qos=1)
            assert RELEASE_ANSWER.decode(await next_on(client, "release")).abort_reason == "too_few_reports"
        await asyncio.sleep(4 * mqtt_subscribing.FOLLOW_S)

    assert asked[:2] == ids, "each once, whatever else has ended"
    assert len(asked) == len(set(asked))
    assert ids[0] not in network.core(0).context.windows
    await network.stop_all()


@pytest.mark.processes
async def test_an_outcome_is_taken_away_from_the_broker_when_its_window_is_retired(broker_port: int) -> None:
    network = Network(2)
    network.limits = replace(network.limits, keep_digests_s=60)
    await network.start_all()
    window = await network.ask(expiry=START + 5_000)
    core = network.core(0)

    async with asyncio.timeout(60), aiomqtt.Client("127.0.0.1", broker_port) as client, taking(core, broker_port):
        await client.subscribe(release_topic("test", ALPHA, window.window_id), qos=1)
        await network.run_to_the_end(window)
        kept = await next_on(client, "release")
        await network.advance_to(window.expiry + 200)
        while not await core.context.store.read(read_archived, Lifecycle.RETIRED, FIRST_KEY, 10**11):
            await network.look_after_all()
            await network.advance_to(int(network.clock.now()) + 61)
            await asyncio.sleep(0.05)
        # The broker says so with an empty message.
        async for message in client.messages:
            if not message.payload:
                break

    assert RELEASE_ANSWER.decode(kept).abort_reason == "too_few_reports"
    await network.stop_all()


@pytest.mark.processes
async def test_a_coordinator_without_the_connection_takes_away_what_another_process_put_there(broker_port: int) -> None:
    network = Network(2)
    network.limits = replace(network.limits, keep_digests_s=60)
    await network.start_all()
    window = await network.ask(expiry=START + 5_000)
    core, table = network.core(0), MqttTable(broker=f"127.0.0.1:{broker_port}")
    topic = release_topic("test", ALPHA, window.window_id)
    async with asyncio.timeout(60), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe(topic, qos=1)
        async with taking(core, broker_port):
            await network.run_to_the_end(window)
            await next_on(client, "release")
        core.context.windows.outcomes.withdraw = Withdrawing(core.context.host, replace(table, broker="127.0.0.1:1"))
        await network.advance_to(window.expiry + 200)
        await network.look_after_all()
        await network.look_after_all()
        assert not await core.context.store.read(read_archived, Lifecycle.RETIRED, FIRST_KEY, 10**11), (
            "a broker that is away keeps it"
        )

        core.context.windows.outcomes.withdraw = Withdrawing(core.context.host, table)
        await network.advance_to(int(network.clock.now()) + 61)
        await network.look_after_all()

        assert await core.context.store.read(read_archived, Lifecycle.RETIRED, FIRST_KEY, 10**11)
        async for message in client.messages:
            if not message.payload:
                break
    await network.stop_all()


@pytest.mark.processes
async def test_mqtt_acknowledges_nothing_that_was_not_stored(broker_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails once: the message comes again and is stored then."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core = network.core(0)
    device = TestDevice(network, window, 0)
    await device.open_sessions()
    store = core.context.store
    honest, calls = store.add_instalments, 0

    async def failing_once(rows: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreError("disk")
        return await honest(rows)  # type: ignore[arg-type]  # passes on what it was given.

    monkeypatch.setattr(store, "add_instalments", failing_once)

    async with asyncio.timeout(60), taking(core, broker_port), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe(question_filter("test"), qos=1)
        await next_on(client, "question")
        await client.subscribe(receipt_topic("test", ALPHA, CAR, device.secrets[0].session_id), qos=1)
        payload = published(device.first(0)[0])
        receipt = None
        while receipt is None:
            await client.publish(report_topic("test", ALPHA, CAR, window.window_id), payload, qos=1)
            try:
                async with asyncio.timeout(1):
                    receipt = UPLOAD_ANSWER.decode(await next_on(client, "receipt")).only_one
            except TimeoutError:
                continue

    assert isinstance(receipt, Receipt)
    assert calls >= 2


def arrived(window: Window, payload: bytes) -> Arrival:
    topic = report_topic("test", ALPHA, CAR, window.window_id)
    return Arrival(CAR, window.window_id, Publication(topic, payload, packet_id=1), nullcontext())


async def test_a_message_that_makes_the_code_fail_is_counted_and_spoils_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core = network.core(0)
    devices = [TestDevice(network, window, number) for number in range(4)]
    for device in devices:
        await device.open_sessions()
    honest = core.service.take

    async def take(upload: Upload) -> UploadAnswer:
        if any(one.report_id == devices[1].report_id for one in upload.instalments()):
            raise KeyError("secret-canary")
        return await honest(upload)

    monkeypatch.setattr(core.service, "take", take)
    intake = MqttIntake(core.context, core.service, MqttTable(broker="127.0.0.1:1"))

    group = [arrived(window, published(one.first(0)[0])) for one in devices]
    answers = await intake._serve(intake._take_reports, group)

    receipts = [UPLOAD_ANSWER.decode(payload).only_one for _, payload in answers]
    assert [one.report_id for one in receipts] == [devices[place].report_id for place in (0, 2, 3)]
    assert {type(one) for one in receipts} == {Receipt}
    assert b"fleetcount_mqtt_failures_total 1.0" in core.context.host.metrics.render()
    assert b"fleetcount_poison_messages_total 0.0" in core.context.host.metrics.render()
    assert "canary" not in "".join(capsys.readouterr())


async def test_a_message_that_makes_the_code_fail_is_acknowledged_and_intake_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()

    async def take(_: Upload) -> UploadAnswer:
        raise KeyError

    monkeypatch.setattr(core.service, "take", take)
    broker = FakeBroker(report_topic("test", ALPHA, CAR, window.window_id), published(device.first(0)[0]))

    async with asyncio.timeout(60), listening(broker.serve) as port, taking(core, port):
        await broker.acknowledged.wait()

    assert broker.connections == 1


async def test_a_store_that_fails_leaves_the_whole_group_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()

    async def full(_: object) -> object:
        raise StoreError("disk full")

    monkeypatch.setattr(core.context.store, "add_instalments", full)
    intake = MqttIntake(core.context, core.service, MqttTable(broker="127.0.0.1:1"))
    message = arrived(window, published(device.first(0)[0]))

    with pytest.raises(StoreError):
        await intake._serve(intake._take_reports, [message])


async def test_a_failure_beside_the_messages_ends_the_connection_and_not_the_aggregator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, broker = await announcing_core(), FakeBroker()
    honest, calls = core.service.offered, 0

    def failing_once() -> list[InstalledQuestion]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("secret-canary")
        return honest()

    monkeypatch.setattr(core.service, "offered", failing_once)

    async with asyncio.timeout(60), listening(broker.serve) as port, taking(core, port):
        await broker.kept.wait()

    assert broker.connections == 2
    assert b"fleetcount_mqtt_failures_total 1.0" in core.context.host.metrics.render()


async def test_mqtt_acknowledges_after_the_commit_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()
    committing, may_commit = asyncio.Event(), asyncio.Event()
    honest = core.context.store.add_instalments

    async def slow(rows: object) -> object:
        committing.set()
        await may_commit.wait()
        return await honest(rows)  # type: ignore[arg-type]  # passes on what it was given.

    monkeypatch.setattr(core.context.store, "add_instalments", slow)
    broker = FakeBroker(report_topic("test", ALPHA, CAR, window.window_id), published(device.first(0)[0]))

    async with asyncio.timeout(60), listening(broker.serve) as port, taking(core, port):
        await committing.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.acknowledged.wait(), 0.3)
        may_commit.set()
        await broker.acknowledged.wait()


async def announcing_core() -> Core:
    """Return an aggregator that leads a window and so has something to subscribe to and to publish."""
    network = Network(2)
    await network.start_all()
    await network.ask(values=4)
    return network.core(0)


@pytest.mark.parametrize("packet_kind", [CONNECT, SUBSCRIBE, PUBLISH])
async def test_an_acknowledgement_that_cannot_come_is_not_waited_for(
    packet_kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that dies three times at the first packet it should acknowledge, and lives the fourth time."""
    monkeypatch.setattr(mqtt_intake, "_ACKNOWLEDGED_S", 3600.0)
    core, broker = await announcing_core(), FakeBroker(dies_at=[packet_kind] * 3)

    async with asyncio.timeout(60), listening(broker.serve) as port, taking(core, port):
        await broker.kept.wait()

    assert broker.connections == 4


async def test_given_up_at_any_moment_a_connection_leaves_nothing_behind() -> None:
    core, broker = await announcing_core(), FakeBroker()

    async with listening(broker.serve) as port, nothing_left_behind():
        for turns in range(40):
            async with asyncio.timeout(60), taking(core, port):
                while turns > 5 and not broker.connections:
                    await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0.0002)
            broker.connections = 0
        # The library connects in threads, which go on by themselves.
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_given_up_while_the_library_still_connects_in_a_thread_a_connection_is_closed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, broker = await announcing_core(), FakeBroker()
    connecting, may_connect = threading.Event(), threading.Event()
    library = aiomqtt.Client._client_connect

    def slow(client: aiomqtt.Client) -> None:
        connecting.set()
        may_connect.wait()
        library(client)

    monkeypatch.setattr(aiomqtt.Client, "_client_connect", slow)
    async with asyncio.timeout(60), listening(broker.serve) as port, nothing_left_behind():
        async with taking(core, port):
            await asyncio.to_thread(connecting.wait)
        may_connect.set()
        await broker.closed.wait()

    assert broker.connections == 1


@pytest.mark.processes
async def test_a_group_is_all_that_has_arrived_up_to_the_broker_s_limit(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first message is committed fifty more arrive: they are two groups, of thirty and of what is left."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()
    may_commit, groups, here = asyncio.Event(), list[int](), list[Publication]()
    honest, put = core.service.take, Inbox.put

    def counted(inbox: Inbox, message: Publication) -> bool:
        here.append(message)
        return put(inbox, message)

    async def slow(upload: Upload) -> UploadAnswer:
        groups.append(sum(map(len, upload.runs)))
        await may_commit.wait()
        return await honest(upload)

    monkeypatch.setattr(core.service, "take", slow)
    monkeypatch.setattr(Inbox, "put", counted)
    payload, topic = (
        published(device.first(0)[0]),
        report_topic("test", ALPHA, CAR, window.window_id),
    )

    async with (
        asyncio.timeout(60),
        taking(core, broker_port, inflight=30),
        aiomqtt.Client("127.0.0.1", broker_port) as client,
    ):
        await client.subscribe(question_filter("test"), qos=1)
        await next_on(client, "question")
        await client.subscribe(receipt_topic("test", ALPHA, CAR, device.secrets[0].session_id), qos=1)
        await client.publish(topic, payload, qos=1)
        while not groups:
            await asyncio.sleep(0.01)
        for _ in range(50):
            await client.publish(topic, payload, qos=1)
        while len(here) < 51:  # The broker has acknowledged all; it passes them on in its own time.
            await asyncio.sleep(0.01)
        may_commit.set()
        for _ in range(51):
            assert isinstance(UPLOAD_ANSWER.decode(await next_on(client, "receipt")).only_one, Receipt)

    assert groups == [1, 30, 20]


@pytest.mark.parametrize("inflight", ["0", "65536", "true", '"20"'])
def test_a_limit_that_no_broker_has_is_refused_by_name(inflight: str) -> None:
    root = Table(
        Source("a.toml"), "", tomllib.loads(f'mqtt = {{ broker = "127.0.0.1:1883", inflight = {inflight} }}'), None
    )

    with pytest.raises(ConfigError, match=r"mqtt\.inflight is .*from 1 to 65535"):
        read_settings(root, "mqtt", MqttTable)


async def test_a_request_under_another_user_s_name_is_refused_before_any_public_key_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(2)
    await network.start_all()
    core = network.core(0)
    aggregator, victim = network.seats[0].aggregator, device_identity(0)
    request, _ = new_session(aggregator, aggregator.hpke_keys[0], victim, on_the_hour(START, 2), SystemRandom())
    asked: list[object] = []
    honest = core.service.open_sessions

    async def counted(requests: Sequence[SessionRequest], callers: Sequence[Identity]) -> tuple[SessionReply, ...]:
        asked.extend(zip(requests, callers, strict=True))
        return await honest(requests, callers)

    monkeypatch.setattr(core.service, "open_sessions", counted)
    intake = MqttIntake(core.context, core.service, MqttTable(broker="127.0.0.1:1"))
    owner, payload = key_name(victim.certificate), SESSION_REQUEST.encode(request)
    group = [Arrival(user, b"", Publication("", payload, packet_id=1), nullcontext()) for user in (CAR, owner)]

    answers = await intake._serve(intake._open_sessions, group)

    assert asked == [(request, Identity(owner.encode()))]
    assert [topic for topic, _ in answers] == [
        session_reply_topic("test", ALPHA, user, request.session_id) for user in (CAR, owner)
    ]
    refused, accepted = (SESSION_REPLY.decode(payload) for _, payload in answers)
    assert refused == SessionRefused(session_id=request.session_id, reason=RejectReason.BAD_CERTIFICATE)
    assert isinstance(accepted, SessionAccepted)


@pytest.mark.parametrize(
    "fault", ["no message", "no session", "a broken seal", "for another aggregator", "two at once"]
)
async def test_messages_that_fail_are_held_against_the_user_whose_topic_they_came_on(fault: str) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()
    good = device.first(0)[0]
    payload = {
        "no message": b"poison",
        "for another aggregator": published(good, AggregatorId("beta")),
        "two at once": UPLOAD.encode(Upload.of(ALPHA, [good, good])),
        "no session": published(replace(good, session_id=SessionId(bytes(16)))),
        "a broken seal": published(replace(good, ciphertext=bytes(len(good.ciphertext)))),
    }[fault]
    intake = MqttIntake(core.context, core.service, MqttTable(broker="127.0.0.1:1"))
    group = [arrived(window, payload)] * 66

    await intake._serve(intake._take_reports, group)

    with pytest.raises(BusyError):
        core.context.host.admission.check(Identity(CAR.encode()))
    core.context.host.admission.check(Identity(b"d-2"))


@pytest.mark.processes
async def test_an_aggregator_that_holds_the_broker_up_goes_on_serving(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More arrives at once than there is room for: acknowledgements of answers stay unread, and are not waited for."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    core, device = network.core(0), TestDevice(network, window, 0)
    await device.open_sessions()
    may_answer, slowed = asyncio.Event(), asyncio.Event()
    honest, pause = core.service.take, MqttConnection.pause

    async def gated(upload: Upload) -> UploadAnswer:
        await may_answer.wait()
        return await honest(upload)

    def noted(client: MqttConnection) -> None:
        slowed.set()
        pause(client)

    monkeypatch.setattr(core.service, "take", gated)
    monkeypatch.setattr(MqttConnection, "pause", noted)
    large = replace(device.first(0)[0], session_id=SessionId(bytes(16)), ciphertext=bytes(190_000))
    payload, users = published(large), [UserName(f"d-{number}") for number in range(80)]

    async with asyncio.timeout(60), taking(core, broker_port, 5), aiomqtt.Client("127.0.0.1", broker_port) as client:
        await client.subscribe(question_filter("test"), qos=1)
        await next_on(client, "question")
        await client.subscribe("fleetcount/v1/test/+/receipt/+/+", qos=1)
        for user in users:
            await client.publish(report_topic("test", ALPHA, user, window.window_id), payload, qos=1)
        await slowed.wait()
        may_answer.set()
        for _ in users:
            await next_on(client, "receipt")

    assert b"fleetcount_mqtt_connections_total 1.0" in core.context.host.metrics.render()


async def test_an_intake_that_is_ended_while_its_connection_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2)
    await network.start_all()
    intake = MqttIntake(network.core(0).context, network.core(0).service, MqttTable(broker="127.0.0.1:1"))
    connected, fails = asyncio.Event(), asyncio.Event()

    async def failing() -> None:
        await fails.wait()
        raise aiomqtt.MqttError("lost")

    async def session() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            connected.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(intake, "_session", session)
    running = asyncio.create_task(intake.run())
    await connected.wait()
    fails.set()
    await asyncio.sleep(0)
    running.cancel()

    assert await asyncio.wait([running], timeout=5) == ({running}, set())
    assert running.cancelled()
