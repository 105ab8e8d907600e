"""When the windows of a question are: [schedule] of its specification file.

Reads text; the present time is an argument. It must not know what is asked.
"""

import math
import re
from datetime import datetime, timedelta
from typing import Final

from fleetcount_mechanisms.accounting.charges import MOST_UNITS
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.limits import (
    MAX_QUESTION_LIFETIME_S,
    MAX_QUESTION_WINDOWS,
    MAX_WINDOW_LIFETIME_S,
    MAX_WINDOW_S,
)
from fleetcount_protocol.question.fields import DAY_S, Coin, Schedule, Submission
from fleetcount_transport.toml_table import Table

from fleetcount.command.numbers import parse_length

_MANY: Final = ("windows", "until")
SCHEDULE_KEYS: Final = (
    "opens",
    "submit_by",
    "window",
    "round_one",
    "expires_after",
    "every",
    *_MANY,
    "coin",
    "one_in",
    "participants",
    "domain",
)
_DURATION: Final = re.compile(r"in ([0-9]{1,9}) ?(s|min|h|d)", re.ASCII)
_AFTER: Final = re.compile(r"([0-9]{1,9}) ?(s|min|h|d) after submission", re.ASCII)
_UNIT_S: Final = {"s": 1, "min": 60, "h": 3600, "d": DAY_S}
_YEAR_9999_S: Final = 253_402_300_799
_LEAD_S: Final = 60
"""A single window is decided about so long before it opens, or at once: aggregators wait no longer than a period."""


