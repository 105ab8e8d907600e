"""How instalments lie in a device's own store: a fixed layout, read back strictly.

Not a wire format: only the same device reads them, and no transport needs to be loaded to write them.
"""

from typing import Final

from fleetcount_protocol.ids import ReportId, SessionId, WindowId
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import (
    MAX_CIPHERTEXT_BYTES,
    MAX_INSTALMENT_BYTES,
    MAX_KEY_NUMBER,
    MAX_PUBLIC_SHARE_BYTES,
)
from fleetcount_protocol.messages import Instalment

_INSTALMENT_LABEL: Final = b"FCDI02"


def encode_instalment(instalment: Instalment) -> bytes:
    """Return an instalment as the spool keeps it."""
    names = instalment.window_id + instalment.report_id + instalment.session_id
    numbers = uint(instalment.key_number, 2) + uint(instalment.round, 1)
    return _INSTALMENT_LABEL + names + numbers + sized(instalment.public_share, 2) + sized(instalment.ciphertext, 4)


def decode_instalment(stored: bytes) -> Instalment:
    """Return the instalment `encode_instalment` gave; raises DecodeError for anything else."""
    reader = Reader(stored, "a stored instalment", MAX_INSTALMENT_BYTES)
    reader.expect(_INSTALMENT_LABEL)
    instalment = Instalment(
        window_id=WindowId(reader.take(WindowId.SIZE)),
        report_id=ReportId(reader.take(ReportId.SIZE)),
        session_id=SessionId(reader.take(SessionId.SIZE)),
        key_number=reader.count(2, 1, MAX_KEY_NUMBER),
        round=reader.count(1, 0, 2),
        public_share=reader.sized(2, 0, MAX_PUBLIC_SHARE_BYTES),
        ciphertext=reader.sized(4, 1, MAX_CIPHERTEXT_BYTES),
    )
    reader.finish()
    return instalment
