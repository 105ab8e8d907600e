"""Tables whose releases have a total: cells, sums and differences are joined with it, and their intervals say so."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.chosen import all_at_once, each_level, largest_changes
from fleetcount_analysis.answers.combinations import difference, total, totals_at_once, window_totals
from fleetcount_analysis.answers.levels import table_design, table_numbers
from fleetcount_analysis.answers.smoothing import smoothed
from fleetcount_analysis.answers.table import QuestionTable, Region
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread

from tests.analysis.answers.samples import LEVEL, direct, random_table, sampling, table_of
from tests.support.designs import rows_of

MONTH = GaussianNoise(Fraction("25.692") ** 2)
"""The noise of 720 windows of 72 cells at epsilon 10."""


def with_total(design: Design, ratio: int = 1, noise: NoiseLaw | None = None) -> Design:
    spread = Spread(levels=Levels(design.values, total=True), ratios=(Fraction(ratio),))
    return spread.design(design.answer, noise or design.noise, design.aggregators)


def dense(table: QuestionTable, added: Region, taken: Region | None = None) -> tuple[float, float]:
    """Return the least-squares estimate of a sum or a difference and its standard error, window by window."""
    design, estimate, variance = table.design, 0.0, 0.0
    rows = np.array(rows_of(design.levels), dtype=np.float64)
    spread = [design.aggregators * law.draw_variance for law in design.laws]
    weight = 1 / np.repeat(spread, design.levels.sizes)
    inverse = np.linalg.inv(rows.T @ (rows * weight[:, None]))
    for window, outputs in zip(table.windows.tolist(), table.outputs, strict=True):
        sums = np.zeros(design.values)
        for region, sign in ((added, 1), (taken, -1)):
            if region is not None and window in region.windows:
                sums[[cell - 1 for cell in region.cells]] += sign
        estimate += float(sums @ inverse @ rows.T @ (weight * outputs))
        variance += float(sums @ inverse @ sums)
    return estimate, math.sqrt(variance)


def test_the_total_of_a_month_has_the_noise_of_one_cell() -> None:
    plain = direct(72, MONTH)
    joined, apart = (total(table, Region.of(range(1, 73), 0)) for table in (
        random_table(with_total(plain), 1), random_table(plain, 1)))  # fmt: skip

    z = 1.959964
    assert 1 <= (joined.high - joined.estimate) / (36.0 * z) < 1.03
    assert (apart.high - apart.estimate) / (308 * z) == pytest.approx(1, abs=0.01)


REGIONS = [
    (Region.of([1, 2, 3], [0, 2]), None),
    (Region.of([1, 2, 3, 4, 5], [0, 1, 2]), None),
    (Region.of([1, 2], [0, 1]), Region.of([1, 2, 3], [2])),
    (Region.of([1, 2], [0, 1]), Region.of([3, 4, 5], [1, 2])),
]


@pytest.mark.parametrize(("added", "taken"), REGIONS)
@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize("noise", [GaussianNoise(Fraction(900)), TwoSidedNoise(Fraction(1, 40))], ids=lambda n: n.name)
def test_sums_and_differences_are_least_squares(
    added: Region, taken: Region | None, ratio: int, noise: NoiseLaw
) -> None:
    table = random_table(with_total(direct(5), ratio, noise), 3)

    found = total(table, added) if taken is None else difference(table, added, taken)

    estimate, error = dense(table, added, taken)
    assert found.estimate == pytest.approx(estimate)
    # Geometric sums are near to normal, not normal.
    width = 1.03 if noise.name == "gaussian" else 1.06
    assert 0.97 < (found.high + 0.5 - estimate) / (1.96 * error) < width + 0.5 / error


def test_cells_are_joined_too_and_so_are_those_found_by_looking() -> None:
    table = random_table(with_total(direct(2), noise=GaussianNoise(Fraction(900))), 2)

    estimate, error = dense(table, Region.of(2, 1))

    assert table.estimates[1, 1] == pytest.approx(estimate)
    assert error == pytest.approx(math.sqrt(1800 * 2 / 3))
    assert total(table, Region.of(2, 1)).high == table.high[1, 1]
    assert [one.answer.estimate for one in all_at_once(table, Region.of(2, 1))] == [pytest.approx(estimate)]
    changed = largest_changes(table, 1, 0, 2)
    moved = (table.estimates[1] - table.estimates[0]).tolist()
    assert {one.cell: one.answer.estimate for one in changed} == pytest.approx({1: moved[0], 2: moved[1]})
    pair = totals_at_once(table, [Region.of(1, 0), Region.of([1, 2], [0, 1])])
    assert pair[0].high - pair[0].estimate > table.high[0, 0] - table.estimates[0, 0]


def test_joined_counts_share_no_level_as_independent_ones_do() -> None:
    assert each_level(with_total(direct()), LEVEL, 1000) == 1 - Fraction(1, 20_000) > each_level(direct(), LEVEL, 1000)


@pytest.mark.parametrize("ratio", [4, 8])
def test_sampled_counts_are_joined_with_their_total_and_add_up(ratio: int) -> None:
    noise = GaussianNoise(Fraction(400))
    design = with_total(sampling(72), ratio, noise)
    table = table_of(design, [[10] * 36 + [12] * 36 + [790 + 10 * window] for window in range(3)])

    for size in (1, 36, 72):
        region = Region.of(range(1, size + 1), [0, 2])
        found = total(table, region)
        counted, error = dense(table, region)
        assert found.estimate == pytest.approx(4 * counted)
        assert found.estimate == pytest.approx(float(table.estimates[np.ix_([0, 2], range(size))].sum()))
        # Of those in the sample the coins move another part.
        width = 4 * math.sqrt(error**2 + 0.75 * counted)
        assert size == 1 or (found.high - found.low) / (2 * 1.96 * width) == pytest.approx(1, abs=0.03)
        share = size / (72 + ratio)
        assert error**2 == pytest.approx(2 * 2 * 400 * size * (1 - share))
    later, earlier = (Region.of(range(1, 73), one) for one in (2, 0))
    change = difference(table, later, earlier)
    assert change.estimate == pytest.approx(4 * dense(table, later, earlier)[0])
    assert change.high - change.low < 2 * 2 * 1.96 * 4 * math.sqrt(2 * 400 * 72)


@pytest.mark.parametrize("rows", [[0], [0, 1]])
def test_regions_of_sampled_counts_have_shorter_intervals_with_a_total(rows: list[int]) -> None:
    """The figures of docs/answers.md: half of 72 squares, all but one, all, under a coin a window of 1/4 in a month."""
    noise, counts = GaussianNoise(Fraction("41.54")), [5] * 72
    joined = table_of(with_total(sampling(72), 4, noise), [[*counts, 360]] * 2)
    alone = table_of(replace(sampling(72), noise=noise), [counts] * 2)

    shorter = []
    for size in (1, 36, 71, 72):
        one, other = (total(table, Region.of(range(1, size + 1), rows)) for table in (joined, alone))
        assert one.estimate == pytest.approx(other.estimate)
        shorter.append((one.high - one.low) / (other.high - other.low))

    assert shorter == pytest.approx([1, 0.75, 0.33, 0.31], abs=0.03)


@pytest.mark.parametrize("design", [direct(6, MONTH), replace(sampling(6), noise=MONTH)], ids=["direct", "sampled"])
def test_the_totals_of_all_windows_are_those_of_each(design: Design) -> None:
    table = random_table(with_total(design, 4), 4)

    estimates, low, high = window_totals(table)

    for row, window in enumerate(table.windows.tolist()):
        one = total(table, Region.of(range(1, 7), window))
        assert (estimates[row], low[row], high[row]) == (pytest.approx(one.estimate), one.low, one.high)


def test_a_curve_knows_that_joined_cells_have_less_noise() -> None:
    design = direct(2, GaussianNoise(Fraction(900)))
    joined, plain = (smoothed(random_table(one, 3), [1], change_sd=1e6) for one in (with_total(design), design))

    ratio = joined.standard_errors / plain.standard_errors
    assert ratio == pytest.approx(np.full(ratio.shape, math.sqrt(2 / 3)), rel=1e-4)


def test_a_table_of_one_zoom_has_the_total_behind_it() -> None:
    levels = Levels(16, (4, 4), (1, 2), total=True)
    design = Spread(levels=levels, ratios=(Fraction(1), Fraction(1, 2))).design(direct(16).answer, MONTH)

    coarse = table_design(design, 1)

    assert (coarse.levels, coarse.laws) == (Levels(4, total=True), (MONTH, design.laws[2]))
    assert table_numbers(design, range(21), 1) == (16, 17, 18, 19, 20)
    assert table_numbers(design, range(21), 0) == (*range(16), 20)
    assert table_design(direct(), 0) == direct()
    assert table_numbers(direct(), range(4), 0) == (0, 1, 2, 3)
    with pytest.raises(RangeError, match="levels of a table is 3; allowed is the cells, or the cells and a total"):
        table_of(design, [list(range(21))])
