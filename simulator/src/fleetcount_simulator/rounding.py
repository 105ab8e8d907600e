"""Numbers between points: what devices read, and the values that they round it to, in every window anew.

The law is the device's (`fleetcount_protocol.window.domain.value_of`): up with a probability of the way from the point
below as a part of the way between the points, here as a float for drawing. It must not draw for anything else.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from fleetcount_protocol.window.domain import Numbers
from numpy.typing import NDArray

from fleetcount_simulator.held_sets import sets_of
from fleetcount_simulator.model import AnswerSpace, Integers, Population

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounding:
    """The law of what a device answers that holds reading r, r = 0 (none) .. R; arrays of shape (R+1,).

    It answers value `below[r]` + 1 with probability `part[r]`, otherwise `below[r]`. `numbers` are the readings, not a
    number where they are none of the values; `points` (V,) are the values' numbers.
    """

    below: Integers = field(repr=False)
    part: Floats = field(repr=False)
    numbers: Floats = field(repr=False)
    points: Floats = field(repr=False)

    def values(self, held: NDArray[Any], uniform: Floats) -> Integers:
        """Return the value 0..V of every device, from what it holds and one uniform number of [0, 1) for each."""
        return np.asarray(self.below[held] + (uniform < self.part[held]), dtype=np.int64)

    def histogram(self, held: Integers, generator: np.random.Generator) -> Integers:
        """Return (S, V+1): how many devices answer each value, drawn from how many hold each reading, (S, R+1)."""
        ups = generator.binomial(held, self.part)
        return np.array([self._answers(row, up) for row, up in zip(held, ups, strict=True)]).astype(np.int64)

    def expected(self, held: Integers) -> Floats:
        """Return (V+1,): how many devices answer each value on average."""
        return self._answers(held, held * self.part)

    def _answers(self, held: Integers, up: NDArray[Any]) -> Floats:
        # Whole numbers below 2^53 stay exact. At the last point nobody goes up, which would be place V+1.
        places, width = np.concatenate([self.below, self.below + 1]), len(self.points) + 2
        found = np.bincount(places, weights=np.concatenate([held - up, up]), minlength=width)
        return np.asarray(found[: width - 1], dtype=np.float64)

    def mean(self, held: Integers) -> float:
        """Return the mean of the readings that are values, beyond the ends as they are; not a number without one."""
        counted = np.where(np.isnan(self.numbers), 0, held)
        devices = int(counted.sum())
        return float(counted @ np.nan_to_num(self.numbers)) / devices if devices else float("nan")

    def taken_mean(self, held: Integers) -> float:
        """Return the mean as devices take their readings: beyond the ends the nearer end."""
        return replace(self, numbers=self._taken()).mean(held)

    def taken_quantile(self, held: Integers, q: Fraction) -> float:
        """Return the first reading, as devices take it, with at least a share q of those with a value up to it."""
        below = np.cumsum(np.where(np.isnan(self.numbers), 0, held))
        if not below[-1]:
            return float("nan")
        # Exact: a share of 10^12 devices is a whole number in 64 bits.
        return float(self._taken()[np.searchsorted(below * q.denominator, q.numerator * int(below[-1]))])

    def _taken(self) -> Floats:
        return np.clip(self.numbers, self.points[0], self.points[-1])


@lru_cache(maxsize=16)
def rounding_of(question: AnswerSpace) -> Rounding | None:
    """Return how devices round what they read; None where what they hold is a value already."""
    domain = question.domain
    if not isinstance(domain, Numbers) or not question.readings:
        return None
    places = [domain.place_of(None), *map(domain.place_of, question.readings)]
    numbers = [float("nan"), *map(float, question.readings)]
    return Rounding(
        below=np.array([int(place) for place in places], dtype=np.int64),
        part=np.array([float(place % 1) for place in places]),
        numbers=np.array([number if place else float("nan") for number, place in zip(numbers, places, strict=True)]),
        points=np.array([float(point) for point in domain.points]),
    )


def fleet_truth(population: Population, epoch: int) -> Integers | Floats:
    """Return shape (V+1,): how many devices hold each value; of numbers between points how many do on average.

    Of sets a device counts at every value that it holds, whether a question lets it tell them all or not.
    """
    held, rounding = population.histogram(epoch), rounding_of(population.question)
    if (sets := sets_of(population.question)) is not None:
        return sets.holders(held)
    return held if rounding is None else rounding.expected(held)


def mean_of(population: Population, epoch: int) -> tuple[Floats, float] | None:
    """Return the numbers of the values, (V,), and the mean of the fleet's readings; None of other questions."""
    rounding = rounding_of(population.question)
    return None if rounding is None else (rounding.points, rounding.mean(population.histogram(epoch)))
