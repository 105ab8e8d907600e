"""The device's privacy budget: what was answered or reserved, what it costs, and whether more fits.

Rules over rows only. The spool stores the rows; nothing here reads a clock, a truth or a file.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import inf, lcm
from operator import add
from typing import Final

from fleetcount_mechanisms.accounting.charges import (
    exposure_of,
    ledger_budget,
    unit_loss,
    window_loss,
)
from fleetcount_mechanisms.accounting.periods import LossFilter, PeriodTotals, TimedLoss
from fleetcount_mechanisms.accounting.vectors import LossBudget, LossVector
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import signals_text

from fleetcount_client.charges import Charge, unit_id
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal, Trust

_NEVER: Final = -(1 << 61)


@lru_cache(maxsize=16)
def budget_of(policy: OwnerPolicy, orders: tuple[int, ...] | None = None) -> LossBudget:
    """Return the filter that holds a policy's promise at these orders, by default at the one that suits direct answers.

    Charges that may share a period have the same orders, chosen before the first of them is answered
    (`Ledger.orders_for`): then they are constants of every period, as the proof wants them.
    """
    if orders is None:
        return LossBudget.for_promise(policy.total_epsilon, policy.total_delta)
    return LossBudget(epsilon=policy.total_epsilon, delta=policy.total_delta, orders=orders)


class Ledger:
    """The charges of one device, and what they add up to in every period."""

    __slots__ = ("_charges", "_latest", "_totals", "changes")

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self.changes = 0
        self._charges = {charge.charge_id: charge for charge in charges}
        self._totals: _Totals | None = None
        self._latest = max((charge.asked_at for charge in self._charges.values() if charge.sent), default=_NEVER)

    def get(self, charge_id: bytes) -> Charge | None:
        """Return the charge of an id, None when there is none."""
        return self._charges.get(charge_id)

    def __len__(self) -> int:
        return len(self._charges)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge, oldest first."""
        return tuple(sorted(self._charges.values(), key=lambda charge: (charge.asked_at, charge.charge_id)))

    def dated(self, charge: Charge) -> Charge:
        """Return a charge as it is held: one over before something that was sent already lasts until then.

        Only a clock that was set back lets a device answer in such an order; it refunds nothing.
        """
        if charge.asked_until > self._latest:
            return charge
        return replace(charge, asked_until=self._latest + 1, counts_until=None)

    def new(self, charges: Iterable[Charge]) -> list[Charge]:
        """Return the charges that are not held, as they would be."""
        return [self.dated(charge) for charge in charges if charge.charge_id not in self._charges]

    def orders_for(self, question: Question, policy: OwnerPolicy) -> tuple[int, ...]:
        """Return the orders at which a question is charged: those of what it may share a period with, if there is any.

        Otherwise those of the policy, unless the question's answers are within the promise at the order that suits
        them best, and not at those. The order follows from what is asked, before anything of it is answered.
        """
        schedule, period_s = question.schedule, policy.budget_period_s
        first, last = schedule.opens(0) - period_s, schedule.end + period_s
        near = [
            charge.loss.orders
            for charge in self._charges.values()
            if charge.loss is not None
            and charge.promise == policy.promise
            and charge.asked_at < last
            and charge.asked_until > first
        ]
        return near[0] if near else _own_orders(question, policy)

    def judge(self, policy: OwnerPolicy, new: Sequence[Charge]) -> PolicyRefusal | None:
        """Return why charges do not fit together with what is held; None when they do.

        What is looked at is every period of `budget_period_s` that touches one of them, past and future.
        """
        return self._totals_for(policy).judge([*map(self.dated, new)])

    def judge_reserved(self, policy: OwnerPolicy, charge_id: bytes) -> PolicyRefusal | None:
        """Return why a reservation that is used now does not fit; None when it does.

        It was judged when it was made, and is judged again only where it lasts longer by now (`dated`).
        """
        held = self._charges[charge_id]
        if self.dated(held) is held:
            return None
        self.drop(charge_id)
        try:
            return self.judge(policy, [held])
        finally:
            self.put(held)

    def put(self, charge: Charge) -> None:
        """Take a charge into the sums, in the place of one of the same id."""
        self.drop(charge.charge_id)
        self._charges[charge.charge_id] = charge
        if charge.sent:
            self._latest = max(self._latest, charge.asked_at)
        if self._totals is not None:
            self._totals.put(charge)

    def drop(self, charge_id: bytes) -> None:
        """Take a charge out of the sums, if it is there."""
        self.changes += 1
        old = self._charges.pop(charge_id, None)
        if old is not None and self._totals is not None:
            self._totals.drop(old)

    def sent(self, charge: Charge) -> None:
        """Note that something was sent for a reservation, which may last longer by now."""
        held, used = self._charges[charge.charge_id], replace(charge, sent=True)
        if held.asked_until != used.asked_until:
            self.put(used)
            return
        self.changes += 1
        self._charges[charge.charge_id] = used  # Its sums stay.
        self._latest = max(self._latest, used.asked_at)

    def _totals_for(self, policy: OwnerPolicy) -> "_Totals":
        # One at a time: a device has one policy, mostly the same object.
        if self._totals is None or self._totals.policy is not policy:
            self._totals = _Totals(policy, self._charges.values())
        return self._totals


