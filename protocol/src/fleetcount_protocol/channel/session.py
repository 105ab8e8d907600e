"""Sessions between a device and one aggregator; sealing of reports and receipts under them (docs/wire.md, "Session",
"Report", "Receipt").

A session's keys are derived from a secret sealed to the aggregator and from two ephemeral keys that both sides discard,
so that no key that is kept can derive them again. This module stores nothing: both sides store the session durably
before they use it. A receipt is an aggregator's promise that a part of a report is durable there: its intake makes it
after the commit, never before, and only the session's device can check it.
"""

import hashlib
import hmac
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_protocol.channel import certificates
from fleetcount_protocol.channel.chain import WindowKey, expand, next_key, window_key
from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
from fleetcount_protocol.errors import DecodeError, Refused, RejectReason, SealError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
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
    SESSION_EXPIRY_STEP_S,
    SESSION_SECRET_BYTES,
)
from fleetcount_protocol.messages import X509_CREDENTIAL, Instalment, Receipt, SessionAccepted, SessionRequest
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.keys import X25519_KEY_BYTES

SESSION_INFO_LABEL: Final = b"fleetcount v1 session"
SESSION_KEYS_LABEL: Final = b"fleetcount v1 session keys"
CHAIN_KEY_LABEL: Final = b"fleetcount v1 chain key"
CONFIRMATION_LABEL: Final = b"fleetcount v1 confirmation"
REPORT_KEY_LABEL: Final = b"fleetcount v1 report key"
REPORT_LABEL: Final = b"fleetcount v1 report"
RECEIPT_KEY_LABEL: Final = b"fleetcount v1 receipt key"
RECEIPT_LABEL: Final = b"fleetcount v1 receipt"
REPORT_KEY_BYTES: Final = 16
NONCE: Final = bytes(12)
"""AES-GCM's nonce is zero because every key seals one message: a key is derived from window key, report id and round.
"""


