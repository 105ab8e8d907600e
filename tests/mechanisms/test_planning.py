"""Plans keep their targets, say what they cost, and warn; solvers are inverses of the losses."""

import functools
import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import sampling_sd
from fleetcount_mechanisms.planning import (
    Plan,
    crossover_share,
    local_sampling_rate,
    plan_question,
)
from fleetcount_mechanisms.responses import KaryResponse, TwoCoin
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, views_of

from tests.support.plans import plan_sampling

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "rate", "noise", "epsilon", "sds"),
    [
        (1, Fraction(9, 20), 1.572, Fraction(1), (2.6, 11.3, 35.1)),
        (1, Fraction(9, 20), 0.892, Fraction(1, 2), (4.8, 12.1, 35.3)),
        (9, Fraction(1, 4), 1.729, Fraction(1), (4.1, 17.8, 54.9)),
        (100, Fraction(1, 10), 2.749, Fraction(1), (5.4, 30.5, 95.0)),
    ],
)
def test_the_defaults_are_the_profiles_of_the_privacy_page(
    values: int, rate: Fraction, noise: float, epsilon: Fraction, sds: tuple[float, ...]
) -> None:
    plan = plan_sampling(10**6, values, epsilon)

    assert plan.design.exposure == rate
    assert float(plan.design.noise.epsilon or 0) == pytest.approx(noise, abs=1e-3)
    assert epsilon_of(plan.design) is not None
    assert epsilon - Fraction(1, 10**4) < epsilon_of(plan.design) <= epsilon
    assert [plan.sd(count) for count in (0, 100, 1000)] == pytest.approx(sds, abs=0.06)


def test_the_interval_is_where_the_estimate_is_within_its_own_error() -> None:
    plan = plan_sampling(10_000, 1, Fraction(1))

    low, high = plan.interval(100)

    for end in (low, high):
        variance = plan.sd(0) ** 2 + end * float((1 - plan.design.exposure) / plan.design.exposure)
        assert abs(100 - end) == pytest.approx(1.959963985 * math.sqrt(variance))
    assert plan.interval(0)[0] == 0
    assert plan.width(100) == high - low


def test_the_smallest_count_seen_is_the_first_that_both_errors_leave_apart_from_zero() -> None:
    plan = plan_sampling(10_000, 1, Fraction(1))
    smallest = plan.smallest_count_seen

    assert smallest is not None
    assert smallest >= 1.96 * (plan.sd(0) + plan.sd(smallest)) - 0.01
    assert smallest - 1 < 1.96 * (plan.sd(0) + plan.sd(smallest - 1))
    assert plan_sampling(5, 1, Fraction(1)).smallest_count_seen is None


def mistaken(noise: TwoSidedNoise | OneSidedNoise, aggregators: int, count: int) -> float:
    """Return the larger chance of taking 0 for the count and the count for 0, by the best threshold."""
    least = -300 if isinstance(noise, TwoSidedNoise) else 0
    one = np.exp(-float(noise.epsilon) * np.abs(np.arange(least, 301)))
    chances = functools.reduce(np.convolve, [one / one.sum()] * aggregators)
    drawn = np.arange(least * aggregators, 300 * aggregators + 1)
    return float(min(max(chances[drawn >= t].sum(), chances[drawn < t - count].sum()) for t in range(count + 2)))


@pytest.mark.parametrize("level", [Fraction(95, 100), Fraction(999, 1000), Fraction(999_999, 1_000_000)])
@pytest.mark.parametrize("noise", [TwoSidedNoise, OneSidedNoise])
def test_the_smallest_count_seen_is_mistaken_as_rarely_as_its_level_says(
    noise: type[TwoSidedNoise] | type[OneSidedNoise], level: Fraction
) -> None:
    smallest = plan_question(20_000, Truth(4), Fraction(1), noise=noise, level=level).smallest_count_seen
    law = plan_question(20_000, Truth(4), Fraction(1), noise=noise).design.noise

    assert isinstance(law, noise)
    assert smallest is not None
    assert mistaken(law, 2, smallest) <= 1 - level
    if level > Fraction(95, 100):
        assert mistaken(law, 2, smallest - 1) > 1 - level


