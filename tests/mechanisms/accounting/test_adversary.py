"""The standing adversary of the filter: the best strategy against it, by an exact dynamic programme over small laws.

The adversary picks each question from all earlier outputs, within what the filter admits, and stops when it likes. With
L the privacy loss of what fell into one fixed period, the delta it reaches at epsilon is the largest E[(1 -
e**(eps-L))+]. Filters that look right and are not are caught by the same programme.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import exp

import pytest
from fleetcount_mechanisms.accounting.periods import LossFilter, TimedLoss
from fleetcount_mechanisms.accounting.vectors import SCALE, LossBudget, LossVector
from fleetcount_mechanisms.composition import optimal_epsilon
from fleetcount_mechanisms.renyi import entry_price, pure_divergence

EPSILON, DELTA = Fraction(2), Fraction(1, 100)
QUARTER = Fraction(1, 4)


@dataclass(frozen=True, order=True)
class Move:
    """A randomized response of `quarters`/4 that is answered from `first` to `last`."""

    quarters: int
    first: int = 0
    last: int = 0

    @property
    def epsilon(self) -> Fraction:
        return self.quarters * QUARTER


Held = tuple[Move, ...]
Admits = Callable[[Held, Move], bool]


def reached(
    moves: Iterable[Move],
    steps: int,
    admits: Admits,
    epsilon: Fraction,
    seen: Callable[[Move], bool] = lambda _: True,
    reveal: Callable[[Held], float] = lambda _: 0.0,
) -> float:
    """Return the largest delta of any strategy; `seen` are the moves whose answers fall into the period looked at.

    `reveal` is the chance of a last step that shows everything.
    """
    choices, target = tuple(moves), float(epsilon)
    allowed = lru_cache(None)(admits)

    @lru_cache(None)
    def best(held: Held, loss: int) -> float:
        stop = max(0.0, 1 - exp(target - loss / 4))
        shown = reveal(held)
        found = shown + (1 - shown) * stop
        for move in choices if len(held) < steps else ():
            if not allowed(held, move):
                continue
            after = tuple(sorted((*held, move)))
            if seen(move):
                up = 1 / (1 + exp(-float(move.epsilon)))
                value = up * best(after, loss + move.quarters) + (1 - up) * best(after, loss - move.quarters)
            else:
                value = best(after, loss)
            found = max(found, value)
        return found

    return best((), 0)


@lru_cache(None)
def charge(move: Move, orders: tuple[int, ...]) -> LossVector:
    return LossVector.of(orders, [pure_divergence(move.epsilon, order) for order in orders], move.epsilon)


def total(moves: Iterable[Move], orders: tuple[int, ...]) -> LossVector:
    return sum((charge(move, orders) for move in moves), LossVector.nothing(orders))


# Which questions, and how many.

SMALL_LAWS = (Move(4), Move(1))


@pytest.mark.parametrize("orders", [None, (3,), (2, 4, 8), (5, 9)])
def test_no_strategy_beats_the_filter(orders: tuple[int, ...] | None) -> None:
    budget = LossBudget.for_promise(EPSILON, DELTA)
    if orders:
        budget = LossBudget(epsilon=EPSILON, delta=DELTA, orders=orders)

    found = reached(SMALL_LAWS, 22, lambda held, move: budget.fits(total((*held, move), budget.orders)), EPSILON)

    assert found <= DELTA


def test_optimal_composition_is_no_filter_and_is_caught() -> None:
    def admits(held: Held, move: Move) -> bool:
        return optimal_epsilon([one.epsilon for one in (*held, move)], DELTA) <= EPSILON

    assert reached(SMALL_LAWS, 22, admits, EPSILON) == pytest.approx(0.01475, abs=5e-6)


def test_spending_delta_as_it_goes_is_no_filter_and_is_caught() -> None:
    epsilon, order = Fraction(4), 5

    @lru_cache(None)
    def least_delta(count: int) -> float:
        """Return the delta that the order needs after so many answers: what is left may be spent on showing all."""
        loss = count * pure_divergence(Fraction(1, 2), order)
        low, high = Fraction(1, 10**12), Fraction(1)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if loss + entry_price(order, middle) <= epsilon else (middle, high)
        return float(high)

    def admits(held: Held, move: Move) -> bool:
        return least_delta(len(held) + 1) <= DELTA

    def reveal(held: Held) -> float:
        return max(0.0, float(DELTA) - least_delta(len(held)))

    running = reached([Move(2)], 60, admits, epsilon, reveal=reveal)
    fixed = reached([Move(2)], 60, admits, epsilon)

    assert running > 0.0148
    assert fixed <= DELTA


def test_a_filter_without_the_price_of_its_order_is_caught() -> None:
    orders = LossBudget.for_promise(EPSILON, DELTA).orders
    limit = int(EPSILON * SCALE)

    assert reached(SMALL_LAWS, 22, lambda held, move: total((*held, move), orders).at[0] <= limit, EPSILON) > DELTA


# When: the period looked at is [2, 4); a unit from 0 to 2 and single answers around it.

PERIOD, START = 2, 2
TIMED = (Move(4, 0, 2), *(Move(4, hour, hour) for hour in range(1, 5)))
BUDGET = LossBudget.for_promise(EPSILON, DELTA)


def in_period(move: Move) -> bool:
    return move.first < START + PERIOD and move.last >= START


def timed(move: Move) -> TimedLoss:
    return TimedLoss(first=move.first, last=move.last, loss=charge(move, BUDGET.orders))


def test_no_order_of_questions_and_reservations_beats_the_filter() -> None:
    def admits(held: Held, move: Move) -> bool:
        return LossFilter(BUDGET, PERIOD, map(timed, held)).admits(timed(move))

    found = reached(TIMED, 5, admits, EPSILON, in_period)

    assert found <= DELTA


def test_a_unit_stamped_at_its_first_window_is_caught() -> None:
    def stamped(move: Move) -> TimedLoss:
        return TimedLoss(first=move.first, last=move.first, loss=charge(move, BUDGET.orders))

    def admits(held: Held, move: Move) -> bool:
        return LossFilter(BUDGET, PERIOD, map(stamped, held)).admits(stamped(move))

    assert reached(TIMED, 5, admits, EPSILON, in_period) > DELTA


def test_admission_that_looks_back_only_is_caught() -> None:
    def admits(held: Held, move: Move) -> bool:
        past = LossFilter(BUDGET, PERIOD, map(timed, held)).total(move.last - PERIOD + 1)
        return BUDGET.fits(past + charge(move, BUDGET.orders))

    assert reached(TIMED, 5, admits, EPSILON, in_period) > DELTA
