"""The exact law of the statistic behind the estimate of a randomized response, with all the noises.

It must not estimate or draw: it computes tails only, for a given true count n and a given number N of devices.

A response release has Y = X + Z for a cell, X = Bin(n, P) + Bin(N-n, Q), and the number of devices as T = N + U, U the
noise. The estimate is S/(P-Q) with S = Y - Q T, whose mean does not depend on N; its noise D = Z - Q U is a weighted
sum of two independent laws, w Z' + Q W. Given N the number j = T - N is known, and

    S >= s  <=>  X + D + Q j >= y  <=>  X + floor(D + Q j) >= y         (y and X are whole numbers)

so the tail of S is the tail of a sum of independent whole numbers. It is a Fourier sum over the odd frequencies
theta_m = 2 pi m / M modulo M, with M so large that the law outside half of the residues is below `tolerance`:

    P[V >= y] = 1/2 + (2/M) sum_{m odd, 0 < m < M/2} Im[phi(theta_m) e^{-i theta_m (y - 1/2)}] / sin(theta_m / 2)

phi decreases so fast that thirty to two hundred terms are enough, for any number of devices.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.channels import AnySum
from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SMALLEST_TOLERANCE = 1e-14
_TABLE_LIMIT = 1 << 22
"""The most pairs of noises that are rounded to whole numbers; wider noises make half a device insignificant."""

_TIE = 1e-9
"""A sum this close below a whole number counts as that number, so that rounding does not lose a tie."""

_FOURIER_LIMIT = 1 << 17
_CHUNK_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseChannel:
    """The law of S = Y - Q T, the statistic of one cell of a randomized response.

    `hit` is P = P[v | truth v], `miss` is Q = P[v | another truth]; the noise of S is `weight` times a draw of `cell`
    plus Q times a draw of `others`. A computed tail is never below the true one, and at most 3 `tolerance` (1e-14 to
    1e-2) above it if the noises are rounded exactly.

    Raises:
        RangeError: not 0 <= Q < P <= 1, a weight outside (0, 1], or a tolerance outside its range.
    """

    hit: Fraction
    miss: Fraction
    weight: Fraction
    cell: AnySum
    others: AnySum
    tolerance: float = _SMALLEST_TOLERANCE

    def __post_init__(self) -> None:
        if not 0 <= self.miss < self.hit <= 1:
            raise RangeError("channel (Q, P)", f"({self.miss}, {self.hit})", "0 <= Q < P <= 1")
        if not 0 < self.weight <= 1:
            raise RangeError("weight of a noise", self.weight, "above 0 and at most 1")
        if not _SMALLEST_TOLERANCE <= self.tolerance <= 1e-2:
            raise RangeError("tolerance", self.tolerance, f"{_SMALLEST_TOLERANCE} to 0.01")

    def upper_tail(self, counts: Integers, participants: Integers, outputs: Integers, excess: int) -> Floats:
        """Return P[S >= y - Q (N + j)] for every (n, N, y), 0 <= n <= N, j = T - N the `excess`; increasing in n."""
        return self._at_least(counts, participants, outputs, excess, 1)

    def lower_tail(self, counts: Integers, participants: Integers, outputs: Integers, excess: int) -> Floats:
        """Return P[S <= y - Q (N + j)] for every (n, N, y): the upper tail of the mirrored law; decreasing in n."""
        return self._at_least(counts, participants, outputs, excess, -1)

    def _at_least(self, n: Integers, total: Integers, y: Integers, excess: int, sign: int) -> Floats:
        """Return P[sign (X + D + Q j) >= sign y]."""
        hit, miss = float(self.hit), float(self.miss)
        missed, log_tail = total - n, -math.log(self.tolerance)
        variance = n * (hit * (1 - hit)) + missed * (miss * (1 - miss))
        reach = log_tail / 3 + np.sqrt(log_tail**2 / 9 + 2 * log_tail * variance) + _noise_reach(self)
        distance = sign * (y - n * hit - missed * miss - miss * excess)
        # Clipped by whole steps, because between whole numbers the Fourier sum overshoots.
        distance -= np.rint(distance - np.clip(distance, 1 - reach, reach - 1))
        power = np.ceil(np.log2(4 * reach)).astype(np.int64)
        result = np.empty(n.shape)
        for one in np.unique(power).tolist():
            rows = np.flatnonzero(power == one)
            result[rows] = _Waves.of(self, excess, sign, one).tails(n[rows], missed[rows], distance[rows])
        return np.minimum(result + 2 * self.tolerance, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    """The logarithms of the centred characteristic functions at the odd frequencies of one modulus M."""

    angles: Floats
    hit: tuple[Floats, Floats]
    miss: tuple[Floats, Floats]
    noise: tuple[Floats, Floats]
    cut: float

    @staticmethod
    @lru_cache(maxsize=128)
    def of(channel: ResponseChannel, excess: int, sign: int, power: int) -> "_Waves":
        size, hit, miss = 1 << power, float(channel.hit), float(channel.miss)
        wanted = min(size // 4, 4096 if size <= _FOURIER_LIMIT else 1024)
        angles = np.asarray(np.arange(1, 2 * wanted, 2) * (2 * np.pi / size), dtype=np.float64)
        height, phase = _noise_waves(channel, sign * excess, angles, size)
        return _Waves(
            angles=angles,
            hit=_coin_waves(hit, angles, sign),
            miss=_coin_waves(miss, angles, sign),
            noise=(height - np.log(np.sin(angles / 2) * (size / 2)), phase),
            cut=math.log(channel.tolerance / 10),
        )

    def tails(self, hits: Integers, misses: Integers, distance: Floats) -> Floats:
        """Return the tail, 1/2 plus the Fourier sum, for every (n, N - n, y - mean), float64."""
        corners = [np.argmin(hits), np.argmax(hits), np.argmin(misses), np.argmax(misses)]
        heights = self._sum(0, hits[corners], misses[corners], slice(None)).max(axis=0)
        above = np.flatnonzero(heights > self.cut - np.log(np.arange(heights.size) + 1))
        kept = slice(0, int(above[-1]) + 1 if above.size else 1)
        rows = max(1, _CHUNK_ELEMENTS // kept.stop)
        result = np.empty(hits.shape)
        for start in range(0, hits.size, rows):
            part = slice(start, start + rows)
            phase = self._sum(1, hits[part], misses[part], kept) - (distance[part, None] - 0.5) * self.angles[kept]
            height = np.exp(self._sum(0, hits[part], misses[part], kept))
            result[part] = 0.5 + np.einsum("ij,ij->i", height, np.sin(phase))
        return np.clip(result, 0, 1)

    def _sum(self, part: int, hits: Integers, misses: Integers, kept: slice) -> Floats:
        both = np.outer(hits, self.hit[part][kept]) + np.outer(misses, self.miss[part][kept])
        return np.asarray(both + self.noise[part][kept], dtype=np.float64)


def _coin_waves(p: float, angles: Floats, sign: int) -> tuple[Floats, Floats]:
    """Return log |phi| and arg phi of a coin of probability p less its mean; both vanish with the angle."""
    square = np.maximum(4 * p * (1 - p) * np.sin(angles / 2) ** 2, 0)
    phase = np.arctan2(p * np.sin(angles), 1 - p + p * np.cos(angles)) - p * angles
    return np.log1p(-np.minimum(square, 1 - 1e-16)) / 2, sign * phase


def _noise_waves(channel: ResponseChannel, excess: int, angles: Floats, size: int) -> tuple[Floats, Floats]:
    """Return log |phi| and arg phi of floor(D + Q j) - Q j, or of D itself if its table would be too long."""
    cell, others = _half_width(channel.cell, channel.tolerance), _half_width(channel.others, channel.tolerance)
    if (2 * cell + 1) * (2 * others + 1) > _TABLE_LIMIT:
        # D has steps below 1 and a law that is flat over one step: rounding to whole numbers adds half a device.
        weight, miss = float(channel.weight), float(channel.miss)
        height = channel.cell.log_characteristic(weight * angles) + channel.others.log_characteristic(miss * angles)
        return height, np.zeros(angles.shape)
    first, mass = _rounded_noise(channel, excess)
    if size <= _FOURIER_LIMIT:
        circle = np.bincount((first + np.arange(mass.size)) % size, weights=mass, minlength=size)
        values = np.conj(np.fft.rfft(circle)[1 : 2 * angles.size : 2])
    else:
        values = _transform(angles, first, mass)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(values)), np.angle(values) - angles * (float(channel.miss) * excess)


def _transform(angles: Floats, first: int, mass: Floats) -> NDArray[np.complex128]:
    values = np.empty(angles.shape, dtype=np.complex128)
    rows = max(1, _CHUNK_ELEMENTS // mass.size)
    places = 1j * (first + np.arange(mass.size))
    for start in range(0, angles.size, rows):
        part = slice(start, start + rows)
        values[part] = np.exp(np.outer(angles[part], places)) @ mass
    return values


@lru_cache(maxsize=32)
def _rounded_noise(channel: ResponseChannel, excess: int) -> tuple[int, Floats]:
    """Return the smallest value and the probabilities of floor(D + Q j)."""
    (z, cell), (w, others) = (_window(noise, channel.tolerance) for noise in (channel.cell, channel.others))
    weight, miss = float(channel.weight), float(channel.miss)
    value = np.floor(np.add.outer(weight * z, miss * w) + (miss * excess + _TIE)).astype(np.int64)
    first = int(value[0, 0])
    mass = np.bincount((value - first).ravel(), weights=np.outer(cell, others).ravel())
    return first, np.asarray(mass, dtype=np.float64)


def _window(noise: AnySum, tolerance: float) -> tuple[Integers, Floats]:
    half = _half_width(noise, tolerance)
    values = np.arange(-half, half + 1)
    return values, np.exp(noise.log_mass(values))


def _half_width(noise: AnySum, tolerance: float) -> int:
    """Return a number that the noise exceeds in magnitude with probability at most a tenth of the tolerance."""
    return noise.reach_of(math.log(20 / tolerance))


@lru_cache(maxsize=64)
def _noise_reach(channel: ResponseChannel) -> float:
    """Return a bound of |D| that holds up to the tolerance, with room for the rounding."""
    log_tail = math.log(4 / channel.tolerance)
    far = (
        float(channel.weight) * channel.cell.reach_of(log_tail),
        float(channel.miss) * channel.others.reach_of(log_tail),
    )
    return sum(far) + 2
