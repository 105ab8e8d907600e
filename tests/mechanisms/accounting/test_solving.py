"""The weakest noise for a promise: the tables of docs/privacy.md, and what cannot be met."""

import re
from collections import Counter
from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting.charges import budget_for, units_vector
from fleetcount_mechanisms.accounting.question_losses import question_losses, units_loss
from fleetcount_mechanisms.accounting.solving import noise_for_promise, sd_of_cell
from fleetcount_mechanisms.accounting.vectors import LossBudget, ScheduleShape
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


def die(rate: str, values: int = 5) -> SamplingDie:
    return SamplingDie.uniform(Fraction(rate), values, allow_large_rate=True)


@pytest.mark.parametrize(
    ("answer", "shape", "sd", "cell"),
    [
        (Truth(5), HOURLY, "25.714", 36.365),
        (Truth(1), HOURLY, "18.183", 25.715),
        (die("1/2"), HOURLY, "12.858", 36.368),
        (die("1/2"), DAILY, "13.008", 36.792),
        (die("1/2"), WHOLE, "17.531", 49.585),
        (die("1/4"), HOURLY, "6.445", 36.458),
        (die("1/4"), DAILY, "7.368", 41.680),
        (die("1/4"), WHOLE, "16.032", 90.691),
        (die("9/20", 1), HOURLY, "8.252", 25.934),
        (die("1/10", 1), HOURLY, "2.019", 28.553),
    ],
    ids=[
        "direct",
        "direct-one-cell",
        "half-hourly",
        "half-daily",
        "half-whole",
        "quarter-hourly",
        "quarter-daily",
        "quarter-whole",
        "yes-no",
        "yes-no-tenth",
    ],
)
def test_a_month_of_hourly_maps_needs_the_noise_of_the_table(
    answer: AnswerLaw, shape: ScheduleShape, sd: str, cell: float
) -> None:
    noise, sizes = noise_for_promise(answer, shape, Fraction(10), DELTA), Counter(shape.units)

    assert noise == GaussianNoise(Fraction(sd) ** 2)
    weaker = design(answer, GaussianNoise((Fraction(sd) - Fraction(1, 1000)) ** 2))
    assert units_loss(design(answer, noise), sizes, DELTA) <= 10
    assert budget_for(design(answer, noise), [sizes], Fraction(10), DELTA).orders == (5,)
    for order in range(2, 10):
        budget = LossBudget(epsilon=Fraction(10), delta=DELTA, orders=(order,))
        assert budget.fits(units_vector(design(answer, noise), budget.orders, sizes)) is (order == 5)
        assert not budget.fits(units_vector(weaker, budget.orders, sizes))
    assert sd_of_cell(design(answer, noise)) == pytest.approx(cell, abs=0.001)


@pytest.mark.parametrize(
    ("rate", "size", "count", "order", "cell"),
    [("1/4", 24, 31, 5, 42.138), ("1/4", 720, 2, 4, 112.809), ("1/2", 720, 2, 5, 66.79), ("1/2", 24, 31, 5, 37.375)],
)
def test_a_month_that_another_follows_has_the_noise_of_all_units_that_a_period_touches(
    rate: str, size: int, count: int, order: int, cell: float
) -> None:
    shape = ScheduleShape(units=(size,) * (720 // size), days=DAYS)

    noise = noise_for_promise(die(rate), shape, Fraction(10), DELTA, periods=[{size: count}])

    assert sd_of_cell(design(die(rate), noise)) == pytest.approx(cell, abs=0.001)
    assert budget_for(design(die(rate), noise), [{size: count}], Fraction(10), DELTA).orders == (order,)


@pytest.mark.parametrize(
    ("answer", "units", "promise", "sd"),
    [
        (die("1/100"), {1: 3}, ("1", 5), "1.005"),
        (die("1/100"), {168: 1}, ("1/10", 12), "62.844"),
        (Truth(1), {1: 1}, ("3/10", 5), "12.304"),
    ],
)
def test_a_guess_far_off_is_followed_to_the_weakest_noise_that_keeps_the_promise(
    answer: AnswerLaw, units: dict[int, int], promise: tuple[str, int], sd: str
) -> None:
    """With a rare coin the best order changes with the noise, and the search at one order misses by thousands."""
    shape = ScheduleShape(units=tuple(Counter(units).elements()), days=(sum(Counter(units).elements()),))
    epsilon, delta = Fraction(promise[0]), Fraction(1, 10 ** promise[1])

    noise = noise_for_promise(answer, shape, epsilon, delta)

    assert noise == GaussianNoise(Fraction(sd) ** 2)
    for step, kept in ((0, True), (1, False)):
        weaker = design(answer, GaussianNoise((Fraction(sd) - Fraction(step, 1000)) ** 2))
        budget = budget_for(weaker, [units], epsilon, delta)
        assert (budget.spent(units_vector(weaker, budget.orders, units)) <= epsilon) is kept


def test_the_order_follows_what_is_asked_and_not_direct_noise() -> None:
    """At p = 1/100 and small epsilons the order of direct noise would nearly double the noise of a ledger."""
    usual = LossBudget.for_promise(Fraction(1, 10), Fraction(1, 10**12))
    rare = design(die("1/100"), noise_for_promise(die("1/100"), DAILY, usual.epsilon, usual.delta))

    best = budget_for(rare, [Counter(DAILY.units)], usual.epsilon, usual.delta)

    assert best.fits(units_vector(rare, best.orders, Counter(DAILY.units)))
    assert usual.spent(units_vector(rare, usual.orders, Counter(DAILY.units))) > usual.epsilon
    assert best.orders != usual.orders


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
