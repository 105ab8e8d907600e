"""Lines with their bands in one or several panels in matplotlib's own layout, and the figure of a plan.

The numbers are arguments; none is computed here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fleetcount_analysis.errors import ShapeError
from fleetcount_analysis.figures.style import PALETTE, in_style, new_figure
from fleetcount_analysis.figures.words import number

Axes = Any  # matplotlib's own annotations of Axes are partial.

TITLE: Final[Any] = {"x": 0.01, "ha": "left"}
"""The position of the title of a whole figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, with an optional band `low`..`high` of the same length as `x`."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePanel:
    """One panel of lines, each with its colour; `rings` are highlighted points (x, y, text)."""

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
    mark: float | None = None
    """A value of x that is marked with a dotted line."""


@in_style
def line_panels(
    panels: Sequence[LinePanel], *, columns: int, title: str = "", width: float = 5.4, height: float = 3.9
) -> Figure:
    """Return panels of lines, each with its legend, or with one legend below if all have the same lines."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(width * columns, height * rows + (0.5 if title else 0.0), columns=columns, rows=rows)
    names = [{line.label for line in panel.lines} for panel in panels]
    shared = len(panels) > 1 and all(labels == names[0] for labels in names)
    for axis, panel, labels in zip(axes, panels, names, strict=False):
        draw_panel(axis, panel)
        if panel.legend_below:
            _below(axis)
        elif not shared and labels != {""}:
            axis.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.85)
    hide(axes[len(panels) :])
    if shared:
        legend_below(figure, axes[0])
    if title:
        figure.suptitle(title, **TITLE)
    return figure


@in_style
def draw_panel(axis: Axes, panel: LinePanel, *, legend: bool = False) -> None:
    """Draw a panel into axes, with a legend of its own if asked for."""
    for line in panel.lines:
        style: dict[str, Any] = {"color": panel.colours[line.label], "label": line.label}
        style["linestyle"] = (0, (4, 2)) if line.dashed else "-"
        if len(line.x) <= 12 and len(line.x) != 2:  # Two points are a reference line; a single one needs a marker.
            style["marker"] = "o"
        if line.label in panel.points:
            style |= {"linestyle": "none", "marker": "o", "markersize": 3, "markeredgewidth": 0}
        axis.plot(line.x, line.y, **style)
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=panel.colours[line.label], alpha=0.15, lw=0)
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    set_scales(axis, log_x=panel.log_x, log_y=panel.log_y)
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [number(tick) for tick in panel.x_ticks])
        axis.minorticks_off()
    if panel.mark is not None:
        axis.axvline(panel.mark, color=PALETTE[6], lw=1.2, ls=":")
    for x, y, text in panel.rings:
        axis.plot([x], [y], "o", ms=10, mfc="none", mec="#c00000", mew=1.6)
        axis.annotate(text, (x, y), xytext=(9, 7), textcoords="offset points", fontsize=8.5)
    if legend and panel.legend_below:
        _below(axis)
    elif legend:
        axis.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.85)


def _below(axis: Axes) -> None:
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def set_scales(axis: Axes, *, log_x: bool = False, log_y: bool = False) -> None:
    """Make axes logarithmic, with the short forms of numbers: matplotlib's own tick labels are formulas."""
    for name, direction, log in (("x", axis.xaxis, log_x), ("y", axis.yaxis, log_y)):
        if log:  # Before the formatters: setting a scale resets them.
            axis.set(**{f"{name}scale": "log"})
            direction.set_major_formatter(FuncFormatter(_said))
            direction.set_minor_formatter(NullFormatter())


def _said(value: float, _place: int | None) -> str:
    return number(value)


def _said_in_percent(value: float, _place: int | None) -> str:
    return f"{number(value)} %"


def hide(axes: Sequence[Axes]) -> None:
    """Hide the unused axes of the last row of panels."""
    for axis in axes:
        axis.set_visible(False)


def legend_below(figure: Figure, axis: Axes, **options: Any) -> None:
    """Put one legend of all lines below a figure."""
    handles, labels = axis.get_legend_handles_labels()
    across = len(labels) if len(labels) <= 5 and sum(map(len, labels)) < 110 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=across, fontsize=9, **options)


def plan_panels(
    counts: Sequence[float],
    *,
    sampling: Sequence[float],
    noise: Sequence[float],
    both: Sequence[float],
    smallest_count_seen: int | None,
    level_percent: float = 95,
) -> list[LinePanel]:
    """Return the panels of a plan by true count: half the interval with its two causes, and the same in percent.

    `sampling`, `noise` and `both` are half widths in devices, one for each of `counts`, all above 0.

    Raises:
        ShapeError: the sequences differ in length, or there is no count.
    """
    if len({len(counts), len(sampling), len(noise), len(both)}) != 1 or not counts:
        raise ShapeError(f"{len(counts)} counts, {len(sampling)}, {len(noise)} and {len(both)} half widths")
    half = f"half the {level_percent:g} % interval"
    causes = ("the sampling alone", "the aggregators' noise alone")
    relative = [100 * devices / count for devices, count in zip(both, counts, strict=True)]
    lines = [
        Line(x=counts, y=both, label=half),
        *(Line(x=counts, y=y, label=cause, dashed=True) for cause, y in zip(causes, (sampling, noise), strict=True)),
    ]
    drawn = (
        ("Error in devices", lines, "devices"),
        ("Error in percent", [replace(lines[0], y=relative, label="")], "percent of the count"),
    )
    seen = smallest_count_seen is not None and counts[0] <= smallest_count_seen <= counts[-1]
    return [
        LinePanel(
            title=name,
            lines=ours,
            colours={half: PALETTE[0], "": PALETTE[0], causes[0]: PALETTE[1], causes[1]: PALETTE[2]},
            x_label="true count",
            y_label=label,
            log_x=True,
            log_y=True,
            mark=smallest_count_seen if seen else None,
            # Inside the panel the legend would cover the line at the smallest count.
            legend_below=len(ours) > 1,
        )
        for name, ours, label in drawn
    ]


@in_style
def plan_plot(
    counts: Sequence[float], *, smallest_count_seen: int | None, title: str = "", **half_widths: Any
) -> Figure:
    """Return the panels of a plan (`plan_panels`) side by side, with the smallest count distinguishable from 0 in both.

    Raises:
        ShapeError: as `plan_panels`.
    """
    panels = plan_panels(counts, smallest_count_seen=smallest_count_seen, **half_widths)
    figure = line_panels(panels, columns=2, title=title, width=5.2)
    percent = figure.axes[1]
    percent.yaxis.set_major_formatter(FuncFormatter(_said_in_percent))
    if panels[1].mark is not None:
        percent.annotate(
            f"{smallest_count_seen}: the smallest count\ntold apart from 0",
            (panels[1].mark, panels[1].lines[0].y[0]),
            xytext=(8, -4),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
        )
    return figure
