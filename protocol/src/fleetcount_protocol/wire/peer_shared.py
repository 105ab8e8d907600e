"""What two aggregators take part in, between domain values and protobuf (protos/…/peer.proto).

Decides nothing about it; it only refuses what is not the one encoding of a message.
"""

from typing import Final, cast

from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.limits import MAX_SERIES
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Count, message, single

__all__ = ["SHARED_IDS", "SHARED_QUERY", "SHARED_SERIES_QUERY"]

_SMALL_BYTES: Final = 1_024
_BOUNDS: Final[Bounds] = {SharedIds: {"series_ids": Count(0, MAX_SERIES)}}

SHARED_QUERY: Final = single(
    "shared query", pb.ListSharedRequest, cast("type[SeriesId | None]", SeriesId | None), _SMALL_BYTES
)
SHARED_IDS: Final = message(
    "shared ids", pb.ListSharedResponse, SharedIds, _BOUNDS, MAX_SERIES * SeriesId.SIZE + _SMALL_BYTES
)
SHARED_SERIES_QUERY: Final = single("shared series query", pb.GetSharedSeriesRequest, SeriesId, _SMALL_BYTES)
