"""The sum of discrete Gaussian noises that engines draw: the law of the mechanisms, by a chi-square test."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_simulator.engines.noise_sums import summed_noise
from scipy import stats

from tests.simulator.engines.test_engines_agree import ALPHA

DRAWS = 200_000


def sum_law(variance: Fraction, terms: int) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return (smallest value, chances) of the sum of so many N_Z(0, s), by convolution."""
    reach = int(12 * float(variance) ** 0.5) + 3
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(variance)))
    law = one / one.sum()
    for _ in range(terms - 1):
        law = np.convolve(law, one / one.sum())
    return -reach * terms, law


def p_value(variance: Fraction, terms: int, drawn: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    start, law = sum_law(variance, terms)
    seen = np.bincount(drawn - start, minlength=law.size)
    common = law * DRAWS >= 5
    observed = np.append(seen[common], seen[~common].sum())
    expected = np.append(law[common], law[~common].sum()) * DRAWS
    return float(stats.chisquare(observed, expected * DRAWS / expected.sum()).pvalue)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9), Fraction(6603, 10)])
@pytest.mark.parametrize("terms", [1, 2, 5])
def test_gaussian_noises_add_up_to_their_law(variance: Fraction, terms: int) -> None:
    drawn = summed_noise(GaussianNoise(variance), terms, DRAWS, np.random.default_rng(7))

    assert p_value(variance, terms, drawn) > ALPHA
    assert p_value(variance * Fraction(21, 20), terms, drawn) < ALPHA
