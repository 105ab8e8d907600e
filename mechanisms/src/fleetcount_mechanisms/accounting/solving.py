"""The weakest noise with which the printed statement of a whole question is within a promise.

It must not choose noise that loses more than the promise: parameters are rounded towards stronger noise.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil, log, sqrt
from typing import Final

from fleetcount_mechanisms.accounting.charges import budget_for, units_vector
from fleetcount_mechanisms.accounting.question_losses import units_loss
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET, ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.design import Design, Spread
from fleetcount_mechanisms.errors import (
    InfeasibleTargetError,
    MechanismError,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import LARGEST_PLANNED_EPSILON, PlannedNoise
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import near_sqrt, rounded_up

LARGEST_SD: Final = 10_000
"""The largest standard deviation of one aggregator's noise that is planned."""
_SD_GRID: Final = 1000
_EPSILON_GRID: Final = 10**6
_PLACES: Final = 5
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

    def loss(noise: PlannedNoise) -> Fraction:
        design = spread.design(answer, noise)
        if not isinstance(noise, GaussianNoise):
            return max(_printed(design, sizes, delta) for sizes in (own, *held))
        budget = budget_for(design, held, epsilon, delta)
        charged = max(budget.spent(units_vector(design, budget.orders, sizes)) for sizes in held)
        shown = Fraction(rounded_up(Fraction(charged), _PLACES))
        # What is printed of this question is no more than what a ledger adds up for answers that contain its own.
        return shown if any(own <= sizes for sizes in held) else max(shown, _printed(design, own, delta))

    if law is GaussianNoise:
        return _weakest_gaussian(loss, epsilon, int(LARGEST_SD * _SD_GRID / near_sqrt(spread.widest)))
    if law is TwoSidedNoise or law is OneSidedNoise:
        return _weakest_geometric(law, lambda noise: loss(noise) <= epsilon)
    raise MechanismError(f"noise is {law.__name__}, allowed: GaussianNoise, TwoSidedNoise, OneSidedNoise")


def _printed(design: Design, sizes: Counter[int], delta: Fraction) -> Fraction:
    return Fraction(rounded_up(units_loss(design, sizes, delta), _PLACES))


def _gaussian(step: int) -> GaussianNoise:
    return GaussianNoise(Fraction(step, _SD_GRID) ** 2)


def _weakest_gaussian(loss: Callable[[GaussianNoise], Fraction], epsilon: Fraction, most: int) -> GaussianNoise:
    @cache
    def share(step: int) -> Fraction:
        return loss(_gaussian(step)) / epsilon

    step = _first(lambda one: share(one) <= 1, *_near(share, _SD_GRID // 2, most))
    if step is None:
        # The loss is convex in 1/sd and vanishes with it: t times the noise lose t times less, or still less.
        raise _beyond(ceil(Fraction(most, _SD_GRID) * loss(_gaussian(most)) / epsilon))
    return _gaussian(step)


def _weakest_geometric(law: type[_Geometric], keeps: Callable[[PlannedNoise], bool]) -> _Geometric:
    most = LARGEST_PLANNED_EPSILON * _EPSILON_GRID
    # Steps go from weak to strong noise, so that the first one that keeps the promise is the weakest.
    step = _first(lambda one: keeps(law(Fraction(most - one, _EPSILON_GRID))), 0, most - 1)
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


def _near(share: Callable[[int], Fraction], least: int, most: int) -> tuple[int, int]:
    """Return a narrow bracket around the step where `share`, loss over promise, which decreases, passes 1.

    It is nearly a power of the step, so the secant of its logarithm is a good guess. The value at an end that has not
    moved twice is halved (the Illinois rule), or that end would never move; `_first` bisects the rest.
    """
    low, high, above, below = least, most, *(_log(share(one)) for one in (least, most))
    moved = 0
    for _ in range(_TURNS):
        if high - low <= 1 or not below < 0 < above:
            break
        guess = round(low * (high / low) ** (above / (above - below)))
        middle = min(max(guess, low + 1), high - 1)
        found = _log(share(middle))
        if found > 0:
            low, above, below, moved = middle, found, below / 2 if moved > 0 else below, 1
        else:
            high, above, below, moved = middle, above / 2 if moved < 0 else above, found, -1
    return low, high


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
