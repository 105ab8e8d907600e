"""What a figure is made of: marks in pixels on panels, told apart from how they are written down.

Values only: it draws nothing and knows no study. x grows to the right and y downwards, as in SVG. A colour is a role
(`COLOURS`), so that a page can show it in the dark, or "#rrggbb" where the colour itself is the message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from fleetcount_analysis.figures import PALETTE
from numpy.typing import NDArray

__all__ = [
    "COLOURS",
    "DARK",
    "FONT_PX",
    "Areas",
    "Chart",
    "Dots",
    "Lines",
    "Mark",
    "Panel",
    "Point",
    "Raster",
    "Words",
    "fitted",
    "text_width",
]

Point = tuple[float, float]

FONT_PX: Final = 13.0
"""Size of the text of a panel that is shown at its own width."""

_NARROW: Final = frozenset(" .,:;|!'()[]ijlt")
_WIDE: Final = frozenset("mwMW@%—…")

COLOURS: Final = {
    "ink": "#1c1c1c",
    "soft": "#595959",
    "rule": "#8a8a8a",
    "grid": "#e4e4e4",
    "band": "#d9efe6",
    "paper": "#ffffff",
    "bad": "#b3261e",
    **{f"s{number}": colour for number, colour in enumerate(PALETTE)},
}
"""Roles on paper: text, text beside, axes, grid, the range where a measurement should be, background, a broken
promise, and series s0 to s6."""

DARK: Final = {
    "ink": "#ececec",
    "soft": "#b4b4b4",
    "rule": "#8f8f8f",
    "grid": "#33373c",
    "band": "#17402f",
    "paper": "#16181b",
    "bad": "#ff8a80",
    "s0": "#5fb3e8",
    "s1": "#ff9a52",
    "s2": "#3fd0a4",
    "s3": "#e7a3cb",
    "s4": "#f2bd42",
    "s5": "#9fd6f5",
    "s6": "#b8b8b8",
}
"""The same roles on a dark page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Open lines, each a sequence of points."""

    lines: Sequence[Sequence[Point]]
    colour: str
    width: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Areas:
    """Closed rings filled with one colour."""

    rings: Sequence[Sequence[Point]]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Marks of one shape (0 circle, 1 square, 2 diamond, 3 triangle) at points; `titles` are read when pointed at."""

    points: Sequence[Point]
    colour: str
    shape: int = 0
    radius: float = 3.6
    titles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One line of text; (x, y) is its start, middle or end (`anchor`) on the base line."""

    x: float
    y: float
    text: str
    size: float = FONT_PX
    colour: str = "ink"
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raster:
    """A picture in a rectangle, for maps of more cells than a page should hold.

    `pixels` (rows from the top, columns) are places in `palette`, whose first entry is clear.
    """

    x: float
    y: float
    width: float
    height: float
    pixels: NDArray[np.uint8] = field(repr=False)
    palette: tuple[str, ...] = field(repr=False)


Mark = Lines | Areas | Dots | Words | Raster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One drawing: its size in pixels, what a reader who cannot see it is told, and its marks from back to front."""

    width: float
    height: float
    alt: str
    marks: Sequence[Mark] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A figure: panels side by side under a common key, file name without ending, title and caption (plain text)."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    key: Panel | None = None


def text_width(text: str, size: float = FONT_PX) -> float:
    """Return about how wide a text is, in pixels; on the safe side for the fonts the report names."""
    return sum(map(_em, text)) * size


def _em(letter: str) -> float:
    """Return about how wide a letter is, in sizes of the font."""
    if letter in _NARROW:
        return 0.36
    if letter in _WIDE:
        return 0.98
    if ord(letter) > 0x2E7F:  # East Asian letters and pictures are squares.
        return 1.05
    return 0.76 if letter.isupper() else 0.63


def fitted(text: str, width: float, size: float = FONT_PX) -> str:
    """Return a text cut, with dots, to about so many pixels."""
    if text_width(text, size) <= width:
        return text
    room = width / size - 1.0
    kept = 0
    for letter in text:
        room -= _em(letter)
        if room < 0:
            break
        kept += 1
    return text[:kept] + "…"
