"""Keys that never leave a PKCS #11 token, found by their URI (RFC 7512): one that signs, one that wraps sealing keys.

Needs the extra `fleetcount[pkcs11]`. Ed25519 by CKM_EDDSA (PKCS #11 v3.0, 6.3.16), AES-256 by CKM_AES_GCM (6.13.3).
Sealing keys themselves cannot be in a token: HPKE decryption needs the private key in this process. It must not show a
PIN.
"""

import base64
import binascii
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self
from urllib.parse import unquote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_transport.key_files import read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization import Encoding, KeySerializationEncryption, PrivateFormat

PIN_VARIABLE: Final = "FLEETCOUNT_PKCS11_PIN"
PKCS11_SCHEME: Final = "pkcs11:"
_IN_PATH: Final = MappingProxyType({"token": "token_label", "serial": "token_serial", "object": "label", "id": "id"})
_IN_QUERY: Final = ("module-path", "pin-source")
_POINT_BYTES: Final = 32
_AES_BYTES: Final = 32
_WRAPPED: Final = b"wrapped:"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_ONE_CALL: Final = threading.Lock()
"""Locked during every call to a token: a PKCS #11 library need not be safe for threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUri:
    """The place of a key: token, object, the library of the token, and the file of the PIN if there is one."""

    token_label: str = ""
    token_serial: str = ""
    label: str = ""
    id: bytes = b""
    module: Path
    pin_file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place that a `pkcs11:` URI names: token or serial, object or id, and `?module-path=`.

        Raises:
            UsageError: an attribute is unknown, given twice or missing, or the URI itself has a PIN.
        """
        if not text.startswith(PKCS11_SCHEME):
            raise UsageError(f"{text[:80]!r} is no pkcs11: URI")
        path, _, query = text[len(PKCS11_SCHEME) :].partition("?")
        if "pin-value" in query:
            raise UsageError(f"a pkcs11: URI has pin-value; allowed: pin-source=FILE, or the PIN in ${PIN_VARIABLE}")
        found = _attributes(path, ";", tuple(_IN_PATH)) | _attributes(query, "&", _IN_QUERY)
        if not {"token", "serial"} & set(found) or not {"object", "id"} & set(found) or "module-path" not in found:
            raise UsageError(f"{text[:200]!r} must have token or serial, object or id, and ?module-path=")
        source = unquote(found.get("pin-source", "")).removeprefix("file://").removeprefix("file:")
        return cls(
            token_label=unquote(found.get("token", "")),
            token_serial=unquote(found.get("serial", "")),
            label=unquote(found.get("object", "")),
            id=unquote(found.get("id", ""), "latin-1").encode("latin-1"),
            module=Path(unquote(found["module-path"])),
            pin_file=Path(source) if source else None,
        )

    @property
    def wanted(self) -> dict[str, str | bytes]:
        """The attributes by which the token finds the key."""
        return {name: value for name, value in (("label", self.label), ("id", self.id)) if value}

    @property
    def token(self) -> str:
        """The token, for messages."""
        return f"token {self.token_label or self.token_serial!r}"

    def pin(self, environment: Mapping[str, str]) -> str:
        """Return the PIN, from its file or the environment.

        Raises:
            UsageError: there is no PIN, or others may read its file.
        """
        if self.pin_file is not None:
            return read_secret(self.pin_file).decode("utf-8", "replace").strip()
        if PIN_VARIABLE not in environment:
            raise UsageError(f"the PIN of the token is missing: name a file in pin-source, or set ${PIN_VARIABLE}")
        return environment[PIN_VARIABLE]


def _attributes(text: str, separator: str, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split(separator)):
        name, _, value = part.partition("=")
        if name not in known or name in found or not value:
            raise UsageError(f"{name[:40]!r} of a pkcs11: URI; allowed, once each: {', '.join(known)}")
        found[name] = value
    return found


