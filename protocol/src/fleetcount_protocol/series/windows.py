"""What the task of one window holds, as its series and its index say, whether or not it may be asked.

It must not apply rules (`rules`) or make the task itself (`derive`).
"""

from typing import Any, Final

from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.series.fields import Participants, Schedule, SeriesFields
from fleetcount_protocol.task.domain import Prefixes
from fleetcount_protocol.task.fields import SeriesRef, TaskFields

__all__ = ["window_fields", "window_ref", "window_times"]

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
    """Return the four times of a window's task by the names of its fields."""
    opens, closes = schedule.opens(index), schedule.closes(index)
    return {
        "round_one_opens": opens,
        "round_one_closes": opens + schedule.round_one_s,
        "round_two_closes": closes,
        "expiry": closes + schedule.expiry_s,
    }


def window_ref(series: SeriesFields, series_id: SeriesId, index: int) -> SeriesRef:
    """Return a window's place in its series."""
    noised = series.participants is Participants.NOISED
    return SeriesRef(series_id=series_id, index=index, noised_participants=noised)


def window_fields(series: SeriesFields, series_id: SeriesId, index: int, domain: Prefixes | None = None) -> TaskFields:
    """Return the fields of a window's task: those of the series, the window's times and its place in the series.

    The times of a series that has not started are those of its latest start: for rules and what all windows share.
    A later step of a drill-down asks about its own `domain`; its uniform die has as many faces and the same rate.
    """
    shared: dict[str, Any] = {name: getattr(series, name) for name in _SHARED}
    if domain is not None:
        shared["domain"] = domain
        if isinstance(series.mechanism, SamplingDie):
            rate = series.mechanism.sampling_rate
            shared["mechanism"] = SamplingDie.uniform(rate, domain.values, allow_large_rate=True)
    shared |= window_times(series.schedule.at_latest(), index)
    return TaskFields(
        **shared,
        verify_key_digest=series.verify_seed_digest,
        series=window_ref(series, series_id, index),
    )
