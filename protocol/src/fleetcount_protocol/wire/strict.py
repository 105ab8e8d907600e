"""The strict codec of every protobuf message: it reads bytes in place and accepts only a message's canonical form.

The protobuf library writes messages but does not read them: it accepts fields in any order, repeated, padded and
unknown, and copies fields several times. `Frame` reads each field once and checks number and size before it builds
values. This module knows no message; `device` and `peer` define them.
"""

from collections.abc import Callable, Iterable, Mapping
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
"""The largest integer of each field type."""
_READ: Final[Mapping[int, Callable[["Span"], Any] | None]] = {
    FieldDescriptor.TYPE_BYTES: None,
    FieldDescriptor.TYPE_STRING: lambda span: span.data[span.start : span.stop].decode(),
    FieldDescriptor.TYPE_MESSAGE: lambda span: span,
}
"""The readers of fields with a length, None for bytes; a message's span is read by the code that has its bounds."""
_EMPTY: Final[Mapping[int, Any]] = {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: ""}


class Span(NamedTuple):
    """A part of `data`, a message, that is not copied."""

    data: bytes
    start: int
    stop: int

    def __bool__(self) -> bool:
        """Return whether the message is there: one that is written is not empty."""
        return self.stop > self.start


_NOTHING: Final = Span(b"", 0, 0)


class _Field(NamedTuple):
    name: str
    most: int
    """The largest number of occurrences."""
    repeated: bool
    largest: int
    read: Callable[[Span], Any] | None
    """None for an integer, whose `largest` is not 0, and for bytes."""


class Frame:
    """The fields of one kind of message, and the parser of its canonical form.

    In the canonical form fields ascend, only repeated fields occur more than once, no field has its default value, and
    every number has its shortest form. `most` is the largest number of parts of each repeated field.

    Raises:
        TypeError: a field has a type that this codec does not support, or is repeated without a bound.
    """

    def __init__(self, described: Descriptor, most: Mapping[str, int]) -> None:
        self._name = described.name
        self._fields: dict[int, _Field] = {}
        self._defaults: dict[str, Any] = {}
        self._repeated = [one.name for one in described.fields if one.is_repeated]
        for one in described.fields:
            largest = _LARGEST.get(one.type, 0)
            if (not largest and one.type not in _READ) or (one.is_repeated and one.name not in most):
                raise TypeError(f"{described.name}.{one.name} has an unsupported type or repeats without a limit")
            bound = most[one.name] if one.is_repeated else 1
            self._fields[one.number << 3 | (0 if largest else _LENGTH)] = _Field(
                one.name, bound, one.is_repeated, largest, _READ.get(one.type)
            )
            self._defaults[one.name] = 0 if largest else _EMPTY.get(one.type, _NOTHING)

    def parse(self, span: Span) -> SimpleNamespace:
        """Return the fields of a message: integers, bytes, texts, spans of messages, and lists of these.

        Raises:
            DecodeError: the message is not in its canonical form, or has an unknown field or too many parts.
        """
        data, position, stop = span
        found = SimpleNamespace(**self._defaults)
        fields, known = vars(found), self._fields
        for name in self._repeated:
            fields[name] = []
        last, count = 0, 0
        # An upload of one report is all overhead: a function call a field would double its time.
        while position < stop:
            tag, position = data[position], position + 1
            if tag >= 0x80:
                tag, position = self._varint(data, position - 1, stop)
            count = count + 1 if tag == last else 1
            field = known.get(tag)
            if field is None or tag < last or count > field.most:
                raise self._misplaced(tag, last)
            name, _, repeated, largest, read = field
            last = tag
            if position < stop and data[position] < 0x80:
                value, position = data[position], position + 1
            else:
                value, position = self._varint(data, position, stop)
            if largest:
                if not 0 < value <= largest:
                    raise DecodeError(f"{self._name}.{name} is {value}, written are 1 to {largest}")
                fields[name] = value
                continue
            end = position + value
            if end > stop:
                raise DecodeError(f"{self._name} ends inside a field")
            item = read(Span(data, position, end)) if read else data[position:end]
            position = end
            if repeated:
                fields[name].append(item)
            elif value:
                fields[name] = item
            else:
                raise DecodeError(f"{self._name}.{name} is written and empty")
        return found

    def _misplaced(self, tag: int, last: int) -> DecodeError:
        """Return the refusal of a field that is unknown, follows the tag `last` or occurs too often."""
        field = self._fields.get(tag)
        if field is None:
            return DecodeError(f"{self._name} has an unknown field, {tag >> 3} of wire type {tag & 7}")
        if tag == last:
            return DecodeError(f"{self._name} has more than {field.most} {field.name}")
        return DecodeError(f"{self._name}.{field.name} is out of order")

    def _varint(self, data: bytes, position: int, stop: int) -> tuple[int, int]:
        """Return a number in its shortest form, and the position after it."""
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
    """The codec of one message: `to_pb` builds it, `read` reads it in place, `largest` is its largest size in bytes."""

    name: str
    pb_type: type[MessageT]
    to_pb: Callable[[DomainT], MessageT]
    read: Callable[[Span], DomainT]
    largest: int

    def encode(self, value: DomainT) -> bytes:
        """Return the message's bytes.

        Raises:
            UsageError: more bytes than `largest`.
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
        """Return the value of a message that the protobuf library has parsed, unknown fields included.

        Raises:
            DecodeError: as in `decode`.
        """
        return self.decode(message.SerializeToString(deterministic=True))


def check_size(what: str, value: bytes, smallest: int, largest: int) -> bytes:
    """Return the bytes if they are smallest..largest long.

    Raises:
        DecodeError: another size.
    """
    if not smallest <= len(value) <= largest:
        raise DecodeError(f"{what} has {len(value)} bytes, not {smallest} to {largest}")
    return value


def check_count(what: str, count: int, smallest: int, largest: int) -> None:
    """Refuse a count outside smallest..largest; called before anything of that number is built.

    Raises:
        DecodeError: the count is outside.
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
    """Return a text from a peer if `check_text` allows it.

    Raises:
        DecodeError: too short, too long, or characters that are not allowed in any text of the protocol.
    """
    try:
        check_text(text, smallest, largest)
    except ValueError as error:
        raise DecodeError(f"{what}: {error}") from None
    return text
