"""One strict codec for every protobuf message: bytes are read in place, and only the one canonical form of a message.

The protobuf library writes messages. It does not read them: it takes fields in any order, twice, padded and unknown,
and copies what it takes several times. `Frame` reads each field once, of bounded number and size, before anything is
made of it. Knows no message; `device` and `peer` say what each holds.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import check_text

DomainT = TypeVar("DomainT")
MessageT = TypeVar("MessageT", bound=Message)

_LENGTH: Final = 2
_MAX_VARINT_BYTES: Final = 10
_LARGEST: Final = {
    FieldDescriptor.TYPE_BOOL: 1,
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
}
"""Integers that a field of a type holds."""
_READ: Final[Mapping[int, Callable[["Span"], Any]]] = {
    FieldDescriptor.TYPE_BYTES: lambda span: span.data[span.start : span.stop],
    FieldDescriptor.TYPE_STRING: lambda span: span.data[span.start : span.stop].decode(),
    FieldDescriptor.TYPE_MESSAGE: lambda span: span,
}
"""How a field with a length is read; a message is left to whoever knows its bounds."""
_EMPTY: Final[Mapping[int, Any]] = {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: ""}


class Span(NamedTuple):
    """A message or a column within bytes that are not copied."""

    data: bytes
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.stop - self.start

    def cut(self, count: int) -> list[bytes]:
        """Return the `count` fields of one size that a column joins."""
        size = self.size // count
        if not size:
            return [b""] * count
        return [self.data[at : at + size] for at in range(self.start, self.stop, size)]


_NOTHING: Final = Span(b"", 0, 0)


class _Field(NamedTuple):
    name: str
    most: int
    """How often it may occur."""
    repeated: bool
    largest: int
    read: Callable[[Span], Any] | None
    """None of an integer."""


class Frame:
    """The fields of one kind of message, and how its canonical form is read.

    Canonical are fields in ascending order, none twice but those that repeat, none with its default value, every
    number in its shortest form. `most` says how many parts a field that repeats may have; the bytes of `columns` are
    left where they are.

    Raises:
        TypeError: a field has a type that no message of ours has, or repeats without a bound.
    """

    def __init__(self, described: Descriptor, most: Mapping[str, int], columns: Container[str] = ()) -> None:
        self._name = described.name
        self._fields: dict[int, _Field] = {}
        self._defaults: dict[str, Any] = {}
        self._repeated = [one.name for one in described.fields if one.is_repeated]
        for one in described.fields:
            kind = FieldDescriptor.TYPE_MESSAGE if one.name in columns else one.type
            largest, read = _LARGEST.get(kind, 0), _READ.get(kind)
            if (not largest and read is None) or (one.is_repeated and one.name not in most):
                raise TypeError(f"{described.name}.{one.name} has a type or repeats as no field of ours does")
            bound = most[one.name] if one.is_repeated else 1
            self._fields[one.number << 3 | (0 if largest else _LENGTH)] = _Field(
                one.name, bound, one.is_repeated, largest, read
            )
            self._defaults[one.name] = 0 if largest else _EMPTY.get(kind, _NOTHING)

    def parse(self, span: Span) -> SimpleNamespace:
        """Return the fields of a message: integers, bytes, texts, spans of messages, and lists of these.

        Raises:
            DecodeError: it is not in its canonical form, has an unknown field, or more parts than it may.
        """
        data, position, stop = span
        found = SimpleNamespace(**self._defaults)
        fields = vars(found)
        for name in self._repeated:
            fields[name] = []
        last, count = 0, 0
        while position < stop:
            # Most numbers have one byte: a call for each would take longer than all the rest.
            tag, position = data[position], position + 1
            if tag >= 0x80:
                tag, position = self._varint(data, position - 1, stop)
            count = count + 1 if tag == last else 1
            field = self._known(tag, last, count)
            last = tag
            if position < stop and data[position] < 0x80:
                value, position = data[position], position + 1
            else:
                value, position = self._varint(data, position, stop)
            if field.read is None:
                if not 0 < value <= field.largest:
                    raise DecodeError(f"{self._name}.{field.name} is {value}, written are 1 to {field.largest}")
                fields[field.name] = value
                continue
            end = position + value
            if end > stop:
                raise DecodeError(f"{self._name} ends inside a field")
            item = field.read(Span(data, position, end))
            position = end
            if field.repeated:
                fields[field.name].append(item)
            elif value:
                fields[field.name] = item
            else:
                raise DecodeError(f"{self._name}.{field.name} is written and empty")
        return found

    def _known(self, tag: int, last: int, count: int) -> _Field:
        """Return the field of a tag that comes behind another, for the `count`-th time."""
        field = self._fields.get(tag)
        if field is None:
            raise DecodeError(f"{self._name} has an unknown field, {tag >> 3} of wire type {tag & 7}")
        if tag < last:
            raise DecodeError(f"{self._name}.{field.name} is out of order")
        if count > field.most:
            raise DecodeError(f"{self._name} has more than {field.most} {field.name}")
        return field

    def _varint(self, data: bytes, position: int, stop: int) -> tuple[int, int]:
        """Return a number in its shortest form and where it ends."""
        value = 0
        for place in range(_MAX_VARINT_BYTES):
            if position >= stop:
                raise DecodeError(f"{self._name} ends inside a number")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if place and not byte:
                    raise DecodeError(f"{self._name} has a padded number")
                return value, position
        raise DecodeError(f"{self._name} has a number of more than {_MAX_VARINT_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class WireMessage(Generic[DomainT, MessageT]):
    """How one message travels: `to_pb` builds it, `read` reads it in place, `largest` caps its bytes."""

    name: str
    pb_type: type[MessageT]
    to_pb: Callable[[DomainT], MessageT]
    read: Callable[[Span], DomainT]
    largest: int

    def encode(self, value: DomainT) -> bytes:
        """Return the message's bytes.

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
        try:
            return self.read(Span(data, 0, len(data)))
        except (ValueError, UsageError) as error:
            raise DecodeError(f"{self.name} holds a value out of its range") from error

    def from_pb(self, message: MessageT) -> DomainT:
        """Return what a message says that the protobuf library has parsed; it keeps what it does not know.

        Raises:
            DecodeError: as in `decode`.
        """
        return self.decode(message.SerializeToString(deterministic=True))


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
