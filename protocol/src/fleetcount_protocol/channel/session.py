"""Sessions between a device and one aggregator, and sealing of reports under them (docs/wire.md, "Session", "Report").

A session carries one secret from the device to the aggregator; the report keys come from it. Never stores a session:
both sides do that, durably, before they act on it.
"""

import hmac
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_protocol.channel import certificates
from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
from fleetcount_protocol.errors import DecodeError, Refused, RejectReason, SealError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId
from fleetcount_protocol.layout import sized, uint
from fleetcount_protocol.limits import (
    AES_GCM_TAG_BYTES,
    MAX_AGGREGATORS,
    MAX_CERTIFICATE_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_PUBLIC_SHARE_BYTES,
    MAX_SESSION_BYTES,
    MAX_SESSION_LIFETIME_S,
    MAX_SIGNATURE_BYTES,
    MAX_UNIX_TIME,
    SESSION_SECRET_BYTES,
)
from fleetcount_protocol.messages import Instalment, SessionRequest
from fleetcount_protocol.task.task import Aggregator, HpkeKey

__all__ = [
    "DeviceIdentity",
    "SessionSecret",
    "accept_session",
    "check_session_request",
    "judge_request",
    "new_session",
    "open_request",
    "report_key",
    "seal_instalment",
    "unseal_instalment",
]

SESSION_INFO_LABEL: Final = b"fleetcount v1 session"
REPORT_KEY_LABEL: Final = b"fleetcount v1 report key"
REPORT_LABEL: Final = b"fleetcount v1 report"
RECEIPT_KEY_LABEL: Final = b"fleetcount v1 receipt key"
REPORT_KEY_BYTES: Final = 16
NONCE: Final = bytes(12)
"""AES-GCM's nonce is zero because every key seals one message: it is derived from the report's random id and round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device's certificate and its P-256 key: for mutual TLS, and to sign session requests on any transport.

    Raises:
        UsageError: the key is not the certificate's.
    """

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        if self.certificate.public_key() != self.private_key.public_key():
            raise UsageError("the private key does not belong to the certificate")

    @classmethod
    def load(cls, certificate_file: Path, key_file: Path) -> "DeviceIdentity":
        """Return the identity kept in two PEM files.

        Raises:
            UsageError: a file that holds something else, or a key file others may read.
            OSError: a file cannot be read.
        """
        certificate = certificates.load_certificate(certificate_file)
        return cls(certificate=certificate, private_key=certificates.load_private_key(key_file))

    @classmethod
    def generate(cls, authority: certificates.CertificateAuthority, name: str | None = None) -> "DeviceIdentity":
        """Return a new identity under a test deployment's authority, by default with a random name."""
        credential = authority.issue_device(name)
        return cls(certificate=credential.certificate, private_key=credential.private_key)


@dataclass(frozen=True, kw_only=True)
class SessionSecret:
    """What device and aggregator share for one session: 32 secret bytes until `expiry` (Unix seconds).

    Raises:
        UsageError: a secret of another size.
    """

    session_id: SessionId
    aggregator_id: AggregatorId
    secret: bytes = field(repr=False)
    expiry: int

    def __post_init__(self) -> None:
        if len(self.secret) != SESSION_SECRET_BYTES:
            raise UsageError(f"a session secret has {SESSION_SECRET_BYTES} bytes, not {len(self.secret)}")

    @cached_property
    def receipt_key(self) -> bytes:
        """The 32-byte key of the session's receipts."""
        return _expand(self.secret, RECEIPT_KEY_LABEL, 32)


def check_session_request(request: SessionRequest) -> None:
    """Refuse a request with a field beyond its size; cheap, before any cryptography.

    Raises:
        DecodeError: which field.
    """
    sizes = (
        ("sealed_secret", request.sealed_secret, 80, 2_048),
        ("certificate", request.certificate, 1, MAX_CERTIFICATE_BYTES),
        ("signature", request.signature, 8, MAX_SIGNATURE_BYTES),
    )
    for name, value, smallest, largest in sizes:
        if not smallest <= len(value) <= largest:
            raise DecodeError(f"{name} of a session has {len(value)} bytes, not {smallest} to {largest}")
    if not 0 <= request.key_id <= 255 or not 0 < request.expiry <= MAX_UNIX_TIME:
        raise DecodeError(f"session with key id {request.key_id} and expiry {request.expiry} is out of range")
    if len(request.signed_bytes) > MAX_SESSION_BYTES:
        raise DecodeError("session request is too long")


