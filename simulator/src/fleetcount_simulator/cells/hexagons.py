"""H3 cells of one resolution, as 64-bit integers.

The H3 library accepts latitude 91 and longitude 540 without an error, so every coordinate is checked first. It is
called once per distinct position of a batch, about a microsecond each.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from fleetcount_protocol.window.domain import MAX_VALUES, H3Cells
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from h3.api import basic_int as h3

from fleetcount_simulator.cells.model import (
    MAX_CELLS,
    Bounds,
    Cells,
    Floats,
    Frame,
    Positions,
    Values,
    check_count,
)
from fleetcount_simulator.cells.projection import METRES_PER_DEGREE, Projection
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers, Places


@settings
class Keys:
    """[question] of cells `h3`."""

    resolution: int = setting(
        Table.integer, 0, 15, about="H3 resolution, a whole number from 0 (continents) to 15 (a metre)", example="8"
    )
    bounds: Bounds | None = setting(
        Settings.bounds,
        default=None,
        about="[lon0, lat0, lon1, lat1] in degrees: all cells whose centre lies inside; default: the cells seen",
        example="[11.30, 44.48, 11.37, 44.52]",
    )
    origin: tuple[Fraction, Fraction] | None = setting(
        Settings.corner,
        default=None,
        about="for data in metres: [longitude, latitude] of the point x = 0, y = 0",
        example="[11.30, 44.48]",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hexagons:
    """Cells of one resolution: the `declared` ones, or (None) all that occur in the data."""

    title: str
    resolution: int
    declared: Integers | None
    projection: Projection | None

    def keys(self, positions: Positions) -> Integers:
        """Return the cell of every position."""
        longitude, latitude = positions.x, positions.y
        if self.projection is not None:
            longitude, latitude = self.projection.to_degrees(longitude, latitude)
        return cells_of(longitude, latitude, self.resolution)

    def close(self, seen: Integers) -> Values:
        """Return the declared cells, or those seen, ascending."""
        cells = seen if self.declared is None else self.declared
        check_count(len(cells), "question.resolution")
        question = question_of(self.title, self.resolution, cells)
        return Values(question=question, codes=cells, numbers=np.arange(1, len(cells) + 1))


def cells_of(longitude: Floats, latitude: Floats, resolution: int) -> Integers:
    """Return the H3 cell of every position.

    Raises:
        ScenarioError: a coordinate that is no number or outside longitude -180..180, latitude -90..90.
    """
    wrong = ~((np.abs(latitude) <= 90) & (np.abs(longitude) <= 180))
    if wrong.any():
        first = int(wrong.argmax())
        place = f"longitude {longitude[first]:g}, latitude {latitude[first]:g}"
        raise ScenarioError(f"question.cells: {place} is no place on Earth (longitude -180 to 180, latitude -90 to 90)")
    points, inverse = np.unique(latitude + 1j * longitude, return_inverse=True)
    cell = h3.latlng_to_cell
    found = [cell(point.real, point.imag, resolution) for point in points.tolist()]
    return np.array(found, dtype=np.int64)[inverse]


def question_of(title: str, resolution: int, cells: Integers) -> AnswerSpace:
    """Return the question whose value v is the v-th cell; `cells` ascending."""
    numbers: list[int] = cells.tolist()
    return AnswerSpace(
        title=title,
        labels=tuple(f"{cell:x}" for cell in numbers),
        places=Places(outlines=outlines_of(numbers), unit="deg"),
        domain=H3Cells(resolution=resolution, cells=tuple(numbers)) if len(numbers) <= MAX_VALUES else None,
    )


def outlines_of(cells: list[int]) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Return each cell's corners (longitude, latitude), in degrees; a cell across 180 has longitudes above 180."""
    return tuple(_outline(cell) for cell in cells)


def _outline(cell: int) -> tuple[tuple[float, float], ...]:
    corners = [(longitude, latitude) for latitude, longitude in h3.cell_to_boundary(cell)]
    longitudes = [longitude for longitude, _ in corners]
    if max(longitudes) - min(longitudes) > 180:
        corners = [(longitude + 360 if longitude < 0 else longitude, latitude) for longitude, latitude in corners]
    return tuple(corners)


def declare(question: Keys, frame: Frame, title: str) -> Cells:
    """Return the H3 cells a `[question]` table asks for.

    Raises:
        ScenarioError: a key outside its range, too many cells, or metres without a place on Earth.
    """
    resolution, origin, bounds = question.resolution, question.origin, question.bounds
    if frame.unit == "m" and origin is None:
        raise UnfitKeyError(
            "origin", allowed="[longitude, latitude] of x = 0, y = 0: the data are metres, H3 needs degrees"
        )
    if frame.unit == "deg" and origin is not None:
        raise UnfitKeyError("origin", problem="is not used: the positions are longitude and latitude already")
    projection = None if origin is None else Projection(*origin)
    if bounds is None and frame.extent is not None and projection is not None:
        bounds = _around(frame.extent, projection, resolution)
    return Hexagons(
        title=title,
        resolution=resolution,
        declared=None if bounds is None else _inside(bounds, resolution),
        projection=projection,
    )


def _around(extent: Bounds, projection: Projection, resolution: int) -> Bounds:
    """Return a box in degrees that holds the centre of every cell that reaches into `extent` (metres)."""
    margin = 2 * h3.average_hexagon_edge_length(resolution, "m")
    x = np.array([float(extent[0]) - margin, float(extent[2]) + margin])
    y = np.array([float(extent[1]) - margin, float(extent[3]) + margin])
    (x0, x1), (y0, y1) = (degrees.tolist() for degrees in projection.to_degrees(x, y))
    return Fraction(x0), Fraction(y0), Fraction(x1), Fraction(y1)


def _inside(bounds: Bounds, resolution: int) -> Integers:
    x0, y0, x1, y1 = map(float, bounds)
    if not (x0 >= -180 and x1 <= 180 and x1 - x0 < 180 and y0 >= -90 and y1 <= 90):
        allowed = "[lon0, lat0, lon1, lat1], longitudes -180 to 180 and less than 180 apart, latitudes -90 to 90"
        raise UnfitKeyError("bounds", allowed=allowed)
    band = np.sin(np.radians(y1)) - np.sin(np.radians(y0))
    area = band * np.radians(x1 - x0) * (METRES_PER_DEGREE * 180 / np.pi) ** 2
    # The smallest cells of a resolution are about half the average: refuse before a box of a continent is filled.
    if area / h3.average_hexagon_area(resolution, "m^2") > 2 * MAX_CELLS:
        raise UnfitKeyError("resolution", problem=f"gives more than {MAX_CELLS} cells over question.bounds")
    box = h3.LatLngPoly([(y0, x0), (y0, x1), (y1, x1), (y1, x0)])
    cells = np.array(sorted(h3.h3shape_to_cells(box, resolution)), dtype=np.int64)
    check_count(len(cells), "question.resolution over question.bounds")
    return cells
