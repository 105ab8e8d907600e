"""A series as people read it: plain values for a JSON file.

It must not be read back: programs exchange the canonical bytes.
"""

from typing import Any, Final

from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.fields import Schedule
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.task_json import task_to_json

__all__ = ["series_to_json"]

_OF_A_WINDOW: Final = ("task_id", "window", "round_one_opens", "round_one_closes", "round_two_closes", "expiry")


def series_to_json(series: Series) -> dict[str, Any]:
    """Return the series as plain values for a JSON file that people read; what all windows ask as in `task_to_json`."""
    schedule = series.schedule
    asked = task_to_json(window_task(series.at_latest(), 0))
    shared = {name: value for name, value in asked.items() if name not in _OF_A_WINDOW}
    walk = series.drill_down
    if walk is not None:
        caps = {"threshold": walk.threshold, "most_survivors": walk.most_survivors}
        shared["drill_down"] = {"levels": list(walk.levels), **caps}
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
        "coin": series.coin.name.lower(),
        "participants": series.participants.name.lower(),
        "admission": series.admission.name.lower(),
        "delta": str(series.delta),
    }


def _start(schedule: Schedule) -> dict[str, int]:
    """Return when the first window opens, or what was signed of it; of a schedule that has started both."""
    signed = schedule.submission
    limits = (
        {}
        if signed is None
        else {"delay_s": signed.delay_s, "earliest_start": signed.earliest, "latest_start": signed.latest}
    )
    return limits if schedule.first is None else limits | {"first": schedule.first}
