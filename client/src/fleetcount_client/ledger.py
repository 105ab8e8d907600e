"""The device's privacy budget: what was answered, what it cost, and whether one more answer fits.

Rules over rows only. The spool stores the rows; nothing here reads a clock, a truth or a file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from fleetcount_mechanisms.answers import Relation
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.task.task import Task

from fleetcount_client.costs import cost_of
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal

__all__ = ["Charge", "Spent", "charge_of", "judge_age", "judge_charge", "spent_since"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One answered task: what it cost against each class of adversary.

    The truth was read at some moment from `asked_at`, the task's own `round_one_opens`, to before `asked_until`, its
    `round_one_closes`, both Unix seconds. `epsilon` is the loss against readers of the release for a change of the
    truth by `relation`, None when it has no finite one; `exposure` the chance that what all aggregators see is the
    truth.
    """

    task_id: TaskId
    name: str
    signal: str
    asked_at: int
    asked_until: int
    epsilon: Decimal | None
    exposure: Fraction
    relation: Relation = Relation.ANY_VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Totals of a set of charges; `without_epsilon` counts the answers that had no finite epsilon to add.

    With `one_sided` answers in it the sum of epsilons holds for a value replaced by none only: for that change every
    any-value loss holds too, for any other a one-sided one does not.
    """

    answers: int
    epsilon: Decimal
    exposure: Fraction
    without_epsilon: int
    one_sided: int


def charge_of(task: Task) -> Charge:
    """Return what answering the task costs."""
    cost = cost_of(task)
    return Charge(
        task_id=task.task_id,
        name=task.name,
        signal=task.signal,
        asked_at=task.round_one_opens,
        asked_until=task.round_one_closes,
        epsilon=cost.loss.epsilon,
        exposure=cost.exposure,
        relation=cost.loss.relation,
    )


def spent_since(charges: Iterable[Charge], start: int) -> Spent:
    """Return the totals of the charges that may have been answered after `start`.

    A window may be longer than a period, so a charge counts until its own has closed. Time is the tasks' own signed
    time, not the device's clock, and later charges count as well: a clock that is set wrong, or a task that arrives out
    of order, never refunds anything. Epsilons add (basic composition).
    """
    recent = [charge for charge in charges if charge.asked_until > start]
    return Spent(
        answers=len(recent),
        epsilon=sum((charge.epsilon for charge in recent if charge.epsilon is not None), Decimal(0)),
        exposure=sum((charge.exposure for charge in recent), Fraction(0)),
        without_epsilon=sum(charge.epsilon is None for charge in recent),
        one_sided=sum(charge.relation is Relation.ONE_SIDED for charge in recent),
    )


def judge_charge(policy: OwnerPolicy, charges: Iterable[Charge], charge: Charge) -> PolicyRefusal | None:
    """Return why one more charge does not fit the budget of a period; None when it fits."""
    spent = spent_since(charges, charge.asked_at - policy.budget_period_s)
    epsilon = spent.epsilon + (charge.epsilon or 0)
    if Fraction(epsilon) > policy.total_epsilon:
        return _over("total_epsilon", "epsilon", epsilon, policy.total_epsilon, policy)
    exposure = spent.exposure + charge.exposure
    if exposure > policy.total_exposure:
        return _over("total_exposure", "exposure to all aggregators", exposure, policy.total_exposure, policy)
    return None


def _over(rule: str, what: str, value: Decimal | Fraction, limit: Fraction, policy: OwnerPolicy) -> PolicyRefusal:
    message = f"{what} would add up to {value} within {policy.budget_period_s} s; the limit is {limit}"
    return PolicyRefusal(rule=rule, message=message)


def judge_age(policy: OwnerPolicy, created_at: float, now: float) -> PolicyRefusal | None:
    """Return why a ledger that began at `created_at` does not answer yet; None when it does.

    A wiped ledger is a waiting period, no refund. A clock set back before the ledger's beginning waits as well.
    """
    ready_at = created_at + policy.fresh_ledger_wait_s
    if policy.fresh_ledger_wait_s == 0 or now >= ready_at:
        return None
    left = int(ready_at - now) + 1
    message = f"this ledger is new and answers nothing for {policy.fresh_ledger_wait_s} s; {left} s are left"
    return PolicyRefusal(rule="fresh_ledger", message=message)
