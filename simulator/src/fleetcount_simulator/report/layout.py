"""Where the panels of a chart stand in one picture, and the corners of marks: what SVG and PNG have in common.

Arithmetic on sizes; it writes nothing.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from PIL import Image

from fleetcount_simulator.report.scene import Chart, Panel, Point, Raster, Words

__all__ = ["SCALE", "Layout", "corners", "paletted", "placed", "printable"]

SCALE: Final = 2
"""Pixels of a picture for one of a panel."""
_GAP_PX: Final = 22.0
_MARGIN_PX: Final = 14.0
_TITLE_PX: Final = 16.0
_MOST_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Size of the picture, its title, and every panel with its upper left corner."""

    width: float
    height: float
    title: Words
    panels: Sequence[tuple[Panel, Point]] = field(repr=False)


def placed(chart: Chart) -> Layout:
    """Return a chart's panels in rows of at most three, the key above them."""
    columns = 2 if len(chart.panels) == 4 else min(_MOST_COLUMNS, len(chart.panels))
    top = _MARGIN_PX + _TITLE_PX + 12
    width = 2 * _MARGIN_PX
    found: list[tuple[Panel, Point]] = []
    if chart.key is not None:
        found.append((chart.key, (_MARGIN_PX, top)))
        width = max(width, chart.key.width + 2 * _MARGIN_PX)
        top += chart.key.height + 8
    for first in range(0, len(chart.panels), columns):
        row = chart.panels[first : first + columns]
        x = _MARGIN_PX
        for panel in row:
            found.append((panel, (x, top)))
            x += panel.width + _GAP_PX
        width = max(width, x - _GAP_PX + _MARGIN_PX)
        top += max(panel.height for panel in row) + _GAP_PX
    title = Words(x=_MARGIN_PX, y=_MARGIN_PX + _TITLE_PX, text=chart.title, size=_TITLE_PX, bold=True)
    return Layout(width=width, height=top - _GAP_PX + _MARGIN_PX, title=title, panels=found)


def corners(shape: int, x: float, y: float, radius: float) -> list[Point]:
    """Return the corners of a square (1), diamond (2) or triangle (3), as large to the eye as a circle."""
    if shape % 4 == 1:
        r = 0.9 * radius
        return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    if shape % 4 == 2:
        r = 1.25 * radius
        return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    r = 1.2 * radius
    return [(x, y - r), (x + r, y + 0.75 * r), (x - r, y + 0.75 * r)]


def paletted(raster: Raster) -> Image.Image:
    """Return a raster as a picture with a palette, its first entry clear."""
    made = Image.fromarray(raster.pixels, "P")
    rest = (colour.removeprefix("#") for colour in raster.palette[1:])
    made.putpalette(bytes(3) + b"".join(map(bytes.fromhex, rest)))
    made.info["transparency"] = 0
    return made


def printable(text: str) -> str:
    """Return a text without what XML cannot hold: a control character or half a surrogate pair becomes a blank."""
    return "".join(" " if unicodedata.category(c) in {"Cc", "Cs", "Cn"} else c for c in text)
