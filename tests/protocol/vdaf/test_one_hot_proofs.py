"""The device's short way to the proof of its one-hot vectors: the bytes of the general one, and no other work."""

from itertools import product
from random import Random
from typing import Any

import pytest
from fleetcount_protocol.vdaf import prio3 as prio3_module
from fleetcount_protocol.vdaf.circuits import OneHot, PowerSum, TwoRoundOneHot, unit_vector
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField
from fleetcount_protocol.vdaf.flp import Flp
from fleetcount_protocol.vdaf.one_hot_proofs import one_hot_proof, positions_of
from fleetcount_protocol.vdaf.prio3 import prio3_one_hot, prio3_two_round

F257 = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)
LENGTHS = [2, 3, 5, 73]


def agree(circuit: OneHot | TwoRoundOneHot, encoded: list[int], random: Random) -> bool:
    """Whether both ways to the proof give the same elements, for one choice of the randomness."""
    modulus = circuit.field.modulus
    prove, joint = [random.randrange(modulus) for _ in range(2)], [random.randrange(modulus)]
    short = one_hot_proof(circuit, positions_of(circuit, encoded), prove, joint)
    return short == Flp(circuit).prove(encoded, prove, joint)


@pytest.mark.parametrize("field", [FIELD64, F257], ids=lambda field: field.name)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_pair_has_the_proof_of_the_general_way_also_one_that_is_not_valid(field: PrimeField, length: int) -> None:
    circuit, random = TwoRoundOneHot(field=field, length=length), Random(length)
    places = range(length) if length < 10 else (0, 1, 8, 9, 10, 71, 72)
    for one, two in product(places, repeat=2):
        assert agree(circuit, unit_vector(length, one) + unit_vector(length, two), random)


@pytest.mark.parametrize("field", [FIELD64, F257], ids=lambda field: field.name)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_position_has_the_proof_of_the_general_way(field: PrimeField, length: int) -> None:
    circuit, random = OneHot(field=field, length=length), Random(length)
    assert all(agree(circuit, circuit.encode(position), random) for position in range(length))


@pytest.mark.parametrize("rho", [0, 1, 2, FIELD64.modulus - 1])
def test_the_weight_of_a_position_is_the_forms_value_there(rho: int) -> None:
    form = PowerSum(FIELD64, rho, 20)
    assert [form.of_unit(place) for place in range(20)] == [form.of(unit_vector(20, place)) for place in range(20)]


@pytest.mark.parametrize(
    "encoded", [[0, 0, 0, 1, 0, 0], [1, 1, 0, 1, 0, 0], [2, 0, 0, 1, 0, 0], [FIELD64.modulus - 1, 1, 1, 1, 0, 0]]
)
def test_what_is_not_one_hot_is_left_to_the_general_way(encoded: list[int]) -> None:
    assert positions_of(TwoRoundOneHot(length=3), encoded) == []
    assert positions_of(OneHot(length=3), encoded[:3]) == []


@pytest.mark.parametrize(
    ("prio3", "measurement"),
    [(prio3_two_round(73, 2), (0, 40)), (prio3_two_round(5, 3), (4, 4)), (prio3_one_hot(9, 2), 8)],
)
def test_a_report_is_made_the_short_way_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, prio3: prio3_module.Prio3, measurement: Any
) -> None:
    def sharded() -> tuple[bytes, tuple[bytes, ...]]:
        return prio3.shard(bytes(36), measurement, bytes(16), Random(0).randbytes(prio3.rand_size))

    with monkeypatch.context() as general:
        general.setattr(prio3_module, "positions_of", lambda *_: [])
        expected = sharded()

    def refuse(*_: Any) -> list[int]:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(Flp, "prove", refuse)
    assert sharded() == expected
