"""The packets of MQTT 3.1.1 as a broker reads and writes them, for qualities of service 0 and 1.

Pure: bytes in, values out, and back. Refuses every packet it does not fully understand; a broker then closes the
connection (OASIS MQTT 3.1.1, section 4.8).
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.errors import DecodeError

__all__ = [
    "CONNACK_BAD_NAME",
    "CONNACK_BAD_VERSION",
    "CONNACK_OK",
    "MAX_PACKET_BYTES",
    "PINGRESP",
    "Connect",
    "Kind",
    "Publish",
    "Subscribe",
    "acknowledgement",
    "connack",
    "encode_publish",
    "publish_acknowledgement",
    "read_connect",
    "read_name",
    "read_publish",
    "read_subscribe",
    "read_unsubscribe",
    "split_packets",
    "subscribe_acknowledgement",
]

MAX_PACKET_BYTES: Final = 1 << 24
CONNACK_OK: Final = 0
CONNACK_BAD_VERSION: Final = 1
CONNACK_BAD_NAME: Final = 2
PINGRESP: Final = b"\xd0\x00"
_MAX_SIZE_BYTES: Final = 4
_LEVEL: Final = 4
_NAME: Final = struct.Struct(">H")


class Kind:
    """Packet types, the upper half of the first byte (section 2.2.1)."""

    CONNECT = 1
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    DISCONNECT = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One message; `packet_id` is 0 for QoS 0."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int
    retain: bool
    packet_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A client's first packet; `level` is 4 for MQTT 3.1.1, `will` is published when it goes without a word."""

    level: int
    client_id: str
    clean: bool
    keepalive_s: int
    will: Publish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Topic filters, each with the highest QoS wanted, 0 or 1."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


