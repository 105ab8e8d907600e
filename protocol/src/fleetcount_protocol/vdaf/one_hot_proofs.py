"""The device's short way to the proof of its own one-hot vectors: the elements of `Flp.prove` for their two circuits.

A device knows where its ones are: the circuit's x is one weight, not a sum over all places, and y is no wire. The few
calls give each wire polynomial 2 or 4 values; between the nodes it is a constant matrix times these. Pure arithmetic,
also on secret values: the steps are the same for every position.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Final

from fleetcount_protocol.vdaf.circuits import OneHot, PowerSum, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import PrimeField, evaluation_domain

_CALLS: Final = {1: ((0, 0),), 2: ((0, 0), (1, 1), (0, 1))}
"""By the number of vectors, whose x the calls of `OneHot.evaluate` and `TwoRoundOneHot.evaluate` multiply."""


def one_hot_proof(
    circuit: OneHot | TwoRoundOneHot, positions: Sequence[int], prove_rand: Sequence[int], joint_rand: Sequence[int]
) -> list[int]:
    """Return the proof of the vectors with a one in these positions, from randomness as `Flp.prove` has it."""
    field, calls = circuit.field, _CALLS[len(positions)]
    form = PowerSum(field, joint_rand[0], circuit.length)
    wires = [form.of_unit(position) for position in positions]
    lefts = [prove_rand[0], *(wires[left] for left, _ in calls)]
    rights = [prove_rand[1], *(wires[right] for _, right in calls)]
    values = [0] * (2 * len(lefts) - 1)
    values[0::2] = [left * right % field.modulus for left, right in zip(lefts, rights, strict=True)]
    values[1::2] = [
        field.inner_product(row, lefts) * field.inner_product(row, rights) % field.modulus
        for row in _between(field, len(lefts))
    ]
    return [*prove_rand, *values]


def positions_of(circuit: OneHot | TwoRoundOneHot, encoded: Sequence[int]) -> list[int]:
    """Return where the ones of encoded vectors are; nothing if one is not one-hot.

    Whether two vectors go together is not asked, since the gadget has no part in it.
    """
    length = circuit.length
    vectors = [encoded[at : at + length] for at in range(0, len(encoded), length)]
    if not {0, 1}.issuperset(encoded) or any(sum(vector) != 1 for vector in vectors):
        return []
    return [sum(map(mul, range(length), vector)) for vector in vectors]


@lru_cache(maxsize=4)
def _between(field: PrimeField, nodes: int) -> list[list[int]]:
    """Return what gives a polynomial's values between its nodes, but behind the last, from those at them."""
    domain, root = evaluation_domain(field, nodes), field.root_of_unity(2 * nodes)
    return [domain.lagrange_coefficients(pow(root, 2 * node + 1, field.modulus)) for node in range(nodes - 1)]
