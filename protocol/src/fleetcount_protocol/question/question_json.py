"""A question as plain values for a JSON file that people read; programs exchange the canonical bytes. No car has it."""

from typing import Any, Final

from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.window_json import window_to_json

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
