"""The style of every figure: colours, fonts, sizes and grid, as settings of matplotlib.

Values and a decorator; nothing is drawn here. A colour is named by its role (`COLOURS`), so that a page can have a dark
form of it, or written as "#rrggbb" if the colour itself carries information.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

Axes = Any  # matplotlib's own annotations of Axes are partial.

_MARGIN_IN: Final = 0.1

PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
"""Okabe and Ito's colours, which are distinguishable with every common colour blindness."""

COLOURS: Final = {
    "ink": "#1c1c1c",
    "soft": "#595959",
    "rule": "#8a8a8a",
    "grid": "#e4e4e4",
    "within": "#d9efe6",
    "paper": "#ffffff",
    "bad": "#b3261e",
    **{f"s{number}": colour for number, colour in enumerate(PALETTE)},
}
"""Roles on paper: text, secondary text, axes, grid, the range where a measurement should be, background, a broken
promise, and groups s0 to s6. The style sheets of pages have the same roles, for light and for dark."""

# Any: matplotlib types the keys as a closed list that differs between its versions.
_SETTINGS: Final[Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # It comes with matplotlib: a picture is the same on every machine.
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": COLOURS["rule"],
    "axes.labelcolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # A dollar sign in a label is a dollar sign.
    "xtick.color": COLOURS["ink"],
    "ytick.color": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "svg.hashsalt": "fleetcount",  # Names inside an SVG file depend on its content alone.
    "svg.fonttype": "none",
    "figure.dpi": 72,
    "savefig.dpi": 144,
    "savefig.facecolor": COLOURS["paper"],
}


def in_style(draw: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return the function with this style set: matplotlib reads most settings when it makes an artist, not later."""

    @wraps(draw)
    def styled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with mpl.rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return styled


@in_style
def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1, heights: list[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, sizes in inches, and its axes row by row, placed by matplotlib.

    `heights` are the relative heights of the rows.
    """
    # Margins at the edge as wide as between panels: texts at the edge need the same room.
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=_MARGIN_IN, h_pad=_MARGIN_IN))
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(rows, columns, height_ratios=heights)).ravel())
