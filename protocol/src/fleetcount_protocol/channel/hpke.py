"""Sealing to an aggregator's public key: HPKE in base mode (RFC 9180) over X25519, or over MLKEM768-X25519.

The library's single-shot interface has no associated data, so the context that must be bound is in `info`. This module
knows neither sessions nor reports.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from fleetcount_protocol.errors import SealError, UsageError
from fleetcount_protocol.window.keys import MLKEM768_KEY_BYTES, X25519_KEY_BYTES, check_hpke_public_key

_X25519: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_HYBRID: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_MLKEM_SEED_BYTES: Final = 64
_HYBRID_SECRET_BYTES: Final = _MLKEM_SEED_BYTES + X25519_KEY_BYTES


class HpkeKeyPair:
    """One sealing key pair of an aggregator, named by its key id (0..255).

    The private key is 32 bytes (X25519) or 96 bytes (the 64-byte seed of ML-KEM-768, FIPS 203, then X25519); the
    representation does not show it.

    Raises:
        UsageError: a key id or a private key outside its range.
    """

    __slots__ = ("_private", "_suite", "key_id", "public_key")

    def __init__(self, key_id: int, private_key: bytes) -> None:
        if not 0 <= key_id <= 255:
            raise UsageError(f"key id is {key_id}, not 0 to 255")
        if len(private_key) not in (X25519_KEY_BYTES, _HYBRID_SECRET_BYTES):
            raise UsageError(f"private key has {len(private_key)} bytes, not {X25519_KEY_BYTES} or 96")
        x25519 = X25519PrivateKey.from_private_bytes(private_key[-X25519_KEY_BYTES:])
        self.key_id = key_id
        self.public_key = x25519.public_key().public_bytes_raw()
        self._suite = _X25519
        self._private: X25519PrivateKey | MLKEM768X25519PrivateKey = x25519
        if len(private_key) == _HYBRID_SECRET_BYTES:
            mlkem = MLKEM768PrivateKey.from_seed_bytes(private_key[:_MLKEM_SEED_BYTES])
            self.public_key = mlkem.public_key().public_bytes_raw() + self.public_key
            self._suite, self._private = _HYBRID, MLKEM768X25519PrivateKey(mlkem, x25519)

    @classmethod
    def generate(cls, key_id: int, *, post_quantum: bool = False) -> "HpkeKeyPair":
        """Return a new pair from the operating system's generator."""
        return cls(key_id, cls.generate_private_key(post_quantum=post_quantum))

    @staticmethod
    def generate_private_key(*, post_quantum: bool = False) -> bytes:
        """Return the bytes of a new private key, for the operator's key file."""
        x25519 = X25519PrivateKey.generate().private_bytes_raw()
        return (MLKEM768PrivateKey.generate().private_bytes_raw() if post_quantum else b"") + x25519

    def __repr__(self) -> str:
        return f"HpkeKeyPair(key_id={self.key_id}, public_key={self.public_key.hex()[:16]}…)"

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Return the plaintext that was sealed to this key under this info.

        Raises:
            SealError: another key, other info, a changed byte, or an encapsulated point of small order.
        """
        try:
            return self._suite.decrypt(sealed, self._private, info=info)
        except (InvalidTag, ValueError):
            raise SealError(f"{len(sealed)} sealed bytes do not open under key {self.key_id}") from None


def seal_to(public_key: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Return encapsulated key and ciphertext; the ephemeral key comes from the operating system's generator.

    Raises:
        UsageError: a public key of the wrong size or of small order.
    """
    try:
        check_hpke_public_key(public_key)
        x25519 = X25519PublicKey.from_public_bytes(public_key[-X25519_KEY_BYTES:])
        if len(public_key) == X25519_KEY_BYTES:
            return _X25519.encrypt(plaintext, x25519, info=info)
        mlkem = MLKEM768PublicKey.from_public_bytes(public_key[:MLKEM768_KEY_BYTES])
        return _HYBRID.encrypt(plaintext, MLKEM768X25519PublicKey(mlkem, x25519), info=info)
    except ValueError as error:
        raise UsageError(f"cannot seal to this key: {error}") from None
