"""How far an estimate is from what it estimates: half widths of sums of noises and of devices' coins, never too narrow.

It must not know cells: noises come with the weights that an estimate gives them. Noise E is symmetric, with a known
law. `Coins` R are what is known of the rest: a sum of independent parts with mean 0, such as the rounding of every
device, of which only bounds are known.

E is smoothed by a normal G of a hundredth of its spread, so that its characteristic function decreases: P[|E| <= c + g]
>= P[|E + G| <= c] - P[|G| > g], with a hundredth of the error for G.

R is replaced by a normal N of the largest variance v that it may have, with the error of that (Lindeberg's method).
Less variance makes no tail larger, since the density of E + G falls from its middle on, but for what the smoothing
leaves of the steps of a lattice. Changing one part after the other, with standard deviations s_i and third absolute
moments of at most m s_i^2, moves a tail of E + G + R by at most the sum of (m + 1.6 s_i) s_i^2 D_i/6, D_i the largest
second derivative of the density of E + G and the normals so far. That is at most the integral of
phi(t) t^2 exp(-t^2 v_i/2)/pi over t > 0, phi the characteristic function of E + G and v_i the sum of the s_j^2 before;
and the sum of s_i^2 exp(-t^2 v_i/2) is at most 2 (1 - exp(-t^2 v/2))/t^2 and the largest s_i^2 more. Where the error is
not small beside the level's, as with few and weak noises, half of the level's error is for E and half for R by
Bernstein's inequality.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_analysis.answers.noises import NoiseTotal, Parts, variance_of
from fleetcount_analysis.answers.tails import tail_of
from fleetcount_analysis.errors import ShapeError

Floats = NDArray[np.float64]

_BLUR_ERROR: Final = 0.01
"""The fraction of the error for smoothing the law of a sum."""

_FAR: Final = 40
"""A sum of noises is outside so many standard deviations with probability below 1e-20."""

_NOTHING: Final = -46.0
"""The logarithm of what no wave of a law is needed below."""

_FEW: Final = 128
"""Half widths of combinations of at most so many noises are kept."""

_ALONE: Final = 3
_AT_ONCE: Final = 64
"""How many noises of a combination are added to a law one by one, and then how many together."""

_NORMAL_THIRD: Final = 2 * math.sqrt(2 / math.pi)
"""The third absolute moment of a normal of variance 1."""

_SMALL: Final = 0.02
_LARGE: Final = 0.25
"""Fractions of the level's error: above the first the error of Lindeberg's method is worth more smoothing, above the
second it is not small beside it."""

_EVEN: Final = 0.7
"""A deviation of G that leaves hardly a step of a lattice of width 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coins:
    """Bounds of a sum of independent parts with mean 0: its variance, and of every part deviation and size."""

    variance: float
    deviation: float
    largest: float

    @property
    def thirds(self) -> float:
        """At least the third absolute moments of a part and of a normal like it, in the variance of the part."""
        return self.largest + _NORMAL_THIRD * self.deviation

    def bernstein(self, error: float) -> float:
        """Return h with P[|R| > h] <= `error` (Bernstein 1946; Boucheron, Lugosi, Massart 2013, section 2.8)."""
        log = math.log(2 / error)
        tail = self.largest * log / 3
        return tail + math.sqrt(tail**2 + 2 * self.variance * log)


def combined(terms: Sequence[tuple[Sequence[Floats], int]], laws: Sequence[NoiseTotal]) -> Parts:
    """Return the noises of a sum of estimates of independent releases: (`Join.weights`, how many releases have them).

    Raises:
        ShapeError: not one array of weights for each law.
    """
    found: Counter[tuple[float, NoiseTotal]] = Counter()
    for weights, releases in terms:
        if len(weights) != len(laws):
            raise ShapeError(f"weights of {len(weights)} levels; allowed is one a law, {len(laws)}")
        for one, law in zip(weights, laws, strict=True):
            sizes, times = np.unique(np.round(np.abs(one), 9), return_counts=True)
            for size, often in zip(sizes.tolist(), times.tolist(), strict=True):
                found[size, law] += often * releases
    return tuple((size, often, law) for (size, law), often in found.items() if size > 0)


def half_width(parts: Parts, level: Fraction) -> float:
    """Return c with P[|E| <= c] >= level, E the sum of weight * noise over `parts` (weight, multiplicity, law).

    All noises are independent.

    Raises:
        RangeError: a level outside (0, 1 - 2e-10].
    """
    return width_with(parts, level, None)


def width_with(parts: Parts, level: Fraction, coins: Coins | None) -> float:
    """Return h with P[E + R > h] and P[E + R < -h] at most (1 - level)/2 each, R the `coins`, nothing with None.

    Raises:
        RangeError: a level outside (0, 1 - 2e-10].
    """
    # Combinations of thousands of noises are not asked for twice, and would fill the memory.
    return (_cached_width if len(parts) <= _FEW else _width)(parts, level, coins)


