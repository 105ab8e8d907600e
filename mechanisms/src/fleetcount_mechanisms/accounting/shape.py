"""How the windows of a series fall into units of the sampling coin and into days: all that accounting needs to know.

It must not know a date: the protocol's schedule counts windows.
"""

from dataclasses import dataclass

from fleetcount_mechanisms.errors import MechanismError

__all__ = ["SeriesShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesShape:
    """`units`: windows of each unit of the coin, in order; `days`: windows of each UTC day, in order.

    Every answer counts as a window: one truth asked at L levels is L windows.

    Raises:
        MechanismError: no window, an empty unit or day, or sums that differ.
    """

    units: tuple[int, ...]
    days: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that both count the same windows."""
        for what, sizes in (("units", self.units), ("days", self.days)):
            if not sizes or min(sizes) < 1:
                raise MechanismError(f"{what} is {sizes[:5]}, allowed: one or more, each of at least one window")
        if sum(self.units) != sum(self.days):
            raise MechanismError(f"units hold {sum(self.units)} windows, allowed: the {sum(self.days)} of the days")

    @property
    def windows(self) -> int:
        """All windows."""
        return sum(self.units)

    @property
    def largest_day(self) -> int:
        """The most windows of one UTC day."""
        return max(self.days)
