"""The privacy budget of this aggregator: the charges of questions by signal, window and period, and their limits.

The rules are pure; `check_budgets` reads the installed questions. The store writes the debit itself, in the transaction
that stores the noised share (`release.steps`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

from fleetcount_mechanisms.accounting.charges import ledger_budget, unit_loss
from fleetcount_mechanisms.accounting.periods import LossFilter, TimedLoss
from fleetcount_mechanisms.accounting.vectors import LossBudget, LossVector
from fleetcount_mechanisms.design import Design, LedgerLoss
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import Part, signals_text
from fleetcount_protocol.window.signal import normal_signal
from fleetcount_protocol.window.window import Window

from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.ended import read_costs
from fleetcount_aggregator.storage.row_types import Charged, Cost, LedgerRow

NO_FINITE_EPSILON = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The loss of one window's release on its signals in [opens, closes), Unix seconds, with its relation.

    A question for several signals at once is charged whole on each of them.
    """

    signals: tuple[str, ...]
    opens: int
    closes: int
    loss: LedgerLoss


def charge_of(window: Window) -> Charge:
    """Return the charge of a window: the loss in the public view of its release (docs/privacy.md)."""
    return Charge(
        signals=_signals(window.parts),
        opens=window.round_one_opens,
        closes=max(window.round_one_closes, window.round_two_closes),
        loss=ledger_loss_of(window.design),
    )


def charge_of_question(question: Question, stopped: int | None = None) -> Charge:
    """Return the charge of a question for overlaps: the loss of one window, until its last window or a stop."""
    schedule = question.schedule
    closes = schedule.end if stopped is None else schedule.closes(max(0, stopped - 1))
    loss = ledger_loss_of(question.design)
    return Charge(signals=_signals(question.parts), opens=schedule.opens(0), closes=closes, loss=loss)


def _signals(parts: Iterable[Part]) -> tuple[str, ...]:
    return tuple(normal_signal(part.signal) for part in parts)


def debit_row(window: Window, now: int) -> LedgerRow:
    """Return the ledger row of a window's release."""
    charge = charge_of(window)
    return LedgerRow(
        window_id=window.window_id,
        signal=signals_text(window.parts),
        opens=charge.opens,
        closes=charge.closes,
        epsilon=NO_FINITE_EPSILON if charge.loss.epsilon is None else str(charge.loss.epsilon),
        debited_at=now,
    )


def check_budget(new: Charge, others: Iterable[Charge], limits: Limits) -> None:
    """Refuse a window whose loss, added to those of all windows that overlap on the same signal, is too large.

    The limit applies to the new window and to every window it overlaps: two short windows that do not touch each other
    may both overlap a long one. Names do not matter: a question under a new name counts again. Signals are compared in
    their normal form; windows one after the other add up in `check_period`. The sum is for any value replaced by any
    other; with one-sided charges in it for a value replaced by none. Epsilons at a delta add up, and so do their
    deltas, whose sum must not exceed `total_delta`.

    Raises:
        QuestionError: the sum is above the limit, which both are in the message, or the kind of release is not allowed.
    """
    relation = new.loss.relation
    if relation.one_way and not limits.allow_one_sided:
        raise QuestionError(
            f"the release hides {relation.hidden} only ({relation.value}); allowed only with [limits] allow_one_sided ="
            " true"
        )
    if new.loss.epsilon is None:
        if not limits.allow_exact_release:
            raise QuestionError(
                "the release has no finite epsilon; allowed only with [limits] allow_exact_release = true"
            )
        return
    rest = list(others)
    for signal in new.signals:
        _check_overlaps(signal, new, [new, *(one for one in rest if signal in one.signals)], limits)


def _check_overlaps(signal: str, new: Charge, everyone: Sequence[Charge], limits: Limits) -> None:
    for one in everyone:
        if not _overlaps(new, one):
            continue
        losses = [two.loss for two in everyone if _overlaps(one, two) and two.loss.epsilon is not None]
        total = sum((loss.epsilon or Decimal(0) for loss in losses), Decimal(0))
        delta = sum((loss.delta for loss in losses), Decimal(0))
        if delta > limits.total_delta:
            raise QuestionError(
                f"delta {new.loss.delta:f} and those of the questions that overlap on {signal!r} sum to {delta:f},"
                f" allowed: at most {float(limits.total_delta):g}"
            )
        if total > limits.largest_epsilon:
            raise QuestionError(
                f"epsilon {new.loss.epsilon} ({new.loss.relation.value}) and the questions that overlap on {signal!r}"
                f" sum to {total}, allowed: at most {limits.largest_epsilon}"
            )


def _overlaps(one: Charge, other: Charge) -> bool:
    return one.opens < other.closes and other.opens < one.closes


# In a period windows add up, overlapping or not; a charge counts whole in every period that contains a part of it.


