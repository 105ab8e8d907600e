"""What the parties say to each other: tasks, Prio3, sealing, receipts, messages and the release record.

Every public name is imported on first use, so that a device pays only for what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "FIELD64",
    "FIELD128",
    "MAX_VALUES",
    "Aggregator",
    "AggregatorId",
    "Bins",
    "Categories",
    "Cell",
    "CertificateAuthority",
    "Circuit",
    "Clock",
    "Count",
    "DecodeError",
    "DeviceIdentity",
    "Digest",
    "FleetcountError",
    "Flp",
    "H3Cells",
    "Histogram",
    "HpkeKey",
    "HpkeKeyPair",
    "Instalment",
    "MachineError",
    "ManualClock",
    "Mode",
    "MultihotCountVec",
    "OneHot",
    "PeerError",
    "PrimeField",
    "Prio3",
    "Purpose",
    "Receipt",
    "Refusal",
    "Refused",
    "RejectReason",
    "RejectedProof",
    "Release",
    "ReleaseKind",
    "ReleaseRecord",
    "ReplayResult",
    "ReportId",
    "ReportToVerify",
    "ScalarVerifier",
    "SealError",
    "SessionAccepted",
    "SessionId",
    "SessionRefused",
    "SessionRequest",
    "SessionSecret",
    "Signal",
    "SignatureError",
    "SignedTask",
    "SquareGrid",
    "Sum",
    "SumVec",
    "SystemClock",
    "Task",
    "TaskError",
    "TaskId",
    "TaskState",
    "TrustedAggregator",
    "TwoRoundOneHot",
    "UploadStyle",
    "UsageError",
    "ValueDomain",
    "VerificationFailed",
    "Verified",
    "VerifyState",
    "accept_session",
    "check_receipt",
    "check_task",
    "decode_record",
    "decode_signed_task",
    "decode_task",
    "encode_record",
    "encode_signed_task",
    "first_instalments",
    "join_instalments",
    "make_receipt",
    "new_session",
    "open_instalment",
    "prio3_bits",
    "prio3_count",
    "prio3_for",
    "prio3_histogram",
    "prio3_multihot_count_vec",
    "prio3_one_hot",
    "prio3_sum",
    "prio3_sum_vec",
    "prio3_sum_vec_with_multiproof",
    "prio3_two_round",
    "record_from_json",
    "record_to_json",
    "replay",
    "seal_instalment",
    "seal_to",
    "second_instalments",
    "sign_record",
    "sign_task",
    "task_to_json",
    "verify_chain",
    "verify_record_signatures",
    "verify_signed_task",
]

if TYPE_CHECKING:
    from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose, verify_chain
    from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
    from fleetcount_protocol.channel.receipts import check_receipt, make_receipt
    from fleetcount_protocol.channel.session import (
        DeviceIdentity,
        SessionSecret,
        accept_session,
        new_session,
        open_instalment,
        seal_instalment,
    )
    from fleetcount_protocol.clock import Clock, ManualClock, SystemClock
    from fleetcount_protocol.errors import (
        DecodeError,
        FleetcountError,
        MachineError,
        PeerError,
        Refused,
        RejectReason,
        SealError,
        SignatureError,
        TaskError,
        UsageError,
        VerificationFailed,
    )
    from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId
    from fleetcount_protocol.messages import (
        Instalment,
        Receipt,
        Refusal,
        SessionAccepted,
        SessionRefused,
        SessionRequest,
        TaskState,
    )
    from fleetcount_protocol.release import (
        Cell,
        ReleaseRecord,
        decode_record,
        encode_record,
        record_from_json,
        record_to_json,
        sign_record,
        verify_record_signatures,
    )
    from fleetcount_protocol.replay.vectors import ReplayResult, replay
    from fleetcount_protocol.task.circuit import prio3_for
    from fleetcount_protocol.task.domain import MAX_VALUES, Bins, Categories, H3Cells, Signal, SquareGrid, ValueDomain
    from fleetcount_protocol.task.rules import check_task
    from fleetcount_protocol.task.signed_file import decode_signed_task, encode_signed_task
    from fleetcount_protocol.task.signing import TrustedAggregator, sign_task, verify_signed_task
    from fleetcount_protocol.task.task import (
        Aggregator,
        HpkeKey,
        Mode,
        Release,
        ReleaseKind,
        SignedTask,
        Task,
        UploadStyle,
        decode_task,
    )
    from fleetcount_protocol.task.task_json import task_to_json
    from fleetcount_protocol.vdaf.circuits import (
        Count,
        Histogram,
        MultihotCountVec,
        OneHot,
        Sum,
        SumVec,
        TwoRoundOneHot,
    )
    from fleetcount_protocol.vdaf.field import FIELD64, FIELD128, PrimeField
    from fleetcount_protocol.vdaf.flp import Circuit, Flp
    from fleetcount_protocol.vdaf.prio3 import (
        Prio3,
        VerifyState,
        prio3_bits,
        prio3_count,
        prio3_histogram,
        prio3_multihot_count_vec,
        prio3_one_hot,
        prio3_sum,
        prio3_sum_vec,
        prio3_sum_vec_with_multiproof,
        prio3_two_round,
    )
    from fleetcount_protocol.vdaf.two_round import first_instalments, join_instalments, second_instalments
    from fleetcount_protocol.vdaf.verifier import RejectedProof, ReportToVerify, ScalarVerifier, Verified

_MODULES = {
    "channel.certificates": "CertificateAuthority Purpose verify_chain",
    "vdaf.circuits": "Count Histogram MultihotCountVec OneHot Sum SumVec TwoRoundOneHot",
    "clock": "Clock ManualClock SystemClock",
    "task.domain": "Bins Categories H3Cells MAX_VALUES Signal SquareGrid ValueDomain",
    "errors": (
        "DecodeError FleetcountError MachineError PeerError Refused RejectReason SealError SignatureError "
        "TaskError UsageError VerificationFailed"
    ),
    "vdaf.field": "FIELD128 FIELD64 PrimeField",
    "vdaf.flp": "Circuit Flp",
    "ids": "AggregatorId Digest ReportId SessionId TaskId",
    "messages": "Instalment Receipt Refusal SessionAccepted SessionRefused SessionRequest TaskState",
    "vdaf.prio3": (
        "Prio3 VerifyState prio3_bits prio3_count prio3_histogram prio3_multihot_count_vec prio3_one_hot "
        "prio3_sum prio3_sum_vec prio3_sum_vec_with_multiproof prio3_two_round"
    ),
    "channel.receipts": "check_receipt make_receipt",
    "release": (
        "Cell ReleaseRecord decode_record encode_record record_from_json record_to_json sign_record "
        "verify_record_signatures"
    ),
    "channel.hpke": "HpkeKeyPair seal_to",
    "channel.session": "DeviceIdentity SessionSecret accept_session new_session open_instalment seal_instalment",
    "task.task": "Aggregator HpkeKey Mode Release ReleaseKind SignedTask Task UploadStyle decode_task",
    "task.circuit": "prio3_for",
    "task.rules": "check_task",
    "task.signed_file": "decode_signed_task encode_signed_task",
    "task.task_json": "task_to_json",
    "task.signing": "TrustedAggregator sign_task verify_signed_task",
    "vdaf.two_round": "first_instalments join_instalments second_instalments",
    "replay.vectors": "ReplayResult replay",
    "vdaf.verifier": "RejectedProof ReportToVerify ScalarVerifier Verified",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # Type checkers see the imports above, so that a misspelt name is an error to them.

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