class TokenSigningKey(Ed25519PrivateKey):
    """An Ed25519 key in a token, which signs; no copy of its private bytes is elsewhere."""

    def __init__(self, key: Any, public: Ed25519PublicKey, mechanism: Any) -> None:
        self._key = key
        self._public = public
        self._mechanism = mechanism

    def public_key(self) -> Ed25519PublicKey:
        """Return the public key."""
        return self._public

    def sign(self, data: bytes) -> bytes:  # type: ignore[override]  # cryptography also takes other buffers.
        """Return the token's signature (RFC 8032, pure), 64 bytes.

        Raises:
            MachineError: the token did not sign: it is gone, or its session was closed.
        """
        from pkcs11.exceptions import PKCS11Error

        try:
            with _ONE_CALL:
                return bytes(self._key.sign(data, mechanism=self._mechanism))
        except PKCS11Error as error:
            raise MachineError(f"the token of the signing key did not sign: {type(error).__name__}") from None

    def private_bytes(
        self,
        encoding: "Encoding",
        format: "PrivateFormat",  # noqa: A002 - the name that cryptography gives it.
        encryption_algorithm: "KeySerializationEncryption",
    ) -> NoReturn:
        """Refuse: a token gives no private key away."""
        raise UsageError("the signing key is in a token, which does not give it away")

    def private_bytes_raw(self) -> NoReturn:
        """Refuse: a token gives no private key away."""
        raise UsageError("the signing key is in a token, which does not give it away")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class TokenWrappingKey:
    """An AES-256 key in a token, which encrypts the files of sealing keys: without the token they cannot be used."""

    def __init__(self, key: Any, uri: TokenUri) -> None:
        self._key = key
        self._uri = uri

    def wrap(self, key_id: int, secret: bytes) -> bytes:
        """Return the content of a sealing key's file: the private bytes, encrypted for this key id, in base64.

        Raises:
            MachineError: the token did not encrypt: it is gone, or its session was closed.
        """
        nonce = os.urandom(_NONCE_BYTES)
        try:
            sealed = self._call(self._key.encrypt, key_id, nonce, secret)
        except _pkcs11_error() as error:
            raise MachineError(f"{self._uri.token} did not wrap a sealing key: {type(error).__name__}") from None
        return _WRAPPED + base64.b64encode(nonce + sealed) + b"\n"

    def unwrap(self, key_id: int, content: bytes) -> bytes:
        """Return the private bytes of a file that `wrap` made for this key id.

        Raises:
            UsageError: it was wrapped by another key or for another id, is damaged, or the token is gone; the library
                gives the same error for all.
        """
        try:
            data = base64.b64decode(content.removeprefix(_WRAPPED).strip(), validate=True)
        except binascii.Error:
            data = b""
        if len(data) <= _NONCE_BYTES + _TAG_BYTES:
            raise UsageError("is no wrapped key")
        try:
            return self._call(self._key.decrypt, key_id, data[:_NONCE_BYTES], data[_NONCE_BYTES:])
        except _pkcs11_error() as error:
            raise UsageError(
                f"does not open with {self._uri.label!r} of {self._uri.token} ({type(error).__name__})"
            ) from None

    @staticmethod
    def _call(operation: Any, key_id: int, nonce: bytes, data: bytes) -> bytes:
        import pkcs11

        bound = pkcs11.GCMParams(nonce, b"fleetcount sealing key %d" % key_id, 8 * _TAG_BYTES)
        with _ONE_CALL:
            return bytes(operation(data, mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=bound))


def is_wrapped(content: bytes) -> bool:
    """Return whether a token must unwrap the content of a key file."""
    return content.startswith(_WRAPPED)


