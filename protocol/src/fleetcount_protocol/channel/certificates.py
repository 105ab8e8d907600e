"""X.509 certificates of a deployment, which bind a key to one role (docs/wire.md, "Certificates"; decision 21).

P-256 leaves directly below a P-256 authority, each for one purpose. The only name in a device's certificate is a random
text, never that of a vehicle. A fleet's own enrolment service may issue the certificates in place of this module.
"""

import enum
import hashlib
import ipaddress
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import DecodeError, SignatureError, UsageError
from fleetcount_protocol.ids import Digest, UserName
from fleetcount_protocol.limits import MAX_CERTIFICATE_BYTES

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey | X25519PrivateKey
YEAR: Final = timedelta(days=365)
"""The lifetime of a test deployment's certificates and authorities."""
_ARC: Final = "2.25.229226371858029907233568260518592717640"
"""The project's own arc of object identifiers, from a UUID (ITU-T X.667); docs/wire.md lists what is below."""
_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_BACKDATING: Final = timedelta(minutes=5)
# The exceptions of the library for certificates that it cannot read; they have no common base.
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    CryptographyDeprecationWarning,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_MAX_FILE_BYTES: Final = 256 * 1024
_DNS_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)


class Purpose(enum.Enum):
    """The role of a certificate's holder; the value is its extended key usage, and a leaf has exactly one of them."""

    DEVICE = x509.ObjectIdentifier(f"{_ARC}.1")
    READER = x509.ObjectIdentifier(f"{_ARC}.2")
    RELAY = x509.ObjectIdentifier(f"{_ARC}.3")
    AGGREGATOR = x509.ObjectIdentifier(f"{_ARC}.4")
    BROKER = x509.ObjectIdentifier(f"{_ARC}.5")

    @property
    def label(self) -> str:
        """The purpose as it is written in files and messages."""
        return self.name.lower()

    @property
    def listens(self) -> bool:
        """Whether such a party is a server in TLS, under host names."""
        return self in {Purpose.RELAY, Purpose.AGGREGATOR, Purpose.BROKER}

    @property
    def usages(self) -> tuple[x509.ObjectIdentifier, ...]:
        """Every extended key usage of such a certificate: its TLS roles, then the purpose itself."""
        calls = () if self is Purpose.BROKER else (_CLIENT,)
        return (*((_SERVER,) if self.listens else ()), *calls, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A certificate and its private key."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateAuthority:
    """An authority that issues leaves directly: path length 0, certificate signing only."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str, now: datetime | None = None, *, validity: timedelta = YEAR) -> "CertificateAuthority":
        """Return a new self-signed authority, valid from `now` (default: this moment)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _common_name(name)
        start = _start(now)
        builder = _builder(subject, subject, key.public_key(), (start, start + validity)).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        return cls(certificate=builder.sign(key, hashes.SHA256()), private_key=key)

    def issue_aggregator(self, aggregator_id: str, hosts: Sequence[str], now: datetime | None = None) -> Credential:
        """Return a server and client certificate: SAN = the aggregator id, then its host names and addresses.

        Raises:
            UsageError: a host that is neither a DNS name nor an address, or an id that is no DNS name.
        """
        return self.issue_new(Purpose.AGGREGATOR, aggregator_id, hosts, now)

    def issue_device(self, name: str | None = None, now: datetime | None = None) -> Credential:
        """Return a client certificate for a device; without a name, as in production, it gets a random one.

        Raises:
            UsageError: a name that is no DNS name.
        """
        return self.issue_new(Purpose.DEVICE, name or random_device_name(), now=now)

    def issue_new(
        self, purpose: Purpose, name: str, hosts: Sequence[str] = (), now: datetime | None = None
    ) -> Credential:
        """Return a certificate and a new key for it, for a year: for tests, where one person makes the keys of all.

        Raises:
            UsageError: see `issue`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.issue(purpose, key.public_key(), name, hosts, validity=YEAR, now=now)
        return Credential(certificate=certificate, private_key=key)

    def issue(
        self,
        purpose: Purpose,
        key: ec.EllipticCurvePublicKey,
        name: str,
        hosts: Sequence[str] = (),
        *,
        validity: timedelta,
        now: datetime | None = None,
    ) -> x509.Certificate:
        """Return a leaf for a public key, valid from `now` (default: this moment) and not beyond the authority.

        Its alternative names are `name`, which is the common name too, then the hosts.

        Raises:
            UsageError: a host that is neither a DNS name nor an address, a name that is no DNS name or no `UserName`,
                or an authority that has ended.
        """
        names = [general_name(one) for one in dict.fromkeys((name, *hosts))]
        if not isinstance(names[0], x509.DNSName):
            raise UsageError(f"{name!r} cannot be a DNS name in a certificate")
        try:
            UserName(name)
        except DecodeError as error:
            raise UsageError(str(error)) from None
        start = _start(now)
        end = min(start + validity, self.certificate.not_valid_after_utc)
        if end <= start + _BACKDATING:
            raise UsageError(f"the authority expired at {utc_text(end.timestamp())}; make a new one")
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private_key.public_key())
        builder = (
            _builder(_common_name(name), self.certificate.subject, key, (start, end))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purpose.usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(authority_key, critical=False)
        )
        return builder.sign(self.private_key, hashes.SHA256())

    def revocations(self, serial_numbers: Iterable[int], now: datetime | None = None) -> x509.CertificateRevocationList:
        """Return the list of revoked certificates of this authority (RFC 5280, section 5), for a broker.

        It is valid as long as the authority: a broker lets nobody in whose authority has no valid list. Fresh are the
        deny lists, which aggregators read.
        """
        start = _start(now)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(start)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private_key.public_key()), critical=False
            )
        )
        for number in sorted(set(serial_numbers)):
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(start).build()
            builder = builder.add_revoked_certificate(revoked)
        return builder.sign(self.private_key, hashes.SHA256())


def random_device_name() -> str:
    """Return a random device name, "d-" and 96 random bits in hexadecimal."""
    return f"d-{os.urandom(12).hex()}"


def verify_chain(
    certificate: x509.Certificate,
    ca_certificates: Sequence[x509.Certificate],
    now: float,
    purpose: Purpose,
) -> None:
    """Accept a leaf issued directly by one of the authorities, valid now, for this purpose (RFC 5280, section 6).

    The library checks signature, validity, names, usages and key strength under the Web PKI profile. In addition:
    exactly this purpose, a P-256 key, no wildcard, and a SHA-256 signature.

    Raises:
        SignatureError: the first fault found, named.
    """
    _check_leaf(certificate, now)
    try:
        moment = datetime.fromtimestamp(now, UTC)
        builder = PolicyBuilder().store(_store(tuple(ca_certificates))).time(moment).max_chain_depth(0)
        if purpose.listens:
            builder.build_server_verifier(_subject(certificate)).verify(certificate, [])
        else:
            builder.build_client_verifier().verify(certificate, [])
    except VerificationError as error:
        reason = str(error).partition(" (encountered")[0]
        raise SignatureError(f"certificate is not accepted: {reason}") from None
    except (ValueError, OverflowError, OSError) as error:
        raise SignatureError(f"certificate is not accepted: {type(error).__name__}") from None
    if (found := purpose_of(certificate)) is not purpose:
        raise SignatureError(f"certificate is for the purpose {found.label}, not {purpose.label}")


def purpose_of(certificate: x509.Certificate) -> Purpose:
    """Return the purpose that a certificate names; the certificate is not verified here.

    Raises:
        SignatureError: it names no purpose of this project, or more than one.
    """
    try:
        usages = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except (x509.ExtensionNotFound, *_UNREADABLE):
        usages = []
    found = [purpose for purpose in Purpose if purpose.value in usages]
    if len(found) != 1:
        named = ", ".join(purpose.label for purpose in found) or "none"
        raise SignatureError(f"certificate must name exactly one purpose of this project; it names {named}")
    return found[0]


def aggregator_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names of a certificate, the first of which is the aggregator's id; the common name is ignored.

    Raises:
        SignatureError: it has no alternative names, or they cannot be read.
    """
    return tuple(name.value for name in _alternative_names(certificate) if isinstance(name, x509.DNSName))


def key_digest(certificate: x509.Certificate) -> Digest:
    """Return SHA-256 of the certificate's SubjectPublicKeyInfo in DER: the device's identity for counting.

    Not of the whole certificate: its holder can replace the authority's ECDSA signature (r, s) by (r, n - s), which
    gives a second valid certificate, and with it a second report.
    """
    return public_key_digest(certificate.public_key())


def public_key_digest(key: CertificatePublicKeyTypes) -> Digest:
    """Return SHA-256 of a public key's SubjectPublicKeyInfo in DER."""
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Digest(hashlib.sha256(encoded).digest())


def parse_certificate(der: bytes) -> x509.Certificate:
    """Return the certificate that these bytes encode; only its one DER encoding is accepted.

    Raises:
        SignatureError: they are not a certificate, or another encoding of one.
    """
    try:
        with warnings.catch_warnings():
            # The library reads some invalid certificates with a warning only (a serial number below 1): refused here.
            warnings.simplefilter("error", CryptographyDeprecationWarning)
            certificate = x509.load_der_x509_certificate(der)
    except _UNREADABLE as error:
        raise SignatureError(f"certificate cannot be read: {type(error).__name__}") from None
    # The library accepts a signature whose BIT STRING claims unused bits (the octet before it) if those bits are zero;
    # that would be a second encoding.
    if certificate_der(certificate) != der or der[-len(certificate.signature) - 1] != 0:
        raise SignatureError("certificate is not in DER")
    return certificate


def certificate_der(certificate: x509.Certificate) -> bytes:
    """Return the certificate as DER."""
    return certificate.public_bytes(serialization.Encoding.DER)


def save_credential(directory: Path, name: str, credential: Credential | CertificateAuthority) -> None:
    """Write NAME.crt and NAME.key to a directory.

    Raises:
        FileExistsError: one of them exists; it is not overwritten.
    """
    save_certificates(directory / f"{name}.crt", [credential.certificate])
    save_private_key(directory / f"{name}.key", credential.private_key)


def save_private_key(path: Path, key: PrivateKey) -> None:
    """Write a private key as PKCS #8 PEM to a new file that only its owner can read (mode 0600).

    Raises:
        FileExistsError: the file exists; it is not overwritten.
    """
    write_new(path, key_pem(key), 0o600)


def key_pem(key: PrivateKey) -> bytes:
    """Return a private key as PKCS #8 PEM, not encrypted."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def save_certificates(path: Path, certificates: Sequence[x509.Certificate]) -> None:
    """Write certificates as PEM, one after the other, to a new file (mode 0644).

    Raises:
        FileExistsError: the file exists; it is not overwritten.
    """
    write_new(path, b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates), 0o644)


def load_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the P-256 key of a PEM file that only its owner can read.

    Raises:
        UsageError: a file mode with which other users can read it, more than one key, another kind of key, or no PEM.
        OSError: it cannot be read.
    """
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise UsageError(f"{path} has mode {mode:04o}, allowed: 0600 (nobody else may read a private key)")
    data = _read_one_pem(path, b"PRIVATE KEY")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} holds no readable private key ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError(f"{path} holds a {type(key).__name__}, allowed: a P-256 key")
    return key


