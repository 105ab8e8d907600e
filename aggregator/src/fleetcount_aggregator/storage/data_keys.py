"""The keys that what lies in a store is sealed under: the store's own, and one a window, destroyed at its end.

Everything secret of a window (shares, its verify key, sums of batches) lies under its data key: random, in a place of
its own, wrapped by the store's key. So a copy of the disk made later and every key that lives on open nothing of it.
Beside SQLite a key is a file, and destroying it is overwriting it where it lies; a row of a database leaves copies in
its journal (`KeyStore`). Chains of sessions lie under keys that follow from the store's. Run by any thread; decides
nothing about a window.
"""

import hmac
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.ids import WindowId

from fleetcount_aggregator.host.keys import load_signing_key, load_store_key
from fleetcount_aggregator.storage.database import KeyStore, RowSeal
from fleetcount_aggregator.storage.errors import Damage, StoreAwayError, StoreError

AT_REST_KEY_BYTES: Final = 32
_INFO: Final = b"fleetcount aggregator at rest 1"
_NONCE_BYTES: Final = 12


def at_rest_key_of(signing_key: Ed25519PrivateKey) -> bytes:
    """Return what a store without a key file of its own is sealed under: HKDF-SHA256 of its signing key, 32 bytes."""
    kdf = HKDF(algorithm=SHA256(), length=AT_REST_KEY_BYTES, salt=None, info=_INFO)
    return kdf.derive(signing_key.private_bytes_raw())


class StorageCipher:
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


_MAGIC: Final = b"FCDATAK1"
_CHECK: Final = b"key check"
_CHECK_NAME: Final = "key-check"
_ENDING: Final = ".data-key"
_CHAIN_INFO: Final = b"fleetcount aggregator session chains 1"
_SECRET_BYTES: Final = 2 * AT_REST_KEY_BYTES
_FILE_BYTES: Final = len(_MAGIC) + 12 + _SECRET_BYTES + 16
"""Magic, nonce, the secret, tag: less than a sector, so that a disk has the old bytes or the new ones."""


class DataKey(StorageCipher):
    """The key of one window: for what is sealed piece by piece, and `log_key`, from which its report log's keys
    come.
    """

    def __init__(self, secret: bytes, source: RandomSource | None = None) -> None:
        super().__init__(secret[:AT_REST_KEY_BYTES], source)
        self.log_key = secret[AT_REST_KEY_BYTES:]


