"""The strict codec of every protobuf message: it reads bytes in place and accepts only a message's canonical form.

The protobuf library writes messages but does not read them: it accepts fields in any order, repeated, padded and
unknown. `Frame` reads each field once and checks number and size before it builds
values.

Most messages correspond to a dataclass: fields by name and type, bounds from a table. A short function beside it checks
rules that types cannot express (one of two answers, rules between fields). The correspondence is computed at import: a
field without its counterpart in the .proto, or bytes, text or a tuple without a bound, is a `TypeError` then. `device`
and `peer` define the messages.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Generic, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import check_text

DomainT = TypeVar("DomainT")
OtherT = TypeVar("OtherT")
MessageT = TypeVar("MessageT", bound=Message)

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


class _Block(NamedTuple):
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
        self._fields: dict[int, _Block] = {}
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
            self._fields[tag] = _Block(one.name, bound, block)

    def reader(
        self, what: str, make: Callable[..., OtherT], reads: Mapping[str, Callable[[Any], Any] | None]
    ) -> Callable[[Span], OtherT]:
        """Return the function that reads a message of this kind: `make` of the fields in `reads`, each converted by it.

        The fields are integers, bytes, texts, spans of messages, and lists of these; a field that is not in `reads`
        belongs to another answer than `what`, and must not be there. The function raises DecodeError if the message is
        not in its canonical form, or has an unknown field or too many parts.

        Compiled with the first message: a loop over a table of fields takes half as long again, and a device, which
        reads few messages, starts without most.
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
        known: dict[str, Any] = {
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


# Messages that correspond to a dataclass.

_BYTES: Final = FieldDescriptor.TYPE_BYTES


class Size(NamedTuple):
    """The number of bytes of a field; for an integer encoded in bytes, its one width."""

    smallest: int
    largest: int
    step: int = 1


class Range(NamedTuple):
    """The range of an integer; without this bound it is that of its protobuf type."""

    smallest: int
    largest: int


class Label(NamedTuple):
    """The number of bytes of a text that `check_text` allows."""

    smallest: int
    largest: int


class Canonical(NamedTuple):
    """The number of bytes of a field that is the `canonical` form of a value; `decode` reads it strictly."""

    decode: Callable[[bytes], Any]
    smallest: int
    largest: int


class Joined(NamedTuple):
    """Fields that are written as one column and read as its bytes, which `make` checks and splits."""


class Conversion(NamedTuple, Generic[DomainT, MessageT]):
    """The conversion between a value and a message; `WireMessage` makes it strict.

    `part` returns the arguments of the message's constructor: the library builds an inner message from these in place,
    while it would copy a message object, a large one several times.
    """

    pb_type: type[MessageT]
    part: Callable[[DomainT], dict[str, Any]]
    read: Callable[[Span], DomainT]

    def to_pb(self, value: DomainT) -> MessageT:
        """Return the message."""
        return self.pb_type(**self.part(value))


class Count(NamedTuple):
    """The number of parts of a tuple, checked before a part is read; `each` bounds a part."""

    smallest: int
    largest: int
    each: "Bound | None" = None


Bound = Size | Joined | Range | Label | Canonical | Count | Conversion[Any, Any] | WireMessage[Any, Any]
"""The bound of one field; for a field that is a message it may be that message's own codec."""
Bounds = Mapping[type, Mapping[str, Bound]]
"""The bounds of fields by their dataclass and name."""


class _Field(NamedTuple):
    """The conversion of one value to and from a message; None means no conversion."""

    write: Callable[[Any], Any] | None
    read: Callable[[Any], Any] | None


def conversion(
    pb_type: type[MessageT],
    kind: type[DomainT],
    bounds: Bounds,
    *,
    make: Callable[..., DomainT] | None = None,
    check: Callable[[DomainT], object] | None = None,
    subset: bool = False,
) -> Conversion[DomainT, MessageT]:
    """Return the conversion between a dataclass and its message, field by field.

    `make` builds the value in place of its class; `check` applies rules between fields. With `subset` the message has
    further fields, which belong to another answer and must be empty.

    Raises:
        TypeError: their fields differ, a bound is missing, or a bound has no field.
    """
    described, own = pb_type.DESCRIPTOR.fields_by_name, bounds.get(kind, {})
    hints = get_type_hints(kind)
    names = [field.name for field in fields(cast("Any", kind))]
    _agree(kind.__name__, set(names), set(names) & set(described) if subset else set(described))
    _agree(f"bounds of {kind.__name__}", set(own) - set(names), set())
    parts = {name: _field(name, hints[name], own.get(name), described[name], bounds) for name in names}
    written = _call(dict[str, Any], {name: part.write for name, part in parts.items()})
    reads = {name: part.read for name, part in parts.items()}
    read = _frame(pb_type.DESCRIPTOR, own).reader(kind.__name__, make or kind, reads)
    if check is None:
        return Conversion(pb_type, written, read)

    def read_checked(span: Span) -> DomainT:
        value = read(span)
        check(value)
        return value

    return Conversion(pb_type, written, read_checked)


def message(
    name: str,
    pb_type: type[MessageT],
    kind: type[DomainT],
    bounds: Bounds,
    largest: int,
    *,
    make: Callable[..., DomainT] | None = None,
    check: Callable[[DomainT], object] | None = None,
) -> WireMessage[DomainT, MessageT]:
    """Return the strict codec of a message that corresponds to a dataclass; see `conversion` and `WireMessage`.

    Raises:
        TypeError: as `conversion`.
    """
    found = conversion(pb_type, kind, bounds, make=make, check=check)
    return WireMessage(name, pb_type, found.to_pb, found.read, largest)


def single(
    name: str, pb_type: type[MessageT], kind: type[DomainT], largest: int, bound: Bound | None = None
) -> WireMessage[DomainT, MessageT]:
    """Return the strict codec of a message with one field, whose value has type `kind`.

    Raises:
        TypeError: the type needs another bound.
    """
    [described] = pb_type.DESCRIPTOR.fields
    part = _field(described.name, kind, bound, described, {})
    write, own = part.write or _same, {} if bound is None else {described.name: bound}
    read = _frame(pb_type.DESCRIPTOR, own).reader(name, _only, {described.name: part.read})
    return WireMessage(name, pb_type, lambda value: pb_type(**{described.name: write(value)}), read, largest)


def either(
    name: str,
    pb_type: type[MessageT],
    usual: Conversion[DomainT, MessageT],
    other: Conversion[OtherT, MessageT],
    kind: type[OtherT],
    named_by: str,
    largest: int,
) -> WireMessage[DomainT | OtherT, MessageT]:
    """Return the strict codec of a message with two kinds of answer.

    A message whose field `named_by` is not empty is the `other` answer, of type `kind`; else it is the usual one.
    """
    every = dict.fromkeys(pb_type.DESCRIPTOR.fields_by_name)
    parse = _frame(pb_type.DESCRIPTOR, {}).reader(name, SimpleNamespace, every)

    def to_pb(value: DomainT | OtherT) -> MessageT:
        return other.to_pb(value) if isinstance(value, kind) else usual.to_pb(cast("DomainT", value))

    def read(span: Span) -> DomainT | OtherT:
        return other.read(span) if getattr(parse(span), named_by) else usual.read(span)

    return WireMessage(name, pb_type, to_pb, read, largest)


def _frame(described: Any, bounds: Mapping[str, "Bound"]) -> Frame:
    most = {name: bound.largest for name, bound in bounds.items() if isinstance(bound, Count)}
    return Frame(described, most)


def _only(**values: OtherT) -> OtherT:
    [value] = values.values()
    return value


def _same(value: Any) -> Any:
    return value


def _agree(what: str, ours: set[str], theirs: set[str]) -> None:
    if ours != theirs:
        raise TypeError(f"{what}: no field corresponds to {', '.join(sorted(ours ^ theirs))}")


def _call(make: Callable[..., OtherT], converts: Mapping[str, Callable[[Any], Any] | None]) -> Callable[[Any], OtherT]:
    """Return `lambda it: make(name=convert(it.name), ...)` over these fields.

    Compiled once, as `dataclasses` does: with a loop over the fields every message would take half as long again.
    """
    spelled = (f"{name}=_{name}(it.{name})" if convert else f"{name}=it.{name}" for name, convert in converts.items())
    known = {"make": make, **{f"_{name}": convert for name, convert in converts.items()}}
    found: Callable[[Any], OtherT] = eval(f"lambda it: make({', '.join(spelled)})", known)  # noqa: S307 our own names
    return found


def _field(name: str, kind: Any, bound: Bound | None, described: Any, bounds: Bounds) -> _Field:
    """Return the conversion of a field of this type.

    Raises:
        TypeError: the bound does not fit the type.
    """
    what = name.replace("_", " ")
    if get_origin(kind) is tuple:
        return _parts(what, kind, bound, described, bounds)
    if get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind):
        return _optional(_field(name, get_args(kind)[0], bound, described, bounds))
    found = _plain(kind, described, bounds) if bound is None else _bounded(what, kind, bound, described)
    if found is None:
        raise TypeError(f"{name} is {kind!r}, which {bound!r} does not bound")
    return found