def load_certificate(path: Path) -> x509.Certificate:
    """Return the only certificate of a PEM file.

    Raises:
        UsageError: the file has no certificate, more than one, or other contents.
        OSError: it cannot be read.
    """
    certificates = load_authorities(path)
    if len(certificates) != 1:
        raise UsageError(f"{path} holds {len(certificates)} certificates, allowed: exactly one")
    return certificates[0]


def load_authorities(path: Path) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM file, at least one.

    Raises:
        UsageError: the file has no certificate, or other contents.
        OSError: it cannot be read.
    """
    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise UsageError(f"{path} holds a private key where a certificate belongs")
    try:
        return tuple(x509.load_pem_x509_certificates(data))
    except _UNREADABLE as error:
        raise UsageError(f"{path} holds no readable certificate ({type(error).__name__})") from None


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file")
    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    return data


def _read_one_pem(path: Path, kind: bytes) -> bytes:
    data = _read(path)
    begins = data.count(b"-----BEGIN ")
    if begins != 1 or kind not in data:
        raise UsageError(f"{path} holds {begins} PEM blocks, allowed: exactly one {kind.decode().lower()}")
    return data


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet, with its mode, durably.

    Raises:
        FileExistsError: it exists; it is not overwritten.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _start(now: datetime | None) -> datetime:
    return (now or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0) - _BACKDATING


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, period: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period[0])
        .not_valid_after(period[1])
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(name: str) -> x509.DNSName | x509.IPAddress:
    """Return a host as certificates have it; an IPv6 address may stand in brackets.

    Raises:
        UsageError: it is neither a DNS name nor an address.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        if not _DNS_NAME.fullmatch(name):
            raise UsageError(f"{name[:60]!a} is neither a DNS name nor an address") from None
        return x509.DNSName(name)


