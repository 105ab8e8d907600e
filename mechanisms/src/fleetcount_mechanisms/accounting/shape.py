"""How the windows of a question fall into units of the sampling coin and into days: all that accounting needs to know.

It must not know a date: the protocol's schedule counts windows.
"""

from dataclasses import dataclass

from fleetcount_mechanisms.errors import MechanismError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """`units`: windows of each unit of the coin, in order; `days`: windows of each UTC day, in order.

    One answer is one truth, told in `levels` windows one after the other: 1, but in a drill-down one for each level.

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
        """The same windows with answers in place of days: one `day` is one truth, told at all levels."""
        return ScheduleShape(units=self.units, days=(self.levels,) * (self.windows // self.levels))

    @property
    def largest_day(self) -> int:
        """The most windows of one UTC day."""
        return max(self.days)
