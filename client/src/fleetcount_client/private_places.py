"""Places and values the owner keeps to himself: a truth inside one becomes "none" before anything is made of it.

Nobody but the owner can tell: a hidden truth is answered like any other "none", at the same time and of the same size.
It must not log, count or show that something was hidden.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Final, cast

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.signal import Number, exact, name_of
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number

from fleetcount_client.signals import Said

# A position on Earth as metres of a zone of UTM, the units of a square grid that has a place.

_SEMI_MAJOR_AXIS_M: Final = 6_378_137.0
_FLATTENING: Final = 1 / 298.257_222_101
"""Of GRS 80, on which ETRS89 stands; WGS 84 differs by a tenth of a millimetre on the ground."""
_SCALE: Final = 0.9996
_FALSE_EASTING_M: Final = 500_000.0
_FALSE_NORTHING_M: Final = 10_000_000.0
_MOST_DEGREES_AWAY: Final = 12.0
_MOST_LATITUDE: Final = 84.0

_N: Final = _FLATTENING / (2 - _FLATTENING)
_RECTIFYING_RADIUS_M: Final = _SEMI_MAJOR_AXIS_M / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_ALPHA: Final = (
    _N / 2 - 2 * _N**2 / 3 + 5 * _N**3 / 16,
    13 * _N**2 / 48 - 3 * _N**3 / 5,
    61 * _N**3 / 240,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UtmZone:
    """A zone of UTM: `number` 1 to 60, `south` of the equator or not (EPSG 326zz, 327zz; 258zz in Europe)."""

    number: int
    south: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.number <= 60:
            raise ValueError(f"zone is {self.number}, allowed is 1 to 60")

    @property
    def systems(self) -> tuple[int, ...]:
        """Codes of the EPSG register whose metres these are: on WGS 84, and on ETRS89 where that has the zone."""
        in_europe = not self.south and 28 <= self.number <= 38
        return (32600 + 100 * self.south + self.number, *([25800 + self.number] if in_europe else []))

    def __str__(self) -> str:
        """Return the zone as configurations write it: "32N"."""
        return f"{self.number}{'S' if self.south else 'N'}"

    def metres(self, longitude: float, latitude: float) -> tuple[float, float] | None:
        """Return (easting, northing) in metres, within a millimetre; None where the zone has no use.

        Degrees; None for what is no number, beyond 84 degrees of latitude or 12 from the zone's meridian. Krueger's
        series to the third order in n, as in Karney, "Transverse Mercator with an accuracy of a few nanometers"
        (2011), equations 7 to 11 and 35.
        """
        away = (longitude - (6 * self.number - 183) + 180) % 360 - 180
        if not (abs(latitude) <= _MOST_LATITUDE and abs(longitude) <= 180 and abs(away) <= _MOST_DEGREES_AWAY):
            return None
        eccentricity = math.sqrt(_FLATTENING * (2 - _FLATTENING))
        tangent, turned = math.tan(math.radians(latitude)), math.radians(away)
        sigma = math.sinh(eccentricity * math.atanh(eccentricity * tangent / math.hypot(1, tangent)))
        conformal = tangent * math.hypot(1, sigma) - sigma * math.hypot(1, tangent)
        xi = math.atan2(conformal, math.cos(turned))
        eta = math.asinh(math.sin(turned) / math.hypot(conformal, math.cos(turned)))
        north = xi + sum(a * math.sin(2 * j * xi) * math.cosh(2 * j * eta) for j, a in enumerate(_ALPHA, 1))
        east = eta + sum(a * math.cos(2 * j * xi) * math.sinh(2 * j * eta) for j, a in enumerate(_ALPHA, 1))
        metres = _SCALE * _RECTIFYING_RADIUS_M
        return _FALSE_EASTING_M + metres * east, metres * north + (_FALSE_NORTHING_M if self.south else 0.0)


Position = tuple[Fraction, Fraction]
_PLACE: Final = Range("[-1000000000, 1000000000]")
_RADIUS: Final = Range("(0, 1000000000]")


def _turns(x: Fraction, west: Fraction, east: Fraction, south: Fraction, north: Fraction) -> tuple[int, ...]:
    """Return what is added to x to look for it in an area: in degrees that reach 180, a turn as well.

    Metres are taken for degrees only within 90 of the origin to its north and south, where more is hidden, never less.
    """
    across = 180 <= max(-west, east, abs(x)) <= 360 and max(-south, north) <= 90
    return (0, 360, -360) if across else (0,)


@settings
class Circle:
    """All positions at most `radius` from (`x`, `y`), in the signal's own units; degrees go on across 180 of longitude.

    Raises:
        UsageError: a radius that is not above 0.
    """

    x: Fraction = setting(Table.number, _PLACE)
    y: Fraction = setting(Table.number, _PLACE)
    radius: Fraction = setting(Table.number, _RADIUS)

    def __post_init__(self) -> None:
        """Check the radius."""
        if self.radius <= 0:
            raise UsageError(f"radius of a private place is {self.radius}; allowed is more than 0")

    def holds(self, place: Position) -> bool:
        """Return whether a position is inside, its edge included."""
        x, y, r = self.x, self.y, self.radius
        turns = _turns(place[0], x - r, x + r, y - r, y + r)
        return True in [(place[0] + turn - x) ** 2 + (place[1] - y) ** 2 <= r**2 for turn in turns]


def _corners(table: Table, key: str) -> tuple[tuple[Fraction, Fraction], ...]:
    corners = table.raw(key)
    pairs = cast("list[object]", corners) if isinstance(corners, list) else []
    numbers = [tuple(map(exact_number, cast("list[object]", pair))) if isinstance(pair, list) else () for pair in pairs]
    if len(numbers) < 3 or any(len(pair) != 2 or None in pair for pair in numbers):
        raise table.refuse(key, 'three or more pairs of numbers: [["0", "0"], ["9.5", "0"], ["0", "9.5"]]')
    return cast("tuple[tuple[Fraction, Fraction], ...]", tuple(numbers))


@settings
class Polygon:
    """All positions that a closed line through three or more `corners` goes around, in the signal's own units.

    Degrees go on across 180 of longitude: 179, 181.

    Raises:
        UsageError: fewer than three corners, a line that crosses itself, or one of degrees by the longer way around the
            Earth, as from 179 to -179.
    """

    corners: tuple[Position, ...] = setting(_corners)

    def __post_init__(self) -> None:
        """Check the corners."""
        if len(self.corners) < 3:
            raise UsageError(f"a private place has {len(self.corners)} corners; allowed are 3 or more")
        if (crossing := self._crossing()) is not None:
            x, y = map(float, crossing)
            raise UnfitKeyError(
                "corners", allowed=f"corners in an order in which lines do not cross, as at {x:g}, {y:g}"
            )
        west, east, south, north = self._sides()
        for (begin, _), (end, _) in pairwise((*self.corners, self.corners[0])):
            # People mean the shorter way, and what they mean to hide would be all that is shown.
            if abs(end - begin) > 180 >= max(-west, east) and max(-south, north) <= 90:
                raise UnfitKeyError(
                    "corners",
                    allowed=f"lines over at most 180 of x, not as from {float(begin):g} to {float(end):g}: degrees"
                    " go on above 180, and metres have a corner more",
                )

    def _sides(self) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        x, y = zip(*self.corners, strict=True)
        return min(x), max(x), min(y), max(y)

    def holds(self, place: Position) -> bool:
        """Return whether a position is on the line, or the line goes around it."""
        return True in [self._encloses((place[0] + turn, place[1])) for turn in _turns(place[0], *self._sides())]

    def _encloses(self, place: Position) -> bool:
        x, y = place
        turns = 0
        for (x1, y1), (x2, y2) in pairwise((*self.corners, self.corners[0])):
            side = _side((x1, y1), (x2, y2), place)
            if side == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
                return True
            if (y1 > y) != (y2 > y) and (side > 0) == (y2 > y1):
                turns += 1 if y2 > y1 else -1
        return turns != 0

    def _crossing(self) -> Position | None:
        """Return where two lines cross, each going on beyond it; None if none do."""
        lines = sorted(pairwise((*self.corners, self.corners[0])), key=min)
        for place, (a, b) in enumerate(lines):
            for c, d in map(lines.__getitem__, range(place + 1, len(lines))):
                if min(c, d)[0] > max(a, b)[0]:
                    break  # Neither this line nor a later one lies below or above the first.
                of_a, of_b = _side(c, d, a), _side(c, d, b)
                if of_a * of_b < 0 and _side(a, b, c) * _side(a, b, d) < 0:
                    share = of_a / (of_a - of_b)
                    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])
        return None


def _side(start: Position, end: Position, place: Position) -> Fraction:
    """Return above 0 for a place on the left of a line, 0 on it, below 0 on the right."""
    return (end[0] - start[0]) * (place[1] - start[1]) - (place[0] - start[0]) * (end[1] - start[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSignal:
    """What is private of one signal: areas for positions, exact `values` for texts, numbers and truth values.

    Numbers and names are the same here as in a question's domain: 36.6 hides the float32 of it, "1" hides 1. A text is
    hidden in capital and in small letters, as codes are spelled.
    """

    areas: tuple[Circle | Polygon, ...] = field(default=(), repr=False)
    values: frozenset[str | Number | bool] = field(default=frozenset(), repr=False)

    def hides(self, reading: object) -> bool:
        """Return whether one reading is private; a position that is no pair of finite numbers is none anyway."""
        if isinstance(reading, tuple):
            match [exact(part) for part in cast("tuple[object, ...]", reading)]:
                case [Fraction() as x, Fraction() as y]:
                    # Every area is looked at, so that the time does not tell which one it was.
                    return True in [area.holds((x, y)) for area in self.areas]
                case _:
                    return False
        said = _form(reading)
        return said is not None and True in [_form(value) == said for value in self.values]


def _form(reading: object) -> str | Fraction | None:
    name = name_of(reading)
    return exact(reading) if name is None else name.casefold()


@dataclass(frozen=True, slots=True)
class PrivatePlaces:
    """What the owner keeps private, by signal; nothing by default."""

    signals: dict[str, PrivateSignal]

    def shown(self, signal: str, reading: Said) -> Said:
        """Return a reading as it may be answered: None instead of a private one, a set without its private members."""
        private = self.signals.get(signal)
        if private is None or reading is None:
            return reading
        if isinstance(reading, frozenset):
            return cast("Said", frozenset(one for one in reading if not private.hides(one)))
        return None if private.hides(reading) else reading
