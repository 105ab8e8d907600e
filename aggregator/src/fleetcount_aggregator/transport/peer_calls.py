"""The calls of one aggregator to another over gRPC, as both ends know them: a name and two codecs each."""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from fleetcount_protocol.wire import peer
from fleetcount_protocol.wire.codec import WireMessage
from fleetcount_protocol.wire.device import RELEASE_ANSWER

PEER_SERVICE: Final = "fleetcount_protocol.v1.PeerService"
CLAIM_HEADER: Final = "fleetcount-insecure-aggregator"
"""The metadata in which a caller without TLS, on loopback alone, says who it is."""
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class PeerCall(Generic[RequestT, AnswerT]):
    """One call: its name in peer.proto, and the codecs of what is asked and of what is answered."""

    name: str
    request: WireMessage[RequestT, Any]
    answer: WireMessage[AnswerT, Any]


INSTALL_QUESTION: Final = PeerCall("InstallQuestion", peer.INSTALL_QUESTION, peer.INSTALL_QUESTION_ANSWER)
DELIVER_ORDER: Final = PeerCall("DeliverOrder", peer.DELIVER_ORDER, peer.DELIVER_ORDER_ANSWER)
PROPOSE_BATCH: Final = PeerCall("ProposeBatch", peer.BATCH_PROPOSAL, peer.BATCH_REPLY)
FINISH_BATCH: Final = PeerCall("FinishBatch", peer.FINISH_BATCH, peer.BATCH_DECISION)
COMMIT: Final = PeerCall("Commit", peer.COMMIT_QUERY, peer.COMMITMENT)
OPEN_SHARE: Final = PeerCall("Open", peer.OPEN_QUERY, peer.NOISED_SHARE)
SIGN_RECORD: Final = PeerCall("SignRecord", peer.RECORD_PROPOSAL, peer.RECORD_SIGNATURE)
DELIVER_RECORD: Final = PeerCall("DeliverRecord", peer.FINISHED_RECORD, peer.DELIVER_ANSWER)
ABORT: Final = PeerCall("Abort", peer.ABORT_WINDOW, peer.ABORT_ANSWER)
STATUS: Final = PeerCall("GetStatus", peer.STATUS_QUERY, peer.STATUS)
OUTCOME: Final = PeerCall("GetOutcome", peer.STATUS_QUERY, RELEASE_ANSWER)
SHARED: Final = PeerCall("ListShared", peer.SHARED_QUERY, peer.SHARED_IDS)
SHARED_QUESTION: Final = PeerCall("GetSharedQuestion", peer.SHARED_QUESTION_QUERY, peer.INSTALL_QUESTION)
SEAL_SET: Final = "SealSet"
"""The one call with a stream of chunks: the ids that a set names may be more than a message holds."""
