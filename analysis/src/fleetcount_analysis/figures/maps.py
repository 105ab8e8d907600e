"""Maps of the values' places: a colour for each cell, a colour scale, numbers in the cells with enough room.

Outlines are well-known text or a grid. In maps of many cells the cells are rasterized.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from fleetcount_analysis.figures.words import drawable, number
from fleetcount_analysis.interval_words import BELOW_NOISE

Floats = NDArray[np.float64]
Axes = Any  # matplotlib's own annotations of Axes are partial.

_WIDTH_IN: Final = 4.3
_MOST_HEIGHT_IN: Final = 5.6
_LEAST_HEIGHT_IN: Final = 1.2
_NUMBER_PT: Final = 7.5
_LETTER_EM: Final = 0.66
"""The largest width of a digit, in font sizes."""
_MOST_SHAPES: Final = 500
"""The most cells that are drawn as shapes; more are rasterized, because shapes would make the file large."""
_MOST_NUMBERED: Final = 150
_MOST_TICKS: Final = 16
"""The most numbers along a side of a grid."""
_AXIS_IN: Final = 0.45
"""Height of the numbers and the name of an axis below a map, in inches."""
_GAMMA: Final = 0.6
"""The exponent of the colour scale: with a linear scale the many nearly empty cells would all have one colour."""
_EMPTY: Final = "#b9b9b9"
_STREET: Final = "#a8a8a8"
"""A grey that is visible on dark and on light cells."""
_AREA: Final = "POLYGON(("
_LINE: Final = "LINESTRING("
_NO_NUMBER: Final = re.compile(r"[A-Z(),]+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlines:
    """The shapes of all cells, an array (n, 2) of x and y for each, in metres or degrees; or roads, if `are_lines`.

    `streets` are thin lines over the cells' colours, for orientation.
    """

    shapes: Sequence[Floats] = field(repr=False)
    degrees: bool = False
    are_lines: bool = False
    streets: Sequence[Floats] = field(default=(), repr=False)
    grid_size: tuple[int, int] | None = None
    """Columns and rows where the cells are the squares of `grid`, whose axes then have the numbers of their names."""

    @classmethod
    def of(cls, texts: Sequence[str], unit: str) -> "Outlines":
        """Return the cells of well-known texts; `unit` is "deg" or "m".

        Raises:
            ValueError: an outline that is neither POLYGON((x y, ...)) nor LINESTRING(x y, ...).
        """
        odd = next((text for text in texts if not text.startswith((_AREA, _LINE))), None)
        if odd is not None:
            raise ValueError(f"outline {odd[:40]!r} is neither a polygon nor a line")
        counts = [text.count(",") + 1 for text in texts]
        corners = np.array(_NO_NUMBER.sub(" ", " ".join(texts)).split(), dtype=np.float64).reshape(sum(counts), 2)
        shapes = np.split(corners, np.cumsum(counts)[:-1])
        return cls(shapes=shapes, degrees=unit == "deg", are_lines=texts[0].startswith(_LINE))

    @classmethod
    def grid(cls, columns: int, rows: int, streets: Sequence[Floats] = ()) -> "Outlines":
        """Return squares of side 1 row by row from the south-western corner, as cells 1..V of a grid are numbered.

        `streets` are lines (n, 2) in sides of a square from that corner.
        """
        column, row = np.tile(np.arange(columns), rows), np.repeat(np.arange(rows), columns)
        corners = np.stack([np.stack([column + x, row + y], axis=1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], 1)
        return cls(shapes=list(corners.astype(np.float64)), streets=streets, grid_size=(columns, rows))

    @property
    def aspect(self) -> float:
        """The ratio of a unit of y to a unit of x on paper; for degrees that at the middle latitude."""
        if not self.degrees:
            return 1.0
        low, high = self.extent
        return 1 / max(0.05, math.cos(math.radians(float(low[1] + high[1]) / 2)))

    @property
    def extent(self) -> tuple[Floats, Floats]:
        """The south-western and the north-eastern corner, (x, y) each."""
        corners = np.concatenate(self.shapes)
        return corners.min(axis=0), corners.max(axis=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapPanel:
    """A map: the colour scale is from 0 to `top`, nan is grey, and a value below 0 has the colour of 0.

    `texts` has the text of each cell on a page. Cells that are `hatched` have no number: `unit` says why.
    """

    title: str
    outlines: Outlines = field(repr=False)
    values: Floats = field(repr=False)
    top: float
    colours: Literal["viridis", "cividis"] = "viridis"
    unit: str = "devices"
    texts: Sequence[str] = field(default=(), repr=False)
    hatched: NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def alt(self) -> str:
        """The text alternative of the map, for screen readers."""
        known = self.values[np.isfinite(self.values)]
        spread = f"from {number(float(known.min()))} to {number(float(known.max()))}" if known.size else "nothing known"
        return f"{self.title}, map of {len(self.values)} cells, {spread} {self.unit}"

    @property
    def size_in(self) -> tuple[float, float]:
        """Width and height of the map with its title and its scale, in inches."""
        low, high = self.outlines.extent
        wide, tall = np.maximum(high - low, 1e-12)
        height = _WIDTH_IN * 0.94 * float(tall / wide) * self.outlines.aspect
        named = 0.0 if self.outlines.grid_size is None else _AXIS_IN
        return _WIDTH_IN, min(_MOST_HEIGHT_IN, max(_LEAST_HEIGHT_IN, height)) + 0.8 + named


def width_panel(
    outlines: Outlines,
    *,
    estimates: Floats,
    low: Floats,
    high: Floats,
    title: str = "Width of the interval",
    unit: str = "devices",
    texts: Sequence[str] = (),
) -> MapPanel:
    """Return the map of how wide the intervals are; nan is a cell that was not released.

    Where an estimate below 0 has the interval 0 to 0 ("0, below noise") the cell is hatched: no count explains the
    number, and it is nothing that is known exactly.
    """
    widths = high - low
    below_noise = (low == 0) & (high == 0) & (estimates < 0)
    return MapPanel(
        title=title,
        outlines=outlines,
        values=widths,
        top=max(1.0, float(np.nanmax(widths))),
        colours="cividis",
        unit=f"{unit} (hatched: {BELOW_NOISE})" if below_noise.any() else unit,
        texts=texts,
        hatched=below_noise,
    )


def draw_map_panel(axes: Axes, panel: MapPanel) -> None:
    """Draw a map, its scale below it; only that of a grid has axes, with the numbers by which its cells are named."""
    axes.set_title(drawable(panel.title, 40))
    if panel.outlines.grid_size is None:
        axes.set_axis_off()
    drawn = draw_cells(axes, panel.outlines, panel.values, top=panel.top, colours=panel.colours)
    pad = 0.02
    if panel.outlines.grid_size is not None:
        _draw_grid_axes(axes, *panel.outlines.grid_size)
        pad = 0.04
    draw_colour_scale(axes, drawn, panel.unit, location="bottom", shrink=0.96, aspect=36, pad=pad)
    hatched = np.zeros(len(panel.values), dtype=np.bool_) if panel.hatched is None else panel.hatched
    if hatched.any():
        shapes = [shape for shape, marked in zip(panel.outlines.shapes, hatched.tolist(), strict=True) if marked]
        painted = "white"
        if panel.outlines.are_lines:  # As on a page: a road has no inside, its box has.
            shapes, painted = [_box(shape) for shape in shapes], "none"
        marks = PolyCollection(shapes, facecolors=painted, edgecolors="black", linewidths=0.2, hatch="////", zorder=3)
        axes.add_collection(marks)
    if len(panel.values) <= _MOST_NUMBERED and not panel.outlines.are_lines:
        write_numbers(axes, panel.outlines, np.where(hatched, np.nan, panel.values), drawn)


def _box(shape: Floats) -> Floats:
    (west, south), (east, north) = shape.min(axis=0), shape.max(axis=0)
    return np.array([(west, south), (east, south), (east, north), (west, north)])


def _draw_grid_axes(axes: Axes, columns: int, rows: int) -> None:
    """Draw the numbers of columns and rows, of which at most `_MOST_TICKS` each: a cell is named "column,row"."""
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        places = np.arange(0, count, -(-count // _MOST_TICKS))
        axis.set_ticks(places + 0.5, labels=[str(place) for place in places])
        axis.set_tick_params(length=0, pad=1)
    axes.set_xlabel("x, from the west (cells are x,y)", labelpad=1)
    axes.set_ylabel("y, from the south", labelpad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_cells(axes: Axes, outlines: Outlines, values: Floats, *, top: float, colours: str) -> Any:
    """Draw every cell in the colour of its value and return the collection; the axes keep the cells' proportions."""
    many = len(outlines.shapes) > _MOST_SHAPES
    painted: dict[str, Any] = {
        "array": np.ma.masked_invalid(values),
        "cmap": mpl.colormaps[colours].with_extremes(bad=_EMPTY),
        "norm": PowerNorm(_GAMMA, vmin=0, vmax=top, clip=True),
        "rasterized": many,
    }
    if outlines.are_lines:
        drawn: Any = LineCollection(outlines.shapes, linewidths=2.5, capstyle="round", **painted)
    elif many:
        # Antialiased edges would leave seams between rasterized cells.
        drawn = PolyCollection(outlines.shapes, edgecolors="none", antialiased=False, **painted)
    else:
        drawn = PolyCollection(outlines.shapes, edgecolors="face", linewidths=0.2, **painted)
    axes.add_collection(drawn)
    if outlines.streets:
        lines = LineCollection(outlines.streets, colors=_STREET, linewidths=0.5, capstyle="round")
        axes.add_collection(lines, autolim=False)
    axes.autoscale_view()
    axes.margins(0.01)
    axes.set_aspect(outlines.aspect)
    axes.grid(visible=False)
    return drawn


