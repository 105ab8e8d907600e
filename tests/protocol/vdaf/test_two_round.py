"""The two instalments of a report, and the scalar verifier that takes them joined."""

import json
import pickle
from itertools import product
from pathlib import Path
from random import Random

import pytest
from fleetcount_protocol.errors import RejectReason, UsageError
from fleetcount_protocol.vdaf.circuits import TwoRoundOneHot
from fleetcount_protocol.vdaf.field import PrimeField
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    VerifyState,
    first_instalment_size,
    first_instalments,
    prio3_one_hot,
    prio3_two_round,
    second_instalment_size,
    second_instalments,
)
from fleetcount_protocol.vdaf.verifier import RejectedProof, ReportToVerify, ScalarVerifier, Verified
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = Path(__file__).parents[2] / "vectors" / "two_round.json"
CTX = b"test" + bytes(32)
KEY = bytes(range(32))


@given(
    shares=st.integers(2, 7), length=st.integers(2, 20), said=st.booleans(), seed=st.integers(0, 2**32), data=st.data()
)
@settings(deadline=None, max_examples=60)
def test_both_instalments_together_are_the_report(
    shares: int, length: int, said: bool, seed: int, data: st.DataObject
) -> None:
    prio3 = prio3_two_round(length, shares)
    round_two = data.draw(st.integers(0, length - 1))
    round_one = round_two if said else 0
    random = Random(seed)
    nonce, rand = random.randbytes(16), random.randbytes(prio3.rand_size)
    public_share, input_shares = prio3.shard(CTX, (round_one, round_two), nonce, rand)

    first = first_instalments(prio3, CTX, nonce, rand, round_one)
    second_public, second = second_instalments(prio3, CTX, nonce, rand, round_one, round_two)

    assert second_public == public_share
    assert tuple(a + b for a, b in zip(first, second, strict=True)) == input_shares
    for aggregator in range(shares):
        assert len(first[aggregator]) == first_instalment_size(prio3, aggregator)
        assert len(second[aggregator]) == second_instalment_size(prio3, aggregator)


def test_the_instalments_of_every_vector_are_its_shares() -> None:
    cases = [case for case in json.loads(VECTORS.read_text()) if case["algorithm"] == "TwoRoundOneHot"]
    for case in cases:
        prio3, ctx = prio3_two_round(case["length"], case["shares"]), bytes.fromhex(case["ctx"])
        for report in case["reports"]:
            nonce, rand = bytes.fromhex(report["nonce"]), bytes.fromhex(report["rand"])
            round_one, round_two = report["measurement"]

            first = first_instalments(prio3, ctx, nonce, rand, round_one)
            public_share, second = second_instalments(prio3, ctx, nonce, rand, round_one, round_two)

            assert public_share.hex() == report["public_share"]
            assert [(a + b).hex() for a, b in zip(first, second, strict=True)] == report["input_shares"]
    assert len(cases) == 5


def test_the_first_instalment_does_not_depend_on_round_two() -> None:
    prio3 = prio3_two_round(6, 2)
    rand, nonce = bytes(range(128)), bytes(16)

    first = first_instalments(prio3, CTX, nonce, rand, 0)

    for round_two in range(6):
        _, shares = prio3.shard(CTX, (0, round_two), nonce, rand)
        assert tuple(share[: len(part)] for share, part in zip(shares, first, strict=True)) == first


def test_all_instalments_have_the_same_sizes_sampled_or_not() -> None:
    prio3 = prio3_two_round(6, 3)
    rand, nonce = bytes(range(192)), bytes(16)
    sizes: set[tuple[int, ...]] = set()
    for one, two in product(range(6), repeat=2):
        if one in (0, two):
            _, second = second_instalments(prio3, CTX, nonce, rand, one, two)
            sizes.add(tuple(len(part) for part in (*first_instalments(prio3, CTX, nonce, rand, one), *second)))

    assert len(sizes) == 1


def test_the_instalments_have_the_documented_sizes() -> None:
    prio3 = prio3_two_round(1000, 2)

    assert [first_instalment_size(prio3, j) for j in (0, 1)] == [8000, 32]
    assert [second_instalment_size(prio3, j) for j in (0, 1)] == [8248, 32]


