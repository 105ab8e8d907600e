"""A release of several levels: one level read as a question of its own, and counts of all levels that add up.

Run by readers. It must not choose the formula for a design: `reading` reads the numbers, `hierarchy` makes sampled ones
consistent.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

from fleetcount_analysis.answers.half_widths import combined, half_width
from fleetcount_analysis.answers.hierarchy import (
    ConsistentCounts,
    Join,
    Pyramid,
    consistent,
    consistent_variances,
    pyramid_of,
    whole_ends,
)
from fleetcount_analysis.answers.margins import MarginJoin
from fleetcount_analysis.answers.noises import NoiseTotal, noise_total
from fleetcount_analysis.errors import RangeError, ShapeError

_T = TypeVar("_T")
Integers = NDArray[np.int64]


def one_level(design: Design, level: int) -> Design:
    """Return the design of one level's numbers, for reading only: the loss of a report is that of the whole `design`.

    Levels count from 0, the cells; the last may be the total.

    Raises:
        RangeError: a level outside 0..count - 1.
    """
    levels = design.levels
    if not 0 <= level < levels.count:
        raise RangeError("level", level, f"0 to {levels.count - 1}")
    if levels.count == 1:
        return design
    values, (rate, _) = levels.sizes[level], design.channel
    die = SamplingDie.uniform(rate, values, allow_large_rate=True) if design.rounds == 2 else Truth(values)
    return replace(design, answer=die, values=values, noise=design.laws[level], levels=Levels(values), coarser=())


def table_design(design: Design, zoom: int) -> Design:
    """Return the design of one zoom's numbers with the total behind them, where there is one: what a table is read by.

    Cells with margins are read with all of them.

    Raises:
        RangeError: as `one_level`.
    """
    if (design.levels.margins or design.levels.most > 1) and zoom == 0:
        return design
    alone = one_level(design, zoom)
    if not design.levels.total or zoom == design.levels.count - 1:
        return alone
    return replace(alone, levels=Levels(alone.values, total=True), coarser=design.laws[-1:])


def table_numbers(design: Design, opened: Sequence[int], zoom: int) -> tuple[int, ...]:
    """Return the numbers of `table_design` from all opened ones.

    Raises:
        ShapeError, RangeError: as `level_numbers`.
    """
    if design.levels.margins and zoom == 0:
        return tuple(opened)
    total = table_design(design, zoom).levels.total and design.levels.count > 1
    return level_numbers(design, opened, zoom) + (tuple(opened[-1:]) if total else ())


def joins_total(design: Design) -> bool:
    """Return whether the counts of a table are joined with a total or margins, by least squares.

    Of sets the total counts the devices that have any value, which is no sum of the cells.
    """
    return (design.levels.total or bool(design.levels.margins)) and design.levels.most == 1


def counted(levels: Levels, of_each: Sequence[_T]) -> tuple[_T, ...]:
    """Return what belongs to the levels that count devices, of one thing a level: to all but the weighted sum."""
    return tuple(one for level, one in enumerate(of_each) if level != levels.weighted_place)


def join_of(design: Design) -> tuple[Join, tuple[NoiseTotal, ...]]:
    """Return the least-squares step of all levels but a weighted sum, and each one's noise, **coarse to fine**."""
    laws = tuple(noise_total(law, design.aggregators) for law in reversed(counted(design.levels, design.laws)))
    return _join(design.levels, laws), laws


@lru_cache(maxsize=16)
def _join(levels: Levels, laws: tuple[NoiseTotal, ...]) -> Join:
    return MarginJoin(levels, laws) if levels.margins else Join(pyramid_of(levels), laws)


def level_numbers(design: Design, opened: Sequence[_T], level: int) -> tuple[_T, ...]:
    """Return the part of one level of a sequence in the order of the opened numbers, such as the numbers or labels.

    The sequence of a release of one level is returned unchanged.

    Raises:
        ShapeError: the sequence does not have one entry for each opened number.
        RangeError: as `one_level`.
    """
    one_level(design, level)
    if design.levels.count == 1:
        return tuple(opened)
    if len(opened) != design.output_count:
        raise ShapeError(f"a release has {len(opened)} outputs; allowed is {design.output_count}")
    start = design.levels.starts()[level]
    return tuple(opened[start : start + design.levels.sizes[level]])


def joined_errors(design: Design) -> tuple[float, ...]:
    """Return the standard error of an empty cell in counts that add up, for every zoom and the total, the cells first.

    For planning, without data.

    Raises:
        RangeError: a release of one level.
    """
    pyramid = _pyramid(design)
    if design.levels.margins:
        _, found = join_of(design)[0].down([np.zeros(size) for size in design.levels.sizes[::-1]])
    else:
        variances = [design.aggregators * law.draw_variance for law in counted(design.levels, design.laws)]
        found = list(consistent_variances(pyramid, variances[::-1]))
    return tuple(math.sqrt(float(one.max())) / float(design.channel[0]) for one in reversed(found))


def joined_levels(design: Design, outputs: Sequence[int], level: Fraction) -> ConsistentCounts:
    """Return counts of all zooms of one release and its total that add up, **the cells first**, with intervals.

    Raises:
        ShapeError: not exactly `design.output_count` numbers.
        RangeError: a release of one level, or of sets, one-sided noise, or a level outside (0, 1 - 2e-10].
    """
    pyramid = _pyramid(design)
    if design.levels.margins:
        return _with_margins(design, outputs, level)
    found = consistent(
        pyramid,
        counted(design.levels, [level_numbers(design, outputs, one) for one in range(design.levels.count)])[::-1],
        counted(design.levels, design.laws)[::-1],
        design.aggregators,
        level,
        design.channel[0],
    )
    return ConsistentCounts(
        level=level,
        estimates=found.estimates[::-1],
        standard_errors=found.standard_errors[::-1],
        low=found.low[::-1],
        high=found.high[::-1],
    )


def _with_margins(design: Design, outputs: Sequence[int], level: Fraction) -> ConsistentCounts:
    """Return the counts of cells, margins and total that add up; all numbers of a level have intervals of one width."""
    join, laws = join_of(design)
    opened = [np.array(level_numbers(design, outputs, one), dtype=np.float64) for one in range(design.levels.count)]
    estimates, variances = join.down(opened[::-1])
    ends: list[tuple[Integers, Integers]] = []
    for number, one in enumerate(estimates):
        first = np.zeros(one.shape)
        first[0] = 1
        low, high = whole_ends(one, half_width(combined([(join.weights(number, first), 1)], laws), level))
        ends.append((np.maximum(low, 0), np.maximum(high, 0)))
    return ConsistentCounts(
        level=level,
        estimates=tuple(estimates[::-1]),
        standard_errors=tuple(np.sqrt(one) for one in variances[::-1]),
        low=tuple(low for low, _ in ends[::-1]),
        high=tuple(high for _, high in ends[::-1]),
    )


def _pyramid(design: Design) -> Pyramid:
    if len(design.levels.sides) + design.levels.total == 1 and not design.levels.margins:
        raise RangeError("levels", 1, "2 or more")
    return pyramid_of(design.levels)
