"""The codecs of messages between a device and an aggregator (protos/…/device.proto).

Every message is a `WireMessage`: `.encode`/`.decode` for bytes (MQTT, files), `.to_pb`/`.from_pb` for gRPC. Only bytes
that are not the one encoding of a message are refused. Uploads are columns (`device_columns`).
"""

from typing import Final

from fleetcount_protocol.channel.session import check_session_request
from fleetcount_protocol.limits import (
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_CERTIFICATE_BYTES,
    MAX_REASON_BYTES,
    MAX_RECORD_BYTES,
    MAX_SESSION_BYTES,
    MAX_SIGNATURE_BYTES,
    MAX_UNIX_TIME,
)
from fleetcount_protocol.messages import (
    ReleaseAnswer,
    ReleaseQuery,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Count, Label, Range, Size, conversion, either, message

_SMALL_BYTES: Final = 1_024
_BOUNDS: Final[Bounds] = {
    SessionRequest: {
        "sealed_secret": Size(80, 2_048),
        "ephemeral_key": Size(32, 32),
        "credential": Size(2, 1 + MAX_CERTIFICATE_BYTES),
        "signature": Size(8, MAX_SIGNATURE_BYTES),
    },
    SessionAccepted: {
        "expiry": Range(1, MAX_UNIX_TIME),
        "ephemeral_key": Size(0, 32),  # `SessionAccepted` requires exactly 32.
        "confirmation": Size(0, 32),
    },
    ReleaseAnswer: {
        "abort_reason": Label(0, MAX_REASON_BYTES),
        "record": Size(0, MAX_RECORD_BYTES),
        "signatures": Count(0, MAX_AGGREGATORS, Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)),
    },
}

# Sessions.

SESSION_REQUEST: Final = message(
    "session request", pb.SessionRequest, SessionRequest, _BOUNDS, MAX_SESSION_BYTES, check=check_session_request
)
SESSION_REPLY: Final = either(
    "session reply",
    pb.SessionReply,
    conversion(pb.SessionReply, SessionAccepted, _BOUNDS, subset=True),
    conversion(pb.SessionReply, SessionRefused, _BOUNDS, subset=True),
    SessionRefused,
    "reason",
    _SMALL_BYTES,
)
# Releases.

RELEASE_QUERY: Final = message("release query", pb.GetReleaseRequest, ReleaseQuery, _BOUNDS, _SMALL_BYTES)
RELEASE_ANSWER: Final = message(
    "release answer", pb.GetReleaseResponse, ReleaseAnswer, _BOUNDS, MAX_RECORD_BYTES + _SMALL_BYTES
)
"""A window's state, with the signed record once it is released: the retained payload of a release topic."""
