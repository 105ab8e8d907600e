"""Maps of the places that values have: one colour a cell, a scale below, numbers in the cells where they fit.

Outlines come as well-known text from the tables. Cells of one colour are one mark; maps of many cells are a picture.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fleetcount_simulator.report.axes import SMALL_PX, number
from fleetcount_simulator.report.layout import SCALE
from fleetcount_simulator.report.scene import Areas, Lines, Mark, Panel, Point, Raster, Words, text_width

__all__ = ["Outlines", "map_panel"]

MAP_WIDTH_PX: Final = 300.0
_MOST_HEIGHT_PX: Final = 420.0
_LEAST_HEIGHT_PX: Final = 90.0
_TOP_PX: Final = 26.0
_SHADES: Final = 48
_MOST_MARKED: Final = 1500
_MOST_NUMBERED: Final = 150
_EMPTY: Final = "#b9b9b9"
_AREA: Final = "POLYGON(("
_LINE: Final = "LINESTRING("
_NO_NUMBER: Final = re.compile(r"[A-Z(),]+")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """The shapes of all cells in the pixels of a map, made once for all its panels.

    Cell i has the corners `points[starts[i]:starts[i + 1]]`. For maps of many cells `owners` is a picture of whose
    pixel each is: 0 nobody's, i + 1 cell i's.
    """

    points: Floats = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    height: float
    lines: bool
    owners: NDArray[np.int32] | None = field(repr=False)

    @classmethod
    def of(cls, texts: Sequence[str], unit: str) -> "Outlines":
        """Return the cells scaled to the width of a map, north up; degrees are stretched as at their middle.

        Raises:
            ValueError: an outline that is neither POLYGON((x y, ...)) nor LINESTRING(x y, ...).
        """
        corners, starts = _corners(texts)
        (left, bottom), (right, top) = corners.min(axis=0), corners.max(axis=0)
        narrow = max(0.05, math.cos(math.radians((bottom + top) / 2))) if unit == "deg" else 1.0
        wide, high = max((right - left) * narrow, 1e-12), max(top - bottom, 1e-12)
        scale = min((MAP_WIDTH_PX - 2) / wide, _MOST_HEIGHT_PX / high)
        height = max(_LEAST_HEIGHT_PX, high * scale)
        x = (MAP_WIDTH_PX - wide * scale) / 2 + (corners[:, 0] - left) * narrow * scale
        y = height - (height - high * scale) / 2 - (corners[:, 1] - bottom) * scale
        points, lines = np.column_stack([x, y]), texts[0].startswith(_LINE)
        owners = _owners(points, starts, height, lines=lines) if len(texts) > _MOST_MARKED else None
        return cls(points, starts, height, lines, owners)

    def shapes(self) -> list[list[Point]]:
        """Return the corners of every cell."""
        placed = [(x, y) for x, y in self.points.tolist()]
        starts = self.starts.tolist()
        return [placed[start:end] for start, end in pairwise(starts)]


def _corners(texts: Sequence[str]) -> tuple[Floats, NDArray[np.int64]]:
    """Return all corners (n, 2), and where each outline's begin and the last one's end."""
    odd = next((text for text in texts if not text.startswith((_AREA, _LINE))), None)
    if odd is not None:
        raise ValueError(f"outline {odd[:40]!r} is no polygon and no line")
    counts = [text.count(",") + 1 for text in texts]
    numbers = np.array(_NO_NUMBER.sub(" ", " ".join(texts)).split(), dtype=np.float64)
    return numbers.reshape(sum(counts), 2), np.concatenate([[0], np.cumsum(counts)])


def _owners(points: Floats, starts: NDArray[np.int64], height: float, *, lines: bool) -> NDArray[np.int32]:
    """Return whose pixel each is, two pixels for one; where cells touch, the later one's."""
    picture = Image.new("I", (round(MAP_WIDTH_PX * SCALE), round(height * SCALE)), 0)
    pen = ImageDraw.Draw(picture)
    flat = (points * SCALE).ravel().tolist()
    for place, (start, end) in enumerate(pairwise((2 * starts).tolist()), start=1):
        if lines:
            pen.line(flat[start:end], fill=place, width=2 * SCALE)
        else:
            pen.polygon(flat[start:end], fill=place)
    return np.asarray(picture, dtype=np.int32)


