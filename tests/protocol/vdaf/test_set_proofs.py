"""The device's short way to the proof of its own set: the bytes of the general one, and no other work."""

from itertools import product
from random import Random
from typing import Any

import pytest
from fleetcount_protocol.vdaf import set_proofs
from fleetcount_protocol.vdaf.circuits import Multihot
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField
from fleetcount_protocol.vdaf.flp import Flp
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_multihot
from fleetcount_protocol.vdaf.set_proofs import SetProver, set_prover

CTX, NONCE = b"FCT1" + bytes(32), bytes(16)
F257 = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)


def elements(field: PrimeField, count: int, random: Random) -> list[int]:
    return [random.randrange(field.modulus) for _ in range(count)]


def set_of(length: int, ones: int, random: Random) -> list[int]:
    chosen = set(random.sample(range(length), ones))
    return [int(value in chosen) for value in range(length)]


def prover_of(circuit: Multihot, encoded: list[int]) -> SetProver:
    prover = set_prover(circuit, encoded)
    assert prover is not None
    return prover


def agree(circuit: Multihot, encoded: list[int], random: Random) -> bool:
    """Whether both ways to the proof give the same elements, for one choice of the randomness."""
    flp = Flp(circuit)
    prove, joint = elements(circuit.field, flp.prove_rand_length, random), elements(circuit.field, 1, random)
    return prover_of(circuit, encoded).prove(prove, joint) == flp.prove(encoded, prove, joint)


@pytest.mark.parametrize("field", [FIELD64, F257], ids=lambda field: field.name)
@pytest.mark.parametrize("chunk_length", [1, 2, 3, 20])
@pytest.mark.parametrize(("length", "most"), [(1, 1), (4, 1), (4, 2), (5, 3), (5, 5)])
def test_every_set_has_the_proof_of_the_general_way(
    field: PrimeField, chunk_length: int, length: int, most: int
) -> None:
    circuit = Multihot(field=field, length=length, most=most, chunk_length=chunk_length)
    random = Random(length)
    sets = [list(bits) for bits in product((0, 1), repeat=length) if sum(bits) <= most]
    assert all(agree(circuit, circuit.encode(bits), random) for bits in sets)


@pytest.mark.parametrize(("length", "most"), [(64, 3), (64, 64), (257, 8), (500, 20), (1024, 3)])
def test_sets_of_windows_have_the_proof_of_the_general_way(length: int, most: int) -> None:
    random, circuit = Random(most), prio3_multihot(length, most, 2).circuit
    assert isinstance(circuit, Multihot)
    for ones in (0, 1, most):
        assert agree(circuit, circuit.encode(set_of(length, ones, random)), random)


def test_values_that_share_a_place_have_the_proof_of_the_general_way() -> None:
    # Neighbours stand in one place and in different calls, values a number of calls apart in one call.
    circuit = prio3_multihot(64, 3, 2).circuit
    assert isinstance(circuit, Multihot)
    for chosen in ({0, 1, 2}, {0, 7, 14}, {61, 62, 63}, {0}, {63}):
        assert agree(circuit, circuit.encode([int(value in chosen) for value in range(64)]), Random(1))


@pytest.mark.parametrize(
    "encoded",
    [
        [1, 1, 1, 0, 1, 1],  # three values of at most two
        [2, 0, 0, 0, 1, 0],  # no bit
        [FIELD64.modulus - 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],  # a rest without "it has any"
    ],
)
def test_what_is_no_set_is_left_to_the_general_way(encoded: list[int]) -> None:
    assert set_prover(Multihot(length=4, most=2, chunk_length=2), encoded) is None


def test_a_wrong_number_of_values_is_no_part_of_the_gadget_and_has_the_same_proof() -> None:
    circuit = Multihot(length=4, most=2, chunk_length=2)
    for encoded in ([1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]):
        assert agree(circuit, encoded, Random(2))


def sharded(prio3: Prio3, measurement: list[int]) -> tuple[bytes, tuple[bytes, ...]]:
    return prio3.shard(CTX, measurement, NONCE, Random(0).randbytes(prio3.rand_size))


@pytest.mark.parametrize(("length", "most"), [(6, 6), (64, 3), (100, 8)])
def test_a_report_of_a_set_is_made_the_short_way_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, length: int, most: int
) -> None:
    prio3, measurement = prio3_multihot(length, most, 2), set_of(length, most - 1, Random(length))
    with monkeypatch.context() as general:
        general.setattr(set_proofs, "_MOST_PAIRS", 0)
        expected = sharded(prio3, measurement)

    def refuse(*_: Any) -> list[int]:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(Flp, "prove", refuse)
    assert sharded(prio3, measurement) == expected


def test_a_set_of_most_of_many_values_takes_the_general_way() -> None:
    circuit = prio3_multihot(400, 400, 2).circuit
    assert isinstance(circuit, Multihot)
    assert set_prover(circuit, circuit.encode([1] * 400)) is None


def test_an_empty_set_takes_as_many_steps_as_a_full_one() -> None:
    circuit = prio3_multihot(64, 8, 2).circuit
    assert isinstance(circuit, Multihot)
    provers = [prover_of(circuit, circuit.encode(set_of(64, ones, Random(3)))) for ones in (0, 1, 8)]
    assert len({len(prover.bits) for prover in provers}) == 1


def test_a_prover_does_not_show_its_set() -> None:
    shown = repr(prover_of(Multihot(length=4, most=2, chunk_length=2), [0, 1, 0, 0, 1, 0]))
    assert "bits" not in shown
