"""Which public keys a window may name: points of the right curve that are not of small order (their secret is public).

The module has no private key and makes no signature. OpenSSL's curves are loaded when the first sealing key is checked,
because a device starts, and waits for its first window, without them.
"""

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import ED25519_SIGNATURE_BYTES, MAX_AGGREGATORS

X25519_KEY_BYTES: Final = 32
MLKEM768_KEY_BYTES: Final = 1_184
HYBRID_KEY_BYTES: Final = MLKEM768_KEY_BYTES + X25519_KEY_BYTES
ED25519_KEY_BYTES: Final = 32

_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P
# y of the two pairs of points of order 8 (RFC 8032, section 5.1: the cofactor is 8); y of the others is 1, -1 and 0.
_ORDER_8_Y: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_Y: Final = frozenset({0, 1, _P - 1, _ORDER_8_Y, _P - _ORDER_8_Y})


@lru_cache(maxsize=16)  # A fault is found anew; the keys of a question's aggregators are asked about again and again.
def check_signing_public_key(key: bytes) -> None:
    """Refuse bytes that are not the canonical encoding of an Ed25519 point, and points of small order.

    Under a key of small order, signatures verify that were made without a private key. Source: RFC 8032, section 5.1.3.

    Raises:
        ValueError: with the fault.
    """
    if len(key) != ED25519_KEY_BYTES:
        raise ValueError(f"signing key has {len(key)} bytes, not {ED25519_KEY_BYTES}")
    y = int.from_bytes(key, "little") & (1 << 255) - 1
    if y >= _P:
        raise ValueError("signing key is not a canonical Ed25519 point")
    if y in _SMALL_ORDER_Y:
        raise ValueError("signing key is an Ed25519 point of small order")
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if pow(square, (_P - 1) // 2, _P) != 1:
        raise ValueError("signing key is not a point of the Ed25519 curve")


@lru_cache(maxsize=16)  # As above.
def check_hpke_public_key(key: bytes) -> None:
    """Refuse a sealing key of the wrong size or of small order (RFC 7748, section 6.1: the all-zero check).

    Raises:
        ValueError: with the fault.
    """
    if len(key) not in (X25519_KEY_BYTES, HYBRID_KEY_BYTES):
        raise ValueError(f"sealing key has {len(key)} bytes, not {X25519_KEY_BYTES} or {HYBRID_KEY_BYTES}")
    point = key[-X25519_KEY_BYTES:]
    if int.from_bytes(point, "little") >= _P:
        raise ValueError("sealing key is not a canonical X25519 key")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # See the module's docstring.

    try:
        _probe().exchange(X25519PublicKey.from_public_bytes(point))
    except ValueError:
        raise ValueError("sealing key is an X25519 point of small order") from None


@cache
def _probe() -> "X25519PrivateKey":
    """Return a fixed X25519 key: with any scalar a point of small order gives zero. It protects no secret."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # See the module's docstring.

    return X25519PrivateKey.from_private_bytes(bytes(range(32)))


# The encoding of signatures after the signed bytes, in files and stores (docs/wire.md, "Question"); `signing` verifies.


def encode_signatures(signatures: tuple[bytes, ...]) -> bytes:
    """Return the signatures as they end a signed file: their number, then each with its length, 0 if it is missing."""
    return uint(len(signatures), 1) + b"".join(sized(signature, 1) for signature in signatures)


def read_signatures(reader: Reader) -> tuple[bytes, ...]:
    """Return the signatures at the end of a signed file (`encode_signatures`).

    Raises:
        DecodeError: a number or length out of range, or too few bytes.
    """
    return tuple(reader.sized(1, 0, ED25519_SIGNATURE_BYTES) for _ in range(reader.count(1, 0, MAX_AGGREGATORS)))


def fault_of_signatures(signatures: tuple[bytes, ...], aggregators: int) -> str:
    """Return why these cannot be signatures of all aggregators, some of them empty; "" if they can."""
    if len(signatures) != aggregators:
        return f"{len(signatures)} signatures for {aggregators} aggregators"
    wrong = any(len(signature) not in (0, ED25519_SIGNATURE_BYTES) for signature in signatures)
    return f"a signature has 0 or {ED25519_SIGNATURE_BYTES} bytes" if wrong else ""


def encode_with_signature(canonical: bytes, signature: bytes) -> bytes:
    """Return a file with one signature: the canonical bytes with their length, then the signature."""
    return sized(canonical, 4) + signature


def read_with_signature(data: bytes, what: str, label: bytes, largest: int) -> tuple[bytes, bytes]:
    """Return the canonical bytes, at least as long as `label`, and the signature of a file of `encode_with_signature`.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    reader = Reader(data, f"signed {what}", 4 + largest + ED25519_SIGNATURE_BYTES)
    canonical, signature = reader.sized(4, len(label), largest), reader.take(ED25519_SIGNATURE_BYTES)
    reader.finish()
    return canonical, signature
