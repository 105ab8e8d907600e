"""Tails of sampled sums against brute force, and the search for interval ends."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.noises import NoiseTotal, ScaledNoise, noise_total
from fleetcount_analysis.answers.tails import SumLaw, first_true, tail_of
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import RangeError, TooLargeError
from fleetcount_analysis.gaussian_sums import GaussianSum
from fleetcount_mechanisms.noise import OneSidedNoise
from scipy import stats

NOISES: list[NoiseTotal] = [
    noise_sum(Fraction(1, 2), 2),
    noise_sum(None, 0),
    GaussianSum(parameter=Fraction(9), terms=4),
    GaussianSum(parameter=Fraction(1, 4), terms=1),
]


@pytest.mark.parametrize("noise", NOISES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("steps", [(1, -1), (3, -3), (2, 1)])
def test_tails_are_those_of_the_convolution(noise: NoiseTotal, steps: tuple[int, int]) -> None:
    law = SumLaw(steps=steps, sampling_rate=Fraction(1, 4), noise=noise)
    for counts in ((7, 4), (0, 0), (12, 1)):
        parts = [np.arange(n + 1) for n in counts]
        mass = np.outer(*(stats.binom.pmf(part, n, 0.25) for part, n in zip(parts, counts, strict=True)))
        where = np.add.outer(steps[0] * parts[0], steps[1] * parts[1])
        for y in (-30, -4, 0, 3, 9, 40):
            exact = float(np.sum(mass * noise.upper_tail(y - where)))
            rows, outputs = np.array([counts]), np.array([y])
            assert law.upper_tail(rows, outputs)[0] == pytest.approx(exact, abs=2e-12)
            below = 1 - float(np.sum(mass * noise.upper_tail(y + 1 - where)))
            assert law.lower_tail(rows, outputs)[0] == pytest.approx(below, abs=2e-12)


def test_scaled_noise_is_the_law_of_the_multiple() -> None:
    noise = noise_sum(Fraction(1, 2), 2)
    scaled = ScaledNoise(noise=noise, factor=3)
    z = np.arange(-600, 601)
    mass = np.exp(scaled.log_mass(z))

    assert mass.sum() == pytest.approx(1)
    assert scaled.variance == pytest.approx(float(np.sum(mass * z**2)), rel=1e-9)
    assert np.allclose(scaled.upper_tail(z), np.cumsum(mass[::-1])[::-1], atol=1e-12)
    assert np.allclose(np.exp(scaled.log_characteristic(np.array([0.7]))), np.cos(0.7 * z) @ mass)
    assert scaled.central_reach(0.01) == 3 * noise.central_reach(0.01)


def test_the_first_true_is_found_from_any_guess() -> None:
    wanted = np.array([-7, 0, 3, 1000, 10**9, -(10**9)])

    for guess in (0, -50, 10**6):
        start = np.full(wanted.shape, guess)
        found = first_true(lambda n, rows: n >= wanted[rows], start, np.full(wanted.shape, -(10**12)))
        assert found.tolist() == wanted.tolist()

    assert first_true(lambda n, _: n >= -5, np.array([9]), np.array([0])).tolist() == [0]


@pytest.mark.parametrize("level", [Fraction(0), Fraction(1), 1 - Fraction(1, 10**10)])
def test_levels_that_tails_cannot_hold_are_refused(level: Fraction) -> None:
    with pytest.raises(RangeError, match="confidence level"):
        tail_of(level)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(RangeError, match="one-sided geometric"):
        noise_total(OneSidedNoise(Fraction(1)), 1)
    wide = SumLaw(steps=(1,), sampling_rate=Fraction(1, 2), noise=noise_sum(Fraction(1, 10**6), 2))
    with pytest.raises(TooLargeError):
        wide.upper_tail(np.array([[5]]), np.array([3]))
