"""Batches of reports, between domain values and protobuf (protos/…/peer.proto): columns on both sides.

How many reports a batch has follows from the length of its ids, and the size of a share from the length of its column;
no part is cut out before every length is checked.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.limits import MAX_PEER_MESSAGE_BYTES, MAX_REPORTS_PER_PEER_BATCH, MAX_VERIFIER_BYTES
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Size, message
from fleetcount_protocol.wire.strict import check_distinct, check_size

_MOST: Final = MAX_REPORTS_PER_PEER_BATCH
_ID: Final = ReportId.SIZE
_SOME_IDS: Final = Size(_ID, _MOST * _ID, _ID)
_ANY_IDS: Final = Size(0, _MOST * _ID, _ID)
_SHARES: Final = Size(0, _MOST * MAX_VERIFIER_BYTES)
_BOUNDS: Final[Bounds] = {
    BatchProposal: {
        "report_ids": _SOME_IDS,
        "share_digests": Size(Digest.SIZE, _MOST * Digest.SIZE, Digest.SIZE),
        "verifier_shares": _SHARES,
    },
    BatchReply: {"report_ids": _SOME_IDS, "reasons": Size(1, _MOST), "verifier_shares": _SHARES},
    FinishBatch: {"report_ids": _ANY_IDS, "messages": _SHARES},
    BatchDecision: {"accepted": _ANY_IDS},
}
_REASONS: Final = bytes((0, *(reason.value for reason in RejectReason)))
"""What the byte of a report may be: 0 comes with a verifier share."""


def _check_once(ids: bytes) -> int:
    """Return how many reports a batch names, each once."""
    check_distinct("report", (ids[at : at + _ID] for at in range(0, len(ids), _ID)))
    return len(ids) // _ID


def _check_column(what: str, column: bytes, count: int, smallest: int) -> None:
    """Refuse a column that is not `count` fields of one size, of `smallest` bytes at least."""
    check_size(f"column of {count} {what}s", column, smallest * count, MAX_VERIFIER_BYTES * count)
    if count and len(column) % count:
        raise DecodeError(f"a batch has {what}s of several sizes: {len(column)} bytes for {count} reports")


def _check_proposal(proposal: BatchProposal) -> None:
    count = _check_once(proposal.report_ids)
    check_size("share digests", proposal.share_digests, Digest.SIZE * count, Digest.SIZE * count)
    _check_column("verifier share", proposal.verifier_shares, count, 1)


def _check_reply(reply: BatchReply) -> None:
    count = _check_once(reply.report_ids)
    check_size("reasons", reply.reasons, count, count)
    if unknown := reply.reasons.translate(None, _REASONS):
        raise DecodeError(f"{unknown[0]} is no reason of the list")
    _check_column("verifier share", reply.verifier_shares, reply.reasons.count(0), 1)


def _check_finish(finish: FinishBatch) -> None:
    _check_column("verifier message", finish.messages, _check_once(finish.report_ids), 0)


BATCH_PROPOSAL: Final = message(
    "batch proposal", pb.ProposeBatchRequest, BatchProposal, _BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_proposal
)
BATCH_REPLY: Final = message(
    "batch reply", pb.ProposeBatchResponse, BatchReply, _BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_reply
)
FINISH_BATCH: Final = message(
    "batch to finish", pb.FinishBatchRequest, FinishBatch, _BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_finish
)
BATCH_DECISION: Final = message(
    "batch decision",
    pb.FinishBatchResponse,
    BatchDecision,
    _BOUNDS,
    MAX_PEER_MESSAGE_BYTES,
    check=lambda decision: _check_once(decision.accepted),
)
