"""The embedded broker: what it keeps, to whom it hands what, and which bytes it hangs up on."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from fleetcount_protocol.errors import DecodeError
from fleetcount_simulator.network import broker, mqtt_packets, mqtt_sessions
from fleetcount_simulator.network.mqtt_packets import MAX_PACKET_BYTES, Publish, split_packets
from fleetcount_simulator.network.mqtt_sessions import Exchange, Session


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


def connect(name: str, *, flags: int = 2, keepalive_s: int = 0, more: bytes = b"", level: int = 4) -> bytes:
    return packet(0x10, text("MQTT") + bytes((level, flags)) + struct.pack(">H", keepalive_s) + text(name) + more)


def publish(topic: str, payload: bytes, packet_id: int = 7, first: int = 0x32) -> bytes:
    return packet(first, text(topic) + (struct.pack(">H", packet_id) if first & 6 else b"") + payload)


def subscribe(*filters: tuple[str, int], packet_id: int = 9) -> bytes:
    return packet(0x82, struct.pack(">H", packet_id) + b"".join(text(name) + bytes((qos,)) for name, qos in filters))


@dataclass
class Wire:
    """One raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))
        await self.writer.drain()

    async def hear(self) -> bytes:
        async with asyncio.timeout(10):
            head = await self.reader.readexactly(2)
            return head + await self.reader.readexactly(head[1])

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("name", "topic", "under"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/b", "a/b", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "b/a", False),
        ("a/+/c/#", "a/b/c", True),
        ("a/+/c/#", "a/b/d/e", False),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/#", "$SYS/load", True),
    ],
)
def test_a_topic_lies_under_the_filters_of_section_4_7(name: str, topic: str, under: bool) -> None:
    exchange, link = Exchange(), Sent()
    session, _ = exchange.enter("one", clean=True)
    session.resume(link)
    exchange.subscribe(session, [(name, 1)])

    exchange.publish(Publish(topic=topic, payload=b"x", qos=1, retain=False, packet_id=1))

    assert bool(link.packets) is under


class Sent:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.dropped = False

    def send(self, packet: bytes) -> None:
        self.packets.append(packet)

    def drop(self) -> None:
        self.dropped = True

    def payloads(self) -> list[bytes]:
        return [packet[-1:] for packet in self.packets]


def entered(exchange: Exchange, name: str, *, clean: bool) -> tuple[Session, Sent]:
    session, _ = exchange.enter(name, clean=clean)
    link = Sent()
    session.resume(link)
    return session, link


def test_a_message_comes_once_however_many_filters_it_lies_under() -> None:
    exchange = Exchange()
    session, link = entered(exchange, "one", clean=True)
    exchange.subscribe(session, [("a/b", 0), ("a/+", 1), ("#", 0)])

    exchange.publish(Publish(topic="a/b", payload=b"x", qos=1, retain=False, packet_id=1))

    assert len(link.packets) == 1
    assert link.packets[0][0] == 0x32  # QoS 1, the highest of the three.


def test_who_is_away_gets_everything_when_it_is_back_and_what_it_did_not_acknowledge_again() -> None:
    exchange = Exchange()
    session, first = entered(exchange, "aggregator", clean=False)
    exchange.subscribe(session, [("r", 1)])
    for payload in (b"1", b"2"):
        exchange.publish(Publish(topic="r", payload=payload, qos=1, retain=False, packet_id=1))
    session.acknowledged(1)
    exchange.leave(session, first)
    exchange.publish(Publish(topic="r", payload=b"3", qos=1, retain=False, packet_id=1))
    exchange.publish(Publish(topic="r", payload=b"4", qos=0, retain=False))

    same, present = exchange.enter("aggregator", clean=False)
    again = Sent()
    same.resume(again)

    assert present
    assert first.payloads() == [b"1", b"2"]
    assert again.payloads() == [b"2", b"3"]
    assert [one[0] for one in again.packets] == [0x3A, 0x32]  # DUP, then new.


def test_a_clean_session_leaves_nothing() -> None:
    exchange = Exchange()
    session, link = entered(exchange, "one", clean=True)
    exchange.subscribe(session, [("a", 1), ("b/#", 1)])

    exchange.leave(session, link)

    assert (exchange._sessions, exchange._exact, exchange._wild) == ({}, {}, {})


def test_an_older_connection_of_the_same_name_is_closed() -> None:
    exchange = Exchange()
    session, first = entered(exchange, "one", clean=True)
    exchange.subscribe(session, [("a", 1)])

    _, second = entered(exchange, "one", clean=True)
    exchange.leave(session, first)
    exchange.publish(Publish(topic="a", payload=b"x", qos=1, retain=False, packet_id=1))

    assert first.dropped
    assert not second.packets


