"""What an operator says of an aggregator: its names, its descriptor file, and the fingerprint that others compare.

It must not read a descriptor.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import check_host, is_loopback, split_endpoint
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_transport.toml_writing import toml_base64, toml_tables, toml_text

from fleetcount.keys.descriptors import OperatorParts

_FINGERPRINT_DIGITS: Final = 32
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 # Refused, not listened at.


def encode_descriptor(one: Aggregator, added: OperatorParts | None = None) -> str:
    """Return the descriptor file of an aggregator."""
    rows = {
        "id": toml_text(one.aggregator_id),
        "operator": toml_text(one.operator),
        "grpc_endpoint": toml_text(one.grpc_endpoint),
        "mqtt_broker": toml_text(one.mqtt_broker),
        "signing_public_key": toml_base64(one.signing_public_key),
    }
    if added is not None:
        rows |= {
            "deployment": toml_text(added.deployment),
            "peer_endpoint": toml_text(added.peer_endpoint),
            "aggregator_authority": toml_base64(added.aggregator_authority.public_bytes(Encoding.DER)),
            "device_authority": toml_base64(added.device_authority.public_bytes(Encoding.DER)),
            "aggregator_revocations": toml_base64(added.aggregator_revocations.public_bytes(Encoding.DER)),
            "device_revocations": toml_base64(added.device_revocations.public_bytes(Encoding.DER)),
        }
    keys = [
        ("[[hpke_keys]]", {"key_id": str(key.key_id), "public_key": toml_base64(key.public_key)})
        for key in one.hpke_keys
    ]
    comment = "Public description of one aggregator: give it to everybody who asks. It holds no secret."
    return toml_tables(comment, [("", rows), *keys])


def fingerprint_of(path: Path) -> str:
    """Return what two people compare by voice: 32 digits of the SHA-256 of a descriptor file, in groups of four.

    128 bits: nobody finds another file with the same.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        digits = hashlib.sha256(path.read_bytes()).hexdigest()[:_FINGERPRINT_DIGITS]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def check_names(deployment: str, host: str, broker: str) -> None:
    """Refuse names that no deployment can have; "" stands for no broker.

    Raises:
        UsageError: with the option, its value and what is allowed.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", deployment, re.ASCII):
        raise UsageError(f"--deployment is {deployment[:40]!r}; it must be 1 to 32 of a-z, 0-9 and '-'")
    if not check_host(f"[{host}]" if ":" in host else host):
        raise UsageError(f"--host is {host[:40]!r}; it must be a host name or an address")
    try:
        if broker:
            split_endpoint(broker)
    except UsageError as error:
        raise UsageError(f"--broker: {error}") from None


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """Return the host and the port of an option `--host HOST[:PORT]`; without a port, `port`.

    Raises:
        UsageError: it is no host name or address, or no port; or the address of all that a machine has, which others
            would take for their own.
    """
    bare = text.startswith("[") and text.endswith("]")
    if check_host(text) or (":" in text and check_host(f"[{text}]")):
        host = text.strip("[]") if bare else text
    else:
        try:
            host, port = split_endpoint(text)
        except UsageError:
            raise UsageError(f"--host is {text[:60]!r}; it must be a host name or an address, or HOST:PORT") from None
    if host in _EVERYWHERE:
        raise UsageError(
            f"--host is {text[:60]!r}, where others reach nobody; it must be this machine's name or address"
        )
    return host, port


def listening_host(host: str) -> str:
    """Return the address on which a server listens that is reached at a host: this machine's loopback, or every one."""
    return host if is_loopback(host) else "0.0.0.0"  # noqa: S104 - a host is a name for others; TLS guards the port
