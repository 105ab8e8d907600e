"""Sums over cells and windows, and differences, of a question's table, for regions fixed before the data were seen.

Where the releases have a total of all cells, counts are joined with it: a sum of m of V cells then has m (1 -
m/(V + t)) times the noise of a cell if the total has t times its variance, so that a sum of all cells has hardly more
noise than the total.

A region selected by its numbers must not be an argument: the interval of `total` or `difference` holds for one region.
`totals_at_once` is for several regions of which one is selected later, `chosen` for single cells.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from fleetcount_mechanisms.design import Design
from numpy.typing import NDArray

from fleetcount_analysis.answers.ends import Joined, Sums, difference_ends, estimates_of, sum_ends, told_as
from fleetcount_analysis.answers.half_widths import combined
from fleetcount_analysis.answers.levels import join_of, joins_total, one_level
from fleetcount_analysis.answers.table import QuestionTable, Region
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_analysis.intervals import simultaneous_level

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One number in devices, its interval and the assumption behind the interval.

    `estimate` is unbiased and may be negative or a fraction; a device counts once in every window in which it is
    counted. `together` intervals hold at once with `level`: 1 for a region fixed before the data were seen. `assumes`
    is the bound that the analyst stated, "" without one.
    """

    estimate: float
    low: int
    high: int
    level: Fraction
    together: int = 1
    assumes: str = ""

    def __str__(self) -> str:
        """Return the interval first, because it is what is known, then the estimate and the assumption."""
        ends, assumed = (
            interval_text(self.estimate, self.low, self.high),
            f", if {self.assumes}" if self.assumes else "",
        )
        return f"{ends} ({level_text(self.level)} interval, estimate {self.estimate:,.1f}{assumed})"


def total(table: QuestionTable, region: Region, *, seen_at_most: int | None = None) -> Answer:
    """Return the sum of the true counts of a region, for example a district over a week.

    If windows share a toss of the coin, a device may be counted in all of them with one toss, and the interval allows
    for that. `seen_at_most` states that no device is in the region in more than so many windows of one unit; the
    interval is then narrower and depends on that statement.

    Raises:
        RangeError: an unknown window or cell, `seen_at_most` outside 1 to the windows of one unit, or as
            `ends.sum_ends`.
    """
    most = _together(table, region.windows)
    if seen_at_most is not None and not 1 <= seen_at_most <= most:
        raise RangeError("seen_at_most", seen_at_most, f"1 to {most}, the windows of one unit of the coin")
    used = seen_at_most is not None and seen_at_most < most
    sums = sums_of(table, [region], seen_at_most or most)
    assumes = f"no device is counted in more than {seen_at_most} windows of one unit" if used else ""
    return _answer(table, table.design, sums, table.level, assumes=assumes)


def everybody(table: QuestionTable, windows: Iterable[int] | int) -> Answer:
    """Return the number of devices with any of the values, in all of these windows together.

    Of single values it is the sum of all cells; of sets, whose cells add up to more, the total that was opened.

    Raises:
        RangeError: an unknown window, sets without a total, or as `ends.sum_ends`.
    """
    everything = Region.of(range(1, table.design.values + 1), windows)
    if table.design.levels.most == 1:
        return total(table, everything)
    if not table.design.levels.total:
        raise RangeError("total", None, "one that was opened: categories of one device at once add up to more")
    opened = int(table.outputs[table.rows(everything.windows), -1].sum())
    sums = replace(sums_of(table, [everything]), values=np.array([opened]), cells=1)
    return _answer(table, one_level(table.design, 1), sums, table.level)


def difference(table: QuestionTable, later: Region, earlier: Region, *, stayed_at_least: int = 0) -> Answer:
    """Return the sum of the true counts of `later` less that of `earlier`, two regions without a common count.

    The number of devices counted in both is not public: the interval holds for any number. `stayed_at_least` states a
    number of devices known to be counted in both, for two single windows of one unit of the coin; their tosses cancel,
    so the interval is narrower and depends on that statement.

    Raises:
        RangeError: an unknown window or cell, a count in both regions, a `stayed_at_least` that is negative or given
            for windows without a shared toss, or as `ends.difference_ends`.
    """
    common = (later.cells & earlier.cells, later.windows & earlier.windows)
    if all(common):
        raise RangeError("difference", f"cell {min(common[0])} of window {min(common[1])} in both", "no common count")
    if stayed_at_least:
        _check_stayed(table, later, earlier, stayed_at_least)
    design, (after, before) = table.design, (sums_of(table, [one]) for one in (later, earlier))
    joined = joined_with_total(table, [later], [earlier])
    low, high = difference_ends(
        design,
        after,
        before,
        differing(table, later.windows, earlier.windows),
        table.level,
        stayed_at_least,
        apart=not later.windows & earlier.windows,
        joined=joined,
    )
    parts = [float(estimates_of(design, one)[0]) for one in (after, before)]
    return Answer(
        estimate=parts[0] - parts[1],
        low=int(low[0]),
        high=int(high[0]),
        level=table.level,
        assumes=f"at least {stayed_at_least} devices are counted in both" if stayed_at_least else "",
    )


def totals_at_once(table: QuestionTable, regions: Sequence[Region]) -> list[Answer]:
    """Return the sums of several regions with intervals that hold all at once: also for the largest of them.

    The regions, which may overlap, must be fixed before the data are seen. Each interval has the level
    1 - (1 - level)/m (Bonferroni).

    Raises:
        RangeError: no region; as `total`.
    """
    level = simultaneous_level(table.level, len(regions))
    every = [sums_of(table, [region]) for region in regions]
    return [_answer(table, table.design, sums, level, together=len(regions)) for sums in every]


