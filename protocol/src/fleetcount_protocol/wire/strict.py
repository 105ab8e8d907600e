"""One strict codec for every protobuf message: it checks sizes, shape, meaning, and that encoding gives the bytes back.

Knows no message; `device` and `peer` say what each holds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import check_text

__all__ = ["WireMessage", "check_count", "check_distinct", "check_label", "check_size"]

DomainT = TypeVar("DomainT")
MessageT = TypeVar("MessageT", bound=Message)

_VARINT: Final = 0
_LENGTH: Final = 2
_MAX_VARINT_BYTES: Final = 10
_SCALARS: Final = 16
"""How many fields a message may have besides its repeated one; none of ours has more than eight."""


@dataclass(frozen=True, slots=True)
class WireMessage(Generic[DomainT, MessageT]):
    """How one message travels: `to_pb` builds it, `read` takes it apart, `largest` caps its bytes, `most` its parts.

    `read` may be lenient about what a rebuild shows: a message is accepted only if `to_pb` of what was read gives it
    back, so unknown fields, values out of place and second spellings are refused by comparison.
    """

    name: str
    pb_type: type[MessageT]
    to_pb: Callable[[DomainT], MessageT]
    read: Callable[[MessageT], DomainT]
    largest: int
    most: int = 0

    def encode(self, value: DomainT) -> bytes:
        """Return the message's bytes, as they travel over MQTT.

        Raises:
            UsageError: they are more than the message may have.
        """
        data = self.to_pb(value).SerializeToString(deterministic=True)
        if len(data) > self.largest:
            raise UsageError(f"{self.name} has {len(data)} bytes, allowed: at most {self.largest}")
        return data

    def decode(self, data: bytes) -> DomainT:
        """Return the message that these bytes encode; each message has exactly one encoding.

        Raises:
            DecodeError: too long, too many parts, not protobuf, a field out of its range, unknown, repeated or padded.
        """
        if len(data) > self.largest:
            raise DecodeError(f"{self.name} has {len(data)} bytes, more than {self.largest}")
        _check_shape(data, self.name, self.most + _SCALARS)
        message = self.pb_type()
        try:
            message.ParseFromString(data)
        except ProtobufError as error:
            raise DecodeError(f"{self.name} is no protobuf message") from error
        value, rebuilt = self._rebuild(message)
        if rebuilt.SerializeToString(deterministic=True) != data:
            raise DecodeError(f"{self.name} is not in its canonical form")
        return value

    def from_pb(self, message: MessageT) -> DomainT:
        """Return what a message says that the RPC library has already parsed.

        Raises:
            DecodeError: too long, a field out of its range, or an unknown one.
        """
        size = message.ByteSize()
        if size > self.largest:
            raise DecodeError(f"{self.name} has {size} bytes, more than {self.largest}")
        value, rebuilt = self._rebuild(message)
        if rebuilt != message:
            raise DecodeError(f"{self.name} holds unknown fields")
        return value

    def _rebuild(self, message: MessageT) -> tuple[DomainT, MessageT]:
        try:
            value = self.read(message)
            return value, self.to_pb(value)
        except (ValueError, UsageError) as error:
            raise DecodeError(f"{self.name} holds a value out of its range") from error


def check_size(what: str, value: bytes, smallest: int, largest: int) -> bytes:
    """Return the bytes if their size is in its range.

    Raises:
        DecodeError: it is not.
    """
    if not smallest <= len(value) <= largest:
        raise DecodeError(f"{what} has {len(value)} bytes, not {smallest} to {largest}")
    return value


def check_count(what: str, count: int, smallest: int, largest: int) -> None:
    """Refuse a count outside its range, before anything is built.

    Raises:
        DecodeError: it is.
    """
    if not smallest <= count <= largest:
        raise DecodeError(f"{count} {what}, not {smallest} to {largest}")


def check_distinct(what: str, values: Iterable[bytes]) -> None:
    """Refuse duplicates.

    Raises:
        DecodeError: one value appears twice.
    """
    seen: set[bytes] = set()
    for value in values:
        if value in seen:
            raise DecodeError(f"{what} {value.hex()[:12]}… appears twice")
        seen.add(value)


def check_label(what: str, text: str, smallest: int, largest: int) -> str:
    """Return a text from a peer if it can be shown to people.

    Raises:
        DecodeError: too short, too long, or characters that are not allowed in any text of the protocol.
    """
    try:
        check_text(text, smallest, largest)
    except ValueError as error:
        raise DecodeError(f"{what}: {error}") from None
    return text


def _check_shape(data: bytes, name: str, most: int) -> None:
    """Walk the outermost fields without building anything, so that two million empty parts cost no memory.

    Raises:
        DecodeError: more than `most` fields, a field that is neither a varint nor length-delimited, or a bad length.
    """
    position, fields, size = 0, 0, len(data)
    while position < size:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _read_varint(data, position - 1, name)
        fields += 1
        if fields > most or tag >> 3 == 0:
            raise DecodeError(f"{name} has more than {most} fields or one with number 0")
        if position < size and data[position] < 0x80:  # Most numbers have one byte: a call for each would take longer.
            value = data[position]
            position += 1
        else:
            value, position = _read_varint(data, position, name)
        if tag & 7 == _LENGTH:
            position += value
        elif tag & 7 != _VARINT:
            raise DecodeError(f"{name} has a field of wire type {tag & 7}")
    if position != len(data):
        raise DecodeError(f"{name} ends inside a field")


def _read_varint(data: bytes, position: int, name: str) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if position >= len(data):
            raise DecodeError(f"{name} ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position
    raise DecodeError(f"{name} has a number of more than {_MAX_VARINT_BYTES} bytes")
