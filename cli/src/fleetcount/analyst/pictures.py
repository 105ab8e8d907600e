"""Axes to draw into: those that the caller gives, or new ones of pyplot, which notebooks show by themselves.

It must not draw: `fleetcount_analysis.figures.axes` does.
"""

from typing import TYPE_CHECKING

from fleetcount.analyst.tables import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_for(ax: "Axes | None", width: float, height: float, asked: str) -> "Axes":
    """Return `ax`, or axes of a new figure of so many inches in the house style.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    pyplot = library("matplotlib.pyplot", asked)
    from fleetcount_analysis.figures.style import in_style

    _, made = in_style(pyplot.subplots)(figsize=(width, height), layout="constrained")
    axes: Axes = made
    return axes
