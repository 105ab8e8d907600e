"""Estimates, intervals, remaps, one-sided maps, noise, figures, inference; `buckets` and `papers` are packages inside.

It must not load more than is asked for: every public name is imported on first use, so that an error class costs no
SciPy and an interval no matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "LARGEST_COUNT",
    "LOSSES",
    "PALETTE",
    "AnalysisError",
    "CellEstimates",
    "Direction",
    "GridGeometry",
    "Line",
    "Loss",
    "NoOptimumError",
    "NoiseSum",
    "OneSidedMap",
    "RangeError",
    "RatioInference",
    "Remap",
    "ResponseChannel",
    "ResponseLaw",
    "SamplingChannel",
    "ShapeError",
    "TooLargeError",
    "UserOptimum",
    "bars_with_intervals",
    "checked_prior",
    "closed_form_intervals",
    "competitor_probabilities",
    "count_map",
    "direct_cells",
    "direct_estimates",
    "direct_intervals",
    "draw_lines",
    "expected_yield",
    "found_probabilities",
    "geometric_channel",
    "geometric_noise",
    "geometric_remap",
    "infer_ratio",
    "is_monotone",
    "line_figure",
    "loss_matrix",
    "new_figure",
    "noise_sum",
    "one_sided_cells",
    "one_sided_intervals",
    "one_sided_map",
    "optimal_remap",
    "plan_plot",
    "principal_value_mean",
    "ratio_moments",
    "response_cells",
    "response_channel",
    "response_estimates",
    "response_intervals",
    "response_participants",
    "response_standard_errors",
    "sampling_cells",
    "sampling_estimates",
    "sampling_intervals",
    "sampling_remap",
    "sampling_standard_errors",
    "save_figure",
    "simultaneous_level",
    "sum_interval",
    "unary_cells",
    "unary_intervals",
    "universality_gap",
    "user_optimum",
    "yield_curve",
]

if TYPE_CHECKING:
    from fleetcount_analysis.channels import (
        LARGEST_COUNT,
        NoiseSum,
        ResponseChannel,
        SamplingChannel,
        noise_sum,
    )
    from fleetcount_analysis.errors import (
        AnalysisError,
        NoOptimumError,
        RangeError,
        ShapeError,
        TooLargeError,
    )
    from fleetcount_analysis.estimates import (
        CellEstimates,
        Direction,
        ResponseLaw,
        direct_cells,
        direct_estimates,
        one_sided_cells,
        response_cells,
        response_channel,
        response_estimates,
        response_participants,
        response_standard_errors,
        sampling_cells,
        sampling_estimates,
        sampling_standard_errors,
        unary_cells,
    )
    from fleetcount_analysis.figures import (
        PALETTE,
        GridGeometry,
        Line,
        bars_with_intervals,
        count_map,
        draw_lines,
        line_figure,
        new_figure,
        plan_plot,
        save_figure,
    )
    from fleetcount_analysis.inference import (
        RatioInference,
        infer_ratio,
        principal_value_mean,
        ratio_moments,
    )
    from fleetcount_analysis.intervals import (
        closed_form_intervals,
        direct_intervals,
        one_sided_intervals,
        response_intervals,
        sampling_intervals,
        simultaneous_level,
        sum_interval,
        unary_intervals,
    )
    from fleetcount_analysis.noise import (
        geometric_noise,
    )
    from fleetcount_analysis.one_sided import (
        OneSidedMap,
        competitor_probabilities,
        expected_yield,
        found_probabilities,
        one_sided_map,
        yield_curve,
    )
    from fleetcount_analysis.remap import (
        LOSSES,
        Loss,
        Remap,
        UserOptimum,
        checked_prior,
        geometric_channel,
        geometric_remap,
        is_monotone,
        loss_matrix,
        optimal_remap,
        sampling_remap,
        universality_gap,
        user_optimum,
    )

# Module: its public names.
_MODULES = {
    "channels": "LARGEST_COUNT NoiseSum ResponseChannel SamplingChannel noise_sum",
    "errors": "AnalysisError NoOptimumError RangeError ShapeError TooLargeError",
    "estimates": (
        "CellEstimates Direction ResponseLaw direct_cells "
        "direct_estimates one_sided_cells response_cells response_channel "
        "response_estimates response_participants response_standard_errors sampling_cells "
        "sampling_estimates sampling_standard_errors unary_cells"
    ),
    "figures": (
        "GridGeometry Line PALETTE bars_with_intervals "
        "count_map draw_lines line_figure new_figure "
        "plan_plot save_figure"
    ),
    "inference": "RatioInference infer_ratio principal_value_mean ratio_moments",
    "intervals": (
        "closed_form_intervals direct_intervals one_sided_intervals response_intervals "
        "sampling_intervals simultaneous_level sum_interval unary_intervals"
    ),
    "noise": "geometric_noise",
    "one_sided": "OneSidedMap competitor_probabilities expected_yield found_probabilities one_sided_map yield_curve",
    "remap": (
        "LOSSES Loss Remap UserOptimum "
        "checked_prior geometric_channel geometric_remap is_monotone "
        "loss_matrix optimal_remap sampling_remap universality_gap "
        "user_optimum"
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # Type checkers see the imports above, so that a misspelt name is an error to them.

    def __getattr__(name: str) -> object:
        """Import a public name from its module on first use."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
