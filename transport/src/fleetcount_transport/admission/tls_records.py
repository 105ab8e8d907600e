"""Whether the bytes of a TLS client so far are a whole flight, which its server can answer, by the record headers.

It reads the five bytes of each record's header (RFC 8446, section 5.1) and, of a handshake in the clear, the type of
its first message (section 4); nothing else of its content.
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
_CLIENT_HELLO: Final = 1
_ALERT_BYTES: Final = 2
_SEALING_BYTES: Final = 17
"""The type and the tag of an encrypted record (section 5.2)."""
LONGEST_ALERT_BYTES: Final = _HEAD_BYTES + _ALERT_BYTES + _SEALING_BYTES
"""The bytes of an encrypted alert; every encrypted message of a handshake or of HTTP/2 is longer."""
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


def is_hello(said: bytes) -> bool:
    """Return whether a whole flight is a ClientHello: the first, or a second one after a HelloRetryRequest (RFC 8446,
    section 4.1.4).
    """
    kind, record = _first_record(said)
    return kind == _HANDSHAKE and record[_HEAD_BYTES:][:1] == bytes([_CLIENT_HELLO])


def is_alert(said: bytes) -> bool:
    """Return whether a whole flight is an alert, in the clear or encrypted: the client gives up."""
    kind, record = _first_record(said)
    return kind == _ALERT or (kind == _APPLICATION_DATA and len(record) <= LONGEST_ALERT_BYTES)


def _first_record(said: bytes) -> tuple[int, bytes]:
    """Return kind and bytes of the first record other than ChangeCipherSpec in a whole flight."""
    place = 0
    while True:
        record = said[place : place + _HEAD_BYTES + int.from_bytes(said[place + 3 : place + _HEAD_BYTES])]
        if record[0] != _CHANGE_CIPHER_SPEC:
            return record[0], record
        place += len(record)
