"""Whether the bytes of a TLS client so far are a whole flight, which its server can answer, by the record headers.

It reads the five bytes of each record's header (RFC 8446, section 5.1) and nothing of its content.
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
    """How much of a flight of a handshake a client has sent."""

    PART = auto()
    """The server needs more bytes to answer."""
    WHOLE = auto()
    FOREIGN = auto()
    """The bytes are not TLS."""


def flight_of(said: bytes) -> Flight:
    """Return the state of the flight: whole once a record other than ChangeCipherSpec is complete."""
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