@pytest.mark.parametrize("aggregators", [3, 4, 5])
def test_a_small_count_is_seen_through_the_noises_of_several_aggregators_as_well(aggregators: int) -> None:
    for epsilon, level in itertools.product((2, 3, 4, 7), map(Fraction, ("0.9", "0.95", "0.99", "0.999"))):
        noise = TwoSidedNoise(Fraction(epsilon))
        design = Design(answer=Truth(4), noise=noise, values=4, aggregators=aggregators)
        smallest = Plan(devices=20_000, design=design, level=level).smallest_count_seen

        assert smallest is not None
        assert mistaken(noise, aggregators, smallest) <= 1 - level, (epsilon, level)


def test_a_plan_warns_of_what_it_reveals_and_of_what_it_cannot_see() -> None:
    quiet = plan_sampling(10_000, 9, Fraction(1))
    loud = plan_sampling(10_000, 100, Fraction(1))
    weak = plan_sampling(10_000, 1, Fraction(4), 2, Fraction(3, 5), allow_large_rate=True)
    blind = plan_sampling(20, 1, Fraction(1, 10))

    assert quiet.warnings == ()
    # Rounded up from 2.50326.
    assert [warning[:38] for warning in loud.warnings] == ["one round-two message alone loses 2.51"]
    assert len(weak.warnings) == 2
    assert "the release loses 4.00000" in weak.warnings[0]
    assert "sampling rate is 3/5" in weak.warnings[1]
    assert "no count among 20 devices" in blind.warnings[0]


def test_a_larger_rate_is_more_accurate_at_the_same_loss_and_reveals_more_to_all_aggregators() -> None:
    plans = [plan_sampling(10_000, 1, Fraction(1), 2, Fraction(rate, 20)) for rate in (1, 5, 9)]

    errors = [plan.sd(100) for plan in plans]
    revealed = [next(v.delta for v in views_of(plan.design) if v.adversary == "all_aggregators") for plan in plans]
    assert errors == sorted(errors, reverse=True)
    assert revealed == [Decimal("0.05"), Decimal("0.25"), Decimal("0.45")]


TWO_CELL = [(Fraction(s * s, 4), Fraction(s, 2)) for s in (3, 4, 5, 10)]
"""E = e**eps' with its square root."""
RATES = [Fraction(one, 20) for one in range(1, 20)]


def two_cell_noise(power: Fraction, x: Fraction) -> tuple[Fraction, Fraction]:
    """Return (t, N) for E and x = e**e1: 1/p from the release's loss, and the variance of one noise over 2 p**2."""
    t = 1 + (x - power / x) / (power - 1)
    p = 1 / t
    assert (1 + p * (x - 1)) / (1 - p * (1 - 1 / x)) == power
    return t, t * t * x / (x - 1) ** 2


@pytest.mark.parametrize("aggregators", [2, 3, 5])
@pytest.mark.parametrize(("power", "root"), TWO_CELL, ids=str)
def test_p_of_1_is_best_exactly_in_cells_of_at_least_k_devices(
    power: Fraction, root: Fraction, aggregators: int
) -> None:
    steps = [Fraction(1, 10**6), *(Fraction(step, 50) for step in range(1, 400))]
    rows = [two_cell_noise(power, root + step) for step in (Fraction(0), *steps)]
    assert rows[0][0] == 1

    for count in range(2 * aggregators):
        variances = [count * (t - 1) + 2 * aggregators * noise for t, noise in rows]
        if count >= aggregators:
            assert variances == sorted(variances)
        else:
            assert min(variances) < variances[0]


