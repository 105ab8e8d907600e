"""The `.question` file: a question with the signatures it has so far (docs/wire.md, "Question").

It must not sign or verify (`signing`).
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import MAX_QUESTION_BYTES
from fleetcount_protocol.question.codec import QUESTION_LABEL
from fleetcount_protocol.question.question import Question, SignedQuestion, decode_question
from fleetcount_protocol.window.signatures import encode_signatures, fault_of_signatures, read_signatures

SIGNED_QUESTION_LABEL: Final = b"FCSQUE01"
MAX_SIGNED_QUESTION_BYTES: Final = MAX_QUESTION_BYTES + 512


def encode_signed_question(signed: SignedQuestion) -> bytes:
    """Return the `.question` file of a question with the signatures it has so far.

    Raises:
        UsageError: a signature that has neither 0 nor 64 bytes, or not one place an aggregator.
    """
    fault = fault_of_signatures(signed.signatures, len(signed.question.aggregators))
    if fault:
        raise UsageError(fault)
    return SIGNED_QUESTION_LABEL + sized(signed.question.canonical, 4) + encode_signatures(signed.signatures)


def decode_signed_question(data: bytes) -> SignedQuestion:
    """Return the question and the signatures of a `.question` file, none of which is verified here.

    Raises:
        DecodeError: it is no such file.
    """
    reader = Reader(data, "signed question", MAX_SIGNED_QUESTION_BYTES)
    reader.expect(SIGNED_QUESTION_LABEL)
    question = decode_question(reader.sized(4, len(QUESTION_LABEL), MAX_QUESTION_BYTES))
    signatures = read_signatures(reader)
    reader.finish()
    return signed_question(question, signatures)


def signed_question(question: Question, signatures: tuple[bytes, ...]) -> SignedQuestion:
    """Return the pair, refusing signatures that cannot belong to the question.

    Raises:
        DecodeError: not one place an aggregator, or a signature that has neither 0 nor 64 bytes.
    """
    fault = fault_of_signatures(signatures, len(question.aggregators))
    if fault:
        raise DecodeError(fault)
    return SignedQuestion(question=question, signatures=signatures)
