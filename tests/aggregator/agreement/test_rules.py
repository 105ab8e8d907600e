"""The pure rules of agreement and the forms in which a helper stores its answers."""

from pathlib import Path

import numpy as np
import pytest
from fleetcount_aggregator.agreement.rules import (
    answers,
    batch_size,
    finish_digest,
    picked,
    positions_of_batch,
    proposal_digest,
    reply_bytes,
    reply_from_bytes,
    survivors,
)
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.store import ReportVerdict
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import BatchProposal, BatchReply, FinishBatch
from fleetcount_transport.failpoints import (
    AGGREGATOR_FAILPOINTS,
    AGGREGATOR_QUESTION_FAILPOINTS,
    DEVICE_FAILPOINTS,
    QUESTION_FAILPOINTS,
)
from hypothesis import given
from hypothesis import strategies as st

WINDOW = WindowId(bytes(32))
IDS = [number.to_bytes(16) for number in range(4)]
MISSING, MALFORMED = RejectReason.MISSING_AT_PEER.value, RejectReason.MALFORMED.value
DIGESTS = b"".join(bytes((number,)) * 32 for number in range(4))


def proposal(*numbers: int, share: bytes = b"lead") -> BatchProposal:
    return BatchProposal(
        window_id=WINDOW,
        batch=0,
        report_ids=b"".join(IDS[number] for number in numbers),
        share_digests=b"d" * 32 * len(numbers),
        verifier_shares=share * len(numbers),
    )


def reply(*reasons: int, shares: bytes = b"", ids: list[int] | None = None) -> BatchReply:
    order = list(range(len(reasons))) if ids is None else ids
    return BatchReply(
        window_id=WINDOW,
        batch=0,
        report_ids=b"".join(IDS[number] for number in order),
        reasons=bytes(reasons),
        verifier_shares=shares or b"help" * reasons.count(0),
    )


def test_a_helper_answers_what_it_holds() -> None:
    """Four are proposed: not complete here, malformed here, under another public share, and held alike."""
    present = np.array([False, True, True, True])
    own = DIGESTS[32:96] + DIGESTS[96:]

    said, verdicts = answers(present, bytes((MALFORMED, 0, 0)), own, DIGESTS[:64] + bytes(32) + DIGESTS[96:])

    assert list(said) == [MISSING, MALFORMED, MISSING, 0]
    assert list(verdicts) == [ReportVerdict.REFUSED, ReportVerdict.DROPPED, ReportVerdict.VERIFIED]


@pytest.mark.parametrize("place", [0, 31])
def test_a_public_share_that_differs_in_one_byte_of_its_digest_is_another_one(place: int) -> None:
    proposed = bytearray(DIGESTS[:32])
    proposed[place] ^= 1

    said, verdicts = answers(np.array([True]), bytes(1), DIGESTS[:32], bytes(proposed))

    assert (list(said), list(verdicts)) == ([MISSING], [ReportVerdict.DROPPED])


def test_a_report_goes_on_iff_every_helper_has_a_share_of_it() -> None:
    found = survivors(
        proposal(0, 1, 2, 3),
        [
            reply(0, MISSING, 0, 0, shares=b"b0__b2__b3__"),
            reply(0, MALFORMED, MISSING, 0, shares=b"c0__c3__"),
        ],
        4,
    )

    assert found is not None
    assert list(found.reasons) == [0, MALFORMED, MISSING, 0]
    assert found.shares == (b"b0__b3__", b"c0__c3__")


def test_a_verdict_of_the_first_helper_stays_and_says_more_than_missing() -> None:
    invalid = RejectReason.INVALID_PROOF.value

    found = survivors(proposal(0, 1), [reply(MISSING, MALFORMED), reply(invalid, invalid)], 4)

    assert found is not None
    assert list(found.reasons) == [invalid, MALFORMED]


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 3, 2], [0, 1, 2, 2]])
def test_a_reply_that_does_not_answer_line_by_line_is_none(order: list[int]) -> None:
    assert survivors(proposal(0, 1, 2, 3), [reply(*[0] * len(order), ids=order)], 4) is None


def test_a_reply_with_shares_of_another_size_is_none() -> None:
    assert survivors(proposal(0, 1), [reply(0, 0, shares=b"12345678")], 4) is not None
    assert survivors(proposal(0, 1), [reply(0, 0, shares=b"123456")], 4) is None


def test_any_other_content_is_another_request() -> None:
    others = [proposal(1, 2, 3, 0), proposal(1, 2, 3), proposal(0, 1, 2, 3, share=b"x")]
    finishes = [
        FinishBatch(window_id=WINDOW, batch=0, report_ids=ids, messages=messages)
        for ids, messages in ((b"", b""), (IDS[0], b"ab"), (IDS[0] + IDS[1], b"ab"))
    ]

    assert len({proposal_digest(one) for one in [proposal(0, 1, 2, 3), *others]}) == 4
    assert len({finish_digest(one) for one in finishes}) == 3


@given(st.binary(max_size=64), st.binary(max_size=20), st.binary(max_size=200))
def test_a_stored_reply_reads_back_as_it_was(ids: bytes, reasons: bytes, shares: bytes) -> None:
    original = BatchReply(window_id=WINDOW, batch=0, report_ids=ids, reasons=reasons, verifier_shares=shares)

    assert reply_from_bytes(WINDOW, 0, reply_bytes(original)) == original


def test_a_damaged_stored_reply_is_noticed() -> None:
    stored = reply_bytes(reply(0))

    for damaged in (stored[:-1], stored + b"x"):
        with pytest.raises(DecodeError):
            reply_from_bytes(WINDOW, 0, damaged)


def test_batches_hold_every_report_once_and_tell_no_order() -> None:
    ids = ReportIds(b"".join((number * 7 % 10).to_bytes(16) for number in range(10)))

    batches = [positions_of_batch(ids, number, 4) for number in range(3)]

    assert sorted(one for batch in batches for one in batch.tolist()) == list(range(10))
    for batch in batches:
        chosen = [ids.at(batch)[16 * at : 16 * at + 16] for at in range(len(batch))]
        assert chosen == sorted(chosen)


def test_fields_of_a_column_are_picked_by_a_mask() -> None:
    assert picked(b"aabbcc", np.array([True, False, True])) == b"aacc"
    assert picked(b"", np.array([], dtype=np.bool_)) == b""


@pytest.mark.parametrize(("size", "expected"), [(136, 512), (1024, 512), (3248, 322), (10**7, 1)])
def test_batches_stay_below_a_mebibyte(size: int, expected: int) -> None:
    assert batch_size(size) == expected


def test_the_manual_lists_every_fail_point_in_order() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "operating-trouble.md").read_text()

    listed = manual.partition("## Fail points")[2].split("\n\n")
    assert tuple(listed[2].split()) == AGGREGATOR_FAILPOINTS
    assert tuple(listed[4].split()) == AGGREGATOR_QUESTION_FAILPOINTS
    assert tuple(listed[6].split()) == DEVICE_FAILPOINTS
    assert tuple(listed[8].split()) == QUESTION_FAILPOINTS
