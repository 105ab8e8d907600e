"""Which public keys a window may name: points of the right curve that are not of small order (their secret is public).

Holds no private key and makes no signature. Loads OpenSSL's curves with the first sealing key that is checked: a device
starts, and waits for its first window, without them.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

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
