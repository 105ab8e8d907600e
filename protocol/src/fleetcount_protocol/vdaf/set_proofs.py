"""The device's short way to the proof of its own set: the elements of `Flp.prove` for a valid measurement of Multihot.

A device knows which few bits of its set are one. So the gadget polynomial, the sum of A_j B_j over all places j, is one
of the seeds plus terms of these bits. With l_i the Lagrange polynomials of the wires' nodes (0 for the seeds s_j and
s'_j, 1 and up for the calls) and z the sum of those of the calls, the wires of a place are

    A_j = l_0 s_j + a_j,    B_j = l_0 s'_j - z + b_j:

a_j is the sum of l_i rho**(t+1) left_t and b_j that of l_i right_t over the products t of place j and call i that are
not zero times minus one. So the gadget polynomial is

    l_0**2 sum of s_j s'_j  -  l_0 z sum of s_j
    +  sum over t of l_i (l_0 (right_t s_j + rho**(t+1) left_t s'_j) + rho**(t+1) left_t (b_j - z)).

At the node of a call it is zero, because the set is valid. At the nodes between them all is constant but the seeds and
the powers of rho, and b_j is the same in all proofs of a report. Pure arithmetic, also on secret values: a set
is filled up to `most` values by some whose factors are zero, and only the additions for values that share a place
depend on what it contains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import itemgetter, mul
from typing import Final

from fleetcount_protocol.vdaf.circuits import Multihot
from fleetcount_protocol.vdaf.field import PrimeField, evaluation_domain
from fleetcount_protocol.vdaf.flp import Flp

_BITS: Final = frozenset((0, 1))
_MOST_PAIRS: Final = 256
"""Pairs of bits a product up to which the short way is the shorter one: there it still takes 0.6 of the general one."""
_SPARE_BYTES: Final = 4
"""Bytes of a slot above those of a product of two elements: sums of fewer than 2**32 products fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """Constants of the nodes between those of the wires, an integer for all of them: a slot of `width` bytes a node.

    `count` nodes; l_0**2, -l_0 z, then for each call l_0 l_i and -z l_i, and for each two calls l_i l_m.
    """

    count: int
    width: int
    squared: int
    shifted: int
    seeded: tuple[int, ...]
    lowered: tuple[int, ...]
    paired: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SetProver:
    """Proofs of one valid set, which `repr` does not show; `prove` gives what `Flp.prove` gives.

    `bits` is place, call, left and right factor of each bit; `weighed` and `seeded` the constants of its weight and of
    its seeds, an integer for all nodes.
    """

    field: PrimeField
    calls: int
    chunk_length: int
    nodes: _Nodes
    bits: tuple[tuple[int, int, int, int], ...]
    weighed: tuple[int, ...]
    seeded: tuple[int, ...]

    def prove(self, prove_rand: Sequence[int], joint_rand: Sequence[int]) -> list[int]:
        """Return the proof, the seeds and the gadget polynomial's values, from randomness as `Flp.prove` has it."""
        field, modulus, nodes = self.field, self.field.modulus, self.nodes
        lefts, rights = prove_rand[0::2], prove_rand[1::2]
        # rho**(t + 1) of the product t in place t // calls of call t % calls.
        small = field.powers(joint_rand[0], self.calls)
        giant = [1, *field.powers(small[-1], self.chunk_length - 1)]
        weights = [giant[place] * small[call] * left % modulus for place, call, left, _ in self.bits]
        seeds = [
            (right * lefts[place] + weight * rights[place]) % modulus
            for weight, (place, _, _, right) in zip(weights, self.bits, strict=True)
        ]
        first = field.inner_product(lefts, rights)
        total = first * nodes.squared + sum(lefts) % modulus * nodes.shifted
        total += sum(map(mul, weights, self.weighed)) + sum(map(mul, seeds, self.seeded))
        values = [0] * (2 * nodes.count + 1)
        values[0] = first
        values[1::2] = _unpacked(total, nodes, modulus)
        return [*prove_rand, *values]


