"""A series' specification file, SPEC.toml, and the series it describes (docs/operating.md, "A map every hour").

Reads text; the present time is an argument. It must not draw a key or sign. What a window asks is read as in a task's
specification; [series] stands in place of [windows].
"""

from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

from fleetcount_mechanisms.accounting.shape import SeriesShape
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.losses import PlannedNoise
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import MAX_DRILL_DOWN_LEVELS, MAX_SERIES_WINDOWS
from fleetcount_protocol.series.fields import Coin, DrillDown, Participants, Schedule
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import MAX_VALUES, PLACE_BITS, Prefixes, ValueDomain
from fleetcount_protocol.task.task import Mode, Release, ReleaseKind, UploadStyle
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount.numbers import parse_length
from fleetcount.task_spec import (
    NOISE_LAWS,
    TASK_KEYS,
    UPLOAD_STYLES,
    read_aggregators,
    read_domain,
    read_mechanism,
    read_moment,
    read_names,
    read_thresholds,
)

__all__ = ["read_series_spec"]

_SECTIONS: Final = ("task", "domain", "drill_down", "series", "mechanism", "release", "aggregators")
_SERIES_KEYS: Final = (
    "first",
    "every",
    "until",
    "windows",
    "window",
    "round_one",
    "expires_after",
    "coin",
    "participants",
    "domain",
)
_WALK_KEYS: Final = ("levels", "threshold", "most_survivors")
_RELEASE_KEYS: Final = ("kind", "epsilon", "delta", "sd", "variance", "noise_epsilon", "level", "thresholds")
_STRENGTHS: Final = {
    ReleaseKind.GAUSSIAN: ("sd", "variance"),
    ReleaseKind.GEOMETRIC: ("noise_epsilon",),
    ReleaseKind.ONE_SIDED: ("noise_epsilon",),
}
"""The keys, one of which gives the noise of a window; without one it is solved for the promise."""
_MOST_BITS: Final = MAX_VALUES.bit_length() - 1
"""A step of one more bit would have 4,096 candidates, one too many."""
_DELTA: Final = Range("(0, 1/1000]")
_EPSILON: Final = Range("(0, 100]")
_NOISE_EPSILON: Final = Range("(0, 10]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_LEVEL: Final = Range("(0, 1)")


def read_series_spec(path: Path, now: float, verify_seed_digest: Digest) -> Series:
    """Return the series of a specification file; `now` is what "in 10 s" counts from, Unix seconds.

    Times are UTC: a time with another offset than zero is refused, since an hour of local time is missing or doubled
    when the clocks change. Noise is given for a window, or solved so that the whole series keeps its promise.

    Raises:
        UsageError: anything unknown, missing or out of range, with file, key, value and what is allowed.
    """
    root = read_toml(path, _SECTIONS)
    task = root.section("task", TASK_KEYS)
    mode = Mode[task.choice("mode", ("sampling", "response", "direct"), "sampling").upper()]
    style = UploadStyle[task.choice("upload_style", UPLOAD_STYLES, "two_instalments").upper()]
    step = task.integer("time_precision_s", 1, 86_400, 1)
    table = root.section("series", _SERIES_KEYS)
    domain, walk = _domain(root, table)
    mechanism = read_mechanism(root, mode, domain.values, half_allowed=True)
    schedule = _schedule(table, now, step, halves=mode is Mode.SAMPLING and style is UploadStyle.TWO_INSTALMENTS)
    coin = Coin[table.choice("coin", tuple(one.name.lower() for one in Coin), "window").upper()]
    parties = tuple(replace(one, hpke_keys=()) for one in read_aggregators(root))
    answer: AnswerLaw = Truth(domain.values) if mechanism is None else mechanism
    release, delta = _promise(root, answer, schedule.shape(coin))
    name, deployment, signal = read_names(task)
    return Series(
        name=name,
        deployment=deployment,
        signal=signal,
        domain=domain,
        mode=mode,
        mechanism=mechanism,
        schedule=schedule,
        coin=coin,
        participants=Participants[table.choice("participants", ("hidden", "noised"), "hidden").upper()],
        delta=delta,
        release=release,
        upload_style=style,
        time_precision_s=step,
        min_batch_size=task.integer("min_batch_size", 2, 2**32),
        aggregators=parties,
        verify_seed_digest=verify_seed_digest,
        drill_down=walk,
    )


# Where.


def _domain(root: Table, table: Table) -> tuple[ValueDomain, DrillDown | None]:
    """Return what the first window asks, and the walk of a drill-down, whose first step asks every prefix."""
    if table.choice("domain", ("fixed", "drill-down"), "fixed") == "fixed":
        if root.has("drill_down"):
            raise table.wrong("domain", "it must be 'drill-down' where [drill_down] is given")
        return read_domain(root), None
    if root.has("domain"):
        raise root.wrong("domain", "a drill-down has none: its steps ask about prefixes of 32-bit places")
    walk = root.section("drill_down", _WALK_KEYS)
    levels = _levels(walk)
    children = 1 << max(fine - coarse for coarse, fine in pairwise(levels))
    most = walk.integer("most_survivors", 1, MAX_VALUES // children, MAX_VALUES // children)
    first = Prefixes(bits=levels[0], cells=tuple(range(1 << levels[0])))
    threshold = walk.integer("threshold", 1, 2**32 - 1)
    return first, DrillDown(levels=levels, threshold=threshold, most_survivors=most)


def _levels(walk: Table) -> tuple[int, ...]:
    value = walk.raw("levels")
    levels = tuple(cast("list[object]", value)) if isinstance(value, list) else ()
    whole = tuple(one for one in levels if type(one) is int and 1 <= one <= PLACE_BITS)
    if len(whole) != len(levels) or not 2 <= len(whole) <= MAX_DRILL_DOWN_LEVELS:
        raise walk.refuse("levels", f"2 to {MAX_DRILL_DOWN_LEVELS} numbers of bits, each 1 to {PLACE_BITS}")
    steps = (whole[0], *(fine - coarse for coarse, fine in pairwise(whole)))
    if not all(1 <= one <= _MOST_BITS for one in steps):
        raise walk.refuse("levels", f"ascending, the first and each step at most {_MOST_BITS} bits: 2,048 candidates")
    return whole


# When.


def _schedule(table: Table, now: float, step: int, *, halves: bool) -> Schedule:
    first, every, window = _utc_moment(table, "first", now, step), _length(table, "every"), _length(table, "window")
    if every < window:
        raise table.wrong("every", f"it must be at least the window's {window} s: windows would overlap")
    one = window
    if halves:
        one = _length(table, "round_one") if table.has("round_one") else window // 2 // step * step
        if not 0 < one < window:
            raise table.wrong(
                "window", f"round one would take {one} s of its {window} s; both rounds need {step} s or more"
            )
    return Schedule(
        first=first,
        every_s=every,
        windows=_windows(table, first, every, now, step),
        round_one_s=one,
        round_two_s=window - one,
        expiry_s=_length(table, "expires_after") if table.has("expires_after") else -(-86_400 // step) * step,
    )


def _windows(table: Table, first: int, every: int, now: float, step: int) -> int:
    if table.has("until") == table.has("windows"):
        raise table.refuse("windows", "exactly one of windows (their number) and until (a time, UTC)")
    if table.has("windows"):
        return table.integer("windows", 1, MAX_SERIES_WINDOWS)
    until = _utc_moment(table, "until", now, step)
    count = -(-(until - first) // every)
    if not 1 <= count <= MAX_SERIES_WINDOWS:
        raise table.wrong("until", f"from first there would be {count} windows, allowed: 1 to {MAX_SERIES_WINDOWS}")
    return count


def _utc_moment(table: Table, key: str, now: float, step: int) -> int:
    value = table.raw(key)
    if isinstance(value, datetime) and value.utcoffset() != timedelta(0):
        raise table.refuse(key, "a time in UTC, written with Z: local time has hours that are missing or come twice")
    return read_moment(table, key, now, step)


def _length(table: Table, key: str) -> int:
    try:
        return parse_length(table.raw(key))
    except ValueError:
        raise table.refuse(key, 'a length of time: "10 min", "1 h" (s, min, h, d)') from None


# What is promised.


def _promise(root: Table, answer: AnswerLaw, shape: SeriesShape) -> tuple[Release, Fraction]:
    """Return the release of every window, and the delta at which the series is stated."""
    table = root.section("release", _RELEASE_KEYS)
    kinds = {kind.label: kind for kind in _STRENGTHS}
    kind = kinds[table.choice("kind", tuple(kinds), ReleaseKind.GAUSSIAN.label)]
    delta = table.number("delta", _DELTA, Fraction(1, 10**9))
    given = [key for keys in _STRENGTHS.values() for key in keys if table.has(key)]
    wrong = [key for key in given if key not in _STRENGTHS[kind]]
    if wrong:
        raise table.wrong(wrong[0], f"kind is {kind.label!r}, whose noise is given by {' or '.join(_STRENGTHS[kind])}")
    if len(given) + table.has("epsilon") != 1:
        allowed = " or ".join(_STRENGTHS[kind])
        raise table.refuse(
            "epsilon", f"exactly one of epsilon (of the whole series, at delta) and {allowed} (of a window)"
        )
    noise = _given_noise(table, kind, given[0]) if given else _solved_noise(table, kind, answer, shape, delta)
    release = Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=table.number("level", _LEVEL, Fraction(95, 100)),
        thresholds=read_thresholds(table),
    )
    return release, delta


def _given_noise(table: Table, kind: ReleaseKind, key: str) -> PlannedNoise:
    if key == "noise_epsilon":
        law = OneSidedNoise if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise
        return law(table.number(key, _NOISE_EPSILON))
    return GaussianNoise(table.number(key, _VARIANCE) if key == "variance" else table.number(key, _SD) ** 2)


def _solved_noise(
    table: Table, kind: ReleaseKind, answer: AnswerLaw, shape: SeriesShape, delta: Fraction
) -> PlannedNoise:
    # The exact sum of geometric losses has no filter: a ledger adds up more, and geometric noise is for who knows that.
    in_ledgers = kind is ReleaseKind.GAUSSIAN
    epsilon = table.number("epsilon", _EPSILON)
    try:
        return noise_for_promise(answer, shape, epsilon, delta, NOISE_LAWS[kind], in_ledgers=in_ledgers)
    except MechanismError as error:
        raise table.wrong("epsilon", str(error)) from None