def _width(parts: Parts, level: Fraction, coins: Coins | None) -> float:
    error = 2 * tail_of(level)
    if coins is None:
        return _SmoothLaw(parts, 0.0).reach(error)
    found, moved = _with_normal(parts, error, coins, 0.0)
    if moved > _SMALL * error:
        # More smoothing costs width, but evens out the steps of the noise's own lattice.
        again, least = _with_normal(parts, error, coins, _EVEN * max(weight for weight, _, _ in parts))
        found, moved = min(found, again), min(moved, least)
    if moved > _LARGE * error:
        found = min(found, _SmoothLaw(parts, 0.0).reach(error / 2) + coins.bernstein(error / 2))
    return found


_cached_width = lru_cache(maxsize=4096)(_width)


def _with_normal(parts: Parts, error: float, coins: Coins, blur: float) -> tuple[float, float]:
    """Return a half width by way of the normal that is like the coins, and the error of that, of both sides."""
    law = _SmoothLaw(parts, coins.variance, blur)
    moved = 2 * law.error_of(coins)
    return math.inf if moved >= error / 2 else law.reach(error, moved), moved


def _of_one_law(parts: Parts) -> Iterator[tuple[NoiseTotal, Floats, Floats]]:
    """Yield parts of one law together, as (law, weights, multiplicities): those of most variance first and alone."""
    ordered = sorted(parts, key=lambda one: -one[1] * one[0] ** 2 * one[2].variance)
    groups, rest = [[one] for one in ordered[:_ALONE]], dict[NoiseTotal, list[tuple[float, int, NoiseTotal]]]()
    for one in ordered[_ALONE:]:
        rest.setdefault(one[2], []).append(one)
    groups += [same[start : start + _AT_ONCE] for same in rest.values() for start in range(0, len(same), _AT_ONCE)]
    for group in groups:
        weights, often, laws_of = zip(*group, strict=True)
        yield laws_of[0], np.array(weights), np.array(often, dtype=np.float64)


class _SmoothLaw:
    """The law of E + G + N as waves, N a normal of `variance` or nothing, the deviation of G at least `blur`."""

    def __init__(self, parts: Parts, variance: float, blur: float = 0.0) -> None:
        self.spread = math.sqrt(variance_of(parts) + variance)
        self.blur = max(self.spread / 100, 1e-3, blur)
        self.far = _FAR * self.spread + max(weight * law.reach_of(_FAR) for weight, _, law in parts)
        odd = np.arange(1, math.ceil(9 / self.blur * 4 * self.far / (2 * math.pi)), 2, dtype=np.float64)
        angles: Floats = np.asarray(odd * (math.pi / (2 * self.far)), dtype=np.float64)
        height: Floats = np.asarray(-((self.blur * angles) ** 2) / 2, dtype=np.float64)
        # Those of most variance first: they leave few waves for the many others.
        for law, weights, often in _of_one_law(parts):
            height += law.log_characteristic(angles[:, None] * weights) @ often
            odd, angles, height = (one[height > _NOTHING] for one in (odd, angles, height))
        self.angles = angles
        self.noise: Floats = np.asarray(np.exp(height), dtype=np.float64)
        self.waves: Floats = self.noise * np.exp(-variance * self.angles**2 / 2) / odd * (4 / math.pi)

    def error_of(self, coins: Coins) -> float:
        """Return by how much a tail with the coins differs at most from one with their normal."""
        squares = self.angles**2
        each = 2 * -np.expm1(-coins.variance * squares / 2) + coins.deviation**2 * squares
        return coins.thirds / (6 * math.pi) * float(self.noise @ each) * math.pi / self.far

    def reach(self, error: float, moved: float = 0.0) -> float:
        """Return c with P[|E + N| > c] <= `error`, of which `moved` is spent already."""
        low, high = 0.0, self.far
        wanted = 1 - error * (1 - _BLUR_ERROR) + moved
        while high - low > 1e-6 * self.spread:
            middle = (low + high) / 2
            inside = float(self.waves @ np.sin(self.angles * middle))
            low, high = (low, middle) if inside >= wanted else (middle, high)
        return high + self.blur * _past(error) + 1e-9


def _past(error: float) -> float:
    """Return how many deviations of G the smoothing of a law costs."""
    return -float(scipy.special.ndtri(error * _BLUR_ERROR / 2))


def blur_past(level: Fraction) -> float:
    """Return how many deviations of G a half width at this level has for the smoothing; for who computes it elsewhere.

    Raises:
        RangeError: a level outside (0, 1 - 2e-10].
    """
    return _past(2 * tail_of(level))