def read_schedule(table: Table, coin: Coin, now: float, step: int, levels: int, *, two_rounds: bool) -> Schedule:
    """Return the schedule of [schedule]; all its times lie on a grid of `step` seconds.

    Without `every` there is one window, whose time may have any offset. Times of many are UTC: an hour of local time is
    missing or doubled when the clocks change. Counted from submission
    only the limits of the start are known. `levels` are the steps of a drill-down, 1 where there is none.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    several = table.has("every")
    counted = _submission(table, now, step)
    opens = (_utc_moment if several else _moment)(table, "opens", now, step) if counted is None else None
    if opens is not None and opens < now:
        raise table.refuse("opens", f"a time from now on, {utc_text(now)}: its first window could not be answered")
    window = _length(table, "window", step, MAX_WINDOW_S)
    every = _length(table, "every", step, MAX_QUESTION_LIFETIME_S) if several else max(window, _on_grid(_LEAD_S, step))
    if every < window:
        raise table.refuse("every", f"the window's {window} s or more: windows would overlap")
    one = _round_one(table, window, step) if two_rounds else window
    if not two_rounds and table.has("round_one"):
        raise table.wrong("round_one", f"is {table.raw('round_one')!r}; a window of one message has no second round")
    given = table.has("expires_after")
    schedule = Schedule(
        first=opens,
        every_s=every,
        windows=_windows(table, opens, window, every, now, step, levels),
        round_one_s=one,
        round_two_s=window - one,
        expiry_s=_length(table, "expires_after", step, MAX_WINDOW_LIFETIME_S) if given else _on_grid(DAY_S, step),
        submission=counted,
    )
    if counted is not None and coin is Coin.DAY:
        raise table.refuse("coin", "'window' or 'question's where opens is counted from submission")
    units = len(schedule.shape(coin).units)
    if units > MOST_UNITS:
        allowed = f"so many windows that there are at most {MOST_UNITS} tosses of the coin; there would be {units}"
        raise table.refuse("windows" if table.has("windows") else "until", allowed)
    return schedule


def _submission(table: Table, now: float, step: int) -> Submission | None:
    """Return the start that is counted from submission; None where `opens` is a time."""
    value = table.raw("opens")
    match = _AFTER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        if table.has("submit_by"):
            raise table.wrong("submit_by", 'is given without schedule.opens = "20 s after submission"')
        return None
    delay = int(match[1]) * _UNIT_S[match[2]]
    if delay > MAX_QUESTION_LIFETIME_S:
        raise table.refuse("opens", f"at most {MAX_QUESTION_LIFETIME_S // DAY_S} d after submission")
    if not table.has("submit_by"):
        raise table.wrong("submit_by", "is missing: the last time to submit the question, which everybody signs")
    by, earliest = _moment(table, "submit_by", now, step), _on_grid(now + delay, step)
    if not now <= by <= now + MAX_QUESTION_LIFETIME_S:
        raise table.refuse(
            "submit_by", f"a time from now on, {utc_text(now)}, within {MAX_QUESTION_LIFETIME_S // DAY_S} d"
        )
    return Submission(delay_s=delay, earliest=earliest, latest=max(earliest, _on_grid(by + delay, step)))


def _round_one(table: Table, window: int, step: int) -> int:
    one = _length(table, "round_one", step, MAX_WINDOW_S) if table.has("round_one") else window // 2 // step * step
    if not 0 < one < window:
        raise table.refuse(
            "window",
            f"a length in which both rounds have {step} s or more; round one would take {one} s of its {window} s",
        )
    return one


def _windows(table: Table, opens: int | None, window: int, every: int, now: float, step: int, levels: int) -> int:
    key, count = "windows", 1
    if not table.has("every"):
        for key in _MANY:
            if table.has(key):
                raise table.wrong(key, "is given without schedule.every, the time from one window to the next")
    elif table.has("until") == table.has("windows"):
        raise table.refuse("windows", "exactly one of windows (their number) and until (a time, UTC)")
    elif table.has("windows"):
        count = table.integer("windows", 1, MAX_QUESTION_WINDOWS)
    elif opens is None:
        raise table.wrong("until", "is a time, and opens is counted from submission; allowed: windows, their number")
    else:
        key, until = "until", _utc_moment(table, "until", now, step)
        if until < opens + window:
            ends = utc_text(opens + window)
            raise table.refuse(
                "until", f"{ends} or later: the first window, from schedule.opens {utc_text(opens)} on, ends then"
            )
        count = 1 + (until - opens - window) // every
        if count > MAX_QUESTION_WINDOWS:
            most = f"a time by which 1 to {MAX_QUESTION_WINDOWS} windows end"
            raise table.refuse("until", f"{most}; there would be {count}")
    if count % levels:
        there = "" if key == "windows" else f"; there would be {count}"
        raise table.refuse(key, f"a multiple of the {levels} levels of [drill_down]{there}")
    return count


# Moments and lengths.


def _utc_moment(table: Table, key: str, now: float, step: int) -> int:
    value = _given_moment(table, key)
    if isinstance(value, datetime) and value.utcoffset() != timedelta(0):
        raise table.refuse(key, "a time in UTC, written with Z: local time has hours that are missing or come twice")
    return _moment(table, key, now, step)


def _given_moment(table: Table, key: str) -> object:
    """Return the value of a key that is a moment; a time in quotes is the time."""
    value = table.raw(key)
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _moment(table: Table, key: str, now: float, step: int) -> int:
    """Return an absolute time, or "in 10 s" from now, rounded up to the grid of the time precision; but no window ends
    after the `until` that is written, which is rounded down.
    """
    value = _given_moment(table, key)
    rounded = math.floor if key == "until" else math.ceil
    if isinstance(value, datetime) and value.tzinfo is not None:
        return rounded(value.timestamp() / step) * step
    if type(value) is int and 0 <= value <= _YEAR_9999_S:
        return rounded(value / step) * step
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise table.refuse(
            key,
            'a time with its zone (2026-05-01T08:00:00Z), Unix seconds, "in 10 s" or, of opens alone, "10 s after'
            ' submission" (s, min, h, d)',
        )
    return rounded((now + int(match[1]) * _UNIT_S[match[2]]) / step) * step


def _on_grid(moment: float, step: int) -> int:
    return math.ceil(moment / step) * step


def _length(table: Table, key: str, step: int, most: int) -> int:
    try:
        length = parse_length(table.raw(key))
    except ValueError:
        raise table.refuse(key, 'a length of time: "10 min", "1 h" (s, min, h, d)') from None
    if length > most or length % step:
        multiple = "" if step == 1 else f", a multiple of question.time_precision_s = {step} s"
        raise table.refuse(key, f"a length of at most {most // DAY_S} d{multiple}")
    return length
