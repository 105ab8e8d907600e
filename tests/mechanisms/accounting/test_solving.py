"""The weakest noise for a promise: the tables of docs/privacy.md, and what cannot be met."""

import re
from collections import Counter
from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting.question_losses import question_losses, units_loss
from fleetcount_mechanisms.accounting.solving import noise_for_promise, sd_of_cell
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.renyi import gaussian_rho, zcdp_epsilon
from fleetcount_mechanisms.sampling import SamplingDie

DELTA = Fraction(1, 10**9)
DAYS = (24,) * 30
HOURLY = ScheduleShape(units=(1,) * 720, days=DAYS)
DAILY = ScheduleShape(units=DAYS, days=DAYS)
WHOLE = ScheduleShape(units=(720,), days=DAYS)


def design(answer: AnswerLaw, noise: GaussianNoise | TwoSidedNoise) -> Design:
    return Design(answer=answer, noise=noise, values=answer.values, aggregators=2)


def die(rate: str) -> SamplingDie:
    return SamplingDie.uniform(Fraction(rate), 5, allow_large_rate=True)


@pytest.mark.parametrize(
    ("answer", "shape", "sd", "cell"),
    [
        (Truth(5), HOURLY, "25.692", 36.34),
        (die("1/2"), HOURLY, "12.901", 36.49),
        (die("1/2"), DAILY, "13.840", 39.15),
        (die("1/4"), DAILY, "8.139", 46.04),
        (die("1/4"), WHOLE, "19.588", 110.81),
    ],
    ids=["direct", "half-hourly", "half-daily", "quarter-daily", "quarter-whole"],
)
def test_a_month_of_hourly_maps_needs_the_noise_of_the_table(
    answer: AnswerLaw, shape: ScheduleShape, sd: str, cell: float
) -> None:
    noise = noise_for_promise(answer, shape, Fraction(10), DELTA)

    assert noise == GaussianNoise(Fraction(sd) ** 2)
    weaker = GaussianNoise((Fraction(sd) - Fraction(1, 1000)) ** 2)
    assert units_loss(design(answer, noise), Counter(shape.units), DELTA) <= 10
    assert units_loss(design(answer, weaker), Counter(shape.units), DELTA) > Fraction(999999, 100000)
    assert sd_of_cell(design(answer, noise)) == pytest.approx(cell, abs=0.01)


def test_geometric_noise_is_rounded_to_the_strong_side() -> None:
    noise = noise_for_promise(Truth(5), HOURLY, Fraction(10), DELTA, TwoSidedNoise)

    assert noise == TwoSidedNoise(Fraction(40632, 10**6))
    assert sd_of_cell(design(Truth(5), noise)) == pytest.approx(49.22, abs=0.01)
    weaker = TwoSidedNoise(Fraction(40633, 10**6))
    assert units_loss(design(Truth(5), weaker), Counter(HOURLY.units), DELTA) > Fraction(999999, 100000)


def test_one_sided_noise_of_a_question_has_its_share_of_the_pure_sum_and_no_more() -> None:
    noise = noise_for_promise(Truth(5), HOURLY, Fraction(10), DELTA, OneSidedNoise)

    assert noise == OneSidedNoise(Fraction(13_888, 10**6))
    lost = question_losses(Design(answer=Truth(5), noise=noise, values=5, aggregators=2), HOURLY, DELTA)
    assert lost.whole_question == pytest.approx(720 * 13_888e-6, abs=2e-9)
    with pytest.raises(MechanismError, match="one-sided noise is on answers by"):
        noise_for_promise(die("1/4"), HOURLY, Fraction(10), DELTA, OneSidedNoise)


def test_no_noise_weaker_than_the_laws_allow() -> None:
    once = ScheduleShape(units=(1,), days=(1,))

    assert noise_for_promise(Truth(1), once, Fraction(600), DELTA) == GaussianNoise(Fraction(1, 4))
    assert noise_for_promise(Truth(1), once, Fraction(600), DELTA, TwoSidedNoise) == TwoSidedNoise(Fraction(10))


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1, 100_000)])
def test_a_promise_that_cannot_be_met_says_what_would_do(epsilon: Fraction) -> None:
    with pytest.raises(InfeasibleTargetError, match=r"noise of a standard deviation of \d+, allowed") as refused:
        noise_for_promise(Truth(5), HOURLY, epsilon, DELTA)

    needed = int(re.findall(r"deviation of (\d+)", str(refused.value))[0])
    assert zcdp_epsilon(gaussian_rho(2, 720, Fraction(needed**2)), DELTA) <= epsilon
    assert zcdp_epsilon(gaussian_rho(2, 720, Fraction((needed // 2) ** 2)), DELTA) > epsilon


def test_geometric_noise_that_would_be_too_strong_says_how_strong() -> None:
    with pytest.raises(InfeasibleTargetError, match=r"standard deviation of \d+, allowed: at most 10000"):
        noise_for_promise(Truth(5), HOURLY, Fraction(1, 100), Fraction(1, 10**30), TwoSidedNoise)


def test_wrong_promises_are_refused() -> None:
    with pytest.raises(MechanismError, match="epsilon is 0"):
        noise_for_promise(Truth(5), HOURLY, Fraction(0), DELTA)
    with pytest.raises(MechanismError, match="delta is 1"):
        noise_for_promise(Truth(5), HOURLY, Fraction(1), Fraction(1))
    with pytest.raises(MechanismError, match="noise is NoNoise, allowed: GaussianNoise, TwoSidedNoise, One"):
        noise_for_promise(Truth(5), HOURLY, Fraction(1), DELTA, NoNoise)  # type: ignore[arg-type]
