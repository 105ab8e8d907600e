"""[release] of a question's specification file: what comes out of a question, and what that may tell of a device.

Reads text and solves for the noise; it must not know when windows are, but for how many share a toss of the coin.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, cast

from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, kind_of
from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError
from fleetcount_mechanisms.levels import Levels, neighbouring_sides
from fleetcount_mechanisms.losses import STATED_DELTA
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, Side, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread, noise_for
from fleetcount_mechanisms.planning import SHOWN, not_shown, spread_for_quantiles, spread_for_show
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.limits import MAX_ZOOMS
from fleetcount_protocol.window.domain import Categories, Cross, Numbers, Prefixes, ValueDomain, most_of
from fleetcount_protocol.window.fields import (
    MODE_FORMS,
    Release,
    ReleaseKind,
    coarser_levels,
    levels_of,
    opened_levels,
    shape_of,
)
from fleetcount_protocol.window.window import check_release_kind
from fleetcount_transport.settings import names_of, read_table, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number, shown

_STRENGTHS: Final = {
    ReleaseKind.GAUSSIAN: ("sd", "variance"),
    ReleaseKind.GEOMETRIC: ("noise_epsilon",),
    ReleaseKind.ONE_SIDED: ("noise_epsilon",),
    ReleaseKind.EXACT: (),
}
"""The keys, one of which gives each aggregator's noise of a window; without one it is solved for `epsilon`."""
_NOISE_KEYS: Final = ("epsilon", "noise_epsilon", "sd", "variance")
_LAWS: Final[dict[ReleaseKind, type[PlannedNoise]]] = {
    ReleaseKind.GEOMETRIC: TwoSidedNoise,
    ReleaseKind.ONE_SIDED: OneSidedNoise,
    ReleaseKind.GAUSSIAN: GaussianNoise,
}
_DELTA: Final = Range("(0, 1/1000]")
_EPSILON: Final = Range("(0, 100]")
_NOISE_EPSILON: Final = Range("(0, 10]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_LEVEL: Final = Range("(0, 1)")
MEAN_POINTS: Final = 33
QUANTILE_POINTS: Final = 64
"""Points of a direct number where the file says nothing. More make the rounding of devices even smaller, and the noise
of the weighted sum, which must stay below 10,000, larger; powers of two have zooms."""
_FEWER: Final = "fewer domain.points need less noise on their weighted sum"
_NO_SHOW: Final = {
    "number": "of answers that are no numbers, allowed: [domain] kind = 'number'",
    "mode": "of answers that are not direct, allowed: [question] mode = 'direct'; what others lose by more numbers"
    " was not worked out, and their mean and quantiles are read from cells and a total",
    "one-sided": "of one-sided counts, allowed: kind = 'gaussian' or 'geometric'",
    "zooms": "beside zooms, allowed: show = 'quantiles', or no zooms",
    "total": "without the total, by which the sum is divided, allowed: total = true",
}
"""Why a question does not show what it asks for."""
_NO_MARGINS: Final = {
    "table": "is true for one signal, allowed: [domain] kind = 'cross'",
    "single": "is true beside a signal with a single value, allowed: 2 values or more of each",
    "mode": "is true for answers that are not direct, allowed: [question] mode = 'direct'; of others a margin is the"
    " sum of its cells, and what they lose by numbers of its own was not worked out",
    "kind": "is true for one-sided or exact counts, allowed: kind = 'gaussian' or 'geometric'",
}
"""Why a question opens no margins, told to who asks for them."""
_NO_TOTAL: Final = {
    "one": "is true for a single value, allowed: 2 values or more; one is its own total",
    "exact": "is true for exact counts, allowed: false; a reader adds them up without an error",
    "one-sided": "is true for one-sided counts, allowed: false; their total would be one more count to protect",
    "response": "is true for answers that devices randomize, allowed: direct answers and those under a coin a window",
    "law": "is true for sampled answers under geometric noise, allowed: kind = 'gaussian', or direct answers",
    "coin": "is true under a coin that holds for several windows, allowed: a coin a window; else a total has its price",
    "few": "is true for few sampled values, whose sum has less noise, allowed: 5 values or more, 9 below a rate of 1/5",
    "zooms": "is true beside zooms of sampled answers, allowed: one of both; direct answers have both",
    "walk": "is true for a drill-down, allowed: false; its steps ask for other places each",
    "all": "is true where a vehicle may tell all categories at once, allowed: false; it would have a price of its own",
    "name": "is true beside a category of its name, {label!r}, allowed: other names",
}
"""Why a question opens no total, told to who asks for one."""


def _thresholds(table: Table, key: str) -> tuple[int, ...]:
    value = table.raw(key)
    if not isinstance(value, list) or not value or not all(type(one) is int for one in cast("list[object]", value)):
        raise table.refuse(key, "a list of whole numbers, one per value")
    return tuple(cast("list[int]", value))


def _zooms(table: Table, key: str) -> tuple[int, ...]:
    value = table.raw(key)
    if isinstance(value, list):
        sides = cast("list[object]", value)
        if not 1 <= len(sides) <= MAX_ZOOMS or not all(type(one) is int for one in sides):
            raise table.refuse(key, f"1 to {MAX_ZOOMS} whole numbers, times its side or bins together: [1, 8]")
        return tuple(cast("list[int]", sides))
    return neighbouring_sides(table.integer(key, 1, MAX_ZOOMS))


def _shares(table: Table, key: str) -> tuple[Fraction, ...]:
    allowed = 'a share of the budget for each zoom, the cells first, above 0 and 1 together: ["0.83", "0.17"]'
    value = table.raw(key)
    found = [exact_number(one) for one in cast("list[object]", value)] if isinstance(value, list) else []
    given = [one for one in found if one is not None]
    if len(given) != len(found) or any(one <= 0 for one in given) or sum(given, Fraction(0)) != 1:
        raise table.refuse(key, allowed)
    return tuple(given)


@settings
class ReleaseTable:
    """[release]: by which noise and to which promise; `kind` has a default by the number of windows.

    `followed`, by default true except for a drill-down: the noise is strong enough for such questions one after the
    other in every period of a device with default limits; false is for the question alone. `total` opens the total of
    all cells with noise of its own, by default wherever that costs a cell next to nothing: direct answers to 2
    values or more with two-sided noise, those of a coin a window to 5 or more (9 below a rate of 1/5) with Gaussian
    noise and no zooms. `zooms` has how many times the side of a cell the squares of each zoom have, or how many bins
    are together, the cells first; a whole number stands for as many, each twice the one before. `shares` has the part
    of the budget of each zoom, equal ones without it. `show` says what a direct number is asked for: "mean", by default
    without zooms, opens the weighted sum, with 31/32 of the budget (`shares` of the cells and of it); "quantiles" opens
    zooms of halves, each with .7 of the share of the one before. `margins` opens those of a cross with noise of their
    own, by default of direct answers: `shares` then has the part of the cells and of each margin. `direction` says on
    which side one-sided noise lies: "up", by default, so that a count is never too small and "safe" never wrong, or
    "down", so that it is never too large and "danger" never wrong.
    """

    kind: str | None = setting(Table.choice, tuple(kind.label for kind in _STRENGTHS), default=None)
    epsilon: Fraction | None = setting(Table.number, _EPSILON, default=None)
    noise_epsilon: Fraction | None = setting(Table.number, _NOISE_EPSILON, default=None)
    sd: Fraction | None = setting(Table.number, _SD, default=None)
    variance: Fraction | None = setting(Table.number, _VARIANCE, default=None)
    delta: Fraction = setting(Table.number, _DELTA, default=STATED_DELTA)
    level: Fraction = setting(Table.number, _LEVEL, default=Fraction(95, 100))
    thresholds: tuple[int, ...] = setting(_thresholds, default=())
    zooms: tuple[int, ...] = setting(_zooms, default=(1,))
    followed: bool | None = setting(Table.boolean, default=None)
    total: bool | None = setting(Table.boolean, default=None)
    shares: tuple[Fraction, ...] = setting(_shares, default=())
    show: str | None = setting(Table.choice, SHOWN, default=None)
    margins: bool | None = setting(Table.boolean, default=None)
    direction: str | None = setting(Table.choice, ("up", "down"), default=None)


def read_promise(
    root: Table,
    answer: AnswerLaw,
    domain: ValueDomain,
    shape: ScheduleShape,
    periods: Sequence[Mapping[int, int]],
    epsilon: Fraction | None,
    followed: bool | None,
) -> tuple[Release, Fraction]:
    """Return the release of every window, and the delta at which the whole question is stated.

    `periods` are the units that a period touches if such questions follow one another. `epsilon` and `followed`, when
    given, stand in place of the file's.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    table = root.section("release", names_of(ReleaseTable))
    asked = read_table(table, ReleaseTable)
    usual = ReleaseKind.GEOMETRIC if shape.windows == 1 else ReleaseKind.GAUSSIAN
    kind = usual if asked.kind is None else next(one for one in _STRENGTHS if one.label == asked.kind)
    check_release_kind(kind, next(mode for mode, forms in MODE_FORMS.items() if kind_of(answer).form in forms))
    _check_used(table, kind, shape, epsilon)
    # A question that follows may have more windows under one toss than this one has.
    spread = _spread(table, domain, asked, answer, kind)
    unit = max((*shape.units, *(size for units in periods for size in units)))
    if _with_total(table, domain, asked, answer, kind, unit):
        spread = spread.with_total_for(answer, _LAWS[kind], unit)
    _check_given(table, kind, epsilon)
    wanted = (shape.levels == 1 if asked.followed is None else asked.followed) if followed is None else followed
    held = periods if wanted else None
    target = asked.epsilon if epsilon is None else epsilon
    if kind is ReleaseKind.EXACT:
        noise: NoNoise | PlannedNoise = NoNoise()
    elif target is not None:
        try:
            noise = _solved_noise(kind, answer, shape, target, asked.delta, spread, held)
        except MechanismError as error:
            if spread.levels.weighted and isinstance(error, InfeasibleTargetError):
                raise table.wrong("show", f"is 'mean' of {domain.values} points: {error}; {_FEWER}") from None
            if epsilon is not None:
                raise
            raise table.wrong("epsilon", f"is {table.raw('epsilon')!r}: {error}") from None
    elif asked.noise_epsilon is not None:
        noise = (OneSidedNoise if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise)(asked.noise_epsilon)
    else:
        noise = GaussianNoise(cast("Fraction", asked.variance) if asked.sd is None else asked.sd**2)
    release = Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=asked.level,
        thresholds=asked.thresholds,
        direction=cast("Side", asked.direction or "up"),
        coarser=coarser_levels(spread.levels, spread.coarser(noise)),
    )
    _check_thresholds(table, kind, len(asked.thresholds), opened_levels(domain, release).opened)
    return release, asked.delta


def _check_thresholds(table: Table, kind: ReleaseKind, given: int, cells: int) -> None:
    """Refuse thresholds of counts that are compared with none, and any other number than one for each cell."""
    if kind is not ReleaseKind.ONE_SIDED:
        if given:
            raise table.wrong("thresholds", f"is given for {kind.label} counts, allowed: with kind = 'one-sided'")
    elif given != cells:
        problem = f"has {given} numbers" if given else "is missing"
        raise table.wrong("thresholds", f"{problem}; allowed is a list of {cells}, one for each cell that is opened")


def _check_used(table: Table, kind: ReleaseKind, shape: ScheduleShape, epsilon: Fraction | None) -> None:
    """Refuse keys that would change nothing: a direction of two-sided noise, a delta without a loss at a delta, what
    follows where no noise is solved for more than the question.
    """
    if kind is not ReleaseKind.ONE_SIDED and table.has("direction"):
        said = table.raw("direction")
        raise table.wrong("direction", f"is {said!r} of {kind.label} noise, allowed: with kind = 'one-sided'")
    once = shape.units == (1,) and shape.levels == 1
    if table.has("delta") and once and kind is not ReleaseKind.GAUSSIAN:
        what = f"which the {kind.label} release of one answer of a device does not use"
        used = "with kind = 'gaussian', or where a device answers in several windows"
        raise table.wrong("delta", f"is {shown(table.raw('delta'))}, {what}; allowed: {used}")
    solved = epsilon is not None or table.has("epsilon")
    if table.has("followed") and (shape.windows == 1 or not solved):
        what = "of one window" if solved else "beside noise of a given size"
        used = "with epsilon, for which the noise of many windows is solved"
        raise table.wrong("followed", f"is {shown(table.raw('followed'))} {what}, allowed: {used}")


def _check_given(table: Table, kind: ReleaseKind, epsilon: Fraction | None) -> None:
    """Refuse a noise that is given by no key, by several or by one of another kind; the command line may give it."""
    own, given = _STRENGTHS[kind], [key for key in _NOISE_KEYS if table.has(key)]
    if kind is ReleaseKind.EXACT:
        if given or epsilon is not None:
            raise table.refuse("kind", "'geometric' or 'gaussian' beside a noise's size: an exact release has no noise")
        return
    wrong = [key for key in given if key not in ("epsilon", *own)]
    if wrong:
        said = f"is for another kind: {kind.label!r} is asked, whose noise is given by {' or '.join(own)}"
        raise table.wrong(wrong[0], said)
    if epsilon is not None and given != ["epsilon"] * len(given):
        raise table.wrong(given[-1], f"is {shown(table.raw(given[-1]))} beside --epsilon, allowed: one of both")
    if epsilon is None and len(given) != 1:
        allowed = f"exactly one of epsilon (of the whole question, at delta) and {' or '.join(own)} (of a window)"
        raise table.refuse("epsilon", allowed)


def _solved_noise(
    kind: ReleaseKind,
    answer: AnswerLaw,
    shape: ScheduleShape,
    epsilon: Fraction,
    delta: Fraction,
    spread: Spread,
    periods: Sequence[Mapping[int, int]] | None,
) -> PlannedNoise:
    if shape.windows == 1 and (kind is not ReleaseKind.GAUSSIAN or delta == STATED_DELTA):
        # A single release has a promise without delta, or at the delta that all single ones are stated at.
        return noise_for(answer, epsilon, _LAWS[kind], spread)
    # One window has its promise to itself; of many that follow one another a period may touch more than the question.
    held = None if shape.windows == 1 else periods
    return noise_for_promise(answer, shape, epsilon, delta, _LAWS[kind], periods=held, spread=spread)


def _with_total(
    table: Table, domain: ValueDomain, asked: ReleaseTable, answer: AnswerLaw, kind: ReleaseKind, unit: int
) -> bool:
    """Return whether the total is opened: as asked, or by default where nothing speaks against it."""
    sampled, levels = kind_of(answer).form is AnswerForm.TWO_ROUNDS, Levels(domain.values, most=most_of(domain))
    names = domain.names if isinstance(domain, Categories) else ()
    label = next((one for one in (levels.total_label, levels.total_words) if one in names), None)
    against = {
        "one": domain.values == 1,
        "exact": kind is ReleaseKind.EXACT,
        "one-sided": kind is ReleaseKind.ONE_SIDED,
        "response": kind_of(answer).form not in (AnswerForm.TRUTH, AnswerForm.TWO_ROUNDS),
        "law": sampled and kind is not ReleaseKind.GAUSSIAN,
        "coin": sampled and unit > 1,
        "zooms": sampled and len(asked.zooms) > 1,
        "few": sampled and not Spread(levels=Levels(domain.values)).with_total_for(answer, GaussianNoise).levels.total,
        "walk": isinstance(domain, Prefixes),
        "all": 1 < most_of(domain) == domain.values,
        "name": label is not None,
    }
    why = next((reason for reason, holds in against.items() if holds), None)
    if asked.total and why is not None:
        raise table.wrong("total", _NO_TOTAL[why].format(label=label))
    return why is None if asked.total is None else asked.total


def _shown(table: Table, domain: ValueDomain, asked: ReleaseTable, answer: AnswerLaw, kind: ReleaseKind) -> str | None:
    """Return what a number is asked for: as asked, or by default where nothing speaks against it."""
    number, zoomed = isinstance(domain, Numbers), len(asked.zooms) > 1
    show, law = asked.show or ("quantiles" if zoomed else "mean"), _LAWS.get(kind, NoNoise)
    why = not_shown(show, kind_of(answer).form, law, number=number, zoomed=zoomed, total=asked.total is not False)
    if why is not None and asked.show is not None:
        raise table.wrong("show", f"is {asked.show!r} {_NO_SHOW[why]}")
    return show if why is None else None


def usual_points(root: Table) -> int | None:
    """Return the number of points of a direct number whose file does not say it, None where it is not direct.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    table = root.section("release", None)
    direct = root.section("question", None).raw("mode") == "direct" and table.raw("kind") != ReleaseKind.ONE_SIDED.label
    if not direct:
        return None
    zoomed = table.has("zooms") and len(_zooms(table, "zooms")) > 1
    quantiles = zoomed or (table.has("show") and table.choice("show", SHOWN) == "quantiles")
    return QUANTILE_POINTS if quantiles else MEAN_POINTS


def _with_margins(table: Table, domain: ValueDomain, asked: ReleaseTable, answer: AnswerLaw, kind: ReleaseKind) -> bool:
    """Return whether the margins of a cross are opened: as asked, or by default where nothing speaks against it."""
    direct = kind_of(answer).form is AnswerForm.TRUTH
    against = {
        "table": not isinstance(domain, Cross),
        "single": 1 in (shape_of(domain) or ()),
        "mode": not direct,
        "kind": kind not in (ReleaseKind.GAUSSIAN, ReleaseKind.GEOMETRIC),
    }
    why = next((reason for reason, holds in against.items() if holds), None)
    if asked.margins and why is not None:
        raise table.wrong("margins", _NO_MARGINS[why])
    return why is None and asked.margins is not False


def _spread(table: Table, domain: ValueDomain, asked: ReleaseTable, answer: AnswerLaw, kind: ReleaseKind) -> Spread:
    """Return the levels that a release opens, and how their noise follows from that of the cells."""
    show, law = _shown(table, domain, asked, answer, kind), _LAWS.get(kind, GaussianNoise)
    margins = _with_margins(table, domain, asked, answer, kind)
    try:
        levels = levels_of(domain, asked.zooms, margins=margins, weighted=show == "mean")
    except QuestionError as error:
        raise table.wrong("zooms", f"is {table.raw('zooms')!r}: {error}") from None
    if show == "quantiles":
        sides = asked.zooms if table.has("zooms") else ()
        try:
            levels = spread_for_quantiles(domain.values, sides).levels
        except MechanismError as error:
            raise table.wrong("show", f"is 'quantiles': {error}; with zooms = 1 they are read from the cells") from None
    if asked.shares and len(asked.shares) != levels.count:
        raise table.wrong("shares", f"has {len(asked.shares)} shares, allowed: one for {_shared(levels)}")
    if show is not None:
        return spread_for_show(show, domain.values, law, levels.sides, asked.shares)
    return Spread.of_shares(levels, asked.shares, law)


def _shared(levels: Levels) -> str:
    """Return which levels have a share of the budget, for people."""
    if levels.weighted:
        return "the cells and the weighted sum"
    if levels.margins:
        return f"the cells and each of the {len(levels.margins)} margins"
    return f"each of the {len(levels.sides)} zooms"
