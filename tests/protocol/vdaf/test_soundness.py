"""Soundness of fleetcount's own circuits: exhaustive in tiny fields, and against a prover that cheats in its proof.

The lemma and its proof sketch are in `fleetcount_protocol.vdaf.circuits`.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from fleetcount_protocol.errors import DecodeError, VerificationFailed
from fleetcount_protocol.vdaf.circuits import Multihot, OneHot, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField, evaluation_domain
from fleetcount_protocol.vdaf.flp import Circuit, Flp
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_multihot, prio3_one_hot, prio3_two_round

from tests.support.nightly import NIGHTLY

F5 = PrimeField(name="F5", modulus=5, encoded_size=1, generator=2, two_adicity=2)
F7 = PrimeField(name="F7", modulus=7, encoded_size=1, generator=6, two_adicity=1)
F11 = PrimeField(name="F11", modulus=11, encoded_size=1, generator=10, two_adicity=1)
F257 = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)


def name_of(value: object) -> str:
    return value.name if isinstance(value, PrimeField) else str(value)


def accepting_rhos(circuit: Circuit, encoded: Sequence[int]) -> int:
    """Count the joint randomness for which every output of the circuit is zero."""
    field = circuit.field

    def call(inputs: Sequence[int]) -> int:
        return circuit.gadget.evaluate(field, inputs)

    return sum(not any(circuit.evaluate(encoded, [rho], 1, call)) for rho in range(field.modulus))


def honest_pairs(length: int) -> set[tuple[int, ...]]:
    circuit = TwoRoundOneHot(length=length)
    pairs = [(0, v) for v in range(length)] + [(v, v) for v in range(1, length)]
    return {tuple(circuit.encode(pair)) for pair in pairs}


@pytest.mark.parametrize(
    ("field", "length"), [(F5, 2), (F5, 3), (F7, 2), pytest.param(F11, 2, marks=pytest.mark.nightly)], ids=name_of
)
def test_exactly_the_honest_pairs_pass_for_every_rho(field: PrimeField, length: int) -> None:
    circuit = TwoRoundOneHot(field=field, length=length)
    honest = honest_pairs(length)
    passing: set[tuple[int, ...]] = set()
    worst = 0
    for encoded in product(range(field.modulus), repeat=2 * length):
        rhos = accepting_rhos(circuit, encoded)
        if rhos == field.modulus:
            passing.add(encoded)
        if encoded not in honest:
            worst = max(worst, rhos)

    assert passing == honest
    assert len(passing) == 2 * length - 1
    assert worst <= 2 * (length - 1)


@pytest.mark.parametrize(("field", "length"), [(F7, 3), pytest.param(F11, 3, marks=pytest.mark.nightly)], ids=name_of)
def test_exactly_the_honest_pairs_pass_among_those_with_correct_sums(field: PrimeField, length: int) -> None:
    # A wrong sum never passes, whatever rho: that check has no randomness. So only these pairs remain to be tried.
    circuit = TwoRoundOneHot(field=field, length=length)
    right = [vector for vector in product(range(field.modulus), repeat=length) if sum(vector) % field.modulus == 1]
    # A vector that fails its own quadratic check for all but d values of rho fails in every pair for as many.
    single = OneHot(field=field, length=length)
    own = {vector: accepting_rhos(single, vector) for vector in right}
    likely = [vector for vector in right if own[vector] > 0]
    worst = max(count for count in own.values() if count < field.modulus)
    passing: set[tuple[int, ...]] = set()
    for one, two in product(likely, repeat=2):
        rhos = accepting_rhos(circuit, (*one, *two))
        if rhos == field.modulus:
            passing.add((*one, *two))
        else:
            worst = max(worst, rhos)

    assert passing == honest_pairs(length)
    assert worst <= 2 * (length - 1)


@pytest.mark.parametrize(("field", "length"), [(F5, 2), (F5, 3), (F7, 3), (F11, 3)], ids=name_of)
def test_exactly_the_one_hot_vectors_pass_for_every_rho(field: PrimeField, length: int) -> None:
    circuit = OneHot(field=field, length=length)
    passing: set[tuple[int, ...]] = set()
    worst = 0
    for encoded in product(range(field.modulus), repeat=length):
        rhos = accepting_rhos(circuit, encoded)
        if rhos == field.modulus:
            passing.add(encoded)
        else:
            worst = max(worst, rhos)

    assert passing == {tuple(circuit.encode(v)) for v in range(length)}
    assert worst <= 2 * (length - 1)


@pytest.mark.parametrize(("field", "length", "most"), [(F5, 2, 1), (F5, 3, 1), (F7, 2, 2), (F7, 3, 2)], ids=name_of)
def test_exactly_the_sets_pass_for_every_rho(field: PrimeField, length: int, most: int) -> None:
    checked = Multihot(length=length, most=most, chunk_length=1).checked_length
    circuit = Multihot(field=field, length=length, most=most, chunk_length=checked)
    sets = [bits for bits in product((0, 1), repeat=length) if sum(bits) <= most]
    passing: set[tuple[int, ...]] = set()
    worst = 0
    for encoded in product(range(field.modulus), repeat=circuit.measurement_length):
        rhos = accepting_rhos(circuit, encoded)
        if rhos == field.modulus:
            passing.add(encoded)
        else:
            worst = max(worst, rhos)

    assert passing == {tuple(circuit.encode(bits)) for bits in sets}
    assert {tuple(circuit.truncate(encoded)) for encoded in passing} == {(*bits, int(any(bits))) for bits in sets}
    assert worst <= checked


class _WeightOfNoneIsOne(TwoRoundOneHot):
    """A planted mistake: w_0 = 1, the weight that rho**0 would give."""

    def evaluate(self, measurement, joint_rand, shares_inverse, call):  # type: ignore[no-untyped-def]
        modulus, rho = self.field.modulus, joint_rand[0]
        weights = [pow(rho, v, modulus) for v in range(self.length)]
        one, two = measurement[: self.length], measurement[self.length :]
        (x1, y1), (x2, y2) = (
            (
                sum(w * r for w, r in zip(weights, vector, strict=True)) % modulus,
                sum(w * w * r for w, r in zip(weights, vector, strict=True)) % modulus,
            )
            for vector in (one, two)
        )
        outputs = (call((x1, x1)) - y1, call((x2, x2)) - y2, x1 * x1 - call((x1, x2)))
        return [
            *(output % modulus for output in outputs),
            *((sum(vector) - shares_inverse) % modulus for vector in (one, two)),
        ]


def test_the_exhaustive_search_sees_a_wrong_weight() -> None:
    circuit = _WeightOfNoneIsOne(field=F5, length=3)
    passing = {
        encoded
        for encoded in product(range(5), repeat=6)
        if sum(encoded[:3]) % 5 == sum(encoded[3:]) % 5 == 1 and accepting_rhos(circuit, encoded) == 5
    }

    assert passing != honest_pairs(3)


def accepted_points(
    circuit: Circuit, encoded: Sequence[int], proof: Sequence[int], rho: int, points: Sequence[int]
) -> int:
    """Count the query points at which this proof passes, for one aggregator and fixed weights of the outputs."""
    flp = Flp(circuit)
    return sum(flp.decide(flp.query(encoded, proof, [1, 17, 101, 200, 33, point], [rho], 1)) for point in points)


WRONG_SUMS = [[0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 2]]
RIGHT_SUMS = [
    [0, 1, 0, 0, 0, 1],
    [0, 1, 0, 1, 0, 0],
    [1, 0, 0, 0, 2, 256],
    [2, 256, 0, 0, 0, 1],
    [1, 0, 0, 0, 129, 129],
    [1, 0, 0, 256, 1, 1],
]


@pytest.mark.parametrize("encoded", RIGHT_SUMS + WRONG_SUMS, ids=str)
def test_an_honest_proof_of_an_invalid_pair_passes_for_few_rhos(encoded: list[int]) -> None:
    circuit = TwoRoundOneHot(field=F257, length=3)
    passed = 0
    for rho in range(257):
        proof = Flp(circuit).prove(encoded, [5, 9], [rho])
        # With fixed weights the reduced output is one polynomial of degree 2(L-1) in rho, whatever the query point.
        passed += accepted_points(circuit, encoded, proof, rho, [2, 3, 200]) > 0

    assert passed <= 2 * (circuit.length - 1)


@pytest.mark.parametrize("encoded", RIGHT_SUMS, ids=str)
@pytest.mark.parametrize("rho", [2, 77, 200])
def test_a_proof_with_forged_gadget_outputs_passes_at_most_six_query_points(encoded: list[int], rho: int) -> None:
    # The prover writes the outputs the circuit wants to see into the gadget polynomial. Its difference to the product
    # of the wire polynomials has degree 2(P-1) = 6, so at most six of the query points hide it.
    circuit = TwoRoundOneHot(field=F257, length=3)
    flp = Flp(circuit)
    domain = evaluation_domain(F257, flp.wire_length)
    points = [point for point in range(257) if not domain.contains(point)]
    y1, y2, *_ = circuit.evaluate(encoded, [rho], 1, lambda _: 0)
    proof = flp.prove(encoded, [5, 9], [rho])
    forged = [*proof]
    forged[4], forged[6], forged[8] = -y1 % 257, -y2 % 257, -y1 % 257
    assert forged != proof

    passed = accepted_points(circuit, encoded, forged, rho, points)

    assert passed <= 2 * (flp.wire_length - 1)


INVALID_REPORTS = [
    ("both", [0, 1, 0, 0, 0, 0, 0, 1]),
    ("sum two", [1, 0, 0, 0, 0, 1, 1, 0]),
    ("sum zero", [1, 0, 0, 0, 0, 0, 0, 0]),
    ("down", [0, 1, 0, 0, 1, 0, 0, 0]),
    ("minus one", [2, FIELD64.modulus - 1, 0, 0, 0, 0, 1, 0]),
    ("heavy", [1, 0, 0, 0, FIELD64.modulus - 6, 0, 7, 0]),
    ("half", [1, 0, 0, 0, 0, (FIELD64.modulus + 1) // 2, (FIELD64.modulus + 1) // 2, 0]),
]


def refused(prio3: Prio3, encoded: Sequence[int], seed: int) -> bool:
    nonce, ctx, key = bytes([seed] * 16), b"ctx", bytes(32)
    public_share, shares = prio3.shard_encoded(ctx, encoded, nonce, bytes([seed + 1]) * prio3.rand_size)
    steps = [prio3.verify_init(key, ctx, j, nonce, public_share, share) for j, share in enumerate(shares)]
    try:
        message = prio3.combine_verifier_shares(ctx, [share for _, share in steps])
        for state, _ in steps:
            prio3.verify_next(ctx, state, message)
    except (VerificationFailed, DecodeError):
        return True
    return False


@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize(("kind", "encoded"), INVALID_REPORTS)
def test_every_kind_of_invalid_pair_is_refused_by_the_whole_protocol(
    kind: str, encoded: list[int], shares: int
) -> None:
    prio3 = prio3_two_round(4, shares)

    assert all(refused(prio3, encoded, seed) for seed in range(5)), kind


@pytest.mark.parametrize("encoded", [[0, 1, 1], [0, 0, 0], [0, 3, 0], [2, FIELD64.modulus - 1, 0], [1, 1, 1]])
def test_every_kind_of_invalid_vector_is_refused_by_the_whole_protocol(encoded: list[int]) -> None:
    assert refused(prio3_one_hot(3, 2), encoded, 1)


@pytest.mark.parametrize(
    "encoded",
    [
        [1, 1, 1, 1, 1, 1, 0],  # three values of two
        [1, 0, 0, 0, 0, 1, 0],  # a value, and "it has none"
        [1, 1, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 0, 0],  # no value, and "it has some"
        [0, 0, 0, 0, 1, FIELD64.modulus - 1, 0],
        [2, 0, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 1, 1, 0],
    ],
    ids=str,
)
def test_every_kind_of_invalid_set_is_refused_by_the_whole_protocol(encoded: list[int]) -> None:
    prio3 = prio3_multihot(4, 3, 2)

    assert prio3.circuit.encode([1, 1, 0, 0]) == [1, 1, 0, 0, 1, 1, 0]
    assert refused(prio3, encoded, 1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 64, 500, 1000, 2000, 4096])
def test_a_set_is_as_hard_to_forge_as_a_count_of_as_many_values(length: int) -> None:
    modulus = FIELD64.modulus
    for most in {1, min(3, length), length}:
        circuit = prio3_multihot(length, most, 2).circuit
        assert isinstance(circuit, Multihot)
        nodes = Flp(circuit).wire_length
        bound = Fraction(circuit.checked_length + 1 + 2 * (nodes - 1), modulus - nodes)
        assert bound**3 < Fraction(1, 2**150)
        assert length < 4 or bound <= Fraction(2 * length + 7, modulus - 4)


def test_more_proofs_make_a_lucky_pass_rarer() -> None:
    # In a field of 257 elements a lie passes sometimes; three proofs must make that about the third power of one.
    lie = [1, 0, 0, 0, 1, 1, 0, 256]
    passed: Counter[int] = Counter()
    reports = 1200 if NIGHTLY else 400
    for proofs in (1, 3):
        prio3 = Prio3(circuit=TwoRoundOneHot(field=F257, length=4), algorithm_id=0xFFFF1001, shares=2, proofs=proofs)
        for seed in range(reports):
            nonce = seed.to_bytes(16, "big")
            public_share, shares = prio3.shard_encoded(b"", lie, nonce, nonce * (prio3.rand_size // 16))
            try:
                steps = [
                    prio3.verify_init(bytes(32), b"", j, nonce, public_share, share) for j, share in enumerate(shares)
                ]
                prio3.combine_verifier_shares(b"", [share for _, share in steps])
            except VerificationFailed:
                continue
            passed[proofs] += 1

    # Bound for one proof: (2 * 3 + 7) / 257, of 1,200 reports 60; for three, 0.16.
    assert 0 < passed[1] <= reports // 20
    assert passed[3] <= 2
