"""The rules that every series keeps (docs/wire.md, "Rules of a series"): schedule, coin, promise, tasks of its windows.

Run by every party. It must not read bytes (`codec`) or decide for a device's owner.
"""

from fractions import Fraction
from itertools import pairwise
from typing import Final

from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.limits import (
    MAX_DRILL_DOWN_LEVELS,
    MAX_SERIES_LIFETIME_S,
    MAX_SERIES_WINDOWS,
    MAX_TASK_LIFETIME_S,
    MAX_UNIX_TIME,
    MAX_WINDOW_S,
)
from fleetcount_protocol.series.fields import Coin, DrillDown, SeriesFields
from fleetcount_protocol.series.windows import window_fields
from fleetcount_protocol.task.domain import MAX_VALUES, PLACE_BITS, Prefixes
from fleetcount_protocol.task.fields import Mode, ReleaseKind, UploadStyle
from fleetcount_protocol.task.rules import check_fraction, check_range, check_task, require

__all__ = ["check_series"]

_LARGEST_DELTA: Final = Fraction(1, 1000)
_LARGEST_THRESHOLD: Final = 2**32 - 1


def check_series(series: SeriesFields) -> None:
    """Refuse a series that no honest party may ask or answer: its own rules, then those of a task for its windows.

    The first and the last window stand for all: only the times differ between windows, by multiples of `every_s`.

    Raises:
        TaskError: the field, its value and the allowed range.
    """
    _check_lengths(series)
    _check_window(series, 0)
    _check_schedule(series)
    _check_promise(series)
    if series.drill_down is not None:
        _check_drill_down(series, series.drill_down)
    _check_window(series, series.schedule.windows - 1)


def _check_lengths(series: SeriesFields) -> None:
    schedule = series.schedule
    if (start := schedule.submission) is not None:
        check_range("delay_s", start.delay_s, 0, MAX_SERIES_LIFETIME_S)
        check_range("earliest start", start.earliest, 0, MAX_UNIX_TIME)
        check_range("latest start", start.latest, start.earliest, start.earliest + MAX_SERIES_LIFETIME_S)
    check_range("first", schedule.latest_start, 0, MAX_UNIX_TIME)
    check_range("every_s", schedule.every_s, 1, MAX_SERIES_LIFETIME_S)
    check_range("windows", schedule.windows, 1, MAX_SERIES_WINDOWS)
    check_range("round_one_s", schedule.round_one_s, 1, MAX_WINDOW_S)
    check_range("round_two_s", schedule.round_two_s, 0, MAX_WINDOW_S)
    check_range("expiry_s", schedule.expiry_s, 1, MAX_TASK_LIFETIME_S)


def _check_window(series: SeriesFields, index: int) -> None:
    try:
        check_task(window_fields(series, SeriesId(bytes(SeriesId.SIZE)), index))
    except TaskError as error:
        raise TaskError(f"window {index} of the series: {error}") from None


def _check_schedule(series: SeriesFields) -> None:
    schedule, step = series.schedule, series.time_precision_s
    require(schedule.every_s % step == 0, f"every_s is {schedule.every_s}, not a multiple of time_precision_s = {step}")
    rounds = schedule.round_one_s + schedule.round_two_s
    require(schedule.every_s >= rounds, f"every_s is {schedule.every_s}, allowed: at least the rounds' {rounds} s")
    envelope = series.upload_style is UploadStyle.ONE_ENVELOPE
    require(not (envelope and schedule.round_two_s), f"round_two_s is {schedule.round_two_s}, one envelope needs 0")
    _check_start(series)
    lifetime = (schedule.windows - 1) * schedule.every_s + rounds + schedule.expiry_s
    require(
        lifetime <= MAX_SERIES_LIFETIME_S,
        f"the last window expires {lifetime} s after the first opens, allowed: at most {MAX_SERIES_LIFETIME_S}",
    )


def _check_start(series: SeriesFields) -> None:
    schedule, step = series.schedule, series.time_precision_s
    if (signed := schedule.submission) is None:
        return
    for what, moment in (("earliest", signed.earliest), ("latest", signed.latest)):
        require(moment % step == 0, f"{what} start is {moment}, not a multiple of time_precision_s = {step}")
    # A promise for a UTC day whose windows share a toss would depend on when the question starts.
    require(series.coin is not Coin.DAY, "coin is day, allowed when counted from submission: window or series")
    if (start := schedule.first) is not None:
        check_range("start of the question", start, signed.earliest, signed.latest)
        require(start % step == 0, f"start of the question is {start}, not a multiple of time_precision_s = {step}")


def _check_promise(series: SeriesFields) -> None:
    require(
        series.coin is Coin.WINDOW or series.mode is Mode.SAMPLING,
        f"coin is {series.coin.name.lower()}, allowed in {series.mode.name.lower()} mode: window",
    )
    delta = check_fraction("delta", series.delta)
    require(0 < delta <= _LARGEST_DELTA, f"delta is {delta}, allowed: above 0 and at most {_LARGEST_DELTA}")
    # Without a finite loss there is no promise over many windows.
    several = series.schedule.windows > 1
    require(not several or series.release.kind is not ReleaseKind.EXACT, "release is exact, allowed in one window only")


def _check_drill_down(series: SeriesFields, walk: DrillDown) -> None:
    domain, levels = series.domain, walk.levels
    check_range("number of levels", len(levels), 2, MAX_DRILL_DOWN_LEVELS)
    for bits in levels:
        check_range("level", bits, 1, PLACE_BITS)
    require(all(low < high for low, high in pairwise(levels)), f"levels are {levels}, allowed: ascending")
    if not isinstance(domain, Prefixes) or domain.bits != levels[0] or domain.values == 1:
        raise TaskError(f"a drill-down begins with two or more prefixes of {levels[0]} bits as its domain")
    schedule, windows = series.schedule, series.schedule.windows
    least = schedule.closes(0) - schedule.opens(0) + series.time_precision_s
    # A record is of the next point of the time grid behind its rounds; the next step has to open after it.
    require(schedule.every_s >= least, f"every_s is {schedule.every_s}, a drill-down needs at least {least} s")
    require(windows % len(levels) == 0, f"windows is {windows}, allowed: a multiple of the {len(levels)} levels")
    check_range("threshold", walk.threshold, 1, _LARGEST_THRESHOLD)
    children = 1 << max(high - low for low, high in pairwise(levels))
    require(children <= MAX_VALUES, f"a cell has {children} children, allowed: at most {MAX_VALUES}")
    check_range(f"most_survivors, each of {children} children,", walk.most_survivors, 1, MAX_VALUES // children)
    # Thresholds are for the cells of the first step, and what survives a step is decided by estimates.
    two_sided = series.release.kind is not ReleaseKind.ONE_SIDED
    require(two_sided, "release is one-sided, allowed in a drill-down: noise on both sides")
    _check_any_number_of_values(series)


def _check_any_number_of_values(series: SeriesFields) -> None:
    # The steps ask about different numbers of places: the law must promise the same for each of them.
    mechanism = series.mechanism
    uniform = isinstance(mechanism, SamplingDie) and mechanism.face_probabilities is None
    require(mechanism is None or uniform, "a drill-down is direct or throws a uniform die")
