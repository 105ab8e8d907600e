"""The protocol of all parties: windows, Prio3, sealing, receipts, messages and the release record.

What is exported here is for users, with a stability word each in docs/api.md; code of this repository imports from the
modules. A module is loaded when one of its names is first used, so that a device loads only what it needs.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Bins",
    "Categories",
    "Cell",
    "DecodeError",
    "FleetcountError",
    "H3Cells",
    "MachineError",
    "Mode",
    "Numbers",
    "Outside",
    "PeerError",
    "QuestionError",
    "QuestionOffer",
    "Refused",
    "ReleaseKind",
    "ReleaseRecord",
    "SignatureError",
    "SignedQuestion",
    "SquareGrid",
    "TrustedAggregator",
    "UsageError",
    "Window",
    "decode_record",
    "decode_signed_question",
    "decode_window",
    "encode_record",
    "record_from_json",
    "record_to_json",
    "verify_record_signatures",
    "window_to_json",
]

if TYPE_CHECKING:
    from fleetcount_protocol.errors import (
        DecodeError,
        FleetcountError,
        MachineError,
        PeerError,
        QuestionError,
        Refused,
        SignatureError,
        UsageError,
    )
    from fleetcount_protocol.messages import QuestionOffer
    from fleetcount_protocol.question.question import SignedQuestion, decode_signed_question
    from fleetcount_protocol.release.record import (
        Cell,
        ReleaseRecord,
        decode_record,
        encode_record,
        verify_record_signatures,
    )
    from fleetcount_protocol.release.record_json import record_from_json, record_to_json
    from fleetcount_protocol.window.domain import Bins, Categories, H3Cells, Numbers, Outside, SquareGrid
    from fleetcount_protocol.window.fields import Mode, ReleaseKind
    from fleetcount_protocol.window.signing import TrustedAggregator
    from fleetcount_protocol.window.window import Window, decode_window
    from fleetcount_protocol.window.window_json import window_to_json
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "errors": (
                "DecodeError FleetcountError MachineError PeerError Refused SignatureError QuestionError UsageError"
            ),
            "messages": "QuestionOffer",
            "release.record": "Cell ReleaseRecord decode_record encode_record verify_record_signatures",
            "release.record_json": "record_from_json record_to_json",
            "question.question": "SignedQuestion decode_signed_question",
            "window.domain": "Bins Categories H3Cells Numbers Outside SquareGrid",
            "window.signing": "TrustedAggregator",
            "window.fields": "Mode ReleaseKind",
            "window.window": "Window decode_window",
            "window.window_json": "window_to_json",
        },
    )
