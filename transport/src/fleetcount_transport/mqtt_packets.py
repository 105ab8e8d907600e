"""MQTT 3.1.1 packets that a client receives, parsed from a stream of bytes of an untrusted broker.

It checks a packet's kind and length as soon as its fixed header is complete, before it buffers the body. It must not
know a socket or the MQTT library.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
_RETAIN: Final = 0x01
_LENGTHS: Final = {CONNACK: (2, 2), PUBACK: (2, 2), 0x90: (3, 2 + 1024), 0xB0: (2, 2), 0xD0: (0, 0)}
"""First byte, shortest and longest body of CONNACK, PUBACK, SUBACK, UNSUBACK, PINGRESP (MQTT 3.1.1, chapter 3)."""
_HEAD_BYTES: Final = 5
"""The fixed header: the first byte, and the length in at most four bytes."""


class ViolationError(Exception):
    """The broker violated the protocol; the text says how, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that arrived; `packet_id` is None with QoS 0, which has no acknowledgement."""

    topic: str
    payload: bytes
    retain: bool = False
    packet_id: int | None = None


@dataclass(frozen=True, slots=True)
class Packet:
    """Any other packet, as it arrived."""

    data: bytes

    @property
    def acknowledges(self) -> int | None:
        """The id of the message that it acknowledges (PUBACK)."""
        return int.from_bytes(self.data[2:]) if self.data[0] == PUBACK else None


class PacketReader:
    """Parses packets from pieces of a stream; between two calls it buffers less than one packet of `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._gathered = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Publication | Packet]:
        """Yield the packets that are complete with these bytes, in order.

        Raises:
            ViolationError: a packet of another kind, length, QoS or order; it and the bytes after it are not parsed.
        """
        self._gathered += data
        at = 0
        try:
            while (head := self._head(at)) is not None:
                first, start, end = head
                if end > len(self._gathered):
                    break
                if first & 0xF0 == PUBLISH:
                    yield self._publication(first, start, end)
                else:
                    yield Packet(bytes(self._gathered[at:end]))
                at, self._greeted = end, True
        finally:
            del self._gathered[:at]

    def _head(self, at: int) -> tuple[int, int, int] | None:
        """Return the first byte of the packet at offset `at`, and start and end of its body; None: not complete yet."""
        head = self._gathered[at : at + _HEAD_BYTES]
        length = 0
        for place, digit in enumerate(head[1:]):
            length |= (digit & 0x7F) << (7 * place)
            if digit < 0x80:
                self._judge(head[0], length, place + 2)
                return head[0], at + place + 2, at + place + 2 + length
        if len(head) == _HEAD_BYTES:
            raise ViolationError("the broker sent a packet whose length has more than 4 bytes")
        return None

    def _judge(self, first: int, length: int, head: int) -> None:
        if self._greeted == (first == CONNACK):
            raise ViolationError(
                f"the broker sent a packet of kind {first:#04x} where {'no' if self._greeted else 'a'} greeting belongs"
            )
        if first & 0xF0 == PUBLISH:
            if first & 0x06 > 2:
                raise ViolationError("the broker sent a message with QoS above 1, the highest that was subscribed with")
            shortest, longest = 3, self._most - head
        elif first in _LENGTHS:
            shortest, longest = _LENGTHS[first]
        else:
            raise ViolationError(f"the broker sent a packet of kind {first:#04x}, which no client gets")
        if not shortest <= length <= longest:
            raise ViolationError(
                f"the broker sent a packet of kind {first:#04x} with {length} bytes, allowed: {shortest} to {longest}"
            )

    def _publication(self, first: int, start: int, end: int) -> Publication:
        data = self._gathered
        topic_end = start + 2 + int.from_bytes(data[start : start + 2])
        payload = topic_end + (2 if first & 0x06 else 0)
        packet_id = int.from_bytes(data[topic_end:payload]) if first & 0x06 else None
        if payload > end or packet_id == 0:
            raise ViolationError("the broker sent a message without a topic or a packet id")
        try:
            topic = data[start + 2 : topic_end].decode()
        except UnicodeDecodeError:
            raise ViolationError("the broker sent a message whose topic is no UTF-8") from None
        with memoryview(data) as view:
            return Publication(topic, bytes(view[payload:end]), bool(first & _RETAIN), packet_id)


def publication(topic: str, payload: bytes, packet_id: int, *, retain: bool) -> bytes:
    """Return the PUBLISH of a message with QoS 1 (MQTT 3.1.1, section 3.3): below 256 MiB, its topic below 64 KiB."""
    name = topic.encode()
    body = b"%b%b%b%b" % (len(name).to_bytes(2), name, packet_id.to_bytes(2), payload)
    head, rest = bytearray((PUBLISH | 0x02 | (_RETAIN if retain else 0),)), len(body)
    while rest > 0x7F:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    head.append(rest)
    return bytes(head) + body


def acknowledgement(packet_id: int) -> bytes:
    """Return the PUBACK of a message."""
    return bytes((PUBACK, 2)) + packet_id.to_bytes(2)
