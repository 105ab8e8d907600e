"""Identifiers of the protocol, each its own type over bytes or text.

Only size and spelling are defined here; other modules define the things that the identifiers name.
"""

import hashlib
import ipaddress
import re
from collections.abc import Callable
from typing import ClassVar, Final, Self

from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.limits import MAX_ENDPOINT_BYTES


class _FixedBytes(bytes):
    """Bytes of one exact size, shown as the start of their hexadecimal form."""

    __slots__ = ()
    SIZE: ClassVar[int]

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.SIZE:
            raise DecodeError(f"{cls.__name__} has {len(value)} bytes, not {cls.SIZE}")
        return bytes.__new__(cls, value)  # Not super(), which doubles the cost: ids are made by the million.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()[:12]}…)"

    def __str__(self) -> str:
        return self.hex()


class WindowId(_FixedBytes):
    """SHA-256 of a window's canonical bytes (docs/wire.md, "Window")."""

    __slots__ = ()
    SIZE = 32


class QuestionId(_FixedBytes):
    """SHA-256 of a question's canonical bytes (docs/wire.md, "Question")."""

    __slots__ = ()
    SIZE = 32


class ReportId(_FixedBytes):
    """A report's random name, which is also its VDAF nonce (draft-irtf-cfrg-vdaf, NONCE_SIZE)."""

    __slots__ = ()
    SIZE = 16


class SessionId(_FixedBytes):
    """The first 16 bytes of SHA-256 over a session request's canonical bytes."""

    __slots__ = ()
    SIZE = 16


class Digest(_FixedBytes):
    """A SHA-256 digest."""

    __slots__ = ()
    SIZE = 32


class AggregatorId(str):
    """An aggregator's name in a window: 1 to 32 of a-z, 0-9 and '-', starting with a letter."""

    __slots__ = ()
    _PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)

    def __new__(cls, value: str) -> Self:
        if not cls._PATTERN.fullmatch(value):
            raise DecodeError(f"aggregator id {value[:40]!r} is not 1 to 32 of a-z, 0-9, '-' starting with a letter")
        return super().__new__(cls, value)


class UserName(str):
    """The name a broker knows a party by, one level of a topic: 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'.

    The common name of its certificate. Nothing that means something in a topic or in a pattern of access rules.
    """

    __slots__ = ()
    _PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

    def __new__(cls, value: str) -> Self:
        if not cls._PATTERN.fullmatch(value):
            raise DecodeError(
                f"user name {value[:70]!a} is not 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', first a letter or digit"
            )
        return super().__new__(cls, value)


# The one grammar of "host:port": of windows and descriptors, of every configuration and of the command line.

_HOST: Final = "and a host that is an address or a name of letters, digits and inner '-' (no '_', no '.' at its end)"
ENDPOINT: Final = f"host:port with a port from 1 to 65535 {_HOST}"
"""The allowed spelling of an address to connect to, for messages."""
LISTENER: Final = f"host:port with a port from 0 to 65535 {_HOST}"
"""The allowed spelling of an address to listen on, for messages; port 0 is any that is free."""
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_LARGEST_PORT: Final = 65_535
_SHOWN: Final = 60


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return (host, port) of an address to connect to, an IPv6 address without its brackets.

    A host is a name of at most 253 characters in labels of letters, digits and inner hyphens (RFC 1123, section 2.1),
    an IPv4 address, or an IPv6 address in brackets (RFC 3986, section 3.2.2) without a zone.

    Raises:
        UsageError: anything else; the message gives the value, cut, and `ENDPOINT`.
    """
    return _split(endpoint, 1, ENDPOINT)


def split_listener(endpoint: str) -> tuple[str, int]:
    """Return (host, port) of an address to listen on; port 0 stands for any that is free.

    Raises:
        UsageError: anything else; the message gives the value, cut, and `LISTENER`.
    """
    return _split(endpoint, 0, LISTENER)


def check_host(host: str) -> bool:
    """Return whether this is a host as it stands in an endpoint: a name, an IPv4 address, or [IPv6]."""
    if host.startswith("[") and host.endswith("]"):
        # A zone, "%eth0", names an interface of one machine; an endpoint is read on many.
        return "%" not in host and _is_address(host[1:-1], ipaddress.IPv6Address)
    labels = host.split(".")
    if all(label.isdigit() for label in labels):
        return _is_address(host, ipaddress.IPv4Address)
    return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)


def is_loopback(host: str) -> bool:
    """Return whether a host of `split_endpoint` can only be this machine: 127.0.0.0/8, ::1 or localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(endpoint: str, lowest_port: int, allowed: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    good_port = _PORT.fullmatch(port) is not None and lowest_port <= int(port) <= _LARGEST_PORT
    # The length comes first, so that `check_host` never sees a text of any length.
    if len(endpoint) > MAX_ENDPOINT_BYTES or not good_port or not check_host(host):
        raise UsageError(f"{endpoint[:_SHOWN]!a} is not {allowed}")
    return host.strip("[]"), int(port)


def _is_address(text: str, kind: Callable[[str], object]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


# Names of reports. A name is bound to one window and one device, so that no other device can use it first and all
# reports of a device to a window are found together.
#
#     bytes 0 to 3    SHA-256(label | window id | device)[:4]. They follow from window and device alone, so that the
#                     names of a device's first and second report begin alike; byte 0 is the leaf of the set.
#     bytes 4 to 11   random
#     bytes 12 to 15  SHA-256(label | device | bytes 0 to 11)[:4]: they bind all the others to the device
#
# `device` is the digest of the device's public key, never of its certificate. A name is checked as a whole: another
# key passes for its owner with probability 2^-64, once a key that was ever enrolled. Of 2^30 reports of a window two
# share a name with probability below 2^-68, since all but 64 random bits are hashes of two devices.
#
# A party that knows a device's key can recognise its names; to all others a name proves nothing. So names are never in
# messages that other devices can read, and only the session proves which device sent a report.

REPORT_ID_PREFIX_BYTES: Final = 4
REPORT_ID_RANDOM_BYTES: Final = 8
_NAMED_BYTES: Final = REPORT_ID_PREFIX_BYTES + REPORT_ID_RANDOM_BYTES
_PREFIX_LABEL: Final = b"fleetcount v2 report shard"
_REPORT_ID_LABEL: Final = b"fleetcount v2 report id"


def new_report_id(window_id: WindowId, device: Digest, source: RandomSource) -> ReportId:
    """Return a new name for a report to a window; `device` is the digest of the device's public key.

    Run by the device.
    """
    named = _prefix(window_id, device) + source.random_bytes(REPORT_ID_RANDOM_BYTES)
    return ReportId(named + _bound(device, named))


def owns(window_id: bytes, device: bytes, report_id: bytes) -> bool:
    """Return whether this device may use this name for this window; run by every aggregator."""
    named = report_id[:_NAMED_BYTES]
    return report_id == named + _bound(device, named) and named.startswith(_prefix(window_id, device))


def _prefix(window_id: bytes, device: bytes) -> bytes:
    return hashlib.sha256(_PREFIX_LABEL + window_id + device).digest()[:REPORT_ID_PREFIX_BYTES]


def _bound(device: bytes, named: bytes) -> bytes:
    return hashlib.sha256(_REPORT_ID_LABEL + device + named).digest()[: ReportId.SIZE - _NAMED_BYTES]
