"""What lies in the store lies sealed: shares, verify keys, sums of batches, under keys that are not in the store.

The keys come from the signing key's file, so a copied store or backup shows no share. Knows no tables and no logs.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom

from fleetcount_aggregator.storage.store import StoreError

__all__ = ["AtRest", "report_log_key"]

_INFO: Final = b"fleetcount aggregator at rest 1"
_LOG_INFO: Final = b"fleetcount aggregator report log 1"
_NONCE_BYTES: Final = 12


def report_log_key(signing_key: Ed25519PrivateKey) -> bytes:
    """Return the key from which the keys of a report log's frames follow: HKDF-SHA256 of the signing key, 32 bytes."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=_LOG_INFO).derive(signing_key.private_bytes_raw())


class AtRest:
    """AES-256-GCM under HKDF-SHA256 of the signing key; random nonces, so below 2^32 seals (NIST SP 800-38D, 8.3).

    Why not the ciphertext as it arrived: it could be opened only as long as the session and the HPKE key live, and the
    receipt promised that the report counts.
    """

    def __init__(self, signing_key: Ed25519PrivateKey, source: RandomSource | None = None) -> None:
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_INFO).derive(signing_key.private_bytes_raw())
        self._cipher = AESGCM(derived)
        self._source = source or SystemRandom()

    def seal(self, plaintext: bytes, *place: bytes) -> bytes:
        """Return `plaintext` sealed for one place of the store, which `place` names (fixed lengths but the last)."""
        nonce = self._source.random_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plaintext, b"".join(place))

    def open(self, sealed: bytes, *place: bytes) -> bytes:
        """Return what was sealed for this place.

        Raises:
            StoreError: the bytes are damaged, from another place, or from another signing key.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], b"".join(place))
        except (InvalidTag, ValueError) as error:
            raise StoreError("stored bytes do not open: damaged, or written under another signing key") from error
