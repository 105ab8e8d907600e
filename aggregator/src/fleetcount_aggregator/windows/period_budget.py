"""What questions on one signal lose in a period, one after the other and together, and whether one more fits.

Pure over charges; a charge counts whole in every period that holds a part of it. It must not store or decide who asks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

from fleetcount_mechanisms.accounting.charges import unit_loss
from fleetcount_mechanisms.accounting.periods import LossFilter, TimedLoss
from fleetcount_mechanisms.accounting.vectors import LossBudget, LossVector
from fleetcount_mechanisms.design import Design
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import normal_signal

from fleetcount_aggregator.context import Limits


class Unit(NamedTuple):
    """Windows that share one toss of the sampling coin, or one window: first and last second, and how many."""

    first: int
    last: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodCharge:
    """What a question is charged: the loss of one unit of its design, at each unit's time."""

    signal: str
    design: Design
    units: tuple[Unit, ...]

    def timed(self, orders: tuple[int, ...]) -> list[TimedLoss]:
        """Return the losses with their times; none for a release without a finite loss, which has its own switch."""
        if not (self.design.noised or self.design.device_randomizes):
            return []

        @cache
        def loss(windows: int) -> LossVector:
            return unit_loss(self.design, orders, windows)

        return [TimedLoss(first=unit.first, last=unit.last, loss=loss(unit.windows)) for unit in self.units]


def question_charge(question: Question, stopped: int | None = None) -> PeriodCharge:
    """Return what a question is charged: every unit that has a window before `stopped`, whole.

    Pauses and missing windows give nothing back, and a stop nothing of a unit that has begun.
    """
    schedule = question.schedule
    units = (
        Unit(schedule.opens(windows[0]), schedule.closes(windows[-1]) - 1, len(windows))
        for windows in schedule.units(question.coin).values()
        if stopped is None or windows[0] < stopped
    )
    return PeriodCharge(signal=normal_signal(question.signal), design=question.design, units=tuple(units))


@lru_cache(maxsize=4)
def _budget(epsilon: Decimal, delta: Fraction) -> LossBudget:
    return LossBudget.for_promise(Fraction(epsilon), delta)


def check_period(new: PeriodCharge, others: Iterable[PeriodCharge], limits: Limits) -> None:
    """Refuse a charge with which the charges on its signal would pass the limit in some period, past or to come.

    Signals are compared in their normal form; names play no part. The charges of a period compose by their Renyi
    losses at the order that follows from the limit, or by their pure losses where these are less.

    Raises:
        QuestionError: with the largest sum and the limit.
    """
    budget = _budget(limits.period_epsilon, limits.total_delta)
    held = [loss for one in others if one.signal == new.signal for loss in one.timed(budget.orders)]
    added = new.timed(budget.orders)
    known = LossFilter(budget, limits.budget_period_s, held)
    if known.admit(added):
        return
    for one in added:
        known.add(one)
    largest = _spent(known, [one.last for one in (*held, *added)])
    raise QuestionError(
        f"the questions on {new.signal!r} lose epsilon {largest.normalize():f} at delta"
        f" {float(limits.total_delta):g} within {limits.budget_period_s} s, allowed: at most {limits.period_epsilon}"
    )


def spent_from(moment: int, charges: Iterable[PeriodCharge], limits: Limits) -> Mapping[str, Decimal]:
    """Return what each signal's charges come to in the fullest period that holds a moment or comes after it.

    An epsilon at `total_delta`, as `check_period` adds it up; signals in their normal form, those without a charge in
    such a period left out.
    """
    budget, since = _budget(limits.period_epsilon, limits.total_delta), moment - limits.budget_period_s
    held: dict[str, list[TimedLoss]] = {}
    for charge in charges:
        held.setdefault(charge.signal, []).extend(one for one in charge.timed(budget.orders) if one.last > since)
    return {
        signal: _spent(LossFilter(budget, limits.budget_period_s, losses), [since + 1, *(one.last for one in losses)])
        for signal, losses in held.items()
        if losses
    }


def _spent(known: LossFilter, starts: Iterable[int]) -> Decimal:
    # What a period holds falls only behind the end of a charge: the fullest begins at one.
    return max(known.budget.spent(known.total(start)) for start in starts)
