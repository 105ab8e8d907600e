"""Panels of three kinds: lines along an axis, one row a thing, and many cases in a row by rank; and their key.

Draws measures it is given. Error bars are thin lines behind the dots; every dot says its numbers when pointed at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from fleetcount_analysis.figures.panels import Area, Panel
from fleetcount_analysis.figures.scales import Scale, scale_of
from fleetcount_analysis.figures.style import COLOURS, SMALL_PX
from fleetcount_analysis.figures.svg import noted
from fleetcount_analysis.figures.words import fitted, number, percent, text_width

Axes = Any  # matplotlib's own annotations of Axes are partial.

WIDTH_PX: Final = 440.0
_HEIGHT_PX: Final = 300.0
_ROW_PX: Final = 22.0
LABEL_PX: Final = 190.0
"""Most room that the label of a row takes."""
_MOST_TITLES: Final = 400
_SHADES: Final = ((58, 123, 213), (194, 84, 157), (224, 135, 42))
"""Blue over purple to orange, apart from both white and black."""
_MARKERS: Final = (("o", 2.0), ("s", 1.8), ("D", 1.77), ("^", 2.2))
"""Shapes, and sizes for one radius that look equally large."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its 95 % interval; the interval is nan where it is not known (one release)."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return math.isfinite(self.value)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval too."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Style:
    """Colour (a role or "#rrggbb") and shape of a question, so that it can be told apart without colours too."""

    colour: str
    shape: int = 0

    @property
    def paint(self) -> str:
        """The colour on paper."""
        return COLOURS.get(self.colour, self.colour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: measures at places along x."""

    x: Sequence[float]
    y: Sequence[Measure]
    names: Sequence[str]
    style: Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row: its label, what was measured, and further numbers to be marked with their style."""

    label: str
    measure: Measure
    style: Style = Style("s0")
    others: tuple[tuple[float, Style], ...] = field(default=())


def styles(count: int, *, ordered: bool = False) -> list[Style]:
    """Return so many styles: distinct colours, or shades from one colour to another for ordered numbers."""
    if not ordered or count <= 4:
        return [Style(f"s{place % 7}", place % 4) for place in range(count)]
    return [Style(_shade(place / (count - 1)), place % 4) for place in range(count)]


def _shade(share: float) -> str:
    """Return a colour between the first and the last of `_SHADES`."""
    place = share * (len(_SHADES) - 1)
    lower = min(int(place), len(_SHADES) - 2)
    pairs = zip(_SHADES[lower], _SHADES[lower + 1], strict=True)
    return "#" + "".join(f"{round(one + (place - lower) * (other - one)):02x}" for one, other in pairs)


def said(measure: Measure, *, share: bool = False) -> str:
    """Return a measure with its interval in words: "8.1 (7.9 to 8.2)"."""
    form = percent if share else number
    if not measure.bounded:
        return form(measure.value)
    return f"{form(measure.value)} ({form(measure.low)} to {form(measure.high)})"


def key_panel(entries: Sequence[tuple[str, Style]], width: float = WIDTH_PX) -> Panel:
    """Return what the colours and shapes mean, in as many lines as it takes."""
    placed: list[tuple[float, float, str, Style]] = []
    x, y = 0.0, 14.0
    for label, style in entries:
        text = fitted(label, width - 40)
        wide = 20 + text_width(text) + 14
        if x > 0 and x + wide > width:
            x, y = 0.0, y + 20
        placed.append((x, y, text, style))
        x += wide

    def draw(area: Area) -> None:
        axes = area.axes(0, 0, width, y + 6)
        axes.set(xlim=(0, width), ylim=(y + 6, 0))
        for left, base, text, style in placed:
            _dots(axes, [left + 8], [base - 4.5], style, radius=4.5)
            area.text(left + 18, base, text)

    return Panel(width=width, height=y + 6, alt=f"Key: {', '.join(label for label, _ in entries)}", draw=draw)


def line_panel(curves: Sequence[Curve], x: Scale, y: Scale, *, title: str, alt: str, zero_line: bool = False) -> Panel:
    """Return curves over common axes; a single dot stays a dot."""

    def draw(area: Area) -> None:
        axes = _framed(area, _HEIGHT_PX, x, y, title=fitted(title, WIDTH_PX - 4, bold=True))
        if zero_line:
            axes.axhline(0, color=COLOURS["rule"], linewidth=1.4)
        for curve in curves:
            _draw_curve(axes, curve, x, y)

    return Panel(width=WIDTH_PX, height=_HEIGHT_PX, alt=alt, draw=draw)


def _draw_curve(axes: Axes, curve: Curve, x: Scale, y: Scale) -> None:
    known = [place for place, measure in enumerate(curve.y) if measure.known]
    across = [x.clipped(curve.x[place]) for place in known]
    up = [y.clipped(curve.y[place].value) for place in known]
    bars = [(at, curve.y[place]) for at, place in zip(across, known, strict=True) if curve.y[place].bounded]
    for at, measure in bars:
        ends = [y.clipped(measure.low), y.clipped(measure.high)]
        axes.plot([at, at], ends, color=curve.style.paint, linewidth=1.4, clip_on=False, solid_capstyle="butt")
    if len(known) > 1:
        axes.plot(across, up, color=curve.style.paint, linewidth=2, clip_on=False)
    titles = [f"{curve.names[place]}: {said(curve.y[place])}" for place in known]
    _dots(axes, across, up, curve.style, titles=titles)


def row_panel(
    items: Sequence[Item],
    x: Scale,
    *,
    alt: str,
    band: tuple[float, float] | None = None,
    line: float | None = None,
    share: bool = False,
    named_by: str = "",
) -> Panel:
    """Return one row an item: dot, interval and further marks.

    `band` is where the dots should be, `named_by` stands above the labels and says what they are.
    """
    labels = [fitted(item.label, LABEL_PX, SMALL_PX) for item in items]
    left = max(text_width(label, SMALL_PX) for label in labels) + 12
    head = 16 if named_by else 0
    height = len(items) * _ROW_PX + 52 + head
    named_by = fitted(named_by, WIDTH_PX - 4, SMALL_PX)
    rows = Scale(low=0, high=len(items), log=False, label=named_by, ticks=())

    def draw(area: Area) -> None:
        axes = _framed(area, height, x, rows, left=left)
        axes.invert_yaxis()
        if band is not None:
            axes.axvspan(*map(x.clipped, band), color=COLOURS["band"], linewidth=0, zorder=0)
        if line is not None:
            axes.axvline(x.clipped(line), color=COLOURS["rule"], linewidth=1.4)
        for place, (item, label) in enumerate(zip(items, labels, strict=True)):
            base = 8 + head + (place + 0.5) * (height - 50 - head) / len(items) + 4
            area.text(0, base, label, size=SMALL_PX)
            _draw_row(axes, item, place + 0.5, x, share=share)
            if not item.measure.known:
                area.text(left + 8, base, "nothing released", size=SMALL_PX, colour="soft")

    return Panel(width=WIDTH_PX, height=height, alt=alt, draw=draw)


def _draw_row(axes: Axes, item: Item, y: float, x: Scale, *, share: bool) -> None:
    for value, style in item.others:
        if math.isfinite(value):
            _dots(axes, [x.clipped(value)], [y], style, radius=4.6)
    if item.measure.bounded:
        ends = [x.clipped(item.measure.low), x.clipped(item.measure.high)]
        axes.plot(ends, [y, y], color=item.style.paint, linewidth=2, clip_on=False, solid_capstyle="butt")
    if item.measure.known:
        title = f"{item.label}: {said(item.measure, share=share)}"
        _dots(axes, [x.clipped(item.measure.value)], [y], item.style, titles=[title])


def rank_panel(
    items: Sequence[Item], y_label: str, *, alt: str, band: tuple[float, float] | None = None, line: float | None = None
) -> Panel:
    """Return many items side by side from the lowest to the highest, as shares in percent."""
    ordered = sorted((item for item in items if item.measure.known), key=lambda item: item.measure.value)
    ends = [end for item in ordered for end in (item.measure.low, item.measure.high, item.measure.value)]
    y = scale_of([*ends, *(band or ())], y_label, as_percent=True)
    x = scale_of([1, len(ordered)], "cases, from the lowest to the highest", whole=True)
    return Panel(
        width=WIDTH_PX, height=_HEIGHT_PX, alt=alt, draw=partial(_draw_ranks, ordered, x=x, y=y, band=band, line=line)
    )


def _draw_ranks(
    ordered: Sequence[Item], area: Area, *, x: Scale, y: Scale, band: tuple[float, float] | None, line: float | None
) -> None:
    axes = _framed(area, _HEIGHT_PX, x, y)
    if band is not None:
        axes.axhspan(*band, color=COLOURS["band"], linewidth=0, zorder=0)
    if line is not None:
        axes.axhline(line, color=COLOURS["rule"], linewidth=1.4)
    by_style: dict[Style, list[tuple[int, Item]]] = {}
    for place, item in enumerate(ordered, start=1):
        by_style.setdefault(item.style, []).append((place, item))
    radius = 2.8 if len(ordered) <= 120 else 1.6
    for style, members in by_style.items():
        bars = [(place, item.measure) for place, item in members if item.measure.bounded]
        at, low, high = ([place for place, _ in bars], [one.low for _, one in bars], [one.high for _, one in bars])
        axes.vlines(at, low, high, colors=style.paint, linewidth=1.2)
        titles = [f"{item.label}: {said(item.measure, share=True)}" for _, item in members]
        places, values = [place for place, _ in members], [item.measure.value for _, item in members]
        _dots(axes, places, values, style, radius=radius, titles=titles)


def _dots(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    style: Style,
    *,
    radius: float = 3.6,
    titles: Sequence[str] = (),
) -> None:
    marker, size = _MARKERS[style.shape % len(_MARKERS)]
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=marker,
        markersize=size * radius,
        markeredgewidth=0,
        color=style.paint,
        clip_on=False,
        zorder=3,
        gid=noted(titles[:_MOST_TITLES]) if titles else None,
    )


