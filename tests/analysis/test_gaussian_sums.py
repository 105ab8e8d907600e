"""Sums of discrete Gaussian noises: the laws of convolution, the golden tails, coverage by enumeration."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.channels import SamplingChannel, noise_sum
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.gaussian_sums import GaussianSum
from fleetcount_analysis.intervals import sampling_intervals
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import GaussianNoise
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
SIZES = [
    (Fraction(1, 4), 1),
    (Fraction(1, 4), 5),
    (Fraction(1), 2),
    (Fraction(39, 10), 3),
    (Fraction(4), 2),
    (Fraction(662), 2),
]


def convolved(variance: float, terms: int, reach: int) -> Floats:
    """Return P[Z = z], z = 0 .. reach, term by term."""
    z = np.arange(-40 * int(variance**0.5 + 1), 40 * int(variance**0.5 + 1) + 1)
    one: Floats = np.exp(-(z**2) / (2 * variance))
    law: Floats = np.ones(1)
    for _ in range(terms):
        law = np.convolve(law, one / one.sum())
    return np.asarray(law[law.size // 2 :][: reach + 1])


@pytest.mark.parametrize(("variance", "terms"), SIZES, ids=str)
def test_mass_tails_and_moments_are_those_of_the_convolution(variance: Fraction, terms: int) -> None:
    noise = noise_sum(GaussianNoise(variance), terms)
    reach = noise.reach
    law = convolved(float(variance), terms, 3 * reach)
    z = np.arange(reach + 1)
    tail = np.cumsum(law[::-1])[::-1]

    np.testing.assert_allclose(np.exp(noise.log_mass(z)), law[: reach + 1], rtol=1e-11)
    np.testing.assert_allclose(noise.log_mass(-z), noise.log_mass(z), rtol=0)
    np.testing.assert_allclose(noise.upper_tail(z[1:]), tail[1 : reach + 1], rtol=1e-10)
    np.testing.assert_allclose(noise.upper_tail(-z), 1 - tail[1 : reach + 2], rtol=1e-12)
    assert noise.variance == pytest.approx(2 * float((np.arange(law.size) ** 2 * law).sum()), rel=1e-11)
    assert 2 * tail[reach] <= 2e-18


@pytest.mark.parametrize(("variance", "terms"), SIZES, ids=str)
def test_the_characteristic_function_is_that_of_the_law(variance: Fraction, terms: int) -> None:
    noise = GaussianSum(parameter=variance, terms=terms)
    law = convolved(float(variance), terms, 3 * noise.reach)
    angles = np.array([0.0, 1e-3, 0.1, 1.0, 2.5, np.pi])
    direct = law[0] + 2 * np.cos(np.outer(angles, np.arange(1, law.size))) @ law[1:]

    np.testing.assert_allclose(np.exp(noise.log_characteristic(angles)), direct, atol=1e-14)


def test_the_golden_tails() -> None:
    for variance, h, tail in ((Fraction(1), 3, 0.0114959885376090), (Fraction(1, 4), 1, 0.0236062684968474)):
        noise = noise_sum(GaussianNoise(variance), 2)
        assert 2 * float(noise.upper_tail(np.array([h + 1]))[0]) == pytest.approx(tail, abs=1e-15)


def test_a_law_too_wide_for_a_table_is_summed_alike() -> None:
    noise = GaussianSum(parameter=Fraction(10**6), terms=1)
    m = np.array([-4000, -1, 0, 1, 2, 500, 3000, 8000])

    np.testing.assert_allclose(noise._far_tail(m), noise.upper_tail(m), rtol=1e-11)
    wide = GaussianSum(parameter=Fraction(10**8), terms=20_000)
    assert wide.upper_tail(np.array([0, 10**6]))[1] == pytest.approx(stats.norm.sf((10**6 - 0.5) / 2e12**0.5), rel=1e-9)


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 2), Fraction(1, 4)], ids=str)
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(9), Fraction(100)], ids=str)
def test_intervals_cover_at_least_their_level_and_are_not_much_too_wide(rate: Fraction, variance: Fraction) -> None:
    """Every count 0 .. 50 with the exact law of its output: no draw, no chance of a false alarm."""
    smallest, law = SamplingChannel(sampling_rate=rate, noise=noise_sum(GaussianNoise(variance), 2)).matrix(50)
    outputs = np.arange(smallest, smallest + law.shape[1])
    ends = np.array(sampling_intervals(outputs.tolist(), rate, GaussianNoise(variance), 2, Fraction(95, 100)))
    n = np.arange(51)[:, None]
    covered = (law * ((ends[:, 0] <= n) & (n <= ends[:, 1]))).sum(axis=1)

    assert covered.min() >= 0.95 - 1e-12
    assert covered[20:].max() < 0.9996


def test_no_noise_and_refusals() -> None:
    nothing = GaussianSum(parameter=Fraction(1), terms=0)
    assert nothing.upper_tail(np.array([-1, 0, 1])).tolist() == [1, 1, 0]
    assert nothing.log_mass(np.array([0, 1])).tolist() == [0, -np.inf]
    with pytest.raises(RangeError, match="number of noises"):
        GaussianSum(parameter=Fraction(1), terms=-1)
    with pytest.raises(MechanismError, match="noise variance is 0"):
        GaussianSum(parameter=Fraction(0), terms=1)
    with pytest.raises(RangeError, match="tail probability"):
        GaussianSum(parameter=Fraction(1), terms=1).central_reach(0.5)


def test_the_characteristic_function_repeats_every_turn() -> None:
    law, angles = GaussianSum(parameter=Fraction(1), terms=2), np.linspace(-3, 3, 7)

    for turns in (1, -7, 40):
        assert np.allclose(law.log_characteristic(angles + 2 * np.pi * turns), law.log_characteristic(angles))
