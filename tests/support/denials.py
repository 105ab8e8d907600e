"""Deny lists of the test devices' authority, in files."""

from pathlib import Path

from fleetcount_protocol.channel.certificates import key_digest
from fleetcount_protocol.channel.deny_list import sign_deny_list
from fleetcount_protocol.ids import Digest
from fleetcount_transport.denials import Denials, DenySource

from tests.support.aggregators import START, device_authority, device_identity


def device_key(number: int) -> Digest:
    """Return the digest of a test device's public key."""
    return key_digest(device_identity(number).certificate)


def write_list(
    path: Path, *devices: int, number: int = 1, expires: int = START + 100_000, issued_at: int = START - 3600
) -> Path:
    """Write a list of test devices; return its file."""
    keys = [device_key(device) for device in devices]
    signed = sign_deny_list(device_authority(), keys, number=number, issued_at=issued_at, expires=expires)
    path.write_bytes(signed.encode())
    return path


def denials_of(path: Path, *devices: int, number: int = 1, expires: int = START + 100_000) -> Denials:
    """Write a list of test devices; return it loaded."""
    file = write_list(path, *devices, number=number, expires=expires)
    return Denials.open(DenySource(file=file), [device_authority().certificate])