@dataclass(frozen=True, kw_only=True)
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

    @cached_property
    def digest(self) -> Digest:
        """The digest of the public key (`certificates.key_digest`)."""
        return certificates.key_digest(self.certificate)

    @classmethod
    def load(cls, certificate_file: Path, key_file: Path) -> "DeviceIdentity":
        """Return the identity in two PEM files.

        Raises:
            UsageError: a file with other contents, or a key file that other users may read.
            OSError: a file cannot be read.
        """
        certificate = certificates.load_certificate(certificate_file)
        return cls(certificate=certificate, private_key=certificates.load_private_key(key_file))

    @classmethod
    def generate(cls, authority: certificates.CertificateAuthority, name: str | None = None) -> "DeviceIdentity":
        """Return a new identity under a test deployment's authority, by default with a random name."""
        credential = authority.issue_device(name)
        return cls(certificate=credential.certificate, private_key=credential.private_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSecret:
    """The two 32-byte secrets that device and aggregator have for one session until `expiry` (Unix seconds).

    `secret` is the chain key of the session's `number`-th window, from 1 on; `receipt_key` stays the same and opens no
    report.

    Raises:
        UsageError: a secret of another size.
    """

    session_id: SessionId
    aggregator_id: AggregatorId
    secret: bytes = field(repr=False)
    receipt_key: bytes = field(repr=False)
    expiry: int
    number: int = 1

    def __post_init__(self) -> None:
        for secret in (self.secret, self.receipt_key):
            if len(secret) != SESSION_SECRET_BYTES:
                raise UsageError(f"a session secret has {SESSION_SECRET_BYTES} bytes, not {len(secret)}")

    @property
    def window_key(self) -> WindowKey:
        """The key of window `number` of this session.

        Raises:
            UsageError: `number` is above the largest number of windows of a session.
        """
        return WindowKey(session_id=self.session_id, number=self.number, key=window_key(self.secret))

    def moved_on(self) -> "SessionSecret":
        """Return the session for the next window; the keys of earlier windows cannot be derived from it."""
        return SessionSecret(
            session_id=self.session_id,
            aggregator_id=self.aggregator_id,
            secret=next_key(self.secret),
            receipt_key=self.receipt_key,
            expiry=self.expiry,
            number=self.number + 1,
        )


def check_session_request(request: SessionRequest) -> None:
    """Refuse a request with a field beyond its size; cheap, before any cryptography.

    Raises:
        DecodeError: which field.
    """
    sizes = (
        ("sealed_secret", request.sealed_secret, 80, 2_048),
        ("ephemeral_key", request.ephemeral_key, X25519_KEY_BYTES, X25519_KEY_BYTES),
        ("credential", request.credential, 2, 1 + MAX_CERTIFICATE_BYTES),
        ("signature", request.signature, 8, MAX_SIGNATURE_BYTES),
    )
    for name, value, smallest, largest in sizes:
        if not smallest <= len(value) <= largest:
            raise DecodeError(f"{name} of a session has {len(value)} bytes, not {smallest} to {largest}")
    if not request.credential.startswith(X509_CREDENTIAL):
        raise DecodeError(f"the credential of a session is of kind {request.credential[0]}, allowed: 1, a certificate")
    if not 0 <= request.key_id <= 255 or not 0 < request.expiry <= MAX_UNIX_TIME:
        raise DecodeError(f"session with key id {request.key_id} and expiry {request.expiry} is out of range")
    if len(request.signed_bytes) > MAX_SESSION_BYTES:
        raise DecodeError("session request is too long")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningSession:
    """The secrets of a device that waits for the answer to `request`; in memory only, and used for one answer."""

    request: SessionRequest
    secret: bytes = field(repr=False)
    ephemeral: X25519PrivateKey = field(repr=False)

    def finish(self, accepted: SessionAccepted) -> SessionSecret:
        """Return the session that the aggregator has accepted; run by the device.

        Raises:
            SignatureError: the answer is for another request, or its sender does not have the aggregator's sealing key.
        """
        same = (accepted.session_id, accepted.expiry) == (self.request.session_id, self.request.expiry)
        try:
            shared = self.ephemeral.exchange(X25519PublicKey.from_public_bytes(accepted.ephemeral_key))
        except ValueError:  # A point of small order.
            same, shared = False, bytes(X25519_KEY_BYTES)
        session, confirmation = _session_keys(self.request, self.secret + shared, accepted.ephemeral_key)
        if not same or not hmac.compare_digest(confirmation, accepted.confirmation):
            raise SignatureError(f"the answer that opens session {self.request.session_id} does not verify")
        return session


def new_session(
    aggregator: Aggregator, key: HpkeKey, device: DeviceIdentity, expiry: int, source: RandomSource
) -> tuple[SessionRequest, OpeningSession]:
    """Return a signed request, and the secrets to finish the session with its answer; run by the device.

    Sent again, the same request opens the same session. An aggregator accepts only an `expiry` (Unix seconds) that is a
    full hour.

    Raises:
        UsageError: a sealing key of the wrong size or of small order.
    """
    secret = source.random_bytes(SESSION_SECRET_BYTES)
    ephemeral = X25519PrivateKey.from_private_bytes(source.random_bytes(X25519_KEY_BYTES))
    info = _session_info(aggregator.aggregator_id, key.key_id, device.digest, expiry)
    unsigned = SessionRequest(
        aggregator_id=aggregator.aggregator_id,
        key_id=key.key_id,
        sealed_secret=seal_to(key.public_key, secret, info),
        ephemeral_key=ephemeral.public_key().public_bytes_raw(),
        credential=X509_CREDENTIAL + certificates.certificate_der(device.certificate),
        expiry=expiry,
        signature=b"",
    )
    # The signature covers all other fields, and the session id is the hash of these: ECDSA is randomized, so an id that
    # covered the signature too would differ at every signing.
    signature = device.private_key.sign(unsigned.signed_bytes, ec.ECDSA(hashes.SHA256()))
    request = replace(unsigned, signature=signature)
    return request, OpeningSession(request=request, secret=secret, ephemeral=ephemeral)


def accept_session(
    request: SessionRequest,
    key_pairs: Mapping[int, HpkeKeyPair],
    aggregator_id: AggregatorId,
    ca: Sequence[x509.Certificate],
    now: float,
) -> tuple[SessionAccepted, SessionSecret, Digest]:
    """Return the answer, the session and the digest of the sender's key; run by the aggregator, once a request.

    Every call makes another session: an aggregator stores the answer and repeats it for the same request. The digest is
    the device's identity for "one report a window" (`certificates.key_digest`). Cheap checks come first: sizes, key id
    and expiry before the chain, the chain before the signature, the signature before the seal.

    Raises:
        Refused: MALFORMED, UNKNOWN_KEY, EXPIRED, BAD_CERTIFICATE, BAD_SIGNATURE or BAD_SEAL.
    """
    digest = judge_request(request, key_pairs, aggregator_id, ca, now)
    return *open_request(request, key_pairs[request.key_id], digest), digest


def judge_request(
    request: SessionRequest,
    key_ids: Container[int],
    aggregator_id: AggregatorId,
    ca: Sequence[x509.Certificate],
    now: float,
    *,
    known: bool = False,
) -> Digest:
    """Return the digest of the sender's key after all checks that need no private key: everything but the seal.

    A `known` request was accepted and stored here before: its signature is not verified again, and the key that it was
    sealed to may be erased.

    Raises:
        Refused: MALFORMED, UNKNOWN_KEY, EXPIRED, BAD_CERTIFICATE or BAD_SIGNATURE.
    """
    _check_form(request, None if known else key_ids, aggregator_id, now)
    certificate = _accepted_certificate(request, ca, now)
    if not known:
        _check_signature(request, certificate)
    return certificates.key_digest(certificate)


def open_request(
    request: SessionRequest, pair: HpkeKeyPair, digest: Digest, ephemeral: X25519PrivateKey | None = None
) -> tuple[SessionAccepted, SessionSecret]:
    """Return the answer and the session of a request that `judge_request` has accepted with this digest.

    Only test vectors give `ephemeral`; otherwise it is generated, used once and discarded.

    Raises:
        Refused: BAD_SEAL or MALFORMED.
    """
    ephemeral = ephemeral or X25519PrivateKey.generate()
    try:
        info = _session_info(request.aggregator_id, request.key_id, digest, request.expiry)
        secret = pair.open(request.sealed_secret, info)
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(request.ephemeral_key))
    except SealError:
        raise Refused(RejectReason.BAD_SEAL) from None
    except ValueError:  # A point of small order.
        raise Refused(RejectReason.MALFORMED) from None
    if len(secret) != SESSION_SECRET_BYTES:
        raise Refused(RejectReason.MALFORMED)
    ephemeral_key = ephemeral.public_key().public_bytes_raw()
    session, confirmation = _session_keys(request, secret + shared, ephemeral_key)
    accepted = SessionAccepted(
        session_id=request.session_id, expiry=request.expiry, ephemeral_key=ephemeral_key, confirmation=confirmation
    )
    return accepted, session


