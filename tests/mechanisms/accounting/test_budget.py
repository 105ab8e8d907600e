"""The filter's rule: orders of a promise, entry prices rounded up, what fits and what is said to be spent."""

from decimal import Decimal
from fractions import Fraction

import mpmath
import pytest
from fleetcount_mechanisms.accounting.charges import window_loss
from fleetcount_mechanisms.accounting.vectors import SCALE, LossBudget, LossVector
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import KaryResponse

DELTA = Fraction(1, 10**9)
MONTH = LossBudget.for_promise(Fraction(10), DELTA)


def direct(noise: GaussianNoise | TwoSidedNoise) -> Design:
    return Design(answer=Truth(5), noise=noise, values=5, aggregators=2)


def test_the_order_of_a_promise_is_found_once() -> None:
    assert LossBudget.for_promise(Fraction(10), DELTA) is MONTH


@pytest.mark.parametrize(
    ("epsilon", "order", "rho"), [(1, 35, 0.01497), (2, 19, 0.0561), (5, 9, 0.3113), (10, 5, 1.0889), (20, 3, 3.53)]
)
def test_the_order_of_a_promise_is_that_of_the_table(epsilon: int, order: int, rho: float) -> None:
    budget = LossBudget.for_promise(Fraction(epsilon), DELTA)

    assert budget.orders == (order,)
    assert budget.limits[0] / SCALE / order == pytest.approx(rho, rel=2e-3)


def test_entry_prices_are_rounded_up_and_orders_share_delta() -> None:
    budget = LossBudget(epsilon=Fraction(10), delta=DELTA, orders=(3, 5, 9))

    with mpmath.workdps(40):
        for order, price in zip(budget.orders, budget.entry_prices, strict=True):
            share = mpmath.mpf(1) / (3 * 10**9)
            exact = mpmath.log(1 - mpmath.mpf(1) / order) - mpmath.log(share * order) / (order - 1)
            assert 0 <= price - exact * SCALE <= 1
    assert max(limit / SCALE / order for limit, order in zip(budget.limits, budget.orders, strict=True)) < 1.0341


def test_a_month_of_hourly_maps_fits_and_one_more_does_not() -> None:
    one = window_loss(direct(GaussianNoise(Fraction(662))), MONTH.orders)

    assert MONTH.fits(one.times(720))
    assert MONTH.spent(window_loss(direct(GaussianNoise(Fraction(662))), MONTH.orders, 720)) == Decimal(
        "9.993379895071"
    )
    assert Decimal("9.993379895071") <= MONTH.spent(one.times(720)) < Decimal("9.9933799")
    assert not MONTH.fits(one.times(721))
    assert MONTH.spent(one.times(721)) > 10


def test_kinds_of_charges_add_up() -> None:
    total = window_loss(direct(GaussianNoise(Fraction(662))), MONTH.orders, 300)
    total += window_loss(direct(TwoSidedNoise(Fraction(1, 25))), MONTH.orders, 24)
    kary = KaryResponse.from_epsilon(Fraction(1, 2), 5)
    total += window_loss(Design(answer=kary, noise=TwoSidedNoise(Fraction(100)), values=5, aggregators=2), MONTH.orders)

    assert float(MONTH.spent(total)) == pytest.approx(7.2366, abs=5e-5)


def test_small_pure_losses_pay_no_entry_price_and_nothing_is_nothing() -> None:
    small = LossVector(orders=(5,), at=(SCALE,), pure=SCALE)

    assert MONTH.spent(small) == 1
    assert MONTH.spent(LossVector.nothing((5,))) == 0
    assert MONTH.fits(small.times(10))
    assert not MONTH.fits(LossVector(orders=(5,), at=(10 * SCALE,), pure=10 * SCALE + 1))


def test_what_is_not_a_budget_is_refused() -> None:
    with pytest.raises(MechanismError, match="epsilon is 701"):
        LossBudget.for_promise(Fraction(701), DELTA)
    with pytest.raises(MechanismError, match="delta is 1,"):
        LossBudget.for_promise(Fraction(1), Fraction(1))
    with pytest.raises(MechanismError, match=r"orders are \(5, 3\)"):
        LossBudget(epsilon=Fraction(1), delta=DELTA, orders=(5, 3))
    with pytest.raises(MechanismError, match="order is 1, allowed: order >= 2"):
        LossBudget(epsilon=Fraction(1), delta=DELTA, orders=(1, 3))
    with pytest.raises(MechanismError, match=r"orders are \(3,\), allowed: those of the budget"):
        MONTH.fits(LossVector.nothing((3,)))
