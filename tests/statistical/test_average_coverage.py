"""Intervals of means, shares and quantiles hold the truth at their level at least, hardly wider than a normal's.

What is drawn is a whole release: devices with numbers, their rounding and their coins, and the noise of every opened
number. The seeds are fixed. `LOWEST` is 4.5 standard deviations below 95 %, which 1 of 300,000 tests misses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.averages import Counts, mean, mean_of_bins, quantile, share, value_test
from fleetcount_analysis.gaussian_sums import GaussianSum
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread, scaled
from fleetcount_mechanisms.planning import spread_for_mean
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

from tests.support.designs import rows_of
from tests.support.geometric_noise import geometric_noise
from tests.support.nightly import NIGHTLY

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

RUNS = 1_500 if NIGHTLY else 400
LEVEL = Fraction(19, 20)
LOWEST = 0.95 - 4.5 * math.sqrt(0.95 * 0.05 / RUNS)
SD36 = GaussianNoise(Fraction(648))
"""Of two aggregators, 36 vehicles."""


def noises(law: NoiseLaw, shape: tuple[int, int], generator: np.random.Generator) -> Integers:
    """Return the noise of two aggregators on every number."""
    if isinstance(law, GaussianNoise):
        reach = GaussianSum(parameter=law.variance, terms=1).reach_of(41.0)
        z = np.arange(-reach, reach + 1)
        mass = np.exp(-(z**2) / (2 * float(law.variance)))
        return generator.choice(z, (2, *shape), p=mass / mass.sum()).sum(axis=0)
    assert law.epsilon is not None
    drawn = geometric_noise(law.epsilon, 2 * math.prod(shape), SeededRandom(int(generator.integers(1 << 30))))
    return drawn.reshape(2, *shape).sum(axis=0)


def released(design: Design, counts: Integers, generator: np.random.Generator) -> Integers:
    """Return the opened numbers of releases whose cells have these counts, (runs, V); what a sample has of them."""
    cells = counts if design.channel[0] == 1 else generator.binomial(counts, float(design.channel[0]))
    sums = np.array([design.opened_sums(row) for row in cells.tolist()])
    drawn = [noises(law, (len(counts), numbers), generator) for law, numbers in design.opened_noise]
    return sums + np.concatenate(drawn, axis=1)


def halves(values: int, zooms: int, ratio: Fraction = Fraction(7, 10)) -> Design:
    """Return values in order and zooms of 2, 4, ... of them, each with `ratio` of the share of the one before."""
    shares = [ratio**zoom for zoom in range(zooms)]
    levels = Levels(values, (values, 1), tuple(1 << zoom for zoom in range(zooms)))
    spread = Spread.of_shares(levels, [one / sum(shares) for one in shares]).with_total_for(
        Truth(values), GaussianNoise
    )
    return spread.design(Truth(values), GaussianNoise(SD36.variance * sum(shares)))


def plain(values: int, noise: NoiseLaw = SD36, rate: Fraction | None = None, *, total: bool = False) -> Design:
    answer = Truth(values) if rate is None else SamplingDie.uniform(rate, values, allow_large_rate=True)
    return Spread(levels=Levels(values, total=total)).design(answer, noise)


def summed(values: int, noise: NoiseLaw = SD36) -> Design:
    """Return what a question for a mean opens, where the cells alone would have this noise."""
    law = type(noise)
    spread = spread_for_mean(values, law).with_total_for(Truth(values), law)
    share = spread.cells_share(law)
    cells = GaussianNoise(noise.variance / share) if isinstance(noise, GaussianNoise) else scaled(noise, 1 / share)
    return spread.design(Truth(values), cells)


# Means.

SHAPES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "even": lambda generator, n: generator.random(n),
    "ends": lambda generator, n: generator.integers(0, 2, n).astype(np.float64),
    "low": lambda generator, n: generator.random(n) ** 6,
    "zero": lambda _, n: np.zeros(n),
}


@dataclass(frozen=True)
class Setting:
    design: Design
    devices: int
    shape: str

    def __str__(self) -> str:
        rate, levels = self.design.channel[0], self.design.levels
        return f"{self.design.noise.name}-V{levels.values}-{levels.count}-p{rate}-n{self.devices}-{self.shape}"


QUARTER = Fraction(1, 4)
MEANS = [
    Setting(plain(values, total=total), devices, shape)
    for values, total, devices, shape in (
        (2, False, 1_000, "even"),
        (3, False, 200, "even"),
        (3, False, 1_000, "ends"),
        (3, True, 1_000, "low"),
        (3, False, 100_000, "even"),
        (5, True, 1_000, "even"),
        (5, True, 1_000, "zero"),
        (5, False, 20_000, "ends"),
        (5, True, 100_000, "low"),
        (8, True, 100_000, "even"),
        (17, True, 1_000, "low"),
        (17, False, 20_000, "even"),
        (33, True, 20_000, "zero"),
        (33, True, 1_000, "even"),
    )
]
MEANS += [
    Setting(plain(5, TwoSidedNoise(Fraction(1, 10))), 1_000, "even"),
    Setting(plain(5, TwoSidedNoise(Fraction(2)), total=True), 5, "even"),
    Setting(halves(32, 4), 2_000, "low"),
]
MEANS += [
    Setting(summed(values, noise), devices, shape)
    for values, noise in ((33, SD36), (5, SD36), (33, TwoSidedNoise(Fraction(1, 10))))
    for devices in (200, 1_000, 100_000)
    for shape in ("even", "ends", "low")
    if noise is SD36 or shape != "ends"
]
SAMPLED = [
    Setting(plain(5, GaussianNoise(Fraction(40)), QUARTER), 1_000, "even"),
    Setting(plain(3, GaussianNoise(Fraction(40)), Fraction(9, 20)), 20_000, "ends"),
]
LATER = [
    Setting(plain(3, TwoSidedNoise(Fraction(1, 2))), 200, "low"),
    Setting(plain(5, GaussianNoise(Fraction(40)), QUARTER), 20_000, "low"),
    Setting(plain(9, GaussianNoise(Fraction(40)), Fraction(1, 10), total=True), 20_000, "even"),
    Setting(plain(3, TwoSidedNoise(Fraction(1)), QUARTER), 500, "zero"),
    Setting(plain(3, TwoSidedNoise(Fraction(2)), Fraction(9, 20)), 20, "ends"),
]


def long(setting: Setting) -> bool:
    """Return whether only a night has time for a setting: of large fleets `make test` draws those of even numbers."""
    return setting in LATER or (setting.devices == 100_000 and setting.shape != "even")


def rounded(setting: Setting, runs: int, generator: np.random.Generator) -> tuple[Integers, float]:
    """Return how many devices of a fleet round to each point, (runs, V), and the mean of their numbers."""
    numbers, gaps = SHAPES[setting.shape](generator, setting.devices), setting.design.values - 1
    low = np.minimum(np.floor(numbers * gaps), gaps - 1)
    places, chances = low.astype(np.int64), numbers * gaps - low
    counts = np.zeros((runs, gaps + 1), dtype=np.int64)
    for run in range(runs):
        counts[run] = np.bincount(places + (generator.random(numbers.size) < chances), minlength=gaps + 1)
    return counts, float(numbers.mean())


@pytest.mark.parametrize(
    "setting",
    [pytest.param(one, marks=pytest.mark.nightly) if long(one) else one for one in (*MEANS, *SAMPLED, *LATER)],
    ids=str,
)
def test_the_mean_of_rounded_numbers_is_covered(setting: Setting) -> None:
    generator = np.random.default_rng(17)
    # Half widths of a sample depend on what is opened, and so each is computed.
    runs = RUNS if NIGHTLY else RUNS // (2 if setting.design.channel[0] == 1 else 16)
    counts, truth = rounded(setting, runs, generator)
    opened = released(setting.design, counts, generator)
    step, places = 1 / (setting.design.values - 1), np.linspace(0, 1, setting.design.values)

    inside = [Counts.of(setting.design, row).outside(places, step, LEVEL)(truth) <= 0 for row in opened]

    assert np.mean(inside) >= 0.95 - 4.5 * math.sqrt(0.95 * 0.05 / runs)
    points = [Fraction(place) for place in range(setting.design.values)]
    for row, held in list(zip(opened, inside, strict=True))[:5]:
        found = mean(setting.design, row, points, LEVEL, rounded=True)
        assert (found.low <= truth / step <= found.high) or not held


@pytest.mark.parametrize(
    "setting",
    [
        one
        for one in MEANS
        if isinstance(one.design.noise, GaussianNoise) and one.devices <= 1_000 and one.design.values > 2
    ],
    ids=str,
)
def test_where_noise_rules_an_interval_is_hardly_wider_than_that_of_a_normal(setting: Setting) -> None:
    design, places = setting.design, np.linspace(0, 1, setting.design.values)
    cells = np.full(design.values, setting.devices / design.values)
    step, devices = 1 / (design.values - 1), setting.devices

    half = -Counts(design=design, cells=cells, windows=1).outside(places, step, LEVEL)(0.5)

    # At the estimate T is 0, so that h stands alone. Of two points rounding has a quarter of the variance.
    spread = noise_variance(design, places - 0.5)
    assert 1 <= half / (1.96 * math.sqrt(spread + devices * step**2 / 4)) <= 1.05


def noise_variance(design: Design, weights: Floats) -> float:
    """Return the variance of the noise in a weighted sum of joined cells, by least squares of all opened numbers."""
    rows = np.array(rows_of(design.levels), dtype=np.float64)
    sizes = design.levels.sizes
    each = np.concatenate([np.full(n, 2 * float(law.variance)) for law, n in zip(design.laws, sizes, strict=True)])
    return float(weights @ np.linalg.solve(rows.T @ (rows / each[:, None]), weights))


def test_the_mean_of_bins_and_a_share_are_covered() -> None:
    generator = np.random.default_rng(23)
    edges = [Fraction(place) for place in (0, 10, 20, 35, 50, 90)]
    numbers = generator.random(800) ** 2 * 90
    counts = np.histogram(numbers, [float(one) for one in edges])[0]
    design = plain(5, total=True)
    opened = released(design, np.tile(counts, (RUNS, 1)), generator)

    means = [mean_of_bins(design, row, edges, LEVEL) for row in opened[: RUNS // 80]]
    inside, truth = np.array([0.0, 1.0, 1.0, 0.0, 0.0]), counts[1:3].sum() / 800
    held = [Counts.of(design, row).outside(inside, 0.0, LEVEL)(truth) <= 0 for row in opened]

    # The mean is known up to a bin, so that intervals about both ends of it hold it nearly always.
    assert np.mean([one.low <= numbers.mean() <= one.high for one in means]) == 1
    assert LOWEST <= np.mean(held) <= 0.99
    for row, one in zip(opened[:5], held, strict=False):
        found = share(design, row, {2, 3}, LEVEL)
        assert (found.low <= truth <= found.high) or not one


# Quantiles.

TALL = {"even": 1.0, "low": 4.0}
QUANTILES = [
    (design, devices, power, q)
    for design in (plain(16, total=True), halves(16, 4), halves(64, 6), halves(256, 8), plain(64))
    for devices, power, q in (
        (1_000, "even", Fraction(1, 2)),
        (20_000, "even", Fraction(9, 10)),
        (20_000, "low", Fraction(1, 2)),
        (1_000, "low", Fraction(1, 10)),
    )
]
QUANTILES += [
    (plain(16, GaussianNoise(Fraction(40)), QUARTER), 20_000, "even", Fraction(1, 2)),
    (plain(16, TwoSidedNoise(Fraction(1)), QUARTER), 1_000, "low", Fraction(9, 10)),
    (plain(16, TwoSidedNoise(Fraction(1, 10))), 1_000, "even", Fraction(1, 4)),
]


def named(case: object) -> str:
    return f"{case.noise.name}-V{case.values}-{case.levels.count}" if isinstance(case, Design) else str(case)


@pytest.mark.parametrize(
    ("design", "devices", "power", "q"),
    [
        pytest.param(*one, marks=pytest.mark.nightly) if (one[0].values, one[1]) == (256, 20_000) else one
        for one in QUANTILES
    ],
    ids=named,
)
def test_a_quantile_is_covered(design: Design, devices: int, power: str, q: Fraction) -> None:
    generator = np.random.default_rng(29)
    places = np.floor(generator.random(devices) ** TALL[power] * design.values).astype(np.int64)
    counts = np.bincount(places, minlength=design.values)
    truth = int(np.argmax(np.cumsum(counts) >= q * devices)) + 1
    opened = released(design, np.tile(counts, (RUNS, 1)), generator)

    found = [quantile(design, row, q, LEVEL) for row in opened]

    assert np.mean([one.first <= truth <= one.last for one in found]) >= LOWEST
    assert all(one.first <= one.value <= one.last for one in found)


def test_zooms_whose_shares_fall_make_the_median_of_many_bins_sharp() -> None:
    sigma = math.sqrt(2 * float(SD36.variance))

    falling, even = (
        max(value_test(design, 1, v, Fraction(1, 2), LEVEL, 0).spread for v in range(1, 64)) / sigma
        for design in (halves(64, 6), plain(64, total=True))
    )

    # In cells alone it is sqrt(V)/2 = 4.
    assert falling <= 2.6
    assert 3.9 < even < 4.1
