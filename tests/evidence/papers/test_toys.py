"""The toy constructions behave as the paper says: one cannot be solved, the other's error grows with the fleet."""

from collections import Counter
from fractions import Fraction

import pytest
from fleetcount_evidence.papers.sampling.toys import SampledTwoCoin, SamplingAndNoise
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.responses import TwoCoin
from scipy import stats

COINS = TwoCoin(Fraction(4, 5), Fraction(1, 5))


def test_sampling_and_noise_hides_everything_and_tells_nothing() -> None:
    toy = SamplingAndNoise(Fraction(1, 4))

    assert toy.law(0) == toy.law(1)
    assert sum(toy.law(0).values()) == 1
    assert toy.expected_sum(10, 90) == toy.expected_sum(90, 10) == 25
    with pytest.raises(MechanismError, match="two unknowns"):
        toy.estimate(25)


def test_sampled_two_coins_lose_what_the_coins_lose() -> None:
    toy = SampledTwoCoin(Fraction(1, 4), COINS)
    yes, no = toy.law(1), toy.law(0)

    ratios = [max(yes[answer] / no[answer], no[answer] / yes[answer]) for answer in (0, 1, None)]

    assert sum(yes.values()) == sum(no.values()) == 1
    assert yes[1] == Fraction(1, 4) * (Fraction(4, 5) + Fraction(1, 5) * Fraction(1, 5))
    assert max(ratios) == COINS.probability(1, 1) / COINS.probability(1, 0)
    assert toy.epsilon == COINS.epsilon


def test_sampled_two_coins_are_estimated_without_bias_and_worse_the_more_say_no() -> None:
    toy = SampledTwoCoin(Fraction(1, 4), COINS)
    expected = 200 * toy.law(1)[1] + 800 * toy.law(0)[1]

    assert expected == 50
    assert toy.estimate(int(expected), 1000) == 200
    errors = [toy.standard_deviation(100, population) for population in (1000, 10_000, 100_000)]
    assert errors == sorted(errors)
    assert errors[2] > 2 * COINS.standard_deviation(100, 100_000) * 0.99


@pytest.mark.parametrize(
    "toy",
    [SamplingAndNoise(Fraction(1, 4)), SampledTwoCoin(Fraction(1, 4), COINS)],
    ids=lambda toy: type(toy).__name__,
)
@pytest.mark.parametrize("truth", [0, 1])
def test_answers_follow_the_law_and_not_that_of_1_3_times_the_rate(
    toy: SamplingAndNoise | SampledTwoCoin, truth: int
) -> None:
    source = SystemRandom()

    found = Counter(toy.randomize(truth, source) for _ in range(30_000))

    law = {answer: float(chance) for answer, chance in toy.law(truth).items() if chance}
    bent = {answer: 1 - (1 - law[None]) * 1.3 if answer is None else chance * 1.3 for answer, chance in law.items()}
    counts = [found[answer] for answer in law]
    assert set(found) <= set(law)
    assert stats.chisquare(counts, [30_000 * chance for chance in law.values()]).pvalue > 1e-20
    assert stats.chisquare(counts, [30_000 * chance for chance in bent.values()]).pvalue < 1e-20


def test_bad_parameters_are_named() -> None:
    with pytest.raises(MechanismError, match="sampling rate is 0"):
        SamplingAndNoise(Fraction(0))
    with pytest.raises(MechanismError, match="sampling rate is 1"):
        SampledTwoCoin(Fraction(1), COINS)
    with pytest.raises(MechanismError, match=r"a truth must be in 0\.\.1"):
        SamplingAndNoise(Fraction(1, 2)).randomize(2, SystemRandom())
    with pytest.raises(MechanismError, match="count is 5"):
        SampledTwoCoin(Fraction(1, 2), COINS).standard_deviation(5, 4)
