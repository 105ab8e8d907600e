"""Whole numbers of at least 0 for people, in addition to the raw estimates.

They must not replace the estimates: sums, comparisons and tests need the raw numbers. The rule is the same for every
cell: the nearest numbers, by least squares, that are not negative and, if the number of participants was released, sum
to it at most. It is a Euclidean projection, without a prior or a parameter.

It has a bias. Without a total, an empty cell is sd/sqrt(2 pi) = .40 sd too high on average, and a sum of readable cells
by that for each empty cell in it. With a total every cell is lowered by the same amount until the sum fits, which
removes most of the bias and lowers small full cells. Rounding adds at most 1/2 without a total, and less than 1 with
it.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.errors import RangeError, ShapeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def readable(estimates: ArrayLike, devices: ArrayLike | None = None, *, all_counted: bool = False) -> Integers:
    """Return whole numbers >= 0 nearest to unbiased estimates, int64 of the same shape (..., V).

    `devices` is the released, noised number of devices, one for each row: the cells of a row then sum to it at most.
    With `all_counted`, which means that no device answered "none of them", they sum to it exactly (a number below 0
    counts as 0).

    Raises:
        ShapeError: not one number of devices for each row, or `all_counted` without them.
        RangeError: an estimate that is not finite or beyond 10^15 in size.
    """
    raw = np.asarray(estimates, dtype=np.float64)
    rows = raw.reshape(-1, raw.shape[-1]) if raw.ndim else raw.reshape(1, 1)
    if not np.all(np.abs(rows) <= 1e15):
        raise RangeError("estimate", "not finite or too large", "up to 10^15 in size")
    if devices is None:
        if all_counted:
            raise ShapeError("all_counted without the number of devices; allowed is one number a row")
        return np.rint(np.maximum(raw, 0)).astype(np.int64)
    totals = np.asarray(devices, dtype=np.float64)
    if totals.shape != raw.shape[:-1] or not np.all(np.abs(totals) <= 1e15):
        raise ShapeError(
            f"numbers of devices of shape {totals.shape}; allowed is one finite number a row of {raw.shape}"
        )
    whole = [
        _rounded(nearest_counts(row, max(0.0, float(total)), exactly=all_counted))
        for row, total in zip(rows, totals.ravel(), strict=True)
    ]
    return np.array(whole, dtype=np.int64).reshape(raw.shape)


def nearest_counts(estimates: ArrayLike, total: float, *, exactly: bool) -> Floats:
    """Return the point of {x >= 0, sum x = total} (sum x <= total unless `exactly`) nearest to one row of estimates.

    It is max(x - t, 0) with one t for all cells, found by sorting (Held, Wolfe and Crowder 1974).
    """
    raw = np.asarray(estimates, dtype=np.float64)
    kept = np.maximum(raw, 0)
    if not exactly and float(kept.sum()) <= total:
        return kept
    falling = np.sort(raw)[::-1]
    levels = (np.cumsum(falling) - total) / np.arange(1, raw.size + 1)
    level = levels[np.flatnonzero(falling > levels)[-1]] if total > 0 else float(falling[0])
    return np.maximum(raw - level, 0)


def _rounded(counts: Floats) -> Integers:
    """Return counts rounded so that their sum is the rounded sum: largest remainders first, ties by cell."""
    whole = np.floor(counts).astype(np.int64)
    left = math.floor(float(counts.sum()) + 0.5) - int(whole.sum())
    order = np.argsort(whole - counts, kind="stable")
    whole[order[: max(left, 0)]] += 1
    return whole
