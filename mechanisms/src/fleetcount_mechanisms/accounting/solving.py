"""The weakest noise with which the printed statement of a whole question is within a promise.

It must not choose noise that loses more than the promise: parameters are rounded towards stronger noise.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache, partial
from math import ceil, log, sqrt
from typing import Final

from fleetcount_mechanisms.accounting.charges import budget_for, units_vector
from fleetcount_mechanisms.accounting.question_losses import units_loss
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET, LossBudget, ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import (
    InfeasibleTargetError,
    MechanismError,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import LARGEST_PLANNED_EPSILON, GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread
from fleetcount_mechanisms.randomness import near_sqrt, rounded_up

LARGEST_SD: Final = 10_000
"""The largest standard deviation of one aggregator's noise that is planned."""
_SD_GRID: Final = 1000
_EPSILON_GRID: Final = 10**6
_PLACES: Final = 5
_ORDERS: Final = 3
_TURNS: Final = 16
_TINY: Final = Fraction(1, 10**300)
_HUGE: Final = Fraction(10**300)
"""Ratios of a loss to the promise are clamped to [_TINY, _HUGE], because `log` converts them to floats."""
_LARGEST_REPORTED_SD: Final = 10**12
_Geometric = TwoSidedNoise | OneSidedNoise


def noise_for_promise(
    answer: AnswerLaw,
    shape: ScheduleShape,
    epsilon: Fraction,
    delta: Fraction,
    law: type[PlannedNoise] = GaussianNoise,
    *,
    periods: Sequence[Mapping[int, int]] | None = None,
    spread: Spread | None = None,
) -> PlannedNoise:
    """Return the weakest noise with which all answers of one device over the question lose at most (epsilon, delta).

    A Gaussian's standard deviation is the smallest multiple of 1/1000 from 1/2 on, a geometric e1 the largest multiple
    of 10**-6 up to 10. The printed epsilon, rounded up, is within the promise. `periods` are the units of the coin, by
    their size, that one period of a ledger may hold: of questions that follow one another, or of this
    one alone without it. With Gaussian noise a ledger of this budget takes them all, at the one order that is
    best for them; the exact sum of geometric losses has no filter, so that a ledger adds up more. One-sided noise keeps
    the promise for a value replaced by none. The noise is that of the cells; `spread` says how that of other levels
    follows from it.

    Raises:
        MechanismError: epsilon not in (0, 700], delta not in (0, 1), another law, or an answer without a finite loss.
        InfeasibleTargetError: noise of the largest standard deviation, 10,000, is not enough; the message gives the
            standard deviation that would be.
    """
    if require_positive("epsilon", epsilon) > LARGEST_BUDGET:
        raise MechanismError(f"epsilon is {epsilon}, allowed: 0 < epsilon <= {LARGEST_BUDGET}")
    require_open_unit("delta", delta)
    own = _sizes(Counter(shape.units))
    held = (own,) if periods is None else tuple(map(_sizes, periods))
    parts = Spread(levels=Levels(answer.values)) if spread is None else spread
    return _solved(answer, own, held, epsilon, delta, law, parts)  # type: ignore[arg-type]  # Laws are frozen values.


_Sizes = tuple[tuple[int, int], ...]
"""How many units of each size, in a form that a cache can keep."""


def _sizes(counted: Mapping[int, int]) -> _Sizes:
    return tuple(sorted(counted.items()))


# A question that is explained and created solves for the same noise each time, some tenths of a second a time.
@lru_cache(maxsize=64)
def _solved(
    answer: AnswerLaw,
    own_sizes: _Sizes,
    held_sizes: tuple[_Sizes, ...],
    epsilon: Fraction,
    delta: Fraction,
    law: type[PlannedNoise],
    spread: Spread,
) -> PlannedNoise:
    own, held = Counter(dict(own_sizes)), [Counter(dict(sizes)) for sizes in held_sizes]

    def printed(noise: PlannedNoise) -> Fraction:
        return max(_printed(spread.design(answer, noise), sizes, delta) for sizes in (own, *held))

    def charged(noise: GaussianNoise) -> tuple[Fraction, int]:
        """Return what a ledger adds up and prints, and the order at which it does."""
        design = spread.design(answer, noise)
        budget = budget_for(design, held, epsilon, delta)
        spent = max(budget.spent(units_vector(design, budget.orders, sizes)) for sizes in held)
        shown = Fraction(rounded_up(Fraction(spent), _PLACES))
        # What is printed of this question is no more than what a ledger adds up for answers that contain its own.
        contained = any(own <= sizes for sizes in held)
        return shown if contained else max(shown, _printed(design, own, delta)), budget.orders[0]

    def at_order(noise: GaussianNoise, order: int) -> Fraction:
        """Return the Renyi loss at one order over the largest one that keeps the promise there, which is above 0."""
        budget = LossBudget(epsilon=epsilon, delta=delta, orders=(order,))
        lost = max(units_vector(spread.design(answer, noise), budget.orders, sizes).at[0] for sizes in held)
        return Fraction(lost, max(budget.limits[0], 1))

    if law is GaussianNoise:
        usual, most = LossBudget.for_promise(epsilon, delta).orders[0], LARGEST_SD * _SD_GRID / near_sqrt(spread.widest)
        return _weakest_gaussian(charged, at_order, epsilon, usual, int(most))
    if law is TwoSidedNoise or law is OneSidedNoise:
        return _weakest_geometric(law, lambda noise: printed(noise) / epsilon)
    raise MechanismError(f"noise is {law.__name__}, allowed: GaussianNoise, TwoSidedNoise, OneSidedNoise")