class Unit(NamedTuple):
    """The windows of one toss of the sampling coin, or one window: first and last second, and the number of windows.

    As in ledgers of devices, one window counts at the second it opens, several that share a coin from the first to the
    end of the last.
    """

    first: int
    last: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodCharge:
    """The charge of a question in periods: the loss of a unit of its design, at each unit's time.

    `order`: the Renyi order at which it is counted (`order_for`), None for the one that follows from the limit.
    """

    signals: tuple[str, ...]
    design: Design
    units: tuple[Unit, ...]
    order: int | None = None

    def may_share_period(self, other: "PeriodCharge", period_s: int) -> bool:
        """Return whether a period of so many seconds may hold units of both, on a signal that both are charged on."""
        if not self.units or not other.units or set(self.signals).isdisjoint(other.signals):
            return False
        return (
            self.units[0].first < other.units[-1].last + period_s
            and other.units[0].first < self.units[-1].last + period_s
        )

    def timed(self, orders: tuple[int, ...]) -> list[TimedLoss]:
        """Return the losses with their times; [] without a finite loss, which `allow_exact_release` decides about."""
        if not (self.design.noised or self.design.device_randomizes):
            return []

        @cache
        def loss(windows: int) -> LossVector:
            return unit_loss(self.design, orders, windows)

        return [TimedLoss(first=unit.first, last=unit.last, loss=loss(unit.windows)) for unit in self.units]


def question_charge(question: Question, stopped: int | None = None, order: int | None = None) -> PeriodCharge:
    """Return the charge of a question, counted at an order: every unit that has a window before `stopped`, whole.

    Pauses and missing windows refund nothing, and a stop refunds nothing of a unit that has begun.
    """
    schedule = question.schedule
    if (cycle := question.one_in) > 1:
        # A device answers in one window of each cycle, and nobody knows in which.
        firsts = (first for first in range(0, schedule.windows, cycle) if stopped is None or first < stopped)
        ends = ((first, min(first + cycle, schedule.windows) - 1) for first in firsts)
        spans = tuple(Unit(schedule.opens(first), schedule.opens(last), 1) for first, last in ends)
        return PeriodCharge(signals=_signals(question.parts), design=question.design, units=spans, order=order)
    units = (
        Unit(
            schedule.opens(windows[0]),
            schedule.opens(windows[0]) if len(windows) == 1 else schedule.closes(windows[-1]) - 1,
            len(windows),
        )
        for windows in schedule.units(question.coin).values()
        if stopped is None or windows[0] < stopped
    )
    return PeriodCharge(signals=_signals(question.parts), design=question.design, units=tuple(units), order=order)


@lru_cache(maxsize=4)
def _budget(epsilon: Decimal, delta: Fraction, order: int | None = None) -> LossBudget:
    if order is None:
        return LossBudget.for_promise(Fraction(epsilon), delta)
    return LossBudget(epsilon=Fraction(epsilon), delta=delta, orders=(order,))


def order_for(question: Question, others: Iterable[PeriodCharge], limits: Limits) -> int | None:
    """Return the order at which a question is counted, as ledgers of devices choose it (docs/privacy.md, "A question").

    It is that of the charges it may share a period with; without any, the one that follows from the limit (None),
    unless only at its own the question, or such questions one after the other, keep the limit. It is stored with the
    question: chosen anew after a record, it would break the proof.

    Raises:
        QuestionError: those charges are counted at different orders.
    """
    period_s, alone = limits.budget_period_s, question_charge(question)
    near = {one.order for one in others if alone.may_share_period(one, period_s)}
    if len(near) > 1:
        raise QuestionError(
            f"the questions that share {period_s} s with it are counted at {len(near)} Renyi orders, allowed: one; ask"
            f" {period_s} s after those of another"
        )
    if near:
        return near.pop()
    own = (Counter(unit.windows for unit in alone.units),)
    ways = [own] if question.one_in > 1 else [question.schedule.followed(question.coin, period_s), own]
    usual, epsilon = _budget(limits.period_epsilon, limits.total_delta), Fraction(limits.period_epsilon)
    [order] = ledger_budget(question.design, ways, epsilon, limits.total_delta).orders
    return None if (order,) == usual.orders else order


def check_alone(question: Question, limits: Limits) -> None:
    """Refuse a question that is above a limit by itself, whatever else is installed.

    Raises:
        QuestionError: as `check_budget` and `check_period`.
    """
    check_budget(charge_of_question(question), (), limits)
    check_period(question_charge(question, order=order_for(question, (), limits)), (), limits)


def check_period(new: PeriodCharge, others: Iterable[PeriodCharge], limits: Limits) -> None:
    """Refuse a charge with which the charges on its signal would exceed the limit in some period, past or future.

    Signals are compared in their normal form; names do not matter. The charges of a period compose by their Renyi
    losses at the order of the new one, or by their pure losses where these are less.

    Raises:
        QuestionError: with the largest sum and the limit.
    """
    budget = _budget(limits.period_epsilon, limits.total_delta, new.order)
    rest, added = list(others), new.timed(budget.orders)
    _check_ways(new, rest, limits)
    for signal in new.signals:
        held = [loss for one in rest if signal in one.signals for loss in one.timed(budget.orders)]
        _check_period(signal, added, held, budget, limits)


