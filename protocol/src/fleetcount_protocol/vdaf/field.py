"""Prime fields of Prio3: constants, vector arithmetic and the canonical encoding of draft-irtf-cfrg-vdaf, section 6.1.

Elements are plain integers in 0..p-1. This module draws nothing at random and never reduces what it decodes: a word
that is not below p is refused.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add, mul
from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError

_NATIVE_WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeField:
    """A prime field with a subgroup whose order is a power of two (an "NTT-friendly" field).

    `encoded_size` is in bytes, little-endian. `generator` generates the subgroup of order 2**`two_adicity`.
    Whether `modulus` is prime is the caller's promise. Raises UsageError for constants that contradict each other.
    """

    name: str
    modulus: int
    encoded_size: int
    generator: int
    two_adicity: int

    def __post_init__(self) -> None:
        if not 2 < self.modulus < 1 << (8 * self.encoded_size):
            raise UsageError(f"modulus {self.modulus} does not fit {self.encoded_size} bytes")
        if self.two_adicity < 1 or pow(self.generator, 1 << (self.two_adicity - 1), self.modulus) != self.modulus - 1:
            raise UsageError(f"{self.generator} does not generate a subgroup of order 2**{self.two_adicity}")

    @property
    def mask(self) -> int:
        """The smallest 2**b - 1 that covers every element: what the draft's next_vec keeps of a drawn word."""
        return (1 << (self.modulus - 1).bit_length()) - 1

    def root_of_unity(self, order: int) -> int:
        """Return the principal root of unity of `order`, a power of two up to 2**two_adicity."""
        exponent = order.bit_length() - 1
        if order < 1 or order != 1 << exponent or exponent > self.two_adicity:
            raise UsageError(f"order {order} is not a power of two up to 2**{self.two_adicity}")
        return pow(self.generator, 1 << (self.two_adicity - exponent), self.modulus)

    def inverse(self, element: int) -> int:
        """Return 1/element; raises UsageError for 0."""
        if element % self.modulus == 0:
            raise UsageError("zero has no inverse")
        return pow(element, -1, self.modulus)

    def add_vectors(self, vectors: Iterable[Sequence[int]], length: int) -> list[int]:
        """Return the sum of any number of vectors of `length` elements; no vector at all gives zeros.

        Raises UsageError when a vector has another length.
        """
        total: list[int] = [0] * length
        for vector in vectors:
            if len(vector) != length:
                raise UsageError(f"a vector has {len(vector)} elements, not {length}")
            total = list(map(add, total, vector))
        return [word % self.modulus for word in total]

    def subtract_vectors(self, left: Sequence[int], right: Sequence[int]) -> list[int]:
        """Return left - right, element by element; raises UsageError when the lengths differ."""
        if len(left) != len(right):
            raise UsageError(f"vectors have {len(left)} and {len(right)} elements")
        modulus = self.modulus
        return [(a - b) % modulus for a, b in zip(left, right, strict=True)]

    def inner_product(self, left: Iterable[int], right: Iterable[int]) -> int:
        """Return sum of left[i] * right[i]; the shorter vector decides the length, as if the rest were zero."""
        total: int = sum(map(mul, left, right))
        return total % self.modulus

    def powers(self, base: int, count: int) -> list[int]:
        """Return base, base**2, ... base**count."""
        modulus = self.modulus
        power = 1
        result: list[int] = []
        for _ in range(count):
            power = power * base % modulus
            result.append(power)
        return result

    def encode_vector(self, vector: Sequence[int]) -> bytes:
        """Return the elements one after the other, little-endian, `encoded_size` bytes each (draft: encode_vec).

        Raises UsageError for a word outside 0..p-1; the message does not name it, it may be a secret.
        """
        if vector and not 0 <= min(vector) <= max(vector) < self.modulus:
            raise UsageError(f"a word is outside 0..{self.modulus - 1}")
        if self.encoded_size == _NATIVE_WORD_BYTES:
            return struct.pack(f"<{len(vector)}Q", *vector)
        return b"".join([word.to_bytes(self.encoded_size, "little") for word in vector])

    def decode_vector(self, encoded: bytes, length: int) -> list[int]:
        """Return the `length` elements of `encoded` (draft: decode_vec, with the length known beforehand).

        Raises DecodeError for any other number of bytes and for a word that is not below p: one encoding per vector.
        """
        if len(encoded) != length * self.encoded_size:
            raise DecodeError(
                f"{length} elements of {self.name} have {len(encoded)} bytes, not {length * self.encoded_size}"
            )
        words = self.unpack_words(encoded)
        if words and max(words) >= self.modulus:
            raise DecodeError(f"a word of {self.name} is not below {self.modulus}")
        return words

    def unpack_words(self, encoded: bytes) -> list[int]:
        """Return the little-endian words of `encoded` as they stand, not checked against p; whole words only."""
        size = self.encoded_size
        if size == _NATIVE_WORD_BYTES:
            return list(struct.unpack(f"<{len(encoded) // size}Q", encoded))
        return [int.from_bytes(encoded[start : start + size], "little") for start in range(0, len(encoded), size)]


FIELD64: Final = PrimeField(
    name="Field64",
    modulus=2**32 * 4294967295 + 1,
    encoded_size=8,
    generator=pow(7, 4294967295, 2**32 * 4294967295 + 1),
    two_adicity=32,
)
"""p = 2**64 - 2**32 + 1, the field of every fleetcount window (draft-irtf-cfrg-vdaf, section 6.1.4)."""

FIELD128: Final = PrimeField(
    name="Field128",
    modulus=2**66 * 4611686018427387897 + 1,
    encoded_size=16,
    generator=pow(7, 4611686018427387897, 2**66 * 4611686018427387897 + 1),
    two_adicity=66,
)
"""p = 2**128 - 28 * 2**64 + 1 (draft-irtf-cfrg-vdaf, section 6.1.4)."""
