"""Keys and certificates as TLS libraries take them."""

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import Credential, key_pem
from fleetcount_protocol.channel.session import DeviceIdentity


def pem_pair(one: Credential | DeviceIdentity) -> tuple[bytes, bytes]:
    """Return (private key, certificate), PEM."""
    return key_pem(one.private_key), one.certificate.public_bytes(Encoding.PEM)
