"""This aggregator's private keys, read from files only their owner may read: the signing key and the sealing keys.

Never shows a private key; the task says which key is used.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.key_files import read_secret

__all__ = ["KeyRing", "load_hpke_key", "load_signing_key"]

_PEM: Final = b"-----BEGIN"


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the Ed25519 key of a PKCS #8 PEM file.

    Raises:
        UsageError: see `read_secret`; or another kind of key.
    """
    key = _pem_key(path, read_secret(path))
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a {type(key).__name__}, allowed: an Ed25519 key")
    return key


def load_hpke_key(path: Path) -> HpkeKeyPair:
    """Return the sealing key pair of `<key id>.key`: X25519 as PKCS #8 PEM, or base64 of the 32 or 96 private bytes.

    Raises:
        UsageError: see `read_secret`; a name that is no key id 0..255; or no such key.
    """
    if not path.stem.isascii() or not path.stem.isdigit() or int(path.stem) > 255:
        raise UsageError(f"{path} is not named <key id>.key with a key id from 0 to 255")
    data = read_secret(path)
    if data.startswith(_PEM):
        key = _pem_key(path, data)
        if not isinstance(key, X25519PrivateKey):
            raise UsageError(f"{path} holds a {type(key).__name__}, allowed: an X25519 key")
        return HpkeKeyPair(int(path.stem), key.private_bytes_raw())
    try:
        return HpkeKeyPair(int(path.stem), base64.b64decode(data.strip(), validate=True))
    except (binascii.Error, UsageError):
        raise UsageError(f"{path} holds neither a PEM key nor base64 of 32 or 96 bytes") from None


def _pem_key(path: Path, data: bytes) -> object:
    try:
        return load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} holds no readable private key ({type(error).__name__})") from None


class KeyRing:
    """The sealing keys in use, as they were when the directory was last read: at the start, or for an unknown key id.

    A key is retired by taking its file away and starting again: what was sealed to it no longer opens.
    """

    def __init__(self, pairs: Mapping[int, HpkeKeyPair], directory: Path | None = None) -> None:
        self._pairs = dict(pairs)
        self._directory = directory
        self._seen: frozenset[tuple[str, int, int]] | None = None

    @classmethod
    def load(cls, directory: Path) -> "KeyRing":
        """Return every key of a directory.

        Raises:
            UsageError: no key there, or one that cannot be used.
        """
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory of sealing keys")
        pairs = [load_hpke_key(path) for path in sorted(directory.glob("*.key"))]
        if not pairs:
            raise UsageError(f"{directory} holds no <key id>.key")
        return cls({pair.key_id: pair for pair in pairs}, directory)

    def pairs(self, key_id: int) -> Mapping[int, HpkeKeyPair]:
        """Return the pairs; a key id that is not known yet makes the directory be read again, if it has changed."""
        if key_id not in self._pairs and self._changed():
            self.reload()
        return self._pairs

    def public_key(self, key_id: int) -> bytes | None:
        """Return a public key, or None if this aggregator does not hold it."""
        pair = self.pairs(key_id).get(key_id)
        return pair.public_key if pair else None

    @property
    def key_ids(self) -> frozenset[int]:
        """The ids of the pairs in use."""
        return frozenset(self._pairs)

    def reload(self) -> None:
        """Take up new key files and let go of those that are gone; an unusable new file changes nothing."""
        if self._directory is None:
            return
        try:
            self._pairs = {pair.key_id: pair for pair in map(load_hpke_key, sorted(self._directory.glob("*.key")))}
        except UsageError:
            return

    def _changed(self) -> bool:
        """Return whether the directory's files have changed since the last look: invented key ids must cost little."""
        if self._directory is None:
            return False
        try:
            found = [(path.name, path.stat()) for path in self._directory.glob("*.key")]
        except OSError:
            return False
        before, self._seen = self._seen, frozenset((name, stat.st_ctime_ns, stat.st_size) for name, stat in found)
        return before != self._seen
