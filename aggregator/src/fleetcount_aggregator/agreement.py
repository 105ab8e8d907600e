"""The rules by which the aggregators come to one set of reports, as functions of values.

Says what each party answers and which reports survive; sends, stores and verifies nothing (leader, helper).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import ReportId, TaskId
from fleetcount_protocol.layout import Reader, uint
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES, MAX_REPORTS_PER_PEER_BATCH
from fleetcount_protocol.messages import (
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    FinishBatch,
    MissingReport,
    PeerVerifierShare,
    ProposedReport,
    RejectedReport,
)

from fleetcount_aggregator.store import ReportRow, ReportStatus

__all__ = [
    "Answer",
    "Survivors",
    "answer_proposed",
    "batch_size",
    "commitments_digest",
    "decision_bytes",
    "decision_from_bytes",
    "dropped_reason",
    "finish_digest",
    "proposal_digest",
    "reply_bytes",
    "reply_from_bytes",
    "survivors",
]

Answer = PeerVerifierShare | MissingReport | RejectedReport

_TARGET_BATCH_BYTES: Final = 128 * 1024
_LARGEST_BATCH: Final = 256


def batch_size(verifier_share_bytes: int) -> int:
    """Return how many reports the leader proposes at once: messages stay near 128 KiB, 1 to 256 reports."""
    return max(1, min(_LARGEST_BATCH, MAX_REPORTS_PER_PEER_BATCH, _TARGET_BATCH_BYTES // max(1, verifier_share_bytes)))


# What "the same request" means: digests of the content, never of its wire form.


def _digest(label: bytes, fields: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256(label)
    for one in fields:
        digest.update(len(one).to_bytes(4))
        digest.update(one)
    return digest.digest()


def proposal_digest(proposal: BatchProposal) -> bytes:
    """Return the digest a helper remembers of a proposal."""
    fields = (
        part
        for report in proposal.reports
        for part in (report.report_id, report.public_share_digest, report.verifier_share)
    )
    return _digest(b"propose", fields)


def finish_digest(request: FinishBatch) -> bytes:
    """Return the digest a helper remembers of the verifier messages of a batch."""
    return _digest(b"finish", (part for one in request.messages for part in (one.report_id, one.message)))


def commitments_digest(commitments: Sequence[Commitment]) -> bytes:
    """Return the digest of the list of commitments an aggregator has opened its share against."""
    fields = (part for one in commitments for part in (one.aggregator_id.encode(), one.set_digest, one.commitment))
    return _digest(b"open", fields)


# The helper's side.


def answer_proposed(proposed: ProposedReport, row: ReportRow | None, verifier_share: bytes) -> Answer:
    """Return a helper's answer about one proposed report.

    Missing: not complete here, or under another public share than the leader's. Rejected: `verify_init` failed here.
    """
    if row is None or row.status is ReportStatus.INCOMPLETE:
        return MissingReport(report_id=proposed.report_id)
    if row.status is ReportStatus.REFUSED:
        if row.reason in (None, RejectReason.HALF_PAIR):
            return MissingReport(report_id=proposed.report_id)
        return RejectedReport(report_id=proposed.report_id, reason=row.reason)
    if row.public_share_digest != proposed.public_share_digest:
        return MissingReport(report_id=proposed.report_id)
    return PeerVerifierShare(report_id=proposed.report_id, verifier_share=verifier_share)


def dropped_reason(aggregators: int) -> RejectReason:
    """Return what a helper counts for a report it could verify and the leader dropped.

    With two aggregators nobody else could miss it, so its proof failed; with more the leader's message does not say
    whether another helper misses it, and that is what is counted.
    """
    return RejectReason.INVALID_PROOF if aggregators == 2 else RejectReason.MISSING_AT_PEER


# The leader's side.


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The reports every helper can verify, with all verifier shares in the task's order, and why each other is out."""

    shares: Mapping[ReportId, tuple[bytes, ...]]
    refused: Mapping[ReportId, RejectReason]


def survivors(proposal: BatchProposal, replies: Sequence[BatchReply]) -> Survivors | None:
    """Return which proposed reports go on; None if a reply does not answer the proposal line by line."""
    ids = [report.report_id for report in proposal.reports]
    if any([answer.report_id for answer in reply.answers] != ids for reply in replies):
        return None
    shares: dict[ReportId, tuple[bytes, ...]] = {}
    refused: dict[ReportId, RejectReason] = {}
    for index, report in enumerate(proposal.reports):
        answers = [reply.answers[index] for reply in replies]
        reason = _first_reason(answers)
        if reason is not None:
            refused[report.report_id] = reason
        else:
            held = tuple(answer.verifier_share for answer in answers if isinstance(answer, PeerVerifierShare))
            shares[report.report_id] = (report.verifier_share, *held)
    return Survivors(shares=shares, refused=refused)


def _first_reason(answers: Sequence[Answer]) -> RejectReason | None:
    """A peer's own verdict comes before "missing": it says more."""
    for answer in answers:
        if isinstance(answer, RejectedReport):
            return answer.reason
    return RejectReason.MISSING_AT_PEER if any(isinstance(answer, MissingReport) for answer in answers) else None


# The helper's answers as it stores them.

_SHARE: Final = 0
_MISSING: Final = 255


def reply_bytes(reply: BatchReply) -> bytes:
    """Return a reply as the helper stores it: count; id, kind (0 share, 255 missing, else the reason), sized share."""
    parts = [uint(len(reply.answers), 4)]
    for answer in reply.answers:
        kind, share = _MISSING, b""
        if isinstance(answer, PeerVerifierShare):
            kind, share = _SHARE, answer.verifier_share
        elif isinstance(answer, RejectedReport):
            kind = answer.reason.value
        parts += [answer.report_id, uint(kind, 1), uint(len(share), 4), share]
    return b"".join(parts)


def reply_from_bytes(task_id: TaskId, batch: int, stored: bytes) -> BatchReply:
    """Return the reply `reply_bytes` gave; raises DecodeError for damaged bytes."""
    reader = Reader(stored, "stored batch reply", MAX_PEER_MESSAGE_BYTES)
    answers: list[Answer] = []
    for _ in range(reader.count(4, 0, MAX_REPORTS_PER_PEER_BATCH)):
        report_id, kind, share = ReportId(reader.take(16)), reader.uint(1), reader.take(reader.uint(4))
        if kind == _SHARE:
            answers.append(PeerVerifierShare(report_id=report_id, verifier_share=share))
        elif kind == _MISSING:
            answers.append(MissingReport(report_id=report_id))
        else:
            answers.append(RejectedReport(report_id=report_id, reason=RejectReason(kind)))
    reader.finish()
    return BatchReply(task_id=task_id, batch=batch, answers=tuple(answers))


def decision_bytes(decision: BatchDecision) -> bytes:
    """Return a decision as the helper stores it: the accepted ids."""
    return b"".join(decision.accepted)


def decision_from_bytes(task_id: TaskId, batch: int, stored: bytes) -> BatchDecision:
    """Return the decision `decision_bytes` gave."""
    ids = tuple(ReportId(stored[start : start + 16]) for start in range(0, len(stored), 16))
    return BatchDecision(task_id=task_id, batch=batch, accepted=ids)
