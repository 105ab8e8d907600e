"""Batches of reports, between domain values and protobuf (protos/…/peer.proto): columns on both sides.

How many reports a batch has follows from the length of its ids, and the size of a share from the length of its column;
no part is cut out before every length is checked.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES, MAX_REPORTS_PER_PEER_BATCH, MAX_VERIFIER_BYTES
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.device import read_reason
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_distinct, check_size

__all__ = ["BATCH_DECISION", "BATCH_PROPOSAL", "BATCH_REPLY", "FINISH_BATCH"]

_REASONS: Final = bytes((0, *(reason.value for reason in RejectReason)))
"""What the byte of a report may be: 0 comes with a verifier share."""


def _count_of(ids: bytes, smallest: int) -> int:
    """Return how many reports a batch names, each once."""
    count, rest = divmod(len(ids), ReportId.SIZE)
    if rest:
        raise DecodeError(f"report ids have {len(ids)} bytes, not a multiple of {ReportId.SIZE}")
    check_count("reports of a batch", count, smallest, MAX_REPORTS_PER_PEER_BATCH)
    check_distinct("report", (ids[at : at + ReportId.SIZE] for at in range(0, len(ids), ReportId.SIZE)))
    return count


def _check_column(what: str, column: bytes, count: int, smallest: int) -> bytes:
    """Return a column of `count` fields of one size, of `smallest` bytes at least; without fields it is empty."""
    check_size(f"column of {count} {what}s", column, smallest * count, MAX_VERIFIER_BYTES * count)
    if count and len(column) % count:
        raise DecodeError(f"a batch has {what}s of several sizes: {len(column)} bytes for {count} reports")
    return column


def _proposal_to_pb(proposal: BatchProposal) -> pb.ProposeBatchRequest:
    return pb.ProposeBatchRequest(
        task_id=proposal.task_id,
        batch=proposal.batch,
        report_ids=proposal.report_ids,
        share_digests=proposal.share_digests,
        verifier_shares=proposal.verifier_shares,
    )


def _read_proposal(message: pb.ProposeBatchRequest) -> BatchProposal:
    count = _count_of(message.report_ids, 1)
    return BatchProposal(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=message.report_ids,
        share_digests=check_size("share digests", message.share_digests, Digest.SIZE * count, Digest.SIZE * count),
        verifier_shares=_check_column("verifier share", message.verifier_shares, count, 1),
    )


BATCH_PROPOSAL: Final = WireMessage(
    "batch proposal", pb.ProposeBatchRequest, _proposal_to_pb, _read_proposal, MAX_PEER_MESSAGE_BYTES
)


def _reply_to_pb(reply: BatchReply) -> pb.ProposeBatchResponse:
    return pb.ProposeBatchResponse(
        task_id=reply.task_id,
        batch=reply.batch,
        report_ids=reply.report_ids,
        reasons=reply.reasons,
        verifier_shares=reply.verifier_shares,
    )


def _read_reply(message: pb.ProposeBatchResponse) -> BatchReply:
    count = _count_of(message.report_ids, 1)
    reasons = check_size("reasons", message.reasons, count, count)
    if unknown := reasons.translate(None, _REASONS):
        read_reason(unknown[0])
    return BatchReply(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=message.report_ids,
        reasons=reasons,
        verifier_shares=_check_column("verifier share", message.verifier_shares, reasons.count(0), 1),
    )


BATCH_REPLY: Final = WireMessage(
    "batch reply", pb.ProposeBatchResponse, _reply_to_pb, _read_reply, MAX_PEER_MESSAGE_BYTES
)


def _finish_to_pb(finish: FinishBatch) -> pb.FinishBatchRequest:
    return pb.FinishBatchRequest(
        task_id=finish.task_id, batch=finish.batch, report_ids=finish.report_ids, messages=finish.messages
    )


def _read_finish(message: pb.FinishBatchRequest) -> FinishBatch:
    count = _count_of(message.report_ids, 0)
    return FinishBatch(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=message.report_ids,
        messages=_check_column("verifier message", message.messages, count, 0),
    )


FINISH_BATCH: Final = WireMessage(
    "batch to finish", pb.FinishBatchRequest, _finish_to_pb, _read_finish, MAX_PEER_MESSAGE_BYTES
)


def _decision_to_pb(decision: BatchDecision) -> pb.FinishBatchResponse:
    return pb.FinishBatchResponse(task_id=decision.task_id, batch=decision.batch, accepted=decision.accepted)


def _read_decision(message: pb.FinishBatchResponse) -> BatchDecision:
    _count_of(message.accepted, 0)
    return BatchDecision(task_id=TaskId(message.task_id), batch=message.batch, accepted=message.accepted)


BATCH_DECISION: Final = WireMessage(
    "batch decision", pb.FinishBatchResponse, _decision_to_pb, _read_decision, MAX_PEER_MESSAGE_BYTES
)
