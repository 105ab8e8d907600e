"""The limit of a filter: what a device may lose in a period, and whether a total of losses is still within it.

The filter's rule and nothing else. It must not hold charges or times (`periods`). The orders, the share of delta of
each and the limits are constants: a filter that spends delta as it goes, or takes the best order of the moment without
sharing delta, is none (docs/privacy.md, "A question").
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Final

from fleetcount_mechanisms.accounting.vectors import SCALE, LossVector, checked_orders, decimal_of, scaled_up
from fleetcount_mechanisms.errors import MechanismError, require_open_unit, require_positive
from fleetcount_mechanisms.renyi import entry_price

LARGEST_BUDGET: Final = 700
_ORDERS_TRIED: Final = 1024


@dataclass(frozen=True, kw_only=True)
class LossBudget:
    """(epsilon, delta) to be spent within a period, judged at fixed integer orders that share delta equally.

    A total fits if its pure epsilon is at most epsilon, or its Renyi loss R_a + c_a(delta/|A|) is at one order. Then
    whatever strategy picked the questions from all earlier outputs, the period's answers are (epsilon, delta)-DP.

    Raises:
        MechanismError: epsilon not in (0, 700], delta not in (0, 1), or orders outside 2..4096 or not growing.
    """

    epsilon: Fraction
    delta: Fraction
    orders: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the ranges."""
        if require_positive("epsilon", self.epsilon) > LARGEST_BUDGET:
            raise MechanismError(f"epsilon is {self.epsilon}, allowed: 0 < epsilon <= {LARGEST_BUDGET}")
        require_open_unit("delta", self.delta)
        checked_orders(self.orders)

    @classmethod
    def for_promise(cls, epsilon: Fraction, delta: Fraction) -> "LossBudget":
        """Return the budget of one order, the integer one that affords the largest zCDP rho = (eps - c_a(delta))/a.

        Raises:
            MechanismError: epsilon not in (0, 700], or delta not in (0, 1).
        """
        cls(epsilon=epsilon, delta=delta, orders=(2,))
        # The affordable rho rises to one peak and falls: (a rho + c_a)(a - 1) is convex in a.
        low, high = 2, _ORDERS_TRIED
        while low < high:
            middle = (low + high) // 2
            here, next_one = (_affordable(epsilon, delta, order) for order in (middle, middle + 1))
            low, high = (middle + 1, high) if next_one > here else (low, middle)
        return cls(epsilon=epsilon, delta=delta, orders=(low,))

    @cached_property
    def limit(self) -> int:
        """Epsilon in integers of 2**-40, rounded down."""
        return int(self.epsilon * SCALE)

    @cached_property
    def entry_prices(self) -> tuple[int, ...]:
        """c_a(delta/|A|) of each order, in integers of 2**-40, rounded up."""
        share = Fraction(self.delta) / len(self.orders)
        return tuple(scaled_up(entry_price(order, share)) for order in self.orders)

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The largest Renyi loss that fits at each order: epsilon less the order's entry price."""
        return tuple(self.limit - price for price in self.entry_prices)

    def fits(self, total: LossVector) -> bool:
        """Return whether a total is within the budget.

        Raises:
            MechanismError: a total of other orders.
        """
        self._require_orders(total)
        if total.pure is not None and total.pure <= self.limit:
            return True
        return any(loss <= limit for loss, limit in zip(total.at, self.limits, strict=True))

    def spent(self, total: LossVector) -> Decimal:
        """Return the epsilon at this delta that a total comes to, rounded up to 12 places; above epsilon it is over.

        A cap and no running total of small things: an order has an entry price, so the figure grows slowly behind it.

        Raises:
            MechanismError: a total of other orders.
        """
        self._require_orders(total)
        found = [loss + price for loss, price in zip(total.at, self.entry_prices, strict=True)]
        return decimal_of(max(0, min(found if total.pure is None else [*found, total.pure])))

    def _require_orders(self, total: LossVector) -> None:
        if total.orders != self.orders:
            raise MechanismError(f"orders are {total.orders}, allowed: those of the budget, {self.orders}")


def _affordable(epsilon: Fraction, delta: Fraction, order: int) -> Fraction:
    return (epsilon - entry_price(order, delta)) / order