def _plain(kind: Any, described: Any, bounds: Bounds) -> _Field | None:
    """Return the conversion of a field whose type alone defines it; None if it needs a bound."""
    if described.message_type is not None:
        inner: Conversion[Any, Any] = conversion(GetMessageClass(described.message_type), kind, bounds)
        return _Field(inner.part, inner.read)
    if issubclass(kind, enum.Enum):
        return _Field(attrgetter("value"), _chosen(kind))
    if kind in (int, bool):
        return _Field(None, None)
    if issubclass(kind, bytes | str) and kind not in (bytes, str):
        # An id checks its own size or spelling; the few names of parties come with every message.
        return _Field(None, lru_cache(maxsize=64)(kind) if issubclass(kind, str) else kind)
    return None


def _bounded(what: str, kind: Any, bound: Bound, described: Any) -> _Field | None:
    """Return the conversion of a field with a bound; None if the bound does not fit the type."""
    if isinstance(bound, Conversion):
        return _Field(bound.part, bound.read)
    if isinstance(bound, WireMessage):
        return _Field(bound.to_pb, bound.read)
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any]
    match bound:
        case Canonical(decode, smallest, largest):
            write, read = attrgetter("canonical"), partial(_decoded, what, decode, smallest, largest)
        case Size(width, largest) if kind is int and width == largest and described.type == _BYTES:
            write, read = methodcaller("to_bytes", width), partial(_number, what, width)
        case Size(smallest, largest, 1) if kind is bytes:
            read = partial(check_size, what, smallest=smallest, largest=largest)
        case Size(smallest, largest, step) if kind is bytes:
            read = partial(_column, what, smallest, largest, step)
        case Joined():
            return _Field(b"".join, None)
        case Label(smallest, largest) if kind is str:
            read = partial(check_label, what, smallest=smallest, largest=largest)
        case Range(smallest, largest) if kind is int:
            read = partial(_in_range, what, smallest, largest)
        case _:
            return None
    return _Field(write, read)


