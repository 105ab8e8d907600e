"""The proof system: interpolation, completeness, tampering, the abort at roots of unity."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from fleetcount_evidence.replay.draft_circuits import Count, Histogram, MultihotCountVec, PolyEval, Sum
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import (
    Multihot,
    OneHot,
    SumVec,
    TwoRoundOneHot,
)
from fleetcount_protocol.vdaf.field import (
    FIELD64,
    FIELD128,
    PrimeField,
    double_values,
    evaluation_domain,
    extend_values,
    next_power_of_two,
)
from fleetcount_protocol.vdaf.flp import Circuit, Flp, GadgetCall, Mul, ParallelMul, QueryPointError
from hypothesis import given
from hypothesis import strategies as st

TINY = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)


CUBE = PolyEval(coefficients=(0, 2, -3, 1))


@dataclass(frozen=True)
class NoneOneTwo:
    """A test circuit with a gadget of degree three: m (m - 1) (m - 2), called for each of `length` elements."""

    length: int
    field: PrimeField = FIELD64
    name: str = "NoneOneTwo"
    gadget: PolyEval = CUBE
    joint_rand_length: int = 0

    @property
    def gadget_calls(self) -> int:
        return self.length

    measurement_length = output_length = eval_output_length = gadget_calls

    def encode(self, measurement: list[int]) -> list[int]:
        return measurement

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        return list(measurement)

    def decode(self, output: Sequence[int], measurements: int) -> list[int]:
        return list(output)

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        return [call((entry,)) for entry in measurement]


VALID: list[tuple[Circuit, object]] = [
    (Count(), 1),
    (Count(), 0),
    (Sum(max_measurement=1), 1),
    (Sum(max_measurement=100), 99),
    (SumVec(length=3, max_measurement=9, chunk_length=4), [0, 9, 5]),
    (SumVec(field=FIELD64, length=13, max_measurement=1, chunk_length=4), [1, 0] * 6 + [1]),
    (Histogram(length=7, chunk_length=3), 6),
    (MultihotCountVec(length=6, max_weight=3, chunk_length=2), [True, False, True, False, False, True]),
    (TwoRoundOneHot(length=6), (0, 5)),
    (TwoRoundOneHot(length=6), (3, 3)),
    (OneHot(length=6), 0),
    (Multihot(length=6, most=4, chunk_length=3), [1, 0, 1, 1, 0, 0]),
    (Multihot(length=6, most=1, chunk_length=3), [0] * 6),
    (NoneOneTwo(1), [2]),
    (NoneOneTwo(2), [0, 1]),
    (NoneOneTwo(5), [0, 1, 2, 2, 1]),
    (NoneOneTwo(9), [0, 1, 2] * 3),
]
CASES = pytest.mark.parametrize(("circuit", "measurement"), VALID, ids=lambda value: getattr(value, "name", None))


def polynomial_at(coefficients: Sequence[int], point: int, modulus: int) -> int:
    return sum(c * pow(point, i, modulus) for i, c in enumerate(coefficients)) % modulus


def split(field: PrimeField, vector: Sequence[int], shares: int, random: Random) -> list[list[int]]:
    parts = [[random.randrange(field.modulus) for _ in vector] for _ in range(shares - 1)]
    return [field.subtract_vectors(vector, field.add_vectors(parts, len(vector))), *parts]


def verifier_of(
    circuit: Circuit, encoded: Sequence[int], proof: Sequence[int], joint: Sequence[int], shares: int, random: Random
) -> list[int]:
    field, flp = circuit.field, Flp(circuit)
    query = [random.randrange(field.modulus) for _ in range(flp.query_rand_length)]
    inverse = field.inverse(shares)
    parts = zip(split(field, encoded, shares, random), split(field, proof, shares, random), strict=True)
    verifiers = [flp.query(share, proof_share, query, joint, inverse) for share, proof_share in parts]
    return field.add_vectors(verifiers, flp.verifier_length)


def randomness(circuit: Circuit, random: Random) -> tuple[list[int], list[int]]:
    flp, modulus = Flp(circuit), circuit.field.modulus
    prove = [random.randrange(modulus) for _ in range(flp.prove_rand_length)]
    return prove, [random.randrange(modulus) for _ in range(circuit.joint_rand_length)]


@CASES
@pytest.mark.parametrize("shares", [1, 2, 3, 17])
def test_a_valid_measurement_is_accepted(circuit: Circuit, measurement: object, shares: int) -> None:
    random = Random(shares)
    encoded = circuit.encode(measurement)
    prove, joint = randomness(circuit, random)
    proof = Flp(circuit).prove(encoded, prove, joint)

    verifier = verifier_of(circuit, encoded, proof, joint, shares, random)

    assert len(proof) == Flp(circuit).proof_length
    assert Flp(circuit).decide(verifier)


@CASES
def test_a_measurement_with_one_element_changed_is_refused(circuit: Circuit, measurement: object) -> None:
    random = Random(1)
    for place in range(circuit.measurement_length):
        encoded = circuit.encode(measurement)
        encoded[place] += 5
        prove, joint = randomness(circuit, random)
        proof = Flp(circuit).prove(encoded, prove, joint)

        assert not Flp(circuit).decide(verifier_of(circuit, encoded, proof, joint, 2, random))


@CASES
def test_a_proof_with_one_element_changed_is_refused(circuit: Circuit, measurement: object) -> None:
    random = Random(2)
    encoded = circuit.encode(measurement)
    prove, joint = randomness(circuit, random)
    proof = Flp(circuit).prove(encoded, prove, joint)
    for place in range(len(proof)):
        changed = [*proof]
        changed[place] = (changed[place] + 1) % circuit.field.modulus

        assert not Flp(circuit).decide(verifier_of(circuit, encoded, changed, joint, 2, random))


@CASES
def test_a_verifier_with_one_element_changed_is_refused(circuit: Circuit, measurement: object) -> None:
    random = Random(3)
    encoded = circuit.encode(measurement)
    prove, joint = randomness(circuit, random)
    flp = Flp(circuit)
    verifier = verifier_of(circuit, encoded, flp.prove(encoded, prove, joint), joint, 2, random)
    for place in range(len(verifier)):
        changed = [*verifier]
        changed[place] = (changed[place] + 1) % circuit.field.modulus

        assert not flp.decide(changed)


@pytest.mark.parametrize(
    "circuit", [TwoRoundOneHot(length=4), OneHot(length=4), Count(), Histogram(length=9, chunk_length=3)]
)
def test_a_query_point_on_the_wire_domain_aborts_and_only_there(circuit: Circuit) -> None:
    flp, field = Flp(circuit), circuit.field
    random = Random(4)
    prove, joint = randomness(circuit, random)
    encoded = [0] * circuit.measurement_length
    proof = flp.prove(encoded, prove, joint)
    weights = [1] * (flp.query_rand_length - 1)
    inside = evaluation_domain(field, flp.wire_length).nodes

    for point in inside:
        with pytest.raises(QueryPointError):
            flp.query(encoded, proof, [*weights, point], joint, 1)
    for point in (0, 2, evaluation_domain(field, 2 * flp.wire_length).nodes[1]):
        assert len(flp.query(encoded, proof, [*weights, point], joint, 1)) == flp.verifier_length


def test_the_gadget_polynomial_is_checked_at_nodes_outside_the_wire_domain_too() -> None:
    flp = Flp(TwoRoundOneHot(length=4))
    random = Random(5)
    encoded = flp.circuit.encode((0, 3))
    prove, joint = randomness(flp.circuit, random)
    proof = flp.prove(encoded, prove, joint)
    point = evaluation_domain(FIELD64, 8).nodes[3]

    verifier = flp.query(encoded, proof, [1, 2, 3, 4, 5, point], joint, 1)

    assert flp.decide(verifier)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 32])
@given(data=st.data())
def test_lagrange_coefficients_evaluate_any_polynomial_anywhere(size: int, data: st.DataObject) -> None:
    domain = evaluation_domain(TINY, size)
    coefficients = data.draw(st.lists(st.integers(0, 256), min_size=size, max_size=size))
    point = data.draw(st.integers(0, 256))
    values = [polynomial_at(coefficients, node, 257) for node in domain.nodes]

    result = TINY.inner_product(domain.lagrange_coefficients(point), values)

    assert result == polynomial_at(coefficients, point, 257)


@pytest.mark.parametrize("field", [TINY, FIELD64, FIELD128], ids=lambda field: field.name)
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 64])
def test_doubling_gives_the_values_on_the_larger_domain(field: PrimeField, size: int) -> None:
    random = Random(size)
    coefficients = [random.randrange(field.modulus) for _ in range(size)]
    values = [polynomial_at(coefficients, node, field.modulus) for node in evaluation_domain(field, size).nodes]

    doubled = double_values(field, values)

    nodes = evaluation_domain(field, 2 * size).nodes
    assert doubled == [polynomial_at(coefficients, node, field.modulus) for node in nodes]


@pytest.mark.parametrize("count", range(1, 18))
def test_extension_fills_the_domain_with_the_same_polynomial(count: int) -> None:
    random = Random(count)
    coefficients = [random.randrange(257) for _ in range(count)]
    nodes = evaluation_domain(TINY, next_power_of_two(count)).nodes
    values = [polynomial_at(coefficients, node, 257) for node in nodes]

    assert extend_values(TINY, values[:count]) == values


def test_a_domain_knows_its_nodes() -> None:
    domain = evaluation_domain(TINY, 16)

    assert {point for point in range(257) if domain.contains(point)} == set(domain.nodes)
    assert len(set(domain.nodes)) == 16


def test_vectors_of_the_wrong_length_are_refused() -> None:
    flp = Flp(TwoRoundOneHot(length=4))
    good = {"measurement": [0] * 8, "proof": [0] * 9, "query_rand": [2] * 6, "joint_rand": [1], "shares_inverse": 1}

    for name in ("measurement", "proof", "query_rand", "joint_rand"):
        for wrong in ([*good[name], 0], good[name][:-1]):
            with pytest.raises(UsageError, match="elements"):
                flp.query(**{**good, name: wrong})
    with pytest.raises(UsageError, match="prover randomness"):
        flp.prove([0] * 8, [0], [1])
    with pytest.raises(UsageError, match="verifier"):
        flp.decide([0] * 3)


def test_gadgets_compute_what_they_say() -> None:
    assert Mul().evaluate(TINY, (100, 200)) == 100 * 200 % 257
    assert ParallelMul(count=2).evaluate(TINY, (100, 200, 3, 4)) == (100 * 200 + 12) % 257
    assert PolyEval(coefficients=(5, -1, 2)).evaluate(TINY, (100,)) == (5 - 100 + 2 * 100**2) % 257


@pytest.mark.parametrize("coefficients", [(), (1,), (1, 0), (0, 1, 0)])
def test_a_polynomial_without_a_leading_term_is_no_gadget(coefficients: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        PolyEval(coefficients=coefficients)
