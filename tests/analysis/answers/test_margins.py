"""Cells, margins and total of a table are joined by least squares; their intervals hold at their level at least."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from fleetcount_analysis.answers import (
    Region,
    WindowCounts,
    difference,
    joined_errors,
    joined_levels,
    question_table,
    share,
    total,
)
from fleetcount_analysis.answers.averages import Counts
from fleetcount_analysis.answers.levels import join_of
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from scipy import stats

from tests.support.designs import rows_of

LEVEL = Fraction(95, 100)
ONE = Fraction(800)
"""The variance of an aggregator's noise on a cell that has all of the budget: two of them have a deviation of 40."""
THIRDS: tuple[Fraction, ...] = ()
UNEVEN = (Fraction(41, 100), Fraction(28, 100), Fraction(31, 100))


def table(shape: tuple[int, ...], shares: tuple[Fraction, ...] = THIRDS, *, whole: bool = True) -> Design:
    """Return a direct question over a table at the price of cells alone with noise of variance `ONE`."""
    values = math.prod(shape)
    spread = Spread.of_shares(Levels(values, margins=shape), shares)
    spread = spread.with_total_for(Truth(values), GaussianNoise) if whole else spread
    return spread.design(Truth(values), GaussianNoise(ONE / spread.cells_share(GaussianNoise)), 2)