def _optional(part: _Field) -> _Field:
    """Return the conversion of a value that may be None, which is an empty field."""

    def write(value: Any) -> Any:
        return value if value is None or part.write is None else part.write(value)

    def read(raw: Any) -> Any:
        return None if not raw else part.read(raw) if part.read else raw

    return _Field(write, read)


def _parts(what: str, kind: Any, bound: Bound | None, described: Any, bounds: Bounds) -> _Field:
    """Return the conversion of a tuple: to a repeated field, or of ids of one size to one field of bytes."""
    if not isinstance(bound, Count):
        raise TypeError(f"{what} is a tuple, which {bound!r} does not bound")
    [each, *rest] = get_args(kind)
    if rest != [Ellipsis]:
        raise TypeError(f"{what} is a tuple of parts of several types")
    if not described.is_repeated:
        return _Field(b"".join, partial(_split, what, each, bound))
    part = (
        _row(each, described.message_type)
        if get_origin(each) is tuple
        else _field(f"one of {what}", each, bound.each, described, bounds)
    )
    write, read = part.write, part.read

    def read_all(raw: Sequence[Any]) -> tuple[Any, ...]:
        if not bound.smallest <= len(raw):
            check_count(what, len(raw), bound.smallest, bound.largest)  # The parser has counted up to the largest.
        return tuple(map(read, raw)) if read else tuple(raw)

    def write_all(values: Iterable[Any]) -> list[Any]:
        return list(map(write, values)) if write else list(values)

    return _Field(write_all, read_all)


def _row(kind: Any, described: Any) -> _Field:
    """Return the conversion of a tuple to a message, with one value for each field, in the order of their numbers."""
    names = [one.name for one in described.fields]
    rows = zip(described.fields, get_args(kind), strict=True)
    parts = {one.name: _field(one.name, part, None, one, {}) for one, part in rows}
    converts = [part.write or _same for part in parts.values()]
    read = _frame(described, {}).reader(described.name, _row_of, {name: part.read for name, part in parts.items()})

    def write(values: Sequence[Any]) -> dict[str, Any]:
        written = (convert(value) for convert, value in zip(converts, values, strict=True))
        return dict(zip(names, written, strict=True))

    return _Field(write, read)


def _row_of(**values: Any) -> tuple[Any, ...]:
    return tuple(values.values())


def _split(what: str, each: Any, bound: Count, raw: bytes) -> tuple[Any, ...]:
    size = each.SIZE
    check_count(what, len(_whole(what, raw, size)) // size, bound.smallest, bound.largest)
    return tuple(each(raw[at : at + size]) for at in range(0, len(raw), size))


def _whole(what: str, raw: bytes, step: int) -> bytes:
    if len(raw) % step:
        raise DecodeError(f"{what} has {len(raw)} bytes, not a multiple of {step}")
    return raw


def _column(what: str, smallest: int, largest: int, step: int, raw: bytes) -> bytes:
    return check_size(what, _whole(what, raw, step), smallest, largest)


def _decoded(what: str, decode: Callable[[bytes], Any], smallest: int, largest: int, raw: bytes) -> Any:
    return decode(check_size(what, raw, smallest, largest))


def _number(what: str, width: int, raw: bytes) -> int:
    return int.from_bytes(check_size(what, raw, width, width))


def _in_range(what: str, smallest: int, largest: int, value: int) -> int:
    if not smallest <= value <= largest:
        raise DecodeError(f"{what} is {value}, allowed: {smallest} to {largest}")
    return value


def _chosen(kind: type[enum.Enum]) -> Callable[[Any], enum.Enum]:
    """Return the function that reads a member of an enumeration and refuses every other value."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    members: Final = {one.value: one for one in kind}
    allowed = ", ".join(map(str, members))

    def read(raw: Any) -> enum.Enum:
        found = members.get(raw)
        if found is None:
            raise DecodeError(f"{raw!a:.40} is no {words}, allowed: {allowed}")
        return found

    return read
