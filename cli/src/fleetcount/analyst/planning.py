"""A plan in Python, shared with `fleetcount plan`: errors and losses of a count, before any device is asked.

It must not ask a device. Numbers are exact: a float stands for the decimal that it is printed as.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import isqrt
from operator import index
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, cast

import numpy as np
import scipy
from fleetcount_analysis.answers import quantile_sd
from fleetcount_analysis.interval_words import level_text
from fleetcount_analysis.reading import read
from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Truth, answer_named, answer_names, kind_named, most_of
from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS, Design, Outputs
from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_mechanisms.levels import Levels, neighbouring_sides
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise, Side, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread, noise_for
from fleetcount_mechanisms.planning import (
    AIMS,
    MEAN_OF,
    SHOWN,
    Plan,
    default_sampling_rate,
    mean_sd,
    plan_question,
    shares_for_aim,
    spread_for_show,
)
from fleetcount_mechanisms.responses import Flips
from fleetcount_mechanisms.statement import epsilon_of, views_of
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_ZOOMS

from fleetcount.analyst.tables import Row, Statement, Table, Tabular, axes_for, html_table, statement_of
from fleetcount.command.numbers import EPSILON, LEVEL, SAMPLING_RATE, SHARE, WEIGHT, ExactNumber, parse_number
from fleetcount.command.options import parse_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DEVICES: Final = 10**9
MOST_VALUES: Final = 4095
NOISES: Final = ("geometric", "gaussian")
_POINTS: Final = 60
_LARGEST_SIDE: Final = 1 << MAX_ZOOMS - 1
ANY_GAUSSIAN: Final = GaussianNoise(Fraction(100))
"""Noise by which shares are chosen or said: what is best of Gaussian noise does not depend on how much there is."""
_ONE_SIDED: Final = "one-sided"
"""No way to answer but a law of noise: what is published of truths errs to one side."""

Exact = int | float | str | Fraction | Decimal
"""A number that is taken exactly: a float as it is printed, a text like "1/2" or "0.45"."""


def plan(  # noqa: PLR0913 - the options of the command, by name
    *,
    devices: SupportsIndex,
    values: SupportsIndex,
    epsilon: Exact,
    mechanism: str = "sampling",
    noise: str = "geometric",
    sampling_rate: Exact | None = None,
    epsilon_local: Exact | None = None,
    aggregators: SupportsIndex = FEWEST_AGGREGATORS,
    level: Exact = "0.95",
    zooms: SupportsIndex | Iterable[SupportsIndex] | str | None = None,
    shares: Iterable[Exact] | str | None = None,
    in_order: bool = False,
    show: str | None = None,
    total: bool = True,
    at_once: SupportsIndex = 1,
    flips: Iterable[str] | str | None = None,
    direction: str | None = None,
    aim: str | Mapping[str, Exact] | None = None,
) -> "PlannedCount":
    """Return what a count of `values` cells or categories among so many devices will give at an epsilon of a release.

    The keywords are options of `fleetcount plan`: `mechanism` as in question files, or direct or one-sided; `noise`
    geometric or gaussian; `sampling_rate` below 1/2, by default by the number of values; `zooms` of a square grid, how
    many or the sides of their squares, with the `shares` of the budget that they have; with `in_order` the values are
    bins, and a zoom has so many of them together; `show` "mean" or "quantiles" is what a direct number at so many
    points is read for; `at_once` is how many values a device has at once in a direct answer at most, and the total then
    how many have any; `flips` say of an asymmetric answer which way the bits are wrong, "up", "down" or "both", one for
    all values or one for each, and `direction` of one-sided noise whether it lies "up" or "down"; `total` false leaves
    out the total that direct answers have for nothing and samples under Gaussian noise for next to nothing. Several of
    a kind may be a text, as the command takes them: "1,8". `aim` chooses the shares of zooms: "cell", "block" or
    "total", or weights of them, {"block": 2, "cell": 1}; the shares are then `PlannedCount.shares`.

    Raises:
        UsageError, MechanismError: a value outside its range, named with the range.
    """
    devices, values = _counted("devices", devices, 1, MOST_DEVICES), _counted("values", values, 1, MOST_VALUES)
    target = exactly("epsilon", epsilon, EPSILON)
    law = noise_law(mechanism, noise)
    answer = answer_law(
        mechanism,
        values,
        None if sampling_rate is None else exactly("sampling_rate", sampling_rate, SAMPLING_RATE),
        None if epsilon_local is None else exactly("epsilon_local", epsilon_local, EPSILON),
        _counted("at_once", at_once, 1, values),
        [] if flips is None else _several("flips", flips),
    )
    asked = AskedLevels(
        zooms=_zooms_of(zooms),
        shares=None if shares is None else [exactly("shares", one, SHARE) for one in _several("shares", shares)],
        in_order=_flag("in_order", in_order),
        total=_flag("total", total),
        show=show,
        aims=aims_of(aim),
    )
    spread, asked_of = asked.spread(answer, mechanism, law, target), exactly("level", level, LEVEL)
    several = _counted("aggregators", aggregators, FEWEST_AGGREGATORS, MOST_AGGREGATORS)
    planned = plan_question(devices, answer, target, several, noise=law, level=asked_of, spread=spread)
    return PlannedCount(plan=facing(planned, direction))


def facing(planned: Plan, direction: str | None) -> Plan:
    """Return a plan of one-sided counts with their noise in a direction, "up" where none is given.

    Raises:
        UsageError: a direction of other counts, or another one.
    """
    if direction is None:
        return planned
    laws, known = planned.design.laws, ("up", "down")
    if direction not in known or not all(isinstance(one, OneSidedNoise) for one in laws):
        allowed = f"{' or '.join(known)}, of one-sided counts"
        raise UsageError(f"direction is {str(direction)[:40]!r} of {planned.design.name} answers, allowed: {allowed}")
    cells, *coarser = (replace(cast("OneSidedNoise", one), direction=cast("Side", direction)) for one in laws)
    return replace(planned, design=replace(planned.design, noise=cells, coarser=tuple(coarser)))


def whole_number(named: object) -> int | None:
    """Return a whole number, also one of NumPy's; None for anything else, truth values among it."""
    if isinstance(named, bool) or not isinstance(named, SupportsIndex):
        return None
    try:
        return index(named)
    except TypeError:  # As an array says of itself, and a truth value of NumPy.
        return None


