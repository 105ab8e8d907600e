"""Readings of a release of several zooms: each number by itself, and counts of all zooms that add up and cover."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers import (
    joined_errors,
    joined_levels,
    level_numbers,
    levels_of_grid,
    most_told,
    one_level,
)
from fleetcount_analysis.answers.disclosure import OpenedWindow
from fleetcount_analysis.errors import AnalysisError
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels, neighbouring_sides
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray

from tests.support.nightly import NIGHTLY

LEVEL = Fraction(19, 20)
ZOOMS = Levels(16, (4, 4), (1, 2))
TRUTH = np.arange(16) * 9 + 60
RATE = Fraction(1, 4)
LAWS = {"Gaussian": GaussianNoise(Fraction(40)), "geometric": TwoSidedNoise(Fraction(1, 4))}


def question(noise: NoiseLaw, rate: Fraction = Fraction(1), zooms: Levels | None = ZOOMS) -> Design:
    values = 16 if zooms is None else zooms.values
    answer: AnswerLaw = Truth(values) if rate == 1 else SamplingDie.uniform(rate, values)
    return Design(answer=answer, noise=noise, values=values, aggregators=2, levels=zooms or Levels(16))


def drawn(design: Design, runs: int, seed: int) -> NDArray[np.int64]:
    """Return the opened numbers of releases: binomial counts, their sums, and two noises on each of them."""
    random = np.random.default_rng(seed)
    counted = random.binomial(TRUTH, float(design.channel[0]), (runs, 16))
    sums = np.array([design.levels.all_sums(row) for row in counted.tolist()])
    if isinstance(design.noise, GaussianNoise):
        z = np.arange(-120, 121)
        mass = np.exp(-(z**2) / (2 * float(design.noise.variance)))
        return sums + random.choice(z, (2, *sums.shape), p=mass / mass.sum()).sum(axis=0)
    keep = 1 - np.exp(-float(design.noise.epsilon or 0))
    tossed = random.geometric(keep, (2, 2, *sums.shape))
    return sums + (tossed[0] - tossed[1]).sum(axis=0)


def missed(design: Design, runs: int, *, as_if: Design | None = None, seed: int = 1) -> list[float]:
    """Return how often an interval of consistent counts misses the truth, by zoom."""
    truth = design.levels.all_sums(TRUTH.tolist())
    wrong = [0, 0]
    for row in drawn(design, runs, seed).tolist():
        found = joined_levels(as_if or design, row, LEVEL)
        scale = float(design.channel[0]) if as_if is not None else 1
        for zoom, (low, high) in enumerate(zip(found.low, found.high, strict=True)):
            wanted = np.array(level_numbers(design, truth, zoom))
            wrong[zoom] += int(np.sum((low / scale > wanted) | (high / scale < wanted)))
    return [one / (runs * size) for one, size in zip(wrong, design.levels.sizes, strict=True)]


@pytest.mark.parametrize("zooms", [(4, 4, 2), (8, 4, 3), (6, 10, 2), (32, 16, 4)], ids=str)
def test_analysis_and_mechanisms_agree_which_square_lies_in_which(zooms: tuple[int, int, int]) -> None:
    columns, rows, count = zooms
    levels, pyramid = Levels(columns * rows, (columns, rows), neighbouring_sides(count)), levels_of_grid(*zooms)

    assert pyramid.sizes == levels.sizes[::-1]
    for zoom, parents in enumerate(reversed(pyramid.parents)):
        assert parents.tolist() == list(levels.parents(zoom))


@pytest.mark.parametrize("rate", [RATE, Fraction(1)], ids=str)
@pytest.mark.parametrize(
    "law", [*LAWS.values(), OneSidedNoise(Fraction(1))], ids=["Gaussian", "geometric", "one-sided"]
)
def test_every_number_is_read_like_that_of_its_zoom_alone(law: NoiseLaw, rate: Fraction) -> None:
    if isinstance(law, OneSidedNoise):
        rate = Fraction(1)
    design = question(law, rate)
    opened = drawn(question(LAWS["Gaussian"], rate), 1, 5)[0].tolist()

    together, exact = read(design, opened, LEVEL), exact_estimates(design, opened)

    for zoom in (0, 1):
        alone = read(one_level(design, zoom), level_numbers(design, opened, zoom), LEVEL)
        for name in ("estimates", "standard_errors", "low", "high"):
            assert level_numbers(design, getattr(together, name).tolist(), zoom) == tuple(getattr(alone, name).tolist())
        assert level_numbers(design, exact, zoom) == tuple(
            exact_estimates(one_level(design, zoom), level_numbers(design, opened, zoom))
        )


@pytest.mark.parametrize(
    "laws",
    [
        [GaussianNoise(Fraction(one)) for one in (40, 9, 160)],
        [TwoSidedNoise(Fraction(1, one)) for one in (4, 2, 9)],
        [OneSidedNoise(Fraction(1, one)) for one in (4, 2)],
    ],
    ids=["Gaussian", "geometric", "one-sided"],
)
def test_every_number_is_read_by_the_noise_of_its_level(laws: list[NoiseLaw]) -> None:
    levels = Levels(16, (4, 4), (1, 2), total=len(laws) == 3)
    design = Design(answer=Truth(16), noise=laws[0], values=16, aggregators=2, levels=levels, coarser=tuple(laws[1:]))
    opened = [30] * levels.opened

    together, exact = read(design, opened, LEVEL), exact_estimates(design, opened)

    for number, size in enumerate(levels.sizes):
        alone = one_level(design, number)
        wanted = read(alone, [30] * size, LEVEL)
        for name in ("estimates", "standard_errors", "low", "high"):
            assert level_numbers(design, getattr(together, name).tolist(), number) == tuple(getattr(wanted, name))
        assert level_numbers(design, exact, number) == tuple(exact_estimates(alone, [30] * size))


@pytest.mark.parametrize("rate", [RATE, Fraction(1)], ids=str)
def test_consistent_counts_add_up_and_are_closer_than_the_raw_ones(rate: Fraction) -> None:
    design = question(LAWS["Gaussian"], rate)
    opened = drawn(design, 1, 3)[0].tolist()

    found = joined_levels(design, opened, LEVEL)

    fine, coarse = found.estimates
    assert np.allclose(np.bincount(ZOOMS.parents(0), weights=fine), coarse)
    raw = read(design, opened, LEVEL)
    for zoom in (0, 1):
        errors = level_numbers(design, raw.standard_errors.tolist(), zoom)
        assert np.all(found.standard_errors[zoom] < np.array(errors))
        assert np.all((found.low[zoom] <= found.estimates[zoom]) & (found.estimates[zoom] <= found.high[zoom]))


@pytest.mark.parametrize("name", LAWS)
def test_consistent_intervals_cover_at_every_zoom(name: str) -> None:
    """At 95 %: squares of a zoom miss in more than the room of 300 runs (`make nightly`: 6,000) with a chance of 1e-6.

    The squares of one run hold each other's noise, so a run counts as one and not as sixteen.
    """
    runs, room = (6_000, 0.014) if NIGHTLY else (300, 0.062)
    for rate in (Fraction(1), RATE):
        assert max(missed(question(LAWS[name], rate), runs)) <= 0.05 + room


def test_intervals_that_leave_out_the_coins_or_half_of_the_noise_do_not_cover() -> None:
    weak = question(GaussianNoise(Fraction(10)))
    direct, sampled = question(LAWS["Gaussian"]), question(LAWS["Gaussian"], RATE)

    assert min(missed(direct, 100, as_if=weak)) > 0.15
    assert max(missed(sampled, 100, as_if=question(LAWS["Gaussian"]))) > 0.1


def test_the_errors_of_a_plan_are_those_of_the_reading() -> None:
    design = question(LAWS["geometric"], RATE)

    planned = joined_errors(design)

    found = joined_levels(design, [0] * 20, LEVEL)
    assert planned == pytest.approx([one.max() for one in found.standard_errors])


def test_what_has_no_zooms_to_make_agree_is_refused_by_name() -> None:
    plain, sided = question(LAWS["Gaussian"], zooms=None), question(OneSidedNoise(Fraction(1)))
    with pytest.raises(AnalysisError, match="levels is 1"):
        joined_levels(plain, [0] * 16, LEVEL)
    with pytest.raises(AnalysisError, match="one-sided"):
        joined_levels(sided, [0] * 20, LEVEL)
    with pytest.raises(AnalysisError, match="19 outputs; allowed is 20"):
        joined_levels(question(LAWS["Gaussian"]), [0] * 19, LEVEL)
    with pytest.raises(AnalysisError, match="level is 2"):
        one_level(question(LAWS["Gaussian"]), 2)
    with pytest.raises(AnalysisError, match="zooms is 2"):
        most_told(question(LAWS["Gaussian"]), [OpenedWindow(cells=(0,) * 16)])
    assert one_level(plain, 0) is plain
