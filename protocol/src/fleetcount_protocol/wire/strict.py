"""The strict codec of every protobuf message: it reads bytes in place and accepts only a message's canonical form.

The protobuf library writes messages but does not read them: it accepts fields in any order, repeated, padded and
unknown, and copies fields several times. `Frame` reads each field once and checks number and size before it builds
values. This module knows no message; `device` and `peer` define them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import check_text

DomainT = TypeVar("DomainT")
MessageT = TypeVar("MessageT", bound=Message)
OtherT = TypeVar("OtherT")

_LENGTH: Final = 2
_LAST_NUMBER: Final = 15
"""The largest number of a field whose tag has one byte."""
_MAX_VARINT_BYTES: Final = 10
_LARGEST: Final = {
    FieldDescriptor.TYPE_BOOL: 1,
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
}
"""The largest integer of each field type."""
_PARTS: Final = {
    FieldDescriptor.TYPE_BYTES: ("data[at - size : at]", "b''"),
    FieldDescriptor.TYPE_STRING: ("data[at - size : at].decode()", "''"),
    FieldDescriptor.TYPE_MESSAGE: ("(data, at - size, at)", "nothing"),
}
"""The source of fields with a length: a part, and an absent one. A message's span is read by what has its bounds."""


class Span(NamedTuple):
    """A part of `data`, a message, that is not copied."""

    data: bytes
    start: int
    stop: int

    def __bool__(self) -> bool:
        """Return whether the message is there: one that is written is not empty."""
        return self.stop > self.start


_NOTHING: Final = Span(b"", 0, 0)


# The source of a message's reader: a block a field, in the order of their numbers. A field that runs past `stop` ends
# the reading, and is refused there.
_BLOCK: Final = """
        {name} = {absent}
        {when} at < stop and data[at] == {tag}:
            last, size, at = {tag}, data[at + 1], at + 2
            if size >= 128:
                if 0 < data[at] < 128:
                    size, at = size & 127 | data[at] << 7, at + 1
                else:
                    size, at = varint(data, at - 1)
            {kept}"""
_INTEGER: Final = """if not 0 < size <= {largest}: raise outside("{name}", size, {largest})
            {name} = size"""
_SINGLE: Final = """if not size: raise outside("{name}", size, 0)
            at += size
            {name} = {part}"""
_REPEATED: Final = """at += size
            {name}.append({part})"""
_READER: Final = """
def read(span):
    data, at, stop = span
    last = 0
    try:{blocks}
    except IndexError:
        raise misplaced(data, stop, stop, last) from None
    if at != stop:
        raise misplaced(data, at, stop, last)
    return make({arguments})
"""


class _Field(NamedTuple):
    name: str
    most: int
    """The largest number of occurrences."""
    block: str
    """The source that reads it."""


class Frame:
    """The fields of one kind of message, and the parser of its canonical form.

    In the canonical form fields ascend, only repeated fields occur more than once, no field has its default value, and
    every number has its shortest form. `most` is the largest number of parts of each repeated field.

    Raises:
        TypeError: a field has a type or a number that this codec does not support, or is repeated without a bound.
    """

    def __init__(self, described: Descriptor, most: Mapping[str, int]) -> None:
        self._name = described.name
        self._fields: dict[int, _Field] = {}
        for one in sorted(described.fields, key=lambda field: field.number):
            largest = _LARGEST.get(one.type, 0)
            known = one.number <= _LAST_NUMBER and (largest or one.type in _PARTS)
            if not known or (one.is_repeated and one.name not in most):
                raise TypeError(f"{described.name}.{one.name} has an unsupported type or repeats without a limit")
            bound = most[one.name] if one.is_repeated else 1
            tag = one.number << 3 | (0 if largest else _LENGTH)
            part, absent = _PARTS.get(one.type, ("", "0"))
            kept = (_INTEGER if largest else _REPEATED if one.is_repeated else _SINGLE).format(
                name=one.name, largest=largest, part=part
            )
            when = f"while len({one.name}) < {bound} and" if one.is_repeated else "if"
            absent = "[]" if one.is_repeated else absent
            block = _BLOCK.format(name=one.name, absent=absent, when=when, tag=tag, kept=kept)
            self._fields[tag] = _Field(one.name, bound, block)

    def reader(
        self, what: str, make: Callable[..., OtherT], reads: Mapping[str, Callable[[Any], Any] | None]
    ) -> Callable[[Span], OtherT]:
        """Return the function that reads a message of this kind: `make` of the fields in `reads`, each converted by it.

        The fields are integers, bytes, texts, spans of messages, and lists of these; a field that is not in `reads`
        belongs to another answer than `what`, and must not be there. The function raises DecodeError if the message is
        not in its canonical form, or has an unknown field or too many parts.

        Compiled with the first message, as `dataclasses` compiles: an upload of one report is all overhead, and a loop
        over a table of fields takes half as long again. A device, which reads few messages, starts without most.
        """
        found: Callable[[Span], OtherT] | None = None

        def read(span: Span) -> OtherT:
            nonlocal found
            if found is None:
                found = self._compiled(what, make, reads)
            return found(span)

        return read

    def _compiled(
        self, what: str, make: Callable[..., OtherT], reads: Mapping[str, Callable[[Any], Any] | None]
    ) -> Callable[[Span], OtherT]:
        known = {
            "make": make,
            "misplaced": partial(self._misplaced, what),
            "nothing": _NOTHING,
            "outside": self._outside,
            "varint": self._varint,
            **{f"read_{name}": convert for name, convert in reads.items()},
        }
        spelled = (f"{name}=read_{name}({name})" if convert else f"{name}={name}" for name, convert in reads.items())
        blocks = "".join(one.block for one in self._fields.values() if one.name in reads)
        exec(_READER.format(blocks=blocks, arguments=", ".join(spelled)), known)  # noqa: S102 our own names
        found: Callable[[Span], OtherT] = known["read"]
        return found

    def _misplaced(self, what: str, data: bytes, at: int, stop: int, last: int) -> DecodeError:
        """Return the refusal of a message whose fields, up to the tag `last`, do not end at `stop` but at `at`."""
        if at > stop:
            return DecodeError(f"{self._name} ends inside a field")
        try:
            tag, _ = self._varint(data, at)
        except IndexError:
            return DecodeError(f"{self._name} ends inside a number")
        field = self._fields.get(tag)
        if field is None:
            return DecodeError(f"{self._name} has an unknown field, {tag >> 3} of wire type {tag & 7}")
        if tag == last:
            return DecodeError(f"{self._name} has more than {field.most} {field.name}")
        if tag > last:
            return DecodeError(f"{what} has a field of another answer, {field.name}")
        return DecodeError(f"{self._name}.{field.name} is out of order")

    def _outside(self, name: str, value: int, largest: int) -> DecodeError:
        """Return the refusal of an integer outside its range, or of an empty field (`largest` 0)."""
        fault = f"is {value}, written are 1 to {largest}" if largest else "is written and empty"
        return DecodeError(f"{self._name}.{name} {fault}")

    def _varint(self, data: bytes, position: int) -> tuple[int, int]:
        """Return a number in its shortest form, and the position after it; raises IndexError where `data` ends."""
        value = 0
        for place in range(_MAX_VARINT_BYTES):
            byte = data[position + place]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if place and not byte:
                    raise DecodeError(f"{self._name} has a padded number")
                return value, position + place + 1
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
