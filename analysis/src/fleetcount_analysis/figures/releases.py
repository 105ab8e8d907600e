"""Figures of one release, as maps of a square grid or rows of categories, and of a walk, with a map for each step.

The numbers are arguments; none is computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.figures.charts import Chart, Item, Measure, Style, chart_figure, row_panel, scale_of
from fleetcount_analysis.figures.maps import MapPanel, Outlines, width_panel

Floats = NDArray[np.float64]

MOST_BARS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class GridGeometry:
    """The cells of a square grid: their side in metres and their number; cell v is column (v-1) % columns.

    `streets` are lines of points (x, y) in metres from the south-western corner, and `source` is their attribution.

    Raises:
        RangeError: a size, number of columns or of rows that is not above 0.
    """

    size: float
    columns: int
    rows: int
    streets: Sequence[Sequence[tuple[float, float]]] = field(default=(), repr=False)
    source: str = ""

    def __post_init__(self) -> None:
        if self.size <= 0 or self.columns < 1 or self.rows < 1:
            raise RangeError("grid", (self.size, self.columns, self.rows), "a positive size, columns and rows")

    def values(self, cells: ArrayLike) -> Floats:
        """Return the values of cells 1..V as float64 of shape (V,).

        Raises:
            ShapeError: not one value for each cell.
        """
        flat = np.asarray(cells, dtype=np.float64)
        if flat.shape != (self.columns * self.rows,):
            raise ShapeError(f"{flat.shape} values for a grid of {self.columns} by {self.rows} cells")
        return flat


def count_map(  # noqa: PLR0913 - what is drawn and how it is labelled, by name
    geometry: GridGeometry,
    *,
    estimate: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    truth: Sequence[float] | None = None,
    title: str = "",
    unit: str = "vehicles",
    level_percent: float = 95,
    scale: float = 1.0,
) -> Figure:
    """Return a map of the estimates, of the width of their intervals and, where known, of the truth, side by side.

    Estimate and truth share one colour scale from 0 to their largest number, at least `scale`, so that consecutive maps
    can have the same scale. An estimate below 0 is drawn as 0 and printed with its value. Widths are `width_panel`'s.

    Raises:
        ShapeError: not one value for each cell.
    """
    estimates = geometry.values(estimate)
    truths = estimates if truth is None else geometry.values(truth)
    shared = max(scale, float(np.max(estimates)), float(np.max(truths)))
    streets = [np.asarray(line, dtype=np.float64) / geometry.size for line in geometry.streets]
    outlines = Outlines.grid(geometry.columns, geometry.rows, streets)
    panels = [
        MapPanel(title="Estimate", outlines=outlines, values=estimates, top=shared, unit=unit),
        width_panel(
            outlines,
            estimates=estimates,
            low=geometry.values(low),
            high=geometry.values(high),
            title=f"Width of the {level_percent:g} % interval",
            unit=unit,
        ),
    ]
    if truth is not None:
        title_of_truth = "Truth (known only in a simulation)"
        panels.append(MapPanel(title=title_of_truth, outlines=outlines, values=truths, top=shared, unit=unit))
    drawn_over = f"; {geometry.source}" if geometry.source else ""
    note = f"north up, side of a square {geometry.size:g} m{drawn_over})"
    where = f"{title[:-1]}; {note}" if title.endswith(")") else f"{title} ({note}".strip()
    return chart_figure(Chart(name="map", title=where, caption="", panels=panels))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMap:
    """One step of a drill-down: its title, and for each of its cells the outline (well-known text) and the estimate."""

    title: str
    outlines: Sequence[str]
    estimates: Sequence[float]


def step_maps(steps: Sequence[StepMap], *, truth: Sequence[float], title: str) -> Figure:
    """Return a map of every step with its own squares, and a map of the truth in the squares of the last step.

    The last step and the truth share one colour scale.

    Raises:
        ShapeError: not one outline and estimate for each cell, or not one truth for each cell of the last step.
    """
    shared = max(1.0, *steps[-1].estimates, *truth)
    seen = StepMap(title="Truth (known only in a simulation)", outlines=steps[-1].outlines, estimates=truth)
    panels = []
    for one in (*steps, seen):
        if len(one.outlines) != len(one.estimates):
            raise ShapeError(f"{len(one.estimates)} values for {len(one.outlines)} cells of {one.title!r}")
        top = shared if one.outlines is seen.outlines else max(1.0, *one.estimates)
        values = np.asarray(one.estimates, dtype=np.float64)
        outlines = Outlines.of(one.outlines, "m")
        panels.append(MapPanel(title=one.title, outlines=outlines, values=values, top=top, unit="vehicles"))
    return chart_figure(Chart(name="walk", title=title, caption="", panels=panels))


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
    """Return a row for each label: estimate, interval and, if known, truth; only the 40 largest of more labels.

    Raises:
        ShapeError: the sequences differ in length.
    """
    if len({len(labels), len(estimate), len(low), len(high), len(estimate if truth is None else truth)}) != 1:
        raise ShapeError(f"{len(labels)} labels, {len(estimate)} estimates, {len(low)} and {len(high)} interval ends")
    order = sorted(range(len(labels)), key=lambda i: -estimate[i])[:MOST_BARS]
    order = sorted(order) if len(labels) <= MOST_BARS else order
    seen = Style("s1", 2)
    items = [
        Item(
            label=labels[i],
            measure=Measure(estimate[i], low[i], high[i]),
            others=() if truth is None else ((truth[i], seen),),
        )
        for i in order
    ]
    ends = [end for i in order for end in (low[i], high[i], estimate[i], *(() if truth is None else (truth[i],)))]
    more = f" (the {MOST_BARS} largest of {len(labels)})" if len(labels) > MOST_BARS else ""
    key = [("estimate, interval", Style("s0")), ("truth (simulation only)", seen)]
    panel = row_panel(items, scale_of(ends, unit, zero=True), alt=f"{len(items)} estimates with intervals")
    shown = key if truth is not None else key[:1]
    return chart_figure(Chart(name="bars", title=title + more, caption="", panels=[panel], key=shown))
