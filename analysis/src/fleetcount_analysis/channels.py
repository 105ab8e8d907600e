"""The exact law of a released number when the true count of its cell is n.

It must not estimate or draw: it computes laws only, always with all the noises that were added.

The release of docs/privacy.md, "The release that is sound", is Y = Bin(n, p) + Z_1 + ... + Z_k with p the sampling
rate and each Z_j two-sided geometric, P[Z = z] = (1-a)/(1+a) a^|z|, a = exp(-e1). The k noises add up to a law of their
own, not to one geometric of larger scale. Its generating function is the difference of two negative binomials, and
Vandermonde's identity turns the double sum into k positive terms, for z >= 0, with u = a^2 / (1 - a^2):

    P[Z = z]  = ((1-a)/(1+a))^k a^z sum_{r=0}^{k-1} w_r C(z+k-1, r),       w_r = C(2k-2-r, k-1) u^(k-1-r)
    P[Z >= t] = ((1-a)/(1+a))^k sum_r w_r S_r(t),                          t >= 0
    S_r(t)    = (C(t+k-1, r) a^t + a S_{r-1}(t)) / (1 - a)                 (summation by parts; S_{-1} = 0)

Every term is positive, so no digit is lost in the far tail and no window has to be cut for the noise alone. The sum of
Gaussian noises is in `gaussian_sums`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy  # SciPy loads its parts on first use, so `--help` does not wait half a second for them.
from fleetcount_mechanisms.geometric import SMALLEST_EPSILON
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, TwoSidedNoise
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.binomial import binomial_mass
from fleetcount_analysis.errors import RangeError, ShapeError, TooLargeError
from fleetcount_analysis.gaussian_sums import GaussianSum, last_above

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LARGEST_COUNT = 10**12
"""Counts and outputs are exact in int64 and float64 up to here, with room for the search above them."""

_LOG_TAIL = 18 * math.log(10)
"""Probability below 1e-18 is left out of every sum (the rounding of a double is 1e-16)."""

_LARGEST_RATE = 600.0
"""exp(-600) is 1e-261: with a larger noise epsilon a double shows no noise."""

_CLOSED_FORM_TERMS = 256
_TABLE_LIMIT = 1 << 16
"""The largest reach of a law that is tabulated; the logarithm of a wider one is interpolated by a cubic spline with so
many nodes, relative error below 1e-11."""

_TRANSFORM_LIMIT = 1 << 21
_LARGEST_OUTPUT = 2**62
_LARGEST_MATRIX = 1 << 26
_CHUNK_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSum:
    """The law of the sum of `terms` independent two-sided geometric noises of parameter `epsilon` (e1).

    With `epsilon` None or `terms` 0 the sum is 0 with certainty: the `exact` release.

    Raises:
        RangeError: epsilon is below 1e-6, or terms is negative.
    """

    epsilon: Fraction | None
    terms: int

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon >= SMALLEST_EPSILON:
            raise RangeError("noise epsilon", self.epsilon, f"at least {SMALLEST_EPSILON}, or None for no noise")
        if self.terms < 0:
            raise RangeError("number of noises", self.terms, "0 or more")

    @property
    def is_zero(self) -> bool:
        """Whether there is no noise."""
        return self.epsilon is None or self.terms == 0

    @property
    def variance(self) -> float:
        """Return terms * 2a / (1-a)^2."""
        return 0.0 if self.is_zero else self.terms / (2 * math.sinh(self._rate / 2) ** 2)

    @property
    def reach(self) -> int:
        """Return M with P[|Z| >= M] <= 2e-18."""
        return self.reach_of(_LOG_TAIL)

    def reach_of(self, log_tail: float) -> int:
        """Return M with P[|Z| >= M] <= 2 exp(-log_tail), by Chernoff's bound minimised over a grid of tilts."""
        if self.is_zero:
            return 0
        tilts = self._rate * np.linspace(0.01, 0.99, 99)
        excess = np.log(-np.expm1(-self._rate + tilts)) + np.log(-np.expm1(-self._rate - tilts))
        log_moments = self.terms * (2 * math.log(-math.expm1(-self._rate)) - excess)
        return math.ceil(float(np.min((log_moments + log_tail) / tilts)))

    def log_characteristic(self, angles: Floats) -> Floats:
        """Return log E[exp(i theta Z)], real and at most 0: -terms log(1 + sin^2(theta/2) / sinh^2(epsilon/2))."""
        if self.is_zero:
            return np.zeros(angles.shape)
        ratio = np.sin(angles / 2) / math.sinh(self._rate / 2)
        return np.asarray(-self.terms * np.log1p(ratio**2), dtype=np.float64)

    def upper_tail(self, at_least: Integers) -> Floats:
        """Return P[Z >= m] for every m, float64 of the same shape, by the positive sums of the module docstring.

        Raises:
            TooLargeError: more than 256 noises whose law reaches beyond 2^21.
        """
        m = np.asarray(at_least, dtype=np.int64)
        if self.is_zero:
            return np.asarray(m <= 0, dtype=np.float64)
        reach = _reach(self)
        if reach > _TABLE_LIMIT and self.terms <= _CLOSED_FORM_TERMS:
            far = np.minimum(np.where(m > 0, m, 1 - m), reach + 1)
            tail = np.exp(_tail_spline(self)(far.astype(np.float64)))
            return np.asarray(np.where(m > 0, tail, 1 - tail), dtype=np.float64)
        table = _tail_table(self)
        return np.asarray(table[np.clip(m, -reach - 1, reach + 1) + reach + 1], dtype=np.float64)

    def log_mass(self, z: Integers) -> Floats:
        """Return log P[Z = z] for every z, float64 of the same shape (natural logarithm; -inf where impossible)."""
        far = np.abs(np.asarray(z, dtype=np.int64))
        if self.is_zero:
            return np.asarray(np.where(far == 0, 0.0, -np.inf), dtype=np.float64)
        if self.terms > _CLOSED_FORM_TERMS:
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(self.upper_tail(far) - self.upper_tail(far + 1)), dtype=np.float64)
        total = np.full(far.shape, -np.inf)
        for log_weight, log_choose, _ in self._terms(far):
            total = np.logaddexp(total, log_weight + log_choose)
        return total - self._rate * far + self.terms * math.log(math.tanh(self._rate / 2))

    def central_reach(self, tail: float) -> int:
        """Return the largest m with P[Z >= m] > tail; then P[Z <= -m] > tail as well.

        Raises:
            RangeError: tail is outside (0, 1/2).
        """
        return last_above(tail, self.upper_tail, _reach(self))

    @property
    def _rate(self) -> float:
        return min(float(self.epsilon or 0), _LARGEST_RATE)

    def _terms(self, far: Integers) -> Iterator[tuple[float, Floats, Floats]]:
        """Yield (log w_r, log C(far+k-1, r), log of S_r / (C a^t)) for r = 0 .. k-1."""
        k = self.terms
        top = far.astype(np.float64) + (k - 1)
        log_choose = np.zeros(far.shape)
        log_u = -math.log(math.expm1(2 * self._rate)) if self._rate < 300 else -2 * self._rate
        log_keep = math.log(-math.expm1(-self._rate))
        log_ratio = np.full(far.shape, -log_keep)
        for r in range(k):
            if r > 0:
                log_step = np.log((top - (r - 1)) / r)
                log_choose = log_choose + log_step
                log_ratio = np.logaddexp(0, log_ratio - self._rate - log_step) - log_keep
            log_weight = _log_choose(2 * k - 2 - r, k - 1) + (k - 1 - r) * log_u
            yield log_weight, log_choose, log_ratio

    def _log_tail(self, far: Integers) -> Floats:
        """Return log P[Z >= far] for far >= 0 from the positive sum."""
        total = np.full(far.shape, -np.inf)
        for log_weight, log_choose, log_ratio in self._terms(far):
            total = np.logaddexp(total, log_weight + log_choose + log_ratio)
        log_scale = self.terms * math.log(math.tanh(self._rate / 2))
        return np.asarray(np.minimum(total - self._rate * far + log_scale, 0.0), dtype=np.float64)


