"""Squares of one side: vectorised, exact at their borders, over given bounds or over what the data cover.

It must not read data; it agrees with `fleetcount_protocol.window.domain.SquareGrid`, which devices use.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from fleetcount_protocol.window.domain import MAX_VALUES, SquareGrid
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.cells.borders import steps_of
from fleetcount_simulator.cells.model import OUTSIDE, Bounds, Cells, Floats, Frame, Positions, Values, check_count
from fleetcount_simulator.cells.projection import Projection
from fleetcount_simulator.cells.settings import ANY_LENGTH, Settings
from fleetcount_simulator.model import AnswerSpace, Integers, Places


@settings
class Keys:
    """[question] of cells `square`."""

    size_m: Fraction = setting(Table.number, ANY_LENGTH, about="side of a square in metres", example="250")
    bounds: Bounds | None = setting(
        Settings.bounds,
        default=None,
        about="[x0, y0, x1, y1] in the data's unit, x1 and y1 raised to whole squares; default: all the data cover, in"
        " whole multiples of size_m",
        example="[0, 0, 2000, 1500]",
    )
    origin: tuple[Fraction, Fraction] | None = setting(
        Settings.corner,
        default=None,
        about="longitude/latitude data only: [longitude, latitude] where the metres start; default: from bounds",
        example="[11.30, 44.48]",
    )


_HALF: Final = 1 << 30
"""Columns and rows of an open grid lie in -2^30..2^30-1 and are packed into one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """Squares of side `size` (metres) counted from the corner (x0, y0); without `shape` the grid is open on all sides.

    `shape` is (columns, rows). `projection` turns longitude and latitude into metres first.
    """

    title: str
    size: Fraction
    x0: Fraction
    y0: Fraction
    shape: tuple[int, int] | None
    projection: Projection | None

    def keys(self, positions: Positions) -> Integers:
        """Return the key of every position: row and column packed, so that keys ascend as values do."""
        x, y = positions.x, positions.y
        if self.projection is not None:
            # An open grid lies around its origin; bounds are a part of the plane from -180 to 180 degrees.
            x, y = self.projection.to_metres(self.projection.around(x) if self.shape is None else x, y)
        columns, rows = steps_of(x, self.x0, self.size), steps_of(y, self.y0, self.size)
        if self.shape is None:
            inside = (np.abs(columns) < _HALF) & (np.abs(rows) < _HALF)
        else:
            inside = (columns >= 0) & (columns < self.shape[0]) & (rows >= 0) & (rows < self.shape[1])
        # Steps of a position outside may not fit an integer: they are replaced before the conversion.
        packed = _packed(*(np.where(inside, steps, 0).astype(np.int64) for steps in (columns, rows)))
        return np.where(inside, packed, np.int64(OUTSIDE))

    def close(self, seen: Integers) -> Values:
        """Return all squares of the grid, row by row from below; an open grid is the box around the squares seen."""
        first_column = first_row = 0
        if self.shape is None:
            if len(seen) == 0:
                check_count(0, "question.size_m")
            columns, rows = seen % (2 * _HALF) - _HALF, seen // (2 * _HALF) - _HALF
            first_column, first_row = int(columns.min()), int(rows.min())
            shape = int(columns.max()) - first_column + 1, int(rows.max()) - first_row + 1
        else:
            shape = self.shape
        check_count(shape[0] * shape[1], "question.size_m")
        corner = self.x0 + first_column * self.size, self.y0 + first_row * self.size
        codes = _packed(
            np.tile(np.arange(first_column, first_column + shape[0]), shape[1]),
            np.repeat(np.arange(first_row, first_row + shape[1]), shape[0]),
        )
        return Values(question=self._question(shape, corner), codes=codes, numbers=np.arange(1, len(codes) + 1))

    def _question(self, shape: tuple[int, int], corner: tuple[Fraction, Fraction]) -> AnswerSpace:
        columns, rows = shape
        few = columns * rows <= MAX_VALUES
        grid = SquareGrid(x0=corner[0], y0=corner[1], size=self.size, columns=columns, rows=rows) if few else None
        return AnswerSpace(
            title=self.title,
            labels=tuple(f"{column},{row}" for row in range(rows) for column in range(columns)),
            places=self._places(shape, corner),
            domain=grid,
        )

    def _places(self, shape: tuple[int, int], corner: tuple[Fraction, Fraction]) -> Places:
        x: Floats = float(corner[0]) + np.arange(shape[0] + 1, dtype=np.float64) * float(self.size)
        y: Floats = float(corner[1]) + np.arange(shape[1] + 1, dtype=np.float64) * float(self.size)
        if self.projection is not None:
            x, y = self.projection.to_degrees(x, np.zeros(1))[0], self.projection.to_degrees(np.zeros(1), y)[1]
        xs, ys = x.tolist(), y.tolist()
        outlines = tuple(
            ((left, below), (right, below), (right, above), (left, above))
            for below, above in pairwise(ys)
            for left, right in pairwise(xs)
        )
        return Places(outlines=outlines, unit="m" if self.projection is None else "deg")


def declare(question: Keys, frame: Frame, title: str) -> Cells:
    """Return the squares a `[question]` table asks for.

    Raises:
        ScenarioError: a key outside its range, too many squares, or degrees without `origin` and `bounds`.
    """
    size, bounds, origin = question.size_m, question.bounds or frame.extent, question.origin
    if frame.unit == "m":
        if origin is not None:
            raise UnfitKeyError("origin", problem="is not used: the positions are in metres already")
        return _over(title, size, bounds, None)
    if bounds is not None and not (abs(bounds[0]) <= 180 >= abs(bounds[2]) and abs(bounds[1]) <= 85 >= abs(bounds[3])):
        raise UnfitKeyError("bounds", allowed="longitudes from -180 to 180 and latitudes from -85 to 85")
    if origin is None:
        if bounds is None:
            raise UnfitKeyError(
                "origin",
                allowed="[longitude, latitude] of where metres begin, or give bounds: the data are degrees,"
                " squares metres",
            )
        origin = bounds[0], (bounds[1] + bounds[3]) / 2
    return _over(title, size, bounds, Projection(*origin))


def _over(title: str, size: Fraction, bounds: Bounds | None, projection: Projection | None) -> Squares:
    if bounds is None:
        zero = Fraction(0)
        return Squares(title=title, size=size, x0=zero, y0=zero, shape=None, projection=projection)
    x0, y0, x1, y1 = bounds
    if projection is not None:
        west, south, east, north = map(float, bounds)
        corners = projection.to_metres(np.array([west, east]), np.array([south, north]))
        (x0, x1), (y0, y1) = (tuple(map(_to_millimetres, pair)) for pair in corners)
    shape = max(1, math.ceil((x1 - x0) / size)), max(1, math.ceil((y1 - y0) / size))
    check_count(shape[0] * shape[1], "question.size_m over question.bounds")
    return Squares(title=title, size=size, x0=x0, y0=y0, shape=shape, projection=projection)


def _to_millimetres(metres: float) -> Fraction:
    return Fraction(round(metres * 1000), 1000)


def _packed(columns: Integers, rows: Integers) -> Integers:
    return np.asarray((rows + _HALF) * (2 * _HALF) + (columns + _HALF), dtype=np.int64)
