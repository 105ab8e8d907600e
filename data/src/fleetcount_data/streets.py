"""The streets of the Bologna scenario as lines in its own coordinates, and the map projection of these coordinates.

EPL-2.0, see bologna/SOURCE.md. It draws nothing and converts no coordinates.
"""

import csv
from dataclasses import dataclass
from typing import Final

from fleetcount_data import path

BOLOGNA_EPSG: Final = 32632
"""WGS 84 / UTM zone 32N, the scenario's own projection."""
BOLOGNA_OFFSET: Final = ("-683195.58", "-4928877.56")
"""The scenario's netOffset in metres: x is the easting plus the first number, y the northing plus the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Street:
    """One direction of a street: the scenario's name, its number of lanes, and its line of 2 or more points (x, y).

    Points are in the scenario's coordinates, in metres, as in bologna/positions.csv.gz: 0 to 2,164 by 0 to 1,916.
    """

    name: str
    lanes: int
    line: tuple[tuple[int, int], ...]


def bologna_streets() -> tuple[Street, ...]:
    """Return all 267 streets in the order of the scenario.

    Raises:
        FileNotFoundError: as `fleetcount_data.path`.
    """
    with path("bologna/streets.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(Street(name=row["street"], lanes=int(row["lanes"]), line=_line(row["line"])) for row in rows)


def _line(text: str) -> tuple[tuple[int, int], ...]:
    numbers = [int(number) for number in text.split()]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))