def whole_outputs(outputs: ArrayLike) -> Integers:
    """Return opened numbers as int64: a fraction is none, and would be read as a smaller number.

    Raises:
        RangeError: one that is not a whole number of 63 bits.
        ShapeError: rows of several lengths.
    """
    try:
        given = np.asarray(outputs)
    except ValueError as error:
        raise ShapeError(f"outputs are {str(outputs)[:40]}; allowed is rows of one length") from error
    kind = given.dtype.kind
    fit = given == np.rint(given) if kind == "f" else np.full(given.shape, kind in "iu")
    if kind in "iuf":
        fit &= (given >= -_LARGEST_OUTPUT) & (given <= _LARGEST_OUTPUT)  # The least integer has no absolute value.
    if not fit.all():
        raise RangeError("output", given[~fit].ravel()[0], "a whole number from -2^62 to 2^62")
    return given.astype(np.int64)


def check_entries(largest_count: int, outputs: int) -> None:
    """Refuse a channel of the counts 0..largest_count by so many outputs that has more than 2^26 entries.

    Raises:
        TooLargeError: with both numbers.
    """
    if (largest_count + 1) * outputs > _LARGEST_MATRIX:
        raise TooLargeError(
            f"a channel of {largest_count + 1} counts by {outputs} outputs is above {_LARGEST_MATRIX} entries: "
            "use a smaller largest count or a larger noise epsilon"
        )


