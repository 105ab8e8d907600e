"""What a device and an aggregator say to each other, between domain values and protobuf (protos/…/device.proto).

Every message is a `WireMessage`: `.encode`/`.decode` for bytes (MQTT, files), `.to_pb`/`.from_pb` for gRPC. Decides
nothing about a report; it only refuses what is not the one encoding of a message.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fleetcount_protocol.channel.session import check_session_request
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import (
    AES_GCM_TAG_BYTES,
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_BATCH_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENT_BYTES,
    MAX_INSTALMENTS_PER_BATCH,
    MAX_PUBLIC_SHARE_BYTES,
    MAX_REASON_BYTES,
    MAX_RECORD_BYTES,
    MAX_SESSION_BYTES,
    MAX_SESSIONS_PER_REQUEST,
    MAX_TASK_BYTES,
    MAX_TASK_LIST_BYTES,
    MAX_TASKS_PER_LIST,
)
from fleetcount_protocol.messages import (
    Instalment,
    InstalmentReply,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionReply,
    SessionRequest,
    TaskState,
)
from fleetcount_protocol.task.signed_file import signed_task
from fleetcount_protocol.task.task import SignedTask, decode_task
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_label, check_size

__all__ = [
    "INSTALMENT",
    "INSTALMENTS",
    "INSTALMENT_REPLIES",
    "INSTALMENT_REPLY",
    "RELEASE_ANSWER",
    "RELEASE_QUERY",
    "SESSION_REPLIES",
    "SESSION_REPLY",
    "SESSION_REQUEST",
    "SESSION_REQUESTS",
    "SIGNED_TASK",
    "TASK_LIST",
    "TASK_LIST_QUERY",
    "batches",
    "decode_instalment",
    "decode_instalment_reply",
    "decode_release_answer",
    "decode_session_reply",
    "decode_session_request",
    "decode_wire_task",
    "encode_instalment",
    "encode_instalment_reply",
    "encode_release_answer",
    "encode_session_reply",
    "encode_session_request",
    "encode_wire_task",
    "read_reason",
    "read_state",
]

_SMALL_BYTES: Final = 1_024
_MAC_BYTES: Final = 32


def read_reason(number: int) -> RejectReason:
    """Return a refusal's reason.

    Raises:
        DecodeError: no reason of the closed list.
    """
    try:
        return RejectReason(number)
    except ValueError:
        raise DecodeError(f"{number} is no reason of the list") from None


def read_state(word: str) -> TaskState:
    """Return a task's state.

    Raises:
        DecodeError: no state.
    """
    try:
        return TaskState(word)
    except ValueError:
        raise DecodeError(f"{word[:40]!a} is no state of a task") from None


# Tasks.


def _signed_task_to_pb(signed: SignedTask) -> pb.SignedTask:
    return pb.SignedTask(task=signed.task.canonical, signatures=signed.signatures)


def _read_signed_task(message: pb.SignedTask) -> SignedTask:
    check_count("signatures", len(message.signatures), 0, MAX_AGGREGATORS)
    check_size("task", message.task, 1, MAX_TASK_BYTES)
    return signed_task(decode_task(message.task), tuple(message.signatures))


SIGNED_TASK: Final = WireMessage(
    name="signed task",
    pb_type=pb.SignedTask,
    to_pb=_signed_task_to_pb,
    read=_read_signed_task,
    largest=MAX_TASK_BYTES + _SMALL_BYTES,
)
"""A task with its signatures: the retained payload of a task topic."""


def _read_task_list(message: pb.ListTasksResponse) -> tuple[SignedTask, ...]:
    check_count("tasks", len(message.tasks), 0, MAX_TASKS_PER_LIST)
    return tuple(_read_signed_task(task) for task in message.tasks)


def _task_list_to_pb(tasks: Sequence[SignedTask]) -> pb.ListTasksResponse:
    return pb.ListTasksResponse(tasks=map(_signed_task_to_pb, tasks))


TASK_LIST: Final = WireMessage(
    name="task list",
    pb_type=pb.ListTasksResponse,
    to_pb=_task_list_to_pb,
    read=_read_task_list,
    largest=MAX_TASK_LIST_BYTES,
    most=MAX_TASKS_PER_LIST,
)


def _task_list_query_to_pb(deployment: str) -> pb.ListTasksRequest:
    return pb.ListTasksRequest(deployment=deployment)


def _read_task_list_query(message: pb.ListTasksRequest) -> str:
    return check_label("deployment", message.deployment, 32)


TASK_LIST_QUERY: Final = WireMessage(
    name="task list query",
    pb_type=pb.ListTasksRequest,
    to_pb=_task_list_query_to_pb,
    read=_read_task_list_query,
    largest=_SMALL_BYTES,
)


# Sessions.


def _session_request_to_pb(request: SessionRequest) -> pb.SessionRequest:
    return pb.SessionRequest(
        aggregator_id=request.aggregator_id,
        key_id=request.key_id,
        sealed_secret=request.sealed_secret,
        certificate=request.certificate,
        expiry=request.expiry,
        signature=request.signature,
        ephemeral_key=request.ephemeral_key,
    )


def _read_session_request(message: pb.SessionRequest) -> SessionRequest:
    request = SessionRequest(
        aggregator_id=AggregatorId(message.aggregator_id),
        key_id=message.key_id,
        sealed_secret=message.sealed_secret,
        ephemeral_key=message.ephemeral_key,
        certificate=message.certificate,
        expiry=message.expiry,
        signature=message.signature,
    )
    check_session_request(request)
    return request


SESSION_REQUEST: Final = WireMessage(
    name="session request",
    pb_type=pb.SessionRequest,
    to_pb=_session_request_to_pb,
    read=_read_session_request,
    largest=MAX_SESSION_BYTES,
)


def _session_requests_to_pb(requests: Sequence[SessionRequest]) -> pb.OpenSessionsRequest:
    return pb.OpenSessionsRequest(requests=map(_session_request_to_pb, requests))


def _read_session_requests(message: pb.OpenSessionsRequest) -> tuple[SessionRequest, ...]:
    check_count("session requests", len(message.requests), 0, MAX_SESSIONS_PER_REQUEST)
    return tuple(_read_session_request(request) for request in message.requests)


SESSION_REQUESTS: Final = WireMessage(
    name="session requests",
    pb_type=pb.OpenSessionsRequest,
    to_pb=_session_requests_to_pb,
    read=_read_session_requests,
    largest=MAX_SESSIONS_PER_REQUEST * MAX_SESSION_BYTES,
    most=MAX_SESSIONS_PER_REQUEST,
)


def _session_reply_to_pb(reply: SessionReply) -> pb.SessionReply:
    if isinstance(reply, SessionAccepted):
        return pb.SessionReply(
            session_id=reply.session_id,
            expiry=reply.expiry,
            ephemeral_key=reply.ephemeral_key,
            confirmation=reply.confirmation,
        )
    return pb.SessionReply(session_id=reply.session_id, reason=reply.reason.value)


def _read_session_reply(message: pb.SessionReply) -> SessionReply:
    session_id = SessionId(message.session_id)
    if message.reason:
        return SessionRefused(session_id=session_id, reason=read_reason(message.reason))
    if not message.expiry:
        raise DecodeError("an accepted session has an expiry")
    return SessionAccepted(
        session_id=session_id,
        expiry=message.expiry,
        ephemeral_key=message.ephemeral_key,
        confirmation=message.confirmation,
    )


SESSION_REPLY: Final = WireMessage(
    name="session reply",
    pb_type=pb.SessionReply,
    to_pb=_session_reply_to_pb,
    read=_read_session_reply,
    largest=_SMALL_BYTES,
)


def _session_replies_to_pb(replies: Sequence[SessionReply]) -> pb.OpenSessionsResponse:
    return pb.OpenSessionsResponse(replies=map(_session_reply_to_pb, replies))


def _read_session_replies(message: pb.OpenSessionsResponse) -> tuple[SessionReply, ...]:
    check_count("session replies", len(message.replies), 0, MAX_SESSIONS_PER_REQUEST)
    return tuple(_read_session_reply(reply) for reply in message.replies)


SESSION_REPLIES: Final = WireMessage(
    name="session replies",
    pb_type=pb.OpenSessionsResponse,
    to_pb=_session_replies_to_pb,
    read=_read_session_replies,
    largest=MAX_SESSIONS_PER_REQUEST * _SMALL_BYTES,
    most=MAX_SESSIONS_PER_REQUEST,
)


# Reports.


def _instalment_to_pb(instalment: Instalment) -> pb.Instalment:
    return pb.Instalment(
        task_id=instalment.task_id,
        report_id=instalment.report_id,
        session_id=instalment.session_id,
        round=instalment.round,
        public_share=instalment.public_share,
        ciphertext=instalment.ciphertext,
        key_number=uint(instalment.key_number, 2),
    )


def _read_instalment(message: pb.Instalment) -> Instalment:
    return Instalment(
        task_id=TaskId(message.task_id),
        report_id=ReportId(message.report_id),
        session_id=SessionId(message.session_id),
        key_number=int.from_bytes(check_size("key number", message.key_number, 2, 2)),
        round=message.round,
        public_share=check_size("public share", message.public_share, 0, MAX_PUBLIC_SHARE_BYTES),
        ciphertext=check_size("ciphertext", message.ciphertext, AES_GCM_TAG_BYTES + 1, MAX_CIPHERTEXT_BYTES),
    )


INSTALMENT: Final = WireMessage(
    name="instalment",
    pb_type=pb.Instalment,
    to_pb=_instalment_to_pb,
    read=_read_instalment,
    largest=MAX_INSTALMENT_BYTES,
)
"""One part of a report: the payload of a report topic."""


def _instalments_to_pb(instalments: Sequence[Instalment]) -> pb.UploadRequest:
    return pb.UploadRequest(instalments=map(_instalment_to_pb, instalments))


def _read_instalments(message: pb.UploadRequest) -> tuple[Instalment, ...]:
    check_count("instalments", len(message.instalments), 0, MAX_INSTALMENTS_PER_BATCH)
    return tuple(_read_instalment(instalment) for instalment in message.instalments)


INSTALMENTS: Final = WireMessage(
    name="instalments",
    pb_type=pb.UploadRequest,
    to_pb=_instalments_to_pb,
    read=_read_instalments,
    largest=MAX_BATCH_BYTES,
    most=MAX_INSTALMENTS_PER_BATCH,
)


def batches(instalments: Iterable[Instalment]) -> Iterable[tuple[Instalment, ...]]:
    """Yield the instalments in order, in the largest groups that fit one `INSTALMENTS` message."""
    group: list[Instalment] = []
    size = 0
    for instalment in instalments:
        # Ids, tags and lengths of one instalment and of the group's entry take less than 128 bytes.
        needed = len(instalment.public_share) + len(instalment.ciphertext) + 128
        if group and (size + needed > MAX_BATCH_BYTES or len(group) == MAX_INSTALMENTS_PER_BATCH):
            yield tuple(group)
            group, size = [], 0
        group.append(instalment)
        size += needed
    if group:
        yield tuple(group)


def _instalment_reply_to_pb(reply: InstalmentReply) -> pb.InstalmentReply:
    message = pb.InstalmentReply(
        task_id=reply.task_id, report_id=reply.report_id, session_id=reply.session_id, round=reply.round
    )
    if isinstance(reply, Receipt):
        message.digest, message.mac = reply.digest, reply.mac
    else:
        message.reason = reply.reason.value
    return message


def _read_instalment_reply(message: pb.InstalmentReply) -> InstalmentReply:
    task_id, report_id = TaskId(message.task_id), ReportId(message.report_id)
    session_id = SessionId(message.session_id)
    check_count("as the number of a round", message.round, 0, 2)
    if message.reason:
        reason = read_reason(message.reason)
        return Refusal(task_id=task_id, report_id=report_id, round=message.round, session_id=session_id, reason=reason)
    return Receipt(
        task_id=task_id,
        report_id=report_id,
        round=message.round,
        session_id=session_id,
        digest=Digest(message.digest),
        mac=check_size("receipt", message.mac, _MAC_BYTES, _MAC_BYTES),
    )


INSTALMENT_REPLY: Final = WireMessage(
    name="instalment reply",
    pb_type=pb.InstalmentReply,
    to_pb=_instalment_reply_to_pb,
    read=_read_instalment_reply,
    largest=_SMALL_BYTES,
)
"""A receipt or a refusal: the payload of a receipt topic."""


def _instalment_replies_to_pb(replies: Sequence[InstalmentReply]) -> pb.UploadResponse:
    return pb.UploadResponse(replies=map(_instalment_reply_to_pb, replies))


def _read_instalment_replies(message: pb.UploadResponse) -> tuple[InstalmentReply, ...]:
    check_count("instalment replies", len(message.replies), 0, MAX_INSTALMENTS_PER_BATCH)
    return tuple(_read_instalment_reply(reply) for reply in message.replies)


INSTALMENT_REPLIES: Final = WireMessage(
    name="instalment replies",
    pb_type=pb.UploadResponse,
    to_pb=_instalment_replies_to_pb,
    read=_read_instalment_replies,
    largest=MAX_BATCH_BYTES,
    most=MAX_INSTALMENTS_PER_BATCH,
)


# Releases.


def _release_query_to_pb(task_id: TaskId) -> pb.GetReleaseRequest:
    return pb.GetReleaseRequest(task_id=task_id)


def _read_release_query(message: pb.GetReleaseRequest) -> TaskId:
    return TaskId(message.task_id)


RELEASE_QUERY: Final = WireMessage(
    name="release query",
    pb_type=pb.GetReleaseRequest,
    to_pb=_release_query_to_pb,
    read=_read_release_query,
    largest=_SMALL_BYTES,
)


def _release_answer_to_pb(answer: ReleaseAnswer) -> pb.GetReleaseResponse:
    return pb.GetReleaseResponse(
        state=answer.state.value,
        abort_reason=answer.abort_reason,
        record=answer.record,
        signatures=answer.signatures,
    )


def _read_release_answer(message: pb.GetReleaseResponse) -> ReleaseAnswer:
    check_count("signatures", len(message.signatures), 0, MAX_AGGREGATORS)
    return ReleaseAnswer(
        state=read_state(message.state),
        abort_reason=check_label("abort reason", message.abort_reason, MAX_REASON_BYTES),
        record=check_size("record", message.record, 0, MAX_RECORD_BYTES),
        signatures=tuple(
            check_size("signature", one, ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES) for one in message.signatures
        ),
    )


RELEASE_ANSWER: Final = WireMessage(
    name="release answer",
    pb_type=pb.GetReleaseResponse,
    to_pb=_release_answer_to_pb,
    read=_read_release_answer,
    largest=MAX_RECORD_BYTES + _SMALL_BYTES,
)
"""A task's state, with the signed record once it is released: the retained payload of a release topic."""

# The messages that travel alone, by the names of their actions.
encode_wire_task, decode_wire_task = SIGNED_TASK.encode, SIGNED_TASK.decode
encode_session_request, decode_session_request = SESSION_REQUEST.encode, SESSION_REQUEST.decode
encode_session_reply, decode_session_reply = SESSION_REPLY.encode, SESSION_REPLY.decode
encode_instalment, decode_instalment = INSTALMENT.encode, INSTALMENT.decode
encode_instalment_reply, decode_instalment_reply = INSTALMENT_REPLY.encode, INSTALMENT_REPLY.decode
encode_release_answer, decode_release_answer = RELEASE_ANSWER.encode, RELEASE_ANSWER.decode
