"""The canonical bytes of a question's fields (docs/wire.md, "Question").

What every window asks has the bytes it has in a window, so that a window's bytes are those of the question with its
times in between. It must not apply the rules of a question.
"""

from typing import Final

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.layout import Reader, fraction_bytes, uint
from fleetcount_protocol.limits import MAX_DRILL_DOWN_LEVELS, MAX_QUESTION_BYTES
from fleetcount_protocol.question.fields import (
    Admission,
    Coin,
    DrillDown,
    Participants,
    QuestionFields,
    Schedule,
    Submission,
    window_fields,
)
from fleetcount_protocol.window.codec import encode_question, encode_terms, read_question, read_terms

QUESTION_LABEL: Final = b"FCQUES01"
_FIXED: Final = 1
_FROM_SUBMISSION: Final = 2


def encode_question_fields(question: QuestionFields) -> bytes:
    """Return the canonical bytes that are hashed into the question id and signed: the same before and after its start.

    Raises:
        QuestionError: they are more than `MAX_QUESTION_BYTES`.
    """
    window = window_fields(question, QuestionId(bytes(QuestionId.SIZE)), 0)
    parts = (
        QUESTION_LABEL,
        encode_question(window),
        _encode_schedule(question.schedule),
        uint(question.coin.value, 1),
        uint(question.participants.value, 1),
        uint(question.admission.value, 1),
        fraction_bytes(question.delta),
        _encode_drill_down(question.drill_down),
        encode_terms(window),
    )
    encoded = b"".join(parts)
    if len(encoded) > MAX_QUESTION_BYTES:
        raise QuestionError(f"question has {len(encoded)} bytes, allowed: at most {MAX_QUESTION_BYTES}")
    return encoded


def decode_question_fields(data: bytes) -> QuestionFields:
    """Return the fields these bytes hold, whether or not they may be asked.

    Raises:
        DecodeError: the bytes are not the fields of a question.
        QuestionError, MechanismError: a domain or a mechanism with a value outside its range.
    """
    reader = Reader(data, "question", MAX_QUESTION_BYTES)
    reader.expect(QUESTION_LABEL)
    question = read_question(reader)
    schedule = _read_schedule(reader)
    coin = Coin(reader.count(1, 1, len(Coin)))
    participants = Participants(reader.count(1, 1, len(Participants)))
    if (admission := reader.uint(1)) != Admission.CERTIFICATE.value:
        raise DecodeError(f"admission is of kind {admission}, allowed: {Admission.CERTIFICATE.value}, by certificate")
    delta = reader.fraction()
    drill_down = _read_drill_down(reader) if reader.flag() else None
    terms = read_terms(reader)
    reader.finish()
    return QuestionFields(
        **question,
        schedule=schedule,
        coin=coin,
        participants=participants,
        admission=Admission(admission),
        delta=delta,
        verify_seed_digest=terms.pop("verify_key_digest"),
        **terms,
        drill_down=drill_down,
    )


def _encode_drill_down(walk: DrillDown | None) -> bytes:
    if walk is None:
        return uint(0, 1)
    levels = uint(len(walk.levels), 1) + b"".join(uint(bits, 1) for bits in walk.levels)
    return uint(1, 1) + levels + uint(walk.threshold, 4) + uint(walk.most_survivors, 2)


def _read_drill_down(reader: Reader) -> DrillDown:
    levels = tuple(reader.uint(1) for _ in range(reader.count(1, 2, MAX_DRILL_DOWN_LEVELS)))
    return DrillDown(levels=levels, threshold=reader.uint(4), most_survivors=reader.uint(2))


def _encode_schedule(schedule: Schedule) -> bytes:
    lengths = (schedule.every_s, schedule.windows, schedule.round_one_s, schedule.round_two_s, schedule.expiry_s)
    start = schedule.submission
    if start is None:
        begins = uint(_FIXED, 1) + uint(schedule.opens(0), 8)
    else:
        begins = uint(_FROM_SUBMISSION, 1) + uint(start.delay_s, 4) + uint(start.earliest, 8) + uint(start.latest, 8)
    return begins + b"".join(uint(length, 4) for length in lengths)


def _read_schedule(reader: Reader) -> Schedule:
    first, submission = None, None
    if reader.count(1, _FIXED, _FROM_SUBMISSION) == _FIXED:
        first = reader.uint(8)
    else:
        submission = Submission(delay_s=reader.uint(4), earliest=reader.uint(8), latest=reader.uint(8))
    every_s, windows, round_one_s, round_two_s, expiry_s = (reader.uint(4) for _ in range(5))
    return Schedule(
        first=first,
        every_s=every_s,
        windows=windows,
        round_one_s=round_one_s,
        round_two_s=round_two_s,
        expiry_s=expiry_s,
        submission=submission,
    )
