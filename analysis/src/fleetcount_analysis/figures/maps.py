"""Maps of the places that values have: one colour a cell, a scale below, numbers in the cells where they fit.

Outlines come as well-known text or as a grid. Maps of many cells are a picture inside the figure.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import PowerNorm
from numpy.typing import NDArray

from fleetcount_analysis.figures.panels import Area, Panel
from fleetcount_analysis.figures.style import SMALL_PX
from fleetcount_analysis.figures.words import fitted, number, text_width

Floats = NDArray[np.float64]
Axes = Any  # matplotlib's own annotations of Axes are partial.

MAP_WIDTH_PX: Final = 300.0
_MOST_HEIGHT_PX: Final = 420.0
_LEAST_HEIGHT_PX: Final = 90.0
_TOP_PX: Final = 26.0
_NUMBER_PX: Final = 10.5
_CORNERS: Final = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
_MOST_SHAPES: Final = 500
"""Cells from which on a map is a picture: as shapes they would fill the page."""
_MOST_NUMBERED: Final = 150
_EMPTY: Final = "#b9b9b9"
_STREET: Final = "#a8a8a8"
_AREA: Final = "POLYGON(("
_LINE: Final = "LINESTRING("
_NO_NUMBER: Final = re.compile(r"[A-Z(),]+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlines:
    """The shapes of all cells in the pixels of a map, made once for all its panels: an array (n, 2) for each.

    `streets` are thin lines over the cells' colours, in pixels too, so that a reader sees where a cell is.
    """

    shapes: Sequence[Floats] = field(repr=False)
    height: float
    lines: bool = False
    streets: Sequence[Floats] = field(default=(), repr=False)

    @classmethod
    def of(cls, texts: Sequence[str], unit: str) -> "Outlines":
        """Return the cells scaled to the width of a map, north up; degrees are stretched as at their middle.

        Raises:
            ValueError: an outline that is neither POLYGON((x y, ...)) nor LINESTRING(x y, ...).
        """
        odd = next((text for text in texts if not text.startswith((_AREA, _LINE))), None)
        if odd is not None:
            raise ValueError(f"outline {odd[:40]!r} is no polygon and no line")
        counts = [text.count(",") + 1 for text in texts]
        numbers = np.array(_NO_NUMBER.sub(" ", " ".join(texts)).split(), dtype=np.float64)
        corners = numbers.reshape(sum(counts), 2)
        if unit == "deg":
            middle = (corners[:, 1].min() + corners[:, 1].max()) / 2
            corners = corners * (max(0.05, math.cos(math.radians(middle))), 1.0)
        return cls._scaled(corners, np.cumsum(counts)[:-1], lines=texts[0].startswith(_LINE))

    @classmethod
    def corners(cls, text: str) -> list[tuple[float, float]]:
        """Return the corners that an outline's text names, as they stand there."""
        numbers = [float(one) for one in _NO_NUMBER.sub(" ", text).split()]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    @classmethod
    def grid(cls, columns: int, rows: int, streets: Sequence[Floats] = ()) -> "Outlines":
        """Return squares row by row from the south-western corner, as the cells 1..V of a square grid are numbered.

        `streets` are lines (n, 2) in sides of a square from that corner.
        """
        column, row = np.tile(np.arange(columns), rows), np.repeat(np.arange(rows), columns)
        corners = np.stack([np.stack([column + x, row + y], axis=1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], 1)
        made = cls._scaled(corners.reshape(-1, 2).astype(np.float64), np.arange(4, 4 * columns * rows, 4))
        corner, side = made.shapes[0][0], np.ptp(made.shapes[0][:, 0])
        return replace(made, streets=[corner + line * (side, -side) for line in streets])

    @classmethod
    def _scaled(cls, corners: Floats, splits: NDArray[np.int64], *, lines: bool = False) -> "Outlines":
        low, high = corners.min(axis=0), corners.max(axis=0)
        wide, tall = np.maximum(high - low, 1e-12)
        scale = min((MAP_WIDTH_PX - 2) / wide, _MOST_HEIGHT_PX / tall)
        height = max(_LEAST_HEIGHT_PX, float(tall * scale))
        x = (MAP_WIDTH_PX - wide * scale) / 2 + (corners[:, 0] - low[0]) * scale
        y = height - (height - tall * scale) / 2 - (corners[:, 1] - low[1]) * scale
        return cls(shapes=np.split(np.column_stack([x, y]), splits), height=height, lines=lines)


def map_panel(outlines: Outlines, values: Floats, *, title: str, top: float, colours: str, unit: str) -> Panel:
    """Return one map; colours run from 0 to `top`, not a number is grey, below 0 is shown as 0.

    A few full cells stand among many nearly empty ones: a linear scale would leave those all one colour.
    """
    norm = PowerNorm(0.6, vmin=0, vmax=top, clip=True)
    painted = mpl.colormaps[colours].with_extremes(bad=_EMPTY)(norm(np.ma.masked_invalid(values)))
    bottom = _TOP_PX + outlines.height

    def draw(area: Area) -> None:
        area.text(0, 15, fitted(title, MAP_WIDTH_PX, bold=True), bold=True)
        axes = area.axes(0, _TOP_PX, MAP_WIDTH_PX, bottom)
        axes.set(xlim=(0, MAP_WIDTH_PX), ylim=(outlines.height, 0))
        _draw_shapes(axes, outlines, painted)
        if len(values) <= _MOST_NUMBERED and not outlines.lines:
            rooms = _write_numbers(area, outlines.shapes, values, painted)
            if outlines.streets and rooms:  # No street runs through a number.
                boxes, paints = zip(*rooms, strict=True)
                axes.add_collection(
                    PolyCollection(boxes, facecolors=paints, edgecolors="none", zorder=3), autolim=False
                )
        _draw_scale(area, bottom + 10, top, colours, unit)

    known = values[np.isfinite(values)]
    spread = f"from {number(float(known.min()))} to {number(float(known.max()))}" if known.size else "nothing released"
    alt = f"{title}, map of {len(values)} cells, {spread} {unit}"
    return Panel(width=MAP_WIDTH_PX, height=bottom + 42, alt=alt, draw=draw)


def _draw_shapes(axes: Axes, outlines: Outlines, painted: Floats) -> None:
    many = len(outlines.shapes) > _MOST_SHAPES
    if outlines.lines:
        drawn: Any = LineCollection(outlines.shapes, colors=painted, linewidths=2.5, capstyle="round")
    else:
        # Without smoothed edges there are no seams between the cells of a picture.
        drawn = PolyCollection(outlines.shapes, facecolors=painted, edgecolors="none", antialiased=not many)
    drawn.set(rasterized=many, clip_on=False)
    axes.add_collection(drawn, autolim=False)
    if outlines.streets:
        # In a grey that stands out from dark cells and from light ones, and thin: the colours are the message.
        axes.add_collection(
            LineCollection(outlines.streets, colors=_STREET, linewidths=0.5, capstyle="round"), autolim=False
        )


def _write_numbers(
    area: Area, shapes: Sequence[Floats], values: Floats, painted: Floats
) -> list[tuple[Floats, Sequence[float]]]:
    """Write the numbers of cells that have room for them, in black on light cells and in white on dark ones.

    Returns the corners of the room that each number takes and the colour of its cell.
    """
    rooms: list[tuple[Floats, Sequence[float]]] = []
    for shape, value, colour in zip(shapes, values.tolist(), painted.tolist(), strict=True):
        if not math.isfinite(value):
            continue
        text = number(round(value))
        low, high = shape.min(axis=0), shape.max(axis=0)
        wide, tall = high - low
        if text_width(text, _NUMBER_PX) > wide - 2 or tall < _NUMBER_PX + 2:
            continue
        middle = (low + high) / 2
        x, y = float(middle[0]), float(middle[1]) + _TOP_PX + 4
        area.text(x, y, text, size=_NUMBER_PX, colour=readable_on(colour), anchor="middle")
        reach = np.array([text_width(text, _NUMBER_PX) / 2 + 1.5, _NUMBER_PX / 2 + 0.5])
        rooms.append((middle + reach * _CORNERS, colour))
    return rooms


def readable_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever stands out more from a colour (relative luminance of WCAG 2.2)."""
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colour[:3])
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _draw_scale(area: Area, y: float, top: float, colours: str, unit: str) -> None:
    """Draw the colour scale with round numbers below it."""
    axes = area.axes(0, y, MAP_WIDTH_PX, y + 8)
    axes.imshow(np.linspace(0, 1, 256)[np.newaxis], cmap=colours, aspect="auto", extent=(0, 1, 0, 1))
    free = -1.0
    for value in (0.0, float(f"{top / 8:.1g}"), float(f"{top / 3:.1g}"), top):
        text = number(value) if value < top else f"{number(value)} {unit}"
        x = MAP_WIDTH_PX * (value / top) ** 0.6
        anchor = "start" if value == 0 else "end" if value == top else "middle"
        wanted = text_width(text, SMALL_PX)
        start = x - wanted * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        if start > free:
            area.text(x, y + 22, text, size=SMALL_PX, colour="soft", anchor=anchor)
            free = start + wanted + 6
