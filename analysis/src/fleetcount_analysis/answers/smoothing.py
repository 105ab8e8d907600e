"""Smoother curves over time under a model: in addition to the raw estimates, never in their place.

Results must be shown with the model's name. In the local-level model a count moves from window to window by independent
steps of mean 0 and a standard deviation that the analyst states; the smoothed value is the mean of the count given all
windows (Kalman's smoother, computed here as two filters, one from each end). If counts jump, at a shift change or a
jam, the model is wrong there and the curve spreads the jump over both sides.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from fleetcount_mechanisms.design import Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import NDArray

from fleetcount_analysis.answers.combinations import sums_in_windows
from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.answers.table import QuestionTable
from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Smoothed:
    """Smoothed counts of some cells over all released windows, float64 (W, cells), in devices, and their model.

    `standard_errors` are valid under the model only; they are not an interval of the release.
    """

    model: str
    cells: tuple[int, ...]
    values: Floats
    standard_errors: Floats


def smoothed(table: QuestionTable, cells: Iterable[int], *, change_sd: float) -> Smoothed:
    """Return the local-level reading of cells; `change_sd` is the sd of a count's change from one window to the next.

    A missing window increases the variance of the step between its neighbours. The variance of one estimate is that of
    the noise and, with sampling, n (1-p)/p at the mean n of the cell's estimates (not below 0).

    Raises:
        RangeError: a cell outside 1..V, a `change_sd` not above 0 and finite, randomized answers or one-sided noise,
            sampled windows that share a toss of the coin, or more than 4,000 windows.
    """
    design = table.design
    if design.outputs is not Outputs.CELLS or isinstance(design.noise, OneSidedNoise):
        raise RangeError("design", design.name, "direct counts or sampling with symmetric noise")
    if design.channel[0] != 1 and len(np.unique(table.units)) < table.windows.size:
        raise RangeError("windows", "some that share a toss of the coin and its error", "windows of which no two do")
    if not 0 < change_sd < float("inf"):
        raise RangeError("change_sd", change_sd, "above 0 and finite")
    if table.windows.size > 4000:
        raise RangeError("number of windows", table.windows.size, "at most 4000")
    chosen = tuple(sorted(cells))
    seen = table.estimates[:, table.columns(chosen)]
    rate = float(design.channel[0])
    joined = sums_in_windows(table, chosen[:1]).joined
    noise = noise_total(design.noise, design.aggregators).variance if joined is None else joined.variance
    variances = noise / rate**2 + (1 - rate) / rate * np.maximum(seen.mean(axis=0), 0)
    weight = 1 / np.maximum(variances, 1e-12)
    steps = change_sd**2 * np.diff(table.windows)
    before, earlier = _from_one_end(seen, weight, steps)
    after, later = (one[::-1] for one in _from_one_end(seen[::-1], weight, steps[::-1]))
    known = before + weight + after
    values = (before * earlier + weight * seen + after * later) / known
    model = f"local level: counts move by independent steps of standard deviation {change_sd:g} a window"
    return Smoothed(model=model, cells=chosen, values=values, standard_errors=1 / np.sqrt(known))


def _from_one_end(seen: Floats, weight: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Return of each window what those before it say of its count: one over the variance, and the mean."""
    known, mean = np.zeros(seen.shape), np.zeros(seen.shape)
    for row, step in enumerate(steps.tolist(), start=1):
        told = known[row - 1] + weight
        mean[row] = (known[row - 1] * mean[row - 1] + weight * seen[row - 1]) / told
        known[row] = told / (1 + told * step)
    return known, mean
