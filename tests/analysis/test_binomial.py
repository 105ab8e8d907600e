"""Binomial masses and sums of one-sided noise beside exact fractions, beside SciPy's laws, and at their ends."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from fleetcount_analysis.binomial import binomial_mass
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.one_sided_sums import OneSidedSum


@pytest.mark.parametrize("trials", [1, 2, 15, 16, 40, 300])
@pytest.mark.parametrize("chance", [Fraction(1, 4), Fraction(1, 2), Fraction(1023, 1024), Fraction(1, 1 << 20)])
def test_masses_are_those_of_fractions(trials: int, chance: Fraction) -> None:
    counts = range(trials + 1)
    exact = [float(math.comb(trials, b) * chance**b * (1 - chance) ** (trials - b)) for b in counts]
    computed = binomial_mass(np.array(counts), trials, float(chance))
    seen = np.array(exact) > 1e-290
    assert computed[seen] == pytest.approx(np.array(exact)[seen], rel=2e-13)
    assert np.all(computed[~seen] < 1e-289)


@pytest.mark.parametrize("trials", [10**4, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("chance", [0.001, 0.25, 0.9])
def test_masses_keep_their_digits_for_large_numbers_of_trials(trials: int, chance: float) -> None:
    spread = math.sqrt(trials * chance * (1 - chance))
    counts = np.array([round(trials * chance + k * spread) for k in (-9, -5, -1, -0.01, 0, 0.3, 2, 6, 9)])
    expected = scipy.stats.binom.pmf(counts, trials, chance)
    # A count of 10^12 is a double to 1e-16 of it, an eighth of a thousandth of a standard deviation: 1e-9 of a mass.
    assert binomial_mass(counts, trials, chance) == pytest.approx(expected, rel=1e-12 + 1e-16 * spread)


def test_masses_of_impossible_counts_are_0() -> None:
    assert binomial_mass(np.array([-1, 0, 3, 4]), 3, 0.5).tolist() == [
        0.0,
        pytest.approx(1 / 8),
        pytest.approx(1 / 8),
        0.0,
    ]
    assert binomial_mass(0, 0, 0.5) == 1.0
    triangle = binomial_mass(np.arange(3)[None, :], np.arange(3)[:, None], 0.5)
    assert triangle == pytest.approx(np.array([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 4, 1 / 2, 1 / 4]]), rel=1e-14)


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1, 2), Fraction(3), Fraction(40)])
@pytest.mark.parametrize("terms", [1, 2, 7])
def test_one_sided_sums_are_the_negative_binomial(epsilon: Fraction, terms: int) -> None:
    law, values = OneSidedSum(epsilon=epsilon, terms=terms), np.array([0, 1, 2, 10, 400])
    # SciPy is asked for the chance of a 0, which a double rounds to 1 from epsilon 37 on.
    log_scale = terms * math.log(-math.expm1(-float(epsilon)))
    choices = [math.log(math.comb(int(z) + terms - 1, terms - 1)) for z in values]
    assert law.log_mass(values) == pytest.approx(np.array(choices) + log_scale - float(epsilon) * values, rel=1e-12)
    assert law.log_mass(-1) == -math.inf
    tail = scipy.special.betainc(values[1:], terms, math.exp(-float(epsilon)))
    assert law.upper_tail(values[1:]) == pytest.approx(tail, rel=1e-12)
    assert law.upper_tail(np.array([-3, 0])).tolist() == [1.0, 1.0]
    far = law.reach_beyond(1e-15) + 2
    assert float(np.exp(law.log_mass(np.arange(far))).sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("tail", [0.9, 0.05, 1e-6, 1e-18])
@pytest.mark.parametrize("terms", [1, 3])
def test_the_reach_is_the_least_that_a_tail_is_beyond(tail: float, terms: int) -> None:
    law = OneSidedSum(epsilon=Fraction(1, 7), terms=terms)
    reach = law.reach_beyond(tail)
    assert law.upper_tail(reach + 1) <= tail
    assert reach == 0 or law.upper_tail(reach) > tail
    assert reach == max(0, int(scipy.stats.nbinom.isf(tail, terms, -math.expm1(-1 / 7))))


@pytest.mark.parametrize(("epsilon", "terms"), [(Fraction(0), 1), (Fraction(-1), 1), (Fraction(1), 0)])
def test_a_law_without_noise_is_refused(epsilon: Fraction, terms: int) -> None:
    with pytest.raises(RangeError, match="allowed"):
        OneSidedSum(epsilon=epsilon, terms=terms)


@pytest.mark.parametrize("tail", [0.0, 1.5])
def test_a_reach_beyond_no_tail_is_refused(tail: float) -> None:
    with pytest.raises(RangeError, match="tail probability"):
        OneSidedSum(epsilon=Fraction(1), terms=1).reach_beyond(tail)
