"""What the parties say to each other: tasks, Prio3, sealing, receipts, messages and the release record.

What is exported here is for users, with a stability word each in docs/api.md; code of this repository imports from the
modules. Loads nothing before a name is used, so that a device pays only for what it needs.
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
    "PeerError",
    "Refused",
    "ReleaseKind",
    "ReleaseRecord",
    "SeriesOffer",
    "SignatureError",
    "SignedSeries",
    "SquareGrid",
    "Task",
    "TaskError",
    "TrustedAggregator",
    "UsageError",
    "decode_record",
    "decode_signed_series",
    "decode_task",
    "encode_record",
    "record_from_json",
    "record_to_json",
    "task_to_json",
    "verify_record_signatures",
]

if TYPE_CHECKING:
    from fleetcount_protocol.errors import (
        DecodeError,
        FleetcountError,
        MachineError,
        PeerError,
        Refused,
        SignatureError,
        TaskError,
        UsageError,
    )
    from fleetcount_protocol.messages import SeriesOffer
    from fleetcount_protocol.release.record import (
        Cell,
        ReleaseRecord,
        decode_record,
        encode_record,
        verify_record_signatures,
    )
    from fleetcount_protocol.release.record_json import record_from_json, record_to_json
    from fleetcount_protocol.series.series import SignedSeries
    from fleetcount_protocol.series.signed_file import decode_signed_series
    from fleetcount_protocol.task.domain import Bins, Categories, H3Cells, SquareGrid
    from fleetcount_protocol.task.signing import TrustedAggregator
    from fleetcount_protocol.task.task import Mode, ReleaseKind, Task, decode_task
    from fleetcount_protocol.task.task_json import task_to_json
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "errors": (
                "DecodeError FleetcountError MachineError PeerError Refused SignatureError TaskError UsageError"
            ),
            "messages": "SeriesOffer",
            "release.record": "Cell ReleaseRecord decode_record encode_record verify_record_signatures",
            "release.record_json": "record_from_json record_to_json",
            "series.series": "SignedSeries",
            "series.signed_file": "decode_signed_series",
            "task.domain": "Bins Categories H3Cells SquareGrid",
            "task.signing": "TrustedAggregator",
            "task.task": "Mode ReleaseKind Task decode_task",
            "task.task_json": "task_to_json",
        },
    )