def new_session(
    aggregator: Aggregator, key: HpkeKey, device: DeviceIdentity, expiry: int, source: RandomSource
) -> tuple[SessionRequest, SessionSecret]:
    """Return a signed request and the secret it carries; run by the device, which stores both before it sends.

    Sent again, the same request opens the same session.

    Raises:
        UsageError: the aggregator's key cannot be sealed to.
    """
    secret = source.random_bytes(SESSION_SECRET_BYTES)
    info = _session_info(aggregator.aggregator_id, key.key_id, certificates.key_digest(device.certificate), expiry)
    unsigned = SessionRequest(
        aggregator_id=aggregator.aggregator_id,
        key_id=key.key_id,
        sealed_secret=seal_to(key.public_key, secret, info),
        certificate=certificates.certificate_der(device.certificate),
        expiry=expiry,
        signature=b"",
    )
    # The signature covers everything else, and the session's name is the hash of what it covers: ECDSA is randomized,
    # so a name that covered the signature too would differ at every signing.
    signature = device.private_key.sign(unsigned.signed_bytes, ec.ECDSA(hashes.SHA256()))
    request = SessionRequest(
        aggregator_id=unsigned.aggregator_id,
        key_id=unsigned.key_id,
        sealed_secret=unsigned.sealed_secret,
        certificate=unsigned.certificate,
        expiry=expiry,
        signature=signature,
    )
    return request, _secret_of(request, secret)


def accept_session(
    request: SessionRequest,
    key_pairs: Mapping[int, HpkeKeyPair],
    aggregator_id: AggregatorId,
    ca: Sequence[x509.Certificate],
    now: float,
) -> tuple[SessionId, SessionSecret, Digest]:
    """Return the session, its secret and the digest of the device's key; run by the aggregator.

    The digest is the device's identity for "one report a task" (`certificates.key_digest`). Cheap checks come first:
    sizes, key id and expiry before the chain, the chain before the signature, the signature before the seal.

    Raises:
        Refused: MALFORMED, UNKNOWN_KEY, EXPIRED, BAD_CERTIFICATE, BAD_SIGNATURE or BAD_SEAL.
    """
    digest = judge_request(request, key_pairs, aggregator_id, ca, now)
    return request.session_id, open_request(request, key_pairs[request.key_id], digest), digest


def judge_request(
    request: SessionRequest,
    key_ids: Container[int],
    aggregator_id: AggregatorId,
    ca: Sequence[x509.Certificate],
    now: float,
    *,
    known: bool = False,
) -> Digest:
    """Return the digest of the device's key if everything but the seal is right: the checks that need no private key.

    The signature of a `known` request, which this aggregator accepted and stored before, is not checked a second time.

    Raises:
        Refused: MALFORMED, UNKNOWN_KEY, EXPIRED, BAD_CERTIFICATE or BAD_SIGNATURE.
    """
    _check_form(request, key_ids, aggregator_id, now)
    certificate = _accepted_certificate(request, ca, now)
    if not known:
        _check_signature(request, certificate)
    return certificates.key_digest(certificate)


def open_request(request: SessionRequest, pair: HpkeKeyPair, digest: Digest) -> SessionSecret:
    """Return the secret of a request that `judge_request` has accepted with this digest.

    Raises:
        Refused: BAD_SEAL or MALFORMED.
    """
    try:
        info = _session_info(request.aggregator_id, request.key_id, digest, request.expiry)
        secret = pair.open(request.sealed_secret, info)
    except SealError:
        raise Refused(RejectReason.BAD_SEAL) from None
    if len(secret) != SESSION_SECRET_BYTES:
        raise Refused(RejectReason.MALFORMED)
    return _secret_of(request, secret)


def _check_form(request: SessionRequest, key_ids: Container[int], aggregator_id: AggregatorId, now: float) -> None:
    try:
        check_session_request(request)
    except DecodeError:
        raise Refused(RejectReason.MALFORMED) from None
    if request.aggregator_id != aggregator_id:
        raise Refused(RejectReason.MALFORMED)
    if request.key_id not in key_ids:
        raise Refused(RejectReason.UNKNOWN_KEY)
    if request.expiry <= now:
        raise Refused(RejectReason.EXPIRED)
    if request.expiry > now + MAX_SESSION_LIFETIME_S:
        raise Refused(RejectReason.MALFORMED)