def _framed(area: Area, height: float, x: Scale, y: Scale, *, title: str = "", left: float = 0.0) -> Axes:
    """Return axes with grid, ticks and labels, and room for their words; `left` is room wanted besides."""
    top = (22.0 if title else 4.0) + (20.0 if y.label else 4.0)
    left, right, bottom = max(left, y.widest + 10), WIDTH_PX - 14, height - 42
    if x.ticks and x.share(x.ticks[-1]) > 0.5:  # The word of the last tick stands in the picture too.
        half = text_width(x.said(x.ticks[-1]), SMALL_PX) / 2 + 2
        right = min(right, left + (WIDTH_PX - half - left) / x.share(x.ticks[-1]))
    axes = area.axes(left, top, right, bottom)
    axes.set(
        xscale="log" if x.log else "linear",
        yscale="log" if y.log else "linear",
        xlim=(x.low, x.high),
        ylim=(y.low, y.high),
    )
    axes.set_xticks(x.ticks, ["" for _ in x.ticks])
    axes.set_yticks(y.ticks, ["" for _ in y.ticks])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(visible=True, color=COLOURS["grid"])
    axes.spines["bottom"].set(visible=True, color=COLOURS["rule"], linewidth=1)
    for tick, word in zip(x.ticks, x.words(right - left), strict=True):
        if word:
            middle = left + x.share(tick) * (right - left)
            area.text(middle, bottom + 16, word, size=SMALL_PX, colour="soft", anchor="middle")
    for tick in y.ticks:
        height_px = bottom - y.share(tick) * (bottom - top)
        area.text(left - 6, height_px + 4, y.said(tick), size=SMALL_PX, colour="soft", anchor="end")
    area.text(right, height - 6, x.label, size=SMALL_PX, colour="soft", anchor="end")
    if title:
        area.text(2, 15, title, bold=True)
    if y.label:
        area.text(2, top - 10, y.label, size=SMALL_PX, colour="soft")
    return axes