def _counted(name: str, value: SupportsIndex, least: int, most: int) -> int:
    if (count := whole_number(value)) is None or not least <= count <= most:
        raise UsageError(f"{name} is {str(value)[:40]!r}, allowed: a whole number from {least} to {most}")
    return count


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {str(value)[:40]!r}, allowed: True or False")
    return bool(value)


def _several(name: str, given: Iterable[Any], also: str = "") -> list[Any]:
    """Return the parts of a sequence, or of a text with commas between them; `also` is what else is allowed.

    Raises:
        UsageError: neither.
    """
    if isinstance(given, str):
        return [part.strip() for part in given.split(",")]
    try:
        return list(given)
    except TypeError:  # As an array of no dimension says of itself, too.
        raise UsageError(
            f"{name} is {str(given)[:40]!r}, allowed: {also}several, or a text of them with commas"
        ) from None


def _zooms_of(given: SupportsIndex | Iterable[SupportsIndex] | str | None) -> int | tuple[int, ...] | None:
    """Return how many zooms, or the sides of their squares; a text of one number says how many."""
    if given is None:
        return None
    if (count := whole_number(given)) is not None:
        return count
    sides = _several("zooms", cast("Iterable[Any]", given), f"2 to {MAX_ZOOMS}, or the sides: ")
    if not isinstance(given, str):
        return tuple(_counted("zooms", side, 1, _LARGEST_SIDE) for side in sides)
    try:
        numbers = tuple(parse_count(side, 1, _LARGEST_SIDE) for side in sides)
    except ValueError as error:
        raise UsageError(f"zooms: {error}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def exactly(name: str, value: Exact, kind: ExactNumber) -> Fraction:
    """Return a number of a kind, named in errors.

    Raises:
        UsageError: no such number, named with its range.
    """
    try:
        return parse_number(str(value), kind.allowed)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlannedCount(Tabular):
    """What a count will give; columns true_count, standard_error, low, high, in devices.

    A row is a round true count of one cell, and the exact interval that a typical release gives for it.
    """

    plan: Plan = field(repr=False)

    @property
    def smallest_count_seen(self) -> int | None:
        """The smallest count told apart from 0 at the level both ways, in devices; None if no count is."""
        return self.plan.smallest_count_seen

    @property
    def mean_standard_errors(self) -> dict[int, float]:
        """The standard error of the mean of so many numbers in a range of 1; empty where no weighted sum is opened."""
        return mean_errors(self.plan.design)

    @property
    def median_standard_errors(self) -> dict[int, float]:
        """The standard error of the median of so many numbers spread evenly over a range of 1; else empty."""
        return median_errors(self.plan.design)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The part of the budget of every zoom, the cells first; empty without zooms."""
        return shares_of(self.plan.design)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is unusual or weak about these parameters."""
        return tuple(self.plan.warnings)

    @property
    def statement(self) -> Statement:
        """What could be learnt of one device; `str()` of it is one or two sentences."""
        return statement_of(self.plan.design, views_of(self.plan.design))

    def standard_error(self, count: SupportsIndex) -> float:
        """Return the standard error of a cell with so many devices, in devices.

        Raises:
            UsageError: more devices than the plan has, or what is no count.
        """
        return self.plan.sd(_counted("count", count, 0, self.plan.devices))

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns in their order."""
        names = ("true_count", "standard_error", "low", "high")
        rows = zip(*plan_rows(self.plan, round_counts(self.plan.devices)), strict=True)
        return {name: list(column) for name, column in zip(names, rows, strict=True)}

    @property
    def table(self) -> Table:
        """The same columns, shown as a table."""
        return Table(columns=self.columns_of(), title=title_of(self.plan))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw half the interval over the true count, and what the sampling and the noise alone cause; return the axes.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        axes = axes_for(ax, 6.0, 4.2, "plot()")
        # Matplotlib is optional: `axes_for` has said so where it is missing.
        from fleetcount_analysis.figures.lines import draw_panel, plan_panels

        draw_panel(axes, plan_panels(**half_widths(self.plan))[0], legend=True)
        return axes

    def __str__(self) -> str:
        seen = self.smallest_count_seen
        told = "no count is told apart from 0" if seen is None else f"counts from {seen:,} on are told apart from 0"
        return f"{title_of(self.plan)}: {told} at {level_text(self.plan.level)}"

    def __repr__(self) -> str:
        return f"<PlannedCount {self}>"

    def _repr_html_(self) -> str:
        columns = self.columns_of()
        rows: list[Row] = [
            (count, f"{low:,} to {high:,}", error) for count, error, low, high in zip(*columns.values(), strict=True)
        ]
        head = ("true count", f"{level_text(self.plan.level)} interval", "standard error")
        return html_table(str(self), head, rows, (*self.statement.sentences, *self.warnings))


# What the command and the function share.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLevels:
    """What a plan is to open beside the cells: zooms with their parts of the budget or an aim, a total, or a mean.

    `zooms` are how many, each twice the side of the one before, or the sides of the squares, the cells' being 1, or how
    many values are together; `shares` the parts of the budget, equal ones without; `aims` weights by which the shares
    are chosen (`shares_for_aim`).
    """

    zooms: int | Sequence[int] | None = None
    shares: Sequence[Fraction] | None = None
    in_order: bool = False
    total: bool = True
    show: str | None = None
    aims: Mapping[str, Fraction] | None = None

    def spread(self, answer: AnswerLaw, mechanism: str, law: type[PlannedNoise], epsilon: Fraction) -> Spread:
        """Return the levels that a release opens: the cells, what is asked for, a total where it costs nothing.

        Raises:
            UsageError: as `zoomed` and `shown_levels`, or zooms or a mean of sets.
            MechanismError: no noise of one zoom reaches epsilon.
        """
        most, plain = most_of(answer), self.zooms is None and self.shares is None and not self.in_order
        if most > 1 and (self.zooms is not None or self.show is not None):
            raise UsageError(f"at_once is {most}, allowed without zooms and show: a set has cells and a total alone")
        if self.show is not None:
            alone = plain and self.total and self.aims is None
            asked: Spread | None = shown_levels(self.show, answer.values, mechanism, law, alone=alone)
        else:
            asked = self.zoomed(answer.values, law, None if self.aims is None else _whole(answer, law, epsilon))
        cells = Spread(levels=Levels(answer.values, most=most)) if asked is None else asked
        return cells.with_total_for(answer, law) if self.total else cells

    def of_windows(self, values: int) -> Spread | Callable[[type[PlannedNoise]], Spread] | None:
        """Return the levels of every window, of a number as a function of the law of noise; None of cells alone.

        Raises:
            UsageError: as `zoomed` and `shown_levels`.
        """
        show, plain = self.show, self.zooms is None and self.shares is None and not self.in_order and self.aims is None
        if show is None:
            return self.zoomed(values, GaussianNoise)
        shown_levels(show, values, "direct", GaussianNoise, alone=plain and self.total)
        return partial(spread_for_show, show, values)

    def zoomed(self, values: int, law: type[PlannedNoise], whole: NoiseLaw | None = None) -> Spread | None:
        """Return the zooms of values in order, or of a grid of squares that is as wide as high; None without zooms.

        `whole` is the noise of one zoom alone, by which shares are chosen for an aim.

        Raises:
            UsageError: fewer than 2 or more than allowed, values that are no square number, shares, an aim or an order
                without zooms, shares beside an aim, ones that are not one a zoom, or not 1 together, or an aim of
                one-sided counts.
        """
        if self.zooms is None:
            for given, what in ((self.shares, "shares are"), (self.aims, "an aim is")):
                if given is not None:
                    raise UsageError(f"{what} given, allowed with zooms")
            if self.in_order:
                raise UsageError("the values are said to be in order, allowed with zooms")
            return None
        count = self.zooms if isinstance(self.zooms, int) else len(self.zooms)
        if not 2 <= count <= MAX_ZOOMS:  # Before there are so many: memory ends before numbers do.
            raise UsageError(f"zooms is {str(self.zooms)[:40]}, allowed: 2 to {MAX_ZOOMS}")
        sides = neighbouring_sides(count) if isinstance(self.zooms, int) else tuple(self.zooms)
        side, shares = isqrt(values), self.shares
        if not self.in_order and side * side != values:
            raise UsageError(
                f"values is {values}, allowed with zooms: a square number, a grid as wide as high; or values in order"
            )
        if shares is not None and (len(shares) != len(sides) or min(shares) <= 0 or sum(shares) != 1):
            said = ", ".join(map(str, shares))
            raise UsageError(f"shares are {said}, allowed: one above 0 for each of {len(sides)} zooms, 1 together")
        levels = Levels(values, (values, 1) if self.in_order else (side, side), sides)
        if self.aims is not None:
            if shares is not None or law is OneSidedNoise:
                wrong = "beside shares" if shares is not None else "of one-sided counts, which are read zoom by zoom"
                raise UsageError(f"an aim is given {wrong}, allowed: without shares, under noise with two sides")
            shares = shares_for_aim(levels, self.aims, whole or ANY_GAUSSIAN, total=self.total)
        return Spread.of_shares(levels, shares or ())


def _whole(answer: AnswerLaw, law: type[PlannedNoise], epsilon: Fraction) -> NoiseLaw:
    """Return noise of a level that had all of the budget; shares of Gaussian noise are the same for any."""
    return noise_for(answer, epsilon, law) if law is TwoSidedNoise else ANY_GAUSSIAN


def aims_of(aim: str | Mapping[str, Exact] | None) -> dict[str, Fraction] | None:
    """Return the weight of every number that is aimed at, from "block", "block=2,cell=1" or a mapping.

    Raises:
        UsageError: an unknown word, one twice, or a weight that is not above 0 and at most 10^6; or neither kind.
    """
    if aim is None:
        return None
    if not isinstance(cast("object", aim), str | Mapping):
        raise UsageError(f"aim is {str(aim)[:40]!r}, allowed: a text or a mapping of {', '.join(AIMS)} to weights")
    given = [tuple(one.split("=", 1)) for one in aim.split(",")] if isinstance(aim, str) else list(aim.items())
    found: dict[str, Fraction] = {}
    for name, *weight in given:
        word = str(name).strip()
        if word not in AIMS or word in found:
            meant = ", given twice" if word in found else did_you_mean(word, AIMS)
            raise UsageError(
                f"aim is {word[:40]!r}, allowed: {', '.join(AIMS)}, each once, with a weight or without:"
                f" block=2,cell=1{meant}"
            )
        found[word] = exactly(f"aim {word}", weight[0], WEIGHT) if weight else Fraction(1)
    if not found:
        raise UsageError(f"aim is empty, allowed: {', '.join(AIMS)}")
    return found


def shares_of(design: Design) -> tuple[Fraction, ...]:
    """Return the part of the budget of every zoom of a design, the cells first; empty of one zoom."""
    # What a level costs of the budget: 1/s under Gaussian noise, its epsilon under geometric.
    laws = design.laws[: len(design.levels.sides)]
    prices = [1 / law.variance if isinstance(law, GaussianNoise) else law.epsilon or Fraction(0) for law in laws]
    return tuple(price / sum(prices) for price in prices) if len(laws) > 1 else ()


def shown_levels(show: str, values: int, mechanism: str, law: type[PlannedNoise], *, alone: bool) -> Spread:
    """Return what a direct number of V points opens for what it is read for; `alone` without zooms, with the total.

    Raises:
        UsageError: another word, answers that are not direct, one point, or levels that are given beside it.
    """
    if show not in SHOWN:
        raise UsageError(f"show is {show!r}, allowed: {' or '.join(SHOWN)}{did_you_mean(show, SHOWN)}")
    if mechanism != "direct":
        raise UsageError(f"show is {show!r} of {mechanism} answers, allowed: of direct ones")
    if values == 1:
        raise UsageError(f"show is {show!r} of 1 value, allowed: 2 points or more")
    if not alone:
        raise UsageError(
            f"show is {show!r}, which opens levels of its own; allowed without zooms, shares, an aim and no total"
        )
    return spread_for_show(show, values, law)


def mean_errors(design: Design) -> dict[int, float]:
    """Return the error of the mean of some numbers of devices; empty where no weighted sum is opened."""
    return {devices: mean_sd(design, devices) for devices in MEAN_OF} if design.levels.weighted else {}


def median_errors(design: Design) -> dict[int, float]:
    """Return the error of the median of some numbers of devices, of direct counts of values in order; else empty."""
    levels, direct = design.levels, design.form is AnswerForm.TRUTH and not isinstance(design.noise, OneSidedNoise)
    if not direct or not levels.line or levels.weighted:
        return {}
    return {devices: quantile_sd(design, devices) for devices in MEAN_OF}


def error_text(error: float) -> str:
    """Return an error in a range of 1, for people: one of half the range or more says nothing."""
    return f"{error:.2g}" if error < 1 / 2 else "unknown"


def number_errors(design: Design) -> dict[str, dict[int, float]]:
    """Return these errors by their names in JSON, those that there are."""
    found = {"mean_standard_errors": mean_errors(design), "median_standard_errors": median_errors(design)}
    return {name: errors for name, errors in found.items() if errors}


def exact_text(value: Fraction) -> str:
    """Return a number for people: six digits, and the exact one where it has more."""
    text = f"{float(value):.6g}"
    return text if Fraction(text) == value else f"{text} ({value})"


def shares_text(levels: Levels, shares: Sequence[Fraction]) -> str:
    """Return zooms and shares as keys of a question file's [release], exact ones."""
    parts = ", ".join(f'"{float(one):g}"' if Fraction(f"{float(one):g}") == one else f'"{one}"' for one in shares)
    return f"zooms = {list(levels.sides)}, shares = [{parts}]"


def noise_law(mechanism: str, noise: str) -> type[PlannedNoise]:
    """Return the law of noise of a name.

    Raises:
        UsageError: another name, or one with two sides for a one-sided release.
    """
    if noise not in NOISES:
        raise UsageError(f"noise is {noise!r}, allowed: {' or '.join(NOISES)}{did_you_mean(noise, NOISES)}")
    if noise == "geometric":
        return OneSidedNoise if mechanism == _ONE_SIDED else TwoSidedNoise
    if mechanism == _ONE_SIDED:
        raise UsageError("noise is 'gaussian', which has two sides; allowed with mechanism one-sided: geometric")
    return GaussianNoise


def answer_law(
    mechanism: str,
    values: int,
    sampling_rate: Fraction | None,
    epsilon_local: Fraction | None,
    at_once: int = 1,
    flips: Sequence[str] | None = None,
) -> AnswerLaw:
    """Return the law of an answer, its sampling rate by the number of values where none is given.

    Raises:
        UsageError: an unknown name; more values at once than there are, or several in answers that are not direct.
        MechanismError: parameters that the law does not take.
    """
    if mechanism not in (known := (*answer_names(), _ONE_SIDED)):
        raise UsageError(f"mechanism is {mechanism!r}, allowed: {', '.join(known)}{did_you_mean(mechanism, known)}")
    if not 1 <= at_once <= values:
        raise UsageError(f"at_once is {at_once}, allowed: 1 to the number of values, {values}")
    if at_once > 1:
        if mechanism != "direct":
            raise UsageError(f"at_once is {at_once} of {mechanism} answers, allowed: of direct ones")
        for name, given in (("sampling_rate", sampling_rate), ("epsilon_local", epsilon_local), ("flips", flips)):
            if given:
                raise UsageError(f"{name} is given, allowed: of answers that are sampled or randomized")
        return Truth(values, at_once)
    named = {one.name.lower(): one for one in Flips}
    if wrong := [one for one in flips or () if one not in named]:
        raise UsageError(f"flips are {str(wrong[0])[:40]!r}, allowed: {', '.join(named)}")
    ways = [named[one] for one in flips or ()]
    return _law_named(mechanism, values, sampling_rate, epsilon_local, ways * values if len(ways) == 1 else ways)


def _law_named(
    mechanism: str,
    values: int,
    sampling_rate: Fraction | None,
    epsilon_local: Fraction | None,
    flips: Sequence[Flips],
) -> AnswerLaw:
    if mechanism == "sampling":
        rate = default_sampling_rate(values) if sampling_rate is None else sampling_rate
        given = {"sampling_rate": rate}
        return answer_named(mechanism, values, epsilon_local=epsilon_local, parameters=given, flips=flips)
    given = {} if sampling_rate is None else {"sampling_rate": sampling_rate}
    name = "direct" if mechanism == _ONE_SIDED else mechanism
    if epsilon_local is None and kind_named(name).from_epsilon is not None:
        raise UsageError(f"epsilon_local is missing, allowed of {name} answers: {EPSILON.allowed}")
    return answer_named(name, values, epsilon_local=epsilon_local, parameters=given, flips=flips)


def plan_rows(planned: Plan, counts: Sequence[int]) -> list[tuple[int, float, int, int]]:
    """Return (true count, standard error, low, high): the exact interval when the released number is the expected one.

    The expected number is rounded to the nearest whole; counts in devices.
    """
    reading = read(planned.design, [_expected(planned, count) for count in counts], planned.level)
    cell = _told_least(planned.design)
    ends = zip(reading.low[:, cell].tolist(), reading.high[:, cell].tolist(), strict=True)
    return [(count, planned.sd(count), low, high) for count, (low, high) in zip(counts, ends, strict=True)]


def _told_least(design: Design) -> int:
    """Return the place of a cell whose answers tell least, from 0."""
    return design.channels.index(design.channel)


def _expected(planned: Plan, count: int) -> list[int]:
    """Return the opened numbers to expect when `count` devices have the value told least and no device another."""
    design, (hit, miss) = planned.design, planned.design.channel
    cell = round(hit * count + miss * (planned.devices - count) + Fraction(design.aggregators * design.noise.mean))
    # Behind the cells of sets stands how many devices have any.
    holders = [cell] * (design.summed_count - design.values - design.baseline_opened)
    cells = [0] * design.values
    cells[_told_least(design)] = cell
    opened = design.opened_sums([*cells, *holders])
    if not design.baseline_opened:
        return opened
    # Output 0 brings the sum of all outputs to the number of devices; the participation bit's count is that number.
    return [planned.devices - (cell if design.outputs is Outputs.ALL else 0), *opened]


def round_counts(devices: int) -> list[int]:
    """Return 0, the powers of ten and their thirds below the number of devices, and that number."""
    steps = [factor * 10**power for power in range(10) for factor in (1, 3)]
    return [0, *(step for step in steps if 3 <= step < devices), devices]


def title_of(planned: Plan) -> str:
    """Return the plan's title: devices, values, aggregators, epsilon and mechanism in a line."""
    design, delta = planned.design, views_of(planned.design)[0].delta
    how = f"sampling rate {exact_text(design.exposure)}" if design.rounds == 2 else f"mechanism {design.name}"
    lost = epsilon_of(design)
    epsilon = "without bound" if lost is None else f"{lost.normalize():f}"
    return (
        f"{planned.devices:,} devices, {values_text(design)}, "
        f"{design.aggregators} aggregators, epsilon {epsilon}{f' (delta {delta:f})' if delta else ''}, {how}"
    )


def values_text(design: Design) -> str:
    """Return how many values there are, and how many a device has at once at most where these are several."""
    most = design.levels.most
    several = f", up to {most} at once" if most > 1 else ""
    return f"{design.values} value{'s' if design.values > 1 else ''}{several}"


def half_widths(planned: Plan) -> dict[str, Any]:
    """Return what the picture of a plan shows over the true count: half the interval and its two causes, in devices."""
    counts = np.unique(np.rint(np.geomspace(1, max(planned.devices, 2), _POINTS)))
    quantile, empty = float(scipy.special.ndtri(float((1 + planned.level) / 2))), planned.sd(0)
    both = np.array([planned.sd(round(count)) for count in counts])
    return {
        "counts": counts.tolist(),
        "sampling": (quantile * np.sqrt(np.maximum(both**2 - empty**2, 0))).tolist(),
        "noise": [quantile * empty] * len(counts),
        "both": (quantile * both).tolist(),
        "smallest_count_seen": planned.smallest_count_seen,
        "level_percent": float(planned.level * 100),
    }
