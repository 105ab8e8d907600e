"""Draw releases and experiments in one style, as SVG and PNG that come out the same at every run.

It must not compute a number that is not in its arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import ceil
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.errors import RangeError, ShapeError

__all__ = [
    "PALETTE",
    "GridGeometry",
    "Line",
    "bars_with_intervals",
    "count_map",
    "draw_lines",
    "line_figure",
    "new_figure",
    "plan_plot",
    "save_figure",
]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

Axes = Any  # matplotlib's own annotations of Axes are partial.
Floats = NDArray[np.float64]

PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
"""Okabe and Ito's colours, told apart with every common colour blindness."""

MOST_BARS: Final = 40
_INK: Final = "#222222"
# Any: matplotlib types the keys as a closed list that differs between its versions.
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "svg.hashsalt": "fleetcount",
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


def _in_style(draw: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Draw under the house style: matplotlib reads most settings when an artist is made, not when it is saved."""

    @wraps(draw)
    def styled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@dataclass(frozen=True, slots=True, kw_only=True)
class GridGeometry:
    """Where the cells of a square grid lie: corner, side and number, in metres; cell v is column (v-1) % columns."""

    x0: float
    y0: float
    size: float
    columns: int
    rows: int

    def __post_init__(self) -> None:
        if self.size <= 0 or self.columns < 1 or self.rows < 1:
            raise RangeError("grid", (self.size, self.columns, self.rows), "a positive size, columns and rows")

    @property
    def extent_km(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the whole grid in kilometres."""
        right, top = self.x0 + self.columns * self.size, self.y0 + self.rows * self.size
        return self.x0 / 1000, right / 1000, self.y0 / 1000, top / 1000

    def image(self, cells: ArrayLike) -> Floats:
        """Return the values of cells 1..V as rows from bottom to top.

        Raises:
            ShapeError: not one value a cell.
        """
        flat = np.asarray(cells, dtype=np.float64)
        if flat.shape != (self.columns * self.rows,):
            raise ShapeError(f"{flat.shape} values for a grid of {self.columns} by {self.rows} cells")
        return flat.reshape(self.rows, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a line figure, with an optional band `low`..`high` of the same length as `x`."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@_in_style
def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of the house style, sizes in inches, and its axes row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).ravel())


@_in_style
def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write STEM.svg and STEM.png, each whole or not at all, and return both paths."""
    written: list[Path] = []
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {"Software": None})):
        target = stem.with_name(stem.name + suffix)
        part = target.with_name(f".{target.name}.part")
        try:
            figure.savefig(part, format=suffix[1:], metadata=metadata, facecolor="white")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        written.append(target)
    return written[0], written[1]


@_in_style
def count_map(
    geometry: GridGeometry,
    *,
    estimate: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    truth: Sequence[float] | None = None,
    title: str = "",
    unit: str = "vehicles",
    level_percent: float = 95,
) -> Figure:
    """Return a map of the estimates, of the width of their intervals and, where known, of the truth, side by side.

    Estimate and truth share one colour scale that starts at 0; an estimate below 0 is drawn as 0 and printed as it is.

    Raises:
        ShapeError: not one value a cell.
    """
    width = np.asarray(high, dtype=np.float64) - np.asarray(low, dtype=np.float64)
    panels: list[tuple[str, ArrayLike, str]] = [("Estimate", estimate, "viridis")]
    panels.append((f"Width of the {level_percent:g} % interval", width, "cividis"))
    shared = max(1.0, float(np.max(estimate)))
    if truth is not None:
        panels.append(("Truth (known only in a simulation)", truth, "viridis"))
        shared = max(shared, float(np.max(truth)))
    side = 4.4
    height = min(9.0, max(0.8, (side - 0.5) * geometry.rows / geometry.columns)) + 1.3 + (0.3 if title else 0)
    figure, axes = new_figure(side * len(panels), height, columns=len(panels))
    for axis, (name, cells, colours) in zip(axes, panels, strict=True):
        top = max(1.0, float(np.max(width))) if colours == "cividis" else shared
        drawn = _map_panel(axis, geometry, name, geometry.image(cells), colours, top)
        bar = figure.colorbar(drawn, ax=axis, orientation="horizontal", shrink=0.7, pad=0.02, aspect=32)
        bar.set_ticks([tick for tick in MaxNLocator(nbins=4, integer=True).tick_values(0, top) if 0 <= tick <= top])
        bar.set_label(unit)
        bar.outline.set_visible(False)
    axes[0].set_ylabel("north, km")
    if title:
        figure.suptitle(title, x=0.008, ha="left")
    return figure


def _map_panel(axis: Axes, geometry: GridGeometry, name: str, image: Floats, colours: str, top: float) -> Any:
    # A few full cells among many nearly empty ones: a linear scale would leave those all one colour.
    scale = PowerNorm(0.6, vmin=0, vmax=top, clip=True)
    drawn = axis.imshow(image, origin="lower", extent=geometry.extent_km, cmap=colours, norm=scale)
    axis.set_title(name)
    axis.set_xlabel("east, km")
    axis.grid(visible=False)
    left, right, bottom, above = geometry.extent_km
    step = max(0.5, 2.0 ** ceil(np.log2(max(right - left, above - bottom) / 8)))
    axis.set_xticks(np.arange(ceil(left / step) * step, right + 1e-9, step))
    axis.set_yticks(np.arange(ceil(bottom / step) * step, above + 1e-9, step))
    if geometry.columns * geometry.rows <= 400:
        _write_numbers(axis, geometry, image, drawn)
    return drawn


def _write_numbers(axis: Axes, geometry: GridGeometry, image: Floats, drawn: Any) -> None:
    """Write every cell's number in black on light cells and in white on dark ones."""
    left, _, bottom, _ = geometry.extent_km
    side = geometry.size / 1000
    small = 7.5 if geometry.columns <= 12 else 5.5
    for row, column in np.ndindex(image.shape):
        value = float(image[row, column])
        red, green, blue, _ = drawn.cmap(drawn.norm(value))
        colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        place = (left + (column + 0.5) * side, bottom + (row + 0.5) * side)
        axis.text(*place, f"{round(value)}", ha="center", va="center", fontsize=small, color=colour)


