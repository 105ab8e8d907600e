"""The toy constructions behave as the paper says: one cannot be solved, the other's error grows with the fleet."""

from fractions import Fraction

import pytest
from fleetcount_evidence.papers.sampling.toys import SampledTwoCoin, SamplingAndNoise
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.responses import TwoCoin

COINS = TwoCoin(Fraction(4, 5), Fraction(1, 5))


def test_sampling_and_noise_hides_everything_and_tells_nothing() -> None:
    toy = SamplingAndNoise(Fraction(1, 4))

    assert toy.law(0) == toy.law(1)
    assert sum(toy.law(0).values()) == 1


def test_sampled_two_coins_lose_what_the_coins_lose() -> None:
    toy = SampledTwoCoin(Fraction(1, 4), COINS)
    yes, no = toy.law(1), toy.law(0)

    ratios = [max(yes[answer] / no[answer], no[answer] / yes[answer]) for answer in (0, 1, None)]

    assert sum(yes.values()) == sum(no.values()) == 1
    assert yes[1] == Fraction(1, 4) * (Fraction(4, 5) + Fraction(1, 5) * Fraction(1, 5))
    assert max(ratios) == COINS.probability(1, 1) / COINS.probability(1, 0)


def test_sampled_two_coins_are_estimated_worse_the_more_say_no() -> None:
    toy = SampledTwoCoin(Fraction(1, 4), COINS)

    errors = [toy.standard_deviation(100, population) for population in (1000, 10_000, 100_000)]
    assert errors == sorted(errors)
    assert errors[2] > 2 * COINS.standard_deviation(100, 100_000) * 0.99


def test_bad_parameters_are_named() -> None:
    with pytest.raises(MechanismError, match="sampling rate is 0"):
        SamplingAndNoise(Fraction(0))
    with pytest.raises(MechanismError, match="sampling rate is 1"):
        SampledTwoCoin(Fraction(1), COINS)
    with pytest.raises(MechanismError, match=r"a truth must be in 0\.\.1"):
        SamplingAndNoise(Fraction(1, 2)).law(2)
    with pytest.raises(MechanismError, match="count is 5"):
        SampledTwoCoin(Fraction(1, 2), COINS).standard_deviation(5, 4)
