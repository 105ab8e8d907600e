"""A release of several zooms: one zoom read as a question of its own, and consistent counts of all zooms.

Run by readers. It must not choose the formula for a design: `reading` reads each number, `hierarchy` makes them
consistent.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_analysis.answers.hierarchy import (
    ConsistentCounts,
    Pyramid,
    consistent,
    consistent_variances,
    levels_of_grid,
)
from fleetcount_analysis.errors import RangeError, ShapeError

_T = TypeVar("_T")


def one_zoom(design: Design, zoom: int) -> Design:
    """Return the design of one zoom's numbers, for reading only: the loss of a report is that of the whole `design`.

    Raises:
        RangeError: a zoom outside 0..zoom_count - 1.
    """
    if not 0 <= zoom < design.zoom_count:
        raise RangeError("zoom", zoom, f"0 to {design.zoom_count - 1}")
    if design.zooms is None:
        return design
    values, (rate, _) = design.zooms.sizes[zoom], design.channel
    die = SamplingDie.uniform(rate, values, allow_large_rate=True) if design.rounds == 2 else Truth(values)
    return replace(design, answer=die, values=values, zooms=None)


def zoom_numbers(design: Design, opened: Sequence[_T], zoom: int) -> tuple[_T, ...]:
    """Return the part of one zoom of a sequence in the order of the opened numbers, such as the numbers or labels.

    The sequence of a release of one zoom is returned unchanged.

    Raises:
        ShapeError: the sequence does not have one entry for each opened number.
        RangeError: as `one_zoom`.
    """
    one_zoom(design, zoom)
    if design.zooms is None:
        return tuple(opened)
    if len(opened) != design.output_count:
        raise ShapeError(f"a release has {len(opened)} outputs; allowed is {design.output_count}")
    start = sum(design.zooms.sizes[:zoom])
    return tuple(opened[start : start + design.zooms.sizes[zoom]])


def consistent_errors(design: Design) -> tuple[float, ...]:
    """Return the largest standard error of an empty square in consistent counts, for every zoom, finest first.

    For planning, without data.

    Raises:
        RangeError: a release of one zoom.
    """
    pyramid = _pyramid(design)
    variance = design.aggregators * design.noise.draw_variance
    found = consistent_variances(pyramid, [variance] * len(pyramid.sizes))
    return tuple(math.sqrt(float(one.max())) / float(design.channel[0]) for one in reversed(found))


def consistent_zooms(design: Design, outputs: Sequence[int], level: Fraction) -> ConsistentCounts:
    """Return consistent counts of all zooms of one release, **finest first**, each with its interval.

    Raises:
        ShapeError: not exactly `design.output_count` numbers.
        RangeError: a release of one zoom, one-sided noise, or a level outside (0, 1 - 2e-10].
    """
    pyramid = _pyramid(design)
    found = consistent(
        pyramid,
        [zoom_numbers(design, outputs, zoom) for zoom in reversed(range(design.zoom_count))],
        [design.noise] * design.zoom_count,
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
    if design.zooms is None:
        raise RangeError("zooms", 1, "2 or more")
    return levels_of_grid(design.zooms.columns, design.zooms.rows, design.zooms.count)
