"""How aggregators commit, open and sign, between domain values and protobuf (protos/…/peer.proto); see `peer`.

Decides nothing about a release; it only refuses what is not the one encoding of a message.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, Digest, TaskId
from fleetcount_protocol.limits import (
    COMMITMENT_BLIND_BYTES,
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_PEER_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    MIN_AGGREGATORS,
)
from fleetcount_protocol.messages import (
    Commitment,
    CommitQuery,
    FinishedRecord,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    RecordSignature,
)
from fleetcount_protocol.task.domain import MAX_OPENED
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.strict import WireMessage, check_count, check_distinct, check_size

__all__ = [
    "COMMITMENT",
    "COMMIT_QUERY",
    "FINISHED_RECORD",
    "NOISED_SHARE",
    "OPEN_QUERY",
    "RECORD_PROPOSAL",
    "RECORD_SIGNATURE",
]

_SMALL_BYTES: Final = 4_096
_VECTOR_BYTES: Final = 8 * MAX_OPENED


def _commit_query_to_pb(query: CommitQuery) -> pb.CommitRequest:
    return pb.CommitRequest(task_id=query.task_id, set_digest=query.set_digest)


def _read_commit_query(message: pb.CommitRequest) -> CommitQuery:
    return CommitQuery(task_id=TaskId(message.task_id), set_digest=Digest(message.set_digest))


COMMIT_QUERY: Final = WireMessage(
    "commit query", pb.CommitRequest, _commit_query_to_pb, _read_commit_query, _SMALL_BYTES
)


def _inner_commitment_to_pb(commitment: Commitment) -> pb.Commitment:
    return pb.Commitment(
        task_id=commitment.task_id,
        aggregator_id=commitment.aggregator_id,
        set_digest=commitment.set_digest,
        commitment=commitment.commitment,
    )


def _read_inner_commitment(message: pb.Commitment) -> Commitment:
    return Commitment(
        task_id=TaskId(message.task_id),
        aggregator_id=AggregatorId(message.aggregator_id),
        set_digest=Digest(message.set_digest),
        commitment=Digest(message.commitment),
    )


def _commitment_to_pb(commitment: Commitment) -> pb.CommitResponse:
    return pb.CommitResponse(commitment=_inner_commitment_to_pb(commitment))


def _read_commitment(message: pb.CommitResponse) -> Commitment:
    return _read_inner_commitment(message.commitment)


COMMITMENT: Final = WireMessage("commitment", pb.CommitResponse, _commitment_to_pb, _read_commitment, _SMALL_BYTES)


def _open_query_to_pb(query: OpenQuery) -> pb.OpenRequest:
    commitments = [_inner_commitment_to_pb(commitment) for commitment in query.commitments]
    return pb.OpenRequest(task_id=query.task_id, set_digest=query.set_digest, commitments=commitments)


def _read_open_query(message: pb.OpenRequest) -> OpenQuery:
    check_count("commitments", len(message.commitments), MIN_AGGREGATORS, MAX_AGGREGATORS)
    commitments = tuple(_read_inner_commitment(one) for one in message.commitments)
    task_id, digest = TaskId(message.task_id), Digest(message.set_digest)
    if any((one.task_id, one.set_digest) != (task_id, digest) for one in commitments):
        raise DecodeError("a commitment is for another task or set")
    check_distinct("aggregator", (one.aggregator_id.encode() for one in commitments))
    return OpenQuery(task_id=task_id, set_digest=digest, commitments=commitments)


OPEN_QUERY: Final = WireMessage("open query", pb.OpenRequest, _open_query_to_pb, _read_open_query, _SMALL_BYTES)


def _inner_share_to_pb(share: NoisedShare) -> pb.NoisedShare:
    return pb.NoisedShare(
        task_id=share.task_id,
        aggregator_id=share.aggregator_id,
        set_digest=share.set_digest,
        vector=share.vector,
        blind=share.blind,
    )


def _read_inner_share(message: pb.NoisedShare) -> NoisedShare:
    if len(message.vector) % 8:
        raise DecodeError(f"noised share has {len(message.vector)} bytes, not a multiple of 8")
    return NoisedShare(
        task_id=TaskId(message.task_id),
        aggregator_id=AggregatorId(message.aggregator_id),
        set_digest=Digest(message.set_digest),
        vector=check_size("noised share", message.vector, 8, _VECTOR_BYTES),
        blind=check_size("blind", message.blind, COMMITMENT_BLIND_BYTES, COMMITMENT_BLIND_BYTES),
    )


def _share_to_pb(share: NoisedShare) -> pb.OpenResponse:
    return pb.OpenResponse(share=_inner_share_to_pb(share))


def _read_share(message: pb.OpenResponse) -> NoisedShare:
    return _read_inner_share(message.share)


NOISED_SHARE: Final = WireMessage(
    "noised share", pb.OpenResponse, _share_to_pb, _read_share, _VECTOR_BYTES + _SMALL_BYTES
)


def _record_proposal_to_pb(proposal: RecordProposal) -> pb.SignRecordRequest:
    shares = [_inner_share_to_pb(share) for share in proposal.shares]
    return pb.SignRecordRequest(task_id=proposal.task_id, shares=shares, record=proposal.record)


def _read_record_proposal(message: pb.SignRecordRequest) -> RecordProposal:
    check_count("noised shares", len(message.shares), MIN_AGGREGATORS, MAX_AGGREGATORS)
    shares = tuple(_read_inner_share(share) for share in message.shares)
    task_id = TaskId(message.task_id)
    if any(share.task_id != task_id or share.set_digest != shares[0].set_digest for share in shares):
        raise DecodeError("a noised share is for another task or set")
    check_distinct("aggregator", (share.aggregator_id.encode() for share in shares))
    record = check_size("record", message.record, 1, MAX_RECORD_BYTES)
    return RecordProposal(task_id=task_id, shares=shares, record=record)


RECORD_PROPOSAL: Final = WireMessage(
    name="record proposal",
    pb_type=pb.SignRecordRequest,
    to_pb=_record_proposal_to_pb,
    read=_read_record_proposal,
    largest=MAX_PEER_MESSAGE_BYTES,
)


def _record_signature_to_pb(signature: RecordSignature) -> pb.SignRecordResponse:
    return pb.SignRecordResponse(
        signature=signature.signature, task_id=signature.task_id, aggregator_id=signature.aggregator_id
    )


def _read_record_signature(message: pb.SignRecordResponse) -> RecordSignature:
    return RecordSignature(
        task_id=TaskId(message.task_id),
        aggregator_id=AggregatorId(message.aggregator_id),
        signature=check_size("signature", message.signature, ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES),
    )


RECORD_SIGNATURE: Final = WireMessage(
    "record signature", pb.SignRecordResponse, _record_signature_to_pb, _read_record_signature, _SMALL_BYTES
)


def _finished_record_to_pb(finished: FinishedRecord) -> pb.DeliverRecordRequest:
    return pb.DeliverRecordRequest(task_id=finished.task_id, record=finished.record, signatures=finished.signatures)


def _read_finished_record(message: pb.DeliverRecordRequest) -> FinishedRecord:
    check_count("signatures", len(message.signatures), MIN_AGGREGATORS, MAX_AGGREGATORS)
    return FinishedRecord(
        task_id=TaskId(message.task_id),
        record=check_size("record", message.record, 1, MAX_RECORD_BYTES),
        signatures=tuple(
            check_size("signature", one, ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES) for one in message.signatures
        ),
    )


FINISHED_RECORD: Final = WireMessage(
    name="finished record",
    pb_type=pb.DeliverRecordRequest,
    to_pb=_finished_record_to_pb,
    read=_read_finished_record,
    largest=MAX_RECORD_BYTES + _SMALL_BYTES,
)
