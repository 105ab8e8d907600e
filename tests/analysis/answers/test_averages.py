"""Means, shares and quantiles of one release or several: what they are of, by which tests, and what has none."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from fleetcount_analysis.answers.averages import (
    Counts,
    mean,
    mean_of_bins,
    quantile,
    quantile_sd,
    share,
    total_of_numbers,
)
from fleetcount_analysis.answers.half_widths import Coins, half_width, width_with
from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.answers.weighted_sums import values_join
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.planning import spread_for_quantiles
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie

from tests.support.designs import rows_of

LEVEL = Fraction(19, 20)
HALF = Fraction(1, 2)
NOISE = GaussianNoise(Fraction(648))
POINTS = [Fraction(0), Fraction(10), Fraction(25), Fraction(50)]


def direct(values: int, noise: NoiseLaw = NOISE, *, total: bool = False) -> Design:
    return Spread(levels=Levels(values, total=total)).design(Truth(values), noise)


def sampled(values: int, noise: NoiseLaw) -> Design:
    return Design(answer=SamplingDie.uniform(Fraction(1, 4), values), noise=noise, values=values, aggregators=2)


# What the numbers are of.


def test_an_estimate_is_that_of_the_counts() -> None:
    found = mean(direct(4), [1000, 2000, 3000, 4000], POINTS, LEVEL)

    assert found.estimate == pytest.approx((2 * 10 + 3 * 25 + 4 * 50) / 10)
    assert found.low < found.estimate < found.high
    assert share(direct(4), [1000, 2000, 3000, 4000], {2, 4}, LEVEL).estimate == pytest.approx(0.6)
    assert mean_of_bins(direct(3), [100, 100, 200], POINTS, LEVEL).estimate == pytest.approx(
        5 / 4 + 17.5 / 4 + 37.5 / 2
    )
    assert str(share(direct(2), [5000, 5000], {1}, LEVEL)).endswith("(95 % interval, estimate 0.5)")


def test_windows_are_added_up() -> None:
    rows = [[1000, 2000, 3000, 4000], [500, 0, 0, 500]]

    two, one = (mean(direct(4), opened, POINTS, LEVEL) for opened in (rows, np.sum(rows, axis=0)))

    assert two.estimate == one.estimate
    # Two windows have twice the variance.
    assert two.high - two.low == pytest.approx((one.high - one.low) * 2**0.5, rel=0.05)


def test_zooms_and_a_total_are_read_together() -> None:
    line = Spread(levels=Levels(4, (4, 1), (1, 2), total=True)).design(Truth(4), NOISE)
    opened = np.array([300, 300, 300, 340, 620, 600, 1240])
    rows = np.array(rows_of(line.levels))
    cells = np.linalg.lstsq(rows, opened, rcond=None)[0]

    assert Counts.of(line, opened).cells == pytest.approx(cells)
    assert mean(line, opened, POINTS, LEVEL).estimate == pytest.approx(float(cells @ [0, 10, 25, 50] / cells.sum()))
    assert quantile(line, opened, HALF, LEVEL).value == 2


SUMMED = {
    "alone": Levels(9, weighted=True),
    "total": Levels(9, weighted=True, total=True),
    "zooms": Levels(8, (8, 1), (1, 2, 4), weighted=True, total=True),
}


@pytest.mark.parametrize("levels", SUMMED.values(), ids=SUMMED)
def test_a_weighted_sum_joins_the_counts_by_least_squares(levels: Levels) -> None:
    ratios = tuple(Fraction(one) for one in (40, 3, 7, 2)[: levels.count - 1])
    design = Spread(levels=levels, ratios=ratios).design(Truth(levels.values), NOISE)
    opened = np.random.default_rng(5).integers(-50, 400, design.output_count)
    spread = np.repeat([law.draw_variance**0.5 for law in design.laws], levels.sizes)
    rows = np.array(rows_of(levels)) / spread[:, None]
    cells = np.linalg.lstsq(rows, opened / spread, rcond=None)[0]
    wanted = np.arange(levels.values) - 1.5
    exact = wanted @ np.linalg.inv(rows.T @ rows) @ wanted * design.aggregators
    join = values_join(design)
    weights = join.weights(wanted)

    assert Counts.of(design, opened).cells == pytest.approx(cells)
    assert sum(float(one @ one) * law.variance for one, law in zip(weights, join.laws, strict=True)) == pytest.approx(
        exact
    )
    found = total_of_numbers(design, opened, [Fraction(v) - Fraction(3, 2) for v in range(levels.values)], LEVEL)
    assert found.estimate == pytest.approx(float(wanted @ cells))
    assert found.high - found.low == pytest.approx(2 * 1.96 * exact**0.5, rel=0.03)


def test_the_sum_of_numbers_is_of_direct_answers_and_wider_by_their_rounding() -> None:
    summed = Spread.of_shares(Levels(3, weighted=True), (HALF, HALF)).with_total_for(Truth(3), GaussianNoise)
    design, points = summed.design(Truth(3), GaussianNoise(Fraction(1, 2))), [Fraction(0), Fraction(5), Fraction(10)]
    opened = design.opened_sums([1000, 2000, 3000])
    plain, rounded = (total_of_numbers(design, opened, points, LEVEL, rounded=one) for one in (False, True))

    assert plain.estimate == rounded.estimate == pytest.approx(2000 * 5 + 3000 * 10)
    # Under next to no noise the rounding is bounded by Bernstein's inequality.
    assert 1 < (rounded.high - rounded.low) / (2 * 1.96 * (6000 * 25 / 4) ** 0.5) < 1.7
    assert plain.high - plain.low < 50
    with pytest.raises(RangeError, match="sampled answers"):
        total_of_numbers(sampled(3, NOISE), [1, 2, 3], points, LEVEL)
    with pytest.raises(ShapeError, match="2 points"):
        total_of_numbers(design, opened, points[:2], LEVEL)


@pytest.mark.parametrize("unit", ["1/1000000000000", "1/1000000", "1000000000"])
def test_the_sum_of_numbers_is_the_same_in_every_unit(unit: str) -> None:
    points, scale = [Fraction(v, 4) for v in range(5)], Fraction(unit)

    one, other = (
        total_of_numbers(direct(5), [10, 0, 500, 0, 10], [point * by for point in points], LEVEL, rounded=True)
        for by in (Fraction(1), scale)
    )

    assert one.estimate is not None
    wanted = [float(scale) * number for number in (one.low, one.estimate, one.high)]
    assert [other.low, other.estimate, other.high] == pytest.approx(wanted)


@pytest.mark.parametrize(("q", "value"), [(Fraction(1, 20), 1), (HALF, 3), (Fraction(3, 5), 3), (Fraction(7, 10), 4)])
def test_a_quantile_is_the_first_value_with_enough_devices_up_to_it(q: Fraction, value: int) -> None:
    found = quantile(direct(4, TwoSidedNoise(Fraction(4))), [10_000, 20_000, 30_000, 40_000], q, LEVEL)

    # A quantile on the border of two values is either of them.
    assert (
        found.first <= found.value <= value == found.last
        if q != Fraction(3, 5)
        else (found.first, found.last) == (3, 4)
    )


# By which tests.


def median_of_two(sds: float) -> tuple[int, int]:
    """Return the median's interval where D_1, whose noise has a deviation of 18 vehicles and a half, has so many."""
    more = round(sds * math.sqrt(1296 / 2))
    found = quantile(direct(2), [5000 - more, 5000 + more], HALF, LEVEL)
    return found.first, found.last


