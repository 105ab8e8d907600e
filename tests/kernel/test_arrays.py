"""The verifier of NumPy: its arithmetic, its parts, and what it leaves to the scalar one; its bytes: test_verifier."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fleetcount_kernel import arrays
from fleetcount_kernel.arrays import WORTH_ARRAYS, ArrayBatchVerifier
from fleetcount_kernel.columns import Column
from fleetcount_kernel.proofs import VERIFIED, ProofBatch, ScalarBatchVerifier, VerifiedBatch
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.vdaf.field import FIELD64, ByteStream, XofTurboShake128
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_bits, prio3_multihot, prio3_one_hot, prio3_two_round

from tests.kernel.test_verifier import honest, name, setting, shard

P = FIELD64.modulus
EDGES = [0, 1, 2, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**63, P // 2, P - 2**32, P - 2, P - 1]


def column(numbers: list[int]) -> Column:
    return Column(np.array(numbers, dtype=np.uint64))


def numbers(of: Column) -> list[int]:
    return [int(word) for word in of.words]


def test_columns_compute_as_python_does_at_every_pair_of_edges() -> None:
    pairs = list(product(EDGES, EDGES))
    left, right = column([a for a, _ in pairs]), column([b for _, b in pairs])

    assert numbers((left + right) % P) == [(a + b) % P for a, b in pairs]
    assert numbers((left - right) % P) == [(a - b) % P for a, b in pairs]
    assert numbers(left * right % P) == [a * b % P for a, b in pairs]


@pytest.mark.parametrize("number", [-P, -1, 0, 1, 2**32, P - 1, P, P << 64])
def test_columns_compute_with_any_integer(number: int) -> None:
    given = column(EDGES)

    assert numbers(given + number) == numbers(number + given) == [(a + number) % P for a in EDGES]
    assert numbers(given - number) == [(a - number) % P for a in EDGES]
    assert numbers(number - given) == [(number - a) % P for a in EDGES]
    assert numbers(given * number) == numbers(number * given) == [a * number % P for a in EDGES]


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 12, 64])
def test_columns_have_powers(exponent: int) -> None:
    assert numbers(pow(column(EDGES), exponent, P)) == [pow(a, exponent, P) for a in EDGES]


def test_a_column_equals_a_number_where_all_elements_do() -> None:
    assert column([1, 1]) == 1
    assert column([1, 2]) != 1


def test_an_operation_leaves_its_columns_as_they_are() -> None:
    left, right = column(EDGES), column(EDGES[::-1])

    assert left * right != left + right - left
    assert (numbers(left), numbers(right)) == (EDGES, EDGES[::-1])


@pytest.fixture
def scalar_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports each call of the scalar verifier was given."""
    whole, counts = ScalarBatchVerifier.verify, list[int]()

    def verify(self: ScalarBatchVerifier, batch: ProofBatch) -> VerifiedBatch:
        counts.append(batch.count)
        return whole(self, batch)

    monkeypatch.setattr(ScalarBatchVerifier, "verify", verify)
    return counts


@pytest.mark.parametrize(("count", "given"), [(WORTH_ARRAYS - 1, [WORTH_ARRAYS - 1]), (WORTH_ARRAYS, [])])
def test_only_a_few_reports_are_verified_one_by_one(count: int, given: list[int], scalar_counts: list[int]) -> None:
    prio3 = prio3_one_hot(3, 2)

    assert ArrayBatchVerifier(setting(prio3, 1)).verify(shard(prio3, honest(prio3, count))[1]).reasons == bytes(count)
    assert scalar_counts == given


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7])
def test_a_batch_of_several_parts_has_one_answer(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prio3 = prio3_two_round(4, 2)
    monkeypatch.setattr(arrays, "_MOST_WORDS", 2 * prio3.circuit.measurement_length)

    for aggregator, batch in enumerate(shard(prio3, honest(prio3, count))):
        of = setting(prio3, aggregator)

        assert ArrayBatchVerifier(of, worth=0).verify(batch) == ScalarBatchVerifier(of).verify(batch)


def test_what_one_report_is_left_to_the_scalar_verifier_for_touches_no_other(scalar_counts: list[int]) -> None:
    prio3 = prio3_two_round(5, 2)
    leader = shard(prio3, honest(prio3, 60))[0]
    size = prio3.input_share_size(0)
    spoiled = bytearray(leader.input_shares)
    spoiled[7 * size : 7 * size + 8] = P.to_bytes(8, "little")

    answer = ArrayBatchVerifier(setting(prio3, 0)).verify(replace(leader, input_shares=bytes(spoiled)))

    assert scalar_counts == [1]
    assert answer.reasons == bytes(7) + bytes([RejectReason.MALFORMED.value]) + bytes(52)
    assert answer == ScalarBatchVerifier(setting(prio3, 0)).verify(replace(leader, input_shares=bytes(spoiled)))


class _Given:
    """A stream that was chosen."""

    def __init__(self, word: int) -> None:
        self._word = word.to_bytes(8, "little")

    def next(self, length: int) -> bytes:
        return self._word * (length // 8)


@pytest.mark.parametrize(
    "prio3", [prio3_two_round(3, 2), prio3_one_hot(3, 2), prio3_bits(10, 2), prio3_multihot(7, 2, 2)], ids=name
)
def test_a_query_point_that_is_a_root_of_unity_is_an_invalid_proof_of_its_report_alone(prio3: Prio3) -> None:
    batch = shard(prio3, honest(prio3, 5))[1]
    root = FIELD64.root_of_unity(prio3.flp.wire_length)

    def xof(seed: bytes, tag: bytes, binder: bytes) -> ByteStream:
        drawn_for_the_third = tag[6:8] == bytes((0, 5)) and binder[1:] == batch.nonces[32:48]
        return _Given(root) if drawn_for_the_third else XofTurboShake128(seed, tag, binder)

    of = setting(replace(prio3, xof=xof), 1)
    answer = ArrayBatchVerifier(of, worth=0).verify(batch)

    assert answer.reasons == bytes((VERIFIED, VERIFIED, RejectReason.INVALID_PROOF.value, VERIFIED, VERIFIED))
    assert answer == ScalarBatchVerifier(of).verify(batch)


def test_sums_without_proofs_are_the_scalar_verifiers() -> None:
    prio3 = prio3_two_round(4, 2)
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, 3))):
        of = setting(prio3, aggregator)

        assert ArrayBatchVerifier(of).sum_outputs(batch) == ScalarBatchVerifier(of).sum_outputs(batch)
