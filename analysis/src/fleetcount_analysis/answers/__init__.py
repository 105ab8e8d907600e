"""Answers for analysts: sums, changes and simultaneous intervals of a question's table, readable numbers, exports.

`table` has the released numbers; `combinations` is for sums that were fixed before the data were seen, `chosen` for
cells selected by their numbers, `averages` for values that are numbers; `drill_down` reads walks and predicts them;
`readings`, `smoothing`, `hierarchy` and `levels` are readings in addition to the raw numbers; `sides`, `metering`,
`shares`, `disclosure` and `disclosed_rows` are about what is proven and what can be inferred; `places` and `export`
write files. The modules work on plain columns, without protocol types. The page for analysts is docs/answers.md. A
module is loaded when one of its names is first used.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Answer",
    "Average",
    "Chosen",
    "FoundPlace",
    "GridPlaces",
    "HexagonPlaces",
    "OpenedWindow",
    "PrunedPlace",
    "Pyramid",
    "Quantile",
    "QuestionTable",
    "RatioAnswer",
    "Region",
    "Side",
    "WalkStep",
    "WindowCounts",
    "all_at_once",
    "append_parquet",
    "both_sides",
    "cells_inside",
    "chosen_excess",
    "compare_one_sided",
    "consistent",
    "difference",
    "even_variances",
    "everybody",
    "find_chance",
    "fleet_ends",
    "fleet_estimates",
    "found_places",
    "joined_errors",
    "joined_levels",
    "largest",
    "largest_changes",
    "least_threshold",
    "level_numbers",
    "levels_of_grid",
    "mean",
    "mean_of_bins",
    "meter",
    "most_told",
    "one_level",
    "pruned_places",
    "quantile",
    "quantile_sd",
    "question_table",
    "readable",
    "share",
    "sides_of_intervals",
    "smallest_found",
    "smallest_refused",
    "smallest_telling_group",
    "smoothed",
    "survivors",
    "table_design",
    "table_numbers",
    "total",
    "total_of_numbers",
    "totals_at_once",
    "window_totals",
    "write_csv",
    "write_geojson",
    "write_parquet",
]

if TYPE_CHECKING:
    from fleetcount_mechanisms.answers import Side

    from fleetcount_analysis.answers.averages import (
        Average,
        Quantile,
        mean,
        mean_of_bins,
        quantile,
        quantile_sd,
        share,
        total_of_numbers,
    )
    from fleetcount_analysis.answers.chosen import Chosen, all_at_once, largest, largest_changes, survivors
    from fleetcount_analysis.answers.combinations import (
        Answer,
        difference,
        everybody,
        total,
        totals_at_once,
        window_totals,
    )
    from fleetcount_analysis.answers.disclosure import OpenedWindow, most_told, smallest_refused
    from fleetcount_analysis.answers.drill_down import (
        FoundPlace,
        PrunedPlace,
        WalkStep,
        chosen_excess,
        find_chance,
        found_places,
        least_threshold,
        pruned_places,
        smallest_found,
    )
    from fleetcount_analysis.answers.export import append_parquet, write_csv, write_geojson, write_parquet
    from fleetcount_analysis.answers.hierarchy import Pyramid, consistent, even_variances, levels_of_grid
    from fleetcount_analysis.answers.levels import (
        joined_errors,
        joined_levels,
        level_numbers,
        one_level,
        table_design,
        table_numbers,
    )
    from fleetcount_analysis.answers.metering import RatioAnswer, meter, smallest_telling_group
    from fleetcount_analysis.answers.places import GridPlaces, HexagonPlaces, cells_inside
    from fleetcount_analysis.answers.readings import readable
    from fleetcount_analysis.answers.rotation import fleet_ends, fleet_estimates
    from fleetcount_analysis.answers.sides import both_sides, compare_one_sided, sides_of_intervals
    from fleetcount_analysis.answers.smoothing import smoothed
    from fleetcount_analysis.answers.table import QuestionTable, Region, WindowCounts, question_table
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "averages": "Average Quantile mean mean_of_bins quantile quantile_sd share total_of_numbers",
            "chosen": "Chosen all_at_once largest largest_changes survivors",
            "combinations": "Answer difference everybody total totals_at_once window_totals",
            "drill_down": "FoundPlace PrunedPlace WalkStep chosen_excess find_chance found_places least_threshold"
            " pruned_places smallest_found",
            "export": "append_parquet write_csv write_geojson write_parquet",
            "hierarchy": "Pyramid consistent even_variances levels_of_grid",
            "levels": "joined_errors joined_levels level_numbers one_level table_design table_numbers",
            "metering": "RatioAnswer meter smallest_telling_group",
            "places": "GridPlaces HexagonPlaces cells_inside",
            "readings": "readable",
            "rotation": "fleet_ends fleet_estimates",
            "sides": "Side both_sides compare_one_sided sides_of_intervals",
            "smoothing": "smoothed",
            "table": "Region QuestionTable WindowCounts question_table",
            "disclosure": "OpenedWindow most_told smallest_refused",
        },
    )
