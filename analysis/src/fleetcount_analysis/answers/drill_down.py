"""Drill-downs: the places that a walk has found, bounds for the pruned ones, and the prediction of walks.

A walk asks about the same truth at every level, each with noise of its own: a place of n devices is found if its
estimate reaches the threshold at every level before the last, and it is shown as busy if it does so at the last too. A
pruned cell must not get an estimate: the cells below it were never asked about.

Intervals hold for all candidates of a step at once, because cells are selected by their numbers (`chosen`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from numpy.typing import NDArray

from fleetcount_analysis.answers.chosen import each_level
from fleetcount_analysis.answers.ends import Sums, estimates_of, sum_ends
from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.answers.tails import SumLaw
from fleetcount_analysis.errors import RangeError

_LARGEST: Final = 1 << 30
_NEVER: Final = 1e-13

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WalkStep:
    """One released step of a walk: its `cells`, ascending, of `bits` bits each, and the opened number `raw` of each."""

    design: Design
    level: Fraction
    bits: int
    cells: tuple[int, ...]
    raw: tuple[int, ...]

    def ends(self) -> tuple[list[int], list[int]]:
        """Return interval ends of every cell, which hold for all cells of the step at once with `level`."""
        level = each_level(self.design, self.level, len(self.cells))
        low, high = sum_ends(self.design, self.sums, level)
        return low.tolist(), high.tolist()

    @property
    def sums(self) -> Sums:
        """The cells as sums of one count each."""
        return Sums(values=np.array(self.raw, dtype=np.int64), cells=1, windows=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """A cell of the last step at or above the threshold: its estimate and the ends that hold for all candidates."""

    cell: int
    estimate: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedPlace:
    """A pruned cell: no place in it has more than `most` devices; there is no lower bound."""

    bits: int
    cell: int
    most: int


def found_places(last: WalkStep, threshold: int) -> list[FoundPlace]:
    """Return the places of the last step of a walk whose estimate reaches the threshold, largest first.

    Raises:
        RangeError: as `sum_ends`.
    """
    low, high = last.ends()
    rows = zip(last.raw, last.cells, estimates_of(last.design, last.sums).tolist(), low, high, strict=True)
    # By the opened number, as steps are decided: the estimate of one at the threshold may be a float just below it.
    reached = _least_output(last.design, threshold)
    chosen = [row[1:] for row in rows if row[0] >= reached]
    found = [FoundPlace(cell=cell, estimate=one, low=least, high=most) for cell, one, least, most in chosen]
    return sorted(found, key=lambda one: (-one.estimate, one.cell))


def pruned_places(step: WalkStep, survivors: Sequence[int]) -> list[PrunedPlace]:
    """Return the cells of a step without a next step, each with the upper end that bounds all places in it.

    The bounds of one step hold at once with its level; over a walk of L steps the probability that one of them is wrong
    is at most L (1 - level) (union bound).

    Raises:
        RangeError: survivors that are not cells of the step; as `sum_ends`.
    """
    left = set(survivors)
    if not left <= set(step.cells):
        raise RangeError("survivors", sorted(left - set(step.cells)), "cells of the step")
    _, high = step.ends()
    rows = zip(step.cells, high, strict=True)
    return [PrunedPlace(bits=step.bits, cell=cell, most=most) for cell, most in rows if cell not in left]


# The prediction of walks, without data.


def find_chance(design: Design, threshold: int, levels: int, devices: int) -> float:
    """Return the probability that a place of `devices` devices reaches the threshold at all levels of a walk.

    It assumes what every drill-down keeps: the noises of the levels are independent, and devices toss a new coin at
    every level. Other devices in the cells above the place only increase the probability; the limit on the number of
    survivors is ignored, and so are devices that miss a step.

    Raises:
        RangeError: another design than counts of the truth or by sampling, fewer than 1 level, fewer than 0 devices.
    """
    if design.outputs is not Outputs.CELLS:
        raise RangeError("design", design.name, "direct or sampling")
    if levels < 1 or not 0 <= devices <= _LARGEST:
        raise RangeError("levels and devices", (levels, devices), "at least 1 and 0")
    return float(_passes(design, np.array([_least_output(design, threshold)]), devices)[0]) ** levels


def chosen_excess(design: Design, threshold: int, devices: int) -> float:
    """Return by how much the estimate of a place of `devices` devices is too high on average where it is found.

    A place that was looked for is shown because its number was high: E[estimate | estimate >= threshold] - devices, of
    the last step. About .8 standard deviations at the threshold, less for larger places.

    Raises:
        RangeError: as `find_chance`.
    """
    find_chance(design, threshold, 1, devices)
    rate, least = design.channel[0], _least_output(design, threshold)
    reach = noise_total(design.noise, design.aggregators).central_reach(_NEVER)
    tails = _passes(design, np.arange(least, max(least, devices) + reach + 1), devices)
    return (least + float(tails[1:].sum() / tails[0])) / float(rate) - devices


def _least_output(design: Design, threshold: int) -> int:
    rate = design.channel[0]
    return -(-threshold * rate.numerator // rate.denominator)


def _passes(design: Design, outputs: Integers, devices: int) -> Floats:
    """Return the chance that the opened number of a place is at least each of some outputs."""
    rate, noise = design.channel[0], noise_total(design.noise, design.aggregators)
    if rate == 1:
        return noise.upper_tail(outputs - devices)
    law = SumLaw(steps=(1,), sampling_rate=rate, noise=noise)
    return law.upper_tail(np.full((len(outputs), 1), devices), outputs)


def least_threshold(design: Design, candidates: int, false_places: Fraction) -> int:
    """Return the smallest threshold with at most `false_places` empty cells above it in a step, in expectation.

    Raises:
        RangeError: as `find_chance`; not (0, 1) false places, or fewer than 1 candidate.
    """
    if not 0 < false_places < 1 or candidates < 1:
        raise RangeError("false places among candidates", (false_places, candidates), "(0, 1) among at least 1")
    allowed = float(false_places) / candidates
    return _first(lambda threshold: find_chance(design, threshold, 1, 0) <= allowed)


def smallest_found(design: Design, threshold: int, levels: int, chance: Fraction = Fraction(95, 100)) -> int:
    """Return the smallest number of devices with which a walk finds a place with this probability.

    Raises:
        RangeError: as `find_chance`; a chance outside (0, 1).
    """
    if not 0 < chance < 1:
        raise RangeError("chance", chance, "(0, 1)")
    return _first(lambda devices: find_chance(design, threshold, levels, devices) >= chance)


def _first(holds: Callable[[int], bool]) -> int:
    """Return the smallest whole number, from 1 on, with which a monotone test holds."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _LARGEST:
            raise RangeError("devices", high, f"at most {_LARGEST}: the noise hides every place")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
