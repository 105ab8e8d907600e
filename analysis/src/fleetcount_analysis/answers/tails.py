"""Tails of sums of sampled devices and noise, for many counts at once, and the search that turns tails into intervals.

It must not know a table or a question. The law is V = sum over j of steps[j] Bin(n_j, p) + Z, Z symmetric noise: a
device that is counted in steps[j] windows of one unit of the coin has one toss for all of them. Tails are Fourier sums
over the odd frequencies theta_m = 2 pi m / M modulo M, as in `response_tails`:

    P[V >= y] = 1/2 + (2/M) sum_{m odd, 0 < m < M/2} Im[phi(theta_m) e^{-i theta_m (y - 1/2)}] / sin(theta_m / 2)

Where Z is a combination of noises with weights (`JoinedLaw`), V is on no lattice that is wide enough to be of use, and
its waves hardly come to an end. Those below a limit T give a bound (Prawitz 1972; Vaaler 1985, theorem 8): with
J(u) = pi u (1 - u) cot(pi u) + u, for every y

    |P[V >= y] - 1/2 - (4/M) sum_{m odd} J(theta_m/T) Im[phi(theta_m) e^{-i theta_m y}]/theta_m|
        <= (2 pi/(M T)) (1 + 2 sum_{m even} (1 - theta_m/T) Re[phi(theta_m) e^{-i theta_m y}]),  0 < theta_m < T

The right side is half the mean of (sin(d)/d)^2 with d = T (V - y)/2, so hardly more than the chance of being near y.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
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
Waves = tuple[Floats, Floats, Floats, Floats, Floats]
"""Angles, logarithms of the heights of a noise's waves, by how much each is turned, and `_coin_waves`."""

_LOG_TAIL: Final = 16 * math.log(10)
_CUT: Final = math.log(1e-18)
_SLACK: Final = 1e-12
"""Added to tails, so that the rounding of a sum of doubles never shortens an interval."""

