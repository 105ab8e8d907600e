"""An aggregator's public descriptor: the small TOML file that its operator gives to everybody else.

Public parts only: id, operator, endpoints, public keys, certificates of authorities. Opens no connection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.window import operator_key
from fleetcount_transport.toml_table import Table, read_toml

_KEYS: Final = ("id", "operator", "grpc_endpoint", "mqtt_broker", "signing_public_key", "hpke_keys")
_OF_OPERATOR: Final = (
    "deployment",
    "peer_endpoint",
    "aggregator_authority",
    "device_authority",
    "aggregator_revocations",
    "device_revocations",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorParts:
    """What the descriptor of an operator with authorities of its own adds (`fleetcount operator new`).

    `peer_endpoint` is where other aggregators reach this one. `aggregator_authority` certifies this aggregator, and the
    relays and brokers that its operator admits; `device_authority` devices and analysts. The lists of revoked
    certificates are those of the day on which the descriptor was made.
    """

    deployment: str
    peer_endpoint: str
    aggregator_authority: x509.Certificate
    device_authority: x509.Certificate
    aggregator_revocations: x509.CertificateRevocationList
    device_revocations: x509.CertificateRevocationList


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The aggregator as questions name it, and what an operator with authorities of its own adds."""

    aggregator: Aggregator
    operator_parts: OperatorParts | None = None


def read_descriptor(path: Path) -> Aggregator:
    """Return the aggregator a descriptor file describes.

    Raises:
        UsageError: as `read_whole_descriptor`.
    """
    return read_whole_descriptor(path).aggregator


def read_whole_descriptor(path: Path) -> Descriptor:
    """Return what a descriptor file describes.

    Raises:
        UsageError: not TOML, an unknown or missing key, a wrong value; with the file's name and the key.
    """
    table = read_toml(path, (*_KEYS, *_OF_OPERATOR))
    aggregator = Aggregator(
        aggregator_id=table.aggregator_id("id"),
        operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
        grpc_endpoint=table.endpoint("grpc_endpoint") if table.raw("grpc_endpoint") else "",
        mqtt_broker=table.endpoint("mqtt_broker") if table.raw("mqtt_broker") else "",
        hpke_keys=tuple(map(_hpke_key, table.sections("hpke_keys", ("key_id", "public_key"), least=1, most=256))),
        signing_public_key=table.base64_bytes("signing_public_key", 32),
    )
    if not any(map(table.has, _OF_OPERATOR)):
        return Descriptor(aggregator=aggregator)
    aggregators, devices = (_authority(table, f"{one}_authority") for one in ("aggregator", "device"))
    return Descriptor(
        aggregator=aggregator,
        operator_parts=OperatorParts(
            deployment=table.deployment("deployment"),
            peer_endpoint=table.endpoint("peer_endpoint"),
            aggregator_authority=aggregators,
            device_authority=devices,
            aggregator_revocations=_revocations(table, "aggregator_revocations", aggregators),
            device_revocations=_revocations(table, "device_revocations", devices),
        ),
    )


def _hpke_key(table: Table) -> HpkeKey:
    # X25519 has 32 bytes, the post-quantum hybrid 1,216: the rules of a key list judge the size.
    return HpkeKey(key_id=table.integer("key_id", 0, 255), public_key=table.base64_bytes("public_key"))


def _authority(table: Table, key: str) -> x509.Certificate:
    allowed = "the certificate of an authority that is valid now, DER in base64"
    try:
        certificate = x509.load_der_x509_certificate(table.base64_bytes(key))
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except UsageError:
        raise
    except Exception:
        raise table.wrong(key, f"is no certificate; allowed is {allowed}") from None
    ends = certificate.not_valid_after_utc
    if not basic.ca or not certificate.not_valid_before_utc <= datetime.now(UTC) <= ends:
        raise table.wrong(key, f"is none, or ended {ends:%Y-%m-%d}; allowed is {allowed}")
    return certificate


def _revocations(table: Table, key: str, authority: x509.Certificate) -> x509.CertificateRevocationList:
    allowed = "the list of the certificates that its authority has revoked, DER in base64"
    try:
        found = x509.load_der_x509_crl(table.base64_bytes(key))
    except ValueError:
        raise table.wrong(key, f"is no list; allowed is {allowed}") from None
    public = authority.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or not found.is_signature_valid(public):
        raise table.wrong(key, f"is not signed by its authority; allowed is {allowed}")
    return found


def same_fingerprint(said: str, fingerprint: str) -> bool:
    """Return whether somebody typed this fingerprint, with or without blanks, in either case."""
    return "".join(said.split()).lower() == fingerprint.replace(" ", "")


def read_operators(paths: Sequence[Path]) -> list[tuple[Path, Descriptor, OperatorParts]]:
    """Return the descriptors of the operators of one deployment, which a party of theirs is given.

    Raises:
        UsageError: a file that cannot be used, fewer than two, two of one id or operator, descriptors without the
            authorities of an operator, or of several deployments.
    """
    found = []
    for path in paths:
        descriptor = read_whole_descriptor(path)
        if descriptor.operator_parts is None:
            raise UsageError(
                f"{path} has no aggregator_authority; allowed is the descriptor that `fleetcount operator new` wrote"
            )
        found.append((path, descriptor, descriptor.operator_parts))
    names: Mapping[str, Sequence[str]] = {
        "id": [one.aggregator.aggregator_id for _, one, _ in found],
        "operator": [operator_key(one.aggregator.operator) for _, one, _ in found],
    }
    for what, values in names.items():
        if len(set(values)) < max(2, len(values)):
            raise UsageError(
                f"the descriptors have {len(set(values))} {what}s; a question needs two or more, all distinct"
            )
    deployments = {added.deployment for _, _, added in found}
    if len(deployments) > 1:
        raise UsageError(f"the descriptors are of the deployments {', '.join(sorted(deployments))}; allowed is one")
    return found


def authorities_pem(certificates: Sequence[x509.Certificate | x509.CertificateRevocationList]) -> bytes:
    """Return certificates, or lists of revoked ones, one after the other, as PEM."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
