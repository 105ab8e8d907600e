"""The one grammar of "host:port": of windows and descriptors, of every configuration and of the command line.

Decides what is written, never whether anything listens there.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_ENDPOINT_BYTES

ENDPOINT: Final = "host:port with a port from 1 to 65535"
"""What may be called, in words."""
LISTENER: Final = "host:port with a port from 0 to 65535"
"""What may be listened on, in words; port 0 is any that is free."""
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_LARGEST_PORT: Final = 65_535
_SHOWN: Final = 60


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return (host, port) of something that can be called, an IPv6 address without its brackets.

    A host is a name of at most 253 characters in labels of letters, digits and inner hyphens (RFC 1123, section 2.1),
    an IPv4 address, or an IPv6 address in brackets (RFC 3986, section 3.2.2) without a zone.

    Raises:
        UsageError: anything else; the message gives the value, cut, and `ENDPOINT`.
    """
    return _split(endpoint, 1, ENDPOINT)


def split_listener(endpoint: str) -> tuple[str, int]:
    """Return (host, port) of something that can be listened on: port 0 stands for any that is free.

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
    # No byte of an endpoint stands for more than one character: a longer text is refused before it is looked at.
    if len(endpoint) > MAX_ENDPOINT_BYTES or not good_port or not check_host(host):
        raise UsageError(f"{endpoint[:_SHOWN]!a} is not {allowed}")
    return host.strip("[]"), int(port)


def _is_address(text: str, kind: Callable[[str], object]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