def test_each_side_of_a_quantile_has_half_of_the_error() -> None:
    # One-sided 95 % are 1.64 deviations, 97.5 % are 1.96 (2.0 with the smoothing of the law).
    assert [median_of_two(sds) for sds in (1.8, -1.8)] == [(1, 2), (1, 2)]
    assert [median_of_two(sds) for sds in (2.1, -2.1)] == [(2, 2), (1, 1)]


def test_without_a_device_in_sight_every_value_is_possible() -> None:
    found, spread = quantile(direct(4), [3, -8, 5, 1], HALF, LEVEL), mean(direct(4), [3, -8, 5, 1], POINTS, LEVEL)

    assert (found.first, found.last) == (1, 4)
    assert (spread.low, spread.high) == (0, 50)
    nobody = share(direct(2), [-30, -10], {1}, LEVEL)
    assert (nobody.estimate, nobody.low, nobody.high) == (None, 0, 1)


def test_a_mean_at_the_end_of_its_range_stays_inside() -> None:
    found = mean(direct(4, GaussianNoise(Fraction(4))), [900, -9, 2, -3], POINTS, LEVEL)

    assert found.low == 0 < found.high < 1


def test_what_is_known_beforehand_has_no_error() -> None:
    found = [share(direct(2), [40, 50], cells, LEVEL) for cells in ((), (1, 2))]

    assert [(one.estimate, one.low, one.high) for one in found] == [(0, 0, 0), (1, 1, 1)]
    only = mean_of_bins(direct(1), [40], [Fraction(3), Fraction(5)], LEVEL)
    assert (only.estimate, only.low, only.high) == (4, 3, 5)


