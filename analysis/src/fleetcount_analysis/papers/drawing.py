"""Draw the papers' figures in the house style: grouped bars, panels of lines, maps of marks, and matrices.

It must not compute a number that is not in its arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fleetcount_analysis.figures import PALETTE, Line, new_figure

__all__ = [
    "Bars",
    "LinePanel",
    "Marks",
    "MatrixPanel",
    "bar_panels",
    "colours",
    "line_panels",
    "mark_panels",
    "matrix_panels",
]

Axes = Any  # matplotlib's own annotations of Axes are partial.
Floats = NDArray[np.float64]
_TITLE: Final[Any] = {"loc": "left", "fontsize": 10.5, "fontweight": "bold"}
_SUPTITLE: Final[Any] = {"x": 0.01, "ha": "left", "fontsize": 12, "fontweight": "bold"}


def colours(*labels: str) -> dict[str, str]:
    """Return a colour for each label, so that a method keeps its colour over the figures of a paper."""
    return {label: PALETTE[number % len(PALETTE)] for number, label in enumerate(labels)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One panel of grouped bars: `series[label]` has a height for each group; `marks` are drawn over the bars."""

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float]]
    colours: Mapping[str, str]
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePanel:
    """One panel of lines, each with its colour; `rings` are points with a text to point out."""

    title: str
    lines: Sequence[Line]
    colours: Mapping[str, str]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    points: Sequence[str] = ()
    """The labels of the lines that are drawn as points."""
    x_ticks: Sequence[float] = ()
    legend_below: bool = False
    rings: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """One panel of a map: the places of each kind."""

    title: str
    kinds: Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPanel:
    """One panel of a matrix: a text and a shade in 0..1 for each entry."""

    title: str
    shades: Floats
    texts: Sequence[Sequence[str]]
    x_label: str
    y_label: str
    row_names: Sequence[str]


def bar_panels(
    panels: Sequence[Bars], *, columns: int, title: str = "", width: float = 6.0, legend: bool = True
) -> Figure:
    """Return panels of grouped bars, with one legend below them unless there is one series."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(width * columns, 3.4 * rows + 0.9, columns=columns, rows=rows)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_bars(axis, panel)
    _hide(axes[len(panels) :])
    if legend:
        _legend_below(figure, axes[0])
    if title:
        figure.suptitle(title, **_SUPTITLE)
    return figure


def _draw_bars(axis: Axes, panel: Bars) -> None:
    places = np.arange(len(panel.groups))
    width = 0.82 / len(panel.series)
    for number, (label, heights) in enumerate(panel.series.items()):
        left = places + (number - (len(panel.series) - 1) / 2) * width
        axis.bar(left, heights, width * 0.94, label=label, color=panel.colours[label], zorder=2)
        if label in panel.marks:
            last = number == len(panel.series) - 1
            text = "95th percentile of simulated errors" if last else None
            axis.plot(left, panel.marks[label], "_", color="black", ms=9, mew=1.6, label=text, zorder=3)
    axis.set_xticks(places, panel.groups)
    axis.grid(visible=False, axis="x")
    axis.set_axisbelow(True)
    _name(axis, panel.title, panel.x_label, panel.y_label)
    axis.set_yscale("log" if panel.log_y else "linear")


def line_panels(
    panels: Sequence[LinePanel], *, columns: int, title: str = "", width: float = 5.4, height: float = 3.9
) -> Figure:
    """Return panels of lines, each with its legend, or with one below all when they show the same lines."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(width * columns, height * rows + (0.5 if title else 0.0), columns=columns, rows=rows)
    names = [{line.label for line in panel.lines} for panel in panels]
    shared = len(panels) > 1 and all(labels == names[0] for labels in names)
    for axis, panel, labels in zip(axes, panels, names, strict=False):
        _draw_lines(axis, panel)
        if panel.legend_below:
            axis.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
        elif not shared and labels != {""}:
            axis.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.85, fontsize=8.5)
    _hide(axes[len(panels) :])
    if shared:
        _legend_below(figure, axes[0])
    if title:
        figure.suptitle(title, **_SUPTITLE)
    return figure


