"""The filter over time: it admits exactly what keeps every period within the budget, past, present and reserved."""

import random
from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting import periods
from fleetcount_mechanisms.accounting.budget import LossBudget
from fleetcount_mechanisms.accounting.periods import LossFilter, TimedLoss
from fleetcount_mechanisms.accounting.vectors import SCALE, LossVector
from fleetcount_mechanisms.errors import MechanismError

BUDGET = LossBudget(epsilon=Fraction(10), delta=Fraction(1, 10**9), orders=(5,))
DAY = 24


def pure(epsilon: int, orders: tuple[int, ...] = (5,)) -> LossVector:
    return LossVector(orders=orders, at=(epsilon * SCALE,) * len(orders), pure=epsilon * SCALE)


def timed(first: int, last: int, epsilon: int) -> TimedLoss:
    return TimedLoss(first=first, last=last, loss=pure(epsilon))


def admitted_by_force(budget: LossBudget, period: int, held: list[TimedLoss], new: TimedLoss) -> bool:
    """Add up every period that holds a part of the new charge, starting at each hour."""
    for start in range(new.first - period + 1, new.last + 1):
        total = new.loss
        for charge in held:
            if charge.first < start + period and charge.last >= start:
                total = total + charge.loss
        if not budget.fits(total):
            return False
    return True


def some_charge(rng: random.Random, orders: tuple[int, ...]) -> TimedLoss:
    first = rng.randrange(100)
    small, large = rng.randrange(1 << 39), rng.randrange(1 << 41)
    at = tuple(rng.randrange(1 << 41) for _ in orders)
    loss = LossVector(orders=orders, at=at, pure=rng.choice([None, small, large]))
    return TimedLoss(first=first, last=first + rng.choice([0, 0, 1, 7, 30]), loss=loss)


@pytest.mark.parametrize("seed", range(40))
def test_admission_is_what_adding_up_every_period_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "_BLOCK", 3)
    rng = random.Random(seed)
    orders = rng.choice([(5,), (2, 4)])
    budget = LossBudget(epsilon=Fraction(rng.choice([3, 6, 10])), delta=Fraction(1, 100), orders=orders)
    period, held = rng.choice([1, 5, 20]), list[TimedLoss]()
    filtered = LossFilter(budget, period)

    for _ in range(60):
        if held and rng.random() < 0.15:
            filtered.remove(held.pop(rng.randrange(len(held))))
            continue
        charge = some_charge(rng, orders)
        admitted = filtered.admits(charge)
        assert admitted == admitted_by_force(budget, period, held, charge)
        if admitted:
            filtered.add(charge)
            held.append(charge)

    again = LossFilter(budget, period, held)
    assert [again.total(start) for start in range(-40, 140)] == [filtered.total(start) for start in range(-40, 140)]


def test_a_unit_counts_whole_in_every_period_that_holds_a_part_of_it() -> None:
    filtered = LossFilter(BUDGET, 30 * DAY)
    filtered.add(timed(0, 2 * 30 * DAY, 6))

    assert not filtered.admits(timed(2 * 30 * DAY + 30 * DAY - 1, 2 * 30 * DAY + 30 * DAY - 1, 6))
    assert filtered.admits(timed(3 * 30 * DAY, 3 * 30 * DAY, 6))


def test_what_is_reserved_later_counts_now() -> None:
    filtered = LossFilter(BUDGET, 30 * DAY)
    filtered.add(timed(30 * DAY, 60 * DAY - 1, 10))

    assert not filtered.admits(timed(29 * DAY, 29 * DAY, 1))
    assert filtered.admits(timed(0, 0, 1))


def test_charges_are_admitted_together_or_not_at_all() -> None:
    filtered = LossFilter(BUDGET, DAY)

    assert not filtered.admit([timed(hour, hour, 3) for hour in range(4)])
    assert filtered.total(0) == LossVector.nothing((5,))
    assert filtered.admit([timed(hour, hour, 3) for hour in range(3)])
    assert filtered.total(0) == pure(9)


def test_a_removed_charge_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "_BLOCK", 2)
    filtered = LossFilter(BUDGET, DAY)
    endless = TimedLoss(first=5, last=5, loss=LossVector(orders=(5,), at=(1,), pure=None))
    for hour in range(200):
        filtered.add(timed(hour, hour + 3, 1))
    filtered.add(endless)
    assert filtered.total(0).pure is None
    for hour in range(200):
        filtered.remove(timed(hour, hour + 3, 1))
    filtered.remove(endless)

    assert all(filtered.total(start) == LossVector.nothing((5,)) for start in range(-30, 250))


def test_wrong_times_and_orders_are_refused() -> None:
    with pytest.raises(MechanismError, match="last is 3, allowed: last >= 4"):
        timed(4, 3, 1)
    with pytest.raises(MechanismError, match="period is 0"):
        LossFilter(BUDGET, 0)
    with pytest.raises(MechanismError, match=r"orders are \(3,\), allowed: those of the budget, \(5,\)"):
        LossFilter(BUDGET, 1).admits(TimedLoss(first=0, last=0, loss=pure(1, (3,))))