def test_a_mean_of_bins_is_of_those_with_one_of_their_values() -> None:
    counts = [100, 5000, 200, 100, 9000, 400]
    design, edges = direct(6, GaussianNoise(Fraction(1, 4))), [Fraction(0), Fraction(10), Fraction(30)]

    row = mean_of_bins(design, counts, edges, LEVEL, [(1,), (3,)])
    both = mean_of_bins(design, counts, edges, LEVEL, [(1, 4), (3, 6)])

    assert row.estimate == pytest.approx((100 * 5 + 200 * 20) / 300)
    assert both.estimate == pytest.approx((200 * 5 + 600 * 20) / 800)
    # From the mean of the lower edges to that of the upper ones, and a little for the noise of 1/4.
    assert 6 < row.low < 20 / 3 < 70 / 3 < row.high < 24
    # With no other values it is the same as of a release that has these alone.
    alone = mean_of_bins(direct(2, GaussianNoise(Fraction(1, 4))), [100, 200], edges, LEVEL)
    assert (row.estimate, row.low, row.high) == pytest.approx((alone.estimate, alone.low, alone.high), abs=1e-5)


def test_the_number_of_devices_is_bounded_from_above() -> None:
    generator = np.random.default_rng(5)
    noise = np.rint(generator.normal(0, 36, (400, 3))).astype(np.int64)

    most = [Counts.of(direct(3), row).most(LEVEL) for row in noise + np.array([200, 300, 500])]
    whole = [Counts.of(sampled(3, NOISE), row).most(LEVEL) for row in noise + np.array([50, 75, 125])]

    # Its part of the error is a thousandth.
    assert sum(one < 1000 for one in most) <= 4
    assert sum(one < 1000 for one in whole) <= 4
    assert 1000 < np.mean(most) < 1300


def test_rounding_makes_a_mean_less_certain_and_bins_by_their_width() -> None:
    opened = [40_000, 30_000, 20_000, 10_000]
    exact, rounded = (mean(direct(4), opened, POINTS, LEVEL, rounded=one) for one in (False, True))
    binned = mean_of_bins(direct(3), opened[:3], POINTS, LEVEL)

    # Distances of at most half of the widest step, 25, of 100,000 devices; the noise has hardly a fifth of that.
    assert rounded.high - rounded.low == pytest.approx(2 * 1.96 * 12.5 / 100_000**0.5, rel=0.15)
    assert exact.high - exact.low < 0.5 * (rounded.high - rounded.low)
    assert binned.high - binned.low > (4 * 10 + 3 * 15 + 2 * 25) / 9


# The half width with devices' own coins.


