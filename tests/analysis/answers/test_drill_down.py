"""What a walk finds is the exact law of its levels; what it left out is bounded, and the bounds hold all at once."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.drill_down import (
    WalkStep,
    chosen_excess,
    find_chance,
    found_places,
    least_threshold,
    pruned_places,
    smallest_found,
)
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from numpy.typing import NDArray
from scipy import stats

WIDE = np.arange(-600, 601)
CELLS = tuple(range(40, 240))


def design(answer: AnswerLaw | None = None, noise: NoiseLaw | None = None, aggregators: int = 2) -> Design:
    answer = answer or Truth(len(CELLS))
    noise = noise or TwoSidedNoise(Fraction(1, 8))
    return Design(answer=answer, noise=noise, values=answer.values, aggregators=aggregators)


def geometric(epsilon: float) -> NDArray[np.float64]:
    ratio = np.exp(-epsilon)
    return np.asarray((1 - ratio) / (1 + ratio) * ratio ** np.abs(WIDE))


def gaussian(variance: float) -> NDArray[np.float64]:
    mass = np.exp(-(WIDE**2) / (2 * variance))
    return np.asarray(mass / mass.sum())


@pytest.mark.parametrize(
    ("noise", "mass"),
    [(TwoSidedNoise(Fraction(1, 8)), geometric(0.125)), (GaussianNoise(Fraction(267)), gaussian(267))],
)
@pytest.mark.parametrize("rate", [1, Fraction(1, 4)])
@pytest.mark.parametrize("devices", [0, 90, 141])
def test_the_chance_to_find_a_place_is_that_of_all_levels_at_once(
    noise: NoiseLaw, mass: NDArray[np.float64], rate: Fraction, devices: int
) -> None:
    answer = Truth(3968) if rate == 1 else SamplingDie.uniform(rate, 3968)
    both = np.convolve(mass, mass)
    total = np.convolve(both, stats.binom.pmf(np.arange(devices + 1), devices, float(rate)))
    values = np.arange(total.size) - 1200
    once = float(total[values >= float(102 * rate)].sum())

    chance = find_chance(design(answer, noise), 102, 4, devices)

    assert chance == pytest.approx(once**4, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("noise", "mass"),
    [(TwoSidedNoise(Fraction(1, 8)), geometric(0.125)), (GaussianNoise(Fraction(267)), gaussian(267))],
)
@pytest.mark.parametrize("rate", [1, Fraction(1, 4)])
@pytest.mark.parametrize("devices", [60, 102, 400])
def test_a_place_that_was_looked_for_is_too_high_on_average_by_what_is_said(
    noise: NoiseLaw, mass: NDArray[np.float64], rate: Fraction, devices: int
) -> None:
    answer = Truth(3968) if rate == 1 else SamplingDie.uniform(rate, 3968)
    total = np.convolve(np.convolve(mass, mass), stats.binom.pmf(np.arange(devices + 1), devices, float(rate)))
    estimates = (np.arange(total.size) - 1200) / float(rate)
    shown = estimates >= 102

    said = chosen_excess(design(answer, noise), 102, devices)

    assert said == pytest.approx(total[shown] @ estimates[shown] / total[shown].sum() - devices, rel=1e-5, abs=1e-3)
    assert said < 2 if devices == 400 and rate == 1 else said > 0


def test_a_threshold_keeps_empty_cells_out_and_the_smallest_place_is_the_first_that_is_found_so_often() -> None:
    asked = design(Truth(3968))
    threshold = least_threshold(asked, 3968, Fraction(1, 20))
    found = smallest_found(asked, threshold, 4)

    assert 3968 * find_chance(asked, threshold, 1, 0) <= 0.05 < 3968 * find_chance(asked, threshold - 1, 1, 0)
    assert find_chance(asked, threshold, 4, found) >= 0.95 > find_chance(asked, threshold, 4, found - 1)
    assert (threshold, found) == (102, 141)


def test_found_places_are_the_busy_ones_of_the_last_step_with_intervals_of_all_candidates() -> None:
    raw = [0] * len(CELLS)
    raw[3], raw[7], raw[9] = 150, 210, 99
    last = WalkStep(design=design(), level=Fraction(95, 100), bits=32, cells=CELLS, raw=tuple(raw))

    first, second = found_places(last, 100)

    assert (first.cell, first.estimate, second.cell) == (47, 210, 43)
    single = WalkStep(design=design(Truth(1)), level=Fraction(95, 100), bits=32, cells=(47,), raw=(210,))
    alone = found_places(single, 100)[0]
    assert first.low < alone.low < 210 < alone.high < first.high


def test_a_place_whose_estimate_is_the_threshold_is_found_at_every_rate() -> None:
    # 21/(3/17) is 119, and of doubles a little less.
    die = SamplingDie.uniform(Fraction(3, 17), 2)
    last = WalkStep(design=design(die), level=Fraction(19, 20), bits=8, cells=(4, 5), raw=(20, 21))

    assert [one.cell for one in found_places(last, 119)] == [5]


def test_what_was_left_out_is_bounded_and_not_estimated() -> None:
    raw = [5] * len(CELLS)
    raw[0] = 200
    step = WalkStep(design=design(), level=Fraction(95, 100), bits=18, cells=CELLS, raw=tuple(raw))

    left = pruned_places(step, (40,))

    assert [one.cell for one in left] == list(CELLS[1:])
    assert {one.bits for one in left} == {18}
    assert {one.most for one in left} == {5 + step.ends()[1][1] - 5}
    assert 60 < left[0].most < 120
    with pytest.raises(RangeError, match="survivors"):
        pruned_places(step, (39,))


def test_the_bounds_of_one_step_hold_at_once() -> None:
    chance = np.random.default_rng(20)
    truth = chance.integers(0, 60, len(CELLS))
    law = stats.dlaplace(0.125)
    wrong = 0
    for _ in range(200):
        noise = law.rvs((2, len(CELLS)), random_state=chance).sum(axis=0)
        step = WalkStep(
            design=design(), level=Fraction(95, 100), bits=18, cells=CELLS, raw=tuple((truth + noise).tolist())
        )
        bounds = [one.most for one in pruned_places(step, ())]
        wrong += any(count > bound for count, bound in zip(truth.tolist(), bounds, strict=True))

    assert wrong <= 25  # Each time with a chance of at most 1/40: 26 or more of 200 with one below 1e-9.


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: find_chance(design(KaryResponse(Fraction(1, 2), 3)), 5, 4, 3), "direct or sampling"),
        (lambda: find_chance(design(), 5, 0, 3), "levels and devices"),
        (lambda: least_threshold(design(), 0, Fraction(1, 2)), "false places"),
        (lambda: smallest_found(design(), 5, 4, Fraction(1)), "chance"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(RangeError, match=said):
        call()