def draw_colour_scale(axes: Axes, drawn: Any, unit: str, **where: Any) -> None:
    """Draw the scale of the colours of cells, with whole numbers and the unit; `where` is as of Figure.colorbar."""
    end = float(drawn.norm.vmax)
    # No tick above the end: the norm clips, so its label would be drawn over the last one.
    steps = [step for step in MaxNLocator(nbins=4, integer=True).tick_values(0, end) if 0 <= step <= end]

    def whole(value: float, _: int | None) -> str:
        return number(round(value))

    scale = axes.figure.colorbar(drawn, ax=axes, ticks=steps, format=FuncFormatter(whole), **where)
    scale.set_label(drawable(unit, 40))
    scale.outline.set_visible(False)


def write_numbers(axes: Axes, outlines: Outlines, values: Floats, drawn: Any) -> None:
    """Write the numbers of cells with enough room, black on light cells and white on dark ones."""
    low, high = outlines.extent
    across, up = high - low
    room = axes.get_window_extent()
    points_a_unit = min(room.width / across, room.height / up / outlines.aspect) * 72 / axes.figure.dpi
    colours = drawn.to_rgba(drawn.get_array())
    for shape, value, colour in zip(outlines.shapes, values.tolist(), colours.tolist(), strict=True):
        if not math.isfinite(value):
            continue
        text = number(round(value))
        wide, tall = np.ptp(shape, axis=0) * points_a_unit
        if len(text) * _LETTER_EM * _NUMBER_PT > wide - 2 or tall < _NUMBER_PT + 2:
            continue
        x, y = (shape.min(axis=0) + shape.max(axis=0)) / 2
        # The box hides streets behind the number.
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if outlines.streets else None
        axes.text(
            x, y, text, ha="center", va="center", fontsize=_NUMBER_PT, color=readable_on(colour), bbox=behind, zorder=4
        )


def readable_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever stands out more from a colour (relative luminance of WCAG 2.2)."""
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colour[:3])
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"