def test_what_is_no_two_round_report_is_refused() -> None:
    prio3 = prio3_two_round(4, 2)
    rand = bytes(prio3.rand_size)

    calls = [
        lambda: first_instalments(prio3, CTX, bytes(16), rand, 4),
        lambda: first_instalments(prio3, CTX, bytes(16), rand, -1),
        lambda: first_instalments(prio3, CTX, bytes(15), rand, 1),
        lambda: first_instalments(prio3, CTX, bytes(16), rand[1:], 1),
        lambda: second_instalments(prio3, CTX, bytes(16), rand, 1, 2),
        lambda: second_instalment_size(prio3, 2),
        lambda: first_instalments(prio3_one_hot(4, 2), CTX, bytes(16), rand, 1),
        lambda: first_instalment_size(prio3_one_hot(4, 2), 0),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize("shares", [2, 3])
def test_a_batch_with_bad_reports_gives_one_answer_a_report_in_order(shares: int) -> None:
    prio3 = prio3_two_round(5, shares)
    random = Random(1)
    nonces = [random.randbytes(16) for _ in range(3)]
    honest = [prio3.shard(CTX, (0, v), nonce, random.randbytes(prio3.rand_size)) for v, nonce in enumerate(nonces)]
    batches: list[list[Verified | RejectedProof]] = []
    for aggregator in range(shares):
        good = [
            ReportToVerify(nonce=nonce, public_share=public, input_share=parts[aggregator])
            for nonce, (public, parts) in zip(nonces, honest, strict=True)
        ]
        bad = [
            ReportToVerify(nonce=b"", public_share=good[0].public_share, input_share=good[0].input_share),
            ReportToVerify(nonce=nonces[0], public_share=b"", input_share=good[0].input_share),
            ReportToVerify(nonce=nonces[0], public_share=good[0].public_share, input_share=good[0].input_share + b"\0"),
        ]
        verifier = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=aggregator)

        answers = verifier.verify_batch([good[0], *bad, good[1], good[2]])

        assert [isinstance(answer, Verified) for answer in answers] == [True, False, False, False, True, True]
        assert {answer.reason for answer in answers if isinstance(answer, RejectedProof)} == {RejectReason.MALFORMED}
        batches.append(list(answers))

    for place, value in ((0, 0), (4, 1), (5, 2)):
        answers = [batch[place] for batch in batches]
        verified = [answer for answer in answers if isinstance(answer, Verified)]
        message = prio3.combine_verifier_shares(CTX, [answer.verifier_share for answer in verified])
        outputs = [prio3.verify_next(CTX, VerifyState.decode(prio3, answer.state), message) for answer in verified]
        assert prio3.unshard(outputs, 1) == [int(v == value) for v in range(1, 5)]


def test_a_leader_word_above_the_modulus_is_malformed_not_an_exception() -> None:
    prio3 = prio3_two_round(5, 2)
    public_share, (leader, _) = prio3.shard(CTX, (0, 1), bytes(16), bytes(128))
    report = ReportToVerify(nonce=bytes(16), public_share=public_share, input_share=b"\xff" * 8 + leader[8:])

    answers = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=0).verify_batch([report])

    assert answers == [RejectedProof(reason=RejectReason.MALFORMED)]


def test_a_report_whose_verification_aborts_is_an_invalid_proof() -> None:
    # In a field of 257 elements one query point in 64 is a fourth root of unity, where the draft aborts.
    tiny = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)
    prio3 = Prio3(circuit=TwoRoundOneHot(field=tiny, length=3), algorithm_id=0xFFFF1001, shares=2)
    verifier = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=1)
    reports: list[ReportToVerify] = []
    for seed in range(300):
        nonce = seed.to_bytes(16, "big")
        public_share, (_, helper) = prio3.shard(CTX, (0, 1), nonce, bytes(prio3.rand_size))
        reports.append(ReportToVerify(nonce=nonce, public_share=public_share, input_share=helper))

    answers = verifier.verify_batch(reports)

    reasons = {answer.reason for answer in answers if isinstance(answer, RejectedProof)}
    assert reasons == {RejectReason.INVALID_PROOF}
    assert sum(isinstance(answer, Verified) for answer in answers) > 270


def test_verifier_reports_and_answers_travel_to_another_process() -> None:
    prio3 = prio3_two_round(5, 2)
    public_share, shares = prio3.shard(CTX, (0, 1), bytes(16), bytes(128))
    report = ReportToVerify(nonce=bytes(16), public_share=public_share, input_share=shares[1])
    bad = ReportToVerify(nonce=bytes(16), public_share=b"", input_share=b"")
    verifier = ScalarVerifier(prio3=prio3, verify_key=KEY, ctx=CTX, aggregator=1)

    there_verifier, there_reports = pickle.loads(pickle.dumps((verifier, [report, bad])))
    answers = pickle.loads(pickle.dumps(there_verifier.verify_batch(there_reports)))

    assert answers == verifier.verify_batch([report, bad])


@pytest.mark.parametrize(("key", "aggregator"), [(bytes(31), 0), (bytes(33), 0), (bytes(32), 2), (bytes(32), -1)])
def test_a_verifier_without_a_seat_or_key_is_refused(key: bytes, aggregator: int) -> None:
    with pytest.raises(UsageError):
        ScalarVerifier(prio3=prio3_two_round(5, 2), verify_key=key, ctx=CTX, aggregator=aggregator)


def test_reprs_show_no_share_and_no_key() -> None:
    report = ReportToVerify(nonce=bytes(16), public_share=b"", input_share=b"SECRET")
    verified = Verified(state=b"SECRET", verifier_share=b"SECRET")
    verifier = ScalarVerifier(prio3=prio3_two_round(5, 2), verify_key=b"SECRET" + bytes(26), ctx=CTX, aggregator=0)

    assert "SECRET" not in repr(report) + repr(verified) + repr(verifier)
