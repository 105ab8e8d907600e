"""Sessions as an aggregator holds them: packed in memory, their chains of keys sealed at rest, moved on to erase keys.

The chain in the store is the only way to a session's window keys: what `Store.erase_window_keys` has taken out of it is
gone.
"""

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.ids import Digest
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.errors import StoreError

USES_AT_ONCE: Final = 256
"""Keys erased between two turns of the event loop: some 10 ms."""
_NONCE_BYTES: Final = 12
_EXPIRY_BYTES: Final = 8
_CHAIN_AT: Final = 96 + _EXPIRY_BYTES
_NUMBER: Final = slice(_CHAIN_AT + 2, _CHAIN_AT + 4)
"""The low bytes of the chain's number, as instalments spell it."""


class PackedSession(bytes):
    """A session in 140 bytes: the window key whose turn it is, receipt key, digest of the device's key, expiry, chain.

    36 bytes more for each window key that is still open below it. Never shown.
    """

    __slots__ = ()

    @classmethod
    def of(cls, chain: KeyChain, receipt_key: bytes, certificate: Digest, expiry: int) -> "PackedSession":
        """Return a session packed."""
        key = chain.window_key(chain.number) or bytes(len(chain.key))  # None once the chain has come to its end.
        return cls(key + receipt_key + certificate + expiry.to_bytes(_EXPIRY_BYTES) + chain.encode())

    def __repr__(self) -> str:
        return "PackedSession(…)"

    def window_key(self, number: bytes) -> bytes | None:
        """Return the 32-byte window key of a number in two bytes; None if it is erased or too far ahead."""
        if self[_NUMBER] == number:
            return self[:32]
        return self.chain.window_key(int.from_bytes(number))

    @property
    def chain(self) -> KeyChain:
        """The chain of keys."""
        return KeyChain.decode(self[_CHAIN_AT:])

    @property
    def receipt_key(self) -> bytes:
        """The 32-byte key of receipts."""
        return self[32:64]

    @property
    def certificate(self) -> Digest:
        """The device, as it is counted."""
        return Digest(self.certificate_bytes)

    @property
    def certificate_bytes(self) -> bytes:
        """The 32 bytes of `certificate`, without making an object, for thousands at a time."""
        return self[64:96]

    @property
    def expiry(self) -> int:
        """Unix seconds."""
        return int.from_bytes(self[96:_CHAIN_AT])

    def with_chain(self, chain: KeyChain) -> "PackedSession":
        """Return the session with another chain."""
        return self.of(chain, self.receipt_key, self.certificate, self.expiry)


class ChainSeal:
    """Seals chains with their receipt keys for the store: AES-256-GCM, a key a session, random nonces.

    A chain is sealed again with every window of its session, so one key for all would see more than 2^32 seals in a
    year of a large fleet's hours (NIST SP 800-38D, 8.3). `keys`: `DataKeys.chain_keys`, the first of which seals.
    """

    def __init__(self, keys: Sequence[bytes], source: RandomSource) -> None:
        self._keys = tuple(keys)
        self._source = source

    def seal(self, session_id: bytes, receipt_key: bytes, chain: KeyChain) -> bytes:
        """Return what the store keeps of a session's keys."""
        nonce = self._source.random_bytes(_NONCE_BYTES)
        return nonce + _cipher(self._keys[0], session_id).encrypt(nonce, receipt_key + chain.encode(), None)

    def resealed(self, session_id: bytes, sealed: bytes) -> bytes | None:
        """Return what lies under another key than the first as it lies under the first, None if it does already.

        What opens under none of them is left as it is.
        """
        for key in self._keys:
            with suppress(InvalidTag, ValueError):
                opened = _cipher(key, session_id).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
                return (
                    None if key == self._keys[0] else self.seal(session_id, opened[:32], KeyChain.decode(opened[32:]))
                )
        return None

    def open(self, session_id: bytes, sealed: bytes) -> tuple[bytes, KeyChain]:
        """Return the receipt key and the chain.

        Raises:
            StoreError: the bytes are damaged, another session's, or from another at-rest key.
        """
        for key in self._keys:
            with suppress(InvalidTag, ValueError):
                opened = _cipher(key, session_id).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
                return opened[:32], KeyChain.decode(opened[32:])
        raise StoreError("a stored session does not open: damaged, or written under another key")


def _cipher(key: bytes, session_id: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, session_id, "sha256"))


def moved_on(
    seal: ChainSeal, found: Sequence[tuple[bytes, bytes]], numbers: Mapping[bytes, Sequence[int]]
) -> list[tuple[bytes, bytes, KeyChain | None]]:
    """Return the chains from which some numbers are to be erased and are not yet: without them, sealed and open.

    Of one that is damaged nothing is left, sealed b"" and open None: its session is of no use here, and what has a
    wrong tag alone would still show its keys to who has the store's.
    """
    moved: list[tuple[bytes, bytes, KeyChain | None]] = []
    for session_id, sealed in found:
        if not sealed:
            continue
        try:
            receipt_key, chain = seal.open(session_id, sealed)
        except StoreError as error:
            log.error("session_damaged", reason=str(error))
            moved.append((session_id, b"", None))
            continue
        after = chain.without(numbers[session_id])
        if after != chain:
            moved.append((session_id, seal.seal(session_id, receipt_key, after), after))
    return moved
