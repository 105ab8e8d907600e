"""The question: one signed counting question asked again and again, immutable, the same bytes for every party.

Making a `Question` checks every rule, so each one that exists may be asked. `derive` makes the windows.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

from fleetcount_mechanisms.accounting.shape import ScheduleShape
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.question.codec import decode_question_fields, encode_question_fields
from fleetcount_protocol.question.fields import QuestionFields
from fleetcount_protocol.question.rules import check_question
from fleetcount_protocol.question.windows import window_fields
from fleetcount_protocol.window.codec import encode_question, encode_terms
from fleetcount_protocol.window.fields import WindowFields


@dataclass(frozen=True, kw_only=True)
class Question(QuestionFields):
    """A question that may be asked; its fields are those of `QuestionFields`.

    Raises:
        QuestionError: a field outside its range, named with its value and the range.
    """

    def __post_init__(self) -> None:
        check_question(self)

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes that are hashed and signed (docs/wire.md, "Question")."""
        return encode_question_fields(self)

    @cached_property
    def question_id(self) -> QuestionId:
        """SHA-256 of the canonical bytes."""
        return QuestionId(hashlib.sha256(self.canonical).digest())

    @cached_property
    def first_window(self) -> WindowFields:
        """The fields of window 0; but for its times and place those of every window (of a walk, of its first step).

        Before the start its times are those of the latest start.
        """
        return window_fields(self, self.question_id, 0)

    @cached_property
    def shared_bytes(self) -> tuple[bytes, bytes]:
        """What stands before and behind the times in the canonical bytes of every window."""
        return encode_question(self.first_window), encode_terms(self.first_window)

    def started(self, start: int) -> Self:
        """Return the question with its windows, counted from a start (Unix seconds) that the leader fixed.

        It is the same question: canonical bytes, id and signatures stay.

        Raises:
            QuestionError: its times are fixed, it has another start already, or the start is outside what was signed.
        """
        if self.schedule.submission is None:
            raise QuestionError(f"question {self.name!r} has fixed times; no start is given to it")
        if self.schedule.first not in (None, start):
            raise QuestionError(f"start of the question is {start}, it started at {self.schedule.first} already")
        return replace(self, schedule=replace(self.schedule, first=start))

    def at_latest(self) -> Self:
        """Return the question itself if it has a start, else as if it starts as late as it may: to judge it before."""
        return self if self.schedule.first is not None else replace(self, schedule=self.schedule.at_latest())

    @property
    def design(self) -> Design:
        """The design of every window's question (in a drill-down, of every walk's first step: V differs later)."""
        return self.first_window.design

    @cached_property
    def shape(self) -> ScheduleShape:
        """How many windows each unit of the coin, each UTC day and one answer has."""
        return self.schedule.shape(self.coin, 1 if self.drill_down is None else len(self.drill_down.levels))


def decode_question(data: bytes) -> Question:
    """Return the question whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a question, or the question breaks a rule.
    """
    try:
        read = decode_question_fields(data)
        question = Question(**{one.name: getattr(read, one.name) for one in fields(QuestionFields)})
    except (QuestionError, MechanismError) as error:
        raise DecodeError(f"question that may not be asked: {error}") from error
    if question.canonical != data:
        raise DecodeError("question is not in its canonical form")
    return question


@dataclass(frozen=True, kw_only=True)
class SignedQuestion:
    """A question with the Ed25519 signature of every listed aggregator, in its order; b"" where one is missing."""

    question: Question
    signatures: tuple[bytes, ...]

    @property
    def complete(self) -> bool:
        """Whether every place holds a signature (not whether it verifies)."""
        return len(self.signatures) == len(self.question.aggregators) and all(self.signatures)
