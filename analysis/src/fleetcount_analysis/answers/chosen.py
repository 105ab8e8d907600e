"""Simultaneous intervals, and cells that are selected by their numbers: largest, survivors, changes.

A cell selected by its number must not get the interval of a cell fixed before: the largest of many counts is largest
also because of its noise. Every interval here is one of m that all hold at once with the table's level: each has the
level 1 - (1 - level)/m (Bonferroni), or level^(1/m) for independent counts, in direct mode without a total (Sidak).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from numpy.typing import NDArray

from fleetcount_analysis.answers.combinations import Answer, differing, joined_with_total
from fleetcount_analysis.answers.ends import Joined, Sums, difference_ends, sum_ends, told_as
from fleetcount_analysis.answers.table import QuestionTable, Region
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.intervals import simultaneous_level

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A cell selected by its number: its value, its window (the later one of a change), its label and its answer."""

    cell: int
    window: int
    label: str
    answer: Answer


def each_level(design: Design, level: Fraction, together: int) -> Fraction:
    """Return the level of each of `together` intervals that all hold at once with `level`.

    level^(1/m), rounded up, where the counts are independent (direct mode); else 1 - (1 - level)/m. Counts joined with
    a total share noises: of their signed errors fewer than level^(1/m) may hold together (docs/spec.md).

    Raises:
        RangeError: a level outside (0, 1), or no interval.
    """
    joint = simultaneous_level(level, together)
    if design.outputs is not Outputs.CELLS or design.channel[0] != 1 or design.levels.count > 1:
        return joint
    root = Fraction(-math.expm1(math.log(level) / together)) * (1 - Fraction(1, 1 << 45))
    return 1 - max(root, 1 - joint)


def all_at_once(table: QuestionTable, region: Region) -> list[Chosen]:
    """Return every count of a region with intervals that hold all at once, window by window, cell by cell.

    The region must be fixed before the data are seen, for example `QuestionTable.everything`.

    Raises:
        RangeError: an unknown window or cell, or so many counts that a level is outside the range of exact tails.
    """
    rows, columns = table.rows(region.windows), table.columns(region.cells)
    level = each_level(table.design, table.level, len(region))
    places = [(row, column) for row in rows for column in columns]
    low, high = sum_ends(table.design, _single(table, places), level)
    estimates = [table.estimates[place] for place in places]
    return _chosen(table, places, estimates, (low, high))


def window_ends(table: QuestionTable) -> tuple[Integers, Integers]:
    """Return interval ends of every count, int64 (W * V,), window by window, that hold at once for a window's cells.

    They do not depend on other windows, so they stay the same when the table grows.

    Raises:
        RangeError: as `all_at_once`.
    """
    places = [(row, column) for row in range(table.windows.size) for column in range(table.design.values)]
    return sum_ends(table.design, _single(table, places), each_level(table.design, table.level, table.design.values))


def largest(table: QuestionTable, number: int, region: Region | None = None) -> list[Chosen]:
    """Return the `number` largest estimates among all candidates of a region, largest first (ties by window and cell).

    Their intervals hold for all candidates at once, so also for the selected ones.

    Raises:
        RangeError: fewer than 1 or more than all candidates; as `all_at_once`.
    """
    candidates = all_at_once(table, region or table.everything)
    if not 1 <= number <= len(candidates):
        raise RangeError("number of largest cells", number, f"1 to {len(candidates)}")
    return sorted(candidates, key=lambda one: -one.answer.estimate)[:number]


def survivors(table: QuestionTable, threshold: float, region: Region | None = None) -> list[Chosen]:
    """Return the counts whose estimate is at least a threshold, with intervals that hold for all candidates at once.

    Raises:
        RangeError: as `all_at_once`.
    """
    return [one for one in all_at_once(table, region or table.everything) if one.answer.estimate >= threshold]


def largest_changes(
    table: QuestionTable, later: int, earlier: int, number: int, cells: Sequence[int] | None = None
) -> list[Chosen]:
    """Return the cells that changed most, up or down, between two windows, with intervals that hold for all cells.

    Raises:
        RangeError: one window twice, fewer than 1 or more than all candidates, an unknown window or cell.
    """
    if later == earlier:
        raise RangeError("windows of a change", f"{later} and {earlier}", "two windows")
    columns = table.columns(cells if cells is not None else range(1, table.design.values + 1))
    if not 1 <= number <= len(columns):
        raise RangeError("number of largest changes", number, f"1 to {len(columns)}")
    (row, before) = (table.rows([one])[0] for one in (later, earlier))
    pair = [_single(table, [(one, column) for column in columns]) for one in (row, before)]
    level = each_level(table.design, table.level, len(columns))
    together = differing(table, frozenset({later}), frozenset({earlier}))
    estimates = table.estimates[row, columns] - table.estimates[before, columns]
    alike = joined_with_total(table, *([Region.of(columns[0] + 1, one)] for one in (later, earlier)))
    joined = _like(table, alike, estimates)
    ends = difference_ends(table.design, pair[0], pair[1], together, level, joined=joined)
    found = _chosen(table, [(row, column) for column in columns], estimates.tolist(), ends)
    return sorted(found, key=lambda one: -abs(one.answer.estimate))[:number]


def _single(table: QuestionTable, places: Sequence[tuple[int, int]]) -> Sums:
    """Return single counts, given by row and column, as sums of one count each."""
    rows, columns = (np.array(part, dtype=np.int64) for part in zip(*places, strict=True))
    devices = table.devices[rows] if table.design.baseline_opened else None
    alike = joined_with_total(table, [Region.of(int(columns[0]) + 1, int(table.windows[rows[0]]))])
    joined = _like(table, alike, table.estimates[rows, columns])
    told = told_as(table.design, ([column + 1] for column in columns.tolist()))
    return Sums(values=table.raw[rows, columns], cells=1, windows=1, devices=devices, joined=joined, told_as=told)


def _like(table: QuestionTable, alike: Joined | None, estimates: Floats) -> Joined | None:
    """Return counts with these estimates and the noises of one that is like each; None where counts are not joined."""
    return None if alike is None else replace(alike, estimates=estimates * float(table.design.channel[0]))


def _chosen(
    table: QuestionTable, places: Sequence[tuple[int, int]], estimates: Sequence[float], ends: tuple[Integers, Integers]
) -> list[Chosen]:
    together = len(places)
    return [
        Chosen(
            cell=column + 1,
            window=int(table.windows[row]),
            label=table.labels[column],
            answer=Answer(estimate=float(one), low=low, high=high, level=table.level, together=together),
        )
        for (row, column), one, low, high in zip(places, estimates, ends[0].tolist(), ends[1].tolist(), strict=True)
    ]
