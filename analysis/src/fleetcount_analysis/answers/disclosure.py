"""What a release that is about to be signed would tell of a person it does not name, from its own numbers alone.

Run by aggregators with a limit (`[limits] largest_posterior`), before they sign. It must not decide, and is no part of
the privacy promise: it is the meter of `metering` ([INF] Theorem 2) for what a record holds.

The group is those who took part where the record tells their noised number, else those with any value; the sensitive
value is a cell's. The cell with the largest number tells most: every cell has the same law, and the others' sum is what
is left. The reader believes beforehand what `metering` says it does, with a share of mean 1/V (of those who took part
1/(V + 1)) and the weight of two devices. Two windows are read as one pair of sums: the share is then their average.
Counts of sampled devices are read as if these were all: of those left out a reader knows the share with less certainty,
so that a posterior well above the prior is, if anything, too high.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
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
"""Counts that noise makes less likely than 1e-12 are left out."""
_MOST_STEPS: Final = 1024
_OUTWARD: Final = 1e-9
_COARSE: Final = 1e-3
"""Posteriors are raised by this where counts are taken in steps: more than the steps were seen to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWindow:
    """The opened numbers of cells 1..V of one window, and of its participants where the record tells them."""

    cells: tuple[int, ...] = field(repr=False)
    participants: int | None = field(default=None, repr=False)


def most_told(design: Design, windows: Sequence[OpenedWindow], *, weight: int = 2) -> float | None:
    """Return the largest posterior that a person of the group has a cell's value: of the last window, and of all.

    Direct and sampled counts, with noise on one side or both. None where a record does not tell what the posterior is
    about: one cell without the number of participants, randomized answers, exact counts, or counts that leave nobody.

    Raises:
        ShapeError: no window, not V cells, or only some windows with participants.
        RangeError: a weight below 1, a number beyond 10^12 in size, or a release of several zooms.
    """
    counted = _check(design, windows, weight)
    if design.outputs is not Outputs.CELLS or not design.noised or (design.values == 1 and not counted):
        return None
    found = [_told(design, part, weight) for part in {tuple(windows[-1:]), tuple(windows)}]
    return max((one for one in found if one is not None), default=None)


def smallest_refused(design: Design, largest: Fraction, share: Fraction = Fraction(19, 20)) -> int | None:
    """Return from how many devices with a value on a typical record is above `largest`, `share` of them in one cell.

    For a plan, before any data: the noise is at its mean, the others are spread evenly. None where a million are not
    told of either, or nothing can be.

    Raises:
        RangeError: `largest` or `share` outside (0, 1).
    """
    for name, value in (("largest posterior", largest), ("share", share)):
        if not 0 < value < 1:
            raise RangeError(name, value, "above 0 and below 1")
    mean, rate = design.aggregators * Fraction(design.noise.mean), design.channel[0]
    others = design.values - 1

    def told(size: int) -> bool:
        cell = math.ceil(share * size)
        rest = round((size - cell) * rate / max(others, 1) + mean)
        opened = OpenedWindow(cells=(round(cell * rate + mean), *([rest] * others)))
        found = most_told(design, [opened])
        return found is not None and found > largest

    return first_group(told)


def _told(design: Design, windows: Sequence[OpenedWindow], weight: int) -> float | None:
    """Return the posterior of the cell with the largest sum over the windows."""
    sums = [sum(column) for column in zip(*(one.cells for one in windows), strict=True)]
    largest, noises = max(sums), design.aggregators * len(windows)
    told = [one.participants for one in windows if one.participants is not None]
    y, y_mass, fine = _counts(design, largest, noises)
    if told:
        first, first_mass, also_fine = _counts(design, sum(told), noises)
        x, prior = first[:, None], 1 / (design.values + 1)
    else:
        first, first_mass, also_fine = _counts(design, sum(sums) - largest, noises * (design.values - 1))
        x, prior = first[:, None] + y[None, :], 1 / design.values
    y = y[None, :]
    belief = np.where(x > 0, share_prior(x, y, prior, weight), -np.inf) + first_mass[:, None] + y_mass[None, :]
    top = float(belief.max())
    if top == -np.inf:
        return None
    mass = np.exp(belief - top)
    posterior = float(np.sum(mass * np.minimum(y / np.maximum(x, 1), 1)) / mass.sum())
    return min(1.0, posterior + (_OUTWARD if fine and also_fine else _COARSE))


def _counts(design: Design, seen: int, noises: int) -> tuple[NDArray[np.int64], NDArray[np.float64], bool]:
    """Return the counts that a noised number leaves possible, how likely each is, and whether none is left out."""
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
    """Return whether the numbers of participants are told."""
    if design.zooms is not None:
        # Squares of other zooms tell of the same people; what one zoom tells would be too little.
        raise RangeError("zooms", design.zoom_count, "1: what several zooms tell together is not computed")
    if weight < 1:
        raise RangeError("weight", weight, "1 or more")
    if not windows or any(len(one.cells) != design.values for one in windows):
        sizes = [len(one.cells) for one in windows]
        raise ShapeError(f"{sizes} cells; allowed is one window or more of {design.values}")
    told = {one.participants is not None for one in windows}
    if len(told) > 1:
        raise ShapeError("some windows have a number of participants; allowed is all or none")
    for one in windows:
        size = max(map(abs, (*one.cells, one.participants or 0)))
        if size > LARGEST_COUNT:
            raise RangeError("opened number", f"{size} in size", f"up to {LARGEST_COUNT}")
    return told.pop()