_Kind = tuple[str, tuple[int, ...]]


def _kind(charge: Charge) -> _Kind | None:
    """Return under which promise and at which orders a charge was made, None without a finite loss."""
    return None if charge.loss is None else (charge.promise, charge.loss.orders)


class _Totals:
    """What the charges of a ledger come to under one policy: a filter for each order, and what these cannot hold."""

    def __init__(self, policy: OwnerPolicy, charges: Iterable[Charge]) -> None:
        self.policy = self._policy = policy
        self._promise = policy.promise
        self._filters: dict[tuple[int, ...], LossFilter] = {}
        self._held: dict[_Kind, dict[bytes, Charge]] = {}
        self._newest: tuple[Charge, TimedLoss | None] | None = None
        self._seen = _Exposures(policy.budget_period_s) if policy.trust is Trust.NO_OPERATOR else None
        for charge in charges:
            self.put(charge)

    def put(self, charge: Charge) -> None:
        if (kind := _kind(charge)) is not None:
            self._held.setdefault(kind, {})[charge.charge_id] = charge
        if self._seen is not None:
            self._seen.put(charge)
        if (timed := self._timed(charge)) is not None:
            self._filter(timed).add(timed)

    def drop(self, charge: Charge) -> None:
        if (kind := _kind(charge)) is not None:
            del self._held[kind][charge.charge_id]
        if self._seen is not None:
            self._seen.drop(charge)
        if (timed := self._timed(charge)) is not None:
            self._filter(timed).remove(timed)

    def judge(self, new: Sequence[Charge]) -> PolicyRefusal | None:
        found = self._judge_kind(new) or self._judge_way(new)
        return found or self._judge_losses(new) or self._judge_exposure(new)

    def _filter(self, timed: TimedLoss) -> LossFilter:
        orders = timed.loss.orders
        if orders not in self._filters:
            self._filters[orders] = LossFilter(budget_of(self._policy, orders), self._policy.budget_period_s)
        return self._filters[orders]

    def _timed(self, charge: Charge) -> TimedLoss | None:
        """Return a charge as the filter takes it; None when it has no finite loss, or one under another promise."""
        if self._newest is not None and self._newest[0] is charge:
            return self._newest[1]  # It was judged, and is put now.
        timed = None
        if charge.loss is not None and charge.promise == self._promise:
            timed = TimedLoss(first=charge.asked_at, last=charge.last, loss=charge.loss)
        self._newest = charge, timed
        return timed

    def _judge_kind(self, new: Sequence[Charge]) -> PolicyRefusal | None:
        # What was charged under other limits or orders cannot be charged anew under these: they never share a period.
        kinds = {*map(_kind, new)} - {None}
        if len(kinds) == 1 and self._held.keys() <= kinds:
            return None  # Mostly so, and a charge is judged beside thousands.
        others = [held for kind, some in self._held.items() if kinds - {kind} for held in some.values()]
        if (free := self._free_of(others, new)) is None:
            return None
        period_s = self._policy.budget_period_s
        message = (
            "this ledger holds charges under another total_epsilon, total_delta or budget_period_s, or counted at other"
            f" orders; the new ones are for what is asked {period_s} s after the last of them, from Unix time {free} on"
        )
        return PolicyRefusal(rule="changed_limits", message=message)

    def _judge_way(self, new: Sequence[Charge]) -> PolicyRefusal | None:
        # Losses add up over the changes that all of them cover ([ADP] Theorem VIII.6); two ways have none in common.
        ways = {one.relation for one in new if one.relation.one_way}
        if not ways:
            return None
        held = [one for some in self._held.values() for one in some.values() if one.relation.one_way]
        if (free := self._free_of([one for one in held if ways - {one.relation}], new)) is None:
            return None
        message = (
            "the release hides one way what others of the same budget period hide the other way; together they would"
            f" promise nothing; it is for what is asked from Unix time {free} on"
        )
        return PolicyRefusal(rule="allow_one_sided", message=message)

    def _free_of(self, others: Sequence[Charge], new: Sequence[Charge]) -> int | None:
        """Return from when on no period holds a new charge and one of the others, None if none does now."""
        if not others:
            return None
        period_s = self._policy.budget_period_s
        first, last = min(one.asked_at for one in new), max(one.asked_until for one in new)
        near = [one for one in others if one.asked_at < last + period_s and one.asked_until > first - period_s]
        return max(one.asked_until for one in near) + period_s if near else None

    def _judge_losses(self, new: Sequence[Charge]) -> PolicyRefusal | None:
        losses = [*filter(None, map(self._timed, new))]
        taken: list[TimedLoss] = []
        over: PolicyRefusal | None = None
        try:
            for timed in losses:
                held = self._filter(timed)
                if not held.admits(timed):
                    what = f"epsilon at delta {self._policy.total_delta}"
                    over = self._over("total_epsilon", what, held.spent_with(timed))
                    break
                # Each is judged beside those before it; nothing is judged beside the last.
                if timed is not losses[-1]:
                    held.add(timed)
                    taken.append(timed)
        finally:
            for timed in taken:
                self._filter(timed).remove(timed)
        if over is None or (later_s := self._fits_after(losses)) is None:
            return over
        moment = utc_text(losses[0].first + later_s)
        return replace(over, message=f"{over.message}; the same would fit if it began {later_s} s later, at {moment}")

    def _fits_after(self, losses: Sequence[TimedLoss]) -> int | None:
        """Return after how many seconds charges that do not fit now would, None if they never do."""

        def fits(later_s: int) -> bool:
            moved = [TimedLoss(first=one.first + later_s, last=one.last + later_s, loss=one.loss) for one in losses]
            known = self._filter(losses[0])
            if not known.admit(moved):
                return False
            for one in moved:
                known.remove(one)
            return True

        held = self._held.get((self._promise, losses[0].loss.orders), {}).values()
        low, high = 0, max((one.last for one in held), default=0) - losses[0].first + self._policy.budget_period_s
        if high <= 0 or not fits(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def _judge_exposure(self, new: Sequence[Charge]) -> PolicyRefusal | None:
        policy = self._policy
        if self._seen is None:
            return None
        chance, answers = self._seen.most_with(new)
        if chance > policy.largest_chance:
            return self._over("largest_chance", "the chance that all operators together see an answer", chance)
        if answers > policy.largest_expected_answers:
            return self._over("largest_expected_answers", "the answers that all operators together would see", answers)
        return None

    def _over(self, rule: str, what: str, value: Decimal | Fraction) -> PolicyRefusal:
        shown, limit = float(value), float(getattr(self._policy, rule))
        message = (
            f"{what} would add up to {shown:.15g} within {self._policy.budget_period_s} s; the limit is {limit:.15g}"
        )
        return PolicyRefusal(rule=rule, message=message)


class _Exposures:
    """What all operators together may have seen in every period: sums of chances and of answers, in one unit."""

    def __init__(self, period_s: int) -> None:
        self._denominator = 1
        self._totals = PeriodTotals(period_s, 2)

    def put(self, charge: Charge) -> None:
        row = self._row(charge)
        self._totals.add(charge.asked_at, charge.last, row)

    def drop(self, charge: Charge) -> None:
        row = self._row(charge)
        self._totals.remove(charge.asked_at, charge.last, row)

    def most_with(self, new: Sequence[Charge]) -> tuple[Fraction, Fraction]:
        """Return the largest sums of both in any period that touches a new charge."""
        most = Fraction(0), Fraction(0)
        for number, charge in enumerate(new):
            # As the losses: a period with two new charges is seen whole with the later one.
            if number:
                self.put(new[number - 1])
            chance, answers = map(add, self._row(charge), self._totals.largest(charge.asked_at, charge.last))
            found = Fraction(chance, self._denominator), Fraction(answers, self._denominator)
            most = max(most[0], found[0]), max(most[1], found[1])
        for charge in new[:-1]:
            self.drop(charge)
        return most

    def _row(self, charge: Charge) -> tuple[int, int]:
        """Return both numbers in the unit, which is made finer for what is no multiple of it."""
        denominator = lcm(self._denominator, charge.exposure.denominator, charge.answers.denominator)
        if denominator != self._denominator:
            self._totals.scale(denominator // self._denominator)
            self._denominator = denominator
        chance, answers = (
            share.numerator * (denominator // share.denominator) for share in (charge.exposure, charge.answers)
        )
        return chance, answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Totals of a set of charges; `without_epsilon` counts those that had no finite loss to add.

    `epsilon` holds at the policy's delta. With `one_sided` ones among them it holds for a value replaced by none only:
    for that change every any-value loss holds too, for any other a one-sided one does not. `chance` bounds the chance
    that all operators together see any of the answers, `answers` is how many they are expected to see.
    """

    charges: int
    epsilon: Decimal
    chance: Fraction
    answers: Fraction
    without_epsilon: int
    one_sided: int


def spent_within(policy: OwnerPolicy, charges: Iterable[Charge], start: int, end: float = inf) -> Spent:
    """Return the totals of the charges that count after `start` and before `end`.

    Time is the windows' own signed time, not the device's clock: a clock that is set wrong refunds nothing.
    """
    held = [charge for charge in charges if charge.last > start and charge.asked_at < end]
    totals: dict[tuple[int, ...], LossVector] = {}
    for charge in held:
        if charge.loss is not None:
            orders = charge.loss.orders
            totals[orders] = totals.get(orders, LossVector.nothing(orders)) + charge.loss
    return Spent(
        charges=len(held),
        epsilon=max((budget_of(policy, at).spent(total) for at, total in totals.items()), default=Decimal(0)),
        chance=sum((charge.exposure for charge in held), Fraction(0)),
        answers=sum((charge.answers for charge in held), Fraction(0)),
        without_epsilon=sum(charge.loss is None for charge in held),
        one_sided=sum(charge.relation.one_way for charge in held),
    )


# What joining a question costs a device: one charge for every window it answers, or for every unit that shares a coin.
#
# They follow from the signed question, the owner's policy and the time of joining, never from a truth, a coin or a
# place.


def charges_of_question(
    question: Question,
    policy: OwnerPolicy,
    begin: float,
    unknown_before: float,
    skipped: Iterable[range] = (),
    ledger: Ledger | None = None,
) -> tuple[Charge, ...]:
    """Return the charges of a question for a device that joins so that it answers from `begin` on (Unix seconds).

    They are at the orders that `ledger` wants, without one at those of an empty ledger.
    A unit is charged for the windows that are left of it. One that began before `unknown_before` is left out: this
    device may have answered in it with a coin it has forgotten.
    """
    orders = (Ledger() if ledger is None else ledger).orders_for(question, policy)
    units = open_units(question, begin, skipped)
    opens = question.schedule.opens
    members = question.schedule.units(question.coin)
    return tuple(
        _charge(question, policy, orders, unit, windows)
        for unit, windows in units.items()
        if opens(members[unit][0]) >= unknown_before
    )


def windows_of_others(question: Question, slot: int) -> tuple[range, ...]:
    """Return the windows in which a device is not asked, whose one in `one_in` windows is `slot`, 0 to one_in - 1."""
    windows = question.schedule.windows
    own = range(slot, windows, question.one_in)
    return tuple(range(last + 1, nxt) for last, nxt in pairwise((-1, *own, windows)))


def open_units(question: Question, begin: float, skipped: Iterable[range] = ()) -> dict[int, tuple[int, ...]]:
    """Return the windows of every unit whose first round has not closed at `begin` and that no order skips."""
    left_out = {index for one in skipped for index in one}
    schedule = question.schedule
    found = {
        unit: tuple(i for i in windows if schedule.opens(i) + schedule.round_one_s > begin and i not in left_out)
        for unit, windows in schedule.units(question.coin).items()
    }
    return {unit: windows for unit, windows in found.items() if windows}


@lru_cache(maxsize=32)
def _charge(
    question: Question, policy: OwnerPolicy, orders: tuple[int, ...], unit: int, windows: tuple[int, ...]
) -> Charge:
    design = question.design
    loss = _loss(design, orders, len(windows), question.coin is Coin.WINDOW)
    exposure = exposure_of(design.exposure, len(windows))
    pure = loss is not None and loss.pure is not None and len(windows) == 1
    opens, round_one_s = question.schedule.opens, question.schedule.round_one_s
    until = opens(windows[-1]) + round_one_s
    # A window that outlasts the period counts while it is open.
    at_once = len(windows) == 1 and round_one_s <= policy.budget_period_s
    return Charge(
        charge_id=unit_id(question.question_id, unit),
        name=question.name,
        signal=signals_text(question.parts),
        asked_at=opens(windows[0]),
        asked_until=until,
        counts_until=opens(windows[0]) if at_once else until,
        epsilon=ledger_loss_of(design).epsilon if pure else None,
        exposure=exposure.chance,
        answers=exposure.answers,
        relation=design.charge_relation,
        promise=policy.promise,
        loss=loss,
        question_id=question.question_id,
        sent=False,
    )


@lru_cache(maxsize=16)
def _own_orders(question: Question, policy: OwnerPolicy) -> tuple[int, ...]:
    own, period_s = Counter(question.shape.units), policy.budget_period_s
    ways = [(own,)] if question.schedule.windows == 1 else [question.schedule.followed(question.coin, period_s), (own,)]
    return ledger_budget(question.design, ways, policy.total_epsilon, policy.total_delta).orders


@lru_cache(maxsize=256)
def _loss(design: Design, orders: tuple[int, ...], windows: int, fresh_coins: bool) -> LossVector | None:
    try:
        return (window_loss if fresh_coins else unit_loss)(design, orders, windows)
    except MechanismError:
        return None