def _accepted_certificate(request: SessionRequest, ca: Sequence[x509.Certificate], now: float) -> x509.Certificate:
    try:
        certificate = certificates.parse_certificate(request.certificate)
        certificates.verify_chain(certificate, ca, now, certificates.Purpose.DEVICE)
    except SignatureError:
        raise Refused(RejectReason.BAD_CERTIFICATE) from None
    if request.expiry > certificate.not_valid_after_utc.timestamp():
        raise Refused(RejectReason.BAD_CERTIFICATE)  # A session ends no later than the certificate that opened it.
    return certificate


def _check_signature(request: SessionRequest, certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Refused(RejectReason.BAD_CERTIFICATE)
    try:
        key.verify(request.signature, request.signed_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise Refused(RejectReason.BAD_SIGNATURE) from None


def _session_info(aggregator_id: AggregatorId, key_id: int, device_digest: Digest, expiry: int) -> bytes:
    # Bound to the device's key: a sealed secret that is copied into another device's request does not open there.
    named = sized(aggregator_id.encode(), 1) + uint(key_id, 1)
    return SESSION_INFO_LABEL + named + device_digest + uint(expiry, 8)


def _secret_of(request: SessionRequest, secret: bytes) -> SessionSecret:
    return SessionSecret(
        session_id=request.session_id,
        aggregator_id=request.aggregator_id,
        secret=secret,
        expiry=request.expiry,
    )


# Reports.


def report_key(secret: SessionSecret, task_id: TaskId, report_id: ReportId, round_number: int) -> bytes:
    """Return the 16-byte AES key of one part of one report (HKDF-Expand, RFC 5869, section 2.3)."""
    info = REPORT_KEY_LABEL + task_id + report_id + uint(round_number, 1)
    return _expand(secret.secret, info, REPORT_KEY_BYTES)


def seal_instalment(
    secret: SessionSecret,
    task_id: TaskId,
    report_id: ReportId,
    round_number: int,
    aggregator_position: int,
    public_share: bytes,
    plaintext: bytes,
) -> Instalment:
    """Return one part of a report sealed to one aggregator; run by the device.

    Sealing is deterministic: the same part gives the same bytes. A device must never seal two different parts under one
    report id and round, since they would share key and nonce.

    Raises:
        UsageError: a part or a public share beyond its size.
    """
    if len(plaintext) + AES_GCM_TAG_BYTES > MAX_CIPHERTEXT_BYTES or len(public_share) > MAX_PUBLIC_SHARE_BYTES:
        raise UsageError(f"a part of {len(plaintext)} bytes with a public share of {len(public_share)} is too long")
    key = AESGCM(report_key(secret, task_id, report_id, round_number))
    bound = _report_aad(task_id, report_id, round_number, aggregator_position, public_share)
    return Instalment(
        task_id=task_id,
        report_id=report_id,
        session_id=secret.session_id,
        round=round_number,
        public_share=public_share,
        ciphertext=key.encrypt(NONCE, plaintext, bound),
    )


def unseal_instalment(secret: SessionSecret, position: int, instalment: Instalment) -> bytes:
    """Return the sealed part of a report; run by the aggregator at `position` in the task.

    Raises:
        SealError: another session, task, report, round, position or public share, or a changed byte.
    """
    if instalment.session_id != secret.session_id:
        raise SealError(f"instalment of session {instalment.session_id}, not {secret.session_id}")
    task_id, report_id = instalment.task_id, instalment.report_id
    key = AESGCM(report_key(secret, task_id, report_id, instalment.round))
    bound = _report_aad(task_id, report_id, instalment.round, position, instalment.public_share)
    try:
        return key.decrypt(NONCE, instalment.ciphertext, bound)
    except (InvalidTag, ValueError):
        raise SealError(f"instalment of report {report_id} does not open") from None


def _report_aad(task_id: TaskId, report_id: ReportId, round_number: int, position: int, public_share: bytes) -> bytes:
    if not 0 <= position < MAX_AGGREGATORS:
        raise UsageError(f"aggregator position is {position}, not 0 to {MAX_AGGREGATORS - 1}")
    # Bound to its place: a part that is moved to another round, aggregator or public share does not open.
    place = uint(round_number, 1) + uint(position, 1)
    return REPORT_LABEL + task_id + report_id + place + sized(public_share, 2)


def _expand(secret: bytes, info: bytes, size: int) -> bytes:
    """Return up to 32 bytes of HKDF-Expand with SHA-256: its first block, T(1) = HMAC(secret, info, 0x01).

    The secret is 32 uniform bytes, so the extract step of HKDF has nothing to add (RFC 5869, sections 2.3 and 3.3).
    """
    return hmac.digest(secret, info + b"\x01", "sha256")[:size]
