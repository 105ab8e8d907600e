"""Intervals: golden ends, brute-force inversion, every mode, every refusal."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis.channels import SamplingChannel, noise_sum
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.intervals import (
    direct_intervals,
    one_sided_intervals,
    response_intervals,
    sampling_intervals,
    simultaneous_level,
    sum_interval,
    unary_ends,
)
from fleetcount_mechanisms.asymmetric import noisy_sum_law, ratio_above
from fleetcount_mechanisms.responses import KaryResponse, Mangat, TwoCoin, Warner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.support.nightly import NIGHTLY

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["hardened.ci95"]
LEVEL = Fraction(19, 20)
RATE = Fraction(1, 4)
NOISE = Fraction(3, 2)
WIDE = pytest.param(Fraction(1, 10), marks=pytest.mark.nightly)


def unary_intervals(
    bits: list[int], participants: int, hit: Fraction, miss: Fraction, noise: Fraction | None, level: Fraction = LEVEL
) -> list[tuple[int, int]]:
    low, high = unary_ends(np.array(bits), np.array([participants]), hit, miss, noise, 2, level)
    return list(zip(low.tolist(), high.tolist(), strict=True))


@pytest.mark.parametrize("row", GOLDEN)
def test_intervals_match_the_golden_numbers(row: dict) -> None:
    rate, noise = Fraction(str(row["pis"])), Fraction(str(row["e1"]))

    assert sampling_intervals([row["y"]], rate, noise, row["k"], LEVEL) == [(row["lo"], row["hi"])]


@settings(max_examples=200 if NIGHTLY else 20, deadline=None)
@given(
    st.integers(-15, 120),
    st.fractions(Fraction(1, 10), Fraction(9, 10), max_denominator=20),
    st.fractions(Fraction(1, 4), Fraction(4), max_denominator=8),
    st.integers(1, 4),
    st.sampled_from([Fraction(1, 2), LEVEL, Fraction(999, 1000)]),
)
def test_the_interval_holds_the_counts_that_pass_both_tests_and_no_other(
    y: int, rate: Fraction, noise: Fraction, aggregators: int, level: Fraction
) -> None:
    channel = SamplingChannel(sampling_rate=rate, noise=noise_sum(noise, aggregators))
    # No estimate is above 1,200, and no noise drawn here adds as much again.
    counts, tail = np.arange(2500), float((1 - level) / 2)
    outputs = np.full(counts.size, y)
    passed = (channel.upper_tail(counts, outputs) > tail) & (channel.lower_tail(counts, outputs) > tail)

    [(low, high)] = sampling_intervals([y], rate, noise, aggregators, level)

    if passed.any():
        assert (low, high) == (np.flatnonzero(passed)[0], np.flatnonzero(passed)[-1])
    else:
        assert (low, high) == (0, 0)


def test_an_exact_release_is_inverted_as_a_binomial() -> None:
    [(low, high)] = sampling_intervals([30], RATE, None, 2, LEVEL)

    assert stats.binom.sf(29, low, 0.25) > 0.025 >= stats.binom.sf(29, low - 1, 0.25)
    assert stats.binom.cdf(30, high, 0.25) > 0.025 >= stats.binom.cdf(30, high + 1, 0.25)


def test_equal_outputs_have_equal_intervals_in_the_order_given() -> None:
    outputs = [40, 7, 40, -3, 7]

    intervals = sampling_intervals(outputs, RATE, NOISE, 2, LEVEL)

    assert intervals[0] == intervals[2]
    assert intervals[1] == intervals[4]
    assert intervals == [sampling_intervals([y], RATE, NOISE, 2, LEVEL)[0] for y in outputs]
    assert all(type(end) is int for interval in intervals for end in interval)
    assert sampling_intervals([], RATE, NOISE, 2, LEVEL) == []


def test_a_thousand_million_devices_are_inverted_exactly() -> None:
    channel = SamplingChannel(sampling_rate=Fraction(9, 20), noise=noise_sum(NOISE, 2))
    y = 450_000_000

    [(low, high)] = sampling_intervals([y], Fraction(9, 20), NOISE, 2, LEVEL)

    ends = np.array([low - 1, low])
    assert (channel.upper_tail(ends, np.full(2, y)) > 0.025).tolist() == [False, True]
    ends = np.array([high, high + 1])
    assert (channel.lower_tail(ends, np.full(2, y)) > 0.025).tolist() == [True, False]


def test_noise_that_drowns_the_count_is_inverted_too() -> None:
    [(low, high)] = sampling_intervals([1000], RATE, Fraction(1, 10**6), 200, LEVEL)

    # 200 Laplace-like noises of scale 10^6 are nearly normal with standard deviation 2 * 10^7.
    assert low == 0
    assert high == pytest.approx(1.96 * 2e7 / 0.25, rel=0.01)


def test_an_impossible_output_gives_the_nearest_count() -> None:
    assert sampling_intervals([-500, 10**6], RATE, NOISE, 2, LEVEL, upper_limit=1000) == [(0, 0), (1000, 1000)]


def test_a_direct_release_is_its_noise_quantile_on_both_sides() -> None:
    reach = noise_sum(NOISE, 2).central_reach(0.025)
    tails = noise_sum(NOISE, 2).upper_tail(np.array([reach, reach + 1]))

    assert tails[0] > 0.025 >= tails[1]
    assert direct_intervals([50, 1], NOISE, 2, LEVEL) == [(50 - reach, 50 + reach), (0, 1 + reach)]
    assert direct_intervals([50], None, 2, LEVEL) == [(50, 50)]


def test_the_sum_of_cells_is_narrower_than_the_sum_of_the_intervals() -> None:
    cells = [40, 55, 12, 90]
    each = sampling_intervals(cells, RATE, NOISE, 2, LEVEL)

    low, high = sum_interval(cells, RATE, NOISE, 2, LEVEL)

    assert sum(one for one, _ in each) < low < 4 * sum(cells) < high < sum(one for _, one in each)
    assert sum_interval([40], RATE, NOISE, 2, LEVEL) == each[0]
    # Four cells of two noises each carry as many noises as one cell of eight aggregators.
    assert [(low, high)] == sampling_intervals([sum(cells)], RATE, NOISE, 8, LEVEL)


def test_simultaneous_intervals_share_the_error() -> None:
    assert simultaneous_level(LEVEL, 100) == Fraction(1999, 2000)
    assert simultaneous_level(LEVEL, 1) == LEVEL


@pytest.mark.parametrize(
    ("response", "outputs"),
    [
        (Mangat(Fraction(1, 3)), [600, 400]),
        (Warner(Fraction(3, 4)), [600, 400]),
        (TwoCoin(Fraction(4, 5), Fraction(1, 5)), [600, 400]),
        (KaryResponse(Fraction(1, 2), 4), [400, 200, 150, 150, 100]),
    ],
)
def test_the_exact_and_the_score_interval_of_a_response_agree(response: Mangat, outputs: list[int]) -> None:
    exact = response_intervals(outputs, response, None, 2, LEVEL)
    # So little noise that nothing changes, but the score form is taken.
    score = response_intervals(outputs, response, Fraction(40), 2, LEVEL)

    assert np.max(np.abs(np.array(exact) - np.array(score))) <= 2


# At z = sqrt(3) the correction for kurtosis vanishes.
PLAIN_LEVEL = Fraction(2 * stats.norm.cdf(np.sqrt(3)) - 1)


def test_noise_on_all_outputs_widens_a_response_by_its_formula() -> None:
    response, epsilon = KaryResponse(Fraction(3, 10), 4), Fraction(1, 100)
    hit, miss, participants, count = 0.3, 0.175, 100_000, 10_000
    others = (participants - participants * miss - count * (hit - miss)) / 4
    outputs = [others, participants * miss + count * (hit - miss), others, others, others]
    noise = noise_sum(epsilon, 2).variance * ((1 - miss) ** 2 + 4 * miss**2)
    variance = count * hit * (1 - hit) + (participants - count) * miss * (1 - miss) + noise

    low, high = response_intervals([round(output) for output in outputs], response, epsilon, 2, PLAIN_LEVEL)[0]

    assert noise > variance / 2
    assert high - low == pytest.approx(2 * np.sqrt(3 * variance) / (hit - miss), rel=0.005)


def test_noise_on_bits_and_on_the_number_of_devices_widens_them_by_its_formula() -> None:
    miss, epsilon, participants, count = 0.5, Fraction(1, 100), 100_000, 10_000
    noise = noise_sum(epsilon, 2).variance * (1 + miss**2)
    variance = (participants - count) * miss * (1 - miss) + noise

    [(low, high)] = unary_intervals([55_000], participants, Fraction(1), Fraction(1, 2), epsilon, PLAIN_LEVEL)

    assert high - low == pytest.approx(2 * np.sqrt(3 * variance) / (1 - miss), rel=0.005)


def test_nobody_answering_is_no_error() -> None:
    assert response_intervals([0, 0], Warner(Fraction(3, 4)), None, 2, LEVEL) == [(0, 0)]
    assert response_intervals([-3, 1], Warner(Fraction(3, 4)), Fraction(1), 2, LEVEL)[0][0] == 0


def test_bits_are_inverted_against_the_noised_number_of_devices() -> None:
    exact = unary_intervals([400, 300], 1000, Fraction(1), Fraction(1, 3), None)
    mangat = response_intervals([600, 400], Mangat(Fraction(1, 3)), None, 2, LEVEL)

    assert exact[0] == mangat[0]
    noised = unary_intervals([400], 1000, Fraction(1), Fraction(1, 3), Fraction(1, 20))[0]
    assert noised[0] < exact[0][0]
    assert exact[0][1] < noised[1]


@pytest.mark.parametrize("aggregators", [2, 5])
@pytest.mark.parametrize("epsilon", [Fraction(1, 4), Fraction(1, 2), Fraction(10), WIDE])
def test_a_one_sided_interval_reaches_exactly_as_far_as_its_level(epsilon: Fraction, aggregators: int) -> None:
    """A level next to 1 has no digits left as a float; the tail has."""
    for tail in (1 - Fraction(1, 2**62), Fraction(1, 20), Fraction(1, 10**12), Fraction(1, 2**62)):
        [(low, high)] = one_sided_intervals([10**9], epsilon, aggregators, 1 - tail)

        reach = high - low
        assert high == 10**9
        assert 1 - noisy_sum_law(ratio_above(epsilon), reach, aggregators) <= tail
        assert reach == 0 or 1 - noisy_sum_law(ratio_above(epsilon), reach - 1, aggregators) > tail


def test_a_one_sided_interval_ends_at_the_output() -> None:
    q = np.exp(-1)
    [(low, high)] = one_sided_intervals([20], Fraction(1), 2, LEVEL)

    assert high == 20
    below = 1 - (20 - low + 2) * q ** (20 - low + 1) + (20 - low + 1) * q ** (20 - low + 2)
    assert below >= 0.95
    assert one_sided_intervals([1, -4], Fraction(1), 2, LEVEL) == [(0, 1), (0, 0)]


@pytest.mark.parametrize("level", [Fraction(0), Fraction(1), Fraction(-1, 2)])
def test_a_level_outside_zero_and_one_is_refused(level: Fraction) -> None:
    with pytest.raises(RangeError, match=f"confidence level is {level}; allowed is above 0 and below 1"):
        sampling_intervals([1], RATE, NOISE, 2, level)


def test_other_arguments_outside_their_range_are_refused() -> None:
    with pytest.raises(RangeError, match="number of aggregators is 0; allowed is 1 to 255"):
        sampling_intervals([1], RATE, NOISE, 0, LEVEL)
    with pytest.raises(RangeError, match="output is 1000000000001"):
        sampling_intervals([10**12 + 1], RATE, NOISE, 2, LEVEL)
    with pytest.raises(RangeError, match="estimate"):
        sampling_intervals([10**12], Fraction(1, 10**6), NOISE, 2, LEVEL)
    with pytest.raises(RangeError, match="upper limit is -1"):
        sampling_intervals([1], RATE, NOISE, 2, LEVEL, upper_limit=-1)
    with pytest.raises(RangeError, match="number of cells is 0"):
        simultaneous_level(LEVEL, 0)
    with pytest.raises(ShapeError, match="0 cells"):
        sum_interval([], RATE, NOISE, 2, LEVEL)
    with pytest.raises(ShapeError, match=r"3 outputs; allowed is V\+1 = 2"):
        response_intervals([1, 2, 3], Mangat(Fraction(1, 3)), None, 2, LEVEL)
    with pytest.raises(RangeError, match="0 <= Q < P <= 1"):
        unary_intervals([1], 3, Fraction(1, 3), Fraction(1, 3), None)
    with pytest.raises(RangeError, match="epsilon is 0; allowed is above 0"):
        one_sided_intervals([1], Fraction(0), 2, LEVEL)
