"""The codecs of messages between the aggregators of a window (protos/…/peer.proto).

Every message is a `WireMessage`. Nothing is decided about a set or a release; only bytes that are not the one encoding
of a message are refused.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, cast

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, QuestionId, ReportId, WindowId
from fleetcount_protocol.limits import (
    COMMITMENT_BLIND_BYTES,
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_IDS_PER_CHUNK,
    MAX_KEY_LIST_BYTES,
    MAX_LEDGER_ROWS,
    MAX_ORDERS_PER_QUESTION,
    MAX_PEER_MESSAGE_BYTES,
    MAX_QUESTION_BYTES,
    MAX_QUESTIONS,
    MAX_REASON_BYTES,
    MAX_RECORD_BYTES,
    MAX_REPORTS_PER_PEER_BATCH,
    MAX_REPORTS_PER_WINDOW,
    MAX_VERIFIER_BYTES,
    MIN_AGGREGATORS,
    SET_LEAVES,
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    QuestionAnswer,
    RecordProposal,
    RecordSignature,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.question.orders import SignedOrder
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.v1 import device_pb2
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.window.domain import MAX_OPENED
from fleetcount_protocol.wire.codec import (
    Bounds,
    Count,
    Label,
    Range,
    Size,
    check_count,
    check_distinct,
    check_size,
    conversion,
    either,
    message,
    single,
)
from fleetcount_protocol.wire.question import ORDERS_BYTES, QUESTION_BOUNDS, SIGNED_QUESTION, SMALL_BYTES

# The accepted set of a window as a stream of chunks (protos/…/peer.proto): its leaves, then report ids of some leaves.
#
# It is read chunk by chunk, so that the reader can use the first before the next arrives. No digest is verified.

_ID: Final = ReportId.SIZE
_LEAVES_BYTES: Final = SET_LEAVES * Digest.SIZE


def split_seal_set(seal: SealSet) -> Iterator[pb.SealSetRequest]:
    """Yield the chunks of a set: its leaves and the number of ids that follow, then the ids; run by the leader."""
    count = len(seal.accepted) // _ID
    yield pb.SealSetRequest(window_id=seal.window_id, leaf_digests=seal.leaf_digests, following=count)
    for start in range(0, count, MAX_IDS_PER_CHUNK):
        ids = seal.accepted[_ID * start : _ID * (start + MAX_IDS_PER_CHUNK)]
        yield pb.SealSetRequest(window_id=seal.window_id, accepted=ids)


class SealSetChunks:
    """The set of a stream of chunks, added one by one; run by a helper, which checks the first before the next."""

    def __init__(self) -> None:
        self._first: pb.SealSetRequest | None = None
        self._count = 0
        self._accepted: list[bytes] = []
        self._last = b""

    def add(self, chunk: pb.SealSetRequest) -> WindowId:
        """Add the next chunk, and return its window.

        Raises:
            DecodeError: a chunk of another window, ids that do not ascend throughout, more ids than the first chunk
                announces, or more than a set may have.
        """
        window_id = WindowId(chunk.window_id)
        if self._first is None:
            check_size("the leaves of a set", chunk.leaf_digests, _LEAVES_BYTES, _LEAVES_BYTES)
            check_count("reports of a set", chunk.following, 0, MAX_REPORTS_PER_WINDOW)
            known = pb.SealSetRequest(window_id=window_id, leaf_digests=chunk.leaf_digests, following=chunk.following)
            self._first = known
        else:
            if self.complete:
                raise DecodeError("a chunk of a set follows the last one")
            if window_id != self._first.window_id:
                raise DecodeError("the chunks of a set name two windows")
            accepted = chunk.accepted
            if len(accepted) % _ID:
                raise DecodeError(f"report ids have {len(accepted)} bytes, not a multiple of {_ID}")
            check_count("reports of a chunk", len(accepted) // _ID, 1, min(MAX_IDS_PER_CHUNK, self._left))
            known = pb.SealSetRequest(window_id=window_id, accepted=accepted)
            _check_ascending(self._last, accepted)
            self._accepted.append(accepted)
            self._count += len(accepted) // _ID
            self._last = accepted[-_ID:]
        if known != chunk:
            raise DecodeError("a chunk of a set holds unknown fields")
        return window_id

    @property
    def following(self) -> int:
        """The number of ids that the first chunk announces; 0 before it."""
        return self._first.following if self._first else 0

    @property
    def _left(self) -> int:
        return self.following - self._count

    @property
    def complete(self) -> bool:
        """Whether the last chunk has been added."""
        return self._first is not None and not self._left

    def joined(self) -> SealSet:
        """Return the set.

        Raises:
            DecodeError: its last chunk has not been added.
        """
        if self._first is None or self._left:
            raise DecodeError("a set ends before its last report")
        leaves, accepted = self._first.leaf_digests, b"".join(self._accepted)
        return SealSet(window_id=WindowId(self._first.window_id), leaf_digests=leaves, accepted=accepted)


def join_seal_set(chunks: Iterable[pb.SealSetRequest]) -> SealSet:
    """Return the set of all chunks of a stream.

    Raises:
        DecodeError: chunks of different windows, ids that do not ascend throughout, an unfinished or over-long stream.
    """
    taken = SealSetChunks()
    for chunk in chunks:
        taken.add(chunk)
    return taken.joined()


def _check_ascending(previous: bytes, accepted: bytes) -> None:
    """Refuse joined ids that do not ascend, from `previous` on."""
    ids = [previous, *(accepted[at : at + _ID] for at in range(0, len(accepted), _ID))]
    if any(first >= second for first, second in pairwise(ids)):
        raise DecodeError("the reports of a set do not ascend")


# The questions that two aggregators have in common.

_SHARED_BYTES: Final = 1_024
_SHARED_BOUNDS: Final[Bounds] = {SharedIds: {"question_ids": Count(0, MAX_QUESTIONS)}}

SHARED_QUERY: Final = single(
    "shared query", pb.ListSharedRequest, cast("type[QuestionId | None]", QuestionId | None), _SHARED_BYTES
)
SHARED_IDS: Final = message(
    "shared ids", pb.ListSharedResponse, SharedIds, _SHARED_BOUNDS, MAX_QUESTIONS * QuestionId.SIZE + _SHARED_BYTES
)
SHARED_QUESTION_QUERY: Final = single("shared question query", pb.GetSharedQuestionRequest, QuestionId, _SHARED_BYTES)


# Batches of reports, as columns: the length of the ids gives the number of reports, and the length of a column the size
# of its shares; a column is split only after every length is checked.

_MOST: Final = MAX_REPORTS_PER_PEER_BATCH
_SOME_IDS: Final = Size(_ID, _MOST * _ID, _ID)
_ANY_IDS: Final = Size(0, _MOST * _ID, _ID)
_SHARES: Final = Size(0, _MOST * MAX_VERIFIER_BYTES)
_BATCH_BOUNDS: Final[Bounds] = {
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
"""The allowed bytes of `reasons`: 0 means that there is a verifier share."""


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
    "batch proposal",
    pb.ProposeBatchRequest,
    BatchProposal,
    _BATCH_BOUNDS,
    MAX_PEER_MESSAGE_BYTES,
    check=_check_proposal,
)
BATCH_REPLY: Final = message(
    "batch reply", pb.ProposeBatchResponse, BatchReply, _BATCH_BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_reply
)
FINISH_BATCH: Final = message(
    "batch to finish", pb.FinishBatchRequest, FinishBatch, _BATCH_BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_finish
)
BATCH_DECISION: Final = message(
    "batch decision",
    pb.FinishBatchResponse,
    BatchDecision,
    _BATCH_BOUNDS,
    MAX_PEER_MESSAGE_BYTES,
    check=lambda decision: _check_once(decision.accepted),
)


# Commitments, opened shares and signatures of a release.

_RELEASE_BYTES: Final = 4_096
_VECTOR_BYTES: Final = 8 * MAX_OPENED
_RECORD: Final = Size(1, MAX_RECORD_BYTES)
_SIGNATURE: Final = Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
_RELEASE_BOUNDS: Final[Bounds] = {
    OpenQuery: {"commitments": Count(MIN_AGGREGATORS, MAX_AGGREGATORS)},
    NoisedShare: {
        "vector": Size(8, _VECTOR_BYTES, 8),
        "blind": Size(COMMITMENT_BLIND_BYTES, COMMITMENT_BLIND_BYTES),
    },
    RecordProposal: {"shares": Count(MIN_AGGREGATORS, MAX_AGGREGATORS), "record": _RECORD},
    RecordSignature: {"signature": _SIGNATURE},
    FinishedRecord: {"record": _RECORD, "signatures": Count(MIN_AGGREGATORS, MAX_AGGREGATORS, _SIGNATURE)},
}


def _check_commitments(query: OpenQuery) -> None:
    if any((one.window_id, one.set_digest) != (query.window_id, query.set_digest) for one in query.commitments):
        raise DecodeError("a commitment is for another window or set")
    check_distinct("aggregator", (one.aggregator_id.encode() for one in query.commitments))


def _check_shares(proposal: RecordProposal) -> None:
    digest = proposal.shares[0].set_digest
    if any((one.window_id, one.set_digest) != (proposal.window_id, digest) for one in proposal.shares):
        raise DecodeError("a noised share is for another window or set")
    check_distinct("aggregator", (one.aggregator_id.encode() for one in proposal.shares))


COMMIT_QUERY: Final = message("commit query", pb.CommitRequest, CommitQuery, _RELEASE_BOUNDS, _RELEASE_BYTES)
COMMITMENT: Final = single(
    "commitment", pb.CommitResponse, Commitment, _RELEASE_BYTES, conversion(pb.Commitment, Commitment, _RELEASE_BOUNDS)
)
OPEN_QUERY: Final = message(
    "open query", pb.OpenRequest, OpenQuery, _RELEASE_BOUNDS, _RELEASE_BYTES, check=_check_commitments
)
NOISED_SHARE: Final = single(
    "noised share",
    pb.OpenResponse,
    NoisedShare,
    _VECTOR_BYTES + _RELEASE_BYTES,
    conversion(pb.NoisedShare, NoisedShare, _RELEASE_BOUNDS),
)
RECORD_PROPOSAL: Final = message(
    "record proposal",
    pb.SignRecordRequest,
    RecordProposal,
    _RELEASE_BOUNDS,
    MAX_PEER_MESSAGE_BYTES,
    check=_check_shares,
)
RECORD_SIGNATURE: Final = message(
    "record signature", pb.SignRecordResponse, RecordSignature, _RELEASE_BOUNDS, _RELEASE_BYTES
)
FINISHED_RECORD: Final = message(
    "finished record", pb.DeliverRecordRequest, FinishedRecord, _RELEASE_BOUNDS, MAX_RECORD_BYTES + _RELEASE_BYTES
)

_SMALL_BYTES: Final = 4_096
_BOUNDS: Final[Bounds] = {
    AbortWindow: {"reason": Label(1, MAX_REASON_BYTES)},
    WindowStatus: {
        "ledger_rows": Range(0, MAX_LEDGER_ROWS),
        "abort_reason": Label(0, MAX_REASON_BYTES),
        "rejections": Count(0, len(RejectReason)),
    },
    SetDiffers: {"leaves": Size(SET_LEAVES // 8, SET_LEAVES // 8)},
}

# Windows and states.

DELIVER_ANSWER: Final = single("state", pb.DeliverRecordResponse, WindowState, _SMALL_BYTES)
ABORT_ANSWER: Final = single("state", pb.AbortResponse, WindowState, _SMALL_BYTES)
ABORT_WINDOW: Final = message("abort", pb.AbortRequest, AbortWindow, _BOUNDS, _SMALL_BYTES)
STATUS_QUERY: Final = single("status query", pb.GetStatusRequest, WindowId, _SMALL_BYTES)
STATUS: Final = message("status", pb.GetStatusResponse, WindowStatus, _BOUNDS, _SMALL_BYTES)

# The set.


def _check_differs(answer: SetDiffers) -> None:
    if not any(answer.leaves):
        raise DecodeError("a set that differs in no leaf is the same set")


SET_ANSWER: Final = either(
    "answer to a set",
    pb.SealSetResponse,
    conversion(pb.SealSetResponse, SetAgreed, _BOUNDS, subset=True),
    conversion(pb.SealSetResponse, SetDiffers, _BOUNDS, subset=True, check=_check_differs),
    SetDiffers,
    "leaves",
    _SMALL_BYTES,
)


# Of questions.

_INSTALL_BOUNDS: Final[Bounds] = {
    **QUESTION_BOUNDS,
    InstallQuestion: {
        "signed": SIGNED_QUESTION,
        "seed": Size(VERIFY_KEY_BYTES, VERIFY_KEY_BYTES),
        "orders": Count(0, MAX_ORDERS_PER_QUESTION),
    },
}

INSTALL_QUESTION: Final = message(
    "question installation",
    pb.InstallQuestionRequest,
    InstallQuestion,
    _INSTALL_BOUNDS,
    MAX_QUESTION_BYTES + ORDERS_BYTES + SMALL_BYTES,
)
INSTALL_QUESTION_ANSWER: Final = message(
    "question answer", pb.InstallQuestionResponse, QuestionAnswer, QUESTION_BOUNDS, MAX_KEY_LIST_BYTES + SMALL_BYTES
)
DELIVER_ORDER: Final = single(
    "order",
    pb.DeliverOrderRequest,
    SignedOrder,
    SMALL_BYTES,
    conversion(device_pb2.SignedOrder, SignedOrder, QUESTION_BOUNDS),
)
DELIVER_ORDER_ANSWER: Final = message(
    "question answer", pb.DeliverOrderResponse, QuestionAnswer, QUESTION_BOUNDS, MAX_KEY_LIST_BYTES + SMALL_BYTES
)