def _draw_lines(axis: Axes, panel: LinePanel) -> None:
    for line in panel.lines:
        style: dict[str, Any] = {"color": panel.colours[line.label], "label": line.label}
        style["linestyle"] = (0, (4, 2)) if line.dashed else "-"
        if len(line.x) <= 12 and len(line.x) != 2:  # Two points are a reference line; one is a mark or nothing is seen.
            style["marker"] = "o"
        if line.label in panel.points:
            style |= {"linestyle": "none", "marker": "o", "markersize": 3, "markeredgewidth": 0}
        axis.plot(line.x, line.y, **style)
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=panel.colours[line.label], alpha=0.15, lw=0)
    _name(axis, panel.title, panel.x_label, panel.y_label)
    axis.set_xscale("log" if panel.log_x else "linear")
    axis.set_yscale("log" if panel.log_y else "linear")
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axis.minorticks_off()
    for x, y, text in panel.rings:
        axis.plot([x], [y], "o", ms=10, mfc="none", mec="#c00000", mew=1.6)
        axis.annotate(text, (x, y), xytext=(9, 7), textcoords="offset points", fontsize=8.5)


_KIND_STYLES: Final = (("o", 1.8, "#c4c4c4"), ("o", 3.0, PALETTE[2]), ("s", 3.8, PALETTE[1]), ("X", 5.0, "#000000"))


def mark_panels(panels: Sequence[Marks], *, columns: int, title: str = "", note: str = "") -> Figure:
    """Return maps side by side; a kind keeps its mark and colour over all panels."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(4.3 * columns, 3.8 * rows + 1.1, columns=columns, rows=rows)
    kinds = list(dict.fromkeys(kind for panel in panels for kind in panel.kinds))
    nowhere = (np.empty(0), np.empty(0))
    for axis, panel in zip(axes, panels, strict=True):
        for kind, (shape, size, colour) in zip(kinds, _KIND_STYLES, strict=False):
            x, y = panel.kinds.get(kind, nowhere)
            axis.plot(x, y, shape, ms=size, mew=0, color=colour, label=kind, rasterized=True)
        axis.set_title(panel.title, **_TITLE)
        axis.set_aspect("equal")
        axis.set_axis_off()
    _legend_below(figure, axes[0], markerscale=2.2, title=note, title_fontsize=8.5)
    if title:
        figure.suptitle(title, **_SUPTITLE)
    return figure


def matrix_panels(panels: Sequence[MatrixPanel]) -> Figure:
    """Return matrices side by side, every entry written out."""
    figure, axes = new_figure(4.6 * len(panels), 4.2, columns=len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        axis.imshow(panel.shades, cmap="Blues", vmin=0, vmax=1.1, aspect="auto")
        for row, column in np.ndindex(panel.shades.shape):
            colour = "white" if panel.shades[row, column] > 0.6 else "black"
            axis.text(column, row, panel.texts[row][column], ha="center", va="center", fontsize=10, color=colour)
        axis.set_xticks(range(panel.shades.shape[1]))
        axis.set_yticks(range(panel.shades.shape[0]), panel.row_names)
        axis.grid(visible=False)
        axis.tick_params(length=0)
        _name(axis, panel.title, panel.x_label, panel.y_label)
    return figure


def _name(axis: Axes, title: str, x_label: str, y_label: str) -> None:
    axis.set_title(title, **_TITLE)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)


def _hide(axes: Sequence[Axes]) -> None:
    """Leave the places empty that a last row of panels does not fill."""
    for axis in axes:
        axis.set_visible(False)


def _legend_below(figure: Figure, axis: Axes, **options: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    across = len(labels) if len(labels) <= 5 and sum(map(len, labels)) < 110 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False, fontsize=9, **options)
