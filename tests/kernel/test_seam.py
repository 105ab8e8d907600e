"""The seam of batch verification: columns in and out, the scalar twin, sums of field vectors."""

import random

import pytest
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_evidence.replay.draft_circuits import prio3_count, prio3_sum_vec
from fleetcount_kernel.proofs import (
    VERIFIED,
    ProofBatch,
    ScalarBatchVerifier,
    VerifierSetting,
    add_vectors,
    subtract_vectors,
)
from fleetcount_protocol.errors import RejectReason, UsageError
from fleetcount_protocol.vdaf.field import FIELD64
from fleetcount_protocol.vdaf.prio3 import Prio3, VerifyState, prio3_one_hot, prio3_two_round

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)

KEY, CTX = bytes(range(32)), b"FCT1" + bytes(32)
P = FIELD64.modulus


def batches(prio3: Prio3, measurements: list[object], seed: int = 1) -> list[ProofBatch]:
    """Shard every measurement; return one batch an aggregator."""
    draws = random.Random(seed)
    nonces, publics, inputs = b"", b"", [b""] * prio3.shares
    for measurement in measurements:
        nonce = draws.randbytes(16)
        public, shares = prio3.shard(CTX, measurement, nonce, draws.randbytes(prio3.rand_size))
        nonces += nonce
        publics += public
        inputs = [before + share for before, share in zip(inputs, shares, strict=True)]
    return [ProofBatch(nonces=nonces, public_shares=publics, input_shares=shares) for shares in inputs]


def setting(prio3: Prio3, aggregator: int, opened: slice = slice(None)) -> VerifierSetting:
    return VerifierSetting(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=aggregator, opened=opened)


def test_sums_over_all_aggregators_are_the_counts() -> None:
    prio3 = prio3_two_round(5, 3)
    reports = batches(prio3, [(0, 2), (2, 2), (0, 4), (0, 2), (0, 0)])

    answers = [ScalarBatchVerifier(setting(prio3, j)).verify(batch) for j, batch in enumerate(reports)]
    messages, holds = combine(prio3, CTX, [answer.verifier_shares for answer in answers])

    assert holds == b"\1" * 5
    assert all(answer.reasons == bytes([VERIFIED]) * 5 and answer.seeds == messages for answer in answers)
    first, *rest = [answer.output_sum for answer in answers]
    for share in rest:
        first = add_vectors(first, share)
    assert FIELD64.decode_vector(first, 4) == [0, 2, 0, 1]


def test_a_refused_report_leaves_zeros_and_is_in_no_sum() -> None:
    prio3 = prio3_one_hot(4, 2)
    leader, helper = batches(prio3, [1, 2, 3])
    size = prio3.input_share_size(0)
    bad = leader.input_shares[:size] + P.to_bytes(8, "little") + leader.input_shares[size + 8 :]
    spoiled = ProofBatch(nonces=leader.nonces, public_shares=leader.public_shares, input_shares=bad)
    verifiers = [new_batch_verifier(setting(prio3, j, slice(1, None)), prefer="scalar") for j in (0, 1)]

    ours, theirs = verifiers[0].verify(spoiled), verifiers[1].verify(helper)
    messages, holds = combine(prio3, CTX, [ours.verifier_shares, theirs.verifier_shares])

    assert ours.reasons == bytes([VERIFIED, RejectReason.MALFORMED.value, VERIFIED])
    assert ours.seeds[32:64] == bytes(32)
    assert ours.verifier_shares[prio3.verifier_share_size :][: prio3.verifier_share_size] == bytes(
        prio3.verifier_share_size
    )
    assert holds == bytes([1, 0, 1])
    assert messages[32:64] == bytes(32)
    middle = ProofBatch(nonces=helper.nonces[16:32], public_shares=bytes(64), input_shares=helper.input_shares[64:128])
    kept = subtract_vectors(theirs.output_sum, verifiers[1].sum_outputs(middle))
    assert FIELD64.decode_vector(add_vectors(ours.output_sum, kept), 3) == [1, 0, 1]


@pytest.mark.parametrize("aggregator", [0, 1])
def test_the_sum_of_all_reports_is_the_sum_of_their_verified_states(aggregator: int) -> None:
    prio3 = prio3_two_round(6, 2)
    batch = batches(prio3, [(0, 1), (3, 3), (0, 5)])[aggregator]
    verifier = ScalarBatchVerifier(setting(prio3, aggregator))

    assert verifier.sum_outputs(batch) == verifier.verify(batch).output_sum


