"""The cells of a table, the margin of each of its dimensions and the total: counts of all that add up, in closed form.

It must not read randomized answers. A table of V cells is a sum of parts that are orthogonal: the grand mean, for each
dimension what its values add to it (adding up to 0 over them), and the rest. A margin sees the grand mean and its own
dimension's part, the total the grand mean, the cells see all. So least squares weights each part by the precision with
which it is seen; with noise of variance s of a cell, s_k of a number of the margin of dimension k, which has n_k
values, and t of the total:

    rest: 1/s      dimension k: 1/s + (V/n_k)/s_k      grand mean: 1/s + sum over k of (V/n_k)/s_k + V/t

and the variances of the estimates are, with l these precisions,

    a cell: ((V - 1 - sum(n_k - 1))/l_rest + sum((n_k - 1)/l_k) + 1/l_mean)/V
    a number of the margin k: (V/n_k) ((n_k - 1)/l_k + 1/l_mean)/n_k          the total: V/l_mean

(Scheffe 1959, chapter 4, of balanced layouts). A report moves two cells, two numbers of each margin and, if it comes,
one of each and the total; `fleetcount_mechanisms.levels` prices it.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from fleetcount_mechanisms.levels import Levels
from numpy.typing import NDArray

from fleetcount_analysis.answers.hierarchy import Join
from fleetcount_analysis.answers.noises import NoiseTotal

Floats = NDArray[np.float64]


class MarginJoin(Join):
    """The least-squares step of a table with margins whose levels have noise of these `laws`, **coarse to fine**.

    Levels are the total, if there is one, the margins from the last dimension to the first, and the cells.
    """

    def __init__(self, levels: Levels, laws: Sequence[NoiseTotal]) -> None:
        """Compute the precision of each part."""
        self._sizes, self._variances = levels.sizes[::-1], [law.variance for law in laws]
        self._shape, self._total = levels.margins, levels.total
        fine = self._variances[::-1]
        cells, margins = 1 / fine[0], fine[1 : 1 + len(self._shape)]
        values = prod(self._shape)
        seen = [values / size / variance for size, variance in zip(self._shape, margins, strict=True)]
        self._rest, self._dimensions = cells, [cells + one for one in seen]
        self._mean = cells + sum(seen) + (values / fine[-1] if self._total else 0.0)
        self.down = self._down

    def _down(self, opened: Sequence[Floats]) -> tuple[list[Floats], list[Floats]]:
        """Return the consistent estimates and their variances, each (cells,) float64 a level."""
        weighted = [one / variance for one, variance in zip(opened, self._variances, strict=True)][::-1]
        seen = np.reshape(weighted[0], self._shape).astype(np.float64)
        for dimension, margin in enumerate(weighted[1 : 1 + len(self._shape)]):
            seen += self._along(margin, dimension)
        if self._total:
            seen += weighted[-1][0]
        cells = self._solved(seen)
        margins = [cells.sum(axis=self._others(dimension)) for dimension in range(len(self._shape))]
        fine = [cells.ravel(), *margins, *([np.array([cells.sum()])] if self._total else [])]
        return fine[::-1], self._spread()

    def _solved(self, seen: Floats) -> Floats:
        """Return the cells of which these are the weighted sums of what was opened of them."""
        mean, found = seen.mean(), seen / self._rest
        for dimension, precision in enumerate(self._dimensions):
            part = seen.mean(axis=self._others(dimension)) - mean
            found += self._along(part, dimension) * (1 / precision - 1 / self._rest)
        return np.asarray(found + mean * (1 / self._mean - 1 / self._rest), dtype=np.float64)

    def _spread(self) -> list[Floats]:
        """Return the variances of the estimates."""
        values = prod(self._shape)
        own = [(size - 1) / one for size, one in zip(self._shape, self._dimensions, strict=True)]
        rest = values - 1 - sum(size - 1 for size in self._shape)
        cell = (rest / self._rest + sum(own) + 1 / self._mean) / values
        margins = [values / size * (one + 1 / self._mean) / size for size, one in zip(self._shape, own, strict=True)]
        each = [cell, *margins, *([values / self._mean] if self._total else [])]
        return [np.full(size, one) for size, one in zip(self._sizes, each[::-1], strict=True)]

    def _others(self, dimension: int) -> tuple[int, ...]:
        return tuple(one for one in range(len(self._shape)) if one != dimension)

    def _along(self, numbers: Floats, dimension: int) -> Floats:
        """Return numbers of a dimension's values for all cells."""
        return np.expand_dims(numbers, self._others(dimension))