class DataKeys:
    """The data keys of one store, and `at_rest`, under the key that wraps them.

    `place` is where they lie. `former`: the key that wraps them until the store is moved to `at_rest_key`.
    """

    def __init__(
        self,
        at_rest_key: bytes,
        place: KeyStore,
        former: bytes | None = None,
        source: RandomSource | None = None,
    ) -> None:
        self.at_rest = StorageCipher(at_rest_key, source)
        self._place = place
        self._former = former
        self._source = source or SystemRandom()
        keys = (at_rest_key,) if former is None else (at_rest_key, former)
        self.chain_keys = tuple(hmac.digest(key, _CHAIN_INFO, "sha256") for key in keys)
        """What sessions' chains of keys lie under: the first key, or another one from before (`session_chains`)."""
        self._keys: dict[WindowId, DataKey] = {}
        self._lock = threading.Lock()
        """Around `_keys` and `_destroyed`, never while a place is read or written: the event loop waits for it."""
        self._changing = threading.Lock()
        self._destroyed = 0

    def of(self, window_id: WindowId) -> DataKey:
        """Return the key of a window that has not ended, for a thread where `knows` is not true of it.

        One that another process of this aggregator has made is read when it is first needed.

        Raises:
            StoreError: there is none: the window is not here, or has ended.
        """
        while True:
            with self._lock:
                known, destroyed = self._keys.get(window_id), self._destroyed
            if known is not None:
                return known
            wrapped = self._place.read(_name(window_id))
            if wrapped is None:
                raise StoreError(f"window {window_id.hex()} has no data key: it is not installed, or has ended")
            key = DataKey(self._unwrapped(window_id, wrapped), self._source)
            with self._lock:
                if destroyed == self._destroyed:  # Else it may be this one that is gone.
                    return self._keys.setdefault(window_id, key)

    def knows(self, window_id: WindowId) -> bool:
        """Return whether a key is in memory, so that `of` waits for nothing."""
        with self._lock:
            return window_id in self._keys

    def forget_destroyed(self) -> list[WindowId]:
        """Forget the keys that another process of this aggregator has destroyed; return whose. Raises StoreError."""
        with self._changing:
            with self._lock:
                held = list(self._keys)
            lying = set(self._place.names())
            gone = [one for one in held if _name(one) not in lying]
            for window_id in gone:
                self._forget(window_id)
        return gone

    def _forget(self, window_id: WindowId) -> None:
        with self._lock:
            self._keys.pop(window_id, None)
            self._destroyed += 1

    def make(self, window_id: WindowId) -> DataKey:
        """Return the key of a window that is about to be installed, made and durable; one that is there stays.

        Raises:
            StoreError: the disk is full or failed.
        """
        with self._changing:
            if not self.knows(window_id):
                secret = self._source.random_bytes(_SECRET_BYTES)
                wrapped = self._wrapped(window_id, secret)
                lying = self._place.add(_name(window_id), wrapped)
                if lying != wrapped:
                    secret = self._unwrapped(window_id, lying)
                with self._lock:
                    self._keys.setdefault(window_id, DataKey(secret, self._source))
            with self._lock:
                return self._keys[window_id]

    def take_up(self, window_ids: Sequence[WindowId]) -> list[Damage]:
        """Read the keys of the windows that have not ended, at the start; return which are missing or damaged.

        Nothing of an open window can be read without its data key.

        Raises:
            StoreError: the store lies under another at-rest key.
        """
        damaged: list[Damage] = []
        right_key = self.seals_store()
        for window_id in window_ids:
            where = self._place.where(_name(window_id))
            try:
                wrapped = self._place.read(_name(window_id))
                secret = None if wrapped is None else self._unwrapped(window_id, wrapped)
            except StoreAwayError:
                raise
            except StoreError:
                if not right_key:
                    raise  # Nothing says that this is the key that wraps them.
                secret = None
            if secret is None:
                damaged.append(Damage(table="data key", what=f"{where} is missing or damaged", window_id=window_id))
            else:
                self._keys[window_id] = DataKey(secret, self._source)
        return damaged

    def resealed(self, sealed: bytes, *place: bytes) -> bytes | None:
        """Return what lies sealed under the former key as it lies under the present one, None if it does not."""
        with suppress(StoreError):
            self.at_rest.open(sealed, *place)
            return None
        opened = self._opened_before(sealed, *place)
        return None if opened is None else self.at_rest.seal(opened, *place)

    def seals_store(self) -> bool:
        """Whether the store lies under the present key, by the file that says so; False if it is to be moved there.

        Raises:
            StoreError: it lies under another key than this one and the one before; the text names the file.
        """
        sealed = self._place.read(_CHECK_NAME)
        if sealed is None:
            return False
        with suppress(StoreError):
            self.at_rest.open(sealed, _CHECK)
            return True
        if self._opened_before(sealed, _CHECK) is None:
            where = self._place.where(_CHECK_NAME)
            raise StoreError(
                f"{where} does not open: the store was written under another at-rest key, or is another aggregator's"
            )
        return False

    def note_seals_store(self) -> None:
        """Remember that the store lies under the present key; raises StoreError if the disk fails."""
        self._place.write(_CHECK_NAME, self.at_rest.seal(b"", _CHECK))

    def held(self) -> set[WindowId]:
        """Return the windows of which there is a key to destroy."""
        lying = [name.removesuffix(_ENDING) for name in self._place.names() if name.endswith(_ENDING)]
        return {*self._keys, *(WindowId(bytes.fromhex(name)) for name in lying)}

    def destroy(self, window_id: WindowId) -> None:
        """Overwrite the key of an ended window, durably, and delete its file; doing it again changes nothing.

        Raises:
            StoreError: the disk failed; the key may be there still.
        """
        with self._changing:
            self._forget(window_id)
            self._place.erase(_name(window_id))

    def _wrapped(self, window_id: WindowId, secret: bytes) -> bytes:
        return _MAGIC + self.at_rest.seal(secret, b"data key", window_id)

    def _unwrapped(self, window_id: WindowId, data: bytes) -> bytes:
        where = self._place.where(_name(window_id))
        if len(data) != _FILE_BYTES or not data.startswith(_MAGIC):
            raise StoreError(f"{where} is damaged, or no data key")
        sealed = data[len(_MAGIC) :]
        with suppress(StoreError):
            return self.at_rest.open(sealed, b"data key", window_id)
        secret = self._opened_before(sealed, b"data key", window_id)
        if secret is None:
            raise StoreError(f"{where} does not open: damaged, or wrapped under another at-rest key")
        self._place.write(_name(window_id), self._wrapped(window_id, secret))
        return secret

    def _opened_before(self, sealed: bytes, *place: bytes) -> bytes | None:
        """Return what was sealed under the former key, None if there is none or it does not open."""
        if self._former is not None:
            with suppress(StoreError):
                return StorageCipher(self._former).open(sealed, *place)
        return None


def _name(window_id: WindowId) -> str:
    return f"{window_id.hex()}{_ENDING}"


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


class StoreKeys(NamedTuple):
    """The present key, and the one that the store may lie under until its next start."""

    at_rest: bytes
    former: bytes | None

    @classmethod
    def load(
        cls,
        signing_key: Path | str,
        store_key: Path | None,
        former_store_key: Path | None,
        loaded: Ed25519PrivateKey | None = None,
    ) -> "StoreKeys":
        """Return the keys that a configuration names by file; `loaded`: the signing key, where it is loaded already.

        Raises:
            UsageError: a file is missing, open to others, or holds the wrong thing.
        """
        if store_key is not None and former_store_key is not None:
            return cls(load_store_key(store_key), load_store_key(former_store_key))
        # Nothing follows from a key that is in a token: then the configuration names a file of the store's own.
        if store_key is not None and isinstance(signing_key, str):
            return cls(load_store_key(store_key), None)
        derived = at_rest_key_of(loaded or load_signing_key(signing_key))
        return cls(derived, None) if store_key is None else cls(load_store_key(store_key), derived)

    @property
    def row_seal(self) -> RowSeal:
        """What the rows of the store are sealed with."""
        return RowSeal(self.at_rest) if self.former is None else RowSeal(self.at_rest, self.former)

    def __repr__(self) -> str:
        return "StoreKeys(…)"
