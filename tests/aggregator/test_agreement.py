"""The pure rules of agreement and the forms in which a helper stores its answers."""

from pathlib import Path

import pytest
from fleetcount_aggregator.agreement import (
    answer_proposed,
    batch_size,
    decision_bytes,
    decision_from_bytes,
    finish_digest,
    proposal_digest,
    reply_bytes,
    reply_from_bytes,
    survivors,
)
from fleetcount_aggregator.failpoints import FAILPOINTS
from fleetcount_aggregator.store import ReportRow, ReportStatus
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.messages import (
    BatchDecision,
    BatchProposal,
    BatchReply,
    FinishBatch,
    MissingReport,
    PeerVerifierShare,
    ProposedReport,
    RejectedReport,
    VerifierMessage,
)
from hypothesis import given
from hypothesis import strategies as st

TASK = TaskId(bytes(32))
DIGEST = Digest(b"d" * 32)
IDS = [ReportId(number.to_bytes(16)) for number in range(4)]
PROPOSAL = BatchProposal(
    task_id=TASK,
    batch=0,
    reports=tuple(ProposedReport(report_id=one, public_share_digest=DIGEST, verifier_share=b"leader") for one in IDS),
)


def share(report_id: ReportId, content: bytes = b"helper") -> PeerVerifierShare:
    return PeerVerifierShare(report_id=report_id, verifier_share=content)


def reply(*answers: PeerVerifierShare | MissingReport | RejectedReport) -> BatchReply:
    return BatchReply(task_id=TASK, batch=0, answers=answers)


def row(status: ReportStatus, reason: RejectReason | None = None, digest: Digest | None = DIGEST) -> ReportRow:
    return ReportRow(
        report_id=IDS[0], status=status, batch=None, reason=reason, public_share_digest=digest, verification=b""
    )


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, MissingReport(report_id=IDS[0])),
        (row(ReportStatus.INCOMPLETE), MissingReport(report_id=IDS[0])),
        (row(ReportStatus.REFUSED, RejectReason.HALF_PAIR), MissingReport(report_id=IDS[0])),
        (
            row(ReportStatus.REFUSED, RejectReason.MALFORMED),
            RejectedReport(report_id=IDS[0], reason=RejectReason.MALFORMED),
        ),
        (row(ReportStatus.VERIFIED, digest=Digest(bytes(32))), MissingReport(report_id=IDS[0])),
        (row(ReportStatus.VERIFIED), share(IDS[0])),
    ],
)
def test_a_helper_answers_what_it_holds(held: ReportRow | None, expected: object) -> None:
    assert answer_proposed(PROPOSAL.reports[0], held, b"helper") == expected


def test_a_report_goes_on_iff_every_helper_has_a_share_of_it() -> None:
    found = survivors(
        PROPOSAL,
        [
            reply(share(IDS[0]), MissingReport(report_id=IDS[1]), share(IDS[2]), share(IDS[3])),
            reply(
                share(IDS[0], b"third"),
                RejectedReport(report_id=IDS[1], reason=RejectReason.MALFORMED),
                MissingReport(report_id=IDS[2]),
                share(IDS[3]),
            ),
        ],
    )

    assert found is not None
    assert found.shares == {IDS[0]: (b"leader", b"helper", b"third"), IDS[3]: (b"leader", b"helper", b"helper")}
    assert found.refused == {IDS[1]: RejectReason.MALFORMED, IDS[2]: RejectReason.MISSING_AT_PEER}


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 3, 2], [0, 1, 2, 2]])
def test_a_reply_that_does_not_answer_line_by_line_is_none(order: list[int]) -> None:
    assert survivors(PROPOSAL, [reply(*(share(IDS[index]) for index in order))]) is None


def test_any_other_content_is_another_request() -> None:
    first, *rest = PROPOSAL.reports
    others = [
        BatchProposal(task_id=TASK, batch=0, reports=(*rest, first)),
        BatchProposal(task_id=TASK, batch=0, reports=tuple(rest)),
        BatchProposal(
            task_id=TASK,
            batch=0,
            reports=(ProposedReport(report_id=IDS[0], public_share_digest=DIGEST, verifier_share=b"x"), *rest),
        ),
    ]
    finishes = [
        FinishBatch(task_id=TASK, batch=0, messages=messages)
        for messages in (
            (),
            (VerifierMessage(report_id=IDS[0], message=b"ab"),),
            (VerifierMessage(report_id=IDS[0], message=b"a"), VerifierMessage(report_id=IDS[1], message=b"b")),
        )
    ]

    assert len({proposal_digest(one) for one in [PROPOSAL, *others]}) == 4
    assert len({finish_digest(one) for one in finishes}) == 3


ANSWERS = st.one_of(
    st.builds(PeerVerifierShare, report_id=st.sampled_from(IDS), verifier_share=st.binary(max_size=50)),
    st.builds(MissingReport, report_id=st.sampled_from(IDS)),
    st.builds(RejectedReport, report_id=st.sampled_from(IDS), reason=st.sampled_from(RejectReason)),
)


@given(st.lists(ANSWERS, max_size=20))
def test_a_stored_reply_reads_back_as_it_was(answers: list[PeerVerifierShare | MissingReport | RejectedReport]) -> None:
    original = reply(*answers)

    assert reply_from_bytes(TASK, 0, reply_bytes(original)) == original


def test_a_damaged_stored_reply_is_noticed() -> None:
    stored = reply_bytes(reply(share(IDS[0])))

    for damaged in (stored[:-1], stored + b"x"):
        with pytest.raises(DecodeError):
            reply_from_bytes(TASK, 0, damaged)


@given(st.lists(st.sampled_from(IDS), unique=True))
def test_a_stored_decision_reads_back_as_it_was(ids: list[ReportId]) -> None:
    original = BatchDecision(task_id=TASK, batch=3, accepted=tuple(ids))

    assert decision_from_bytes(TASK, 3, decision_bytes(original)) == original


@pytest.mark.parametrize(("size", "expected"), [(136, 256), (1024, 128), (3200, 40), (10**6, 1)])
def test_batches_stay_near_128_kib(size: int, expected: int) -> None:
    assert batch_size(size) == expected


def test_the_manual_lists_every_fail_point_in_order() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()

    assert tuple(manual.partition("## Fail points")[2].partition("    intake")[2].split()[1:]) == FAILPOINTS[1:]
