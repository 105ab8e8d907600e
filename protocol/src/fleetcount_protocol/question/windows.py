"""What one window holds, as its question and its index say, whether or not it may be asked.

It must not apply rules (`rules`) or make the window itself (`derive`).
"""

from typing import Any, Final

from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.question.fields import Participants, QuestionFields, Schedule
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import QuestionRef, WindowFields

_SHARED: Final = (
    "name",
    "deployment",
    "signal",
    "domain",
    "mode",
    "mechanism",
    "release",
    "upload_style",
    "time_precision_s",
    "min_batch_size",
    "aggregators",
)


def window_times(schedule: Schedule, index: int) -> dict[str, int]:
    """Return the four times of a window by the names of its fields."""
    opens, closes = schedule.opens(index), schedule.closes(index)
    return {
        "round_one_opens": opens,
        "round_one_closes": opens + schedule.round_one_s,
        "round_two_closes": closes,
        "expiry": closes + schedule.expiry_s,
    }


def window_ref(question: QuestionFields, question_id: QuestionId, index: int) -> QuestionRef:
    """Return a window's place in its question."""
    noised = question.participants is Participants.NOISED
    return QuestionRef(question_id=question_id, index=index, noised_participants=noised)


def window_fields(
    question: QuestionFields, question_id: QuestionId, index: int, domain: Prefixes | None = None
) -> WindowFields:
    """Return the fields of a window: those of the question, the window's times and its place in the question.

    The times of a question that has not started are those of its latest start: for rules and what all windows share.
    A later step of a drill-down asks about its own `domain`; its uniform die has as many faces and the same rate.
    """
    shared: dict[str, Any] = {name: getattr(question, name) for name in _SHARED}
    if domain is not None:
        shared["domain"] = domain
        if isinstance(question.mechanism, SamplingDie):
            rate = question.mechanism.sampling_rate
            shared["mechanism"] = SamplingDie.uniform(rate, domain.values, allow_large_rate=True)
    shared |= window_times(question.schedule.at_latest(), index)
    return WindowFields(
        **shared,
        verify_key_digest=question.verify_seed_digest,
        question=window_ref(question, question_id, index),
    )