def load_token_key(text: str, environment: Mapping[str, str] = os.environ) -> TokenSigningKey:
    """Return the signing key that a `pkcs11:` URI names, with a session that stays open.

    Raises:
        UsageError: the URI, the PIN, the library, the token or the key cannot be used; the text says which.
    """
    uri = TokenUri.parse(text)
    session = _session(uri, environment, "EDDSA", "Ed25519")
    import pkcs11

    try:
        private = session.get_key(object_class=pkcs11.ObjectClass.PRIVATE_KEY, **uri.wanted)
        public = session.get_key(object_class=pkcs11.ObjectClass.PUBLIC_KEY, **uri.wanted)
        point = bytes(public[pkcs11.Attribute.EC_POINT])
    except _pkcs11_error() as error:
        raise UsageError(f"the signing key in {uri.token}: {type(error).__name__}") from None
    return TokenSigningKey(private, _public_key(point, uri), pkcs11.Mechanism.EDDSA)


def load_wrapping_key(text: str, environment: Mapping[str, str] = os.environ) -> TokenWrappingKey:
    """Return the AES-256 key that a `pkcs11:` URI names, with a session that stays open.

    Raises:
        UsageError: as `load_token_key`; or the key is of another kind, or extractable.
    """
    uri = TokenUri.parse(text)
    session = _session(uri, environment, "AES_GCM", "wrapping sealing keys")
    import pkcs11

    try:
        key = session.get_key(object_class=pkcs11.ObjectClass.SECRET_KEY, **uri.wanted)
        named = key.key_type is pkcs11.KeyType.AES and key[pkcs11.Attribute.VALUE_LEN] == _AES_BYTES
        given_away = key[pkcs11.Attribute.EXTRACTABLE] or not key[pkcs11.Attribute.SENSITIVE]
    except _pkcs11_error() as error:
        raise UsageError(f"the wrapping key in {uri.token}: {type(error).__name__}") from None
    if not named:
        raise UsageError(f"object {uri.label!r} of {uri.token} is no AES key of {8 * _AES_BYTES} bits")
    if given_away:
        raise UsageError(
            f"object {uri.label!r} of {uri.token} can be taken out of it; allowed: sensitive, not extractable"
        )
    return TokenWrappingKey(key, uri)


def _pkcs11_error() -> type[Exception]:
    from pkcs11.exceptions import PKCS11Error

    return PKCS11Error


def _session(uri: TokenUri, environment: Mapping[str, str], mechanism: str, needed_by: str) -> Any:
    """Return a session with a token, which must have a mechanism; a login is per process, for all its sessions."""
    try:
        import pkcs11
        from pkcs11.exceptions import PKCS11Error, UserAlreadyLoggedIn
    except ImportError:
        raise UsageError("a pkcs11: URI needs python-pkcs11: pip install 'fleetcount[pkcs11]'") from None
    try:
        library = pkcs11.lib(str(uri.module))
    except (PKCS11Error, RuntimeError):
        raise UsageError(f"{uri.module} is no PKCS #11 library that can be loaded") from None
    named = {"token_label": uri.token_label, "token_serial": uri.token_serial.encode()}
    try:
        token = library.get_token(**{name: value for name, value in named.items() if value})
        if pkcs11.Mechanism[mechanism] not in token.slot.get_mechanisms():
            raise UsageError(f"{uri.token} has no CKM_{mechanism}, which {needed_by} needs")
        try:
            return token.open(user_pin=uri.pin(environment))
        except UserAlreadyLoggedIn:
            return token.open()
    except PKCS11Error as error:
        raise UsageError(f"{uri.token} of a pkcs11: URI: {type(error).__name__}") from None


def _public_key(point: bytes, uri: TokenUri) -> Ed25519PublicKey:
    """Return the key of an EC_POINT: 32 bytes, by themselves or as a DER octet string."""
    raw = point[2:] if point[:2] == bytes((4, _POINT_BYTES)) and len(point) == _POINT_BYTES + 2 else point
    if len(raw) != _POINT_BYTES:
        raise UsageError(f"object {uri.label!r} of {uri.token} is no Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(raw)
