"""Charts as PNG: the same marks as in the SVG file on white, two pixels for one.

Shapes go to matplotlib's Agg renderer itself, without axes or layout, and words to Pillow on top of them, so that a
figure costs about as much as an empty one.
"""

import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.path import Path as Outline
from matplotlib.transforms import Affine2D
from PIL import Image, ImageDraw, ImageFont

from fleetcount_simulator.report.layout import SCALE, corners, paletted, placed, printable
from fleetcount_simulator.report.scene import COLOURS, Areas, Chart, Dots, Lines, Mark, Point, Raster, Words

__all__ = ["chart_png"]

_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}

Colour = tuple[float, float, float]


def chart_png(chart: Chart) -> bytes:
    """Return a chart as the bytes of a PNG file."""
    layout = placed(chart)
    paper = _Paper(layout.width, layout.height)
    paper.draw(layout.title, (0, 0))
    for panel, origin in layout.panels:
        for mark in panel.marks:
            paper.draw(mark, origin)
    content = io.BytesIO()
    paper.picture().save(content, "png", compress_level=3)
    return content.getvalue()


class _Paper:
    """A surface in the coordinates of panels."""

    def __init__(self, width: float, height: float) -> None:
        self._height = round(height * SCALE)
        # Any: the renderer is public but without annotations. Its unit of length is 1/72 inch, one of ours.
        make: Any = RendererAgg
        self._renderer = make(round(width * SCALE), self._height, 72 * SCALE)
        np.asarray(self._renderer.buffer_rgba())[:] = 255
        self._words: list[tuple[Words, Point]] = []
        self._rasters: list[tuple[Raster, Point]] = []

    def picture(self) -> Image.Image:
        """Return what was drawn, with rasters and then words on top of it."""
        made = Image.fromarray(np.asarray(self._renderer.buffer_rgba())).convert("RGB")
        for raster, (x, y) in self._rasters:
            cells = paletted(raster).resize((round(raster.width * SCALE), round(raster.height * SCALE))).convert("RGBA")
            made.paste(cells, (round((x + raster.x) * SCALE), round((y + raster.y) * SCALE)), cells)
        pen = ImageDraw.Draw(made)
        for words, (x, y) in self._words:
            place = ((x + words.x) * SCALE, (y + words.y) * SCALE)
            font = _font(words.size * SCALE, words.bold)
            colour = tuple(round(255 * part) for part in _rgb(words.colour))
            pen.text(place, printable(words.text), fill=colour, font=font, anchor=_ANCHORS[words.anchor])
        return made

    def draw(self, mark: Mark, origin: Point) -> None:
        """Draw a mark of a panel whose upper left corner is `origin`."""
        match mark:
            case Lines():
                self._path(mark.lines, origin, mark.colour, width=mark.width)
            case Areas():
                self._path(mark.rings, origin, mark.colour, closed=True)
            case Dots():
                self._dots(mark, origin)
            case Words():
                self._words.append((mark, origin))
            case Raster():
                self._rasters.append((mark, origin))

    def _path(
        self,
        lines: Sequence[Sequence[Point]],
        origin: Point,
        colour: str,
        *,
        width: float = 0.0,
        closed: bool = False,
    ) -> None:
        lines = [line for line in lines if line]
        if lines:
            self._outline(_outline(lines, closed=closed), origin, colour, width=width, closed=closed)

    def _outline(self, outline: Outline, origin: Point, colour: str, *, width: float = 0.0, closed: bool) -> None:
        rgb = _rgb(colour)
        context: Any = self._renderer.new_gc()
        context.set_foreground(rgb)
        # In points, which the renderer turns into pixels itself.
        context.set_linewidth(width)
        context.set_joinstyle("round")
        transform = Affine2D().translate(*origin).scale(SCALE, -SCALE).translate(0, self._height)
        self._renderer.draw_path(context, outline, transform, rgb if closed else None)
        context.restore()

    def _dots(self, mark: Dots, origin: Point) -> None:
        if mark.shape % 4:
            rings = [corners(mark.shape, x, y, mark.radius) for x, y in mark.points]
            self._path(rings, origin, mark.colour, closed=True)
            return
        circle = Outline.circle(radius=mark.radius)
        for x, y in mark.points:
            self._outline(circle, (origin[0] + x, origin[1] + y), mark.colour, closed=True)


def _outline(lines: Sequence[Sequence[Point]], *, closed: bool) -> Outline:
    """Return several lines as one path; a closed one ends where it began."""
    rows = [[*line, line[0]] if closed else line for line in lines]
    points = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
    codes = np.full(len(points), Outline.LINETO, dtype=np.uint8)
    ends = np.cumsum([len(row) for row in rows])
    codes[np.concatenate([[0], ends[:-1]])] = Outline.MOVETO
    if closed:
        codes[ends - 1] = Outline.CLOSEPOLY
    return Outline(points, codes)


@lru_cache(maxsize=1024)
def _rgb(colour: str) -> Colour:
    red, green, blue = to_rgb(COLOURS.get(colour, colour))
    return red, green, blue


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> ImageFont.FreeTypeFont:
    """Return the font that comes with matplotlib, so that pictures are the same on every machine."""
    file = findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal"))
    return ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)