_DIGITS: Final = 1e9
"""Joined sums are rounded outwards to so many parts of a device."""
_LAST: Final = 400
_LAST_OF_TAIL: Final = 3
"""T of a combination of noises, in one over its deviation: the first and the second over the root of a tail."""
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
        distance, reach = outputs - self.mean(counts), self.reach(counts)
        # Clipped by whole steps, because between whole numbers the Fourier sum overshoots.
        distance -= np.rint(distance - np.clip(distance, 1 - reach, reach - 1))
        result = np.empty(distance.shape)
        for size, rows in _circles(reach):
            result[rows] = self.on_circle(size, counts[rows], distance[rows])
        return np.clip(result, 0, 1)

    def upper_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return P[V >= y] with the shapes of `at_least`, never below the true probability."""
        return np.minimum(self.at_least(counts, outputs) + _SLACK, 1)

    def mean(self, counts: Integers) -> Floats:
        """Return the mean of V, float64 (rows,)."""
        return np.asarray(float(self.sampling_rate) * (counts @ np.array(self.steps)), dtype=np.float64)

    def variance(self, counts: Integers) -> Floats:
        """Return the variance of the coins, float64 (rows,)."""
        p, steps = float(self.sampling_rate), np.array(self.steps, dtype=np.float64)
        return np.asarray(p * (1 - p) * (counts @ steps**2), dtype=np.float64)

    def reach(self, counts: Integers) -> Floats:
        """Return how far from its mean V is with no probability that counts, float64 (rows,)."""
        far = _LOG_TAIL * max(abs(step) for step in self.steps) / 3
        coins = far + np.sqrt(far**2 + 2 * _LOG_TAIL * self.variance(counts))
        return np.asarray(coins + self.noise_reach() + 2, dtype=np.float64)

    def added(self, waves: Waves, counts: Integers, distance: Floats) -> Floats:
        """Return the sum of the waves of coins and noise, float64 (rows,)."""
        angles, noise, turns, height, phase = waves
        result, rows = np.empty(distance.shape), max(1, _CHUNK_ELEMENTS // max(1, angles.size))
        for start in range(0, distance.size, rows):
            part = slice(start, start + rows)
            # The coins of many devices leave few of a noise's waves.
            kept = np.flatnonzero(counts[part].min(axis=0) @ height + noise > _CUT)
            high = np.exp(counts[part] @ height[:, kept] + noise[kept])
            turned = counts[part] @ phase[:, kept] - distance[part, None] * angles[kept] + turns[kept]
            result[part] = 0.5 + np.einsum("ij,ij->i", high, np.sin(turned))
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

    def lower_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return P[V <= y] with the shapes of `at_least`; like the upper tail at most 2e-12 above the true one."""
        return np.minimum(1 - self.at_least(counts, outputs + 1) + _SLACK, 1)

    def on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """See `CoinLaw`."""
        angles = np.asarray(np.arange(1, size // 2, 2) * (2 * np.pi / size), dtype=np.float64)
        height, phase = _coin_waves(float(self.sampling_rate), self.steps, angles)
        noise = self.noise.log_characteristic(angles) - np.log(np.sin(angles / 2) * (size / 2))
        above = np.flatnonzero(counts.min(axis=0) @ height + noise > _CUT)
        kept = int(above[-1]) + 1 if above.size else 1
        waves = (angles[:kept], noise[:kept], np.zeros(kept), height[:, :kept], phase[:, :kept])
        return self.added(waves, counts, distance - 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLaw(CoinLaw):
    """The law of V = sum over j of steps[j] Bin(n_j, p) + Z, Z a combination of noises with weights.

    Its tails are never below the true ones, and hardly above them where they are `tail` or more.
    """

    parts: Parts
    tail: float

    def noise_variance(self) -> float:
        """See `CoinLaw`."""
        return variance_of(self.parts)

    def noise_reach(self) -> float:
        """See `CoinLaw`: a sum is outside so many deviations and the reach of one noise with less than 1e-15."""
        farthest = max(weight * law.reach_of(_LOG_TAIL) for weight, _, law in self.parts)
        return _DEVIATIONS * math.sqrt(self.noise_variance()) + farthest

    @property
    def mirrored(self) -> "JoinedLaw":
        """The law of -V."""
        return replace(self, steps=tuple(-step for step in self.steps))

    def lower_tail(self, counts: Integers, outputs: Numbers) -> Floats:
        """Return at least P[V <= y], with the shapes of `at_least`."""
        return self.mirrored.upper_tail(counts, -outputs)

    def on_circle(self, size: int, counts: Integers, distance: Floats) -> Floats:
        """See `CoinLaw`."""
        return self.added(_mixed_waves(self, size), counts, distance)


@lru_cache(maxsize=64)
def _mixed_waves(law: JoinedLaw, size: int) -> Waves:
    """Return the waves below T of a combination that are above 1e-18, on a circle."""
    turn = 2 * math.pi / size
    last = (_LAST + _LAST_OF_TAIL / math.sqrt(law.tail)) / math.sqrt(law.noise_variance())
    angles: Floats = np.arange(0, max(1.5, last / turn)) * turn
    turns: Floats = np.where(np.arange(angles.size) % 2, 0, np.pi / 2)
    u: Floats = angles[1:] / last
    odd = (np.pi * u * (1 - u) / np.tan(np.pi * u) + u) / (angles[1:] * (size / 4))
    even = np.insert((1 - u) * (4 * np.pi / (size * last)), 0, 2 * np.pi / (size * last))
    noise: Floats = np.log(np.maximum(np.where(turns, even, np.insert(odd, 0, 0)), 1e-300))
    for weight, often, one in sorted(law.parts, key=lambda part: -part[1] * part[0] ** 2 * part[2].variance):
        noise += often * one.log_characteristic(weight * angles)
        angles, noise, turns = (each[noise > _CUT] for each in (angles, noise, turns))
    return angles, noise, turns, *_coin_waves(float(law.sampling_rate), law.steps, angles)


class _Passing:
    """Which y pass a joined law of one step, P[V >= y] > tail, of every number of devices that was asked about.

    What was found is kept: it decides most of what other counts and windows ask. Of each number of devices it is the
    largest y known to pass, the smallest known not to, and near which y both are.
    """

    def __init__(self, law: JoinedLaw) -> None:
        """Begin without any."""
        self._law, self._limit = law, float(scipy.special.ndtri(law.tail))
        self._kept: dict[int, list[float]] = {}

    def test(self, devices: Integers, outputs: Floats) -> Booleans:
        """Return whether each y passes the law of each number of devices, both of shape (rows,)."""
        sides = [self._kept.setdefault(n, [-math.inf, math.inf, 0.0]) for n in devices.tolist()]
        asked = list(zip(devices.tolist(), outputs.tolist(), sides, strict=True))
        left = sorted((n, y) for n, y, one in asked if one[0] < y < one[1])
        while left:
            # What is found of one y decides those on one side of it, of the same number of devices.
            self._find([same[len(same) // 2] for _, group in groupby(left, itemgetter(0)) for same in [list(group)]])
            left = [(n, y) for n, y in left if self._kept[n][0] < y < self._kept[n][1]]
        return np.array([y <= one[0] for _, y, one in asked], dtype=bool)

    def _find(self, asked: Sequence[tuple[int, float]]) -> None:
        """Compute whether a y passes, of different numbers of devices, and keep it."""
        n, y = np.array([[one] for one, _ in asked]), np.array([one for _, one in asked])
        tails = self._law.upper_tail(n, y)
        spread = np.sqrt(self._law.noise_variance() + self._law.variance(n))
        near = y + (scipy.special.ndtri(np.clip(tails, 1e-15, 0.5)) - self._limit) * spread
        for (number, output), tail, last in zip(asked, tails.tolist(), near.tolist(), strict=True):
            one = self._kept[number]
            one[0 if tail > self._law.tail else 1], one[2] = output, last

    def last(self, devices: Integers) -> Floats:
        """Return near which y the last passes, of numbers of devices that were tested, float64 (rows,)."""
        return np.array([self._kept[n][2] for n in devices.tolist()], dtype=np.float64)


_passing = lru_cache(maxsize=64)(_Passing)


def joined_ends(law: JoinedLaw, values: Floats) -> tuple[Integers, Integers]:
    """Return the smallest sums that pass the upper test and the largest that pass the lower test, of a law of one step.

    They are of ceil(low / step) and of floor(high / step) devices; the largest is 0 where no sum passes.
    """
    (step,) = law.steps
    first, past = _changes(law, values, 1), _changes(law, values, -1)
    return (first - 1) * step + 1, np.maximum((past - 1) * step + (step - 1), 0)


def _changes(law: JoinedLaw, values: Floats, side: int) -> Integers:
    """Return the fewest devices of which values pass the upper test (`side` 1), or no longer the lower one (-1)."""
    kept = _passing(law if side == 1 else law.mirrored)
    # Sums of different order of the same numbers differ in their last digit.
    asked, place = np.unique(np.floor(side * values * _DIGITS) / _DIGITS, return_inverse=True)
    guess = _guess(law, side * asked, law.tail, -side)
    kept.test(guess, asked)
    wrong = side * (asked - kept.last(guess)) / (law.steps[0] * float(law.sampling_rate))
    better = np.maximum(guess + np.rint(wrong).astype(np.int64), 0)
    return first_true(lambda n, r: kept.test(n, asked[r]) == (side == 1), better, np.zeros_like(better))[place]


def sampled_low(law: SumLaw, values: Integers, tail: float) -> Integers:
    """Return the smallest sums that pass the upper test: of ceil(sum / step) devices, `law` having one step."""
    (step,), (asked, place) = law.steps, _distinct(values)
    guess = _guess(law, asked, tail, -1)
    first = first_true(lambda n, r: law.upper_tail(n[:, None], asked[r]) > tail, guess, np.zeros_like(guess))
    return ((first - 1) * step + 1)[place]


def sampled_high(law: SumLaw, values: Integers, tail: float) -> Integers:
    """Return the largest sums that pass the lower test, of floor(sum / step) devices; 0 where no sum passes."""
    (step,), (asked, place) = law.steps, _distinct(values)
    guess = _guess(law, asked, tail, 1)
    past = first_true(lambda n, r: law.lower_tail(n[:, None], asked[r]) <= tail, guess, np.zeros_like(guess))
    return np.maximum((past - 1) * step + (step - 1), 0)[place]


def _distinct(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values and the index of each among them."""
    return cast("tuple[Integers, Integers]", np.unique(values, return_inverse=True))


def _guess(law: CoinLaw, values: Numbers, tail: float, side: int) -> Integers:
    """Return of how many devices the lower ends (`side` -1) or the upper ones (1) are, were the law a normal one."""
    whole, p = law.steps[0], float(law.sampling_rate)
    spread = np.sqrt(law.noise_variance() + whole * (1 - p) * np.maximum(values, 0))
    ends = (values - side * float(scipy.special.ndtri(tail)) * spread) / (whole * p)
    return np.maximum(np.rint(ends), 0).astype(np.int64)


def _circles(reach: Floats) -> Iterator[tuple[int, Integers]]:
    """Yield the size of every circle that a law of such a reach needs, and the rows that need it.

    Raises:
        TooLargeError: a law wider than 2^20.
    """
    power = np.ceil(np.log2(4 * reach)).astype(np.int64)
    if power.size and int(power.max()) > _LARGEST_CIRCLE:
        raise TooLargeError(f"a sum that spreads over {int(reach.max())} numbers; exact tails go to 2^20")
    for one in np.unique(power).tolist():
        yield 1 << one, np.flatnonzero(power == one)


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