def _printed(design: Design, sizes: Counter[int], delta: Fraction) -> Fraction:
    return Fraction(rounded_up(units_loss(design, sizes, delta), _PLACES))


def _gaussian(step: int) -> GaussianNoise:
    return GaussianNoise(Fraction(step, _SD_GRID) ** 2)


def _weakest_gaussian(
    charged: Callable[[GaussianNoise], tuple[Fraction, int]],
    at_order: Callable[[GaussianNoise, int], Fraction],
    epsilon: Fraction,
    usual: int,
    most: int,
) -> GaussianNoise:
    least = _SD_GRID // 2

    @cache
    def charge(step: int) -> tuple[Fraction, int]:
        return charged(_gaussian(step))

    def keeps(step: int) -> bool:
        return charge(step)[0] <= epsilon

    def excess(order: int, step: int) -> float:
        return _log(at_order(_gaussian(step), order))

    # Finding the best order takes several times the work of one order that is given, and it hardly depends on the
    # noise: the step is searched at the order of direct answers, then at the best one there. `keeps` alone decides.
    order, guess = usual, least
    for _ in range(_ORDERS):
        guess = _root(partial(excess, order), least, most)
        if (best := charge(guess)[1]) == order:
            break
        order = best
    step = _first(keeps, *_around(keeps, guess, least, most))
    if step is None:
        # The loss is convex in 1/sd and vanishes with it: t times the noise lose t times less, or still less.
        raise _beyond(ceil(Fraction(most, _SD_GRID) * charge(most)[0] / epsilon))
    return _gaussian(step)


def _weakest_geometric(law: type[_Geometric], share: Callable[[PlannedNoise], Fraction]) -> _Geometric:
    most = LARGEST_PLANNED_EPSILON * _EPSILON_GRID

    @cache
    def at(value: int) -> Fraction:
        return share(law(Fraction(value, _EPSILON_GRID)))

    # Steps go from weak to strong noise, so that the first one that keeps the promise is the weakest.
    guess = most - _root(lambda value: -_log(at(value)), 1, most)
    step = _first(lambda one: at(most - one) <= 1, *_around(lambda one: at(most - one) <= 1, guess, 0, most - 1))
    if step is None:
        raise _beyond(None)
    noise = law(Fraction(most - step, _EPSILON_GRID))
    if noise.draw_variance > LARGEST_SD**2:
        raise _beyond(ceil(sqrt(noise.draw_variance)))
    return noise


def _first(keeps: Callable[[int], bool], least: int, most: int) -> int | None:
    """Return the first step in `least`..`most` that keeps the promise, None if no step does; the loss decreases."""
    if keeps(least):
        return least
    if not keeps(most):
        return None
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _root(excess: Callable[[int], float], least: int, most: int) -> int:
    """Return about the step at which a decreasing logarithm of loss over promise passes 0; the caller checks it.

    It is nearly linear in the step's logarithm, so the secant is a good guess. The value at an end that has not moved
    twice is halved (the Illinois rule), or that end would never move.
    """
    low, high, above, below = least, most, excess(least), excess(most)
    moved = 0
    for _ in range(_TURNS):
        if high - low <= 1 or not below < 0 < above:
            break
        guess = round(low * (high / low) ** (above / (above - below)))
        middle = min(max(guess, low + 1), high - 1)
        found = excess(middle)
        if found > 0:
            low, above, below, moved = middle, found, below / 2 if moved > 0 else below, 1
        else:
            high, above, below, moved = middle, above / 2 if moved < 0 else above, found, -1
    return high if above > 0 else low


def _around(keeps: Callable[[int], bool], guess: int, least: int, most: int) -> tuple[int, int]:
    """Return a bracket of the first step that keeps the promise, as narrow as the guess is good."""
    width = 1
    if keeps(guess):
        low = max(guess - width, least)
        while low > least and keeps(low):
            guess, width = low, 4 * width
            low = max(guess - width, least)
        return low, guess
    high = min(guess + width, most)
    while high < most and not keeps(high):
        guess, width = high, 4 * width
        high = min(guess + width, most)
    return guess, high


def _log(share: Fraction) -> float:
    return log(min(max(share, _TINY), _HUGE))


def _beyond(needed: int | None) -> InfeasibleTargetError:
    known = needed is not None and needed <= _LARGEST_REPORTED_SD
    found = f"noise of a standard deviation of {needed}" if known else "more noise than a million"
    return InfeasibleTargetError(f"the promise needs {found}, allowed: at most {LARGEST_SD} an aggregator")


def sd_of_cell(design: Design) -> float:
    """Return the standard deviation of an empty cell's estimate in one window: k noises, divided by p when sampling."""
    hit, miss = (float(one) for one in design.channel)
    return sqrt(design.aggregators * float(design.noise.draw_variance)) / (hit - miss)
