"""Signatures of aggregators and who is trusted: everyone demands one of every listed aggregator.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fleetcount_protocol.errors import QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MIN_OPERATORS
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import operator_key


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorKey:
    """A signing key (32 bytes) that is an aggregator's from `not_before`; the key before it is until `former_until`."""

    key: bytes
    not_before: int
    former_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedAggregator:
    """An aggregator that this party was configured to trust: its id, who runs it, its Ed25519 public key (32 bytes).

    `successors` are the keys that follow it by verified statements (`succession.with_successions`), in their order.
    """

    aggregator_id: AggregatorId
    operator: str
    signing_public_key: bytes
    successors: tuple[SuccessorKey, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Every signing key the aggregator has had, in their order."""
        return (self.signing_public_key, *(one.key for one in self.successors))

    def keys_at(self, moment: int) -> tuple[bytes, ...]:
        """Return the signing keys that are the aggregator's at a second: two while one succeeds the other."""
        begins = (0, *(one.not_before for one in self.successors))
        ends = (*(one.former_until for one in self.successors), moment + 1)
        return tuple(key for key, since, until in zip(self.keys, begins, ends, strict=True) if since <= moment < until)


def check_trusted(
    aggregators: Sequence[Aggregator], trusted: Mapping[AggregatorId, TrustedAggregator], moment: int
) -> None:
    """Accept aggregators that are all trusted under these very keys and operators, at least two distinct operators.

    `moment` is when the first window opens, Unix seconds: a key that has been succeeded is named until its end.

    Raises:
        QuestionError: one that is not trusted or is described otherwise, or fewer than two distinct operators.
    """
    for aggregator in aggregators:
        _check_trusted(aggregator, trusted, moment)
    operators = {operator_key(trusted[one.aggregator_id].operator) for one in aggregators}
    if len(operators) < MIN_OPERATORS:
        raise QuestionError(
            f"the trusted aggregators have {len(operators)} operator, allowed: at least {MIN_OPERATORS}"
        )


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


def verify_by(
    aggregator: Aggregator, trusted: TrustedAggregator | None, signature: bytes, message: bytes, what: str, moment: int
) -> None:
    """Verify a signature of an aggregator as a question describes it, made at `moment` (Unix seconds).

    It is that of the key named there, or, for who trusts the aggregator under successors, of a key it has at that time.

    Raises:
        SignatureError: it is missing or verifies under none of them.
    """
    if trusted is None or not trusted.successors or aggregator.signing_public_key not in trusted.keys:
        verify_ed25519(aggregator.signing_public_key, signature, message, what)
        return
    for key in trusted.keys_at(moment)[:-1]:
        with suppress(SignatureError):
            verify_ed25519(key, signature, message, what)
            return
    verify_ed25519(trusted.keys_at(moment)[-1], signature, message, what)


def _check_trusted(aggregator: Aggregator, trusted: Mapping[AggregatorId, TrustedAggregator], moment: int) -> None:
    known = trusted.get(aggregator.aggregator_id)
    if known is None:
        raise QuestionError(f"aggregator {aggregator.aggregator_id} is not among the trusted ones")
    if aggregator.signing_public_key not in known.keys_at(moment):
        raise QuestionError(f"aggregator {aggregator.aggregator_id} is trusted under another signing key")
    if operator_key(known.operator) != operator_key(aggregator.operator):
        raise QuestionError(f"aggregator {aggregator.aggregator_id} is trusted under another operator")
