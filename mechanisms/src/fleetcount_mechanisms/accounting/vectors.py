"""Losses as vectors that add up: a Renyi divergence at each of some fixed orders, and the pure epsilon beside them.

It must not know the origin of a loss (`charges`) or a time (`periods`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_fraction,
    require_open_unit,
    require_positive,
)
from fleetcount_mechanisms.randomness import WIDE, fraction_up, near_decimal, near_exp, near_log
from fleetcount_mechanisms.renyi import LARGEST_ORDER, checked_rate, entry_price, gaussian_rho, unit_law, zcdp_delta

# How the windows of a question are divided into units of the sampling coin and into days. It must not know a date: the
# protocol's schedule counts the windows.


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """`units`: windows of each unit of the coin, in order; `days`: windows of each UTC day, in order.

    One answer is about one truth over `levels` consecutive windows: 1, or in a drill-down the number of its levels.

    Raises:
        MechanismError: no window, an empty unit or day, sums that differ, or windows that are no multiple of `levels`.
    """

    units: tuple[int, ...]
    days: tuple[int, ...]
    levels: int = 1

    def __post_init__(self) -> None:
        """Check that both count the same windows."""
        for what, sizes in (("units", self.units), ("days", self.days)):
            if not sizes or min(sizes) < 1:
                raise MechanismError(f"{what} is {sizes[:5]}, allowed: one or more, each of at least one window")
        if sum(self.units) != sum(self.days):
            raise MechanismError(f"units hold {sum(self.units)} windows, allowed: the {sum(self.days)} of the days")
        if self.levels < 1 or self.windows % self.levels:
            raise MechanismError(f"levels is {self.levels}, allowed: a divisor of the {self.windows} windows")

    @property
    def windows(self) -> int:
        """All windows."""
        return sum(self.units)

    @property
    def answers(self) -> "ScheduleShape":
        """The same windows with answers in place of days: one `day` is the `levels` windows of one truth."""
        return ScheduleShape(units=self.units, days=(self.levels,) * (self.windows // self.levels))

    @property
    def largest_day(self) -> int:
        """The most windows of one UTC day."""
        return max(self.days)


# The (epsilon, delta) of one unit of a panel coin, better than any Renyi order says: exact, or by joint convexity.
#
# For one unit only: over many units `renyi` is better. It must not know a design. Fractions have an error below 1e-60
# and are never too small. Sources: docs/spec.md, "Losses", Theorems 2 and 4; Balle, Barthe, Gaboardi, "Privacy
# amplification by subsampling" (2018), Theorem 2.

_GRID: Final = 1 << 40


def gaussian_unit_delta(rate: Fraction, windows: int, variance: Fraction, epsilon: Fraction) -> Fraction:
    """Return the delta at epsilon of a unit of `windows` answers under N_Z(0, s), any of which change (Theorem 4).

    p [(1-b) d(m/(2s)) + b d(m/s)] at e, where e**epsilon = 1 + p (e**e - 1), b = e**(epsilon-e), d = `zcdp_delta`.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, a variance not above 0, or epsilon below 0.
    """
    exact = checked_rate(rate)
    if require_fraction("epsilon", epsilon) < 0:
        raise MechanismError(f"epsilon is {epsilon}, allowed: epsilon >= 0")
    inner = max(Fraction(0), near_log(1 + (near_exp(epsilon) - 1) / exact))
    share = near_exp(epsilon - inner)
    one, both = (zcdp_delta(gaussian_rho(cells, windows, variance), inner) for cells in (1, 2))
    return exact * ((1 - share) * one + share * both)


def _excess(law: list[tuple[Decimal, Decimal]], power: Decimal) -> Fraction:
    """Return the sum over the outputs of both sets of cells of what P_a has above `power` P_b, power = e**epsilon.

    Theorem 2: both are mixtures with independent ratios under no answer. Exact for V > 1; for V = 1 never too small.
    """
    total = weight_below = ratio_below = Decimal(0)
    below = 0
    for weight, ratio in law:
        # Ratios rise, so the outputs with a ratio below ratio/e**epsilon only increase: one pass is enough.
        while below < len(law) and WIDE.multiply(power, law[below][1]) < ratio:
            mass, other = law[below]
            weight_below = WIDE.add(weight_below, mass)
            ratio_below = WIDE.add(ratio_below, WIDE.multiply(mass, other))
            below += 1
        more = WIDE.subtract(WIDE.multiply(ratio, weight_below), WIDE.multiply(power, ratio_below))
        total = WIDE.add(total, WIDE.multiply(weight, more))
    return Fraction(total)


def gaussian_unit_epsilon(
    rate: Fraction, windows: int, variance: Fraction, delta: Fraction, largest: Fraction
) -> Fraction:
    """Return the least epsilon, to 2**-40 and never too small, at which `gaussian_unit_delta` is at most delta.

    `largest` is an epsilon known to hold.

    Raises:
        MechanismError: as `gaussian_unit_delta`.
    """
    return _least(lambda epsilon: gaussian_unit_delta(rate, windows, variance, epsilon) <= delta, largest)


def geometric_unit_epsilon(
    rate: Fraction, windows: int, noise: Fraction, delta: Fraction, largest: Fraction
) -> Fraction:
    """Return the least epsilon, to 2**-40 and never too small, of a unit of `windows` answers under geometric noise.

    At delta, all of them changed; `largest` is an epsilon known to hold.

    Raises:
        MechanismError: p not in (0, 1], windows below 1, or e1 not above 0.
    """
    law = unit_law(rate, windows, noise)
    return _least(lambda epsilon: _excess(law, WIDE.exp(near_decimal(epsilon))) <= delta, largest)


def _least(holds: Callable[[Fraction], bool], largest: Fraction) -> Fraction:
    low, high = -1, int(largest * _GRID) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(Fraction(middle, _GRID)) else (middle, high)
    return Fraction(high, _GRID)


SCALE: Final = 10**12
"""Losses are integers of 1e-12, rounded up: sums are exact, also of decimals, and the same on every machine."""


def scaled_up(loss: Fraction) -> int:
    """Return the smallest integer of 1e-12 at or above a loss known to 1e-60."""
    return int(fraction_up(loss, SCALE) * SCALE)


def decimal_of(scaled: int) -> Decimal:
    """Return an integer of 1e-12 as a decimal with 12 places."""
    return Decimal(scaled).scaleb(-12)


def checked_orders(orders: tuple[int, ...]) -> tuple[int, ...]:
    """Return orders that grow, each in 2..4096.

    Raises:
        MechanismError: no order, one outside the range, or orders that do not grow.
    """
    for order in orders:
        if require_at_least("order", order, 2) > LARGEST_ORDER:
            raise MechanismError(f"order is {order}, allowed: 2..{LARGEST_ORDER}")
    if not orders or list(orders) != sorted(set(orders)):
        raise MechanismError(f"orders are {orders[:9]}, allowed: one or more, each larger than the one before")
    return orders


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVector:
    """The loss of answers: `at[i]` bounds the Renyi divergence of order `orders[i]`, `pure` the pure epsilon.

    In integers of 1e-12, rounded up. `pure` is None where no finite pure epsilon exists. Vectors of the same orders
    add, also when each question depends on all earlier outputs: the sums bound the loss of all of them together.

    Raises:
        MechanismError: no order or invalid orders, another number of losses than orders, a loss below 0; in `+`, two
            vectors of different orders.
    """

    orders: tuple[int, ...]
    at: tuple[int, ...]
    pure: int | None

    def __post_init__(self) -> None:
        """Check the ranges."""
        checked_orders(self.orders)
        if len(self.at) != len(self.orders):
            raise MechanismError(f"there are {len(self.at)} losses, allowed: one for each of {len(self.orders)} orders")
        for loss in (*self.at, *(() if self.pure is None else (self.pure,))):
            require_at_least("loss", loss, 0)

    @classmethod
    def nothing(cls, orders: tuple[int, ...]) -> "LossVector":
        """Return the zero vector, the loss without any answer."""
        return cls(orders=orders, at=(0,) * len(orders), pure=0)

    @classmethod
    def of(cls, orders: tuple[int, ...], at: Iterable[Fraction], pure: Fraction | None) -> "LossVector":
        """Return losses known to 1e-60 as a vector, each rounded up.

        Raises:
            MechanismError: as for the vector itself.
        """
        losses = tuple(scaled_up(loss) for loss in at)
        return cls(orders=orders, at=losses, pure=None if pure is None else scaled_up(pure))

    def __add__(self, other: "LossVector") -> "LossVector":
        """Return the loss of both together."""
        if self.orders != other.orders:
            raise MechanismError(f"orders are {other.orders}, allowed: those of the other losses, {self.orders}")
        pure = None if self.pure is None or other.pure is None else self.pure + other.pure
        at = tuple(one + two for one, two in zip(self.at, other.at, strict=True))
        return LossVector(orders=self.orders, at=at, pure=pure)

    def times(self, count: int) -> "LossVector":
        """Return the loss of `count` answers of this loss together.

        Raises:
            MechanismError: a count below 0.
        """
        require_at_least("count", count, 0)
        pure = None if self.pure is None else self.pure * count
        if count == 0:
            pure = 0
        return LossVector(orders=self.orders, at=tuple(loss * count for loss in self.at), pure=pure)


# The budget of a filter: the loss allowed in a period, and the rule that a total is within it.
#
# It must not know charges or times (`periods`). The orders, the part of delta of each order and the limits are
# constants: choosing them, or the best order, after seeing charges would break the proof (docs/privacy.md, "A
# question").

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
    @lru_cache(maxsize=16)
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
            here, next_one = ((epsilon - entry_price(order, delta)) / order for order in (middle, middle + 1))
            low, high = (middle + 1, high) if next_one > here else (low, middle)
        return cls(epsilon=epsilon, delta=delta, orders=(low,))

    @cached_property
    def limit(self) -> int:
        """Epsilon in integers of 1e-12, rounded down."""
        return int(self.epsilon * SCALE)

    @cached_property
    def entry_prices(self) -> tuple[int, ...]:
        """c_a(delta/|A|) of each order, in integers of 1e-12, rounded up."""
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
        """Return the epsilon of a total at this delta, rounded up to 12 places; above `epsilon` the total does not fit.

        Each order has an entry price, so small charges start at that price and increase the figure slowly.

        Raises:
            MechanismError: a total of other orders.
        """
        self._require_orders(total)
        found = [loss + price for loss, price in zip(total.at, self.entry_prices, strict=True)]
        return decimal_of(max(0, min(found if total.pure is None else [*found, total.pure])))

    def _require_orders(self, total: LossVector) -> None:
        if total.orders != self.orders:
            raise MechanismError(f"orders are {total.orders}, allowed: those of the budget, {self.orders}")
