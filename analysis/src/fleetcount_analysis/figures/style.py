"""The style of every figure: colours on paper and in the dark, fonts, sizes and grid, under matplotlib's settings.

Values and one decorator; it draws nothing. A colour is named by its role (`COLOURS`), so that a page can show it in the
dark, or written as "#rrggbb" where the colour itself is the message.
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

PX_PER_INCH: Final = 72
_MARGIN_IN: Final = 0.1
"""A pixel of a panel is a point of matplotlib, and the unit of its SVG; a PNG has two pixels for one."""
FONT_PX: Final = 13.0
"""Size of the text of a panel that is shown at its own width."""
SMALL_PX: Final = FONT_PX - 1

PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
"""Okabe and Ito's colours, told apart with every common colour blindness."""

COLOURS: Final = {
    "ink": "#1c1c1c",
    "soft": "#595959",
    "rule": "#8a8a8a",
    "grid": "#e4e4e4",
    "band": "#d9efe6",
    "paper": "#ffffff",
    "bad": "#b3261e",
    **{f"s{number}": colour for number, colour in enumerate(PALETTE)},
}
"""Roles on paper: text, text beside, axes, grid, the range where a measurement should be, background, a broken
promise, and questions s0 to s6."""

DARK: Final = {
    "ink": "#ececec",
    "soft": "#b4b4b4",
    "rule": "#8f8f8f",
    "grid": "#33373c",
    "band": "#17402f",
    "paper": "#16181b",
    "bad": "#ff8a80",
    "s0": "#5fb3e8",
    "s1": "#ff9a52",
    "s2": "#3fd0a4",
    "s3": "#e7a3cb",
    "s4": "#f2bd42",
    "s5": "#9fd6f5",
    "s6": "#b8b8b8",
}
"""The same roles on a dark page."""

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
    "figure.dpi": PX_PER_INCH,
    "savefig.dpi": 2 * PX_PER_INCH,
    "savefig.facecolor": COLOURS["paper"],
}


def in_style(draw: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Draw under the house style: matplotlib reads most settings when an artist is made, not when it is saved."""

    @wraps(draw)
    def styled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with mpl.rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return styled


@in_style
def sheet(width: float, height: float) -> Figure:
    """Return an empty figure of so many pixels, for panels that place their axes themselves."""
    figure = Figure(figsize=(width / PX_PER_INCH, height / PX_PER_INCH))
    FigureCanvasAgg(figure)
    return figure


@in_style
def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, sizes in inches, and its axes row by row, placed by matplotlib."""
    # Words at the edge of a picture need as much room as those between panels.
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=_MARGIN_IN, h_pad=_MARGIN_IN))
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).ravel())
