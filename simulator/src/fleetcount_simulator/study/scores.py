"""The quality of releases against the known truth: errors, coverage and width, by release and by cell.

Pure arithmetic on arrays, many runs at once; it must not estimate or draw. It compares with two truths: that of the
devices counted (of which a release is an estimate) and that of the whole fleet (which an operator wants to know).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from fleetcount_analysis.reading import Reading
from numpy.typing import NDArray

from fleetcount_simulator.model import CaseOutcome, Integers

Floats = NDArray[np.float64]

METRICS = (
    *("rmse", "rmse_fleet", "mean_abs_error", "max_abs_error", "bias", "bias_fleet"),
    *("coverage", "coverage_fleet", "mean_width", "number", "number_fleet"),
)
"""Columns of a release: errors in devices over its cells, shares of cells whose interval holds the truth, width in
devices; the estimate of the mean number, and the mean of the fleet's readings, where devices are asked for a number.
Without `_fleet` against the devices counted. Not a number where nothing was released."""


def score_releases(
    reading: Reading,
    outcome: CaseOutcome,
    truth: Integers | Floats,
    epoch: int,
    runs: Sequence[int],
    mean: tuple[Floats, float] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the columns of the releases table for one epoch, one row per run; `truth` (V,) is the whole fleet's.

    `mean` are the estimates of the mean number (runs,) and the mean of the fleet's readings, where devices are asked
    for a number.
    """
    counted = outcome.counted[:, 1:]
    error, error_fleet = reading.estimates - counted, reading.estimates - truth
    unknown = np.full(len(runs), np.nan)
    numbers = {
        "rmse": np.sqrt(np.mean(error**2, axis=1)),
        "rmse_fleet": np.sqrt(np.mean(error_fleet**2, axis=1)),
        "mean_abs_error": np.mean(np.abs(error), axis=1),
        "max_abs_error": np.max(np.abs(error), axis=1),
        "bias": np.mean(error, axis=1),
        "bias_fleet": np.mean(error_fleet, axis=1),
        "coverage": np.mean(_holds(reading, counted), axis=1),
        "coverage_fleet": np.mean(_holds(reading, truth), axis=1),
        "mean_width": np.mean((reading.high - reading.low).astype(np.float64), axis=1),
        "number": unknown if mean is None else mean[0],
        "number_fleet": unknown if mean is None else np.full(len(runs), mean[1]),
    }
    plain: dict[str, NDArray[Any]] = {
        "run": np.array(runs, dtype=np.int64),
        "epoch": np.full(len(runs), epoch, dtype=np.int64),
        "released": outcome.released,
        "cells": np.full(len(runs), len(truth), dtype=np.int64),
        "participants": outcome.participants,
    }
    shown = {name: np.where(outcome.released, column, np.nan) for name, column in numbers.items()}
    return plain | shown | {f"tally:{name}": tally for name, tally in outcome.tallies.items()}


def _holds(reading: Reading, truth: Integers | Floats) -> NDArray[np.bool_]:
    return (reading.low <= truth) & (truth <= reading.high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """Sums over the released runs for every cell, shape (V,), to be added up over shards; and the first run itself.

    `deviation` and `squares` are sums of (estimate - fleet's truth) and of its square; `inside` and `inside_fleet`
    count intervals that hold the truth; `width` is a sum. `first_*` are those of run 0, empty unless it is among the
    runs; `first_shown` says whether run 0 was released.
    """

    releases: Integers
    deviation: Floats
    squares: Floats
    inside: Integers
    inside_fleet: Integers
    width: Floats
    first_shown: NDArray[np.bool_]
    first_counted: Integers
    first_estimate: Floats
    first_low: Integers
    first_high: Integers

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Self:
        """Return the sums whose arrays are stored under names with this prefix."""
        return cls(**{each.name: arrays[prefix + each.name] for each in fields(cls)})


def score_cells(reading: Reading, outcome: CaseOutcome, truth: Integers | Floats, *, first: bool) -> Cells:
    """Return the sums of every cell; `first` says that row 0 is run 0 of the case."""
    shown, head = outcome.released, slice(0, 1 if first else 0)
    deviation = reading.estimates[shown] - truth
    counted = outcome.counted[:, 1:]
    return Cells(
        releases=np.array([shown.sum()], dtype=np.int64),
        deviation=deviation.sum(axis=0),
        squares=(deviation**2).sum(axis=0),
        inside=_holds(reading, counted)[shown].sum(axis=0, dtype=np.int64),
        inside_fleet=_holds(reading, truth)[shown].sum(axis=0, dtype=np.int64),
        width=(reading.high - reading.low)[shown].sum(axis=0, dtype=np.float64),
        first_shown=shown[head],
        first_counted=counted[head],
        first_estimate=reading.estimates[head],
        first_low=reading.low[head],
        first_high=reading.high[head],
    )
