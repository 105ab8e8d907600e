"""This aggregator's private keys, read from files that only their owner may read: signing key, store key, sealing keys.

It must not show a private key.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_UNIX_TIME
from fleetcount_transport.key_files import read_secret
from fleetcount_transport.logs import log
from fleetcount_transport.toml_table import read_toml

from fleetcount_aggregator.host.token_keys import TokenWrappingKey, is_wrapped, load_token_key

_PEM: Final = b"-----BEGIN"
MOST_KEYS: Final = 256
_STORE_KEY_BYTES: Final = 32


def load_signing_key(path: Path | str) -> Ed25519PrivateKey:
    """Return the Ed25519 key of a PKCS #8 PEM file, or that of a token for a `pkcs11:` URI.

    Raises:
        UsageError: see `read_secret` and `token_keys.load_token_key`; or another kind of key.
    """
    if isinstance(path, str):
        return load_token_key(path)
    key = _pem_key(path, read_secret(path))
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a {type(key).__name__}, allowed: an Ed25519 key")
    return key


def load_store_key(path: Path) -> bytes:
    """Return the at-rest key of a store, 32 bytes, from a file that has them in base64.

    Raises:
        UsageError: see `read_secret`; or the file has another content.
    """
    try:
        key = base64.b64decode(read_secret(path).strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _STORE_KEY_BYTES:
        raise UsageError(f"{path} does not hold {_STORE_KEY_BYTES} bytes in base64 (fleetcount keys store makes it)")
    return key


def load_hpke_key(path: Path, wrapping: TokenWrappingKey | None = None) -> HpkeKeyPair:
    """Return the sealing key pair of `<key id>.key`: X25519 as PKCS #8 PEM, or base64 of the 32 or 96 private bytes.

    With a `wrapping` key it accepts only files that this key wrapped.

    Raises:
        UsageError: see `read_secret`; the name is no key id 0..255; the content is no such key, or wrapped differently.
    """
    if not path.stem.isascii() or not path.stem.isdigit() or int(path.stem) > 255:
        raise UsageError(f"{path} is not named <key id>.key with a key id from 0 to 255")
    data, key_id = read_secret(path), int(path.stem)
    if wrapping is None:
        return HpkeKeyPair(key_id, hpke_secret(path, data))
    if not is_wrapped(data):
        raise UsageError(f'{path} is not wrapped, and [keys] wrapping_key is set ("fleetcount keys wrap" wraps it)')
    try:
        return HpkeKeyPair(key_id, wrapping.unwrap(key_id, data))
    except UsageError as error:
        raise UsageError(f"{path} {error}") from None


def hpke_secret(path: Path, data: bytes) -> bytes:
    """Return the 32 or 96 private bytes of a sealing key's file.

    Raises:
        UsageError: it has no such key, or one that a token must unwrap.
    """
    if is_wrapped(data):
        raise UsageError(f"{path} is wrapped by a key in a token: name that key in [keys] wrapping_key")
    if data.startswith(_PEM):
        key = _pem_key(path, data)
        if not isinstance(key, X25519PrivateKey):
            raise UsageError(f"{path} holds a {type(key).__name__}, allowed: an X25519 key")
        return key.private_bytes_raw()
    try:
        secret = base64.b64decode(data.strip(), validate=True)
        HpkeKeyPair(0, secret)
    except (binascii.Error, UsageError):
        raise UsageError(f"{path} holds neither a PEM key nor base64 of 32 or 96 bytes") from None
    return secret


def _pem_key(path: Path, data: bytes) -> object:
    try:
        return load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} holds no readable private key ({type(error).__name__})") from None


class Validity(NamedTuple):
    """The time in which devices may seal to a key, Unix seconds: `not_before` inclusive, `not_after` exclusive."""

    not_before: int
    not_after: int


_ALWAYS: Final = Validity(0, MAX_UNIX_TIME)
KEY_LIST_FILE: Final = "key-list.toml"


def load_validities(directory: Path) -> dict[int, Validity]:
    """Return the validities of a directory's keys, by key id, from its `key-list.toml`; without the file {}.

    Raises:
        UsageError: a row is wrong; the message has the key, its value and what is allowed.
    """
    path = directory / KEY_LIST_FILE
    if not path.exists():
        return {}
    found: dict[int, Validity] = {}
    for row in read_toml(path, ("keys",)).sections("keys", ("key_id", *Validity._fields), most=MOST_KEYS):
        key_id = row.integer("key_id", 0, MOST_KEYS - 1)
        if key_id in found:
            raise row.wrong("key_id", f"is {key_id} a second time; allowed is one row a key")
        before = row.integer("not_before", 0, MAX_UNIX_TIME - 1, _ALWAYS.not_before)
        found[key_id] = Validity(before, row.integer("not_after", before + 1, MAX_UNIX_TIME, _ALWAYS.not_after))
    return found


class KeyRing:
    """The sealing keys in use, as of the last reading of the directory: at the start, or after it changed.

    A key whose file was removed leaves memory at the next reading: messages sealed to it can no longer be decrypted.
    `key-list.toml` beside the keys has the validity of each; a key without a row is valid for ever. No new session is
    opened under a key of `retired`; `rotates` is whether the aggregator makes new keys by itself.
    """

    def __init__(
        self,
        pairs: Mapping[int, HpkeKeyPair],
        directory: Path | None = None,
        validities: Mapping[int, Validity] | None = None,
        wrapping: TokenWrappingKey | None = None,
    ) -> None:
        self._pairs = dict(pairs)
        self.directory = directory
        self.wrapping = wrapping
        self.retired: frozenset[int] = frozenset()
        self.rotates = False
        self.is_unusable = False
        """Whether the directory has a file that cannot be used: then no new file is loaded."""
        self._validities = dict(validities or {})
        self._seen: frozenset[tuple[str, int, int]] | None = None

    @classmethod
    def load(cls, directory: Path, wrapping: TokenWrappingKey | None = None) -> "KeyRing":
        """Return every key of a directory, unwrapped by a token's key if one is given.

        Raises:
            UsageError: the directory has no key, or one that cannot be used.
        """
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory of sealing keys")
        pairs = _load_pairs(directory, wrapping)
        if not pairs:
            raise UsageError(f"{directory} holds no <key id>.key")
        return cls(pairs, directory, load_validities(directory), wrapping)

    def pairs(self, key_id: int) -> Mapping[int, HpkeKeyPair]:
        """Return the pairs; for an unknown key id read the directory again, if it has changed."""
        if key_id not in self._pairs:
            self._look()
        return self._pairs

    def public_key(self, key_id: int) -> bytes | None:
        """Return a public key, or None if this aggregator does not have it."""
        pair = self.pairs(key_id).get(key_id)
        return pair.public_key if pair else None

    def listed(self) -> tuple[tuple[int, bytes, Validity], ...]:
        """Return id, public key and validity of every key, by id: the content of the key list for devices."""
        pairs = sorted(self._pairs.items())
        return tuple((key_id, pair.public_key, self._validities.get(key_id, _ALWAYS)) for key_id, pair in pairs)

    @property
    def key_ids(self) -> frozenset[int]:
        """The ids of the pairs in use."""
        return frozenset(self._pairs)

    def refresh(self) -> None:
        """Load new key files and drop keys whose files were removed; with an unusable file only the latter.

        A directory with an unusable file is read again, changed or not: a token may be back.
        """
        if self.is_unusable:
            self._seen = None
        self._look()

    def _look(self) -> None:
        if self.directory is None or not self._changed(self.directory):
            return
        there = {path.stem for path in self.directory.glob("*.key")}
        self._pairs = {key_id: pair for key_id, pair in self._pairs.items() if str(key_id) in there}
        try:
            found = _load_pairs(self.directory, self.wrapping)
            self._pairs, self._validities = found, load_validities(self.directory)
        except UsageError as error:
            self.is_unusable = True
            log.error("sealing_keys_unusable", reason=str(error))
        else:
            self.is_unusable = False

    def _changed(self, directory: Path) -> bool:
        """Return whether the files have changed since the last reading: an invented key id must cost little."""
        try:
            found = [(path.name, path.stat()) for path in (*directory.glob("*.key"), *directory.glob(KEY_LIST_FILE))]
        except OSError:
            return False
        before, self._seen = self._seen, frozenset((name, stat.st_ctime_ns, stat.st_size) for name, stat in found)
        return before != self._seen


def _load_pairs(directory: Path, wrapping: TokenWrappingKey | None) -> dict[int, HpkeKeyPair]:
    pairs = (load_hpke_key(path, wrapping) for path in sorted(directory.glob("*.key")))
    return {pair.key_id: pair for pair in pairs}
