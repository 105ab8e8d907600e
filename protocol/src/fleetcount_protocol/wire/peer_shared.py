"""What two aggregators take part in, between domain values and protobuf (protos/…/peer.proto).

Decides nothing about it; it only refuses what is not the one encoding of a message.
"""

from typing import Final, cast

from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Count, message, single

_SMALL_BYTES: Final = 1_024
_BOUNDS: Final[Bounds] = {SharedIds: {"question_ids": Count(0, MAX_QUESTIONS)}}

SHARED_QUERY: Final = single(
    "shared query", pb.ListSharedRequest, cast("type[QuestionId | None]", QuestionId | None), _SMALL_BYTES
)
SHARED_IDS: Final = message(
    "shared ids", pb.ListSharedResponse, SharedIds, _BOUNDS, MAX_QUESTIONS * QuestionId.SIZE + _SMALL_BYTES
)
SHARED_QUESTION_QUERY: Final = single("shared question query", pb.GetSharedQuestionRequest, QuestionId, _SMALL_BYTES)