@pytest.mark.parametrize(("power", "root"), TWO_CELL, ids=str)
def test_a_smaller_rate_wins_by_at_most_the_hyperbolic_cosine_of_a_quarter_of_epsilon(
    power: Fraction, root: Fraction
) -> None:
    squared_cosh = (root + 1) ** 2 / (4 * root)
    at_one = two_cell_noise(power, root)[1]

    assert two_cell_noise(power, power) == (2, at_one / squared_cosh)
    assert all(two_cell_noise(power, root + Fraction(step, 50))[1] >= at_one / squared_cosh for step in range(1, 1000))


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(4)], ids=str)
def test_for_one_value_a_larger_rate_is_always_more_accurate(epsilon: Fraction) -> None:
    plans = [plan_sampling(1000, 1, epsilon, 2, rate, allow_large_rate=True) for rate in RATES]

    for count in (0, 1, 1000):
        errors = [plan.sd(count) for plan in plans]
        assert errors == sorted(errors, reverse=True)


def test_the_error_does_not_grow_with_the_devices_that_answer_none() -> None:
    small, large = (plan_sampling(devices, 4, Fraction(1)) for devices in (100, 10**9))

    assert [small.sd(count) for count in (0, 1, 100)] == [large.sd(count) for count in (0, 1, 100)]


def planned_sd(rate: Fraction, epsilon: Fraction, count: int) -> float:
    answer = Truth(4) if rate == 1 else SamplingDie.uniform(rate, 4, allow_large_rate=True)
    return plan_question(10_000, answer, epsilon).sd(count)


def table_rows(page: str, header: str) -> list[list[str]]:
    """Return the cells of the table of a page whose header row begins so."""
    lines = (ROOT / page).read_text().split(header)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_sampling_in_the_privacy_page_is_computed() -> None:
    rows = table_rows("docs/privacy.md", "| ε′ | p = 0.1 |")
    rates = [Fraction(1, 10), Fraction(1, 4), Fraction(1, 2), Fraction(1)]

    assert len(rows) == 2
    for epsilon, *cells in rows:
        for rate, shown in zip(rates, cells, strict=True):
            assert shown == ", ".join(f"{planned_sd(rate, Fraction(epsilon), count):.3f}" for count in range(3))


def test_the_table_of_the_readme_says_what_sampling_costs_and_buys() -> None:
    rows = table_rows("README.md", "| sampling rate |")

    assert len(rows) == 4
    for name, seen, *errors in rows:
        rate = Fraction(name.split()[0])
        assert Fraction(seen) == rate
        assert errors == [f"{planned_sd(rate, Fraction(1), count):.1f}" for count in (0, 100, 1000, 10_000)]


def test_sampling_beats_the_two_coins_only_below_the_crossover() -> None:
    coins = TwoCoin(Fraction(4, 5), Fraction(1, 5))

    shares = [crossover_share(rate, coins) for rate in (Fraction(9, 20), Fraction(1, 4))]

    assert [round(float(share or 0), 3) for share in shares] == [0.056, 0.021]
    population = 1_000_000
    for rate, share in zip((0.45, 0.25), shares, strict=True):
        count = round(population * (share or 0))
        assert sampling_sd(count, rate) == pytest.approx(coins.standard_deviation(count, population), rel=1e-4)
    assert crossover_share(Fraction(99, 100), KaryResponse(Fraction(3, 8), 2)) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan_sampling(0, 1, Fraction(1)), "devices is 0, allowed: devices >= 1"),
        (lambda: plan_sampling(10, 0, Fraction(1)), "values is 0"),
        (lambda: plan_sampling(10, 1, Fraction(0)), "epsilon is 0, allowed: epsilon > 0"),
        (lambda: plan_sampling(10, 1, Fraction(101)), "epsilon is 101, allowed: 0 < epsilon <= 100"),
        (lambda: plan_sampling(10, 1, Fraction(1), 1), "aggregators is 1, allowed: aggregators >= 2"),
        (lambda: plan_sampling(10, 1, Fraction(1), 2, Fraction(1, 2)), "sampling rate is 1/2, allowed: below 1/2"),
        (lambda: plan_sampling(10, 1, Fraction(1), level=Fraction(1)), "level is 1, allowed: 0 < level < 1"),
        (lambda: local_sampling_rate(math.inf, 1), "epsilon is inf"),
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)