def window_totals(table: QuestionTable) -> tuple[Floats, Integers, Integers]:
    """Return the number of devices in all cells of every window: estimates and interval ends, each of shape (W,).

    Every interval holds alone, with the level of the table.

    Raises:
        RangeError: as `ends.sum_ends`.
    """
    everything, design = range(1, table.design.values + 1), table.design
    if design.levels.most > 1 and design.levels.total:
        design = one_level(design, 1)
        sums = Sums(values=table.outputs[:, -1], cells=1, windows=1)
    else:
        sums = sums_in_windows(table, everything)
    return estimates_of(design, sums), *sum_ends(design, sums, table.level)


def sums_in_windows(table: QuestionTable, cells: Iterable[int]) -> Sums:
    """Return the sum of some cells in each window, for `ends`.

    Raises:
        RangeError: an unknown cell.
    """
    columns, joined = table.columns(cells), None
    if joins_total(table.design):
        join, laws = join_of(table.design)
        signs = np.zeros(table.design.values)
        signs[columns] = 1
        weights = join.weights(table.design.levels.count - 1, signs)
        estimates = np.asarray(table.outputs @ np.concatenate(weights[::-1]), dtype=np.float64)
        joined = Joined(estimates=estimates, parts=combined([(weights, 1)], laws))
    return Sums(
        values=table.raw[:, columns].sum(axis=1),
        cells=len(columns),
        windows=1,
        devices=table.devices if table.design.baseline_opened else None,
        joined=joined,
        told_as=told_as(table.design, [[column + 1 for column in columns]] * len(table.raw)),
    )


def joined_with_total(
    table: QuestionTable, later: Sequence[Region], earlier: Sequence[Region] | None = None
) -> Joined | None:
    """Return sums of regions of one form, or each less one of `earlier`, joined with the totals of their windows.

    None where the table's counts are not joined. Beside a total the regions of a sum or a difference have the same
    noises, since every cell is like every other; beside margins only regions that lie alike in the table do.

    Raises:
        RangeError: an unknown window or cell.
    """
    if not joins_total(table.design):
        return None
    join, laws = join_of(table.design)
    estimates: list[float] = []
    terms: list[tuple[list[Floats], int]] = []
    nothing: list[Region | None] = [None] * len(later)
    for added, taken in zip(later, earlier or nothing, strict=True):
        estimates.append(0.0)
        terms = []
        for windows, signs in _patterns(table, added, taken):
            weights = join.weights(table.design.levels.count - 1, signs)
            opened = table.outputs[table.rows(windows)].sum(axis=0)
            estimates[-1] += float(opened @ np.concatenate(weights[::-1]))
            terms.append((weights, len(windows)))
    return Joined(estimates=np.array(estimates), parts=combined(terms, laws))


def _patterns(table: QuestionTable, added: Region, taken: Region | None) -> Iterator[tuple[frozenset[int], Floats]]:
    """Yield the windows in which the same cells are added, taken away or both, and these cells, float64 (V,)."""
    signs = [np.zeros(table.design.values) for _ in range(2)]
    signs[0][table.columns(added.cells)] = 1
    if taken is not None:
        signs[1][table.columns(taken.cells)] = -1
    before = frozenset[int]() if taken is None else taken.windows
    for windows, pattern in (
        (added.windows - before, signs[0]),
        (before - added.windows, signs[1]),
        (added.windows & before, signs[0] + signs[1]),
    ):
        if windows:
            yield windows, pattern


def sums_of(table: QuestionTable, regions: Sequence[Region], together: int | None = None) -> Sums:
    """Return the sums of the opened numbers of regions of one form, for `ends`.

    Raises:
        RangeError: an unknown window or cell.
        ShapeError: regions of several forms.
    """
    first = regions[0]
    if any((len(one.cells), len(one.windows)) != (len(first.cells), len(first.windows)) for one in regions):
        raise ShapeError("regions of several sizes; allowed is one number of cells and one of windows")
    values, devices = [], []
    for one in regions:
        rows, columns = table.rows(one.windows), table.columns(one.cells)
        values.append(int(table.raw[np.ix_(rows, columns)].sum()))
        devices.append(int(table.devices[rows].sum()))
    return Sums(
        values=np.array(values, dtype=np.int64),
        cells=len(first.cells),
        windows=len(first.windows),
        together=together or max(_together(table, one.windows) for one in regions),
        devices=np.array(devices, dtype=np.int64) if table.design.baseline_opened else None,
        joined=joined_with_total(table, regions),
        told_as=told_as(table.design, [one.cells for one in regions]),
    )


def differing(table: QuestionTable, later: frozenset[int], earlier: frozenset[int]) -> tuple[int, int]:
    """Return the largest number of windows of one unit in either of two sets of windows, and in their union."""
    wider = max(_together(table, one) for one in (later, earlier))
    return wider, _together(table, later | earlier)


def _answer(
    table: QuestionTable, design: Design, sums: Sums, level: Fraction, together: int = 1, assumes: str = ""
) -> Answer:
    ends = sum_ends(design, sums, level)
    return Answer(
        estimate=float(estimates_of(design, sums)[0]),
        low=int(ends[0][0]),
        high=int(ends[1][0]),
        level=table.level,
        together=together,
        assumes=assumes,
    )


def _together(table: QuestionTable, windows: frozenset[int]) -> int:
    return max(Counter(table.units[table.rows(windows)].tolist()).values())


def _check_stayed(table: QuestionTable, later: Region, earlier: Region, stayed: int) -> None:
    windows = later.windows | earlier.windows
    shared = len(later.windows) == len(earlier.windows) == 1 and _together(table, windows) == 2
    if stayed < 0 or not shared:
        raise RangeError("stayed_at_least", stayed, "0, or more between two single windows of one unit of the coin")
