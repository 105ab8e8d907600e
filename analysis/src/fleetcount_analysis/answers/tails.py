"""Tails of sums of sampled devices and noise, for many counts at once, and the search that turns tails into intervals.

It must not know a table or a question. The law is V = sum over j of steps[j] Bin(n_j, p) + Z, Z symmetric noise: a
device that is counted in steps[j] windows of one unit of the coin has one toss for all of them. Tails are Fourier sums
over the odd frequencies theta_m = 2 pi m / M modulo M, as in `response_tails`:

    P[V >= y] = 1/2 + (2/M) sum_{m odd, 0 < m < M/2} Im[phi(theta_m) e^{-i theta_m (y - 1/2)}] / sin(theta_m / 2)

Where Z is a combination of noises with weights (`JoinedLaw`), V is on no lattice that is wide enough to be of use. A
normal G, of a small part of the spread of Z, gives it a density, and its waves come to an end:

    P[V >= y] <= P[V + G >= y - g] + P[G < -g]
    P[V + G >= y] = 1/2 + (4/M) sum_{m odd} Im[phi(theta_m) e^{-i theta_m y}] / theta_m
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_analysis.answers.noises import NoiseTotal, Parts, variance_of
from fleetcount_analysis.errors import RangeError, TooLargeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Numbers = Integers | Floats

_LOG_TAIL: Final = 16 * math.log(10)
_CUT: Final = math.log(1e-18)
_SLACK: Final = 1e-12
"""Added to tails, so that the rounding of a sum of doubles never shortens an interval."""

_BLUR: Final = 1e-3
"""The deviation of G in that of a combination of noises."""
_PAST: Final = 7
"""g in deviations of G, which passes it with a probability of 1.3e-12."""
_GRID: Final = 500
"""Joined sums are rounded outwards to so many parts of the deviation of their noise: fewer of them are different."""
_DEVIATIONS: Final = 15

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
class CoinLaw:
    """What V = sum over j of steps[j] Bin(n_j, p) + noise has, whatever the noise; steps may be negative, not 0."""

    steps: tuple[int, ...]
    sampling_rate: Fraction

    def noise_variance(self) -> float:
        """Return the variance of the noise."""
        raise NotImplementedError

    def noise_reach(self) -> float:
        """Return a number that the noise passes with no probability that counts."""
        raise NotImplementedError

    def on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """Return P[V >= y] for y at `distance` from the mean; every law must lie within half of the M residues."""
        raise NotImplementedError

    def at_least(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return P[V >= y], float64 (rows,), for n_j of shape (rows, steps) and y of shape (rows,).

        Raises:
            TooLargeError: a law wider than 2^20.
        """
        p, steps = float(self.sampling_rate), np.array(self.steps, dtype=np.float64)
        far = _LOG_TAIL * float(np.max(np.abs(steps))) / 3
        variance = p * (1 - p) * (counts @ steps**2)
        reach = far + np.sqrt(far**2 + 2 * _LOG_TAIL * variance) + self.noise_reach() + 2
        distance = outputs - p * (counts @ steps)
        # Clipped by whole steps, because between whole numbers the Fourier sum overshoots.
        distance -= np.rint(distance - np.clip(distance, 1 - reach, reach - 1))
        power = np.ceil(np.log2(4 * reach)).astype(np.int64)
        if power.size and int(power.max()) > _LARGEST_CIRCLE:
            raise TooLargeError(f"a sum that spreads over {int(reach.max())} numbers; exact tails go to 2^20")
        result = np.empty(distance.shape)
        for one in np.unique(power).tolist():
            rows = np.flatnonzero(power == one)
            result[rows] = self.on_circle(1 << one, counts[rows], distance[rows])
        return np.clip(result, 0, 1)

    def added(self, angles: Floats, noise: Floats, counts: Integers, distance: Floats) -> Floats:
        """Return the sum of the waves of coins and noise at these angles; `noise` has logarithms of heights."""
        height, phase = _coin_waves(float(self.sampling_rate), self.steps, angles)
        result, rows = np.empty(distance.shape), max(1, _CHUNK_ELEMENTS // max(1, angles.size))
        for start in range(0, distance.size, rows):
            part = slice(start, start + rows)
            turned = counts[part] @ phase - distance[part, None] * angles
            result[part] = 0.5 + np.einsum("ij,ij->i", np.exp(counts[part] @ height + noise), np.sin(turned))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLaw(CoinLaw):
    """The law of V = sum over j of steps[j] Bin(n_j, p) + noise of whole numbers."""

    noise: NoiseTotal

    def noise_variance(self) -> float:
        """See `CoinLaw`."""
        return self.noise.variance

    def noise_reach(self) -> float:
        """See `CoinLaw`."""
        return self.noise.reach_of(_LOG_TAIL)

    def upper_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return P[V >= y] as `at_least`, at most 2e-12 above the true probability, and never below it."""
        return np.minimum(self.at_least(counts, outputs) + _SLACK, 1)

    def lower_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return P[V <= y] with the shapes, the precision and the error of `upper_tail`."""
        return np.minimum(1 - self.at_least(counts, outputs + 1) + _SLACK, 1)

    def on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """See `CoinLaw`."""
        angles = np.asarray(np.arange(1, size // 2, 2) * (2 * np.pi / size), dtype=np.float64)
        height, _ = _coin_waves(float(self.sampling_rate), self.steps, angles)
        noise = self.noise.log_characteristic(angles) - np.log(np.sin(angles / 2) * (size / 2))
        above = np.flatnonzero(counts.min(axis=0) @ height + noise > _CUT)
        kept = int(above[-1]) + 1 if above.size else 1
        return self.added(angles[:kept], noise[:kept], counts, distance - 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLaw(CoinLaw):
    """The law of V = sum over j of steps[j] Bin(n_j, p) + Z, Z a combination of noises with weights.

    Its tails are never below the true ones, and at most those of a y that is 1.4 % of the spread of Z nearer.
    """

    parts: Parts

    def noise_variance(self) -> float:
        """See `CoinLaw`."""
        return variance_of(self.parts)

    @property
    def blur(self) -> float:
        """The deviation of the normal G."""
        return _BLUR * math.sqrt(self.noise_variance())

    def noise_reach(self) -> float:
        """See `CoinLaw`: a sum is outside so many deviations and the reach of one noise with less than 1e-15."""
        farthest = max(weight * law.reach_of(_LOG_TAIL) for weight, _, law in self.parts)
        return _DEVIATIONS * math.sqrt(self.noise_variance()) + farthest

    def upper_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return at least P[V >= y], with the shapes of `at_least`."""
        return np.minimum(
            self.at_least(counts, np.asarray(outputs - _PAST * self.blur, dtype=np.float64)) + 3 * _SLACK, 1
        )

    def lower_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return at least P[V <= y], with the shapes of `at_least`."""
        return np.minimum(
            1 - self.at_least(counts, np.asarray(outputs + _PAST * self.blur, dtype=np.float64)) + 3 * _SLACK, 1
        )

    def on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """See `CoinLaw`."""
        return self.added(*_mixed_waves(self.parts, self.blur, size), counts, distance)


@lru_cache(maxsize=64)
def _mixed_waves(parts: Parts, blur: float, size: int) -> tuple[Floats, Floats]:
    """Return the angles at which a combination and G have waves above 1e-18, and their logarithms, on a circle."""
    turn = 2 * math.pi / size
    angles: Floats = np.arange(1, max(2.0, math.sqrt(-2 * _CUT) / blur / turn), 2) * turn
    noise: Floats = -((blur * angles) ** 2) / 2 - np.log(angles * (size / 4))
    for weight, often, law in sorted(parts, key=lambda one: -one[1] * one[0] ** 2 * one[2].variance):
        noise += often * law.log_characteristic(weight * angles)
        angles, noise = (one[noise > _CUT] for one in (angles, noise))
    return angles, noise


def sampled_low(law: SumLaw | JoinedLaw, values: Numbers, tail: float) -> Integers:
    """Return the smallest sums that pass the upper test: of ceil(sum / step) devices, `law` having one step."""
    (step,), (asked, place, guess) = law.steps, _distinct(law, values, tail, -1)
    first = first_true(lambda n, r: law.upper_tail(n[:, None], asked[r]) > tail, guess, np.zeros_like(guess))
    return ((first - 1) * step + 1)[place]


def sampled_high(law: SumLaw | JoinedLaw, values: Numbers, tail: float) -> Integers:
    """Return the largest sums that pass the lower test, of floor(sum / step) devices; 0 where no sum passes."""
    (step,), (asked, place, guess) = law.steps, _distinct(law, values, tail, 1)
    past = first_true(lambda n, r: law.lower_tail(n[:, None], asked[r]) <= tail, guess, np.zeros_like(guess))
    return np.maximum((past - 1) * step + (step - 1), 0)[place]


def _distinct(law: SumLaw | JoinedLaw, values: Numbers, tail: float, side: int) -> tuple[Numbers, Integers, Integers]:
    """Return the distinct values, joined ones rounded outwards, the index of each among them, and guesses of its end.

    `side` is -1 for lower ends and 1 for upper ones; the guesses are those of a normal law.
    """
    if isinstance(law, JoinedLaw):
        grid = law.blur / _BLUR / _GRID
        values = np.asarray(side * np.ceil(side * values / grid) * grid, dtype=np.float64)
    asked, place = cast("tuple[Numbers, Integers]", np.unique(values, return_inverse=True))
    whole, p = law.steps[0], float(law.sampling_rate)
    spread = np.sqrt(law.noise_variance() + whole * (1 - p) * np.maximum(asked, 0))
    ends = (asked - side * float(scipy.special.ndtri(tail)) * spread) / (whole * p)
    return asked, place, np.maximum(np.rint(ends), 0).astype(np.int64)


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
