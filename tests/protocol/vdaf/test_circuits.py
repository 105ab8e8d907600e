"""Circuits: encodings, outputs, and the measurements they do not admit."""

from itertools import product

import pytest
from fleetcount_evidence.replay.draft_circuits import Count, Histogram, MultihotCountVec, Sum
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import MAX_LENGTH, Multihot, OneHot, SumVec, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField
from fleetcount_protocol.vdaf.flp import Circuit

TINY = PrimeField(name="F17", modulus=17, encoded_size=1, generator=3, two_adicity=4)


@pytest.mark.parametrize("maximum", [1, 2, 3, 4, 5, 7, 8, 100, 255, 256])
def test_the_range_encoding_reaches_exactly_the_numbers_up_to_the_maximum(maximum: int) -> None:
    circuit = Sum(max_measurement=maximum)

    values = [circuit.truncate(circuit.encode(value))[0] for value in range(maximum + 1)]

    assert values == list(range(maximum + 1))
    if circuit.measurement_length <= 8:
        reached = {circuit.truncate(bits)[0] for bits in product((0, 1), repeat=circuit.measurement_length)}
        assert reached == set(range(maximum + 1))


def test_sums_of_vectors_are_place_by_place() -> None:
    circuit = SumVec(length=3, max_measurement=10, chunk_length=2)

    assert circuit.measurement_length == 12
    assert circuit.truncate(circuit.encode([0, 10, 7])) == [0, 10, 7]
    assert circuit.decode([1, 2, 3], 1) == [1, 2, 3]


def test_a_vector_of_bits_is_its_own_encoding() -> None:
    circuit = SumVec(field=FIELD64, length=4, max_measurement=1, chunk_length=2)

    assert circuit.encode([1, 0, 0, 1]) == circuit.truncate([1, 0, 0, 1]) == [1, 0, 0, 1]


def test_multihot_vectors_carry_their_weight() -> None:
    circuit = MultihotCountVec(length=4, max_weight=2, chunk_length=2)

    assert circuit.encode([False, True, True, False]) == [0, 1, 1, 0, 1, 1]
    assert circuit.truncate([0, 1, 1, 0, 1, 1]) == [0, 1, 1, 0]


def test_a_set_says_whether_it_has_any_value_and_how_many_more() -> None:
    circuit = Multihot(length=4, most=3, chunk_length=2)

    assert circuit.encode([0, 0, 0, 0]) == [0, 0, 0, 0, 0, 0, 0]
    assert circuit.encode([0, 1, 0, 0]) == [0, 1, 0, 0, 1, 0, 0]
    assert circuit.encode([0, 1, 1, 1]) == [0, 1, 1, 1, 1, 1, 1]
    assert circuit.truncate(circuit.encode([0, 1, 1, 0])) == [0, 1, 1, 0, 1]
    assert Multihot(length=4, most=1, chunk_length=2).encode([0, 0, 1, 0]) == [0, 0, 1, 0, 1]


def test_too_many_ones_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="more than 2 ones"):
        MultihotCountVec(length=4, max_weight=2, chunk_length=2).encode([True] * 4)


def test_the_output_of_two_rounds_is_the_difference_without_the_place_of_none() -> None:
    circuit = TwoRoundOneHot(length=4)

    assert circuit.encode((0, 3)) == [1, 0, 0, 0, 0, 0, 0, 1]
    assert circuit.truncate(circuit.encode((0, 3))) == [0, 0, 1]
    assert circuit.truncate(circuit.encode((2, 2))) == [0, 0, 0]
    assert circuit.truncate([9, 1, 2, 3, 7, 3, 2, 0]) == [2, 0, FIELD64.modulus - 3]


def test_exactly_the_honest_pairs_have_an_encoding() -> None:
    circuit = TwoRoundOneHot(length=5)
    accepted: list[tuple[int, int]] = []
    for pair in product(range(-1, 7), repeat=2):
        try:
            circuit.encode(pair)
        except UsageError:
            continue
        accepted.append(pair)

    assert accepted == sorted({(0, v) for v in range(5)} | {(v, v) for v in range(5)})
    assert len(accepted) == 2 * 5 - 1


def test_one_hot_outputs_are_the_vector_with_none_included() -> None:
    circuit = OneHot(length=3)

    assert circuit.truncate(circuit.encode(0)) == [1, 0, 0]
    assert circuit.output_length == 3


