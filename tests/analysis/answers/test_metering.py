"""The meter's posterior is Bayes' rule of its stated model: by brute force, and by the frequency in a simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.metering import RatioAnswer, meter, smallest_telling_group
from fleetcount_analysis.channels import noise_sum
from fleetcount_analysis.errors import AnalysisError
from fleetcount_analysis.inference import ratio_moments
from fleetcount_mechanisms.noise import NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import SeededRandom

from tests.support.geometric_noise import geometric_noise
from tests.support.nightly import NIGHTLY

NOISE = TwoSidedNoise(Fraction(1, 2))
HALF = Fraction(1, 2)


def test_the_posterior_is_bayes_rule() -> None:
    law = noise_sum(Fraction(1, 2), 2)
    total = wanted = 0.0
    # Prior 1/2 with the weight of two devices: every share, so every y of 0..x, is equally likely.
    for x in range(1, 120):
        for y in range(x + 1):
            one = float(np.exp(law.log_mass(np.array([20 - x])) + law.log_mass(np.array([15 - y])))[0]) / (x + 1)
            total, wanted = total + one, wanted + one * y / x

    found = meter(HALF, [RatioAnswer(group=20, sensitive=15)], NOISE, 2, largest=Fraction(9, 10))

    assert found.posterior == pytest.approx(wanted / total, abs=1e-8)
    assert found.low < found.posterior < found.high
    assert found.allowed
    mean, variance = ratio_moments(20, 15, math.sqrt(law.variance / 2))
    assert (found.ratio_mean, found.ratio_sd) == (mean, math.sqrt(variance))


@pytest.mark.parametrize(
    ("prior", "largest", "calibrated"), [(HALF, Fraction(4, 5), True), (Fraction(1, 9), HALF, False)]
)
def test_among_simulated_people_the_posterior_is_the_frequency(
    prior: Fraction, largest: Fraction, calibrated: bool
) -> None:
    runs, generator = 3000 if NIGHTLY else 800, np.random.default_rng(1)
    noise = geometric_noise(NOISE.epsilon, 4 * runs, SeededRandom(1)).reshape(2, 2, runs).sum(axis=0)
    group, share = generator.integers(1, 61, runs), generator.beta(1, 1, runs)
    sensitive = generator.binomial(group, share)
    has = generator.random(runs) < sensitive / group

    posteriors = np.array([
        meter(prior, [RatioAnswer(group=int(a), sensitive=int(b))], NOISE, 2, largest=largest).posterior
        for a, b in zip(group + noise[0], sensitive + noise[1], strict=True)
    ])  # fmt: skip

    # The sum of has - posterior has a variance below runs/4: five standard deviations. A wrong prior is far outside.
    assert (abs(float(np.sum(has - posteriors))) < 5 * math.sqrt(runs / 4)) == calibrated


def test_large_groups_are_inferred_whatever_the_noise_and_small_ones_are_not() -> None:
    large = meter(
        HALF, [RatioAnswer(group=10_000, sensitive=9_500)], TwoSidedNoise(Fraction(1, 10)), 2, largest=Fraction(9, 10)
    )
    small = meter(HALF, [RatioAnswer(group=4, sensitive=4)], TwoSidedNoise(Fraction(1, 10)), 2, largest=Fraction(9, 10))

    assert large.posterior == pytest.approx(0.95, abs=0.01)
    assert not large.allowed
    assert small.allowed
    assert small.posterior < 0.7


def test_more_answers_about_the_same_counts_teach_more() -> None:
    one = RatioAnswer(group=15, sensitive=14)
    found = [meter(HALF, [one] * times, NOISE, 2, largest=Fraction(9, 10)) for times in (1, 4, 16)]

    assert found[0].posterior < found[1].posterior < found[2].posterior
    assert found[2].high - found[2].low < found[0].high - found[0].low
    added = meter(HALF, [RatioAnswer(group=60, sensitive=56, terms=4)], NOISE, 2, largest=Fraction(9, 10))
    assert found[0].posterior < added.posterior


def test_the_smallest_group_that_is_told_passes_the_limit_and_the_next_smaller_does_not() -> None:
    share, largest = Fraction(19, 20), Fraction(9, 10)
    size = smallest_telling_group(HALF, share, NOISE, 2, largest=largest)

    assert size is not None
    told = [
        meter(HALF, [RatioAnswer(group=n, sensitive=math.ceil(share * n))], NOISE, 2, largest=largest).allowed
        for n in (size - 1, size)
    ]
    assert told == [True, False]
    assert smallest_telling_group(HALF, Fraction(1, 5), NoNoise(), 2, largest=largest) == 1
    assert smallest_telling_group(HALF, Fraction(1, 5), NOISE, 2, largest=largest) is None
    wider = smallest_telling_group(HALF, share, TwoSidedNoise(Fraction(1, 10)), 2, largest=largest)
    assert wider is not None
    assert wider > size


def test_an_empty_group_teaches_little() -> None:
    found = meter(Fraction(1, 10), [RatioAnswer(group=-50, sensitive=0)], NOISE, 2, largest=HALF)

    assert found.posterior < 0.3
    assert found.ratio_mean is None


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"prior": Fraction(0)}, "prior is 0"),
        ({"largest": Fraction(1)}, "largest posterior is 1"),
        ({"answers": []}, "0 answers"),
        ({"weight": 0}, "weight is 0"),
        ({"aggregators": 0}, "aggregators is 0"),
        ({"noise": OneSidedNoise(Fraction(1))}, "one-sided"),
        ({"noise": TwoSidedNoise(Fraction(1, 10_000))}, "possible pairs"),
        ({"answers": [RatioAnswer(group=10**13, sensitive=0)]}, "in size"),
        ({"answers": [RatioAnswer(group=1, sensitive=1, terms=0)]}, "terms is 0"),
        ({"answers": [RatioAnswer(group=5, sensitive=900)], "noise": NoNoise()}, "not of one pair"),
    ],
)
def test_bad_questions_are_refused(ask: dict, words: str) -> None:
    asked = {
        "prior": HALF, "answers": [RatioAnswer(group=9, sensitive=3)], "noise": NOISE, "aggregators": 2,
        "largest": Fraction(9, 10),
    } | ask  # fmt: skip
    with pytest.raises(AnalysisError, match=words):
        meter(asked.pop("prior"), asked.pop("answers"), asked.pop("noise"), asked.pop("aggregators"), **asked)


def test_a_share_outside_its_range_is_refused() -> None:
    with pytest.raises(AnalysisError, match="share is 0"):
        smallest_telling_group(HALF, Fraction(0), NOISE, 2, largest=Fraction(9, 10))
