"""Prime fields of Prio3: constants, vector arithmetic and the canonical encoding of draft-irtf-cfrg-vdaf, section 6.1.

Elements are plain integers in 0..p-1. This module has no source of randomness, and decoding never reduces a word: one
that is not below p is refused.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, mul
from typing import Final, Protocol

from Crypto.Hash import TurboSHAKE128

from fleetcount_protocol.errors import DecodeError, UsageError

_NATIVE_WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeField:
    """A prime field with a subgroup whose order is a power of two (an "NTT-friendly" field).

    `encoded_size` is in bytes, little-endian. `generator` generates the subgroup of order 2**`two_adicity`. The caller
    guarantees that `modulus` is prime.

    Raises:
        UsageError: a modulus that does not fit `encoded_size`, or a generator of another order.
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
        """The smallest 2**b - 1 that covers every element: the bits of a word that the draft's next_vec keeps."""
        return (1 << (self.modulus - 1).bit_length()) - 1

    def root_of_unity(self, order: int) -> int:
        """Return the principal root of unity of `order`, a power of two up to 2**two_adicity.

        Raises:
            UsageError: another order.
        """
        exponent = order.bit_length() - 1
        if order < 1 or order != 1 << exponent or exponent > self.two_adicity:
            raise UsageError(f"order {order} is not a power of two up to 2**{self.two_adicity}")
        return pow(self.generator, 1 << (self.two_adicity - exponent), self.modulus)

    def inverse(self, element: int) -> int:
        """Return 1/element.

        Raises:
            UsageError: the element is 0.
        """
        if element % self.modulus == 0:
            raise UsageError("zero has no inverse")
        return pow(element, -1, self.modulus)

    def add_vectors(self, vectors: Iterable[Sequence[int]], length: int) -> list[int]:
        """Return the sum of any number of vectors of `length` elements, `length` zeros without a vector.

        Raises:
            UsageError: a vector has another length.
        """
        total: list[int] = [0] * length
        for vector in vectors:
            if len(vector) != length:
                raise UsageError(f"a vector has {len(vector)} elements, not {length}")
            total = list(map(add, total, vector))
        return [word % self.modulus for word in total]

    def subtract_vectors(self, left: Sequence[int], right: Sequence[int]) -> list[int]:
        """Return left - right, element by element.

        Raises:
            UsageError: the lengths differ.
        """
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

        Raises:
            UsageError: a word is outside 0..p-1; the message does not show it, because it may be secret.
        """
        if vector and not 0 <= min(vector) <= max(vector) < self.modulus:
            raise UsageError(f"a word is outside 0..{self.modulus - 1}")
        if self.encoded_size == _NATIVE_WORD_BYTES:
            return struct.pack(f"<{len(vector)}Q", *vector)
        return b"".join([word.to_bytes(self.encoded_size, "little") for word in vector])

    def decode_vector(self, encoded: bytes, length: int) -> list[int]:
        """Return the `length` elements of `encoded` (draft: decode_vec, with the length known beforehand).

        Raises:
            DecodeError: another number of bytes, or a word that is not below p: each vector has one encoding.
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
        """Return the little-endian words of `encoded`, a whole number of them, not checked against p."""
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


