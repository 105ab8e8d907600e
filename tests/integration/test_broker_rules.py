"""Who may publish and read what at the broker as it is shipped: mosquitto, its files of deploy/, real certificates."""

import asyncio
import itertools
import re
import signal
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import aiomqtt
import pytest
from fleetcount.__main__ import run_command
from fleetcount.keys.describing import fingerprint_of
from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.transport import mqtt_inbox
from fleetcount_aggregator.transport.mqtt_withdrawing import Withdrawing
from fleetcount_protocol.channel.certificates import load_certificate
from fleetcount_protocol.channel.user_names import certified_name
from fleetcount_protocol.ids import AggregatorId, QuestionId, SessionId, UserName, WindowId
from fleetcount_protocol.limits import MAX_MQTT_PACKET_BYTES
from fleetcount_protocol.wire import topics
from fleetcount_protocol.wire.device import (
    RELEASE_ANSWER,
    SESSION_REPLY,
    SESSION_REQUEST,
)
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_simulator.network.brokers import find_mosquitto
from fleetcount_simulator.network.ports import free_ports

from tests.support.broker import mosquitto_version
from tests.support.shipped_broker import DEPLOY, client, mosquitto, running, tls_to

if TYPE_CHECKING:
    from fleetcount_aggregator.host.host import Host

NAME = "bologna"
WINDOW, QUESTION, SESSION = WindowId(bytes(32)), QuestionId(bytes(32)), SessionId(bytes(16))
AGGREGATORS = ("alpha", "beta")
SLOT = "alpha-slot1"
DEVICES = ("car", "thief")
END = "end"
UNBOUND = re.compile(r"ACL pattern '(\S+)' does not contain '%c' or '%u'")


@pytest.fixture
def enrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An enrolment directory with certificates of two aggregators, a broker, two devices and an analyst."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): its access rules NOT tested")
    monkeypatch.chdir(tmp_path)
    assert run_command(["pki", "init", "--output", "PKI", "--deployment", NAME]) == 0
    said = {
        **{name: ["aggregator", "--name", name, "--host", "localhost"] for name in AGGREGATORS},
        SLOT: ["slot", "--name", "alpha", "--slot", "1"],
        "broker": ["broker", "--name", "broker", "--host", "localhost"],
        "analyst": ["reader", "--name", "analyst"],
        **{name: ["enrol"] for name in DEVICES},
    }
    for name, (command, *options) in said.items():
        assert run_command(["pki", "request", "--output", name]) == 0
        issue = ["pki", command, "--pki", "PKI", "--csr", f"{name}.csr", "--output", f"{name}.crt", *options]
        assert run_command(issue) == 0
    return tmp_path


def every_topic(users: dict[str, UserName]) -> dict[str, tuple[set[str], set[str]]]:
    """Return every kind of topic of every aggregator and device: who may publish there, and who reads it.

    A further connection of an aggregator takes and answers what devices send as the first does, and announces nothing.
    """
    everybody = {*AGGREGATORS, SLOT, *DEVICES, "analyst"}
    found: dict[str, tuple[set[str], set[str]]] = {}
    for name in AGGREGATORS:
        place, connections = (NAME, AggregatorId(name)), {name, SLOT} if name == "alpha" else {name}
        for topic in (
            topics.release_topic(*place, WINDOW),
            topics.question_topic(*place, QUESTION),
        ):
            found[topic] = {name}, everybody
        for device in DEVICES:
            user = users[device]
            for topic in (topics.session_topic(*place, user), topics.report_topic(*place, user, WINDOW)):
                found[topic] = {device}, connections
            for topic in (
                topics.session_reply_topic(*place, user, SESSION),
                topics.receipt_topic(*place, user, SESSION),
            ):
                found[topic] = connections, {device}
    return found


async def heard(spy: aiomqtt.Client) -> set[tuple[str, str]]:
    """Return topic and publisher of everything that comes before the end."""
    found: set[tuple[str, str]] = set()
    async for message in spy.messages:
        who = bytes(message.payload).decode()
        if who == END:
            return found
        found.add((str(message.topic), who))
    raise AssertionError("the broker hung up")


