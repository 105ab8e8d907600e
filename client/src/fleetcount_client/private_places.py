"""Places and values the owner keeps to himself: a truth inside one becomes "none" before anything is made of it.

Nobody but the owner can tell: a hidden truth is answered like any other "none", at the same time and of the same size.
It must not log, count or show that something was hidden.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import cast

from fleetcount_protocol.errors import UsageError

from fleetcount_client.signals import Reading

Position = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """All positions at most `radius` from (`x`, `y`), in the signal's own units.

    Raises:
        UsageError: a radius that is not above 0.
    """

    x: Fraction
    y: Fraction
    radius: Fraction

    def __post_init__(self) -> None:
        """Check the radius."""
        if self.radius <= 0:
            raise UsageError(f"radius of a private place is {self.radius}; allowed is more than 0")

    def holds(self, place: Position) -> bool:
        """Return whether a position is inside, its edge included."""
        x, y = place
        return (x - self.x) ** 2 + (y - self.y) ** 2 <= self.radius**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Polygon:
    """All positions inside a closed line through three or more `corners`, in the signal's own units.

    Raises:
        UsageError: fewer than three corners.
    """

    corners: tuple[Position, ...]

    def __post_init__(self) -> None:
        """Check the number of corners."""
        if len(self.corners) < 3:
            raise UsageError(f"a private place has {len(self.corners)} corners; allowed are 3 or more")

    def holds(self, place: Position) -> bool:
        """Return whether a position is inside or on the line: a ray from it crosses the line an odd number of times."""
        x, y = place
        inside = False
        for (x1, y1), (x2, y2) in pairwise((*self.corners, self.corners[0])):
            side = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1)
            if side == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
                return True
            if (y1 > y) != (y2 > y) and (side > 0) == (y2 > y1):
                inside = not inside
        return inside


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSignal:
    """What is private of one signal: areas for positions, exact `values` for texts, numbers and truth values."""

    areas: tuple[Circle | Polygon, ...] = ()
    values: frozenset[str | float | bool] = frozenset()

    def hides(self, reading: object) -> bool:
        """Return whether one reading is private; a position that is no pair of finite numbers is none anyway."""
        if isinstance(reading, tuple):
            try:
                x, y = map(Fraction, cast("tuple[float, float]", reading))
            except (TypeError, ValueError, OverflowError):
                return False
            # Every area is looked at, so that the time does not tell which one it was.
            return True in [area.holds((x, y)) for area in self.areas]
        truth_value = isinstance(reading, bool)
        return True in [isinstance(value, bool) is truth_value and value == reading for value in self.values]


@dataclass(frozen=True, slots=True)
class PrivatePlaces:
    """What the owner keeps private, by signal; nothing by default."""

    signals: dict[str, PrivateSignal]

    def shown(self, signal: str, reading: Reading) -> Reading:
        """Return a reading as it may be answered: None instead of a private one, a set without its private members."""
        private = self.signals.get(signal)
        if private is None or reading is None:
            return reading
        if isinstance(reading, frozenset):
            return cast("Reading", frozenset(one for one in reading if not private.hides(one)))
        return None if private.hides(reading) else reading