def _check_ways(new: PeriodCharge, others: Iterable[PeriodCharge], limits: Limits) -> None:
    """Refuse a charge one way beside one the other way: losses add up over what all cover ([ADP] Theorem VIII.6)."""
    way, period_s = new.design.charge_relation, limits.budget_period_s
    for one in others:
        other = one.design.charge_relation
        if not (way.one_way and other.one_way and way is not other) or set(one.signals).isdisjoint(new.signals):
            continue
        if new.units[0].first < one.units[-1].last + period_s and one.units[0].first < new.units[-1].last + period_s:
            raise QuestionError(
                f"the release is {way.value}, and one on the same signal within {period_s} s is {other.value}, allowed:"
                " one way; both together would promise nothing"
            )


def _check_period(
    signal: str, added: Sequence[TimedLoss], held: Sequence[TimedLoss], budget: LossBudget, limits: Limits
) -> None:
    known = LossFilter(budget, limits.budget_period_s, held)
    if known.admit(added):
        return
    for one in added:
        known.add(one)
    largest = _spent(known, [one.last for one in (*held, *added)])
    raise QuestionError(
        f"the questions on {signal!r} lose epsilon {largest.normalize():f} at delta"
        f" {float(limits.total_delta):g} within {limits.budget_period_s} s, allowed: at most {limits.period_epsilon}"
    )


def spent_from(moment: int, charges: Iterable[PeriodCharge], limits: Limits) -> Mapping[str, Decimal]:
    """Return the sum of each signal's charges in the fullest period that contains a moment or is later.

    The sum is an epsilon at `total_delta`, by the rule of `check_period`, of what is counted at one order. Signals are
    in their normal form; those without a charge in such a period are left out.
    """
    since, held = moment - limits.budget_period_s, dict[str, dict[LossBudget, list[TimedLoss]]]()
    for charge in charges:
        budget = _budget(limits.period_epsilon, limits.total_delta, charge.order)
        if losses := [one for one in charge.timed(budget.orders) if one.last > since]:
            for signal in charge.signals:
                held.setdefault(signal, {}).setdefault(budget, []).extend(losses)
    return {
        signal: max(
            _spent(LossFilter(budget, limits.budget_period_s, losses), [since + 1, *(one.last for one in losses)])
            for budget, losses in at_orders.items()
        )
        for signal, at_orders in held.items()
    }


def _spent(known: LossFilter, starts: Iterable[int]) -> Decimal:
    # Moving a period to a later start lowers its sum only behind the end of a charge: the fullest starts at such an
    # end.
    return max(known.budget.spent(known.total(start)) for start in starts)


# The installed questions.


def on_signals_of(questions: Questions, new: Question) -> list[InstalledQuestion]:
    """Return the installed questions on a signal that `new` asks about: no other one shares a budget with it."""
    signals = set(_signals(new.parts))
    return [one for one in questions.values() if not signals.isdisjoint(_signals(one.asked.parts))]


async def check_budgets(questions: Questions, windows: Windows, new: Question) -> int | None:
    """Refuse a question that exceeds the budget of overlapping windows or of a period; return `order_for` of it.

    Every question counts, with all its windows, except those that cost nothing.

    Raises:
        QuestionError: the sum is above a limit, or the charges are not known (`_check_charges_known`).
    """
    _check_charges_known(questions, windows)
    limits = questions.host.limits
    costing = await _costing(windows, on_signals_of(questions, new))
    check_budget(charge_of_question(new), [charge_of_question(one.asked, one.stopped) for one in costing], limits)
    others = [question_charge(one.asked, one.stopped, one.order) for one in costing]

    def check() -> int | None:
        order = order_for(new, others, limits)
        check_period(question_charge(new, order=order), others, limits)
        return order

    # In a thread: a year of hourly windows takes a second, in which intake must not wait.
    return await asyncio.to_thread(check)


async def _costing(windows: Windows, questions: Sequence[InstalledQuestion]) -> Sequence[InstalledQuestion]:
    """Return the questions that cost something; one query of the store, for those not known to be debited."""
    unknown = [one for one in questions if not one.was_debited]
    asked = [Charged(one.question_id, one.asked.schedule.windows, one.was_withdrawn) for one in unknown]
    costs = dict(zip((one.question_id for one in unknown), await windows.store.read(read_costs, asked), strict=True))
    for one in unknown:
        one.was_debited = costs[one.question_id] is Cost.DEBITED
    # The damage of a quarantined window may hide its debit: its question counts.
    doubtful = {one.window.question.question_id for one in windows.quarantined.values() if one.window is not None}
    return [one for one in questions if one.question_id in doubtful or costs.get(one.question_id) is not Cost.NOTHING]


def _check_charges_known(questions: Questions, windows: Windows) -> None:
    """Refuse every new question while charges are unknown, because rows are damaged or the store is an old copy.

    Raises:
        QuestionError: charges are unknown; the message says since when and what ends it.
    """
    if questions.adopting:
        raise QuestionError(
            "the store was put back from a backup, and what was charged since is not known; allowed again once every"
            " configured peer has shown what it knows"
        )
    if unknown := windows.unknown_charges():
        raise QuestionError(
            f"what was charged is not known, since in the store {unknown[0]}, {len(unknown)} in all; allowed again"
            " after `fleetcount aggregator repair`"
        )
