"""Estimates, intervals, remaps, one-sided maps; `answers` and `figures` are packages inside.

What is exported here is for users, with a stability word each in docs/api.md; code of this repository imports from the
modules. A module is loaded when one of its names is first used, so that importing an error class does not load SciPy.
"""

from typing import TYPE_CHECKING

__all__ = [
    "AnalysisError",
    "Loss",
    "OneSidedMap",
    "Reading",
    "Remap",
    "SamplingChannel",
    "direct_intervals",
    "exact_estimates",
    "geometric_remap",
    "noise_sum",
    "one_sided_map",
    "one_sided_remap",
    "optimal_remap",
    "read",
    "response_intervals",
    "response_remap",
    "sampling_intervals",
    "sampling_remap",
    "simultaneous_level",
    "sum_interval",
]

if TYPE_CHECKING:
    from fleetcount_analysis.channels import SamplingChannel, noise_sum
    from fleetcount_analysis.errors import AnalysisError
    from fleetcount_analysis.intervals import (
        direct_intervals,
        response_intervals,
        sampling_intervals,
        simultaneous_level,
        sum_interval,
    )
    from fleetcount_analysis.one_sided import OneSidedMap, one_sided_map
    from fleetcount_analysis.reading import Reading, exact_estimates, read
    from fleetcount_analysis.remap import (
        Loss,
        Remap,
        geometric_remap,
        one_sided_remap,
        optimal_remap,
        response_remap,
        sampling_remap,
    )
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "channels": "SamplingChannel noise_sum",
            "errors": "AnalysisError",
            "intervals": "direct_intervals response_intervals sampling_intervals simultaneous_level sum_interval",
            "one_sided": "OneSidedMap one_sided_map",
            "reading": "Reading exact_estimates read",
            "remap": "Loss Remap geometric_remap one_sided_remap optimal_remap response_remap sampling_remap",
        },
    )