@_in_style
def bars_with_intervals(
    labels: Sequence[str],
    *,
    estimate: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    truth: Sequence[float] | None = None,
    title: str = "",
    unit: str = "devices",
) -> Figure:
    """Return horizontal bars of the estimates with their intervals and the truth as a mark; the 40 largest if more.

    Raises:
        ShapeError: the sequences differ in length.
    """
    if len({len(labels), len(estimate), len(low), len(high), len(estimate if truth is None else truth)}) != 1:
        raise ShapeError(f"{len(labels)} labels, {len(estimate)} estimates, {len(low)} and {len(high)} interval ends")
    order = sorted(range(len(labels)), key=lambda i: -estimate[i])[:MOST_BARS]
    order = sorted(order) if len(labels) <= MOST_BARS else order
    figure, (axis,) = new_figure(8.5, 1.6 + 0.3 * max(2, len(order)))
    places = np.arange(len(order))
    middle = [estimate[i] for i in order]
    axis.barh(places, np.maximum(middle, 0), color=PALETTE[5], height=0.62, alpha=0.65, label="estimate")
    axis.hlines(places, [low[i] for i in order], [high[i] for i in order], color=PALETTE[0], lw=2.2, label="interval")
    axis.plot(middle, places, "|", color=_INK, ms=9, mew=1.6)
    if truth is not None:
        axis.plot([truth[i] for i in order], places, "D", color=PALETTE[1], ms=5, label="truth (simulation only)")
    axis.set_yticks(places, [_short(labels[i]) for i in order])
    axis.invert_yaxis()
    axis.axvline(0, color="#888888", lw=0.8)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(unit)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    more = f" (the {MOST_BARS} largest of {len(labels)})" if len(labels) > MOST_BARS else ""
    if title + more:
        figure.suptitle(title + more, x=0.008, ha="left")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    return figure


@_in_style
def plan_plot(
    counts: Sequence[float],
    *,
    sampling: Sequence[float],
    noise: Sequence[float],
    both: Sequence[float],
    smallest_count_seen: int | None,
    title: str = "",
    level_percent: float = 95,
) -> Figure:
    """Return what a plan promises over the true count: half the interval in devices, its two causes, and in percent.

    `sampling`, `noise` and `both` are half widths in devices, one for each of `counts`, all above 0.

    Raises:
        ShapeError: the sequences differ in length, or there is no count.
    """
    if len({len(counts), len(sampling), len(noise), len(both)}) != 1 or not counts:
        raise ShapeError(f"{len(counts)} counts, {len(sampling)}, {len(noise)} and {len(both)} half widths")
    figure, (devices, percent) = new_figure(10.4, 4.3, columns=2)
    lines = [
        Line(x=counts, y=both, label=f"half the {level_percent:g} % interval"),
        Line(x=counts, y=sampling, label="the sampling alone", dashed=True),
        Line(x=counts, y=noise, label="the aggregators' noise alone", dashed=True),
    ]
    draw_lines(
        devices, lines, title="Error in devices", x_label="true count", y_label="devices", log_x=True, log_y=True
    )
    relative = [100 * half / count for half, count in zip(both, counts, strict=True)]
    label = "percent of the count"
    one = [Line(x=counts, y=relative, label="")]
    draw_lines(percent, one, title="Error in percent", x_label="true count", y_label=label, log_x=True, log_y=True)
    percent.yaxis.set_major_formatter(StrMethodFormatter("{x:g} %"))
    if smallest_count_seen is not None and counts[0] <= smallest_count_seen <= counts[-1]:
        for axis in (devices, percent):
            axis.axvline(smallest_count_seen, color=PALETTE[6], lw=1.2, ls=":")
        percent.annotate(
            f"{smallest_count_seen}: the smallest count\ntold apart from 0",
            (smallest_count_seen, relative[0]),
            xytext=(8, -4),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
        )
    if title:
        figure.suptitle(title, x=0.008, ha="left")
    return figure


def _short(label: str) -> str:
    return label if len(label) <= 28 else label[:27] + "…"


@_in_style
def line_figure(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Return lines with their bands over one pair of axes."""
    figure, (axis,) = new_figure(7.2, 4.4)
    draw_lines(axis, lines, title=title, x_label=x_label, y_label=y_label, log_x=log_x, log_y=log_y)
    return figure


@_in_style
def draw_lines(
    axis: Axes,
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Draw lines with their bands into given axes (for figures of several panels)."""
    for number, line in enumerate(lines):
        colour = PALETTE[number % len(PALETTE)]
        marker = "o" if len(line.x) <= 20 else ""
        axis.plot(line.x, line.y, marker=marker, color=colour, label=line.label, ls="--" if line.dashed else "-")
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
    axis.set_xscale("log" if log_x else "linear")
    axis.set_yscale("log" if log_y else "linear")
    axis.set_title(title)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    if len(lines) > 1 or lines[0].label:
        axis.legend()
