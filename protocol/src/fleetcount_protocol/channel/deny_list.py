"""The deny list: public keys that an authority revokes before their certificates expire (docs/wire.md, "Deny list").

The authority that enrols devices signs it; a list has a number and an expiry. It must not read a file or decide about
a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fleetcount_protocol.channel.certificates import CertificateAuthority, key_digest
from fleetcount_protocol.errors import DecodeError, SignatureError, UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import DAY_S, MAX_SIGNATURE_BYTES, MAX_UNIX_TIME

DENY_LIST_LABEL: Final = b"FCDENY01"
SIGNED_DENY_LIST_LABEL: Final = b"FCSDNY01"
MAX_DENIED_KEYS: Final = 2**18
MAX_DENY_LIST_LIFETIME_S: Final = 100 * DAY_S
_HEAD_BYTES: Final = len(DENY_LIST_LABEL) + Digest.SIZE + 3 * 8 + 4
MAX_DENY_LIST_BYTES: Final = 8 + 4 + _HEAD_BYTES + MAX_DENIED_KEYS * Digest.SIZE + 1 + MAX_SIGNATURE_BYTES


@dataclass(frozen=True, kw_only=True)
class DenyList:
    """Digests of revoked public keys (`certificates.key_digest`), ascending and each once.

    `authority` is the digest of the public key that signs; of two lists the one with the higher `number` is valid.
    After `expires` (Unix seconds, at most 100 days after `issued_at`) it says nothing about keys that are not listed.

    Raises:
        UsageError: a number or a time out of range, keys that do not ascend, or more than 2**18 of them.
    """

    authority: Digest
    number: int
    issued_at: int
    expires: int
    keys: tuple[Digest, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.number < 2**63:
            raise UsageError(f"the number of a deny list is {self.number}, allowed: 1 to 2**63 - 1")
        if not 0 < self.issued_at < self.expires <= min(self.issued_at + MAX_DENY_LIST_LIFETIME_S, MAX_UNIX_TIME):
            raise UsageError(
                f"a deny list from {self.issued_at} to {self.expires}, allowed: an end after its beginning,"
                f" by at most {MAX_DENY_LIST_LIFETIME_S} s"
            )
        if len(self.keys) > MAX_DENIED_KEYS:
            raise UsageError(f"a deny list of {len(self.keys)} keys, allowed: at most {MAX_DENIED_KEYS}")
        if any(low >= high for low, high in zip(self.keys, self.keys[1:], strict=False)):
            raise UsageError("the keys of a deny list must ascend, each once")

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that are signed."""
        head = DENY_LIST_LABEL + self.authority + uint(self.number, 8) + uint(self.issued_at, 8) + uint(self.expires, 8)
        return head + uint(len(self.keys), 4) + b"".join(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDenyList:
    """A deny list and its authority's signature (ECDSA P-256 with SHA-256, DER)."""

    deny_list: DenyList
    signature: bytes

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return SIGNED_DENY_LIST_LABEL + sized(self.deny_list.canonical, 4) + sized(self.signature, 1)


def sign_deny_list(
    authority: CertificateAuthority, keys: Sequence[Digest], *, number: int, issued_at: int, expires: int
) -> SignedDenyList:
    """Return a signed list of these keys, in any order; run by the authority.

    Raises:
        UsageError: see `DenyList`.
    """
    deny_list = DenyList(
        authority=key_digest(authority.certificate),
        number=number,
        issued_at=issued_at,
        expires=expires,
        keys=tuple(sorted(set(keys))),
    )
    signature = authority.private_key.sign(deny_list.canonical, ec.ECDSA(hashes.SHA256()))
    return SignedDenyList(deny_list=deny_list, signature=signature)


def decode_signed_deny_list(data: bytes) -> SignedDenyList:
    """Return the list of a file; its signature is not verified here.

    Raises:
        DecodeError: the bytes are not the file of a deny list.
    """
    outer = Reader(data, "signed deny list", MAX_DENY_LIST_BYTES)
    outer.expect(SIGNED_DENY_LIST_LABEL)
    canonical = outer.sized(4, _HEAD_BYTES, MAX_DENY_LIST_BYTES)
    signature = outer.sized(1, 8, MAX_SIGNATURE_BYTES)
    outer.finish()
    reader = Reader(canonical, "deny list", MAX_DENY_LIST_BYTES)
    reader.expect(DENY_LIST_LABEL)
    authority = Digest(reader.take(Digest.SIZE))
    number, issued_at, expires = reader.uint(8), reader.uint(8), reader.uint(8)
    count = reader.count(4, 0, MAX_DENIED_KEYS)
    joined = reader.take(count * Digest.SIZE)
    reader.finish()
    keys = tuple(Digest(joined[at : at + Digest.SIZE]) for at in range(0, len(joined), Digest.SIZE))
    try:
        found = DenyList(authority=authority, number=number, issued_at=issued_at, expires=expires, keys=keys)
    except UsageError as error:
        raise DecodeError(str(error)) from None
    return SignedDenyList(deny_list=found, signature=signature)


def verify_deny_list(signed: SignedDenyList, authorities: Sequence[x509.Certificate]) -> None:
    """Accept a list signed by one of the authorities; the caller checks its expiry.

    Raises:
        SignatureError: its authority is not among them, or the signature is not its authority's.
    """
    for certificate in authorities:
        key = certificate.public_key()
        if key_digest(certificate) != signed.deny_list.authority or not isinstance(key, ec.EllipticCurvePublicKey):
            continue
        try:
            key.verify(signed.signature, signed.deny_list.canonical, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise SignatureError("the deny list's signature is not its authority's") from None
        return
    raise SignatureError("the deny list is not of an authority of devices that is trusted here")