@pytest.mark.parametrize(
    ("noise", "devices", "size", "rarest"),
    [
        (NOISE, 100, 1, 0.02),
        (NOISE, 40_000, 1, 0.015),
        (TwoSidedNoise(Fraction(1, 20)), 100, 1, 0.02),
        (TwoSidedNoise(Fraction(1, 4)), 100, 3, 0),
        (TwoSidedNoise(Fraction(2)), 9, 1, 0),
    ],
    ids=["noise rules", "coins rule", "geometric", "few and large", "few"],
)
def test_coins_and_noise_exceed_the_half_width_rarely_enough(
    noise: NoiseLaw, devices: int, size: int, rarest: float
) -> None:
    law, coins = noise_total(noise, 2), Coins(variance=devices * size**2, deviation=size, largest=size)

    half = width_with(((1.0, 1, law),), LEVEL, coins)

    heads = np.arange(devices + 1)
    steps, chances = (2 * heads - devices) * size, scipy.stats.binom.pmf(heads, devices, 0.5)
    above = float(chances @ law.upper_tail(np.floor(half - steps).astype(np.int64) + 1))
    assert rarest <= above <= 0.025
    assert half > half_width(((1.0, 1, law),), LEVEL)


@pytest.mark.parametrize("chance", [0.02, 0.1])
def test_coins_that_are_nothing_like_a_normal_exceed_it_rarely_enough(chance: float) -> None:
    law, size, devices = noise_total(TwoSidedNoise(Fraction(1)), 2), 60, 25
    odds = chance * (1 - chance)
    coins = Coins(variance=devices * odds * size**2, deviation=odds**0.5 * size, largest=(1 - chance) * size)

    half = width_with(((1.0, 1, law),), LEVEL, coins)

    heads = np.arange(devices + 1)
    steps, chances = (heads - devices * chance) * size, scipy.stats.binom.pmf(heads, devices, chance)
    for side in (steps, -steps):
        assert float(chances @ law.upper_tail(np.floor(half - side).astype(np.int64) + 1)) <= 0.025


def test_the_mean_of_a_sample_is_as_uncertain_as_who_is_in_it() -> None:
    places = np.array([0, 10, 25, 50])
    spread = float(np.sqrt(3 * 100_000 * np.sum((places - places.mean()) ** 2))) / 400_000

    found = mean(sampled(4, NOISE), [25_000] * 4, POINTS, LEVEL)

    # The noise adds 7 % to the variance, the upper end of Q a few more.
    assert 1 < (found.high - found.low) / (2 * 1.96 * spread) < 1.15


def test_few_and_weak_noises_leave_the_coins_to_bernstein() -> None:
    law = noise_total(TwoSidedNoise(Fraction(8)), 2)
    coins = Coins(variance=10_000, deviation=1, largest=1)

    half = width_with(((1.0, 1, law),), LEVEL, coins)

    assert 1.96 * 100 < half < 1.1 * coins.bernstein(0.025)


# What has none.


