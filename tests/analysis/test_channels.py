"""The laws of a release: the sum of the noises, the sampling, and both together, against brute force."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.channels import NoiseSum, SamplingChannel, noise_sum
from fleetcount_analysis.errors import RangeError, TooLargeError
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


def one_geometric(epsilon: float, reach: int) -> Floats:
    a, z = np.exp(-epsilon), np.arange(-reach, reach + 1)
    return (1 - a) / (1 + a) * a ** np.abs(z)


def convolved(epsilon: float, terms: int, reach: int) -> Floats:
    """Return P[Z = z], z = -terms * reach .. terms * reach, by plain convolution."""
    law = one = one_geometric(epsilon, reach)
    for _ in range(terms - 1):
        law = np.convolve(law, one)
    return law


def release_law(n: int, p: float, epsilon: float, terms: int, reach: int = 1200) -> tuple[int, Floats]:
    """Return the smallest output and P[Y = y | n] by plain convolution."""
    law = np.convolve(stats.binom.pmf(np.arange(n + 1), n, p), convolved(epsilon, terms, reach))
    return -terms * reach, law


@pytest.mark.parametrize("terms", [1, 2, 3, 7])
@pytest.mark.parametrize("epsilon", [Fraction(1, 5), Fraction(1), Fraction(4)])
def test_the_sum_of_noises_has_the_law_of_the_convolution(epsilon: Fraction, terms: int) -> None:
    law = convolved(float(epsilon), terms, 600)
    z = np.arange(-60, 61)

    noise = noise_sum(epsilon, terms)

    middle = len(law) // 2
    np.testing.assert_allclose(np.exp(noise.log_mass(z)), law[middle - 60 : middle + 61], rtol=1e-11, atol=1e-300)
    tails = [law[middle + m :].sum() for m in z]
    np.testing.assert_allclose(noise.upper_tail(z), tails, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_the_variance_of_the_sum_is_that_of_its_law(terms: int) -> None:
    noise = noise_sum(Fraction(3, 2), terms)
    z = np.arange(-200, 201)
    mass = np.exp(noise.log_mass(z))

    variance = float((mass * z**2.0).sum())

    assert noise.variance == pytest.approx(variance, rel=1e-12)


def test_less_than_1e_18_lies_beyond_the_reach() -> None:
    for epsilon, terms in [(Fraction(1, 50), 2), (Fraction(1), 1), (Fraction(2), 40), (Fraction(90), 2)]:
        noise = noise_sum(epsilon, terms)
        beyond = np.arange(noise.reach, noise.reach + 3000)

        assert np.exp(noise.log_mass(beyond)).sum() <= 1e-18


@pytest.mark.parametrize("epsilon", [Fraction(1, 10**6), Fraction(1, 10**5)])
def test_wide_laws_are_interpolated_without_loss(epsilon: Fraction) -> None:
    a, m = np.exp(-float(epsilon)), np.unique(np.geomspace(1, 20 / float(epsilon), 999).astype(np.int64))
    keep, power = -np.expm1(-float(epsilon)), np.exp(-float(epsilon) * m)

    one = noise_sum(epsilon, 1).upper_tail(m)
    two = noise_sum(epsilon, 2).upper_tail(m)

    np.testing.assert_allclose(one, power / (1 + a), rtol=1e-10)
    # P[Z_1 + Z_2 = z] = ((1-a)/(1+a))^2 a^z (z + (1+a^2)/(1-a^2)), summed from m on.
    flat = m + (1 + a**2) / (keep * (1 + a))
    np.testing.assert_allclose(two, power * (keep * flat + a) / (1 + a) ** 2, rtol=1e-10)


def test_hundreds_of_noises_are_summed_by_transform() -> None:
    half = noise_sum(Fraction(1), 150)
    z = np.arange(-half.reach, half.reach + 1)
    law = np.convolve(np.exp(half.log_mass(z)), np.exp(half.log_mass(z)))
    m = np.arange(-80, 81)

    whole = noise_sum(Fraction(1), 300).upper_tail(m)

    np.testing.assert_allclose(whole, [law[2 * half.reach + i :].sum() for i in m], atol=1e-13)


def test_a_law_too_wide_and_too_long_is_refused() -> None:
    with pytest.raises(TooLargeError, match="300 noises"):
        noise_sum(Fraction(1, 10**6), 300).upper_tail(np.array([1]))


def test_no_noise_is_zero_for_certain() -> None:
    for nothing in (noise_sum(None, 2), NoiseSum(epsilon=Fraction(1), terms=0)):
        assert nothing.upper_tail(np.array([-1, 0, 1])).tolist() == [1, 1, 0]
        assert (nothing.variance, nothing.reach) == (0, 0)


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(9, 20), Fraction(1)])
@pytest.mark.parametrize(("epsilon", "terms"), [(Fraction(3, 2), 2), (Fraction(1, 20), 1)])
def test_the_tails_of_a_release_are_those_of_the_convolution(rate: Fraction, epsilon: Fraction, terms: int) -> None:
    channel = SamplingChannel(sampling_rate=rate, noise=noise_sum(epsilon, terms))
    counts, outputs = (grid.ravel() for grid in np.meshgrid(np.arange(0, 61, 6), np.arange(-20, 70, 3)))
    laws = {n: release_law(int(n), float(rate), float(epsilon), terms) for n in np.unique(counts)}

    upper, lower = channel.upper_tail(counts, outputs), channel.lower_tail(counts, outputs)

    for n, y, at_least, at_most in zip(counts, outputs, upper, lower, strict=True):
        smallest, law = laws[n]
        assert at_least == pytest.approx(law[y - smallest :].sum(), abs=1e-12)
        assert at_most == pytest.approx(law[: y - smallest + 1].sum(), abs=1e-12)


def test_the_tails_agree_with_the_normal_law_at_a_thousand_million_devices() -> None:
    channel = SamplingChannel(sampling_rate=Fraction(9, 20), noise=noise_sum(Fraction(3, 2), 2))
    n = np.array([10**9])
    deviation = float(np.sqrt(channel.variance(n.astype(np.float64)))[0])
    y = np.rint(n * 0.45 + np.array([-2, -1, 0, 1, 2]) * deviation).astype(np.int64)

    upper = channel.upper_tail(np.broadcast_to(n, y.shape), y)

    np.testing.assert_allclose(upper, stats.norm.sf((y - 0.5 - n * 0.45) / deviation), rtol=1e-4)


@given(
    st.integers(0, 3000),
    st.integers(-50, 1500),
    st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=100),
    st.fractions(Fraction(1, 20), Fraction(5), max_denominator=20),
)
def test_tails_are_monotone_and_complete(n: int, y: int, rate: Fraction, epsilon: Fraction) -> None:
    channel = SamplingChannel(sampling_rate=rate, noise=noise_sum(epsilon, 2))
    counts, outputs = np.array([n, n + 1, n]), np.array([y, y, y + 1])

    upper, lower = channel.upper_tail(counts, outputs), channel.lower_tail(counts, outputs)

    assert upper[1] >= upper[0] - 1e-13
    assert lower[1] <= lower[0] + 1e-13
    assert lower[0] + upper[2] == pytest.approx(1, abs=1e-12)


def test_the_matrix_holds_the_law_of_every_count() -> None:
    channel = SamplingChannel(sampling_rate=Fraction(1, 4), noise=noise_sum(Fraction(3, 2), 2))

    smallest, matrix = channel.matrix(30)

    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-14)
    for n in (0, 7, 30):
        first, law = release_law(n, 0.25, 1.5, 2)
        np.testing.assert_allclose(matrix[n], law[smallest - first :][: matrix.shape[1]], rtol=1e-10, atol=1e-30)


def test_a_channel_above_memory_is_refused() -> None:
    channel = SamplingChannel(sampling_rate=Fraction(1, 4), noise=noise_sum(Fraction(1), 2))

    with pytest.raises(TooLargeError, match="67108864"):
        channel.matrix(20_000)


def test_parameters_outside_their_range_are_refused_with_value_and_range() -> None:
    noise = noise_sum(Fraction(1), 2)
    with pytest.raises(RangeError, match=r"noise epsilon is 0; allowed is at least 1/1000000"):
        noise_sum(Fraction(0), 2)
    with pytest.raises(RangeError, match="number of noises is -1"):
        noise_sum(Fraction(1), -1)
    for rate in (Fraction(0), Fraction(11, 10)):
        with pytest.raises(RangeError, match=f"sampling rate is {rate}; allowed is above 0 and at most 1"):
            SamplingChannel(sampling_rate=rate, noise=noise)
    with pytest.raises(RangeError, match="tail probability"):
        noise.central_reach(0.5)
