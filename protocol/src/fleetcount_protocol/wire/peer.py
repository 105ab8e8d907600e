"""What the aggregators of a window say to each other, between domain values and protobuf (protos/…/peer.proto).

Every message is a `WireMessage`. Decides nothing about a set or a release; it only refuses what is not the one encoding
of a message.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import (
    MAX_LEDGER_ROWS,
    MAX_REASON_BYTES,
    SET_LEAVES,
)
from fleetcount_protocol.messages import AbortWindow, SetAgreed, SetDiffers, WindowState, WindowStatus
from fleetcount_protocol.v1 import peer_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Count, Label, Range, Size, either, message, shape, single

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
    shape(pb.SealSetResponse, SetAgreed, _BOUNDS, subset=True),
    shape(pb.SealSetResponse, SetDiffers, _BOUNDS, subset=True, check=_check_differs),
    SetDiffers,
    "leaves",
    _SMALL_BYTES,
)