@pytest.mark.parametrize(
    ("design", "said"),
    [
        (Design(answer=KaryResponse(HALF, 4), noise=NOISE, values=4, aggregators=2), "k-ary answers"),
        (direct(4, OneSidedNoise(Fraction(1))), "noise one-sided geometric"),
        (sampled(4, NoNoise()), "noise none"),
    ],
    ids=["response", "one-sided", "exact"],
)
def test_other_releases_are_refused(design: Design, said: str) -> None:
    opened = [9] * design.output_count

    for ask in (
        lambda: mean(design, opened, POINTS, LEVEL),
        lambda: share(design, opened, {1}, LEVEL),
        lambda: quantile(design, opened, HALF, LEVEL),
    ):
        with pytest.raises(RangeError, match=f"{said}.*direct or sampled answers with two-sided noise"):
            ask()


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ShapeError, match="3 points; allowed is one for each of 4 values"):
        mean(direct(4), [1] * 4, POINTS[:3], LEVEL)
    with pytest.raises(ShapeError, match="4 points; allowed is one for each of 4 values, ascending"):
        mean(direct(4), [1] * 4, POINTS[::-1], LEVEL)
    with pytest.raises(ShapeError, match="1 point"):
        mean(direct(1), [1], POINTS[:1], LEVEL)
    with pytest.raises(ShapeError, match="4 edges; allowed is one more than the 4 values"):
        mean_of_bins(direct(4), [1] * 4, POINTS, LEVEL)
    with pytest.raises(ShapeError, match="4 edges; allowed is one more than the 2 bins"):
        mean_of_bins(direct(4), [1] * 4, POINTS, LEVEL, [(1,), (2,)])
    with pytest.raises(RangeError, match="cell is 0; allowed is 1 to 4"):
        mean_of_bins(direct(4), [1] * 4, POINTS, LEVEL, [(1,), (2,), (0, 3)])
    with pytest.raises(RangeError, match="cell in two bins is 2; allowed is a cell in one"):
        mean_of_bins(direct(4), [1] * 4, POINTS, LEVEL, [(1,), (2,), (3, 2)])
    with pytest.raises(ShapeError, match="allowed is 4 numbers a row"):
        mean(direct(4), [1] * 5, POINTS, LEVEL)
    with pytest.raises(RangeError, match="cell is 5; allowed is 1 to 4"):
        share(direct(4), [1] * 4, {1, 5}, LEVEL)
    for q in (Fraction(0), Fraction(1)):
        with pytest.raises(RangeError, match=f"q is {q}; allowed is above 0 and below 1"):
            quantile(direct(4), [1] * 4, q, LEVEL)


# What is planned of a quantile.


def test_the_planned_error_of_a_median_is_that_of_drawn_ones() -> None:
    """400 medians of 2,000 numbers evenly spread over 33 to 64 points, under noise of a 20th to a 40th of them."""
    generator, devices = np.random.default_rng(11), 2_000
    for values, sides, variance in ((64, (), 500), (33, (1,), 200)):
        spread = spread_for_quantiles(values, sides).with_total_for(Truth(values), GaussianNoise)
        design = spread.design(Truth(values), GaussianNoise(Fraction(variance)))
        errors = list[float]()
        deviations = np.sqrt([2 * law.draw_variance for law in design.laws])
        noises = np.repeat(deviations, design.levels.sizes)
        for _ in range(400):
            numbers = generator.random(devices)
            places = np.floor(numbers * (values - 1) + generator.random(devices)).astype(int)
            cells = np.bincount(places, minlength=values)
            opened = np.array(design.opened_sums(cells.tolist())) + generator.normal(0, noises)
            errors.append((quantile(design, opened.round(), HALF, LEVEL).value - 1) / (values - 1) - np.median(numbers))

        # The law says the largest of some values: near the middle it is less, and 400 draws know it within a tenth.
        assert 0.6 < float(np.std(errors)) / quantile_sd(design, devices) < 1.1


def test_the_planned_error_of_many_numbers_is_the_distance_of_points() -> None:
    design = direct(33)

    assert quantile_sd(design, 10**9) == pytest.approx(1 / 32 / 12**0.5, rel=1e-4)
    assert quantile_sd(design, 100) == pytest.approx(10 * quantile_sd(design, 1_000), rel=0.01)


@pytest.mark.parametrize(
    ("design", "devices", "q", "said"),
    [
        (direct(4), 0, HALF, "devices is 0"),
        (direct(4), 9, Fraction(1), "q is 1"),
        (sampled(4, NOISE), 9, HALF, "sampled answers"),
        (direct(4, OneSidedNoise(HALF)), 9, HALF, "one-sided"),
        (direct(1), 9, HALF, "1 point"),
    ],
)
def test_a_quantile_that_cannot_be_planned_is_refused(design: Design, devices: int, q: Fraction, said: str) -> None:
    with pytest.raises((RangeError, ShapeError), match=said):
        quantile_sd(design, devices, q)