def set_prover(circuit: Multihot, encoded: Sequence[int]) -> SetProver | None:
    """Return the prover of an encoded set; None if it is not valid, or may have so many values that it saves nothing.

    The measurement is `circuit.measurement_length` elements. Whether the number of ones is the reported one is not
    asked, since the gadget has no part in it.
    """
    bits = _bits_of(circuit, encoded)
    if bits is None or len(bits) ** 2 > _MOST_PAIRS * circuit.checked_length:
        return None
    calls = circuit.gadget_calls
    nodes = _nodes_of(circuit.field, Flp(circuit).wire_length, calls)
    places = [(*divmod(position, calls), left, right) for position, left, right in bits]
    # b_j of a bit's place, times the bit's own l_i: the constants of all calls that have a one in this place.
    paired_with = itemgetter(*(call for _, call, _, _ in places))
    ones = [place if right else -1 for place, _, _, right in places]
    weighed = [
        sum(compress(paired_with(nodes.paired[call]), [place == one for one in ones]), nodes.lowered[call])
        for place, call, _, _ in places
    ]
    return SetProver(
        field=circuit.field,
        calls=calls,
        chunk_length=circuit.chunk_length,
        nodes=nodes,
        bits=tuple(places),
        weighed=tuple(weighed),
        seeded=tuple(nodes.seeded[call] for _, call, _, _ in places),
    )


def _bits_of(circuit: Multihot, encoded: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """Return position, left and right factor of as many products as any set has, or None for an invalid one."""
    length, weights = circuit.length, circuit.rest_weights
    if not _BITS.issuperset(encoded):
        return None
    values = list(compress(range(length), encoded))
    holds, rest = encoded[length], sum(map(mul, weights, encoded[length + 1 :]))
    if len(values) > circuit.most or rest * (1 - holds) != 0:
        return None
    bits = [(value, 1, 1) for value in values]
    bits += [(0, 0, 0)] * (circuit.most - len(values))
    bits += [(position, bit, bit) for position, bit in enumerate(encoded[length:], start=length)]
    if weights:
        bits.append((len(encoded), rest, holds))
    return bits


@lru_cache(maxsize=4)
def _nodes_of(field: PrimeField, wire_length: int, calls: int) -> _Nodes:
    """Return the constants of a number of calls, at the nodes between those of the wires; no proof has the last one."""
    modulus, count, width = field.modulus, wire_length - 1, 2 * field.encoded_size + _SPARE_BYTES
    row = evaluation_domain(field, wire_length).lagrange_coefficients(field.root_of_unity(2 * wire_length))
    # l_i at node k is l_0 at node k - i, so that every product of two is one of l_0 with itself, turned around.
    values = [row[0], *row[:0:-1]]
    turned = [_packed(field, width, values, values[shift:] + values[:shift]) * 2 for shift in range(wire_length)]

    def product(i: int, m: int) -> int:
        start = -i % wire_length * width
        return int.from_bytes(turned[(i - m) % wire_length][start : start + count * width], "little")

    rows = range(1, calls + 1)
    sums = [-sum(values[k - i] for i in rows) % modulus for k in range(count)]
    shifted = [[values[k - i] for k in range(count)] for i in range(calls + 1)]
    first, *lowered = (int.from_bytes(_packed(field, width, sums, column), "little") for column in shifted)
    pairs = {(i, m): product(i, m) for i in rows for m in range(1, i + 1)}
    return _Nodes(
        count=count,
        width=width,
        squared=product(0, 0),
        shifted=first,
        seeded=tuple(product(0, i) for i in rows),
        lowered=tuple(lowered),
        paired=tuple(tuple(pairs[max(i, m), min(i, m)] for m in rows) for i in rows),
    )


def _packed(field: PrimeField, width: int, left: Sequence[int], right: Sequence[int]) -> bytes:
    """Return the products of neighbours, each in a slot of `width` bytes."""
    modulus = field.modulus
    return b"".join([(a * b % modulus).to_bytes(width, "little") for a, b in zip(left, right, strict=True)])


def _unpacked(total: int, nodes: _Nodes, modulus: int) -> list[int]:
    width = nodes.width
    encoded = total.to_bytes(nodes.count * width, "little")
    starts = range(0, len(encoded), width)
    return [int.from_bytes(encoded[start : start + width], "little") % modulus for start in starts]