def map_panel(outlines: Outlines, values: Floats, *, title: str, top: float, colours: str, unit: str) -> Panel:
    """Return one map; colours run from 0 to `top`, not a number is grey, below 0 is shown as 0."""
    bins = _bins(values, top)
    if outlines.owners is not None:
        shapes: list[Mark] = [_picture(outlines.owners, bins, outlines.height, colours)]
    else:
        corners = outlines.shapes()
        shapes = _shapes(corners, bins, colours, lines=outlines.lines)
        if len(values) <= _MOST_NUMBERED and not outlines.lines:
            shapes += _numbers(corners, values, [_colour(shade, colours) for shade in bins.tolist()])
    marks: list[Mark] = [Words(x=0, y=15, text=title, bold=True)]
    marks += [_lowered(mark, _TOP_PX) for mark in shapes]
    bottom = _TOP_PX + outlines.height
    marks += _scale(bottom + 10, top, colours, unit)
    known = values[np.isfinite(values)]
    spread = f"from {number(float(known.min()))} to {number(float(known.max()))}" if known.size else "nothing released"
    alt = f"{title}, map of {len(values)} cells, {spread} {unit}"
    return Panel(width=MAP_WIDTH_PX, height=bottom + 42, alt=alt, marks=marks)


def _bins(values: Floats, top: float) -> NDArray[np.int64]:
    """Return the shade of every value, -1 for none. A few full cells among nearly empty ones: not linear."""
    shares = np.clip(np.nan_to_num(values) / top, 0, 1) ** 0.6
    return np.where(np.isfinite(values), np.minimum((shares * _SHADES).astype(np.int64), _SHADES - 1), -1)


@lru_cache(maxsize=256)
def _colour(shade: int, colours: str) -> str:
    if shade < 0:
        return _EMPTY
    red, green, blue, _ = mpl.colormaps[colours](shade / (_SHADES - 1), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _picture(owners: NDArray[np.int32], bins: NDArray[np.int64], height: float, colours: str) -> Raster:
    """Return a map as a picture: what is nobody's is clear."""
    palette = ("clear", _EMPTY, *(_colour(shade, colours) for shade in range(_SHADES)))
    entries = np.concatenate([[0], bins + 2]).astype(np.uint8)
    return Raster(x=0, y=0, width=MAP_WIDTH_PX, height=height, pixels=entries[owners], palette=palette)


def _shapes(corners: Sequence[Sequence[Point]], bins: NDArray[np.int64], colours: str, *, lines: bool) -> list[Mark]:
    """Return one mark a colour."""
    made: list[Mark] = []
    for shade in np.unique(bins).tolist():
        members = [corners[place] for place in np.flatnonzero(bins == shade).tolist()]
        colour = _colour(shade, colours)
        made.append(Lines(lines=members, colour=colour, width=2.5) if lines else Areas(rings=members, colour=colour))
    return made


def _numbers(corners: Sequence[Sequence[Point]], values: Floats, colours: Sequence[str]) -> list[Mark]:
    """Return the numbers of cells that have room for them, in black or white."""
    size = 10.5
    made: list[Mark] = []
    for ring, value, colour in zip(corners, values.tolist(), colours, strict=True):
        if not math.isfinite(value):
            continue
        text = number(round(value))
        across, up = [x for x, _ in ring], [y for _, y in ring]
        if text_width(text, size) > max(across) - min(across) - 2 or max(up) - min(up) < size + 2:
            continue
        middle = (max(across) + min(across)) / 2, (max(up) + min(up)) / 2 + 4
        x, y = middle
        made.append(Words(x=x, y=y, text=text, size=size, colour=_readable(colour), anchor="middle"))
    return made


def _readable(colour: str) -> str:
    """Return black or white, whichever stands out more from a colour (relative luminance of WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _scale(y: float, top: float, colours: str, unit: str) -> list[Mark]:
    """Return the colour scale with round numbers below it."""
    wide = MAP_WIDTH_PX / _SHADES
    made: list[Mark] = [
        Areas(
            rings=[[(s * wide, y), ((s + 1) * wide + 0.3, y), ((s + 1) * wide + 0.3, y + 8), (s * wide, y + 8)]],
            colour=_colour(s, colours),
        )
        for s in range(_SHADES)
    ]
    free = -1.0
    for value in (0.0, float(f"{top / 8:.1g}"), float(f"{top / 3:.1g}"), top):
        text = number(value) if value < top else f"{number(value)} {unit}"
        x = MAP_WIDTH_PX * (value / top) ** 0.6
        anchor = "start" if value == 0 else "end" if value == top else "middle"
        wanted = text_width(text, SMALL_PX)
        start = x - wanted * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        if start > free:
            made.append(Words(x=x, y=y + 22, text=text, size=SMALL_PX, colour="soft", anchor=anchor))
            free = start + wanted + 6
    return made


def _lowered(mark: Mark, by: float) -> Mark:
    """Return a mark moved down."""
    match mark:
        case Areas():
            return Areas(rings=[[(x, y + by) for x, y in ring] for ring in mark.rings], colour=mark.colour)
        case Lines():
            lines = [[(x, y + by) for x, y in line] for line in mark.lines]
            return Lines(lines=lines, colour=mark.colour, width=mark.width)
        case Raster() | Words():
            return replace(mark, y=mark.y + by)
        case _:
            return mark
