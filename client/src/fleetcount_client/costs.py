"""What answering a task costs, computed once a task: its loss takes a hundred times longer than looking it up.

Computes nothing itself; the formulas are the protocol's and the mechanisms'.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fleetcount_mechanisms.design import LedgerLoss
from fleetcount_protocol.task.task import Task

__all__ = ["TaskCost", "cost_of"]

_REMEMBERED: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """`loss` by the published result, and for which change of the truth; `exposure` to all aggregators together."""

    loss: LedgerLoss
    exposure: Fraction


class _ById:
    """A task that is equal to another of the same id, so that finding it again costs no comparison of its fields."""

    __slots__ = ("task",)

    def __init__(self, task: Task) -> None:
        self.task = task

    def __hash__(self) -> int:
        return hash(self.task.task_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.task.task_id == self.task.task_id


def cost_of(task: Task) -> TaskCost:
    """Return the cost of answering a task."""
    return _cost(_ById(task))


@lru_cache(maxsize=_REMEMBERED)
def _cost(named: _ById) -> TaskCost:
    return TaskCost(loss=named.task.design.ledger_loss, exposure=named.task.design.exposure)
