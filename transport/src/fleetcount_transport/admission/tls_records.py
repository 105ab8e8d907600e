"""Whether what a client of TLS has said so far is something that its server can answer, by the heads of its records.

Looks at five bytes a record (RFC 8446, section 5.1) and at nothing in it.
"""

from enum import Enum, auto
from typing import Final

_HEAD_BYTES: Final = 5
_MAJOR: Final = 3
_LONGEST: Final = (1 << 14) + 256
_CHANGE_CIPHER_SPEC: Final = 20
_ALERT: Final = 21
_HANDSHAKE: Final = 22
_APPLICATION_DATA: Final = 23
_KINDS: Final = frozenset({_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION_DATA})


class Flight(Enum):
    """What a client has said of a handshake."""

    PART = auto()
    """More must come before a server can answer."""
    WHOLE = auto()
    FOREIGN = auto()
    """No TLS."""


def flight_of(said: bytes) -> Flight:
    """Return what was said: whole once a record of a handshake, or one that hides its kind, is complete."""
    place = 0
    while len(said) - place >= _HEAD_BYTES:
        kind, major = said[place], said[place + 1]
        length = int.from_bytes(said[place + 3 : place + _HEAD_BYTES])
        if kind not in _KINDS or major != _MAJOR or length > _LONGEST:
            return Flight.FOREIGN
        place += _HEAD_BYTES + length
        if kind != _CHANGE_CIPHER_SPEC and place <= len(said):
            return Flight.WHOLE
    if said[place : place + 1] and said[place] not in _KINDS:
        return Flight.FOREIGN
    return Flight.PART