def test_the_late_end_of_an_older_connection_does_not_end_the_newer_one() -> None:
    exchange = Exchange()
    session, first = entered(exchange, "aggregator", clean=False)
    exchange.subscribe(session, [("a", 1)])

    _, second = entered(exchange, "aggregator", clean=False)
    exchange.leave(session, first)
    exchange.publish(Publish(topic="a", payload=b"x", qos=1, retain=False, packet_id=1))

    assert second.payloads() == [b"x"]


def test_what_a_client_does_not_acknowledge_holds_up_the_rest_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_sessions, "INFLIGHT", 2)
    exchange = Exchange()
    session, link = entered(exchange, "one", clean=True)
    exchange.subscribe(session, [("a", 1)])
    for number in range(6):
        exchange.publish(Publish(topic="a", payload=b"%d" % number, qos=1, retain=False, packet_id=1))
    held = link.payloads()

    session.acknowledged(2)
    session.acknowledged(1)

    assert held == [b"0", b"1"]
    assert link.payloads() == [b"0", b"1", b"2", b"3"]


def test_a_queue_that_is_full_loses_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_sessions, "MAX_WAITING", 2)
    exchange = Exchange()
    session, link = entered(exchange, "one", clean=False)
    exchange.subscribe(session, [("a", 1)])
    exchange.leave(session, link)
    for number in range(4):
        exchange.publish(Publish(topic="a", payload=b"%d" % number, qos=1, retain=False, packet_id=1))

    _, back = entered(exchange, "one", clean=False)

    assert back.payloads() == [b"0", b"1"]


def test_packet_ids_go_round_and_pass_over_those_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_sessions, "_LAST_ID", 3)
    exchange = Exchange()
    session, link = entered(exchange, "one", clean=True)
    exchange.subscribe(session, [("a", 1)])
    for _ in range(3):
        exchange.publish(Publish(topic="a", payload=b"x", qos=1, retain=False, packet_id=1))
    session.acknowledged(2)
    exchange.publish(Publish(topic="a", payload=b"x", qos=1, retain=False, packet_id=1))

    assert [int.from_bytes(one[5:7]) for one in link.packets] == [1, 2, 3, 2]


def test_retained_messages_come_with_the_subscription_and_an_empty_one_takes_them_away() -> None:
    exchange = Exchange()
    for topic, payload in (("t/1/task", b"a"), ("t/2/task", b"b"), ("t/1/task", b"")):
        exchange.publish(Publish(topic=topic, payload=payload, qos=1, retain=True, packet_id=1))
    session, link = entered(exchange, "one", clean=True)

    exchange.subscribe(session, [("t/+/task", 1)])
    exchange.subscribe(session, [("t/2/task", 1)])
    exchange.publish(Publish(topic="t/2/task", payload=b"c", qos=1, retain=True, packet_id=1))

    assert link.payloads() == [b"b", b"b", b"c"]
    assert [one[0] & 1 for one in link.packets] == [1, 1, 0]  # Only what was kept is marked as such.


async def test_every_packet_has_its_answer_over_a_socket() -> None:
    async with broker.listen(0) as port, wire(port) as one:
        await one.say(connect("one", keepalive_s=60))
        assert await one.hear() == b"\x20\x02\x00\x00"
        await one.say(subscribe(("a", 2), ("b", 0)))
        assert await one.hear() == b"\x90\x04\x00\x09\x01\x00"
        await one.say(publish("a", b"sealed"))
        assert {await one.hear(), await one.hear()} == {b"\x40\x02\x00\x07", publish("a", b"sealed", packet_id=1)}
        await one.say(packet(0x40, b"\x00\x01"), packet(0xC0, b""))
        assert await one.hear() == b"\xd0\x00"
        await one.say(packet(0xA2, b"\x00\x05" + text("a")), publish("a", b"to nobody"))
        assert await one.hear() == b"\xb0\x02\x00\x05"
        assert await one.hear() == b"\x40\x02\x00\x07"
        await one.say(packet(0xE0, b""))
        assert await one.closed()


async def test_packets_cut_anywhere_are_read_all_the_same() -> None:
    async with broker.listen(0) as port, wire(port) as one:
        for byte in connect("one") + subscribe(("a", 1)) + publish("a", b"x"):
            await one.say(bytes((byte,)))
            await asyncio.sleep(0)

        heard = [(await one.hear())[0] for _ in range(4)]

    assert heard == [0x20, 0x90, 0x40, 0x32]


