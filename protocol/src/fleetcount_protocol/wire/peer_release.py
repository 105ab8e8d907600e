"""How aggregators commit, open and sign, between domain values and protobuf (protos/…/peer.proto); see `peer`.

Decides nothing about a release; it only refuses what is not the one encoding of a message.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError
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
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.window.domain import MAX_OPENED
from fleetcount_protocol.wire.codec import Bounds, Count, Size, message, shape, single
from fleetcount_protocol.wire.strict import check_distinct

_SMALL_BYTES: Final = 4_096
_VECTOR_BYTES: Final = 8 * MAX_OPENED
_RECORD: Final = Size(1, MAX_RECORD_BYTES)
_SIGNATURE: Final = Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)
_BOUNDS: Final[Bounds] = {
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


COMMIT_QUERY: Final = message("commit query", pb.CommitRequest, CommitQuery, _BOUNDS, _SMALL_BYTES)
COMMITMENT: Final = single(
    "commitment", pb.CommitResponse, Commitment, _SMALL_BYTES, shape(pb.Commitment, Commitment, _BOUNDS)
)
OPEN_QUERY: Final = message("open query", pb.OpenRequest, OpenQuery, _BOUNDS, _SMALL_BYTES, check=_check_commitments)
NOISED_SHARE: Final = single(
    "noised share",
    pb.OpenResponse,
    NoisedShare,
    _VECTOR_BYTES + _SMALL_BYTES,
    shape(pb.NoisedShare, NoisedShare, _BOUNDS),
)
RECORD_PROPOSAL: Final = message(
    "record proposal", pb.SignRecordRequest, RecordProposal, _BOUNDS, MAX_PEER_MESSAGE_BYTES, check=_check_shares
)
RECORD_SIGNATURE: Final = message("record signature", pb.SignRecordResponse, RecordSignature, _BOUNDS, _SMALL_BYTES)
FINISHED_RECORD: Final = message(
    "finished record", pb.DeliverRecordRequest, FinishedRecord, _BOUNDS, MAX_RECORD_BYTES + _SMALL_BYTES
)
