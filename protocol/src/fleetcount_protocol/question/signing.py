"""Signatures of a question: every listed aggregator signs the canonical bytes once, for all windows.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import MAX_QUESTION_BYTES
from fleetcount_protocol.question.question import QUESTION_LABEL, Question, SignedQuestion, decode_question
from fleetcount_protocol.window.keys import encode_signatures, fault_of_signatures, read_signatures
from fleetcount_protocol.window.signing import TrustedAggregator, check_trusted, verify_all_signatures


def sign_question(question: Question, key: Ed25519PrivateKey) -> bytes:
    """Return an aggregator's Ed25519 signature (RFC 8032, pure) over the canonical bytes, 64 bytes.

    The bytes begin with a label, so that no signature of another kind of message verifies for a question.
    """
    return key.sign(question.canonical)


def verify_signed_question(signed: SignedQuestion, trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    """Accept a question only with valid signatures of all its aggregators, each trusted with the same key and operator.

    Raises:
        QuestionError: an aggregator that is not trusted or is described otherwise, or fewer than two distinct
            operators.
        SignatureError: a signature that is missing or does not verify.
    """
    question = signed.question
    check_trusted(question.aggregators, trusted, question.schedule.latest_start)
    verify_all_signatures(question.aggregators, signed.signatures, question.canonical, f"question {question.name!r}")


# The `.question` file: a question with the signatures it has so far (docs/wire.md, "Question").

SIGNED_QUESTION_LABEL: Final = b"FCSQUE01"
MAX_SIGNED_QUESTION_BYTES: Final = MAX_QUESTION_BYTES + 512


def encode_signed_question(signed: SignedQuestion) -> bytes:
    """Return the `.question` file of a question with the signatures it has so far.

    Raises:
        UsageError: a signature of other than 0 or 64 bytes, or not as many signatures as aggregators.
    """
    fault = fault_of_signatures(signed.signatures, len(signed.question.aggregators))
    if fault:
        raise UsageError(fault)
    return SIGNED_QUESTION_LABEL + sized(signed.question.canonical, 4) + encode_signatures(signed.signatures)


def decode_signed_question(data: bytes) -> SignedQuestion:
    """Return the question and the signatures of a `.question` file; no signature is verified here.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    reader = Reader(data, "signed question", MAX_SIGNED_QUESTION_BYTES)
    reader.expect(SIGNED_QUESTION_LABEL)
    question = decode_question(reader.sized(4, len(QUESTION_LABEL), MAX_QUESTION_BYTES))
    signatures = read_signatures(reader)
    reader.finish()
    return signed_question(question, signatures)


def signed_question(question: Question, signatures: tuple[bytes, ...]) -> SignedQuestion:
    """Return the question with its signatures, after a check of their number and sizes.

    Raises:
        DecodeError: a signature of other than 0 or 64 bytes, or not as many signatures as aggregators.
    """
    fault = fault_of_signatures(signatures, len(question.aggregators))
    if fault:
        raise DecodeError(fault)
    return SignedQuestion(question=question, signatures=signatures)


# A question as plain values for a JSON file that people read; programs exchange the canonical bytes.
