"""Draw releases, plans, studies and experiments in one style, as SVG and PNG.

Only matplotlib is used, without a display and without pyplot. No number is computed here: all are arguments.
"""

from fleetcount_analysis.figures.files import save_figure
from fleetcount_analysis.figures.lines import Line, LinePanel, line_panels, plan_plot
from fleetcount_analysis.figures.releases import GridGeometry, StepMap, bars_with_intervals, count_map, step_maps
from fleetcount_analysis.figures.style import PALETTE, new_figure

__all__ = [
    "PALETTE",
    "GridGeometry",
    "Line",
    "LinePanel",
    "StepMap",
    "bars_with_intervals",
    "count_map",
    "line_panels",
    "new_figure",
    "plan_plot",
    "save_figure",
    "step_maps",
]
