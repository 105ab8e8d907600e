"""Signatures of aggregators and trusted aggregators: each party requires a signature of every listed aggregator.

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
    """A signing key (32 bytes) that is valid from `not_before`; the key before it is valid before `former_until`."""

    key: bytes
    not_before: int
    former_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedAggregator:
    """An aggregator that this party is configured to trust: its id, its operator, its Ed25519 public key (32 bytes).

    `successors` are the later keys by verified successions (`succession.with_successions`), in order.
    """

    aggregator_id: AggregatorId
    operator: str
    signing_public_key: bytes
    successors: tuple[SuccessorKey, ...] = ()

    @classmethod
    def of(cls, one: Aggregator) -> "TrustedAggregator":
        """Return an aggregator as a question or a descriptor describes it."""
        return cls(aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All signing keys of the aggregator, the oldest first."""
        return (self.signing_public_key, *(one.key for one in self.successors))

    def keys_at(self, moment: int) -> tuple[bytes, ...]:
        """Return the signing keys that are valid at a second: two during a succession."""
        begins = (0, *(one.not_before for one in self.successors))
        ends = (*(one.former_until for one in self.successors), moment + 1)
        return tuple(key for key, since, until in zip(self.keys, begins, ends, strict=True) if since <= moment < until)


def check_trusted(
    aggregators: Sequence[Aggregator], trusted: Mapping[AggregatorId, TrustedAggregator], moment: int
) -> None:
    """Accept aggregators that are all trusted with the same keys and operators, at least two distinct operators.

    `moment` is when the first window opens, Unix seconds: until a key's end a question may name it.

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

    It must verify under the key in the question; if `trusted` has successors of that key, under a key that is valid at
    `moment`.

    Raises:
        SignatureError: the signature is missing, or verifies under none of these keys.
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
