"""Draws the papers' figures in the house style: grouped bars, maps of marks, and matrices.

It must not compute a number that is not in its arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from fleetcount_analysis.figures.lines import TITLE, hide, legend_below, set_scales
from fleetcount_analysis.figures.style import PALETTE, in_style, new_figure
from matplotlib.figure import Figure
from numpy.typing import NDArray

Axes = Any  # matplotlib's own annotations of Axes are partial.
Floats = NDArray[np.float64]


def colours(*labels: str) -> dict[str, str]:
    """Return a colour for each label, so that a method has the same colour in all figures of a paper."""
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
class Marks:
    """One panel of a map: for each kind the positions x and y, each (n,) float64."""

    title: str
    kinds: Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPanel:
    """One panel of a matrix: for each entry a text, and a shade of float64 in 0..1."""

    title: str
    shades: Floats
    texts: Sequence[Sequence[str]]
    x_label: str
    y_label: str
    row_names: Sequence[str]


@in_style
def bar_panels(
    panels: Sequence[Bars], *, columns: int, title: str = "", width: float = 6.0, legend: bool = True
) -> Figure:
    """Return panels of grouped bars, with one legend below them if `legend`; `width` is of a panel, in inches."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(width * columns, 3.4 * rows + 0.9, columns=columns, rows=rows)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_bars(axis, panel)
    hide(axes[len(panels) :])
    if legend:
        legend_below(figure, axes[0])
    if title:
        figure.suptitle(title, **TITLE)
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
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    set_scales(axis, log_y=panel.log_y)


_KIND_STYLES: Final = (("o", 1.8, "#c4c4c4"), ("o", 3.0, PALETTE[2]), ("s", 3.8, PALETTE[1]), ("X", 5.0, "#000000"))


@in_style
def mark_panels(panels: Sequence[Marks], *, columns: int, title: str = "", note: str = "") -> Figure:
    """Return maps side by side; a kind has the same mark and colour in all panels."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(4.3 * columns, 3.8 * rows + 1.1, columns=columns, rows=rows)
    kinds = list(dict.fromkeys(kind for panel in panels for kind in panel.kinds))
    nowhere = (np.empty(0), np.empty(0))
    for axis, panel in zip(axes, panels, strict=True):
        for kind, (shape, size, colour) in zip(kinds, _KIND_STYLES, strict=False):
            x, y = panel.kinds.get(kind, nowhere)
            axis.plot(x, y, shape, ms=size, mew=0, color=colour, label=kind, rasterized=True)
        axis.set_title(panel.title)
        axis.set_aspect("equal")
        axis.set_axis_off()
    legend_below(figure, axes[0], markerscale=2.2, title=note, title_fontsize=8.5)
    if title:
        figure.suptitle(title, **TITLE)
    return figure


@in_style
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
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    return figure