def _check_form(
    request: SessionRequest, key_ids: Container[int] | None, aggregator_id: AggregatorId, now: float
) -> None:
    try:
        check_session_request(request)
    except DecodeError:
        raise Refused(RejectReason.MALFORMED) from None
    if request.aggregator_id != aggregator_id:
        raise Refused(RejectReason.MALFORMED)
    if key_ids is not None and request.key_id not in key_ids:
        raise Refused(RejectReason.UNKNOWN_KEY)
    if request.expiry <= now:
        raise Refused(RejectReason.EXPIRED)
    if request.expiry > now + MAX_SESSION_LIFETIME_S or request.expiry % SESSION_EXPIRY_STEP_S:
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


def _session_info(aggregator_id: AggregatorId, key_id: int, sender_digest: Digest, expiry: int) -> bytes:
    # Bound to the sender: a sealed secret that is copied into another sender's request does not open there.
    named = sized(aggregator_id.encode(), 1) + uint(key_id, 1)
    return SESSION_INFO_LABEL + named + sender_digest + uint(expiry, 8)


def _session_keys(request: SessionRequest, secrets: bytes, ephemeral_key: bytes) -> tuple[SessionSecret, bytes]:
    """Return the session and the confirmation derived from `secrets`: the sealed one, then the X25519 one (64 bytes).

    HKDF-SHA256 (RFC 5869), salted with the hash of the transcript, so that both sides derive the same keys only if they
    saw the same messages; the confirmation, one more output, proves the knowledge of both secrets.
    """
    transcript = hashlib.sha256(SESSION_KEYS_LABEL + sized(request.signed_bytes, 2) + ephemeral_key).digest()
    extracted = hmac.digest(transcript, secrets, "sha256")
    session = SessionSecret(
        session_id=request.session_id,
        aggregator_id=request.aggregator_id,
        secret=expand(extracted, CHAIN_KEY_LABEL),
        receipt_key=expand(extracted, RECEIPT_KEY_LABEL),
        expiry=request.expiry,
    )
    return session, expand(extracted, CONFIRMATION_LABEL)


