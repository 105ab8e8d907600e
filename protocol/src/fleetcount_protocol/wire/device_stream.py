"""The messages of `DeviceService.Answer`: session requests or an upload, and the answer to either.

Over MQTT each kind has a topic of its own, so that these envelopes are gRPC's alone.
"""

from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_SESSIONS_PER_REQUEST
from fleetcount_protocol.messages import SessionReply, SessionRequest
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.wire.codec import Count, message
from fleetcount_protocol.wire.device import SESSION_REPLY, SESSION_REQUEST
from fleetcount_protocol.wire.device_columns import UPLOAD_ANSWER_FIELDS, UPLOAD_FIELDS, Upload, UploadAnswer

_ENVELOPE_BYTES: Final = 4
"""The tag and the length around an upload of `MAX_BATCH_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMessage:
    """Device to aggregator: 1 to 64 session requests, or an upload, never both."""

    requests: tuple[SessionRequest, ...] = ()
    upload: Upload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorMessage:
    """Aggregator to device: what was asked for in one `DeviceMessage`, of the same kind."""

    replies: tuple[SessionReply, ...] = ()
    upload: UploadAnswer | None = None


def _check_one(sessions: tuple[object, ...], upload: object | None) -> None:
    if bool(sessions) == (upload is not None):
        raise DecodeError(f"a message has {'both' if sessions else 'neither'} of sessions and an upload")


DEVICE_MESSAGE: Final = message(
    "device message",
    pb.DeviceMessage,
    DeviceMessage,
    {DeviceMessage: {"requests": Count(0, MAX_SESSIONS_PER_REQUEST, SESSION_REQUEST), "upload": UPLOAD_FIELDS}},
    MAX_BATCH_BYTES + _ENVELOPE_BYTES,
    check=lambda one: _check_one(one.requests, one.upload),
)
AGGREGATOR_MESSAGE: Final = message(
    "aggregator message",
    pb.AggregatorMessage,
    AggregatorMessage,
    {AggregatorMessage: {"replies": Count(0, MAX_SESSIONS_PER_REQUEST, SESSION_REPLY), "upload": UPLOAD_ANSWER_FIELDS}},
    MAX_BATCH_BYTES + _ENVELOPE_BYTES,
    check=lambda one: _check_one(one.replies, one.upload),
)
