"""What answering a window costs, computed once a window: its loss takes a hundred times longer than looking it up.

Computes nothing itself; the formulas are the protocol's and the mechanisms'.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fleetcount_mechanisms.design import LedgerLoss
from fleetcount_protocol.window.window import Window

_REMEMBERED: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCost:
    """`loss` by the published result, and for which change of the truth; `exposure` to all aggregators together."""

    loss: LedgerLoss
    exposure: Fraction


class _ById:
    """A window that is equal to another of the same id, so that finding it again costs no comparison of its fields."""

    __slots__ = ("window",)

    def __init__(self, window: Window) -> None:
        self.window = window

    def __hash__(self) -> int:
        return hash(self.window.window_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.window.window_id == self.window.window_id


def cost_of(window: Window) -> WindowCost:
    """Return the cost of answering a window."""
    return _cost(_ById(window))


@lru_cache(maxsize=_REMEMBERED)
def _cost(named: _ById) -> WindowCost:
    return WindowCost(loss=named.window.design.ledger_loss, exposure=named.window.design.exposure)
