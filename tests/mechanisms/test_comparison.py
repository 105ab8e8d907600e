"""Every row of a comparison keeps the promise, and with weaker noise it would not."""

from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
from fleetcount_mechanisms.accounting.charges import budget_for, units_vector
from fleetcount_mechanisms.accounting.question_losses import question_losses, units_loss
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.comparison import Compared, Threat, Unit, compare
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.planning import spread_for_show
from fleetcount_mechanisms.responses import Warner

EPSILON, DELTA = Fraction(3), Fraction(1, 10**6)
SHAPES: dict[Unit, ScheduleShape] = {
    "window": ScheduleShape(units=(1,) * 6, days=(3, 3)),
    "day": ScheduleShape(units=(3, 3), days=(3, 3)),
    "question": ScheduleShape(units=(6,), days=(3, 3)),
}


@pytest.fixture(scope="module", params=[1, pytest.param(4, marks=pytest.mark.nightly)])
def rows(request: pytest.FixtureRequest) -> tuple[Compared, ...]:
    return compare(10_000, request.param, SHAPES, EPSILON, DELTA)


def test_every_row_keeps_the_promise_and_wastes_little_of_it(rows: tuple[Compared, ...]) -> None:
    for row in rows:
        design = row.plan.design
        if row.threat is Threat.NONE_TRUSTED:
            # Against all aggregators together: as if they added no noise.
            design = Design(answer=design.answer, noise=NoNoise(), values=design.values, aggregators=2)
        shape = SHAPES[row.unit or "window"]
        whole = question_losses(design, shape, DELTA).whole_question
        assert whole <= EPSILON, row.name
        if isinstance(design.noise, GaussianNoise):
            # A ledger adds up Renyi losses, where the statement of one unit knows a smaller bound.
            sizes = Counter(shape.units)
            budget = budget_for(design, [sizes], EPSILON, DELTA)
            whole = Fraction(budget.spent(units_vector(design, budget.orders, sizes)))
        assert EPSILON * Fraction(99, 100) < whole <= EPSILON, row.name


def test_responses_keep_the_promise_for_all_that_a_period_touches_as_noise_does() -> None:
    touched = Counter({1: 12})
    periods: dict[Unit, list[Counter[int]]] = {
        "window": [touched],
        "day": [Counter({3: 4})],
        "question": [Counter({6: 2})],
    }
    [row] = [one for one in compare(10_000, 1, SHAPES, EPSILON, DELTA, periods=periods) if one.name == "response"]
    answer = row.plan.design.answer
    loss = units_loss(Design(answer=answer, noise=NoNoise(), values=1, aggregators=2), touched, DELTA)

    assert EPSILON * Fraction(99, 100) < loss <= EPSILON


def test_a_million_answers_and_more_have_a_bound_and_no_error() -> None:
    """As of a question with a window a second, in the 30 days of a ledger."""
    weak = TwoSidedNoise(epsilon=Fraction(1, 1000))
    direct = Design(answer=Truth(4), noise=weak, values=4, aggregators=2)
    response = Design(answer=Warner.from_epsilon(Fraction(1, 1000)), noise=NoNoise(), values=1, aggregators=2)

    # One value that becomes another moves two numbers of a direct answer.
    for design, count, each in ((direct, 500_001, 2), (response, 1_000_001, 1)):
        fewer, loss = (units_loss(design, Counter({1: answers}), DELTA) for answers in (count // 100, count))
        assert fewer < loss <= each * count * Fraction(1, 1000)


def test_a_response_in_one_window_of_several_has_all_of_epsilon_in_each_answer() -> None:
    for one_in, each in ((6, EPSILON), (3, EPSILON / 2)):
        row = compare(10_000, 1, SHAPES, EPSILON, DELTA, one_in=one_in)[-1]

        assert row.name == f"response, one window of {one_in}"
        assert each * Fraction(999, 1000) < Fraction(row.plan.design.local_epsilon or 0) <= each


def test_every_threat_has_its_ways(rows: tuple[Compared, ...]) -> None:
    assert [row.threat for row in rows] == [Threat.ONE_HONEST] * 2 + [Threat.ALL_COLLUDE] * 6 + [Threat.NONE_TRUSTED]
    assert rows[0].plan.sd(0) < rows[-1].plan.sd(0)


@pytest.mark.parametrize(("show", "ratio"), [("mean", (2 * 8**2 / 31, 8 / 31)), ("quantiles", (1 / 0.7, 1 / 0.7))])
def test_a_number_is_asked_in_direct_answers_alone_with_the_noise_of_each_law(
    show: str, ratio: tuple[float, float]
) -> None:
    values = 9 if show == "mean" else 8

    rows = compare(10_000, values, SHAPES, EPSILON, DELTA, spread=partial(spread_for_show, show, values))

    assert [row.name for row in rows] == ["direct, Gaussian", "direct, geometric"]
    for row, wanted in zip(rows, ratio, strict=True):
        cells, coarser, *_ = row.plan.design.laws
        parts = (1 / one.epsilon if one.epsilon else one.draw_variance for one in (coarser, cells))
        assert next(parts) / float(next(parts)) == pytest.approx(wanted, rel=0.01)
        whole = question_losses(row.plan.design, SHAPES["window"], DELTA).whole_question
        assert EPSILON * Fraction(9, 10) < whole <= EPSILON
    # 33 points have no halves, and their cells alone, asked for as such, are still those of a number.
    odd = compare(10_000, 33, SHAPES, EPSILON, DELTA, spread=partial(spread_for_show, "quantiles", 33, sides=(1,)))
    assert len(odd) == 2
