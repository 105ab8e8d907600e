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

from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_analysis.answers.hierarchy import (
    ConsistentCounts,
    Join,
    Pyramid,
    consistent,
    consistent_variances,
    pyramid_of,
)
from fleetcount_analysis.answers.noises import NoiseTotal, noise_total
from fleetcount_analysis.errors import RangeError, ShapeError

_T = TypeVar("_T")


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

    Raises:
        RangeError: as `one_level`.
    """
    alone = one_level(design, zoom)
    if not design.levels.total or zoom == design.levels.count - 1:
        return alone
    return replace(alone, levels=Levels(alone.values, total=True), coarser=design.laws[-1:])


def table_numbers(design: Design, opened: Sequence[int], zoom: int) -> tuple[int, ...]:
    """Return the numbers of `table_design` from all opened ones.

    Raises:
        ShapeError, RangeError: as `level_numbers`.
    """
    total = table_design(design, zoom).levels.total and design.levels.count > 1
    return level_numbers(design, opened, zoom) + (tuple(opened[-1:]) if total else ())


def joins_total(design: Design) -> bool:
    """Return whether the counts of a table are joined with a total: of direct counts, where least squares is exact.

    Of sampled counts the total is read by itself: by `one_level` where its noise is less than that of the cells' sum.
    """
    return design.levels.total and design.channel[0] == 1


def nested(levels: Levels, of_each: Sequence[_T]) -> tuple[_T, ...]:
    """Return what belongs to the levels that divide one another, of one thing a level: the zooms and the total."""
    return tuple(of_each[: len(levels.sides)]) + tuple(of_each[-1:] if levels.total else ())


def join_of(design: Design) -> tuple[Join, tuple[NoiseTotal, ...]]:
    """Return the least-squares step of a design's nested levels and the law of each one's noise, **coarse to fine**."""
    laws = tuple(noise_total(law, design.aggregators) for law in reversed(nested(design.levels, design.laws)))
    return _join(pyramid_of(design.levels), laws), laws


@lru_cache(maxsize=16)
def _join(pyramid: Pyramid, laws: tuple[NoiseTotal, ...]) -> Join:
    return Join(pyramid, laws)


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
    variances = [design.aggregators * law.draw_variance for law in nested(design.levels, design.laws)]
    found = consistent_variances(pyramid, variances[::-1])
    return tuple(math.sqrt(float(one.max())) / float(design.channel[0]) for one in reversed(found))


def joined_levels(design: Design, outputs: Sequence[int], level: Fraction) -> ConsistentCounts:
    """Return counts of all zooms of one release and its total that add up, **the cells first**, with intervals.

    Raises:
        ShapeError: not exactly `design.output_count` numbers.
        RangeError: a release of one level, one-sided noise, or a level outside (0, 1 - 2e-10].
    """
    pyramid = _pyramid(design)
    found = consistent(
        pyramid,
        nested(design.levels, [level_numbers(design, outputs, one) for one in range(design.levels.count)])[::-1],
        nested(design.levels, design.laws)[::-1],
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


def _pyramid(design: Design) -> Pyramid:
    if len(design.levels.sides) + design.levels.total == 1:
        raise RangeError("levels", 1, "2 or more")
    return pyramid_of(design.levels)