@pytest.mark.processes
async def test_everybody_publishes_and_reads_its_own_and_nobody_takes_over_another_s_place(enrolled: Path) -> None:
    """Everybody reads all it can and publishes everywhere, all under the client id of one of the aggregators."""
    names = (*AGGREGATORS, SLOT, *DEVICES, "analyst")
    allowed = every_topic({name: certified_name(load_certificate(enrolled / f"{name}.crt")) for name in DEVICES})
    [port] = free_ports("127.0.0.1", 1)
    async with asyncio.timeout(60), mosquitto(enrolled, port, NAME), AsyncExitStack() as stack:
        with pytest.raises(aiomqtt.MqttError):
            await stack.enter_async_context(client(enrolled, port, None))
        parties = {
            name: await stack.enter_async_context(client(enrolled, port, name, "fc-bologna-alpha")) for name in names
        }
        for party in parties.values():
            await party.subscribe("#", qos=1)
        for (name, party), topic in itertools.product(parties.items(), (*allowed, "elsewhere")):
            await party.publish(topic, name.encode(), qos=1)
        # Each party's last word to itself: what reaches it has reached it by then.
        await parties["alpha"].publish(topics.release_topic(NAME, AggregatorId("alpha"), WINDOW), END.encode(), qos=1)
        found = dict(zip(names, await asyncio.gather(*map(heard, parties.values())), strict=True))

    for name in names:
        own = {(topic, who) for topic, (who_may, readers) in allowed.items() for who in who_may if name in readers}
        assert found[name] == own, name


@pytest.mark.processes
async def test_who_takes_an_outcome_away_leaves_to_slot_0_what_waits_for_it(enrolled: Path) -> None:
    """The certificate that it has is slot 0's, and so is the place at this broker."""
    place = NAME, AggregatorId("alpha")
    user = certified_name(load_certificate(enrolled / "car.crt"))
    request, outcome = topics.session_topic(*place, user), topics.release_topic(*place, WINDOW)
    own = SimpleNamespace(identity=SimpleNamespace(deployment=NAME), aggregator_id=place[1])
    [port] = free_ports("127.0.0.1", 1)
    async with asyncio.timeout(60), mosquitto(enrolled, port, NAME):
        table = MqttTable(
            broker=f"localhost:{port}",
            ca_file=enrolled / "PKI" / "aggregators.crt",
            certificate_file=enrolled / "alpha.crt",
            key_file=enrolled / "alpha.key",
        )
        withdraw = Withdrawing(cast("Host", own), table)
        async with client(enrolled, port, "alpha", "slot-0", clean_session=False) as alpha:
            await alpha.subscribe(request, qos=1)
            await alpha.publish(outcome, b"an outcome", qos=1, retain=True)
        async with client(enrolled, port, "car") as car:
            await car.publish(request, b"waits", qos=1)

            assert await withdraw(WINDOW)

            async with client(enrolled, port, "alpha", "slot-0", clean_session=False) as alpha:
                waited = await anext(aiter(alpha.messages))
            assert (str(waited.topic), waited.payload) == (request, b"waits")
            await car.subscribe([(outcome, 1), (topics.receipt_filter(NAME, user), 1)])
            async with client(enrolled, port, "alpha") as alpha:
                await alpha.publish(topics.receipt_topic(*place, user, SESSION), END.encode(), qos=1)
            assert (await anext(aiter(car.messages))).payload == END.encode(), "no outcome is kept"


def test_the_shipped_files_fit_the_protocol_and_hold_no_comment_behind_a_value() -> None:
    rows = (DEPLOY / "mosquitto.conf").read_text().splitlines()
    settings = dict(row.split(maxsplit=1) for row in rows if row and not row.startswith("#"))
    messages = (RELEASE_ANSWER, QUESTION_OFFER, SESSION_REQUEST, SESSION_REPLY, UPLOAD, UPLOAD_ANSWER)

    assert [row for row in rows if "#" in row and not row.startswith("#")] == []
    assert "per_listener_settings" not in settings, "deprecated, and gone with mosquitto 3"
    # A broker that takes less cannot keep a record; one that takes more lets a device end an aggregator's connection.
    assert int(settings["max_packet_size"]) == MAX_MQTT_PACKET_BYTES
    assert max(one.largest for one in messages) + topics.MAX_TOPIC_BYTES + 9 <= MAX_MQTT_PACKET_BYTES
    # Beyond three fourths of the room, more than who has something ever fills; below seven eighths, where reading ends.
    room = mqtt_inbox._ROOM
    for name, total in (("max_inflight_messages", room.calls), ("max_inflight_bytes", room.bytes_in_memory)):
        assert 3 / 4 < int(settings[name]) / total < 7 / 8


