"""The filter over time: it admits exactly what keeps every period within the budget, past, present and reserved."""

import random
from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting import periods
from fleetcount_mechanisms.accounting.periods import LossFilter, PeriodTotals, TimedLoss
from fleetcount_mechanisms.accounting.vectors import SCALE, LossBudget, LossVector
from fleetcount_mechanisms.errors import MechanismError

from tests.support.cases import case

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


def test_admission_is_what_adding_up_every_period_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        with case(f"seed {seed}"):
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
            assert [again.total(start) for start in range(-40, 140)] == [
                filtered.total(start) for start in range(-40, 140)
            ]


Held = tuple[int, int, tuple[int, ...]]


def totals_by_force(period: int, held: list[Held], first: int, last: int, width: int) -> list[list[int]]:
    """Add up the rows of every period that holds a part of a time, one where it begins and one at each later rise."""
    low = first - period + 1
    starts = {low} | {begin - period + 1 for begin, _, _ in held if low < begin - period + 1 <= last}
    rows = [[row for begin, end, row in held if begin < start + period and end >= start] for start in starts]
    return [[sum(row[which] for row in some) for which in range(width)] for some in rows]


def test_totals_are_plain_sums_over_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(30):
        with case(f"seed {seed}"):
            rng = random.Random(seed)
            monkeypatch.setattr(periods, "_BLOCK", rng.choice([1, 2, 5]))
            far = rng.choice([1, 1, 1 << 62])
            period, width = rng.choice([1, 7, 40, 20 * far, 1 << 80]), rng.choice([1, 2, 3])
            totals, held = PeriodTotals(period, width), list[Held]()

            for turn in range(250):
                first = far * rng.randrange(-30, 30)
                last = first + rng.choice([0, 0, 5, 30, 12 * far])
                row = tuple(rng.choice([0, 3, 1 << 70, rng.randrange(100)]) for _ in range(width))
                if held and rng.random() < (0.3 if turn < 150 else 0.8):
                    totals.remove(*held.pop(rng.randrange(len(held))))
                else:
                    totals.add(first, last, row)
                    held.append((first, last, row))
                if rng.random() < 0.02:
                    totals.scale(3)
                    held = [(begin, end, tuple(3 * one for one in some)) for begin, end, some in held]

                found = totals_by_force(period, held, first, last, width)
                room = [rng.randrange(300) if rng.random() < 0.7 else rng.randrange(1 << 73) for _ in range(width)]
                excess = max(min(one - left for one, left in zip(some, room, strict=True)) for some in found)
                floor = rng.choice([0, excess, excess - 1, excess + 1])
                assert totals.total(first - period + 1) in found
                assert totals.largest(first, last) == [max(some) for some in zip(*found, strict=True)]
                assert totals.excess(first, last, room) == excess
                assert max(floor, totals.excess(first, last, room, floor)) == max(floor, excess)


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