def test_the_answer_is_what_the_protocol_keeps_and_sends() -> None:
    prio3 = prio3_one_hot(3, 2)
    _, helper = batches(prio3, [2])

    answer = ScalarBatchVerifier(setting(prio3, 1)).verify(helper)
    state, share = prio3.verify_init(KEY, CTX, 1, helper.nonces, helper.public_shares, helper.input_shares)

    assert answer.verifier_shares == share
    assert VerifyState(output_share=answer.output_sum, joint_rand_seed=answer.seeds) == state


def test_an_empty_batch_is_an_empty_answer() -> None:
    prio3 = prio3_one_hot(3, 2)
    answer = ScalarBatchVerifier(setting(prio3, 0)).verify(ProofBatch(nonces=b"", public_shares=b"", input_shares=b""))

    assert (answer.reasons, answer.seeds, answer.verifier_shares, answer.output_sum) == (b"", b"", b"", bytes(24))
    assert combine(prio3, CTX, [b"", b""]) == (b"", b"")


@pytest.mark.parametrize(
    ("nonces", "public", "inputs"), [(15, 64, 64), (16, 63, 64), (16, 64, 65), (32, 64, 64), (16, 128, 128)]
)
def test_columns_of_the_wrong_size_are_the_callers_fault(nonces: int, public: int, inputs: int) -> None:
    verifier = ScalarBatchVerifier(setting(prio3_one_hot(3, 2), 1))
    with pytest.raises(UsageError):
        verifier.verify(
            ProofBatch(nonces=bytes(nonces), public_shares=bytes(public), input_shares=bytes(inputs)),
        )


@pytest.mark.parametrize("columns", [[b""], [bytes(128)] * 3, [bytes(128), bytes(127)], [bytes(127)] * 2])
def test_combine_takes_one_whole_column_an_aggregator(columns: list[bytes]) -> None:
    with pytest.raises(UsageError):
        combine(prio3_one_hot(3, 2), CTX, columns)


def test_a_report_that_is_not_canonical_cannot_be_taken_out_of_a_sum() -> None:
    prio3 = prio3_one_hot(3, 2)
    size = prio3.input_share_size(0)
    batch = ProofBatch(nonces=bytes(16), public_shares=bytes(64), input_shares=b"\xff" * 8 + bytes(size - 8))
    with pytest.raises(UsageError, match="cannot be in a sum"):
        ScalarBatchVerifier(setting(prio3, 0)).sum_outputs(batch)


@pytest.mark.parametrize("prio3", [prio3_count(2), prio3_sum_vec(2, 1, 1, 2)])
def test_an_algorithm_no_window_has_is_refused(prio3: Prio3) -> None:
    with pytest.raises(UsageError, match="not a window's"):
        setting(prio3, 0)


EDGE = [0, 1, 2, 2**32 - 2, 2**32 - 1, 2**32, P // 2, P // 2 + 1, P - 2**32, P - 2, P - 1]


def test_vectors_are_added_and_subtracted_modulo_p() -> None:
    draws = random.Random(2)
    words = EDGE + [draws.randrange(P) for _ in range(40)]
    left, right = zip(*((a, b) for a in words for b in words), strict=True)
    a, b = FIELD64.encode_vector(left), FIELD64.encode_vector(right)

    assert FIELD64.decode_vector(add_vectors(a, b), len(left)) == FIELD64.add_vectors([left, right], len(left))
    assert FIELD64.decode_vector(subtract_vectors(a, b), len(left)) == FIELD64.subtract_vectors(left, right)


@pytest.mark.parametrize(
    ("left", "right"), [(bytes(8), bytes(16)), (bytes(7), bytes(7)), (b"\xff" * 8, bytes(8)), (bytes(8), b"\xff" * 8)]
)
def test_vectors_that_do_not_fit_or_are_not_canonical_are_refused(left: bytes, right: bytes) -> None:
    for operation in (add_vectors, subtract_vectors):
        with pytest.raises(UsageError):
            operation(left, right)


def test_secrets_stay_out_of_representations() -> None:
    batch = ProofBatch(nonces=bytes(16), public_shares=bytes(64), input_shares=b"secret" + bytes(58))
    answer = ScalarBatchVerifier(setting(prio3_one_hot(3, 2), 1)).verify(batch)

    assert "input_shares" not in repr(batch)
    assert "seeds" not in repr(answer)
    assert "output_sum" not in repr(answer)
    assert "verify_key" not in repr(setting(prio3_one_hot(3, 2), 1))
