"""Batches of reports, between columns and protobuf (protos/…/peer.proto).

A message of many reports has one spelling and few shapes, so it is read and written with templates of its constant
bytes. A message that fits no template is read by the library, and refused with the message of the strict codec.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final, TypeVar

from google.protobuf.message import Message

from fleetcount_protocol.errors import DecodeError, RejectReason, UsageError
from fleetcount_protocol.ids import Digest, ReportId, TaskId
from fleetcount_protocol.limits import (
    MAX_PEER_MESSAGE_BYTES,
    MAX_REPORTS_PER_PEER_BATCH,
    MAX_VERIFIER_BYTES,
)
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.device import read_reason
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_distinct, check_size

__all__ = [
    "BATCH_DECISION",
    "BATCH_PROPOSAL",
    "BATCH_REPLY",
    "FINISH_BATCH",
]

DomainT = TypeVar("DomainT")
MessageT = TypeVar("MessageT", bound=Message)
_ID: Final = ReportId.SIZE
_DIGEST: Final = Digest.SIZE


def _records(column: bytes, size: int) -> list[bytes]:
    return [column[start : start + size] for start in range(0, len(column), size)] if size else []


def _check_ids(what: str, ids: Sequence[bytes], smallest: int = 0) -> bytes:
    """Return the ids joined, each once and of its size."""
    check_count(what, len(ids), smallest, MAX_REPORTS_PER_PEER_BATCH)
    check_distinct("report", ids)
    return b"".join(ReportId(one) for one in ids)


def _one_size(what: str, fields: Sequence[bytes]) -> bytes:
    """Return fields joined that must all have one size."""
    if len({len(one) for one in fields}) > 1:
        raise DecodeError(f"a batch has {what}s of several sizes")
    return b"".join(fields)


# Through the library: the reference for every message; it also finds the fault of a message that is refused.


def _proposal_to_pb(proposal: BatchProposal) -> pb.ProposeBatchRequest:
    ids = _records(proposal.report_ids, _ID)
    shares = _records(proposal.verifier_shares, len(proposal.verifier_shares) // max(1, len(ids)))
    digests = _records(proposal.share_digests, _DIGEST)
    reports = [
        pb.ProposedReport(report_id=report_id, public_share_digest=digest, verifier_share=share)
        for report_id, digest, share in zip(ids, digests, shares, strict=True)
    ]
    return pb.ProposeBatchRequest(task_id=proposal.task_id, batch=proposal.batch, reports=reports)


def _read_proposal(message: pb.ProposeBatchRequest) -> BatchProposal:
    reports = message.reports
    ids = _check_ids("proposed reports", [one.report_id for one in reports], smallest=1)
    shares = [check_size("verifier share", one.verifier_share, 1, MAX_VERIFIER_BYTES) for one in reports]
    return BatchProposal(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=ids,
        share_digests=b"".join(Digest(one.public_share_digest) for one in reports),
        verifier_shares=_one_size("verifier share", shares),
    )


def _reply_to_pb(reply: BatchReply) -> pb.ProposeBatchResponse:
    held = reply.reasons.count(0)
    shares = iter(_records(reply.verifier_shares, len(reply.verifier_shares) // max(1, held)))
    answers = [
        pb.BatchAnswer(report_id=report_id, reason=reason)
        if reason
        else pb.BatchAnswer(report_id=report_id, verifier_share=next(shares))
        for report_id, reason in zip(_records(reply.report_ids, _ID), reply.reasons, strict=True)
    ]
    return pb.ProposeBatchResponse(task_id=reply.task_id, batch=reply.batch, answers=answers)


def _read_reply(message: pb.ProposeBatchResponse) -> BatchReply:
    answers = message.answers
    ids = _check_ids("answers", [one.report_id for one in answers], smallest=1)
    shares = [one.verifier_share for one in answers if not one.reason]
    for share in shares:
        check_size("verifier share", share, 1, MAX_VERIFIER_BYTES)
    return BatchReply(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=ids,
        reasons=bytes(read_reason(one.reason).value if one.reason else 0 for one in answers),
        verifier_shares=_one_size("verifier share", shares),
    )


def _finish_to_pb(finish: FinishBatch) -> pb.FinishBatchRequest:
    ids = _records(finish.report_ids, _ID)
    size = len(finish.messages) // max(1, len(ids))
    messages = _records(finish.messages, size) or [b""] * len(ids)
    pairs = [pb.VerifierMessage(report_id=one, message=text) for one, text in zip(ids, messages, strict=True)]
    return pb.FinishBatchRequest(task_id=finish.task_id, batch=finish.batch, messages=pairs)


def _read_finish(message: pb.FinishBatchRequest) -> FinishBatch:
    texts = [check_size("verifier message", one.message, 0, MAX_VERIFIER_BYTES) for one in message.messages]
    return FinishBatch(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        report_ids=_check_ids("verifier messages", [one.report_id for one in message.messages]),
        messages=_one_size("verifier message", texts),
    )


def _decision_to_pb(decision: BatchDecision) -> pb.FinishBatchResponse:
    accepted = _records(decision.accepted, _ID)
    return pb.FinishBatchResponse(task_id=decision.task_id, batch=decision.batch, accepted=accepted)


def _read_decision(message: pb.FinishBatchResponse) -> BatchDecision:
    return BatchDecision(
        task_id=TaskId(message.task_id),
        batch=message.batch,
        accepted=_check_ids("accepted reports", message.accepted),
    )


# With templates.


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _prefix(number: int, size: int) -> bytes:
    """Return what stands before a length-delimited field of `size` bytes."""
    return bytes((number << 3 | 2,)) + _varint(size)


def _content_size(length: int) -> int:
    """Return how many bytes a field holds that takes `length` bytes with what stands before it; 0 for none."""
    for prefix in (2, 3, 4):
        size = length - prefix
        if size > 0 and len(_prefix(1, size)) == prefix:
            return size
    return 0


@dataclass(frozen=True, slots=True)
class _Template:
    """The shape of one record: pieces of constant bytes, each followed by a field of its own size."""

    pieces: tuple[tuple[bytes, int], ...]

    @classmethod
    def of(cls, number: int, sizes: Sequence[int]) -> "_Template":
        """Return the shape of messages in field `number`: the sizes of their fields 1, 2, ..., 0 for an absent one."""
        fields = [(_prefix(place, size), size) for place, size in enumerate(sizes, start=1) if size]
        total = sum(len(prefix) + size for prefix, size in fields)
        (first, size), *rest = fields
        return cls(((_prefix(number, total) + first, size), *rest))

    @property
    def length(self) -> int:
        """Bytes of a record."""
        return sum(len(constant) + size for constant, size in self.pieces)

    def join(self, columns: Sequence[bytes]) -> bytes:
        """Return all records from the joined fields of each piece."""
        parts: list[Iterable[bytes]] = []
        for (constant, size), column in zip(self.pieces, columns, strict=True):
            parts += [repeat(constant), _records(column, size)]
        return b"".join(chain.from_iterable(zip(*parts, strict=False)))

    def split(self, data: bytes, start: int) -> list[bytes] | None:
        """Return the joined fields of each piece, if the bytes from `start` on are records of this shape alone."""
        length = self.length
        count, left = divmod(len(data) - start, length)
        columns: list[bytes] = []
        if left:
            return None
        for constant, size in self.pieces:
            for place, byte in enumerate(constant, start=start):
                if data[place::length] != bytes((byte,)) * count:
                    return None
            start += len(constant)
            columns.append(b"".join([data[at : at + size] for at in range(start, len(data), length)]))
            start += size
        return columns


_ID_FIELD: Final = 2 + _ID
_DIGEST_FIELD: Final = 2 + _DIGEST
_ACCEPTED: Final = _Template(((_prefix(3, _ID), _ID),))
_REFUSED: Final = _Template(((_prefix(3, _ID_FIELD + 2) + _prefix(1, _ID), _ID), (b"\x18", 1)))
"""An answer that is a reason, field 3 of one byte."""
_REASONS: Final = frozenset(reason.value for reason in RejectReason)


def _head(task_id: TaskId, batch: int) -> bytes:
    """Return the first two fields of every message here; a batch number of 0 is left out."""
    return _prefix(1, TaskId.SIZE) + task_id + (b"\x10" + _varint(batch) if batch else b"")


def _read_head(data: bytes) -> tuple[TaskId, int, int] | None:
    """Return task id, batch number and where the records begin, if a message begins in its one spelling."""
    start = 2 + TaskId.SIZE
    batch, place, shift = 0, start + 1, 0
    if data[start : start + 1] == b"\x10":
        for byte in data[place : place + 5]:
            batch |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
    if len(data) < start or not 0 <= batch < 2**32:
        return None
    task_id = TaskId(data[2:start])
    head = _head(task_id, batch)
    return (task_id, batch, len(head)) if data.startswith(head) else None


def _record_length(data: bytes, start: int) -> int:
    """Return the length that stands before the record at `start`, 0 if there is none."""
    low, high = data[start + 1 : start + 2], data[start + 2 : start + 3]
    if not low or low[0] < 0x80:
        return low[0] if low else 0
    return low[0] & 0x7F | high[0] << 7 if high else 0


def _distinct(joined: bytes, smallest: int = 0) -> bool:
    ids = _records(joined, _ID)
    return smallest <= len(ids) <= MAX_REPORTS_PER_PEER_BATCH and len(set(ids)) == len(ids)


def _encode_proposal(proposal: BatchProposal) -> bytes:
    count = len(proposal.report_ids) // _ID
    template = _Template.of(3, (_ID, _DIGEST, len(proposal.verifier_shares) // max(1, count)))
    columns = (proposal.report_ids, proposal.share_digests, proposal.verifier_shares)
    return _head(proposal.task_id, proposal.batch) + template.join(columns)


def _decode_proposal(data: bytes) -> BatchProposal | None:
    head = _read_head(data)
    if head is None:
        return None
    size = _content_size(_record_length(data, head[2]) - _ID_FIELD - _DIGEST_FIELD)
    columns = _Template.of(3, (_ID, _DIGEST, size)).split(data, head[2]) if 0 < size <= MAX_VERIFIER_BYTES else None
    if columns is None or not _distinct(columns[0], smallest=1):
        return None
    return BatchProposal(
        task_id=head[0], batch=head[1], report_ids=columns[0], share_digests=columns[1], verifier_shares=columns[2]
    )


def _encode_reply(reply: BatchReply) -> bytes:
    size = len(reply.verifier_shares) // max(1, reply.reasons.count(0))
    template = _Template.of(3, (_ID, size))
    if not any(reply.reasons):
        return _head(reply.task_id, reply.batch) + template.join((reply.report_ids, reply.verifier_shares))
    shares = iter(_records(reply.verifier_shares, size))
    return _head(reply.task_id, reply.batch) + b"".join(
        _REFUSED.join((report_id, bytes((reason,)))) if reason else template.join((report_id, next(shares)))
        for report_id, reason in zip(_records(reply.report_ids, _ID), reply.reasons, strict=True)
    )


def _decode_reply(data: bytes) -> BatchReply | None:
    head = _read_head(data)
    answers = None if head is None else _split_answers(data, head[2])
    if head is None or answers is None or not _distinct(answers[0], smallest=1):
        return None
    ids, reasons, shares = answers
    return BatchReply(task_id=head[0], batch=head[1], report_ids=ids, reasons=reasons, verifier_shares=shares)


def _split_answers(data: bytes, start: int) -> tuple[bytes, bytes, bytes] | None:
    """Return ids, reasons and shares of answers in their two shapes."""
    template, ids, reasons, shares = None, [], bytearray(), []
    while start < len(data):
        length = _record_length(data, start)
        if length == _ID_FIELD + 2:
            columns = _REFUSED.split(data[start : start + _REFUSED.length], 0)
            if columns is None or not columns[0] or columns[1][0] not in _REASONS:
                return None
            ids.append(columns[0])
            reasons.append(columns[1][0])
            start += _REFUSED.length
            continue
        if template is None:
            size = _content_size(length - _ID_FIELD)
            if not 0 < size <= MAX_VERIFIER_BYTES:
                return None
            template = _Template.of(3, (_ID, size))
        end = _end_of_run(data, start, template)
        columns = template.split(data[start:end], 0)
        if columns is None or end == start:
            return None
        ids.append(columns[0])
        reasons += bytes(len(columns[0]) // _ID)
        shares.append(columns[1])
        start = end
    return b"".join(ids), bytes(reasons), b"".join(shares)


def _end_of_run(data: bytes, start: int, template: _Template) -> int:
    """Return where records that begin as the template does end."""
    constant, length = template.pieces[0][0], template.length
    while data.startswith(constant, start) and start + length <= len(data):
        start += length
    return start


def _encode_finish(finish: FinishBatch) -> bytes:
    head = _head(finish.task_id, finish.batch)
    size = len(finish.messages) // max(1, len(finish.report_ids) // _ID)
    columns = (finish.report_ids, finish.messages) if size else (finish.report_ids,)
    return head + _Template.of(3, (_ID, size)).join(columns)


def _decode_finish(data: bytes) -> FinishBatch | None:
    head = _read_head(data)
    if head is None:
        return None
    size = _content_size(_record_length(data, head[2]) - _ID_FIELD)
    columns = _Template.of(3, (_ID, size)).split(data, head[2]) if 0 < size <= MAX_VERIFIER_BYTES else None
    if columns is None or not _distinct(columns[0]):
        return None
    return FinishBatch(task_id=head[0], batch=head[1], report_ids=columns[0], messages=columns[1])


def _encode_decision(decision: BatchDecision) -> bytes:
    return _head(decision.task_id, decision.batch) + _ACCEPTED.join((decision.accepted,))


def _decode_decision(data: bytes) -> BatchDecision | None:
    head = _read_head(data)
    columns = None if head is None else _ACCEPTED.split(data, head[2])
    if head is None or columns is None or not _distinct(columns[0]):
        return None
    return BatchDecision(task_id=head[0], batch=head[1], accepted=columns[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchMessage(WireMessage[DomainT, MessageT]):
    """A message with templates before the library: what they read is what the library would read, byte for byte."""

    join: Callable[[DomainT], bytes]
    split: Callable[[bytes], DomainT | None]

    def encode(self, value: DomainT) -> bytes:
        """See `WireMessage.encode`."""
        data = self.join(value)
        if len(data) > self.largest:
            raise UsageError(f"{self.name} has {len(data)} bytes, allowed: at most {self.largest}")
        return data

    def decode(self, data: bytes) -> DomainT:
        """See `WireMessage.decode`."""
        value = self.split(data) if len(data) <= self.largest else None
        return WireMessage.decode(self, data) if value is None else value


BATCH_PROPOSAL: Final = _BatchMessage(
    name="batch proposal",
    pb_type=pb.ProposeBatchRequest,
    to_pb=_proposal_to_pb,
    read=_read_proposal,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
    join=_encode_proposal,
    split=_decode_proposal,
)
BATCH_REPLY: Final = _BatchMessage(
    name="batch reply",
    pb_type=pb.ProposeBatchResponse,
    to_pb=_reply_to_pb,
    read=_read_reply,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
    join=_encode_reply,
    split=_decode_reply,
)
FINISH_BATCH: Final = _BatchMessage(
    name="batch to finish",
    pb_type=pb.FinishBatchRequest,
    to_pb=_finish_to_pb,
    read=_read_finish,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
    join=_encode_finish,
    split=_decode_finish,
)
BATCH_DECISION: Final = _BatchMessage(
    name="batch decision",
    pb_type=pb.FinishBatchResponse,
    to_pb=_decision_to_pb,
    read=_read_decision,
    largest=MAX_PEER_MESSAGE_BYTES,
    most=MAX_REPORTS_PER_PEER_BATCH,
    join=_encode_decision,
    split=_decode_decision,
)
