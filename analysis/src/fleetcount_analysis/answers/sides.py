"""The side of each cell, safe, in danger or not known: from two one-sided releases, or from intervals.

It must not turn "not known" into a claim. The methods, with what they prove and what they protect:

* `both_sides`: one release with noise >= 0 and one with noise <= 0. "safe" (count <= t) and "danger" (count > t) are
  never wrong. But noise >= 0 protects "a value turned into none" and noise <= 0 only the opposite change, so with both
  published neither change has a finite epsilon. Use it only for audiences from which no change has to be hidden.
* `sides_of_intervals`: any release. All claims together are right with the level; epsilon is the release's. With noise
  >= 0 "safe" is never wrong in addition: both sides from one release, for a value turned into none.
* SALap, the sparse vector of one-sided noise: `compare_one_sided` computes when it finds more than noise on every cell.
  It needs a party with the exact counts, which stops at the c-th number above its threshold; aggregators, which only
  have shares, cannot run it.

Source: [ADP] sections IV to VI, docs/answers.md, "Safe, in danger, not known".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from fleetcount_mechanisms.answers import Side, side_of
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import ArrayLike

from fleetcount_analysis.answers.chosen import all_at_once
from fleetcount_analysis.answers.table import QuestionTable, Region
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.interval_words import level_digits
from fleetcount_analysis.one_sided import expected_yield, found_probabilities, one_sided_map


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The side of every cell; `wrong` bounds the probability that any claim is false, `guarantee` says so in words."""

    sides: tuple[Side, ...]
    wrong: Fraction
    guarantee: str


def both_sides(up: Sequence[int], down: Sequence[int], thresholds: ArrayLike) -> Sides:
    """Return the proven side of every cell from the outputs of noise >= 0 (`up`) and of noise <= 0 (`down`).

    `thresholds` is one whole number, or one for each cell.

    Raises:
        ShapeError: not as many outputs and thresholds as cells.
        RangeError: outputs that prove both sides of a cell, so that they cannot be of one count.
    """
    if len(up) != len(down):
        raise ShapeError(f"{len(up)} outputs upwards and {len(down)} downwards; allowed is one of each a cell")
    safe = one_sided_map(up, thresholds, "up")
    danger = one_sided_map(down, safe.thresholds + 1, "down")
    both = np.flatnonzero(safe.proven & danger.proven)
    if both.size:
        raise RangeError("outputs of cell", f"{int(both[0]) + 1}, both safe and in danger", "those of one count")
    sides = tuple(
        Side.SAFE if low else Side.DANGER if high else Side.UNKNOWN
        for low, high in zip(safe.proven.tolist(), danger.proven.tolist(), strict=True)
    )
    words = '"safe" and "danger" are never wrong; "not known" says nothing'
    return Sides(sides=sides, wrong=Fraction(0), guarantee=words)


def sides_of_intervals(table: QuestionTable, region: Region, thresholds: ArrayLike) -> Sides:
    """Return the side of every count of a region that intervals holding all at once show, in the order of the region.

    Order: windows in turn, in each cell by cell. `thresholds` is one number, or one a count.

    Raises:
        RangeError: as `chosen.all_at_once`.
        ShapeError: as many thresholds as counts are needed, or one.
    """
    found = all_at_once(table, region)
    limits = np.asarray(thresholds)
    if limits.shape not in {(), (len(found),)}:
        raise ShapeError(f"thresholds of shape {limits.shape}; allowed is one number, or one a count ({len(found)})")
    sides = [
        side_of(one.answer.low, one.answer.high, limit)
        for one, limit in zip(found, np.broadcast_to(limits, len(found)).tolist(), strict=True)
    ]
    words = f'{_certainty_words(table)} {level_digits(table.level)}; "not known" says nothing'
    return Sides(sides=tuple(sides), wrong=1 - table.level, guarantee=words)


def _certainty_words(table: QuestionTable) -> str:
    noise = table.design.noise
    if not isinstance(noise, OneSidedNoise):
        return 'all "safe" and "danger" together are right with'
    never, other = ("safe", "danger") if noise.direction == "up" else ("danger", "safe")
    return f'"{never}" is never wrong; all "{other}" together are right with'


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSidedChoice:
    """The expected number of safe answers: with noise on every cell, and with SALap by its number of aborts."""

    every_cell: float
    sparse: dict[int, float]


def compare_one_sided(
    counts: Sequence[int],
    thresholds: Sequence[int],
    epsilon: Fraction,
    *,
    moved: int,
    aborts: Sequence[int] = (1, 2, 4, 8, 16),
) -> OneSidedChoice:
    """Return the expected safe answers of two mechanisms with the same loss, for assumed counts in the given order.

    `moved` is the number of counts that one device may raise: noise on every cell then has epsilon/moved each, SALap
    with c aborts epsilon/c each, independent of `moved`. So SALap is better if a device is counted in many places (a
    day of places, a walk), few places are above their threshold, and the dense ones are asked last.

    Raises:
        RangeError: `moved` below 1, an epsilon that is not above 0, no number of aborts or one below 1, a negative
            count, or a threshold that is no whole number.
        ShapeError: not as many thresholds as counts.
    """
    if moved < 1 or epsilon <= 0:
        raise RangeError("(epsilon, moved)", f"({epsilon}, {moved})", "epsilon above 0, moved 1 or more")
    if not aborts or min(aborts) < 1:
        raise RangeError("aborts", tuple(aborts), "one or more numbers, each 1 or more")
    limits = np.asarray(thresholds)
    if limits.dtype.kind not in "iu":
        raise RangeError("thresholds", tuple(thresholds), "whole numbers")
    every = expected_yield(counts, limits, epsilon / moved)
    sparse = {c: _sparse_yield(found_probabilities(counts, limits, epsilon / c).tolist(), c) for c in aborts}
    return OneSidedChoice(every_cell=every, sparse=sparse)


def _sparse_yield(found: Sequence[float], aborts: int) -> float:
    """Return the expected number of safe answers before the last abort."""
    running, expected = np.zeros(aborts), 0.0
    running[0] = 1.0
    for safe in found:
        expected += safe * float(running.sum())
        running = safe * running + (1 - safe) * np.append(0.0, running[:-1])
    return expected
