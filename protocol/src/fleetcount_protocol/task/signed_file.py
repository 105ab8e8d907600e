"""The `.task` file: a task with the signatures it has so far, none for a window of a series (docs/wire.md, "Task").

It must not sign or verify (`signing`).
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import ED25519_SIGNATURE_BYTES, MAX_AGGREGATORS, MAX_TASK_BYTES
from fleetcount_protocol.task.codec import TASK_LABEL
from fleetcount_protocol.task.task import SignedTask, Task, decode_task

__all__ = [
    "SIGNED_TASK_LABEL",
    "decode_signed_task",
    "encode_signatures",
    "encode_signed_task",
    "encode_with_signature",
    "fault_of_signatures",
    "read_signatures",
    "read_with_signature",
    "signed_task",
    "stored_task_bytes",
]

SIGNED_TASK_LABEL: Final = b"FCSTSK01"
_MAX_SIGNED_BYTES: Final = MAX_TASK_BYTES + 13 + MAX_AGGREGATORS * (1 + ED25519_SIGNATURE_BYTES)


def encode_signed_task(signed: SignedTask) -> bytes:
    """Return the `.task` file of a task with the signatures it has so far.

    Raises:
        UsageError: a signature that has neither 0 nor 64 bytes, or not one place an aggregator (none for a window).
    """
    fault = _fault(signed.task, signed.signatures)
    if fault:
        raise UsageError(fault)
    return SIGNED_TASK_LABEL + sized(signed.task.canonical, 4) + encode_signatures(signed.signatures)


def decode_signed_task(data: bytes) -> SignedTask:
    """Return the task and the signatures of a `.task` file, none of which is verified here.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed task", _MAX_SIGNED_BYTES)
    reader.expect(SIGNED_TASK_LABEL)
    task = decode_task(reader.sized(4, len(TASK_LABEL), MAX_TASK_BYTES))
    signatures = read_signatures(reader)
    reader.finish()
    return signed_task(task, signatures)


def stored_task_bytes(data: bytes) -> bytes:
    """Return the bytes that a `.task` file holds of its task, whether or not it may be asked.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed task", _MAX_SIGNED_BYTES)
    reader.expect(SIGNED_TASK_LABEL)
    return reader.sized(4, len(TASK_LABEL), MAX_TASK_BYTES)


def signed_task(task: Task, signatures: tuple[bytes, ...]) -> SignedTask:
    """Return the pair, refusing signatures that cannot belong to the task.

    Raises:
        DecodeError: not one place an aggregator (none for a window), or a signature of neither 0 nor 64 bytes.
    """
    fault = _fault(task, signatures)
    if fault:
        raise DecodeError(fault)
    return SignedTask(task=task, signatures=signatures)


def _fault(task: Task, signatures: tuple[bytes, ...]) -> str:
    if task.series is not None:
        return f"{len(signatures)} signatures for a window of a series, which has none" if signatures else ""
    return fault_of_signatures(signatures, len(task.aggregators))


def encode_signatures(signatures: tuple[bytes, ...]) -> bytes:
    """Return the end of a file of something signed: how many places there are, and what stands in each."""
    return uint(len(signatures), 1) + b"".join(sized(signature, 1) for signature in signatures)


def read_signatures(reader: Reader) -> tuple[bytes, ...]:
    """Return the signatures at the end of a file of something signed (`encode_signatures`)."""
    return tuple(reader.sized(1, 0, ED25519_SIGNATURE_BYTES) for _ in range(reader.count(1, 0, MAX_AGGREGATORS)))


def fault_of_signatures(signatures: tuple[bytes, ...], aggregators: int) -> str:
    """Return why these cannot be the signatures of all aggregators, some perhaps still missing; "" if they can."""
    if len(signatures) != aggregators:
        return f"{len(signatures)} signatures for {aggregators} aggregators"
    wrong = any(len(signature) not in (0, ED25519_SIGNATURE_BYTES) for signature in signatures)
    return f"a signature has 0 or {ED25519_SIGNATURE_BYTES} bytes" if wrong else ""


def encode_with_signature(canonical: bytes, signature: bytes) -> bytes:
    """Return the file of something that one aggregator alone has signed: its canonical bytes, then the signature."""
    return sized(canonical, 4) + signature


def read_with_signature(data: bytes, what: str, label: bytes, largest: int) -> tuple[bytes, bytes]:
    """Return canonical bytes, which begin with `label` if they are any, and signature of such a file.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, f"signed {what}", 4 + largest + ED25519_SIGNATURE_BYTES)
    canonical, signature = reader.sized(4, len(label), largest), reader.take(ED25519_SIGNATURE_BYTES)
    reader.finish()
    return canonical, signature