def _alternative_names(certificate: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, *_UNREADABLE):
        raise SignatureError("certificate has no readable subject alternative name") from None


def _subject(certificate: x509.Certificate) -> x509.DNSName:
    for name in _alternative_names(certificate):
        if isinstance(name, x509.DNSName):
            return name
    raise SignatureError("certificate has no DNS name")


def _check_leaf(certificate: x509.Certificate, now: float) -> None:
    try:
        key = certificate.public_key()
        algorithm = certificate.signature_hash_algorithm
        size = len(certificate_der(certificate))
    except _UNREADABLE as error:
        raise SignatureError(f"certificate cannot be read: {type(error).__name__}") from None
    if size > MAX_CERTIFICATE_BYTES:
        raise SignatureError(f"certificate has {size} bytes, more than {MAX_CERTIFICATE_BYTES}")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SignatureError("certificate has no P-256 key")
    if not isinstance(algorithm, hashes.SHA256):
        raise SignatureError("certificate is not signed over SHA-256")
    if now < certificate.not_valid_before_utc.timestamp():
        raise SignatureError("certificate is not yet valid")
    if now > certificate.not_valid_after_utc.timestamp():
        raise SignatureError("certificate has expired")
    if any("*" in name.value for name in _alternative_names(certificate) if isinstance(name, x509.DNSName)):
        raise SignatureError("certificate has a wildcard name")


@lru_cache(maxsize=16)
def _store(authorities: tuple[x509.Certificate, ...]) -> Store:
    return Store(list(authorities))
