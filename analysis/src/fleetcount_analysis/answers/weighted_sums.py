"""Counts of the values of a release from all its levels: zooms, a total, and the weighted sum of numbers.

It must not know what a value stands for. The least-squares counts y of the nested levels (`hierarchy`) have covariances
C. The weighted sum is one number more, w = a'x + noise of variance u, and joins them by a step of rank one (Plackett
1950), y + C a (w - a'y)/(a'C a + u). The weights of g'y are then those before, less k = g'C a/(a'C a + u) times those
of a'y, and k on w itself. Where all cells have one noise, with a total or without, the number of all devices and the
weighted sum are read independently, since the weights a_v = 2v - V - 1 add up to 0.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from fleetcount_mechanisms.design import Design
from numpy.typing import NDArray

from fleetcount_analysis.answers.hierarchy import Join
from fleetcount_analysis.answers.levels import counted, join_of
from fleetcount_analysis.answers.noises import NoiseTotal, noise_total

Floats = NDArray[np.float64]


class ValuesJoin:
    """The least-squares counts of a design's values, and the weight of every opened number in a sum of them.

    `laws` are the noises of the levels, the nested ones coarse to fine, then that of the weighted sum.
    """

    def __init__(self, design: Design) -> None:
        """Compute the passes, and where there is a weighted sum its step."""
        join, laws = join_of(design)
        self._levels, self._join, self.laws = design.levels, join, laws
        place = design.levels.weighted_place
        self._step = None if place is None else _Step(design, place, join, laws)
        if self._step is not None:
            self.laws = (*laws, self._step.law)

    def cells(self, opened: Sequence[Floats]) -> Floats:
        """Return the counts of the values, float64 (V,), from the numbers of every level in their order."""
        found = self._join.down(counted(self._levels, opened)[::-1])[0][-1]
        if self._step is None:
            return found
        return found + self._step.gain * (float(opened[self._step.place][0]) - float(self._step.rows @ found))

    def weights(self, sums: Floats) -> list[Floats]:
        """Return the weight of every opened number in a sum of counts, one array for each of `laws`.

        `sums` says how often each value's count is in it, float64 (V,).
        """
        own = self._join.weights(len(self.laws) - 1 - (self._step is not None), sums)
        if self._step is None:
            return own
        share = float(sums @ self._step.gain)
        return [*(one - share * less for one, less in zip(own, self._step.weights, strict=True)), np.array([share])]


class _Step:
    """The step by which the weighted sum joins: its rows a, its law, the weights of a'y, and C a/(a'C a + u)."""

    def __init__(self, design: Design, place: int, join: Join, laws: Sequence[NoiseTotal]) -> None:
        self.place = place
        self.law = noise_total(design.laws[place], design.aggregators)
        self.rows: Floats = np.array([design.levels.weight(v + 1) for v in range(design.values)], dtype=np.float64)
        self.weights = join.weights(len(laws) - 1, self.rows)
        along = laws[-1].variance * self.weights[-1]
        self.gain: Floats = along / (float(self.rows @ along) + self.law.variance)


@lru_cache(maxsize=16)
def values_join(design: Design) -> ValuesJoin:
    """Return the join of a design, kept for a few of them."""
    return ValuesJoin(design)
