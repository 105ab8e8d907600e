"""Signatures of a task: every listed aggregator signs the canonical bytes, and everyone demands all of them.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleetcount_protocol.errors import SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MIN_OPERATORS
from fleetcount_protocol.task.rules import operator_key
from fleetcount_protocol.task.task import Aggregator, SignedTask, Task

__all__ = [
    "TrustedAggregator",
    "check_trusted",
    "sign_task",
    "verify_all_signatures",
    "verify_ed25519",
    "verify_signed_task",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedAggregator:
    """An aggregator that this party was configured to trust: its id, who runs it, its Ed25519 public key (32 bytes)."""

    aggregator_id: AggregatorId
    operator: str
    signing_public_key: bytes


def sign_task(task: Task, key: Ed25519PrivateKey) -> bytes:
    """Return an aggregator's Ed25519 signature (RFC 8032, pure) over the canonical bytes, 64 bytes.

    The label at their front keeps them apart from everything else such a key signs.
    """
    return key.sign(task.canonical)


def verify_signed_task(signed: SignedTask, trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    """Accept a task only with valid signatures of all its aggregators, each trusted under this very key and operator.

    Raises:
        TaskError: an aggregator that is not trusted or is described otherwise, fewer than two distinct operators, or a
            window of a series, which has no signatures (`series.signing.verify_window`).
        SignatureError: a signature that is missing or does not verify.
    """
    if signed.task.series is not None:
        raise TaskError(
            f"task {signed.task.name!r} is window {signed.task.series.index} of series {signed.task.series.series_id}: "
            "the series is signed, and the window is believed only if it follows from it"
        )
    check_trusted(signed.task.aggregators, trusted)
    what = f"task {signed.task.name!r}"
    verify_all_signatures(signed.task.aggregators, signed.signatures, signed.task.canonical, what)


def check_trusted(aggregators: Sequence[Aggregator], trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    """Accept aggregators that are all trusted under these very keys and operators, at least two distinct operators.

    Raises:
        TaskError: one that is not trusted or is described otherwise, or fewer than two distinct operators.
    """
    for aggregator in aggregators:
        _check_trusted(aggregator, trusted)
    operators = {operator_key(trusted[one.aggregator_id].operator) for one in aggregators}
    if len(operators) < MIN_OPERATORS:
        raise TaskError(f"the trusted aggregators have {len(operators)} operator, allowed: at least {MIN_OPERATORS}")


def verify_all_signatures(
    aggregators: Sequence[Aggregator], signatures: Sequence[bytes], message: bytes, what: str
) -> None:
    """Verify one Ed25519 signature an aggregator, in their order; `what` names the message.

    Raises:
        SignatureError: another number of signatures, or one that is missing or does not verify.
    """
    if len(signatures) != len(aggregators):
        raise SignatureError(f"{len(signatures)} signatures for {len(aggregators)} aggregators")
    for aggregator, signature in zip(aggregators, signatures, strict=True):
        name = f"signature of {aggregator.aggregator_id} under {what}"
        verify_ed25519(aggregator.signing_public_key, signature, message, name)


def verify_ed25519(public_key: bytes, signature: bytes, message: bytes, what: str) -> None:
    """Verify an Ed25519 signature.

    Raises:
        SignatureError: it is missing or does not verify; `what` names it.
    """
    if not signature:
        raise SignatureError(f"{what} is missing")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise SignatureError(f"{what} does not verify") from None


def _check_trusted(aggregator: Aggregator, trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    known = trusted.get(aggregator.aggregator_id)
    if known is None:
        raise TaskError(f"aggregator {aggregator.aggregator_id} is not among the trusted ones")
    if known.signing_public_key != aggregator.signing_public_key:
        raise TaskError(f"aggregator {aggregator.aggregator_id} is trusted under another signing key")
    if operator_key(known.operator) != operator_key(aggregator.operator):
        raise TaskError(f"aggregator {aggregator.aggregator_id} is trusted under another operator")
