"""Polynomials over a prime field, given by their values at roots of unity (draft-irtf-cfrg-vdaf, section 6.1.3; Faz25).

Pure arithmetic on public parameters and secret values alike; no step depends on a value, only on lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fleetcount_protocol.vdaf.field import PrimeField


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
    """For each node count..size-1, the Lagrange basis on the first `count` nodes there.

    basis[i] = prod over j != i, j < count of (x - x_j) / (x_i - x_j). A gadget of degree two always lacks exactly one
    node.
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

    Whole half-vectors a level: list comprehensions cost a third of an indexed butterfly in Python.
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
