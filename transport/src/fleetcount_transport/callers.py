"""The caller of a gRPC call, by its TLS certificate, which is parsed once.

TLS has verified the chain and that the caller has the private key; the listener decides what a purpose may do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from fleetcount_protocol.channel.certificates import Purpose, key_digest, purpose_of
from fleetcount_protocol.errors import SignatureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller by its public key, so that a second certificate for the same key is the same caller (decision 5).

    `key` is the digest of the public key and `ends` the certificate's end, Unix seconds. Without TLS `key` is the
    connection's address, `purpose` is None, `ends` infinity and `certified` False. A certificate without a purpose has
    `purpose` None and `certified` True.
    """

    key: bytes
    purpose: Purpose | None = None
    ends: float = float("inf")
    certified: bool = False

    def may(self, purposes: frozenset[Purpose], now: float) -> bool:
        """Return whether the purpose is among `purposes` and the certificate has not ended; True without TLS."""
        return not self.certified or (self.purpose in purposes and now <= self.ends)


def caller_of(context: Any) -> Caller:
    """Return the caller of a call, from gRPC's servicer context."""
    [certificate] = context.auth_context().get("x509_pem_cert", [b""])
    return _caller(certificate) if certificate else Caller(key=str(context.peer()).encode())


def issued_by(context: Any, authorities: Iterable[x509.Certificate]) -> bool:
    """Return whether one of the authorities issued the certificate of a call, from gRPC's servicer context.

    A listener verifies callers under the authorities of all parties; this says under whose. False without TLS.
    """
    [certificate] = context.auth_context().get("x509_pem_cert", [b""])
    return bool(certificate) and any(_is_issued(certificate, one) for one in authorities)


@lru_cache(maxsize=4096)
def _is_issued(pem: bytes, authority: x509.Certificate) -> bool:
    try:
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@lru_cache(maxsize=4096)
def _caller(pem: bytes) -> Caller:
    certificate = x509.load_pem_x509_certificate(pem)
    try:
        purpose = purpose_of(certificate)
    except SignatureError:
        purpose = None
    ends = certificate.not_valid_after_utc.timestamp()
    return Caller(key=key_digest(certificate), purpose=purpose, ends=ends, certified=True)
