"""Vehicles with several categories at once: which sets they hold, and what they tell of them in every window anew.

The law is the device's (`fleetcount_client.answering`): a set of up to `most` values is told whole, of a larger one so
many, each choice with the same probability. It must not draw for anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.model import AnswerSpace, Integers

ValueSet = tuple[int, ...]
"""The values of a vehicle, 1..V, ascending and distinct."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldSets:
    """The sets that vehicles hold, `sets[h-1]` being what h stands for and h = 0 no value; up to `most` are told."""

    sets: Sequence[ValueSet] = field(repr=False)
    values: int
    most: int

    def told(self, held: Integers, generator: np.random.Generator) -> Integers:
        """Return (V+1,): how many devices tell each value, and last how many tell any, from how many hold each set.

        `held` has shape (H+1,). Exact for any number of devices: those of one set go through its values in order, and
        one that has still to choose r of the n values left chooses the next one with probability r/n.
        """
        found = np.zeros(self.values + 1, dtype=np.int64)
        for values, devices in zip(self.sets, held[1:].tolist(), strict=True):
            places = np.array(values, dtype=np.int64) - 1
            found[places] += _chosen(devices, len(values), self.most, generator)
            found[-1] += devices
        return found

    def choices(self, held: NDArray[np.integer], generator: np.random.Generator) -> list[ValueSet]:
        """Return what each device tells; `held` (devices,) are the sets 0..H."""
        whole: list[ValueSet] = [(), *self.sets]
        return [self._choice(whole[number], generator) for number in held.tolist()]

    def _choice(self, values: ValueSet, generator: np.random.Generator) -> ValueSet:
        if len(values) <= self.most:
            return values
        drawn: list[int] = generator.choice(len(values), self.most, replace=False).tolist()
        return tuple(values[place] for place in sorted(drawn))

    def holders(self, held: Integers) -> Integers:
        """Return (V+1,): how many devices hold no value, and how many hold each, told or not."""
        found = np.zeros(self.values + 1, dtype=np.int64)
        found[0] = held[0]
        for values, devices in zip(self.sets, held[1:].tolist(), strict=True):
            found[list(values)] += devices
        return found


def _chosen(devices: int, size: int, most: int, generator: np.random.Generator) -> Integers:
    """Return how many of the devices choose each of `size` values, when each chooses `most` of them, or all."""
    if size <= most:
        return np.full(size, devices, dtype=np.int64)
    found, left = np.zeros(size, dtype=np.int64), np.zeros(most + 1, dtype=np.int64)
    left[most] = devices  # By how many values a device has still to choose.
    for place in range(size):
        chances = np.minimum(np.arange(most + 1) / (size - place), 1.0)
        taking = generator.binomial(left, chances)
        found[place] = taking.sum()
        left -= taking
        left[:-1] += taking[1:]
    return found


@lru_cache(maxsize=16)
def sets_of(question: AnswerSpace) -> HeldSets | None:
    """Return the sets that devices hold; None where each holds one value at most."""
    if not question.sets:
        return None
    return HeldSets(sets=question.sets, values=question.values, most=question.most)
