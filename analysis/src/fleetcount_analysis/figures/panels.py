"""Figures made of panels: each draws itself into an area of so many pixels, alone in a page or beside others in a file.

x grows to the right and y downwards, as in SVG. It must not decide what a panel shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from matplotlib.figure import Figure

from fleetcount_analysis.figures.style import COLOURS, FONT_PX, PX_PER_INCH, in_style, sheet
from fleetcount_analysis.figures.svg import noted
from fleetcount_analysis.figures.words import drawable, printable, wrapped

Axes = Any  # matplotlib's own annotations of Axes are partial.

_GAP_PX: Final = 22.0
_MARGIN_PX: Final = 14.0
_TITLE_PX: Final = 16.0
_MOST_COLUMNS: Final = 3
_ANCHORS: Final = {"start": "left", "middle": "center", "end": "right"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Area:
    """Where a panel draws: a figure and the panel's upper left corner in it, in pixels."""

    figure: Figure
    left: float = 0.0
    top: float = 0.0

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Return axes between pixels of the panel, without ticks and frame."""
        wide, high = self.figure.get_size_inches() * PX_PER_INCH
        place = (self.left + left) / wide, 1 - (self.top + bottom) / high, (right - left) / wide, (bottom - top) / high
        made: Axes = self.figure.add_axes(place)
        made.patch.set_visible(False)
        made.spines[:].set_visible(False)
        made.grid(visible=False)
        made.set(xticks=[], yticks=[])
        return made

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = FONT_PX,
        colour: str = "ink",
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write one line; (x, y) is its start, middle or end (`anchor`) on the base line."""
        wide, high = self.figure.get_size_inches() * PX_PER_INCH
        shown = drawable(text)
        self.figure.text(
            (self.left + x) / wide,
            1 - (self.top + y) / high,
            shown,
            size=size,
            color=COLOURS.get(colour, colour),
            ha=_ANCHORS[anchor],
            va="baseline",
            weight="bold" if bold else "normal",
            gid=None if shown == text else noted([printable(text)]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One drawing: its size in pixels, what a reader who cannot see it is told, and what draws it into an area."""

    width: float
    height: float
    alt: str
    draw: Callable[[Area], None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A figure: panels side by side under a common key, file name without ending, title and caption (plain text).

    `numbers` is JSON of what the panels show, for a page that draws it itself; "" where a page has no way to.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    key: Panel | None = None
    numbers: str = ""


@in_style
def panel_figure(panel: Panel) -> Figure:
    """Return one panel alone."""
    figure = sheet(panel.width, panel.height)
    panel.draw(Area(figure=figure))
    return figure


@in_style
def chart_figure(chart: Chart) -> Figure:
    """Return all panels in rows of at most three, the title and the key above them."""
    columns = 2 if len(chart.panels) == 4 else min(_MOST_COLUMNS, len(chart.panels))
    rows = [chart.panels[first : first + columns] for first in range(0, len(chart.panels), columns)]
    keys = [] if chart.key is None else [chart.key]
    widths = [sum(panel.width for panel in row) + _GAP_PX * (len(row) - 1) for row in rows]
    width = max([*widths, *(key.width for key in keys)])
    lines = wrapped(chart.title, width, _TITLE_PX, bold=True)
    top = _MARGIN_PX + 20 * len(lines) + 8
    placed = [(key, _MARGIN_PX, top) for key in keys]
    top += sum(key.height + 8 for key in keys)
    for row in rows:
        for place, panel in enumerate(row):
            placed.append((panel, _MARGIN_PX + sum(one.width + _GAP_PX for one in row[:place]), top))
        top += max(panel.height for panel in row) + _GAP_PX
    figure = sheet(width + 2 * _MARGIN_PX, top - _GAP_PX + _MARGIN_PX)
    for place, line in enumerate(lines):
        Area(figure=figure).text(_MARGIN_PX, _MARGIN_PX + 16 + 20 * place, line, size=_TITLE_PX, bold=True)
    for panel, x, y in placed:
        panel.draw(Area(figure=figure, left=x, top=y))
    return figure
