"""How instalments and session requests lie in a device's own store: fixed layouts, read back strictly.

Not a wire format: only the same device reads them, and no transport needs to be loaded to write them.
"""

from typing import Final

from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, TaskId
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import (
    MAX_CERTIFICATE_BYTES,
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENT_BYTES,
    MAX_PUBLIC_SHARE_BYTES,
    MAX_SESSION_BYTES,
    MAX_SIGNATURE_BYTES,
)
from fleetcount_protocol.messages import Instalment, SessionRequest

__all__ = ["decode_instalment", "decode_session_request", "encode_instalment", "encode_session_request"]

_INSTALMENT_LABEL: Final = b"FCDI01"
_SESSION_LABEL: Final = b"FCDS01"
_MAX_SEALED_SECRET_BYTES: Final = 2_048


def encode_instalment(instalment: Instalment) -> bytes:
    """Return an instalment as the spool keeps it."""
    names = instalment.task_id + instalment.report_id + instalment.session_id + uint(instalment.round, 1)
    return _INSTALMENT_LABEL + names + sized(instalment.public_share, 2) + sized(instalment.ciphertext, 4)


def decode_instalment(stored: bytes) -> Instalment:
    """Return the instalment `encode_instalment` gave; raises DecodeError for anything else."""
    reader = Reader(stored, "a stored instalment", MAX_INSTALMENT_BYTES)
    reader.expect(_INSTALMENT_LABEL)
    instalment = Instalment(
        task_id=TaskId(reader.take(TaskId.SIZE)),
        report_id=ReportId(reader.take(ReportId.SIZE)),
        session_id=SessionId(reader.take(SessionId.SIZE)),
        round=reader.count(1, 0, 2),
        public_share=reader.sized(2, 0, MAX_PUBLIC_SHARE_BYTES),
        ciphertext=reader.sized(4, 1, MAX_CIPHERTEXT_BYTES),
    )
    reader.finish()
    return instalment


def encode_session_request(request: SessionRequest) -> bytes:
    """Return a session request as the spool keeps it."""
    names = sized(request.aggregator_id.encode(), 1) + uint(request.key_id, 1) + uint(request.expiry, 8)
    blobs = (request.sealed_secret, request.certificate, request.signature)
    return _SESSION_LABEL + names + b"".join(sized(blob, 2) for blob in blobs)


def decode_session_request(stored: bytes) -> SessionRequest:
    """Return the request `encode_session_request` gave; raises DecodeError for anything else."""
    reader = Reader(stored, "a stored session request", MAX_SESSION_BYTES)
    reader.expect(_SESSION_LABEL)
    aggregator_id = AggregatorId(reader.sized(1, 1, 32).decode("ascii", errors="replace"))
    key_id, expiry = reader.uint(1), reader.uint(8)
    request = SessionRequest(
        aggregator_id=aggregator_id,
        key_id=key_id,
        expiry=expiry,
        sealed_secret=reader.sized(2, 1, _MAX_SEALED_SECRET_BYTES),
        certificate=reader.sized(2, 1, MAX_CERTIFICATE_BYTES),
        signature=reader.sized(2, 1, MAX_SIGNATURE_BYTES),
    )
    reader.finish()
    return request