@pytest.mark.parametrize("clean", [0, 2])
async def test_a_will_is_published_when_a_client_goes_without_a_word(clean: int) -> None:
    async with broker.listen(0) as port, wire(port) as left:
        await left.say(connect("left"), subscribe(("gone", 1)))
        assert [(await left.hear())[0] for _ in range(2)] == [0x20, 0x90]
        async with wire(port) as dying:
            await dying.say(connect("dying", flags=0x0C | clean, more=text("gone") + text("x")))
            await dying.hear()

        assert await left.hear() == publish("gone", b"x", packet_id=1)


async def test_who_is_silent_for_longer_than_it_promised_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_PATIENCE", 0.05)
    async with broker.listen(0) as port, wire(port) as one:
        await one.say(connect("one", keepalive_s=1))
        await one.hear()

        assert await one.closed()


async def test_who_never_connects_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_CONNECT_S", 0.05)
    async with broker.listen(0) as port, wire(port) as one:
        assert await one.closed()


@pytest.mark.parametrize(
    ("sent", "code"),
    [(connect("one", level=5), 1), (connect("one", level=3), 1), (connect("", flags=0), 2)],
)
async def test_a_connection_that_is_refused_says_why(sent: bytes, code: int) -> None:
    async with broker.listen(0) as port, wire(port) as one:
        await one.say(sent)

        assert await one.hear() == bytes((0x20, 2, 0, code))
        assert await one.closed()


@pytest.mark.parametrize(
    "bad",
    [
        publish("a", b"x", first=0x34),  # QoS 2
        publish("a", b"x", first=0x36),  # QoS 3
        publish("a/+", b"x"),
        publish("", b"x"),
        publish("a", b"x", packet_id=0),
        packet(0x32, b"\x00\x05a"),  # a topic that is cut off
        packet(0x30, b"\x00\x01\xff"),  # no UTF-8
        packet(0x30, b"\x00\x01\x00"),  # NUL
        subscribe(("a", 3)),
        subscribe(("a#", 1)),
        subscribe(("#/a", 1)),
        subscribe(("a+/b", 1)),
        subscribe(("", 1)),
        subscribe(),
        packet(0x80, struct.pack(">H", 9) + text("a") + b"\x01"),  # flags
        subscribe(("a", 1))[:-1].replace(b"\x82\x06", b"\x82\x05"),  # no QoS
        packet(0xA2, b"\x00\x05"),
        packet(0x40, b"\x00\x01\x00"),
        packet(0x40, b"\x00\x00"),
        packet(0x50, b"\x00\x01"),  # QoS 2's packets
        packet(0x20, b"\x00\x00"),  # a broker's packet
        packet(0x00, b""),
        connect("one"),  # a second time: section 3.1
        b"\x30\xff\xff\xff\xff\x01",  # a length of five bytes
        b"\x30" + b"\xff\xff\xff\x7f",  # a length above the largest
    ],
)
async def test_the_broker_hangs_up_on_what_it_does_not_understand(bad: bytes) -> None:
    async with broker.listen(0) as port, wire(port) as one, wire(port) as other:
        await one.say(connect("one"))
        await one.hear()

        await one.say(bad)

        assert await one.closed()
        await other.say(connect("other"))
        assert (await other.hear())[0] == 0x20


@pytest.mark.parametrize(
    "bad",
    [
        publish("a", b"x"),
        connect("one", flags=3),
        connect("one", flags=0x22),  # a will's settings without a will
        connect("one", more=b"x"),
        connect("one", flags=0x82),  # a user name that is not there
        packet(0x11, connect("one")[2:]),
        packet(0x10, text("MQTT")),
    ],
)
async def test_a_first_packet_that_is_no_connect_ends_the_connection(bad: bytes) -> None:
    async with broker.listen(0) as port, wire(port) as one:
        await one.say(bad)

        assert await one.closed()


def test_a_length_above_the_largest_is_refused_before_its_bytes_come() -> None:
    size = MAX_PACKET_BYTES + 1
    encoded = bytes((0x30, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21))

    with pytest.raises(DecodeError, match=f"{size} bytes, more than {MAX_PACKET_BYTES}"):
        split_packets(encoded)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_published_payload_of_any_size_is_read_back(size: int) -> None:
    sent = mqtt_packets.encode_publish(b"a/b", bytes(size), qos=1, retain=True, packet_id=5, again=False)

    ((first, body),), rest = split_packets(sent + b"\x30")

    assert rest == b"\x30"
    assert mqtt_packets.read_publish(first, body) == Publish(
        topic="a/b", payload=bytes(size), qos=1, retain=True, packet_id=5
    )
