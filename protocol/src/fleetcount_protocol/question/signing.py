"""Signatures of a question: every listed aggregator signs the canonical bytes once, and they stand for every window.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.question import Question, SignedQuestion
from fleetcount_protocol.window.signing import TrustedAggregator, check_trusted, verify_all_signatures


def sign_question(question: Question, key: Ed25519PrivateKey) -> bytes:
    """Return an aggregator's Ed25519 signature (RFC 8032, pure) over the canonical bytes, 64 bytes.

    The label at their front keeps them apart from everything else such a key signs.
    """
    return key.sign(question.canonical)


def verify_signed_question(signed: SignedQuestion, trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    """Accept a question only with valid signatures of all its aggregators, each trusted under this very key and
    operator.

    Raises:
        QuestionError: an aggregator that is not trusted or is described otherwise, or fewer than two distinct
        operators. SignatureError: a signature that is missing or does not verify.
    """
    question = signed.question
    check_trusted(question.aggregators, trusted, question.schedule.latest_start)
    verify_all_signatures(question.aggregators, signed.signatures, question.canonical, f"question {question.name!r}")
