"""What a device and an aggregator say to each other, between domain values and protobuf (protos/…/device.proto).

Every message is a `WireMessage`: `.encode`/`.decode` for bytes (MQTT, files), `.to_pb`/`.from_pb` for gRPC. Decides
nothing about a report; it only refuses what is not the one encoding of a message.
"""

from collections.abc import Iterable
from typing import Final

from fleetcount_protocol.channel.session import check_session_request
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.limits import (
    AES_GCM_TAG_BYTES,
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_BATCH_BYTES,
    MAX_CERTIFICATE_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENT_BYTES,
    MAX_INSTALMENTS_PER_BATCH,
    MAX_PUBLIC_SHARE_BYTES,
    MAX_REASON_BYTES,
    MAX_RECORD_BYTES,
    MAX_SESSION_BYTES,
    MAX_SESSIONS_PER_REQUEST,
    MAX_SIGNATURE_BYTES,
    MAX_UNIX_TIME,
)
from fleetcount_protocol.messages import (
    Instalment,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.v1 import device_pb2 as pb
from fleetcount_protocol.wire.codec import Bounds, Count, Label, Range, Size, either, message, shape, single

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
    "batches",
]

_SMALL_BYTES: Final = 1_024
_ROUND: Final = Range(0, 2)
_BOUNDS: Final[Bounds] = {
    SessionRequest: {
        "sealed_secret": Size(80, 2_048),
        "ephemeral_key": Size(32, 32),
        "certificate": Size(1, MAX_CERTIFICATE_BYTES),
        "signature": Size(8, MAX_SIGNATURE_BYTES),
    },
    SessionAccepted: {
        "expiry": Range(1, MAX_UNIX_TIME),
        "ephemeral_key": Size(0, 32),  # All 32, says the value itself.
        "confirmation": Size(0, 32),
    },
    Instalment: {
        "key_number": Size(2, 2),
        "public_share": Size(0, MAX_PUBLIC_SHARE_BYTES),
        "ciphertext": Size(AES_GCM_TAG_BYTES + 1, MAX_CIPHERTEXT_BYTES),
    },
    Receipt: {"round": _ROUND, "mac": Size(32, 32)},
    Refusal: {"round": _ROUND},
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
SESSION_REQUESTS: Final = single(
    "session requests",
    pb.OpenSessionsRequest,
    tuple[SessionRequest, ...],
    MAX_SESSIONS_PER_REQUEST * MAX_SESSION_BYTES,
    Count(0, MAX_SESSIONS_PER_REQUEST, SESSION_REQUEST),
    MAX_SESSIONS_PER_REQUEST,
)
SESSION_REPLY: Final = either(
    "session reply",
    pb.SessionReply,
    shape(pb.SessionReply, SessionAccepted, _BOUNDS, subset=True),
    shape(pb.SessionReply, SessionRefused, _BOUNDS, subset=True),
    SessionRefused,
    "reason",
    _SMALL_BYTES,
)
SESSION_REPLIES: Final = single(
    "session replies",
    pb.OpenSessionsResponse,
    tuple[SessionAccepted | SessionRefused, ...],
    MAX_SESSIONS_PER_REQUEST * _SMALL_BYTES,
    Count(0, MAX_SESSIONS_PER_REQUEST, SESSION_REPLY),
    MAX_SESSIONS_PER_REQUEST,
)

# Reports.

INSTALMENT: Final = message("instalment", pb.Instalment, Instalment, _BOUNDS, MAX_INSTALMENT_BYTES)
"""One part of a report: the payload of a report topic."""

INSTALMENTS: Final = single(
    "instalments",
    pb.UploadRequest,
    tuple[Instalment, ...],
    MAX_BATCH_BYTES,
    Count(0, MAX_INSTALMENTS_PER_BATCH, INSTALMENT),
    MAX_INSTALMENTS_PER_BATCH,
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


INSTALMENT_REPLY: Final = either(
    "instalment reply",
    pb.InstalmentReply,
    shape(pb.InstalmentReply, Receipt, _BOUNDS, subset=True),
    shape(pb.InstalmentReply, Refusal, _BOUNDS, subset=True),
    Refusal,
    "reason",
    _SMALL_BYTES,
)
"""A receipt or a refusal: the payload of a receipt topic."""

INSTALMENT_REPLIES: Final = single(
    "instalment replies",
    pb.UploadResponse,
    tuple[Receipt | Refusal, ...],
    MAX_BATCH_BYTES,
    Count(0, MAX_INSTALMENTS_PER_BATCH, INSTALMENT_REPLY),
    MAX_INSTALMENTS_PER_BATCH,
)

# Releases.

RELEASE_QUERY: Final = single("release query", pb.GetReleaseRequest, TaskId, _SMALL_BYTES)
RELEASE_ANSWER: Final = message(
    "release answer", pb.GetReleaseResponse, ReleaseAnswer, _BOUNDS, MAX_RECORD_BYTES + _SMALL_BYTES
)
"""A task's state, with the signed record once it is released: the retained payload of a release topic."""
