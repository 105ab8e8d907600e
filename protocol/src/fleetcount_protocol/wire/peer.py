"""What the aggregators of a task say to each other, between domain values and protobuf (protos/…/peer.proto).

Every message is a `WireMessage`. Decides nothing about a set or a release; it only refuses what is not the one encoding
of a message.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import Digest, TaskId
from fleetcount_protocol.limits import (
    MAX_LEDGER_ROWS,
    MAX_REASON_BYTES,
    MAX_TASK_BYTES,
    SET_LEAVES,
    VERIFY_KEY_BYTES,
)
from fleetcount_protocol.messages import (
    AbortTask,
    InstallTask,
    SetAgreed,
    SetDiffers,
    TaskState,
    TaskStatus,
)
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.device import SIGNED_TASK, read_reason, read_state
from fleetcount_protocol.wire.peer_batches import (
    BATCH_DECISION,
    BATCH_PROPOSAL,
    BATCH_REPLY,
    FINISH_BATCH,
)
from fleetcount_protocol.wire.peer_release import (
    COMMIT_QUERY,
    COMMITMENT,
    FINISHED_RECORD,
    NOISED_SHARE,
    OPEN_QUERY,
    RECORD_PROPOSAL,
    RECORD_SIGNATURE,
)
from fleetcount_protocol.wire.seal_sets import SealSetChunks, join_seal_set, split_seal_set
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_label, check_size

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
    "SET_ANSWER",
    "STATUS",
    "STATUS_QUERY",
    "SealSetChunks",
    "join_seal_set",
    "split_seal_set",
]

_SMALL_BYTES: Final = 4_096


def _check_label_reason(text: str) -> str:
    if not text:
        raise DecodeError("an abort needs a reason")
    return check_label("abort reason", text, MAX_REASON_BYTES)


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


# The set.


def _sealed_to_pb(answer: SetAgreed | SetDiffers) -> pb.SealSetResponse:
    if isinstance(answer, SetDiffers):
        return pb.SealSetResponse(task_id=answer.task_id, differing=answer.leaves)
    return pb.SealSetResponse(task_id=answer.task_id, set_digest=answer.set_digest)


def _read_sealed(message: pb.SealSetResponse) -> SetAgreed | SetDiffers:
    task_id = TaskId(message.task_id)
    if not message.differing:
        return SetAgreed(task_id=task_id, set_digest=Digest(message.set_digest))
    leaves = check_size("a bit for every leaf", message.differing, SET_LEAVES // 8, SET_LEAVES // 8)
    if not any(leaves):
        raise DecodeError("a set that differs in no leaf is the same set")
    return SetDiffers(task_id=task_id, leaves=leaves)


SET_ANSWER: Final = WireMessage("answer to a set", pb.SealSetResponse, _sealed_to_pb, _read_sealed, _SMALL_BYTES)
