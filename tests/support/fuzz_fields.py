"""Inputs that are whole but for their meaning: fields of one valid message in another, repeated, empty or out of range.

What changes bytes alone seldom gets past the form. For tests only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, Final

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.question.question import decode_question_fields, encode_question_fields
from fleetcount_protocol.v1.peer_pb2 import SealSetRequest
from fleetcount_protocol.window.codec import decode_fields, encode_fields
from fleetcount_protocol.window.fields import ReleaseKind
from fleetcount_protocol.wire import device, device_stream, peer, question
from fleetcount_protocol.wire.codec import WireMessage
from google.protobuf.message import Message

_FORMS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = {
    "window": (decode_fields, encode_fields),
    "question": (decode_question_fields, encode_question_fields),
}
_KINDS: Final = 16
"""So many valid ones give their fields to each other."""
_CHANGES: Final = {
    "aggregators": (
        lambda found: tuple(replace(one, grpc_endpoint="", mqtt_broker="") for one in found),
        lambda found: found[:1],
        lambda found: found * 3,
    ),
    "expiry": (lambda found: found + 10**8,),
    "round_one_closes": (lambda found: found + 10**8,),
    "schedule": (
        lambda found: replace(found, every_s=1),
        lambda found: replace(found, every_s=found.round_one_s),
        lambda found: replace(found, windows=found.windows - 1),
        lambda found: replace(found, expiry_s=found.every_s, every_s=found.round_one_s + found.round_two_s),
    ),
    "drill_down": (
        lambda found: replace(found, levels=found.levels[::-1]),
        lambda found: replace(found, levels=(found.levels[0], found.levels[-1] + 9)),
    ),
    "release": (
        lambda found: replace(found, level=Fraction(1, 10)),
        lambda found: replace(found, kind=ReleaseKind.EXACT, noise_epsilon=None, noise_variance=None),
        lambda found: replace(found, kind=ReleaseKind.ONE_SIDED),
    ),
}
"""What else is done to a field than taking another one's."""


def crossed(name: str, seeds: Sequence[bytes]) -> Iterator[bytes]:
    """Yield inputs of a decoder made of the seeds that it takes; most of them are refused."""
    if name in _FORMS:
        yield from _layouts(*_FORMS[name], seeds)
    codecs = [getattr(module, name.upper(), None) for module in (device, device_stream, peer, question)]
    types = [codec.pb_type for codec in codecs if isinstance(codec, WireMessage)]
    for kind in [SealSetRequest] if name.startswith("seal_set_") else types:
        for seed in seeds:
            for changed in _changed(kind.FromString(seed)):
                yield changed.SerializeToString(deterministic=True)


def _layouts(read: Callable[[bytes], Any], write: Callable[[Any], bytes], seeds: Sequence[bytes]) -> Iterator[bytes]:
    values = [read(one) for one in seeds[:: max(1, len(seeds) // _KINDS)]]
    for value in values:
        for field in fields(value):
            here = getattr(value, field.name)
            others = [getattr(other, field.name) for other in values]
            for change in (*[lambda _, other=other: other for other in others], *_CHANGES.get(field.name, ())):
                try:
                    yield write(replace(value, **{field.name: change(here)}))
                except (FleetcountError, MechanismError, ValueError, TypeError, AttributeError):
                    continue  # There are no bytes that say so.


def _changed(message: Message) -> Iterator[Message]:
    """Yield the message with one field, its own or a part's, cleared, repeated, longer, shorter or another number."""
    for field, value in message.ListFields():
        copy = type(message)()
        for change in _of_field(field, value):
            copy.CopyFrom(message)
            copy.ClearField(field.name)
            change(copy)
            yield copy
    for field in message.DESCRIPTOR.fields:
        if not field.is_repeated and field.type in (field.TYPE_BYTES, field.TYPE_STRING, field.TYPE_UINT32):
            copy = type(message)()
            copy.CopyFrom(message)
            setattr(copy, field.name, {field.TYPE_BYTES: b"x", field.TYPE_STRING: "x"}.get(field.type, 7))
            yield copy


def _of_field(field: Any, value: Any) -> Iterator[Callable[[Any], None]]:
    name = field.name
    yield lambda copy: None
    if field.is_repeated:
        shorter = [one[:-1] if isinstance(one, bytes) else one for one in value]
        for parts in (list(value) * 2, list(value) * 40, list(value)[:-1], list(value)[::-1], shorter):
            yield lambda copy, parts=parts: getattr(copy, name).extend(parts)
        if field.type == field.TYPE_MESSAGE:
            for part in _changed(value[0]):
                yield lambda copy, part=part: getattr(copy, name).extend([part, *value[1:]])
    elif field.type == field.TYPE_MESSAGE:
        for part in _changed(value):
            yield lambda copy, part=part: getattr(copy, name).CopyFrom(part)
    elif isinstance(value, bytes):
        for other in (value + b"\0", value[:-1], bytes(len(value)), value * 40):
            yield lambda copy, other=other: setattr(copy, name, other)
    elif isinstance(value, int):
        for number in (0, 1, 2, 3, 255, 2**16, 2**31 - 1):
            yield lambda copy, number=number: setattr(copy, name, number)
    else:
        for text in ("", value + "\n", value * 40, "released", "aborted", "peer_aborted"):
            yield lambda copy, text=text: setattr(copy, name, text)
