"""Tails of sums of sampled devices and noise, for many counts at once, and the search that turns tails into intervals.

It must not know a table or a question. The law is V = sum over j of steps[j] Bin(n_j, p) + Z, Z symmetric noise: a
device that is counted in steps[j] windows of one unit of the coin has one toss for all of them. Tails are Fourier sums
over the odd frequencies theta_m = 2 pi m / M modulo M, as in `response_tails`:

    P[V >= y] = 1/2 + (2/M) sum_{m odd, 0 < m < M/2} Im[phi(theta_m) e^{-i theta_m (y - 1/2)}] / sin(theta_m / 2)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.answers.noises import NoiseTotal
from fleetcount_analysis.errors import RangeError, TooLargeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_LOG_TAIL: Final = 16 * math.log(10)
_CUT: Final = math.log(1e-18)
_SLACK: Final = 1e-12
"""Added to tails, so that the rounding of a sum of doubles never shortens an interval."""

_SMALLEST_TAIL: Final = 1e-10
_LARGEST_CIRCLE: Final = 22
_CHUNK_ELEMENTS: Final = 1 << 19


def tail_of(level: Fraction) -> float:
    """Return the error of each side, (1 - level)/2.

    Raises:
        RangeError: the level is outside (0, 1), or gives a side less than 1e-10, below the precision of the tails.
    """
    tail = float((1 - level) / 2)
    if not (0 < level < 1 and tail >= _SMALLEST_TAIL):
        raise RangeError("confidence level", level, f"above 0 and at most 1 - {2 * _SMALLEST_TAIL:g}")
    return tail


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLaw:
    """The law of V = sum over j of steps[j] Bin(n_j, p) + noise; steps are not 0 and may be negative."""

    steps: tuple[int, ...]
    sampling_rate: Fraction
    noise: NoiseTotal

    def upper_tail(self, counts: Integers, outputs: Integers) -> Floats:
        """Return P[V >= y], float64 (rows,), for n_j of shape (rows, steps) and y of shape (rows,).

        At most 2e-12 above the true probability, and never below it.

        Raises:
            TooLargeError: a law wider than 2^20.
        """
        return np.minimum(self._at_least(counts, outputs) + _SLACK, 1)

    def lower_tail(self, counts: Integers, outputs: Integers) -> Floats:
        """Return P[V <= y] with the shapes, the precision and the error of `upper_tail`."""
        return np.minimum(1 - self._at_least(counts, outputs + 1) + _SLACK, 1)

    def _at_least(self, counts: Integers, outputs: Integers) -> Floats:
        p, steps = float(self.sampling_rate), np.array(self.steps, dtype=np.float64)
        far = _LOG_TAIL * float(np.max(np.abs(steps))) / 3
        variance = p * (1 - p) * (counts @ steps**2)
        reach = far + np.sqrt(far**2 + 2 * _LOG_TAIL * variance) + self.noise.reach_of(_LOG_TAIL) + 2
        distance = outputs - p * (counts @ steps)
        # Clipped by whole steps, because between whole numbers the Fourier sum overshoots.
        distance -= np.rint(distance - np.clip(distance, 1 - reach, reach - 1))
        power = np.ceil(np.log2(4 * reach)).astype(np.int64)
        if power.size and int(power.max()) > _LARGEST_CIRCLE:
            raise TooLargeError(f"a sum that spreads over {int(reach.max())} numbers; exact tails go to 2^20")
        result = np.empty(distance.shape)
        for one in np.unique(power).tolist():
            rows = np.flatnonzero(power == one)
            result[rows] = self._on_circle(1 << one, counts[rows], distance[rows])
        return np.clip(result, 0, 1)

    def _on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """Return P[V >= y] for y at `distance` from the mean; every law must lie within half of the M residues."""
        angles = np.asarray(np.arange(1, size // 2, 2) * (2 * np.pi / size), dtype=np.float64)
        height, phase = _coin_waves(float(self.sampling_rate), self.steps, angles)
        noise = self.noise.log_characteristic(angles) - np.log(np.sin(angles / 2) * (size / 2))
        above = np.flatnonzero(counts.min(axis=0) @ height + noise > _CUT)
        kept = int(above[-1]) + 1 if above.size else 1
        height, phase, noise, angles = height[:, :kept], phase[:, :kept], noise[:kept], angles[:kept]
        result, rows = np.empty(distance.shape), max(1, _CHUNK_ELEMENTS // kept)
        for start in range(0, distance.size, rows):
            part = slice(start, start + rows)
            turned = counts[part] @ phase - (distance[part, None] - 0.5) * angles
            result[part] = 0.5 + np.einsum("ij,ij->i", np.exp(counts[part] @ height + noise), np.sin(turned))
        return result


def _coin_waves(p: float, steps: tuple[int, ...], angles: Floats) -> tuple[Floats, Floats]:
    """Return log |phi| and arg phi, centred at the mean, of one device of every step, both (steps, angles)."""
    turned = np.outer(steps, angles)
    square = np.maximum(4 * p * (1 - p) * np.sin(turned / 2) ** 2, 0)
    phase = np.arctan2(p * np.sin(turned), 1 - p + p * np.cos(turned)) - p * turned
    return np.log1p(-np.minimum(square, 1 - 1e-16)) / 2, phase


def first_true(test: Callable[[Integers, Integers], Booleans], guess: Integers, lowest: Integers) -> Integers:
    """Return, for every row, the smallest n >= `lowest` with `test(n, rows)`, which must be monotone: false, then true.

    Strides from the guess are multiplied by four until the change is bracketed; bisection follows.
    """
    start = np.maximum(guess, lowest)
    rows = np.arange(start.size)
    known = test(start, rows)
    low, high = np.where(known, lowest - 1, start), start.copy()
    stride = 1
    rising, falling = rows[~known], rows[known]
    while rising.size or falling.size:
        high[rising] = low[rising] + stride
        true = test(high[rising], rising)
        low[rising[~true]] = high[rising[~true]]
        rising = rising[~true]
        asked = np.maximum(high[falling] - stride, lowest[falling] - 1)
        inside = asked >= lowest[falling]
        falling, asked = falling[inside], asked[inside]
        true = test(asked, falling)
        high[falling[true]], low[falling[~true]] = asked[true], asked[~true]
        falling = falling[true]
        stride *= 4
    open_rows = np.flatnonzero(high - low > 1)
    while open_rows.size:
        middle = (low[open_rows] + high[open_rows]) // 2
        true = test(middle, open_rows)
        high[open_rows[true]], low[open_rows[~true]] = middle[true], middle[~true]
        open_rows = open_rows[high[open_rows] - low[open_rows] > 1]
    return high
