"""Which public keys a window may name: points of the right curve that are not of small order (their secret is public).

Holds no private key and makes no signature. Loads OpenSSL's curves with the first sealing key that is checked: a device
starts, and waits for its first window, without them.
"""

from functools import cache
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


def check_signing_public_key(key: bytes) -> None:
    """Refuse what is not the one encoding of an Ed25519 point, and the points of small order (RFC 8032, section 5.1.3).

    Under a key of small order, signatures verify that were made without any private key.

    Raises:
        ValueError: which fault.
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


def check_hpke_public_key(key: bytes) -> None:
    """Refuse a sealing key of the wrong size or of small order (RFC 7748, section 6.1: the all-zero check).

    Raises:
        ValueError: which fault.
    """
    if len(key) not in (X25519_KEY_BYTES, HYBRID_KEY_BYTES):
        raise ValueError(f"sealing key has {len(key)} bytes, not {X25519_KEY_BYTES} or {HYBRID_KEY_BYTES}")
    point = key[-X25519_KEY_BYTES:]
    if int.from_bytes(point, "little") >= _P:
        raise ValueError("sealing key is not a canonical X25519 key")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # As said above.

    try:
        _probe().exchange(X25519PublicKey.from_public_bytes(point))
    except ValueError:
        raise ValueError("sealing key is an X25519 point of small order") from None


@cache
def _probe() -> "X25519PrivateKey":
    """Any scalar shows a point of small order, since X25519 multiplies by the cofactor; it protects nothing."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # As said above.

    return X25519PrivateKey.from_private_bytes(bytes(range(32)))


# How signatures stand behind what was signed, in files and in stores (docs/wire.md, "Question").
#
# It must not sign or verify (`signing`).


def encode_signatures(signatures: tuple[bytes, ...]) -> bytes:
    """Return the end of a file of something signed: how many places there are, and what stands in each."""
    return uint(len(signatures), 1) + b"".join(sized(signature, 1) for signature in signatures)


def read_signatures(reader: Reader) -> tuple[bytes, ...]:
    """Return the signatures at the end of a file of something signed (`encode_signatures`)."""
    return tuple(reader.sized(1, 0, ED25519_SIGNATURE_BYTES) for _ in range(reader.count(1, 0, MAX_AGGREGATORS)))


def fault_of_signatures(signatures: tuple[bytes, ...], aggregators: int) -> str:
    """Return why these cannot be the signatures of all aggregators, some perhaps still missing; "" if they can."""
    if len(signatures) != aggregators:
        return f"{len(signatures)} signatures for {aggregators} aggregators"
    wrong = any(len(signature) not in (0, ED25519_SIGNATURE_BYTES) for signature in signatures)
    return f"a signature has 0 or {ED25519_SIGNATURE_BYTES} bytes" if wrong else ""


def encode_with_signature(canonical: bytes, signature: bytes) -> bytes:
    """Return the file of something that one aggregator alone has signed: its canonical bytes, then the signature."""
    return sized(canonical, 4) + signature


def read_with_signature(data: bytes, what: str, label: bytes, largest: int) -> tuple[bytes, bytes]:
    """Return canonical bytes, which begin with `label` if they are any, and signature of such a file.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, f"signed {what}", 4 + largest + ED25519_SIGNATURE_BYTES)
    canonical, signature = reader.sized(4, len(label), largest), reader.take(ED25519_SIGNATURE_BYTES)
    reader.finish()
    return canonical, signature
