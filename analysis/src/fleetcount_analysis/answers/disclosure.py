"""What a reader could infer about a person from a release before it is signed, computed from its own numbers.

Run by aggregators with a limit (`[limits] largest_posterior`), before they sign. It must not decide, and is no part of
the privacy promise: it is the meter of `metering` ([INF] Theorem 2) for the numbers of a record.

The group is the participants if the record has their noised number, else the devices with any value; the sensitive
value is a cell. The cell with the largest number has the largest posterior, because all cells have the same law. The
reader's prior is that of `metering`, with a share of mean 1/V (of all participants 1/(V + 1)) and the weight of two
devices. Two windows are read as one pair of sums: the share is then their average. Counts of sampled devices are read
as if these were all devices: a reader knows less about the others, so a posterior well above the prior is rather too
high than too low.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np
import scipy
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import NDArray

from fleetcount_analysis.answers.metering import first_group, share_prior
from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.channels import LARGEST_COUNT
from fleetcount_analysis.errors import RangeError, ShapeError

_LOG_TAIL: Final = 28.0
"""Counts with a probability below 1e-12 under the noise are omitted."""
_MOST_STEPS: Final = 1024
_OUTWARD: Final = 1e-9
_COARSE: Final = 1e-3
"""Added to a posterior if counts are taken in steps: more than the measured effect of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWindow:
    """The opened numbers of cells 1..V of one window, of their total and of its participants if they are opened."""

    cells: tuple[int, ...] = field(repr=False)
    participants: int | None = field(default=None, repr=False)
    total: int | None = field(default=None, repr=False)


def most_told(design: Design, windows: Sequence[OpenedWindow], *, weight: int = 2) -> float | None:
    """Return the largest posterior that a person of the group has a cell's value, for the last window and for all.

    For direct and sampled counts with one-sided or two-sided noise. None if the posterior is undefined: one cell
    without the number of participants, randomized answers, exact counts, or counts of an empty group.

    Raises:
        ShapeError: no window, not V cells, a total that the design has not or the other way round, or participants in
            some windows only.
        RangeError: a weight below 1, a number beyond 10^12 in size, or a release of several zooms.
    """
    counted = _check(design, windows, weight)
    if design.outputs is not Outputs.CELLS or not design.noised or (design.values == 1 and not counted):
        return None
    found = [_largest_posterior(design, part, weight) for part in {tuple(windows[-1:]), tuple(windows)}]
    return max((one for one in found if one is not None), default=None)


def smallest_refused(design: Design, largest: Fraction, share: Fraction = Fraction(19, 20)) -> int | None:
    """Return the smallest number of devices with which a typical record has a posterior above `largest`.

    `share` of the devices are in one cell, the others are spread evenly, and the noise has its mean. For planning,
    without data. None if that holds for no number up to a million.

    Raises:
        RangeError: `largest` or `share` outside (0, 1).
    """
    for name, value in (("largest posterior", largest), ("share", share)):
        if not 0 < value < 1:
            raise RangeError(name, value, "above 0 and below 1")
    mean, rate = design.aggregators * Fraction(design.noise.mean), design.channel[0]
    others = design.values - 1

    def refused(size: int) -> bool:
        cell = math.ceil(share * size)
        rest = round((size - cell) * rate / max(others, 1) + mean)
        opened = OpenedWindow(cells=(round(cell * rate + mean), *([rest] * others)))
        opened = replace(opened, total=round(size * rate + mean) if design.levels.total else None)
        found = most_told(design, [opened])
        return found is not None and found > largest

    return first_group(refused)


def _largest_posterior(design: Design, windows: Sequence[OpenedWindow], weight: int) -> float | None:
    """Return the posterior of the cell with the largest sum over the windows."""
    sums = [sum(column) for column in zip(*(one.cells for one in windows), strict=True)]
    largest, noises = max(sums), design.aggregators * len(windows)
    participants = [one.participants for one in windows if one.participants is not None]
    y, y_mass, fine = _counts(design, largest, noises)
    if participants:
        first, first_mass, also_fine = _counts(design, sum(participants), noises)
        x, prior = first[:, None], 1 / (design.values + 1)
    else:
        first, first_mass, also_fine = _counts(design, sum(sums) - largest, noises * (design.values - 1))
        x, prior = first[:, None] + y[None, :], 1 / design.values
    y = y[None, :]
    # The total is one more noised number of the devices that the cells count.
    totals = [one.total for one in windows if one.total is not None]
    if totals and not participants:
        law = noise_total(design.coarser[-1], noises)
        first_mass = first_mass[:, None] + law.log_mass(sum(totals) - x)
    else:
        first_mass = first_mass[:, None]
    belief = np.where(x > 0, share_prior(x, y, prior, weight), -np.inf) + first_mass + y_mass[None, :]
    top = float(belief.max())
    if top == -np.inf:
        return None
    mass = np.exp(belief - top)
    posterior = float(np.sum(mass * np.minimum(y / np.maximum(x, 1), 1)) / mass.sum())
    return min(1.0, posterior + (_OUTWARD if fine and also_fine else _COARSE))


def _counts(design: Design, seen: int, noises: int) -> tuple[NDArray[np.int64], NDArray[np.float64], bool]:
    """Return the possible counts behind a noised number, the log probability of each, and whether all are included."""
    noise = design.noise
    if isinstance(noise, OneSidedNoise):
        keep, sign = -math.expm1(-float(noise.epsilon)), 1 if noise.direction == "up" else -1
        reach = int(scipy.stats.nbinom.isf(math.exp(-_LOG_TAIL), noises, keep))
        below, above = (0, reach) if sign == 1 else (reach, 0)
        counts, step = _steps(seen - above, seen + below)
        return counts, scipy.stats.nbinom.logpmf(sign * (seen - counts), noises, keep), step == 1
    law = noise_total(noise, noises)
    reach = law.reach_of(_LOG_TAIL)
    counts, step = _steps(seen - reach, seen + reach)
    return counts, law.log_mass(seen - counts), step == 1


def _steps(low: int, high: int) -> tuple[NDArray[np.int64], int]:
    low, high = max(0, low), max(0, high)
    step = 1 + (high - low) // _MOST_STEPS
    return np.arange(low, high + 1, step, dtype=np.int64), step


def _check(design: Design, windows: Sequence[OpenedWindow], weight: int) -> bool:
    """Return whether the windows have numbers of participants."""
    if len(design.levels.sides) > 1:
        # The squares of all zooms count the same devices, so the posterior from one zoom would be too low.
        raise RangeError("zooms", len(design.levels.sides), "1: the posterior from several zooms is not computed")
    if not design.levels.nested:
        raise RangeError("levels", design.levels.count, "cells and a total: the posterior from others is not computed")
    if any((one.total is not None) is not design.levels.total for one in windows):
        raise ShapeError(
            f"windows with and without a total; allowed is {'one in each' if design.levels.total else 'none'}"
        )
    if weight < 1:
        raise RangeError("weight", weight, "1 or more")
    if not windows or any(len(one.cells) != design.values for one in windows):
        sizes = [len(one.cells) for one in windows]
        raise ShapeError(f"{sizes} cells; allowed is one window or more of {design.values}")
    counted = {one.participants is not None for one in windows}
    if len(counted) > 1:
        raise ShapeError("some windows have a number of participants; allowed is all or none")
    for one in windows:
        size = max(map(abs, (*one.cells, one.participants or 0, one.total or 0)))
        if size > LARGEST_COUNT:
            raise RangeError("opened number", f"{size} in size", f"up to {LARGEST_COUNT}")
    return counted.pop()
