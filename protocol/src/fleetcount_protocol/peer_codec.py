"""What the aggregators of a task say to each other, between domain values and protobuf (protos/…/peer.proto).

Every message is a `WireMessage`. Decides nothing about a set or a release; it only refuses what is not the one encoding
of a message.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fleetcount_protocol.codec import SIGNED_TASK, read_reason, read_state
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.limits import (
    MAX_IDS_PER_CHUNK,
    MAX_LEDGER_ROWS,
    MAX_PEER_MESSAGE_BYTES,
    MAX_REASON_BYTES,
    MAX_REPORTS_PER_PEER_BATCH,
    MAX_REPORTS_PER_TASK,
    MAX_TASK_BYTES,
    MAX_VERIFIER_BYTES,
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.messages import (
    AbortTask,
    BatchDecision,
    BatchProposal,
    BatchReply,
    FinishBatch,
    InstallTask,
    MissingReport,
    PeerVerifierShare,
    ProposedReport,
    RejectedReport,
    SealSet,
    SetAgreed,
    TaskState,
    TaskStatus,
    VerifierMessage,
)
from fleetcount_protocol.opening_codec import (
    COMMIT_QUERY,
    COMMITMENT,
    FINISHED_RECORD,
    NOISED_SHARE,
    OPEN_QUERY,
    RECORD_PROPOSAL,
    RECORD_SIGNATURE,
)
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire import WireMessage, check_count, check_distinct, check_label, check_size

__all__ = [
    "ABORT_ANSWER",
    "ABORT_TASK",
    "BATCH_DECISION",
    "BATCH_PROPOSAL",
    "BATCH_REPLY",
    "COMMITMENT",
    "COMMIT_QUERY",
    "DELIVER_ANSWER",
    "FINISHED_RECORD",
    "FINISH_BATCH",
    "INSTALL_ANSWER",
    "INSTALL_TASK",
    "NOISED_SHARE",
    "OPEN_QUERY",
    "RECORD_PROPOSAL",
    "RECORD_SIGNATURE",
    "SET_AGREED",
    "STATUS",
    "STATUS_QUERY",
    "join_seal_set",
    "split_seal_set",
]

_SMALL_BYTES: Final = 4_096
BatchAnswer = PeerVerifierShare | MissingReport | RejectedReport


def _check_label_reason(text: str) -> str:
    if not text:
        raise DecodeError("an abort needs a reason")
    return check_label("abort reason", text, MAX_REASON_BYTES)


def _check_batch_ids(what: str, ids: Sequence[bytes], smallest: int = 0) -> None:
    check_count(what, len(ids), smallest, MAX_REPORTS_PER_PEER_BATCH)
    check_distinct("report", ids)


# Tasks and states.


def _install_to_pb(install: InstallTask) -> pb.InstallTaskRequest:
    return pb.InstallTaskRequest(signed_task=SIGNED_TASK.to_pb(install.signed_task), verify_key=install.verify_key)


def _read_install(message: pb.InstallTaskRequest) -> InstallTask:
    return InstallTask(
        signed_task=SIGNED_TASK.read(message.signed_task),
        verify_key=check_size("verify key", message.verify_key, VERIFY_KEY_BYTES, VERIFY_KEY_BYTES),
    )


INSTALL_TASK: Final = WireMessage(
    name="task installation",
    pb_type=pb.InstallTaskRequest,
    to_pb=_install_to_pb,
    read=_read_install,
    largest=MAX_TASK_BYTES + _SMALL_BYTES,
)


def _install_answer_to_pb(state: TaskState) -> pb.InstallTaskResponse:
    return pb.InstallTaskResponse(state=state.value)


def _deliver_answer_to_pb(state: TaskState) -> pb.DeliverRecordResponse:
    return pb.DeliverRecordResponse(state=state.value)


def _abort_answer_to_pb(state: TaskState) -> pb.AbortResponse:
    return pb.AbortResponse(state=state.value)


def _read_answer(message: pb.InstallTaskResponse | pb.DeliverRecordResponse | pb.AbortResponse) -> TaskState:
    return read_state(message.state)


INSTALL_ANSWER: Final = WireMessage("state", pb.InstallTaskResponse, _install_answer_to_pb, _read_answer, _SMALL_BYTES)
DELIVER_ANSWER: Final = WireMessage(
    "state", pb.DeliverRecordResponse, _deliver_answer_to_pb, _read_answer, _SMALL_BYTES
)
ABORT_ANSWER: Final = WireMessage("state", pb.AbortResponse, _abort_answer_to_pb, _read_answer, _SMALL_BYTES)


def _abort_to_pb(abort: AbortTask) -> pb.AbortRequest:
    return pb.AbortRequest(task_id=abort.task_id, reason=abort.reason)


def _read_abort(message: pb.AbortRequest) -> AbortTask:
    return AbortTask(task_id=TaskId(message.task_id), reason=_check_label_reason(message.reason))


ABORT_TASK: Final = WireMessage("abort", pb.AbortRequest, _abort_to_pb, _read_abort, _SMALL_BYTES)


def _status_query_to_pb(task_id: TaskId) -> pb.GetStatusRequest:
    return pb.GetStatusRequest(task_id=task_id)


def _read_status_query(message: pb.GetStatusRequest) -> TaskId:
    return TaskId(message.task_id)


STATUS_QUERY: Final = WireMessage(
    "status query", pb.GetStatusRequest, _status_query_to_pb, _read_status_query, _SMALL_BYTES
)


def _status_to_pb(status: TaskStatus) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        state=status.state.value,
        abort_reason=status.abort_reason,
        set_digest=status.set_digest or b"",
        rejections=[pb.RejectionCount(reason=reason.value, count=count) for reason, count in status.rejections],
        ledger_rows=status.ledger_rows,
    )


def _read_status(message: pb.GetStatusResponse) -> TaskStatus:
    check_count("rejection counts", len(message.rejections), 0, len(RejectReason))
    check_count("rows of a ledger", message.ledger_rows, 0, MAX_LEDGER_ROWS)
    return TaskStatus(
        state=read_state(message.state),
        abort_reason=check_label("abort reason", message.abort_reason, MAX_REASON_BYTES),
        set_digest=Digest(message.set_digest) if message.set_digest else None,
        rejections=tuple((read_reason(one.reason), one.count) for one in message.rejections),
        ledger_rows=message.ledger_rows,
    )


STATUS: Final = WireMessage(
    name="status",
    pb_type=pb.GetStatusResponse,
    to_pb=_status_to_pb,
    read=_read_status,
    largest=_SMALL_BYTES,
    most=len(RejectReason),
)


# Batches.


def _proposal_to_pb(proposal: BatchProposal) -> pb.ProposeBatchRequest:
    reports = [
        pb.ProposedReport(
            report_id=report.report_id,
            public_share_digest=report.public_share_digest,
            verifier_share=report.verifier_share,
        )
        for report in proposal.reports
    ]
    return pb.ProposeBatchRequest(task_id=proposal.task_id, batch=proposal.batch, reports=reports)


def _read_proposal(message: pb.ProposeBatchRequest) -> BatchProposal:
    _check_batch_ids("proposed reports", [report.report_id for report in message.reports], smallest=1)
    reports = tuple(
        ProposedReport(
            report_id=ReportId(report.report_id),
            public_share_digest=Digest(report.public_share_digest),
            verifier_share=check_size("verifier share", report.verifier_share, 1, MAX_VERIFIER_BYTES),
        )
        for report in message.reports
    )
    return BatchProposal(task_id=TaskId(message.task_id), batch=message.batch, reports=reports)


BATCH_PROPOSAL: Final = WireMessage(
    name="batch proposal",
    pb_type=pb.ProposeBatchRequest,
    to_pb=_proposal_to_pb,
    read=_read_proposal,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
)


def _answer_to_pb(answer: BatchAnswer) -> pb.BatchAnswer:
    if isinstance(answer, PeerVerifierShare):
        return pb.BatchAnswer(report_id=answer.report_id, verifier_share=answer.verifier_share)
    reason = RejectReason.MISSING_AT_PEER if isinstance(answer, MissingReport) else answer.reason
    return pb.BatchAnswer(report_id=answer.report_id, reason=reason.value)


def _read_batch_answer(message: pb.BatchAnswer) -> BatchAnswer:
    report_id = ReportId(message.report_id)
    if not message.reason:
        share = check_size("verifier share", message.verifier_share, 1, MAX_VERIFIER_BYTES)
        return PeerVerifierShare(report_id=report_id, verifier_share=share)
    reason = read_reason(message.reason)
    if reason is RejectReason.MISSING_AT_PEER:
        return MissingReport(report_id=report_id)
    return RejectedReport(report_id=report_id, reason=reason)


def _reply_to_pb(reply: BatchReply) -> pb.ProposeBatchResponse:
    answers = [_answer_to_pb(answer) for answer in reply.answers]
    return pb.ProposeBatchResponse(task_id=reply.task_id, batch=reply.batch, answers=answers)


def _read_reply(message: pb.ProposeBatchResponse) -> BatchReply:
    _check_batch_ids("answers", [answer.report_id for answer in message.answers], smallest=1)
    answers = tuple(_read_batch_answer(answer) for answer in message.answers)
    return BatchReply(task_id=TaskId(message.task_id), batch=message.batch, answers=answers)


BATCH_REPLY: Final = WireMessage(
    name="batch reply",
    pb_type=pb.ProposeBatchResponse,
    to_pb=_reply_to_pb,
    read=_read_reply,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
)


def _finish_to_pb(finish: FinishBatch) -> pb.FinishBatchRequest:
    messages = [pb.VerifierMessage(report_id=one.report_id, message=one.message) for one in finish.messages]
    return pb.FinishBatchRequest(task_id=finish.task_id, batch=finish.batch, messages=messages)


def _read_finish(message: pb.FinishBatchRequest) -> FinishBatch:
    _check_batch_ids("verifier messages", [one.report_id for one in message.messages])
    messages = tuple(
        VerifierMessage(
            report_id=ReportId(one.report_id),
            message=check_size("verifier message", one.message, 0, MAX_VERIFIER_BYTES),
        )
        for one in message.messages
    )
    return FinishBatch(task_id=TaskId(message.task_id), batch=message.batch, messages=messages)


FINISH_BATCH: Final = WireMessage(
    name="batch to finish",
    pb_type=pb.FinishBatchRequest,
    to_pb=_finish_to_pb,
    read=_read_finish,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
)


def _decision_to_pb(decision: BatchDecision) -> pb.FinishBatchResponse:
    return pb.FinishBatchResponse(task_id=decision.task_id, batch=decision.batch, accepted=decision.accepted)


def _read_decision(message: pb.FinishBatchResponse) -> BatchDecision:
    _check_batch_ids("accepted reports", message.accepted)
    accepted = tuple(ReportId(one) for one in message.accepted)
    return BatchDecision(task_id=TaskId(message.task_id), batch=message.batch, accepted=accepted)


BATCH_DECISION: Final = WireMessage(
    name="batch decision",
    pb_type=pb.FinishBatchResponse,
    to_pb=_decision_to_pb,
    read=_read_decision,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
)


# The set.


def split_seal_set(seal: SealSet) -> Iterator[pb.SealSetRequest]:
    """Yield the chunks of a set, ids ascending, the digest in the last chunk only; run by the leader."""
    ordered = sorted(seal.accepted)
    starts = range(0, max(len(ordered), 1), MAX_IDS_PER_CHUNK)
    for start in starts:
        last = start == starts[-1]
        yield pb.SealSetRequest(
            task_id=seal.task_id,
            accepted=ordered[start : start + MAX_IDS_PER_CHUNK],
            set_digest=seal.set_digest if last else b"",
        )


def join_seal_set(chunks: Iterable[pb.SealSetRequest]) -> SealSet:
    """Return the set of a stream of chunks; run by a helper.

    Raises:
        DecodeError: chunks of different tasks, ids that do not ascend throughout, an unfinished or over-long stream.
    """
    task_id: TaskId | None = None
    accepted: list[ReportId] = []
    digest: Digest | None = None
    for chunk in chunks:
        if digest is not None:
            raise DecodeError("a chunk of a set follows the last one")
        task_id = _check_chunk(chunk, task_id)
        check_count("reports of a set", len(accepted) + len(chunk.accepted), 0, MAX_REPORTS_PER_TASK)
        for one in chunk.accepted:
            _append_ascending(accepted, ReportId(one))
        digest = Digest(chunk.set_digest) if chunk.set_digest else None
    if task_id is None or digest is None:
        raise DecodeError("a set ends before its digest")
    return SealSet(task_id=task_id, accepted=tuple(accepted), set_digest=digest)


def _check_chunk(chunk: pb.SealSetRequest, expected: TaskId | None) -> TaskId:
    check_count("reports of a chunk", len(chunk.accepted), 1, MAX_IDS_PER_CHUNK)
    task_id = TaskId(chunk.task_id)
    if expected is not None and task_id != expected:
        raise DecodeError("the chunks of a set name two tasks")
    rebuilt = pb.SealSetRequest(task_id=task_id, accepted=chunk.accepted, set_digest=chunk.set_digest)
    if rebuilt != chunk:
        raise DecodeError("a chunk of a set holds unknown fields")
    return task_id


def _append_ascending(ids: list[ReportId], following: ReportId) -> None:
    if ids and following <= ids[-1]:
        raise DecodeError("the reports of a set do not ascend")
    ids.append(following)


def _agreed_to_pb(agreed: SetAgreed) -> pb.SealSetResponse:
    return pb.SealSetResponse(task_id=agreed.task_id, set_digest=agreed.set_digest)


def _read_agreed(message: pb.SealSetResponse) -> SetAgreed:
    return SetAgreed(task_id=TaskId(message.task_id), set_digest=Digest(message.set_digest))


SET_AGREED: Final = WireMessage("agreed set", pb.SealSetResponse, _agreed_to_pb, _read_agreed, _SMALL_BYTES)