# Polynomials over a prime field, given by their values at roots of unity (draft-irtf-cfrg-vdaf, section 6.1.3; Faz25).
#
# Pure arithmetic, also on secret values; the steps depend on lengths only, never on a value.


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`, for number >= 1."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class EvaluationDomain:
    """The `size` powers of the principal root of unity of that order, in the order w**0, w**1, ..."""

    prime_field: PrimeField
    size: int
    nodes: tuple[int, ...] = field(init=False, repr=False)
    size_inverse: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        root = self.prime_field.root_of_unity(self.size)
        object.__setattr__(self, "nodes", (1, *self.prime_field.powers(root, self.size - 1)))
        object.__setattr__(self, "size_inverse", self.prime_field.inverse(self.size))

    def contains(self, point: int) -> bool:
        """Return whether the point is one of the nodes: point**size = 1."""
        return pow(point, self.size, self.prime_field.modulus) == 1

    def lagrange_coefficients(self, point: int) -> list[int]:
        """Return c with P(point) = sum c[i] * P(nodes[i]) for every polynomial P of degree below `size`.

        c[i] = nodes[i] / size * prod over j != i of (point - nodes[j]), because the derivative of X**n - 1 at a root x
        is n / x. Products from the left and from the right make it 4n multiplications without a division, at nodes too.
        """
        modulus = self.prime_field.modulus
        coefficients: list[int] = []
        product = self.size_inverse
        for node in self.nodes:
            coefficients.append(product * node % modulus)
            product = product * (point - node) % modulus
        product = 1
        for index in range(self.size - 1, -1, -1):
            coefficients[index] = coefficients[index] * product % modulus
            product = product * (point - self.nodes[index]) % modulus
        return coefficients


@lru_cache(maxsize=64)
def evaluation_domain(prime_field: PrimeField, size: int) -> EvaluationDomain:
    """Return the domain of `size` nodes, a power of two, made once."""
    return EvaluationDomain(prime_field, size)


def double_values(prime_field: PrimeField, values: Sequence[int]) -> list[int]:
    """Return the polynomial's values on the domain of twice the size, in order (Faz25, eq. 3.3.4).

    Even places keep the given values; odd places are the values on the coset s * w**i, s the root of twice the order:
    the coefficients times s**i, transformed again. O(n log n).
    """
    size = len(values)
    coefficients = _coefficients(prime_field, values)
    modulus = prime_field.modulus
    twists = evaluation_domain(prime_field, 2 * size).nodes
    twisted = [c * s % modulus for c, s in zip(coefficients, twists[:size], strict=True)]
    result = [0] * (2 * size)
    result[0::2] = values
    result[1::2] = _transform(modulus, twisted, evaluation_domain(prime_field, size).nodes)
    return result


def extend_values(prime_field: PrimeField, values: Sequence[int]) -> list[int]:
    """Return the values on all nodes of the smallest domain that holds them, given the first ones (Faz25, eq. 3.2.1).

    The polynomial is the one of degree below len(values).
    """
    count = len(values)
    size = next_power_of_two(count)
    rows = _extension_rows(prime_field, count, size)
    return [*values, *(prime_field.inner_product(row, values) for row in rows)]


@lru_cache(maxsize=64)
def _extension_rows(prime_field: PrimeField, count: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each node x of count..size-1, the values at x of the Lagrange basis on the first `count` nodes.

    basis[i] = prod over j != i, j < count of (x - x_j) / (x_i - x_j). With a gadget of degree two exactly one node is
    missing.
    """
    modulus = prime_field.modulus
    nodes = evaluation_domain(prime_field, size).nodes
    if count + 1 == size:
        # The top coefficient is (1/size) * sum of values[i] * x_i; that it is zero gives the last value.
        last = nodes[-1]
        return (tuple(-node * prime_field.inverse(last) % modulus for node in nodes[:count]),)
    rows: list[tuple[int, ...]] = []
    for point in nodes[count:]:
        row: list[int] = []
        for i in range(count):
            above, below = 1, 1
            for j in range(count):
                if j != i:
                    above = above * (point - nodes[j]) % modulus
                    below = below * (nodes[i] - nodes[j]) % modulus
            row.append(above * prime_field.inverse(below) % modulus)
        rows.append(tuple(row))
    return tuple(rows)


def _coefficients(prime_field: PrimeField, values: Sequence[int]) -> list[int]:
    """Return the coefficients of the polynomial with these values: the inverse transform."""
    size = len(values)
    domain = evaluation_domain(prime_field, size)
    transformed = _transform(prime_field.modulus, values, domain.nodes)
    reversed_values = [transformed[0], *transformed[:0:-1]]
    return [value * domain.size_inverse % prime_field.modulus for value in reversed_values]


def _transform(modulus: int, values: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return the values at all nodes of the polynomial with these coefficients: radix-2 number-theoretic transform.

    Each level computes whole half-vectors: in Python, list comprehensions cost a third of an indexed butterfly.
    """
    size = len(values)
    if size == 1:
        return list(values)
    if size == 2:
        return [(values[0] + values[1]) % modulus, (values[0] - values[1]) % modulus]
    even = _transform(modulus, values[0::2], nodes[0::2])
    odd = _transform(modulus, values[1::2], nodes[0::2])
    turned = [node * value % modulus for node, value in zip(nodes, odd, strict=False)]
    front = [(a + b) % modulus for a, b in zip(even, turned, strict=True)]
    back = [(a - b) % modulus for a, b in zip(even, turned, strict=True)]
    return front + back


# The extendable output function of Prio3, XofTurboShake128 (draft-irtf-cfrg-vdaf, section 6.2), and vectors from it.

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

    Raises:
        UsageError: a tag above 65,535 bytes or a seed above 255.
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

    Source: draft-irtf-cfrg-vdaf, section 6.2.3 (format_dst).

    Raises:
        UsageError: an algorithm id outside 0..2**32-1, or a usage outside 0..2**16-1.
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
