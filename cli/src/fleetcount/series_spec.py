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

from fleetcount_mechanisms.accounting.exposure import MOST_UNITS
from fleetcount_mechanisms.accounting.shape import SeriesShape
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.losses import PlannedNoise
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.zooms import Zooms
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import (
    MAX_DRILL_DOWN_LEVELS,
    MAX_SERIES_LIFETIME_S,
    MAX_SERIES_WINDOWS,
    MAX_TASK_LIFETIME_S,
    MAX_WINDOW_S,
)
from fleetcount_protocol.series.fields import DAY_S, Coin, DrillDown, Participants, Schedule
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import MAX_VALUES, PLACE_BITS, Prefixes, ValueDomain
from fleetcount_protocol.task.task import Mode, Release, ReleaseKind, UploadStyle
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount.numbers import parse_length
from fleetcount.spec_refusals import told_by_key
from fleetcount.task_files import utc
from fleetcount.task_spec import (
    NOISE_LAWS,
    TASK_KEYS,
    UPLOAD_STYLES,
    given_moment,
    read_aggregators,
    read_domain,
    read_mechanism,
    read_moment,
    read_names,
    read_thresholds,
    read_zooms,
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
_RELEASE_KEYS: Final = ("kind", "epsilon", "delta", "sd", "variance", "noise_epsilon", "level", "thresholds", "zooms")
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
    with told_by_key(root):
        return _series(root, now, verify_seed_digest)


def _series(root: Table, now: float, verify_seed_digest: Digest) -> Series:
    task = root.section("task", TASK_KEYS)
    mode = Mode[task.choice("mode", ("sampling", "response", "direct"), "sampling").upper()]
    style = UploadStyle[task.choice("upload_style", UPLOAD_STYLES, "two_instalments").upper()]
    step = task.integer("time_precision_s", 1, 86_400, 1)
    table = root.section("series", _SERIES_KEYS)
    domain, walk = _domain(root, table)
    mechanism = read_mechanism(root, mode, domain.values, half_allowed=True)
    levels = 1 if walk is None else len(walk.levels)
    halves = mode is Mode.SAMPLING and style is UploadStyle.TWO_INSTALMENTS
    schedule = _schedule(table, now, step, levels, halves=halves)
    coin = Coin[table.choice("coin", tuple(one.name.lower() for one in Coin), "window").upper()]
    _check_units(table, schedule, coin)
    parties = tuple(replace(one, hpke_keys=()) for one in read_aggregators(root))
    answer: AnswerLaw = Truth(domain.values) if mechanism is None else mechanism
    release, delta = _promise(root, answer, domain, schedule.shape(coin))
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
            raise table.refuse("domain", "'drill-down' where [drill_down] is given")
        return read_domain(root), None
    if root.has("domain"):
        raise root.wrong("domain", "is given, and a drill-down has none: its steps ask about prefixes of 32-bit places")
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


def _schedule(table: Table, now: float, step: int, levels: int, *, halves: bool) -> Schedule:
    first = _utc_moment(table, "first", now, step)
    if first < now:
        raise table.refuse("first", f"a time from now on, {utc(now)}: its first windows could not be answered")
    every = _length(table, "every", step, MAX_SERIES_LIFETIME_S)
    window = _length(table, "window", step, MAX_WINDOW_S)
    if every < window:
        raise table.refuse("every", f"the window's {window} s or more: windows would overlap")
    one = window
    if halves:
        one = _length(table, "round_one", step, MAX_WINDOW_S) if table.has("round_one") else window // 2 // step * step
        if not 0 < one < window:
            raise table.refuse(
                "window",
                f"a length in which both rounds have {step} s or more; round one would take {one} s of its {window} s",
            )
    elif table.has("round_one"):
        raise table.wrong("round_one", f"is {table.raw('round_one')!r}; a window of one message has no second round")
    given = table.has("expires_after")
    expiry = _length(table, "expires_after", step, MAX_TASK_LIFETIME_S) if given else -(-86_400 // step) * step
    return Schedule(
        first=first,
        every_s=every,
        windows=_windows(table, first, every, now, step, levels),
        round_one_s=one,
        round_two_s=window - one,
        expiry_s=expiry,
    )


def _windows(table: Table, first: int, every: int, now: float, step: int, levels: int) -> int:
    if table.has("until") == table.has("windows"):
        raise table.refuse("windows", "exactly one of windows (their number) and until (a time, UTC)")
    key, count = "windows", 0
    if table.has("windows"):
        count = table.integer("windows", 1, MAX_SERIES_WINDOWS)
    else:
        key, until = "until", _utc_moment(table, "until", now, step)
        if until <= first:
            raise table.refuse("until", f"a time after series.first, {utc(first)}")
        count = -(-(until - first) // every)
        if count > MAX_SERIES_WINDOWS:
            most = f"a time with 1 to {MAX_SERIES_WINDOWS} windows from first"
            raise table.refuse("until", f"{most}; there would be {count}")
    if count % levels:
        there = "" if key == "windows" else f"; there would be {count}"
        raise table.refuse(key, f"a multiple of the {levels} levels of [drill_down]{there}")
    return count


def _check_units(table: Table, schedule: Schedule, coin: Coin) -> None:
    """Refuse more units of the coin than a statement can be made of."""
    units = len(schedule.shape(coin).units)
    if units > MOST_UNITS:
        allowed = f"so many windows that there are at most {MOST_UNITS} tosses of the coin; there would be {units}"
        raise table.refuse("windows" if table.has("windows") else "until", allowed)


def _utc_moment(table: Table, key: str, now: float, step: int) -> int:
    value = given_moment(table, key)
    if isinstance(value, datetime) and value.utcoffset() != timedelta(0):
        raise table.refuse(key, "a time in UTC, written with Z: local time has hours that are missing or come twice")
    return read_moment(table, key, now, step)


def _length(table: Table, key: str, step: int, most: int) -> int:
    try:
        length = parse_length(table.raw(key))
    except ValueError:
        raise table.refuse(key, 'a length of time: "10 min", "1 h" (s, min, h, d)') from None
    if length > most or length % step:
        multiple = "" if step == 1 else f", a multiple of task.time_precision_s = {step} s"
        raise table.refuse(key, f"a length of at most {most // DAY_S} d{multiple}")
    return length


# What is promised.


def _promise(root: Table, answer: AnswerLaw, domain: ValueDomain, shape: SeriesShape) -> tuple[Release, Fraction]:
    """Return the release of every window, and the delta at which the series is stated."""
    table = root.section("release", _RELEASE_KEYS)
    kinds = {kind.label: kind for kind in _STRENGTHS}
    kind = kinds[table.choice("kind", tuple(kinds), ReleaseKind.GAUSSIAN.label)]
    delta = table.number("delta", _DELTA, Fraction(1, 10**9))
    given = [key for keys in _STRENGTHS.values() for key in keys if table.has(key)]
    wrong = [key for key in given if key not in _STRENGTHS[kind]]
    if wrong:
        raise table.wrong(
            wrong[0],
            f"is for another kind: {kind.label!r} is asked, whose noise is given by {' or '.join(_STRENGTHS[kind])}",
        )
    if len(given) + table.has("epsilon") != 1:
        allowed = " or ".join(_STRENGTHS[kind])
        raise table.refuse(
            "epsilon", f"exactly one of epsilon (of the whole series, at delta) and {allowed} (of a window)"
        )
    zooms = read_zooms(table, domain)
    noise = _given_noise(table, kind, given[0]) if given else _solved_noise(table, kind, answer, shape, delta, zooms)
    release = Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=table.number("level", _LEVEL, Fraction(95, 100)),
        thresholds=read_thresholds(table),
        zooms=1 if zooms is None else zooms.count,
    )
    return release, delta


def _given_noise(table: Table, kind: ReleaseKind, key: str) -> PlannedNoise:
    if key == "noise_epsilon":
        law = OneSidedNoise if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise
        return law(table.number(key, _NOISE_EPSILON))
    return GaussianNoise(table.number(key, _VARIANCE) if key == "variance" else table.number(key, _SD) ** 2)


def _solved_noise(
    table: Table, kind: ReleaseKind, answer: AnswerLaw, shape: SeriesShape, delta: Fraction, zooms: Zooms | None
) -> PlannedNoise:
    # The exact sum of geometric losses has no filter: a ledger adds up more, and geometric noise is for who knows that.
    in_ledgers = kind is ReleaseKind.GAUSSIAN
    epsilon = table.number("epsilon", _EPSILON)
    try:
        return noise_for_promise(answer, shape, epsilon, delta, NOISE_LAWS[kind], in_ledgers=in_ledgers, zooms=zooms)
    except MechanismError as error:
        raise table.wrong("epsilon", f"is {table.raw('epsilon')!r}: {error}") from None