def report_key(key: WindowKey, window_id: WindowId, report_id: ReportId, round_number: int) -> bytes:
    """Return the 16-byte AES key of one part of one report: HKDF-Expand of the window key (RFC 5869, section 2.3)."""
    return expand(key.key, REPORT_KEY_LABEL + window_id + report_id + uint(round_number, 1), REPORT_KEY_BYTES)


def seal_instalment(
    key: WindowKey,
    window_id: WindowId,
    report_id: ReportId,
    round_number: int,
    aggregator_position: int,
    public_share: bytes,
    plaintext: bytes,
) -> Instalment:
    """Return one part of a report sealed to one aggregator; run by the device.

    Sealing is deterministic: the same part gives the same bytes. A device must never seal two different parts under one
    window key, report id and round, since they would share key and nonce.

    Raises:
        UsageError: a part or a public share beyond its size.
    """
    if len(plaintext) + AES_GCM_TAG_BYTES > MAX_CIPHERTEXT_BYTES or len(public_share) > MAX_PUBLIC_SHARE_BYTES:
        raise UsageError(f"a part of {len(plaintext)} bytes with a public share of {len(public_share)} is too long")
    cipher = AESGCM(report_key(key, window_id, report_id, round_number))
    bound = _report_aad(window_id, report_id, round_number, aggregator_position, public_share)
    return Instalment(
        window_id=window_id,
        report_id=report_id,
        session_id=key.session_id,
        key_number=key.number,
        round=round_number,
        public_share=public_share,
        ciphertext=cipher.encrypt(NONCE, plaintext, bound),
    )


def unseal_instalment(key: WindowKey, position: int, instalment: Instalment) -> bytes:
    """Return the sealed part of a report; run by the aggregator at `position` in the window.

    Raises:
        SealError: another session, number, window, report, round, position or public share, or a changed byte.
    """
    if (instalment.session_id, instalment.key_number) != (key.session_id, key.number):
        raise SealError(f"instalment of session {instalment.session_id}, not {key.session_id}, or of another number")
    window_id, report_id = instalment.window_id, instalment.report_id
    cipher = AESGCM(report_key(key, window_id, report_id, instalment.round))
    bound = _report_aad(window_id, report_id, instalment.round, position, instalment.public_share)
    try:
        return cipher.decrypt(NONCE, instalment.ciphertext, bound)
    except (InvalidTag, ValueError):
        raise SealError(f"instalment of report {report_id} does not open") from None


def _report_aad(
    window_id: WindowId, report_id: ReportId, round_number: int, position: int, public_share: bytes
) -> bytes:
    if not 0 <= position < MAX_AGGREGATORS:
        raise UsageError(f"aggregator position is {position}, not 0 to {MAX_AGGREGATORS - 1}")
    # Bound to its place: a part that is moved to another round, aggregator or public share does not open.
    place = uint(round_number, 1) + uint(position, 1)
    return REPORT_LABEL + window_id + report_id + place + sized(public_share, 2)


def make_receipt(secret: SessionSecret, instalment: Instalment) -> Receipt:
    """Return the receipt of a stored instalment, always the same bytes; run by the aggregator after its commit."""
    return receipt_for(secret, instalment, instalment.digest)


def receipt_for(secret: SessionSecret, instalment: Instalment, digest: Digest) -> Receipt:
    """Return the receipt of an instalment whose digest is already known."""
    named = instalment.window_id + instalment.report_id + uint(instalment.round, 1) + instalment.session_id
    return Receipt(
        window_id=instalment.window_id,
        report_id=instalment.report_id,
        round=instalment.round,
        session_id=instalment.session_id,
        digest=digest,
        mac=hmac.digest(secret.receipt_key, RECEIPT_LABEL + named + digest, "sha256"),
    )


def check_receipt(secret: SessionSecret, instalment: Instalment, receipt: Receipt) -> None:
    """Accept a receipt only for exactly these bytes under this session; run by the device.

    Raises:
        SignatureError: it is for another part, or was not made with the session's receipt key.
    """
    expected = make_receipt(secret, instalment)
    same = (receipt.window_id, receipt.report_id, receipt.round, receipt.session_id, receipt.digest) == (
        expected.window_id,
        expected.report_id,
        expected.round,
        expected.session_id,
        expected.digest,
    )
    if not same or secret.session_id != instalment.session_id:
        raise SignatureError(f"receipt is not for report {instalment.report_id}, round {instalment.round}")
    if not hmac.compare_digest(receipt.mac, expected.mac):
        raise SignatureError(f"receipt for report {instalment.report_id} does not verify")
