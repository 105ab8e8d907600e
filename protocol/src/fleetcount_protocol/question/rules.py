"""The rules that every question keeps (docs/wire.md, "Rules of a question"): schedule, coin, promise, windows.

Run by every party. It must not read bytes (`codec`) or decide for a device's owner.
"""

from fractions import Fraction
from itertools import pairwise
from typing import Final

from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.limits import (
    MAX_DRILL_DOWN_LEVELS,
    MAX_QUESTION_LIFETIME_S,
    MAX_QUESTION_WINDOWS,
    MAX_UNIX_TIME,
    MAX_WINDOW_LIFETIME_S,
    MAX_WINDOW_S,
)
from fleetcount_protocol.question.fields import Coin, DrillDown, QuestionFields
from fleetcount_protocol.question.windows import window_fields
from fleetcount_protocol.window.domain import MAX_VALUES, PLACE_BITS, Prefixes
from fleetcount_protocol.window.fields import Mode, ReleaseKind, UploadStyle
from fleetcount_protocol.window.rules import check_fraction, check_range, check_window, require

_LARGEST_DELTA: Final = Fraction(1, 1000)
_LARGEST_THRESHOLD: Final = 2**32 - 1


def check_question(question: QuestionFields) -> None:
    """Refuse a question that no honest party may ask or answer: its own rules, then those of a window for its windows.

    The first and the last window stand for all: only the times differ between windows, by multiples of `every_s`.

    Raises:
        QuestionError: the field, its value and the allowed range.
    """
    _check_lengths(question)
    _check_window(question, 0)
    _check_schedule(question)
    _check_promise(question)
    if question.drill_down is not None:
        _check_drill_down(question, question.drill_down)
    _check_window(question, question.schedule.windows - 1)


def _check_lengths(question: QuestionFields) -> None:
    schedule = question.schedule
    if (start := schedule.submission) is not None:
        check_range("delay_s", start.delay_s, 0, MAX_QUESTION_LIFETIME_S)
        check_range("earliest start", start.earliest, 0, MAX_UNIX_TIME)
        check_range("latest start", start.latest, start.earliest, start.earliest + MAX_QUESTION_LIFETIME_S)
    check_range("first", schedule.latest_start, 0, MAX_UNIX_TIME)
    check_range("every_s", schedule.every_s, 1, MAX_QUESTION_LIFETIME_S)
    check_range("windows", schedule.windows, 1, MAX_QUESTION_WINDOWS)
    check_range("round_one_s", schedule.round_one_s, 1, MAX_WINDOW_S)
    check_range("round_two_s", schedule.round_two_s, 0, MAX_WINDOW_S)
    check_range("expiry_s", schedule.expiry_s, 1, MAX_WINDOW_LIFETIME_S)


def _check_window(question: QuestionFields, index: int) -> None:
    try:
        check_window(window_fields(question, QuestionId(bytes(QuestionId.SIZE)), index))
    except QuestionError as error:
        raise QuestionError(f"window {index} of the question: {error}") from None


def _check_schedule(question: QuestionFields) -> None:
    schedule, step = question.schedule, question.time_precision_s
    require(schedule.every_s % step == 0, f"every_s is {schedule.every_s}, not a multiple of time_precision_s = {step}")
    rounds = schedule.round_one_s + schedule.round_two_s
    require(schedule.every_s >= rounds, f"every_s is {schedule.every_s}, allowed: at least the rounds' {rounds} s")
    envelope = question.upload_style is UploadStyle.ONE_ENVELOPE
    require(not (envelope and schedule.round_two_s), f"round_two_s is {schedule.round_two_s}, one envelope needs 0")
    _check_start(question)
    lifetime = (schedule.windows - 1) * schedule.every_s + rounds + schedule.expiry_s
    require(
        lifetime <= MAX_QUESTION_LIFETIME_S,
        f"the last window expires {lifetime} s after the first opens, allowed: at most {MAX_QUESTION_LIFETIME_S}",
    )


def _check_start(question: QuestionFields) -> None:
    schedule, step = question.schedule, question.time_precision_s
    if (signed := schedule.submission) is None:
        return
    for what, moment in (("earliest", signed.earliest), ("latest", signed.latest)):
        require(moment % step == 0, f"{what} start is {moment}, not a multiple of time_precision_s = {step}")
    # A promise for a UTC day whose windows share a toss would depend on when the question starts.
    require(question.coin is not Coin.DAY, "coin is day, allowed when counted from submission: window or questions")
    if (start := schedule.first) is not None:
        check_range("start of the question", start, signed.earliest, signed.latest)
        require(start % step == 0, f"start of the question is {start}, not a multiple of time_precision_s = {step}")


def _check_promise(question: QuestionFields) -> None:
    require(
        question.coin is Coin.WINDOW or question.mode is Mode.SAMPLING,
        f"coin is {question.coin.name.lower()}, allowed in {question.mode.name.lower()} mode: window",
    )
    delta = check_fraction("delta", question.delta)
    require(0 < delta <= _LARGEST_DELTA, f"delta is {delta}, allowed: above 0 and at most {_LARGEST_DELTA}")
    # Without a finite loss there is no promise over many windows.
    several = question.schedule.windows > 1
    require(
        not several or question.release.kind is not ReleaseKind.EXACT, "release is exact, allowed in one window only"
    )


def _check_drill_down(question: QuestionFields, walk: DrillDown) -> None:
    domain, levels = question.domain, walk.levels
    check_range("number of levels", len(levels), 2, MAX_DRILL_DOWN_LEVELS)
    for bits in levels:
        check_range("level", bits, 1, PLACE_BITS)
    require(all(low < high for low, high in pairwise(levels)), f"levels are {levels}, allowed: ascending")
    if not isinstance(domain, Prefixes) or domain.bits != levels[0] or domain.values == 1:
        raise QuestionError(f"a drill-down begins with two or more prefixes of {levels[0]} bits as its domain")
    schedule, windows = question.schedule, question.schedule.windows
    least = schedule.round_one_s + schedule.round_two_s + question.time_precision_s
    # A record is of the next point of the time grid behind its rounds; the next step has to open after it.
    require(schedule.every_s >= least, f"every_s is {schedule.every_s}, a drill-down needs at least {least} s")
    require(windows % len(levels) == 0, f"windows is {windows}, allowed: a multiple of the {len(levels)} levels")
    check_range("threshold", walk.threshold, 1, _LARGEST_THRESHOLD)
    children = 1 << max(high - low for low, high in pairwise(levels))
    require(children <= MAX_VALUES, f"a cell has {children} children, allowed: at most {MAX_VALUES}")
    check_range(f"most_survivors, each of {children} children,", walk.most_survivors, 1, MAX_VALUES // children)
    # Thresholds are for the cells of the first step, and what survives a step is decided by estimates.
    two_sided = question.release.kind is not ReleaseKind.ONE_SIDED
    require(two_sided, "release is one-sided, allowed in a drill-down: noise on both sides")
    _check_any_number_of_values(question)


def _check_any_number_of_values(question: QuestionFields) -> None:
    # The steps ask about different numbers of places: the law must promise the same for each of them.
    mechanism = question.mechanism
    uniform = isinstance(mechanism, SamplingDie) and mechanism.face_probabilities is None
    require(mechanism is None or uniform, "a drill-down is direct or throws a uniform die")