def let_in(port: int, tls: ssl.SSLContext) -> bool:
    """Return whether the broker answers a client's greeting (MQTT 3.1.1, section 3.1), and does not hang up."""
    with socket.create_connection(("localhost", port), timeout=30) as plain:
        try:
            with tls.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
                return secured.recv(4) == b"\x20\x02\x00\x00"
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.processes
async def test_a_reload_brings_authorities_and_takes_revoked_certificates_away_and_the_log_has_no_warning(
    enrolled: Path,
) -> None:
    """Without `crlfile` mosquitto would not read `cafile` again."""
    assert run_command(["pki", "init", "--output", "NEW", "--deployment", NAME]) == 0
    assert run_command(["pki", "request", "--output", "later"]) == 0
    assert run_command(["pki", "enrol", "--pki", "NEW", "--csr", "later.csr", "--output", "later.crt"]) == 0
    here = enrolled / "etc"

    def put(*directories: str) -> None:
        for name in ("clients.crt", "clients.crl"):
            (here / name).write_bytes(b"".join((enrolled / one / name).read_bytes() for one in directories))

    async def reloaded(broker: asyncio.subprocess.Process, *expected: bool) -> None:
        broker.send_signal(signal.SIGHUP)
        while await found() != list(expected):
            await asyncio.sleep(0.05)

    async def found() -> list[bool]:
        pairs = [(enrolled / f"{name}.crt", enrolled / f"{name}.key") for name in ("car", "later", "thief")]
        return [
            await asyncio.to_thread(let_in, port, tls_to(enrolled / "PKI" / "aggregators.crt", one)) for one in pairs
        ]

    [port] = free_ports("127.0.0.1", 1)
    async with asyncio.timeout(60), mosquitto(enrolled, port, NAME) as broker:
        first = await found()
        put("PKI", "NEW")
        await reloaded(broker, True, True, True)
        assert run_command(["pki", "revoke", "--pki", "PKI", "--certificate", "thief.crt"]) == 0
        put("PKI", "NEW")
        await reloaded(broker, True, True, False)
        put("NEW")
        await reloaded(broker, False, True, False)

    said = (enrolled / "mosquitto.log").read_text()
    assert first == [True, False, True]
    # Mosquitto 2.0 warns of a pattern that is for everybody, and knows no other way to say that. Of no third one.
    noted = {f"fleetcount/v1/{NAME}/+/{kind}/+" for kind in ("release", "question")}
    warned = [line for line in said.splitlines() if "arning" in line or "deprecated" in line]
    unbound = {found[1] for line in warned if (found := UNBOUND.search(line))}
    assert unbound <= noted if mosquitto_version() >= (2, 1) else unbound == noted
    assert [line for line in warned if not UNBOUND.search(line) and "should not be run as root" not in line] == []


@pytest.mark.processes
async def test_a_broker_lets_in_an_operator_that_came_later_to_its_own_topics_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): a later operator NOT let in")
    monkeypatch.chdir(tmp_path)
    [port] = free_ports("127.0.0.1", 1)
    described = {one: f"{one}/{one}.descriptor.toml" for one in (*AGGREGATORS, "gamma")}
    two = [described[one] for one in AGGREGATORS]
    for command in (
        *(["operator", "new", one, "--host", f"{one}.example"] for one in described),
        ["broker", "new", "broker", "--host", f"localhost:{port}", *two],
        ["device", "new", "car", described["alpha"], described["gamma"]],
        ["operator", "admit", "broker/broker.request", "--directory", "alpha", "--yes"],
        ["operator", "admit", "car/car.request", "--directory", "gamma", "--yes"],
    ):
        assert run_command(command) == 0, command
    pairs = {one: (Path(one, "keys/aggregator.crt"), Path(one, "keys/aggregator.key")) for one in described}
    pairs["car"] = Path("car/car.crt"), Path("car/car.key")
    tls = {name: tls_to(Path("alpha/pki/aggregators.crt"), pair) for name, pair in pairs.items()}

    async def found() -> dict[str, bool]:
        return {name: await asyncio.to_thread(let_in, port, one) for name, one in tls.items()}

    async with asyncio.timeout(60), running(Path("broker/mosquitto.conf"), port, tmp_path / "log") as broker:
        first = await found()
        join = ["broker", "join", described["gamma"], "--directory", "broker"]
        assert run_command([*join, "--fingerprint", fingerprint_of(Path(described["gamma"]))]) == 0
        broker.send_signal(signal.SIGHUP)
        while not all((await found()).values()):
            await asyncio.sleep(0.05)
        async with (
            aiomqtt.Client("localhost", port, tls_context=tls["car"]) as car,
            aiomqtt.Client("localhost", port, tls_context=tls["gamma"]) as gamma,
        ):
            await car.subscribe("#", qos=1)
            for name in ("alpha", "gamma"):
                await gamma.publish(topics.release_topic("fleet", AggregatorId(name), WINDOW), b"gamma's", qos=1)
            await gamma.publish(topics.release_topic("fleet", AggregatorId("gamma"), WINDOW), END.encode(), qos=1)
            heard_of = await heard(car)

    assert first == {"alpha": True, "beta": True, "gamma": False, "car": False}
    assert heard_of == {(topics.release_topic("fleet", AggregatorId("gamma"), WINDOW), "gamma's")}
