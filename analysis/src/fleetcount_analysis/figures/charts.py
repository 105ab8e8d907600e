"""Charts as values, drawn in the same way by matplotlib and by a page: panels of curves, rows and ranks, and maps.

A panel has marks with their error bars, paths between them, a band and a rule, in the units of its axes. Measures are
arguments. `chart_figure` draws a chart with matplotlib; the report's page draws the same values by script.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from fleetcount_analysis.figures.lines import TITLE, hide
from fleetcount_analysis.figures.maps import MapPanel, draw_map_panel
from fleetcount_analysis.figures.style import COLOURS, in_style, new_figure
from fleetcount_analysis.figures.words import drawable, ends, number, percent, printable

Axes = Any  # matplotlib's own annotations of Axes are partial.
Point = tuple[float, float]

_WIDTH_IN: Final = 6.1
_HEIGHT_IN: Final = 4.2
_ROW_IN: Final = 0.3
_HEAD_IN: Final = 1.1
_MOST_COLUMNS: Final = 3
_LETTERS_AN_INCH: Final = 11
"""The number of characters of a label that fit into an inch, except for wide ones such as a row of capital W."""
_TITLE_LETTERS_AN_INCH: Final = 9.5
_MOST_LABEL: Final = 28
_SHADES: Final = ((58, 123, 213), (194, 84, 157), (224, 135, 42))
"""Blue, purple and orange, which are visible on white and on black."""
_MARKERS: Final = (("o", 2.0), ("s", 1.8), ("D", 1.77), ("^", 2.2))
"""Shapes, each with the size that looks as large as the others."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its 95 % interval; the interval is nan where it is not known (one release)."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return math.isfinite(self.value)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval too."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def ends(self) -> list[float]:
        """The known ones of the number and the ends of its interval."""
        return [end for end in (self.value, self.low, self.high) if math.isfinite(end)]