@pytest.mark.parametrize(
    ("circuit", "measurement"),
    [
        (Count(), 2),
        (Count(), -1),
        (Sum(max_measurement=100), 101),
        (Sum(max_measurement=100), -1),
        (SumVec(length=2, max_measurement=3, chunk_length=1), [1]),
        (SumVec(length=2, max_measurement=3, chunk_length=1), [1, 2, 3]),
        (SumVec(length=2, max_measurement=3, chunk_length=1), [1, 4]),
        (Histogram(length=4, chunk_length=2), 4),
        (Histogram(length=4, chunk_length=2), -1),
        (MultihotCountVec(length=3, max_weight=1, chunk_length=2), [True, True, False]),
        (MultihotCountVec(length=3, max_weight=1, chunk_length=2), [2, 0, 0]),
        (MultihotCountVec(length=3, max_weight=1, chunk_length=2), [True]),
        (TwoRoundOneHot(length=4), (2, 3)),
        (TwoRoundOneHot(length=4), (2, 0)),
        (TwoRoundOneHot(length=4), (0,)),
        (TwoRoundOneHot(length=4), (0, 1, 1)),
        (Multihot(length=3, most=1, chunk_length=2), [1, 1, 0]),
        (Multihot(length=3, most=2, chunk_length=2), [1, 1, 1]),
        (Multihot(length=3, most=2, chunk_length=2), [2, 0, 0]),
        (Multihot(length=3, most=2, chunk_length=2), [1]),
        (OneHot(length=4), 4),
        (OneHot(length=4), -1),
    ],
)
def test_a_measurement_outside_the_circuit_is_refused(circuit: Circuit, measurement: object) -> None:
    with pytest.raises(UsageError):
        circuit.encode(measurement)


def test_a_refused_measurement_is_not_named() -> None:
    with pytest.raises(UsageError) as caught:
        OneHot(length=4).encode(31337)

    assert "31337" not in str(caught.value)
    assert "0..3" in str(caught.value)


@pytest.mark.parametrize(
    ("circuit", "parameters"),
    [
        (Sum, {"max_measurement": 0}),
        (Sum, {"max_measurement": 2**63}),
        (Sum, {"max_measurement": 9, "field": TINY}),
        (Sum, {"max_measurement": FIELD64.modulus}),
        (SumVec, {"length": 0, "max_measurement": 1, "chunk_length": 1}),
        (SumVec, {"length": 1, "max_measurement": 0, "chunk_length": 1}),
        (SumVec, {"length": 1, "max_measurement": 1, "chunk_length": 0}),
        (SumVec, {"length": MAX_LENGTH + 1, "max_measurement": 1, "chunk_length": 1}),
        (SumVec, {"length": 1, "max_measurement": 2**127, "chunk_length": 1}),
        (Histogram, {"length": 0, "chunk_length": 1}),
        (Histogram, {"length": 1, "chunk_length": 0}),
        (MultihotCountVec, {"length": 3, "max_weight": 4, "chunk_length": 1}),
        (MultihotCountVec, {"length": 3, "max_weight": 0, "chunk_length": 1}),
        (TwoRoundOneHot, {"length": 1}),
        (TwoRoundOneHot, {"length": MAX_LENGTH + 1}),
        (Multihot, {"length": 3, "most": 4, "chunk_length": 1}),
        (Multihot, {"length": 3, "most": 0, "chunk_length": 1}),
        (OneHot, {"length": 1}),
    ],
)
def test_parameters_outside_their_ranges_make_no_circuit(circuit: type, parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        circuit(**parameters)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 9, 10, 16, 17, 50])
def test_the_power_sums_by_blocks_are_the_power_sums(length: int) -> None:
    circuit = TwoRoundOneHot(length=length)
    modulus, rho = FIELD64.modulus, 123456789123456789
    one = [(3 * v + 5) ** 9 % modulus for v in range(length)]
    two = [(7 * v + 1) ** 11 % modulus for v in range(length)]
    weights = [0, *(pow(rho, v, modulus) for v in range(1, length))]
    calls: list[tuple[int, ...]] = []

    def record(inputs: object) -> int:
        calls.append(tuple(inputs))
        return 0

    outputs = circuit.evaluate([*one, *two], [rho], 3, record)

    x1, x2 = (sum(w * r for w, r in zip(weights, vector, strict=True)) % modulus for vector in (one, two))
    y1, y2 = (sum(w * w * r for w, r in zip(weights, vector, strict=True)) % modulus for vector in (one, two))
    assert calls == [(x1, x1), (x2, x2), (x1, x2)]
    assert outputs == [-y1 % modulus, -y2 % modulus, 0, (sum(one) - 3) % modulus, (sum(two) - 3) % modulus]