NoiseSize = Fraction | GaussianNoise | None
"""One aggregator's noise on one number: e1 of two-sided geometric noise, the law of Gaussian noise, or None."""

AnySum = NoiseSum | GaussianSum


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChannel:
    """The law of Y = Bin(n, p) + (sum of the noises), the release of one cell or of a sum of cells.

    Raises:
        RangeError: the sampling rate is outside (0, 1]. (1 is direct mode: Y = n + noise.)
    """

    sampling_rate: Fraction
    noise: AnySum

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise RangeError("sampling rate", self.sampling_rate, "above 0 and at most 1")

    def upper_tail(self, counts: Integers, outputs: Integers) -> Floats:
        """Return P_n[Y >= y] for every pair (n, y), broadcast, float64; increasing in n."""
        return self._tail(counts, outputs, upper=True)

    def lower_tail(self, counts: Integers, outputs: Integers) -> Floats:
        """Return P_n[Y <= y] for every pair (n, y), broadcast, float64; decreasing in n."""
        return self._tail(counts, outputs, upper=False)

    def variance(self, counts: Floats) -> Floats:
        """Return Var Y = n p (1-p) + k Var Z for every count n, float64 of the same shape, in units of the output."""
        p = float(self.sampling_rate)
        return np.asarray(np.asarray(counts) * p * (1 - p) + self.noise.variance, dtype=np.float64)

    def matrix(self, largest_count: int) -> tuple[int, Floats]:
        """Return the smallest output and the matrix P[Y = y | n], float64, rows n = 0 .. largest_count.

        The columns are the outputs from -M to largest_count + M, M the reach of the noise; all others together have a
        probability below 1e-17.

        Raises:
            RangeError: largest_count is negative.
            TooLargeError: the matrix would have more than 2^26 entries.
        """
        if largest_count < 0:
            raise RangeError("largest count", largest_count, "0 or more")
        reach = _reach(self.noise)
        columns = largest_count + 2 * reach + 1
        check_entries(largest_count, columns)
        n, outputs = np.arange(largest_count + 1), np.arange(-reach, largest_count + reach + 1)
        shifted = np.exp(self.noise.log_mass(outputs[None, :] - n[:, None]))
        if self.sampling_rate == 1:
            return -reach, shifted
        # Sums of products of positive numbers keep their relative precision in the tails; a transform would lose it.
        sampled = binomial_mass(n[None, :], n[:, None], float(self.sampling_rate))
        return -reach, np.asarray(sampled @ shifted, dtype=np.float64)

    def _tail(self, counts: Integers, outputs: Integers, *, upper: bool) -> Floats:
        n, y = np.broadcast_arrays(np.asarray(counts, dtype=np.int64), np.asarray(outputs, dtype=np.int64))
        if self.sampling_rate == 1:
            return self.noise.upper_tail(y - n if upper else n - y)
        result = np.empty(n.shape)
        if n.size == 0:
            return result
        flat_n, flat_y, flat = n.ravel(), y.ravel(), result.reshape(-1)
        low, high = self._window(flat_n, flat_y)
        width = int(np.max(high - low)) + 1
        rows = max(1, _CHUNK_ELEMENTS // max(width, 1))
        for start in range(0, flat.size, rows):
            part = slice(start, start + rows)
            flat[part] = self._tail_rows(flat_n[part], flat_y[part], low[part], high[part], upper=upper)
        return flat.reshape(n.shape)

    def _window(self, n: Integers, y: Integers) -> tuple[Integers, Integers]:
        """Return the first and last b for which both P[Bin = b] and the noise's tail at y - b are undecided."""
        p = float(self.sampling_rate)
        spread = _LOG_TAIL / 3 + np.sqrt(_LOG_TAIL**2 / 9 + 2 * _LOG_TAIL * n * p * (1 - p))
        reach = _reach(self.noise)
        low = np.maximum(np.maximum(np.floor(n * p - spread), y - reach), 0)
        high = np.minimum(np.minimum(np.ceil(n * p + spread), y + reach), n)
        return low.astype(np.int64), high.astype(np.int64)

    def _tail_rows(self, n: Integers, y: Integers, low: Integers, high: Integers, *, upper: bool) -> Floats:
        p = float(self.sampling_rate)
        width = int(np.max(high - low)) + 1
        beyond = _binomial_at_least(n, np.maximum(high, low - 1) + 1, p) if upper else 1 - _binomial_at_least(n, low, p)
        if width <= 0:
            return beyond
        b = low[:, None] + np.arange(width)
        shift = y[:, None] - b
        weight = self.noise.upper_tail(shift if upper else -shift)
        mass = _binomial_mass(n, low, high, width, p)
        return np.asarray(np.clip(beyond + np.einsum("ij,ij->i", mass, weight), 0, 1), dtype=np.float64)


def noise_size(law: NoiseLaw) -> NoiseSize:
    """Return a two-sided law of noise, or no noise, as the argument of `noise_sum`.

    Raises:
        RangeError: another law.
    """
    if not isinstance(law, TwoSidedNoise | GaussianNoise | NoNoise):
        raise RangeError("law of noise", law.name, "two-sided geometric, discrete Gaussian or none")
    return law if isinstance(law, GaussianNoise) else law.epsilon


def noise_sum(noise: NoiseSize, terms: int) -> AnySum:
    """Return the law of the sum of `terms` independent noises.

    Raises:
        RangeError, MechanismError: as `NoiseSum` and `GaussianSum`.
    """
    if isinstance(noise, GaussianNoise):
        return GaussianSum(parameter=noise.variance, terms=terms)
    return NoiseSum(epsilon=noise, terms=terms)


@lru_cache(maxsize=64)
def _reach(noise: AnySum) -> int:
    return noise.reach


@lru_cache(maxsize=32)
def _tail_table(noise: NoiseSum) -> Floats:
    """Return P[Z >= m] for m = -M-1 .. M+1, float64 of shape (2M + 3,)."""
    reach = _reach(noise)
    if noise.terms > _CLOSED_FORM_TERMS:
        return _tail_table_by_transform(noise, reach)
    right = np.exp(noise._log_tail(np.arange(1, reach + 2)))  # pyright: ignore[reportPrivateUsage] # same module
    return np.concatenate([[1.0], 1 - right[::-1], right])


@lru_cache(maxsize=8)
def _tail_spline(noise: NoiseSum) -> "scipy.interpolate.CubicSpline":
    """Return log P[Z >= m] between m = 1 and the reach: smooth at the scale of 1/e1, which is many steps wide."""
    nodes = np.unique(np.linspace(1, _reach(noise) + 1, _TABLE_LIMIT).astype(np.int64))
    return scipy.interpolate.CubicSpline(nodes, noise._log_tail(nodes))  # pyright: ignore[reportPrivateUsage] # same module


def _tail_table_by_transform(noise: NoiseSum, reach: int) -> Floats:
    """Invert the characteristic function ((1-a)^2 / (1 - 2a cos + a^2))^k; absolute error about 1e-16."""
    if reach > _TRANSFORM_LIMIT:
        raise TooLargeError(
            f"the sum of {noise.terms} noises of epsilon {float(noise.epsilon or 0):g} reaches {reach}; exact tails go "
            f"to {_CLOSED_FORM_TERMS} noises or a reach of {_TRANSFORM_LIMIT}: use the closed-form interval"
        )
    size = 1 << (2 * reach + 4).bit_length()
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    mass = np.fft.irfft(np.exp(noise.log_characteristic(angles)), size)
    right = np.maximum(np.cumsum(mass[reach + 1 : 0 : -1])[::-1], 0)
    return np.concatenate([[1.0], 1 - right[::-1], right])


def _log_choose(n: int, r: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(r + 1) - math.lgamma(n - r + 1)


def _binomial_at_least(n: Integers, b: Integers, p: float) -> Floats:
    """Return P[Bin(n, p) >= b] as the regularised incomplete beta function I_p(b, n-b+1)."""
    inside = (b >= 1) & (b <= n)
    safe_b = np.where(inside, b, 1)
    safe_n = np.where(inside, n, 1)
    value = scipy.special.betainc(safe_b, safe_n - safe_b + 1, p)
    return np.asarray(np.where(inside, value, np.where(b < 1, 1.0, 0.0)), dtype=np.float64)


def _binomial_mass(n: Integers, low: Integers, high: Integers, width: int, p: float) -> Floats:
    """Return P[Bin(n, p) = b] for b = low .. low+width-1, 0 beyond high: one exact value a row, then ratios.

    The caller starts each row where the tail is about 1e-18, so that the first value does not underflow.
    """
    b = (low[:, None] + np.arange(width)).astype(np.float64)
    top = n[:, None].astype(np.float64)
    valid = b <= high[:, None]
    ratio = np.where(valid, (top - b + 1) * p, 1.0) / np.where(valid & (b > 0), b * (1 - p), 1.0)
    ratio[:, 0] = 1.0
    steps = np.cumsum(np.log(ratio), axis=1)
    return np.asarray(np.where(valid, np.exp(steps), 0.0) * binomial_mass(low, n, p)[:, None], dtype=np.float64)