@dataclass(frozen=True, slots=True)
class Style:
    """Colour (a role or "#rrggbb") and shape of a group, which is distinguishable without colours too."""

    colour: str
    shape: int = 0

    @property
    def paint(self) -> str:
        """The colour on paper."""
        return COLOURS.get(self.colour, self.colour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis: its range, whether it is logarithmic, its label, and whether its numbers are shares in percent."""

    low: float
    high: float
    label: str
    log: bool = False
    percent: bool = False
    whole: bool = False

    def clipped(self, value: float) -> float:
        """Return the value, or the nearer end of the range."""
        return min(max(value, self.low), self.high)

    def text(self, value: float) -> str:
        """Return a number of the axis in words."""
        return percent(value) if self.percent else number(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: measures at values of x; an unknown measure is a gap."""

    x: Sequence[float]
    y: Sequence[Measure]
    names: Sequence[str]
    style: Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row: its label, its measure, and further numbers with the style of their marks."""

    label: str
    measure: Measure
    style: Style = Style("s0")
    others: tuple[tuple[float, Style], ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dot at (x, y) with the ends of its error bar, if any, and a text with its numbers, or ""."""

    x: float
    y: float
    style: Style
    bar: tuple[Point, Point] | None = None
    text: str = ""
    small: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: its axes and their contents.

    `alt` is the text alternative for screen readers. `band` is a range and `rule` a value of the axis `across`. `rows`
    are the labels of a panel of rows from top to bottom: row i is at y = i + 0.5. `empty` are rows without a measure.
    """

    title: str
    alt: str
    x: Scale
    y: Scale
    marks: Sequence[Mark] = field(repr=False)
    paths: Sequence[tuple[Style, Sequence[Point]]] = field(default=(), repr=False)
    across: Literal["x", "y"] = "y"
    band: Point | None = None
    rule: float | None = None
    rows: Sequence[str] = ()
    empty: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure: panels side by side, a key of its styles, file name without ending, title, caption (plain text)."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel | MapPanel]
    key: Sequence[tuple[str, Style]] = ()


def styles(count: int, *, ordered: bool = False) -> list[Style]:
    """Return `count` styles: distinct colours, or shades from one colour to another for ordered numbers."""
    if not ordered or count <= 4:
        return [Style(f"s{place % 7}", place % 4) for place in range(count)]
    return [Style(_shade(place / (count - 1)), place % 4) for place in range(count)]


def _shade(share: float) -> str:
    """Return a colour between the first and the last of `_SHADES`; `share` is 0 to 1."""
    place = share * (len(_SHADES) - 1)
    lower = min(int(place), len(_SHADES) - 2)
    pairs = zip(_SHADES[lower], _SHADES[lower + 1], strict=True)
    return "#" + "".join(f"{round(one + (place - lower) * (other - one)):02x}" for one, other in pairs)


def said(measure: Measure, *, share: bool = False) -> str:
    """Return a measure with its interval in words: "8.1 (7.9 to 8.2)"."""
    value = percent(measure.value) if share else number(measure.value)
    return f"{value} ({ends(measure.low, measure.high, share=share)})" if measure.bounded else value


def scale_of(
    values: Iterable[float],
    label: str,
    *,
    log: bool = False,
    zero: bool = False,
    as_percent: bool = False,
    whole: bool = False,
) -> Scale:
    """Return a scale around the finite values; with `whole`, its ticks are whole numbers.

    It is logarithmic if `log` is set, all values are positive and the largest is at least three times the smallest.
    With `zero` a linear scale includes 0.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if log and low > 0 and high / low >= 3:
        return Scale(low=_one_digit(low / 1.2), high=high * 1.2, label=label, log=True)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = (low if zero and low == 0 else low - room), high + room
    return Scale(low=low, high=high, label=label, percent=as_percent, whole=whole)


def _one_digit(value: float) -> float:
    """Return a number rounded down to one significant digit, because uPlot's logarithmic ticks start at the low end."""
    power = math.floor(math.log10(value))
    # From text, because 3 * 10.0 ** -1 is not 0.3.
    return float(f"{math.floor(value / 10.0**power)}e{power}")


# Panels.


def curve_panel(
    curves: Sequence[Curve], x: Scale, y: Scale, *, title: str = "", alt: str, zero_line: bool = False
) -> Panel:
    """Return a panel of curves over common axes."""
    paths = [(curve.style, stretch) for curve in curves for stretch in _stretches(curve, x, y)]
    marks = [mark for curve in curves for mark in _curve_marks(curve, x, y)]
    return Panel(title=title, alt=alt, x=x, y=y, marks=marks, paths=paths, rule=0.0 if zero_line else None)


def _stretches(curve: Curve, x: Scale, y: Scale) -> Iterator[list[Point]]:
    """Yield the parts of a curve between unknown measures, so that no line crosses a gap."""
    stretch: list[Point] = []
    for at, measure in zip(curve.x, curve.y, strict=True):
        if measure.known:
            stretch.append((x.clipped(at), y.clipped(measure.value)))
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _curve_marks(curve: Curve, x: Scale, y: Scale) -> Iterator[Mark]:
    for place, name, measure in zip(curve.x, curve.names, curve.y, strict=True):
        if not measure.known:
            continue
        at, bar = x.clipped(place), None
        if measure.bounded:
            ends = [y.clipped(measure.low), y.clipped(measure.high)]
            bar = ((at, ends[0]), (at, ends[1]))
        text = f"{name}: {said(measure, share=y.percent)}"
        yield Mark(x=at, y=y.clipped(measure.value), style=curve.style, bar=bar, text=text)


def row_panel(
    items: Sequence[Item],
    x: Scale,
    *,
    alt: str,
    band: Point | None = None,
    rule: float | None = None,
    named_by: str = "",
) -> Panel:
    """Return a panel with one row for each item: dot, interval and further marks.

    `band` is the range where the dots should be, `named_by` the heading of the labels.
    """
    marks: list[Mark] = []
    for place, item in enumerate(items):
        y, measure = place + 0.5, item.measure
        marks += [Mark(x=x.clipped(value), y=y, style=style) for value, style in item.others if math.isfinite(value)]
        if measure.known:
            bar = ((x.clipped(measure.low), y), (x.clipped(measure.high), y)) if measure.bounded else None
            text = f"{item.label}: {said(measure, share=x.percent)}"
            marks.append(Mark(x=x.clipped(measure.value), y=y, style=item.style, bar=bar, text=text))
    return Panel(
        title="",
        alt=alt,
        x=x,
        y=Scale(low=0, high=len(items), label=named_by),
        marks=marks,
        across="x",
        band=band,
        rule=rule,
        rows=[printable(item.label) for item in items],
        empty=[place for place, item in enumerate(items) if not item.measure.known],
    )


def rank_panel(
    items: Sequence[Item], y_label: str, *, alt: str, band: Point | None = None, rule: float | None = None
) -> Panel:
    """Return a panel of many items side by side, from the lowest to the highest, as shares in percent."""
    ordered = sorted((item for item in items if item.measure.known), key=lambda item: item.measure.value)
    y = scale_of([*(end for item in ordered for end in item.measure.ends), *(band or ())], y_label, as_percent=True)
    marks = []
    for place, item in enumerate(ordered, start=1):
        measure = item.measure
        bar = ((place, measure.low), (place, measure.high)) if measure.bounded else None
        text = f"{item.label}: {said(measure, share=True)}"
        marks.append(Mark(x=place, y=measure.value, style=item.style, bar=bar, text=text, small=True))
    x = scale_of([1, len(ordered)], "cases, from the lowest to the highest", whole=True)
    return Panel(title="", alt=alt, x=x, y=y, marks=marks, band=band, rule=rule)


# With matplotlib.


@in_style
def chart_figure(chart: Chart) -> Figure:
    """Return all panels in rows of at most three, the title above them and the key below."""
    columns = 2 if len(chart.panels) == 4 else min(_MOST_COLUMNS, len(chart.panels))
    rows = [chart.panels[first : first + columns] for first in range(0, len(chart.panels), columns)]
    sizes = [[_size(panel) for panel in row] for row in rows]
    width = columns * max(wide for row in sizes for wide, _ in row)
    heights = [max(high for _, high in row) for row in sizes]
    title = _lines(drawable(chart.title), int(width * _TITLE_LETTERS_AN_INCH))
    figure, axes = new_figure(width, sum(heights) + 0.3 * len(title) + 0.3, columns, len(rows), heights)
    for place, panel in zip(axes, chart.panels, strict=False):
        if isinstance(panel, MapPanel):
            draw_map_panel(place, panel)
        else:
            _draw_panel(place, panel)
    hide(axes[len(chart.panels) :])
    figure.suptitle("\n".join(title), **TITLE)
    if chart.key:
        _draw_key(figure, chart.key, width)
    return figure


def _size(panel: Panel | MapPanel) -> Point:
    """Return width and height of a panel, in inches."""
    if isinstance(panel, MapPanel):
        return panel.size_in
    return _WIDTH_IN, (len(panel.rows) * _ROW_IN + _HEAD_IN) if panel.rows else _HEIGHT_IN


def _lines(text: str, most: int) -> list[str]:
    """Return a text in lines of at most `most` characters, broken between words; longer words are cut."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()[:most]
    return lines


def _draw_panel(axes: Axes, panel: Panel) -> None:
    _set_scale(axes, "x", panel.x)
    _set_scale(axes, "y", panel.y)
    axes.set_title(drawable(panel.title, int(_WIDTH_IN * _LETTERS_AN_INCH * 0.75)))
    if panel.rows:
        labels = [drawable(row, _MOST_LABEL) for row in panel.rows]
        axes.set_yticks([place + 0.5 for place in range(len(labels))], labels)
        axes.set(ylim=(len(labels), 0), ylabel="")
        if panel.y.label:
            _write_over_rows(axes, panel.y.label)
        axes.grid(visible=False, axis="y")
    along = panel.across == "x"
    if panel.band is not None:
        (axes.axvspan if along else axes.axhspan)(*panel.band, color=COLOURS["within"], linewidth=0, zorder=0)
    if panel.rule is not None:
        (axes.axvline if along else axes.axhline)(panel.rule, color=COLOURS["rule"], linewidth=1.4)
    for style, path in panel.paths:
        axes.plot(*zip(*path, strict=True), color=style.paint, linewidth=1.8, clip_on=False)
    for style in dict.fromkeys(mark.style for mark in panel.marks):
        _draw_marks(axes, style, [mark for mark in panel.marks if mark.style == style])
    for place in panel.empty:
        axes.text(panel.x.low, place + 0.5, " nothing released", va="center", fontsize=8.5, color=COLOURS["soft"])


def _write_over_rows(axes: Axes, label: str) -> None:
    """Write the heading of the row labels above them, from the left edge of the figure."""
    axes.set_title(" ")  # Reserves the room for the heading.
    place = {"xycoords": ("figure fraction", "axes fraction"), "textcoords": "offset points", "fontsize": 8.5}
    axes.annotate(drawable(label, 2 * _MOST_LABEL), (0.01, 1), (0, 6), in_layout=False, **place)


def _set_scale(axes: Axes, name: Literal["x", "y"], scale: Scale) -> None:
    axes.set(**{f"{name}scale": "log" if scale.log else "linear"})
    axes.set(**{f"{name}lim": (scale.low, scale.high), f"{name}label": drawable(scale.label, 80)})
    axis = axes.xaxis if name == "x" else axes.yaxis
    if scale.log:
        # Ticks at 2 and 5 times a power of ten too if the range has few powers.
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if scale.high / scale.low <= 1e3 else (1,)))
    else:
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=scale.whole))
    axes.minorticks_off()

    def written(value: float, _: int | None) -> str:
        return scale.text(value)

    axis.set_major_formatter(FuncFormatter(written))


def _draw_marks(axes: Axes, style: Style, marks: Sequence[Mark]) -> None:
    bars = [mark.bar for mark in marks if mark.bar is not None]
    for (left, lower), (right, upper) in bars:
        axes.plot([left, right], [lower, upper], color=style.paint, linewidth=1.3, clip_on=False, solid_capstyle="butt")
    marker, size = _MARKERS[style.shape % len(_MARKERS)]
    axes.plot(
        [mark.x for mark in marks],
        [mark.y for mark in marks],
        linestyle="none",
        marker=marker,
        markersize=size * (2.0 if marks[0].small else 3.2),
        markeredgewidth=0,
        color=style.paint,
        clip_on=False,
        zorder=3,
    )


def _draw_key(figure: Figure, key: Sequence[tuple[str, Style]], width: float) -> None:
    handles = []
    for label, style in key:
        marker, size = _MARKERS[style.shape % len(_MARKERS)]
        text = drawable(label, int(width * _LETTERS_AN_INCH) - 6)
        handles.append(
            Line2D([], [], linestyle="none", marker=marker, markersize=4 * size, color=style.paint, label=text)
        )
    letters = 5 + max(len(label) for label, _ in key)
    across = max(1, min(len(key), int(width * _LETTERS_AN_INCH / letters)))
    figure.legend(handles=handles, loc="outside lower left", ncols=across)
