"""What lies in the store lies sealed: shares, verify keys, sums of batches, under keys that are not in the store.

Knows no tables, no logs and no files (`data_keys`).
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom

from fleetcount_aggregator.storage.errors import StoreError

AT_REST_KEY_BYTES: Final = 32
_INFO: Final = b"fleetcount aggregator at rest 1"
_NONCE_BYTES: Final = 12


def at_rest_key_of(signing_key: Ed25519PrivateKey) -> bytes:
    """Return what a store without a key file of its own is sealed under: HKDF-SHA256 of its signing key, 32 bytes."""
    kdf = HKDF(algorithm=SHA256(), length=AT_REST_KEY_BYTES, salt=None, info=_INFO)
    return kdf.derive(signing_key.private_bytes_raw())


class AtRest:
    """AES-256-GCM under a key of 32 bytes; random nonces, so below 2^32 seals (NIST SP 800-38D, 8.3).

    Why not the ciphertext as it arrived: it could be opened only as long as the session and the HPKE key live, and the
    receipt promised that the report counts.
    """

    def __init__(self, key: bytes, source: RandomSource | None = None) -> None:
        self._cipher = AESGCM(key)
        self._source = source or SystemRandom()

    def seal(self, plaintext: bytes, *place: bytes) -> bytes:
        """Return `plaintext` sealed for one place of the store, which `place` names (fixed lengths but the last)."""
        nonce = self._source.random_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plaintext, b"".join(place))

    def open(self, sealed: bytes, *place: bytes) -> bytes:
        """Return what was sealed for this place.

        Raises:
            StoreError: the bytes are damaged, from another place, or from another key.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], b"".join(place))
        except (InvalidTag, ValueError) as error:
            raise StoreError("stored bytes do not open: damaged, or written under another key") from error
