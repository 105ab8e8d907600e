"""Counts with their intervals in given matplotlib axes: rows of labels, cells on a map, a line over time.

For figures of notebooks, in this package's style. It must not make a figure or show a number without its interval.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.errors import ShapeError
from fleetcount_analysis.figures.maps import Outlines, draw_cells, draw_colour_scale, write_numbers
from fleetcount_analysis.figures.style import PALETTE, in_style
from fleetcount_analysis.figures.words import drawable

Axes = Any  # matplotlib's own annotations of Axes are partial.
Floats = NDArray[np.float64]

MOST_ROWS: Final = 40
_MOST_NUMBERED: Final = 64


@in_style
def draw_rows(
    axes: Axes, labels: Sequence[str], *, estimate: ArrayLike, low: ArrayLike, high: ArrayLike, unit: str
) -> None:
    """Draw a row for each label, the interval as a line and the estimate as a dot; only the 40 largest of more labels.

    Raises:
        ShapeError: the sequences differ in length, or are empty.
    """
    values, lower, upper = _same_length(len(labels), estimate, low, high)
    order = np.sort(np.argsort(-values, kind="stable")[:MOST_ROWS])
    places = np.arange(order.size)
    # Ends have caps, so that an interval narrower than its dot is visible.
    axes.hlines(places, lower[order], upper[order], color=PALETTE[0], linewidth=1.6)
    for ends in (lower, upper):
        axes.plot(ends[order], places, linestyle="none", marker="|", markersize=8, color=PALETTE[0])
    axes.plot(values[order], places, linestyle="none", marker="o", markersize=3.6, color=PALETTE[1], zorder=3)
    axes.set_yticks(places, [drawable(labels[int(place)]) for place in order])
    axes.set(ylim=(order.size - 0.4, -0.6), xlabel=unit)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if order.size < len(labels):
        axes.set_title(f"the {order.size} largest of {len(labels):,}", loc="right", fontsize=8.5, fontweight="normal")


@in_style
def draw_places(
    axes: Axes, rings: Sequence[Sequence[tuple[float, float]]], *, estimate: ArrayLike, unit: str, degrees: bool
) -> None:
    """Draw every cell in the colour of its estimate, below 0 as 0, with a scale that names the unit.

    `rings` are corners in degrees, or in one unit of length in both directions. With up to 64 cells, cells with enough
    room show their numbers.

    Raises:
        ShapeError: not one estimate for each cell, or no cell.
    """
    values = _same_length(len(rings), estimate)[0]
    outlines = Outlines(shapes=[np.asarray(ring, dtype=np.float64) for ring in rings], degrees=degrees)
    drawn = draw_cells(axes, outlines, values, top=max(1.0, float(values.max())), colours="viridis")
    # A grid's own unit is metres on the ground only where its frame makes it so: Web Mercator's grow with latitude.
    names, unit_of = (("longitude", "latitude"), "degrees") if degrees else (("x", "y"), "the grid's own unit")
    axes.set(xlabel=f"{names[0]} in {unit_of}", ylabel=f"{names[1]} in {unit_of}")
    axes.ticklabel_format(style="plain", useOffset=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=3 if degrees else 4))
    draw_colour_scale(axes, drawn, unit, shrink=0.85)
    if len(rings) <= _MOST_NUMBERED:
        write_numbers(axes, outlines, values, drawn)


@in_style
def draw_band(
    axes: Axes,
    x: ArrayLike,
    *,
    estimate: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    label: str,
    x_label: str,
    unit: str,
) -> None:
    """Draw a line over time or windows with the band of its intervals; nan is a gap.

    Raises:
        ShapeError: the sequences differ in length, or are empty.
    """
    places = np.asarray(x)
    values, lower, upper = _same_length(len(places), estimate, low, high)
    colour = PALETTE[len(axes.lines) % len(PALETTE)]
    axes.fill_between(places, lower, upper, color=colour, alpha=0.18, linewidth=0)
    beside = np.isfinite(np.concatenate([[np.nan], values, [np.nan]]))
    # A band is drawn from place to place: one between gaps has a line in its stead.
    alone = beside[1:-1] & ~beside[:-2] & ~beside[2:]
    if alone.any():
        axes.vlines(places[alone], lower[alone], upper[alone], color=colour, alpha=0.4, linewidth=3)
    axes.plot(places, values, color=colour, marker="o", markersize=3.5, label=drawable(label))
    axes.set(xlabel=x_label, ylabel=unit)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.margins(x=0.02)
    if places.size and isinstance(places.flat[0], datetime):
        every: Any = _Moments  # matplotlib's dates have no annotations.
        words: Any = ConciseDateFormatter
        dates = every(minticks=3, maxticks=7, tz=UTC)
        axes.xaxis.set_major_locator(dates)
        axes.xaxis.set_major_formatter(words(dates, tz=UTC))


class _Moments(AutoDateLocator):
    """Places of dates on an axis; around a single moment the hour before and after it, where matplotlib shows years."""

    def nonsingular(self, vmin: Any, vmax: Any) -> Any:
        """Return the ends of an axis, in days."""
        usual: Any = super().nonsingular
        return (vmin - 1 / 24, vmax + 1 / 24) if vmin == vmax else usual(vmin, vmax)


def _same_length(count: int, *numbers: ArrayLike) -> list[Floats]:
    found = [np.asarray(one, dtype=np.float64) for one in numbers]
    if count < 1 or any(one.shape != (count,) for one in found):
        raise ShapeError(f"{[one.shape for one in found]} numbers for {count} places; allowed is one each, 1 or more")
    return found
