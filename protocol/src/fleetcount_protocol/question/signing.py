"""Signatures of a question: every listed aggregator signs the canonical bytes once, for all windows.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import Reader, sized
from fleetcount_protocol.limits import MAX_QUESTION_BYTES
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.question import QUESTION_LABEL, Question, SignedQuestion, decode_question, window_at
from fleetcount_protocol.window.keys import encode_signatures, fault_of_signatures, read_signatures
from fleetcount_protocol.window.signing import TrustedAggregator, check_trusted, verify_all_signatures
from fleetcount_protocol.window.window_json import window_to_json


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

_OF_A_WINDOW: Final = ("window_id", "window", "round_one_opens", "round_one_closes", "round_two_closes", "expiry")


def question_to_json(question: Question) -> dict[str, Any]:
    """Return the question as plain values for a JSON file; the fields that all windows share as in `window_to_json`."""
    schedule = question.schedule
    asked = window_to_json(window_at(question.at_latest(), 0))
    shared = {name: value for name, value in asked.items() if name not in _OF_A_WINDOW}
    walk = question.drill_down
    if walk is not None:
        caps = {"threshold": walk.threshold, "most_survivors": walk.most_survivors}
        shared["drill_down"] = {"levels": list(walk.levels), **caps}
    if question.one_in > 1:
        shared["one_in"] = question.one_in
    return shared | {
        "schedule": {
            **_start(schedule),
            "every_s": schedule.every_s,
            "windows": schedule.windows,
            "round_one_s": schedule.round_one_s,
            "round_two_s": schedule.round_two_s,
            "expiry_s": schedule.expiry_s,
            **({} if schedule.first is None else {"end": schedule.end}),
        },
        "coin": question.coin.name.lower(),
        "participants": question.participants.name.lower(),
        "admission": question.admission.name.lower(),
        "delta": str(question.delta),
    }


def _start(schedule: Schedule) -> dict[str, int]:
    """Return when the first window opens, the signed limits of that time, or after a start both."""
    signed = schedule.submission
    limits = (
        {}
        if signed is None
        else {"delay_s": signed.delay_s, "earliest_start": signed.earliest, "latest_start": signed.latest}
    )
    return limits if schedule.first is None else limits | {"first": schedule.first}