def least_squares(design: Design) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix from what is opened to all estimates, and their variances, by solving the equations."""
    rows = np.array(rows_of(design.levels), dtype=np.float64)
    variances = np.repeat([2 * float(law.draw_variance) for law in design.laws], design.levels.sizes)
    covariance = np.linalg.inv(rows.T @ (rows / variances[:, None]))
    return rows @ covariance @ (rows / variances[:, None]).T, np.einsum("ij,jk,ik->i", rows, covariance, rows)


@pytest.mark.parametrize(
    ("shape", "shares", "expected"),
    [
        ((16, 4), THIRDS, (1.50, 1.50, 1.47, 0.95)),
        ((16, 4), UNEVEN, (1.37, 1.57, 1.51, 0.95)),
        ((4, 16), THIRDS, (1.50, 1.47, 1.50, 0.95)),
        ((2, 2, 2), THIRDS, None),
    ],
)
def test_errors_are_those_of_the_closed_form(
    shape: tuple[int, ...], shares: tuple[Fraction, ...], expected: tuple[float, ...] | None
) -> None:
    """In deviations of a cell that had all of the budget; a margin of its cells alone would have 1.94 and 3.47."""
    design = table(shape, shares)

    found = joined_errors(design)

    starts = design.levels.starts()[:-1]
    assert np.allclose(found, np.sqrt(least_squares(design)[1][list(starts)]), rtol=1e-12)
    if expected is not None:
        assert [round(error / math.sqrt(2 * ONE), 2) for error in found] == list(expected)
        assert max(found[1:]) <= 1.6 * math.sqrt(2 * ONE)


@pytest.mark.parametrize("shape", [(2, 2), (5, 3), (2, 3, 4)])
@pytest.mark.parametrize("whole", [True, False])
def test_the_join_is_least_squares_and_adds_up(shape: tuple[int, ...], whole: bool) -> None:
    design, numbers = table(shape, whole=whole), np.random.default_rng(1)
    opened = numbers.normal(0, 100, design.levels.opened)
    matrix, variances = least_squares(design)
    join, _ = join_of(design)
    parts = [opened[low:high] for low, high in pairwise(design.levels.starts())]

    found, spread = join.down(parts[::-1])

    assert np.allclose(np.concatenate(found[::-1]), matrix @ opened)
    assert np.allclose(np.concatenate(spread[::-1]), variances)
    cells = found[-1].reshape(shape)
    for dimension, margin in enumerate(found[::-1][1 : 1 + len(shape)]):
        others = tuple(one for one in range(len(shape)) if one != dimension)
        assert np.allclose(margin, cells.sum(axis=others))
    signs = numbers.normal(size=design.values)
    weights = np.concatenate(join.weights(design.levels.count - 1, signs)[::-1])
    assert np.allclose(weights @ opened, signs @ found[-1])


def opened_of(design: Design, truth: np.ndarray, runs: int, seed: int) -> np.ndarray:
    """Return the opened numbers of so many releases of one truth."""
    numbers, sums = np.random.default_rng(seed), np.array(design.levels.all_sums(truth.ravel().tolist()))
    drawn = [
        _draws(law, (2, runs, size), numbers).sum(axis=0)
        for law, size in zip(design.laws, design.levels.sizes, strict=True)
    ]
    return np.concatenate(drawn, axis=1) + sums


def _draws(law: NoiseLaw, shape: tuple[int, ...], numbers: np.random.Generator) -> np.ndarray:
    if isinstance(law, GaussianNoise):
        reach = int(12 * math.sqrt(law.variance)) + 2
        support = np.arange(-reach, reach + 1)
        chances = np.exp(-(support**2) / (2 * float(law.variance)))
        return numbers.choice(support, shape, p=chances / chances.sum())
    assert isinstance(law, TwoSidedNoise)
    both = [numbers.geometric(-math.expm1(-float(law.epsilon)), shape) for _ in range(2)]
    return both[0] - both[1]


TRUTH = np.array([[400, 30, 0], [250, 5, 90]])


def geometric(shape: tuple[int, ...]) -> Design:
    values = math.prod(shape)
    spread = Spread.of_shares(Levels(values, margins=shape), (), TwoSidedNoise).with_total_for(
        Truth(values), TwoSidedNoise
    )
    return spread.design(Truth(values), TwoSidedNoise(Fraction(1, 9)), 2)


def holds(hits: float, runs: int) -> bool:
    """Return whether intervals that hold with chance 95 % at least would hold so often."""
    return bool(stats.binom.cdf(hits, runs, float(LEVEL)) > 1e-9)


@pytest.mark.parametrize(
    "design", [table((2, 3)), table((2, 3), UNEVEN), table((2, 3), whole=False), geometric((2, 3))]
)
def test_intervals_of_cells_margins_and_total_hold(design: Design) -> None:
    truth = np.array(design.levels.all_sums(TRUTH.ravel().tolist()))
    inside = np.zeros(design.levels.opened)
    for row in opened_of(design, TRUTH, 600, 7):
        found = joined_levels(design, row.tolist(), LEVEL)
        inside += (np.concatenate(found.low) <= truth) & (truth <= np.concatenate(found.high))

    assert all(holds(hits, 600) for hits in inside)
    # At zero an interval that reaches below it is cut off and still holds; elsewhere it is no wider than it must be.
    assert inside[0] <= 0.985 * 600


def test_sums_and_differences_of_a_table_have_the_width_of_their_own_noise() -> None:
    design = table((2, 3))
    rows = opened_of(design, TRUTH, 400, 11)
    hits = np.zeros(3)
    for row in rows:
        counts = WindowCounts(index=0, opens=0, unit=0, outputs=tuple(row.tolist()))
        read = question_table(design, LEVEL, [str(one) for one in range(6)], (), [counts])
        margin, corner, apart = (
            total(read, Region.of([1, 2, 3], 0)),
            total(read, Region.of([1, 5], 0)),
            difference(read, Region.of([1, 2, 3], 0), Region.of([4, 5, 6], 0)),
        )
        joined = joined_levels(design, row.tolist(), LEVEL)
        assert (margin.low, margin.high) == (joined.low[1][0], joined.high[1][0])
        assert math.isclose(margin.estimate, joined.estimates[1][0])
        assert corner.high - corner.low > margin.high - margin.low  # Two cells of a diagonal share no margin.
        truths = (430, 405, 430 - 345)
        hits += [one.low <= known <= one.high for one, known in zip((margin, corner, apart), truths, strict=True)]

    assert all(holds(one, 400) for one in hits)


@pytest.mark.parametrize("within", [None, (1, 2, 3), (2, 5)])
def test_shares_of_a_row_hold(within: tuple[int, ...] | None) -> None:
    design, among = table((2, 3)), within or tuple(range(1, 7))
    truth = TRUTH.ravel()
    true = truth[1] / sum(truth[one - 1] for one in among)
    inside, known = np.zeros(6), np.zeros(6)
    inside[1], known[[one - 1 for one in among]] = 1, 1
    rows = opened_of(design, TRUTH, 400, 13)
    held = [Counts.of(design, row).outside(inside, 0.0, LEVEL, known)(true) <= 0 for row in rows]

    assert holds(sum(held), 400)
    found = [share(design, row, [2], LEVEL, within) for row in rows[:3]]
    assert [one.low <= true <= one.high for one in found] == held[:3]


def test_a_share_is_of_what_holds_it() -> None:
    design = table((2, 3))
    row = opened_of(design, TRUTH, 1, 3)[0]

    assert share(design, row, [1, 2], LEVEL, [1, 2]).low == 1.0
    with pytest.raises(RangeError, match="one of those that it is a share of"):
        share(design, row, [1, 4], LEVEL, [1, 2, 3])
    with pytest.raises(RangeError, match="1 to 6"):
        share(design, row, [1], LEVEL, [1, 7])
    assert math.isclose(Counts.of(design, row).cells.sum(), joined_levels(design, row.tolist(), LEVEL).estimates[3][0])