def split_packets(buffer: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the whole packets at the start of `buffer`, each as first byte and body, and the bytes that are left.

    Raises:
        DecodeError: a length that is not one, or above MAX_PACKET_BYTES.
    """
    packets: list[tuple[int, bytes]] = []
    start, end = 0, len(buffer)
    while end - start >= 2:
        size, shift, at = 0, 0, start + 1
        while at < end:
            byte = buffer[at]
            size |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                break
            shift += 7
            if at - start > _MAX_SIZE_BYTES:
                raise DecodeError("a packet's length takes more than 4 bytes")
        else:
            break
        if size > MAX_PACKET_BYTES:
            raise DecodeError(f"a packet has {size} bytes, more than {MAX_PACKET_BYTES}")
        if at + size > end:
            break
        packets.append((buffer[start], buffer[at : at + size]))
        start = at + size
    return packets, buffer[start:] if start else buffer


# Reading.


def read_connect(first: int, body: bytes) -> Connect:
    """Return a CONNECT; a version other than 3.1.1 is read no further. User name and password are passed over."""
    _expect_flags(first, 0)
    protocol, at = _text(body, 0)
    if at >= len(body):
        raise DecodeError("a CONNECT ends after its protocol's name")
    level = body[at]
    if (protocol, level) != ("MQTT", _LEVEL):
        return Connect(level=0, client_id="", clean=True, keepalive_s=0, will=None)
    flags, keepalive_s = _head(body, at + 1, 3)[0], _name_at(body, at + 2)
    if flags & 0x01:
        raise DecodeError("a CONNECT's reserved flag is set")
    client_id, at = _text(body, at + 4)
    will = None
    if flags & 0x04:
        topic, at = _text(body, at)
        payload, at = _blob(body, at)
        will = Publish(topic=_topic(topic), payload=payload, qos=_qos(flags >> 3 & 3), retain=bool(flags & 0x20))
    elif flags & 0x38:
        raise DecodeError("a CONNECT has settings of a will and no will")
    for wanted in (0x80, 0x40):
        if flags & wanted:
            _, at = _blob(body, at)
    _expect_end(body, at)
    return Connect(level=level, client_id=client_id, clean=bool(flags & 0x02), keepalive_s=keepalive_s, will=will)


def read_publish(first: int, body: bytes) -> Publish:
    """Return a PUBLISH of QoS 0 or 1."""
    qos = _qos(first >> 1 & 3)
    topic, at = _text(body, 0)
    packet_id = 0
    if qos:
        packet_id, at = _packet_id(body, at), at + 2
    return Publish(topic=_topic(topic), payload=body[at:], qos=qos, retain=bool(first & 1), packet_id=packet_id)


def read_subscribe(first: int, body: bytes) -> Subscribe:
    """Return a SUBSCRIBE; who asks for QoS 2 gets 1."""
    _expect_flags(first, 2)
    packet_id, at = _packet_id(body, 0), 2
    filters: list[tuple[str, int]] = []
    while at < len(body):
        name, at = _text(body, at)
        (qos,) = _head(body, at, 1)
        if qos > 2:
            raise DecodeError(f"a SUBSCRIBE asks for QoS {qos}, not 0 to 2")
        filters.append((_filter(name), min(qos, 1)))
        at += 1
    if not filters:
        raise DecodeError("a SUBSCRIBE names no topic")
    return Subscribe(packet_id=packet_id, filters=tuple(filters))


def read_unsubscribe(first: int, body: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the packet id and the topic filters of an UNSUBSCRIBE."""
    _expect_flags(first, 2)
    packet_id, at = _packet_id(body, 0), 2
    filters: list[str] = []
    while at < len(body):
        name, at = _text(body, at)
        filters.append(_filter(name))
    if not filters:
        raise DecodeError("an UNSUBSCRIBE names no topic")
    return packet_id, tuple(filters)


def read_name(first: int, body: bytes) -> int:
    """Return the packet id of a PUBACK."""
    _expect_flags(first, 0)
    _expect_end(body, 2)
    return _packet_id(body, 0)


# Writing.


def connack(code: int, *, session_present: bool = False) -> bytes:
    """Return a CONNACK."""
    return bytes((0x20, 2, int(session_present), code))


def encode_publish(topic: bytes, payload: bytes, *, qos: int, retain: bool, packet_id: int, again: bool) -> bytes:
    """Return a PUBLISH; `again` says that it was sent before."""
    first = Kind.PUBLISH << 4 | again << 3 | qos << 1 | retain
    name = _NAME.pack(packet_id) if qos else b""
    size = 2 + len(topic) + len(name) + len(payload)
    return b"".join((bytes((first,)), _size(size), _NAME.pack(len(topic)), topic, name, payload))


def publish_acknowledgement(packet_id: int) -> bytes:
    """Return a PUBACK."""
    return b"\x40\x02" + _NAME.pack(packet_id)


def subscribe_acknowledgement(packet_id: int, granted: tuple[int, ...]) -> bytes:
    """Return a SUBACK with the granted QoS of each filter."""
    return bytes((Kind.SUBACK << 4,)) + _size(2 + len(granted)) + _NAME.pack(packet_id) + bytes(granted)


def acknowledgement(kind: int, packet_id: int) -> bytes:
    """Return an acknowledgement that holds a packet id alone."""
    return bytes((kind << 4, 2)) + _NAME.pack(packet_id)


def _size(size: int) -> bytes:
    encoded = bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        encoded.append(low | (0x80 if size else 0))
        if not size:
            return bytes(encoded)


# Parts.


def _head(body: bytes, at: int, count: int) -> bytes:
    if at + count > len(body):
        raise DecodeError("a packet ends too early")
    return body[at : at + count]


def _name_at(body: bytes, at: int) -> int:
    return int.from_bytes(_head(body, at, 2), "big")


def _packet_id(body: bytes, at: int) -> int:
    packet_id = _name_at(body, at)
    if not packet_id:
        raise DecodeError("a packet id is 0")
    return packet_id


def _blob(body: bytes, at: int) -> tuple[bytes, int]:
    size = _name_at(body, at)
    return _head(body, at + 2, size), at + 2 + size


def _text(body: bytes, at: int) -> tuple[str, int]:
    raw, at = _blob(body, at)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise DecodeError("a text is not UTF-8") from None
    if "\0" in text:
        raise DecodeError("a text holds a NUL")
    return text, at


def _topic(topic: str) -> str:
    if not topic or "+" in topic or "#" in topic:
        raise DecodeError("a message's topic is empty or holds a wildcard")
    return topic


def _filter(name: str) -> str:
    levels = name.split("/")
    whole = all(level == "+" or "+" not in level for level in levels)
    if not name or not whole or any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise DecodeError("a topic filter is empty or has a wildcard that is not a level of its own")
    return name


def _qos(qos: int) -> int:
    if qos > 1:
        raise DecodeError(f"QoS {qos}; this broker takes 0 and 1")
    return qos


def _expect_flags(first: int, flags: int) -> None:
    if first & 0x0F != flags:
        raise DecodeError(f"a packet of type {first >> 4} has the flags {first & 0x0F}, not {flags}")


def _expect_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise DecodeError(f"a packet has {len(body)} bytes, {at} were expected")
