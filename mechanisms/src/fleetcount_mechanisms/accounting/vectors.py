"""Losses as vectors that add up: a Renyi divergence at each of some fixed orders, and the pure epsilon beside them.

It must not know what a loss comes from (`charges`), a limit (`budget`) or a time (`periods`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.exponential import fraction_up

SCALE: Final = 1 << 40
"""Losses are integers of 2**-40, rounded up: sums of them are exact, and the same on every machine."""
LARGEST_ORDER: Final = 4096


def scaled_up(loss: Fraction) -> int:
    """Return the smallest integer of 2**-40 at or above a loss known to 1e-60."""
    return int(fraction_up(loss, SCALE) * SCALE)


def decimal_of(scaled: int) -> Decimal:
    """Return an integer of 2**-40 as a decimal with 12 places, rounded up."""
    return Decimal(-(-scaled * 10**12 // SCALE)).scaleb(-12)


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
    """What answers lose: `at[i]` bounds the Renyi divergence of order `orders[i]`, `pure` the pure epsilon.

    In integers of 2**-40, rounded up. `pure` is None where no finite pure epsilon exists. Vectors of the same orders
    add, also when each question depends on all earlier outputs: the sums bound what all of them lose together.

    Raises:
        MechanismError: orders that are none, another number of losses than orders, a loss below 0; in `+`, two vectors
            of different orders.
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
        """Return the loss of no answer at all."""
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
        """Return what both lose together."""
        if self.orders != other.orders:
            raise MechanismError(f"orders are {other.orders}, allowed: those of the other losses, {self.orders}")
        pure = None if self.pure is None or other.pure is None else self.pure + other.pure
        at = tuple(one + two for one, two in zip(self.at, other.at, strict=True))
        return LossVector(orders=self.orders, at=at, pure=pure)

    def times(self, count: int) -> "LossVector":
        """Return what `count` answers of this loss lose together.

        Raises:
            MechanismError: a count below 0.
        """
        require_at_least("count", count, 0)
        pure = None if self.pure is None else self.pure * count
        if count == 0:
            pure = 0
        return LossVector(orders=self.orders, at=tuple(loss * count for loss in self.at), pure=pure)
