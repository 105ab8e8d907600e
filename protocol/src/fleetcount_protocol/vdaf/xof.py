"""The extendable output function of Prio3, XofTurboShake128 (draft-irtf-cfrg-vdaf, section 6.2), and vectors from it.

This module holds no key and chooses no seed.
"""

from collections.abc import Callable
from typing import Final, Protocol

from Crypto.Hash import TurboSHAKE128

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.field import PrimeField

SEED_SIZE: Final = 32
"""Bytes of every seed, blind and verify key."""

VERSION: Final = 18
"""The draft's version byte (as of draft-20), first in every domain separation tag."""

_TURBO_SHAKE_DOMAIN: Final = 1
_ALGORITHM_CLASS_VDAF: Final = 0
_MAX_DST_BYTES: Final = 0xFFFF
_MAX_SEED_BYTES: Final = 0xFF


class ByteStream(Protocol):
    """An endless stream of bytes, read from front to back."""

    def next(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        ...


Xof = Callable[[bytes, bytes, bytes], ByteStream]
"""Makes the stream of (seed, domain separation tag, binder)."""


class XofTurboShake128:
    """TurboSHAKE128 (RFC 9861, domain byte 1) over len(dst) as 2 bytes, dst, len(seed) as 1 byte, seed, binder.

    Raises UsageError for a tag above 65,535 bytes or a seed above 255.
    """

    __slots__ = ("_sponge",)

    def __init__(self, seed: bytes, dst: bytes, binder: bytes) -> None:
        if len(dst) > _MAX_DST_BYTES:
            raise UsageError(f"the domain separation tag has {len(dst)} bytes, at most {_MAX_DST_BYTES}")
        if len(seed) > _MAX_SEED_BYTES:
            raise UsageError(f"the seed has {len(seed)} bytes, at most {_MAX_SEED_BYTES}")
        message = b"".join((len(dst).to_bytes(2, "little"), dst, bytes((len(seed),)), seed, binder))
        self._sponge = TurboSHAKE128.new(domain=_TURBO_SHAKE_DOMAIN, data=message)

    def next(self, length: int) -> bytes:
        """Return the next `length` bytes of the stream."""
        return self._sponge.read(length)


def domain_separation_tag(algorithm_id: int, usage: int, ctx: bytes) -> bytes:
    """Return version, class, algorithm and usage (big-endian, 8 bytes together), then the application's context.

    draft-irtf-cfrg-vdaf, section 6.2.3 (format_dst). Raises UsageError outside 0..2**32-1 and 0..2**16-1.
    """
    if not 0 <= algorithm_id < 1 << 32:
        raise UsageError(f"algorithm id is {algorithm_id}, not 0..{(1 << 32) - 1}")
    if not 0 <= usage < 1 << 16:
        raise UsageError(f"usage is {usage}, not 0..{(1 << 16) - 1}")
    head = bytes((VERSION, _ALGORITHM_CLASS_VDAF))
    return b"".join((head, algorithm_id.to_bytes(4, "big"), usage.to_bytes(2, "big"), ctx))


def next_vector(stream: ByteStream, field: PrimeField, length: int) -> list[int]:
    """Return the next `length` elements of the stream (draft, section 6.2: next_vec).

    Each word is `encoded_size` bytes, masked to the modulus's bit length, and dropped when it is not below p; the
    stream goes on behind the last word used. Words are read in blocks of exactly as many as are still missing, so that
    no byte is read that the draft's word-by-word loop would not read.
    """
    vector = _draw(stream, field, length)
    if vector and max(vector) >= field.modulus:
        vector = [word for word in vector if word < field.modulus]
        while len(vector) < length:
            vector += [word for word in _draw(stream, field, length - len(vector)) if word < field.modulus]
    return vector


def _draw(stream: ByteStream, field: PrimeField, count: int) -> list[int]:
    words = field.unpack_words(stream.next(count * field.encoded_size))
    mask = field.mask
    if mask.bit_length() < 8 * field.encoded_size:
        return [word & mask for word in words]
    return words


def derive_seed(xof: Xof, seed: bytes, dst: bytes, binder: bytes) -> bytes:
    """Return the first 32 bytes of the stream (draft, section 6.2: derive_seed)."""
    return xof(seed, dst, binder).next(SEED_SIZE)
