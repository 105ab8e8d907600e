"""MQTT packets out of a stream: the same however it is cut, and refused before their bytes are gathered."""

from itertools import pairwise

import pytest
from fleetcount_transport.mqtt_packets import (
    Packet,
    PacketReader,
    Publication,
    ViolationError,
    acknowledgement,
    publication,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import said_by

MOST = 1_000
GREETING = bytes.fromhex("20020000")
SUBSCRIBED = bytes.fromhex("9003000101")
NEVER = (0x00, 0x10, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0)
PONG = bytes.fromhex("d000")


def packet(first: int, body: bytes) -> bytes:
    """Return a packet of a first byte and a body of less than 16,384 bytes."""
    length = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((first,)) + length + body


def publish(topic: bytes, payload: bytes, first: int = 0x32, packet_id: bytes = b"\0\7") -> bytes:
    return packet(first, len(topic).to_bytes(2) + topic + packet_id + payload)


STREAM = GREETING + SUBSCRIBED + publish(b"a/b", b"hello") + PONG + publish(b"c", b"", 0x31, b"") + acknowledgement(9)


@given(st.lists(st.integers(1, len(STREAM)), max_size=8))
def test_a_stream_gives_the_same_packets_however_it_is_cut(cuts: list[int]) -> None:
    reader, places = PacketReader(MOST), sorted({0, *cuts, len(STREAM)})

    found = [one for a, b in pairwise(places) for one in reader.feed(STREAM[a:b])]

    assert found == [
        Packet(GREETING),
        Packet(SUBSCRIBED),
        Publication("a/b", b"hello", retain=False, packet_id=7),
        Packet(PONG),
        Publication("c", b"", retain=True, packet_id=None),
        Packet(acknowledgement(9)),
    ]


def test_the_longest_packet_is_taken_and_one_byte_more_is_refused_at_its_head() -> None:
    longest = publish(b"t", bytes(MOST - 8))
    assert len(longest) == MOST

    assert [type(one) for one in PacketReader(MOST).feed(GREETING + longest)] == [Packet, Publication]
    reader = PacketReader(MOST)
    with pytest.raises(ViolationError, match=r"998 bytes, allowed: 3 to 997"):
        list(reader.feed(GREETING + publish(b"t", bytes(MOST - 7))[:3]))


def fed(data: bytes) -> list[object]:
    return list(PacketReader(MOST).feed(data))


NEVER_SENT: list[tuple[bytes, str]] = [
    (b"\x30\xff\xff\xff\x7f", "268435455 bytes, allowed: 3 to 995"),
    (b"\x30\xff\xff\xff\xff", "more than 4 bytes"),
    (publish(b"t", b"", 0x34), "QoS above 1"),
    (publish(b"t", b"", 0x36), "QoS above 1"),
    (publish(b"t", b"", packet_id=b"\0\0"), "packet id"),
    (packet(0x32, b"\0\1t"), "packet id"),
    (packet(0x30, b"\0\2t"), "without a topic"),
    (publish(b"\xff", b""), "no UTF-8"),
    (GREETING, "no greeting"),
    (packet(0x20, bytes(3)), "no greeting"),
    (packet(0x40, bytes(3)), "allowed: 2 to 2"),
    (packet(0x90, bytes(1027)), "allowed: 3 to 1026"),
    (packet(0xD0, b"\0"), "allowed: 0 to 0"),
    *((packet(kind, bytes(2)), "no client gets") for kind in NEVER),
    (packet(0x41, bytes(2)), "no client gets"),
]


def test_what_no_broker_may_send_is_refused() -> None:
    for data, said in NEVER_SENT:
        assert said in said_by(ViolationError, fed, GREETING + data), data[:40]


@pytest.mark.parametrize("data", [PONG, SUBSCRIBED, publish(b"t", b"")])
def test_nothing_comes_before_the_greeting(data: bytes) -> None:
    with pytest.raises(ViolationError, match="where a greeting belongs"):
        list(PacketReader(MOST).feed(data))


@pytest.mark.parametrize(
    ("body", "digits"), [(8, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_151, 3), (2_097_152, 4)]
)
def test_a_message_is_read_as_it_was_written_at_every_size_of_its_length(body: int, digits: int) -> None:
    topic, payload = "ä/b", bytes(body - 2 - 4 - 2)
    written, kept = (publication(topic, payload, 65_534, retain=retain) for retain in (False, True))

    [_, read, read_kept] = PacketReader(1 << 22).feed(GREETING + written + kept)

    assert (written[0], len(written)) == (0x32, 1 + digits + body)
    assert read == Publication(topic, payload, retain=False, packet_id=65_534)
    assert read_kept == Publication(topic, payload, retain=True, packet_id=65_534)
