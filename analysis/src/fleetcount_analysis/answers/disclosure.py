"""What a reader could infer about a person from a release before it is signed, computed from its own numbers.

Run by aggregators with a limit (`[limits] largest_posterior`), before they sign. It must not decide, and is no part of
the privacy promise: it is the meter of `metering` ([INF] Theorem 2) for the numbers of a record.

The group is the participants if the record has their noised number, else the devices with any value; the sensitive
value is a cell. The cell with the largest number has the largest posterior, because all cells have the same law. The
reader's prior is that of `metering`, with a share of mean 1/V (of all participants 1/(V + 1)) and the weight of two
devices. Two windows are read as one pair of sums: the share is then their average. Counts of sampled devices are read
as if these were all devices: a reader knows less about the others, so a posterior well above the prior is rather too
high than too low. A total, margins, a weighted sum and sets of values are read in `disclosed_rows`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import NDArray

from fleetcount_analysis.answers.disclosed_rows import OpenedSums, largest_of_rows
from fleetcount_analysis.answers.metering import first_group
from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.answers.shares import LOG_TAIL, counts_between, mean_share
from fleetcount_analysis.channels import LARGEST_COUNT
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.one_sided_sums import OneSidedSum


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWindow:
    """The opened numbers of cells 1..V of one window, of their total and of its participants if they are opened.

    `rows` are those between cells and total: of every margin, or of the weighted sum.
    """

    cells: tuple[int, ...] = field(repr=False)
    rows: tuple[int, ...] = field(default=(), repr=False)
    participants: int | None = field(default=None, repr=False)
    total: int | None = field(default=None, repr=False)

    @classmethod
    def of(cls, design: Design, numbers: Sequence[int], participants: int | None = None) -> "OpenedWindow":
        """Return the window of what a record opens, in its order."""
        behind = tuple(numbers[design.values :])
        rows, total = (behind[:-1], behind[-1]) if design.levels.total else (behind, None)
        return cls(cells=tuple(numbers[: design.values]), rows=rows, participants=participants, total=total)


def most_told(design: Design, windows: Sequence[OpenedWindow], *, weight: int = 2) -> float | None:
    """Return the largest posterior that a person of the group has a cell's value, for the last window and for all.

    For direct and sampled counts with one-sided or two-sided noise; of margins their values are read like cells, of
    sets every value of a device. None if the posterior is undefined: one cell without the number of participants,
    randomized answers, exact counts, or counts of an empty group.

    Raises:
        ShapeError: no window, not V cells, not the numbers of the design's margins and weighted sum, a total that the
            design has not or the other way round, or participants in some windows only.
        RangeError: a weight below 1, a number beyond 10^12 in size, or a release of several zooms.
        TooLargeError: noise too wide to be read.
    """
    counted = _check(design, windows, weight)
    if design.outputs is not Outputs.CELLS or not design.noised or (design.values == 1 and not counted):
        return None
    read = _largest_posterior if design.levels.count == 1 and design.levels.most == 1 else _largest_of_rows
    found = [read(design, part, weight) for part in {tuple(windows[-1:]), tuple(windows)}]
    return max((one for one in found if one is not None), default=None)


def smallest_refused(design: Design, largest: Fraction, share: Fraction = Fraction(19, 20)) -> int | None:
    """Return the smallest number of devices with which a typical record has a posterior above `largest`.

    `share` of the devices are in the first cell, the others are spread evenly over the rest, each with one value, and
    the noise has its mean. For planning, without data. None if that holds for no number up to a million, or if devices
    randomize their answers.

    Raises:
        RangeError: `largest` or `share` outside (0, 1).
    """
    for name, value in (("largest posterior", largest), ("share", share)):
        if not 0 < value < 1:
            raise RangeError(name, value, "above 0 and below 1")
    if design.outputs is not Outputs.CELLS:
        return None  # Nothing is measured of answers that devices randomize.
    mean, rate = design.aggregators * Fraction(design.noise.mean), design.channel[0]
    others = design.values - 1

    def refused(size: int) -> bool:
        cell = math.ceil(share * size)
        rest = round((size - cell) * rate / max(others, 1) + mean)
        cells = [round(cell * rate + mean), *([rest] * others)]
        total = round(size * rate + mean)
        behind = design.levels.all_sums([*cells, total][: design.summed_count])[design.values :]
        opened = OpenedWindow.of(design, (*cells, *behind))
        opened = replace(opened, total=total if design.levels.total else None)
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
    evidence = first_mass[:, None] + y_mass[None, :]
    return mean_share(x, y, evidence, prior, weight, exact=fine and also_fine)


def _largest_of_rows(design: Design, windows: Sequence[OpenedWindow], weight: int) -> float | None:
    """Return the same where more is opened than cells of one value each: margins, a weighted sum, a total, or sets."""
    numbers = [(*one.cells, *one.rows, *(() if one.total is None else (one.total,))) for one in windows]
    sums = [sum(column) for column in zip(*numbers, strict=True)]
    levels = tuple(tuple(sums[start:end]) for start, end in pairwise(design.levels.starts()))
    participants = [one.participants for one in windows if one.participants is not None]
    told = sum(participants) if participants else None
    return largest_of_rows(design, OpenedSums(levels=levels, participants=told, windows=len(windows)), weight)


def _counts(design: Design, seen: int, noises: int) -> tuple[NDArray[np.int64], NDArray[np.float64], bool]:
    """Return the possible counts behind a noised number, the log probability of each, and whether all are included.

    Where a count stands for several its probability is theirs together.
    """
    noise = design.noise
    if isinstance(noise, OneSidedNoise):
        one_sided, sign = OneSidedSum(epsilon=noise.epsilon, terms=noises), 1 if noise.direction == "up" else -1
        reach = one_sided.reach_beyond(math.exp(-LOG_TAIL))
        below, above = (0, reach) if sign == 1 else (reach, 0)
        counts, widths, fine = counts_between(seen - above, seen + below)
        return counts, one_sided.log_mass(sign * (seen - counts)) + widths, fine
    law = noise_total(noise, noises)
    reach = law.reach_of(LOG_TAIL)
    counts, widths, fine = counts_between(seen - reach, seen + reach)
    return counts, law.log_mass(seen - counts) + widths, fine


def _check(design: Design, windows: Sequence[OpenedWindow], weight: int) -> bool:
    """Return whether the windows have numbers of participants."""
    if len(design.levels.sides) > 1:
        # The squares of all zooms count the same devices, so the posterior from one zoom would be too low.
        raise RangeError("zooms", len(design.levels.sides), "1: the posterior from several zooms is not computed")
    if any((one.total is not None) is not design.levels.total for one in windows):
        raise ShapeError(
            f"windows with and without a total; allowed is {'one in each' if design.levels.total else 'none'}"
        )
    if weight < 1:
        raise RangeError("weight", weight, "1 or more")
    if not windows or any(len(one.cells) != design.values for one in windows):
        sizes = [len(one.cells) for one in windows]
        raise ShapeError(f"{sizes} cells; allowed is one window or more of {design.values}")
    rows = sum(design.levels.sizes[1:]) - design.levels.total
    if any(len(one.rows) != rows for one in windows):
        sizes = [len(one.rows) for one in windows]
        raise ShapeError(f"{sizes} numbers of margins and weighted sums; allowed is {rows} in each window")
    counted = {one.participants is not None for one in windows}
    if len(counted) > 1:
        raise ShapeError("some windows have a number of participants; allowed is all or none")
    for one in windows:
        size = max(map(abs, (*one.cells, *one.rows, one.participants or 0, one.total or 0)))
        if size > LARGEST_COUNT:
            raise RangeError("opened number", f"{size} in size", f"up to {LARGEST_COUNT}")
    return counted.pop()
