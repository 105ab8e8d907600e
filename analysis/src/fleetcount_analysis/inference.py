"""What a reader can infer from two published counts about a person in neither of them ([INF, section 2.1, Theorem 2]).

x counts the records like the person's, y those of them with the sensitive value; y/x is the probability that the
person has it. Differential privacy does not promise to hide this ratio. The holder of the table runs this before
publishing the counts.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_analysis.errors import RangeError

_LARGEST_NOISE_SPAN: Final = 4_000_000


def ratio_moments(x: float, y: float, scale: float) -> tuple[float, float]:
    """Return the delta-method mean and variance of Y/X for X = x + Lap(b), Y = y + Lap(b).

    Mean (y/x)(1 + 2 (b/x)^2), variance (y/x)^2 (2 b^2/x^2 + 2 b^2/y^2). They describe the ratio near (x, y): the
    expectation of Y/X itself does not exist, because X has a positive density at 0 (the paper does not say so).

    Raises:
        RangeError: x, y or b is not above 0.
    """
    for name, value in (("x", x), ("y", y), ("scale", scale)):
        if not (value > 0 and math.isfinite(value)):
            raise RangeError(name, value, "above 0 and finite")
    ratio, relative = y / x, (scale / x) ** 2
    return ratio * (1 + 2 * relative), ratio**2 * (2 * relative + 2 * (scale / y) ** 2)


def principal_value_mean(x: float, y: float, scale: float) -> float:
    """Return the Cauchy principal value of E[Y/X], the only value that can be called its mean.

    With u = x/b it is y/(2b) (e^u E1(u) + e^-u Ei(u)).

    Raises:
        RangeError: x, y or b is not above 0, or x/b is above 700.
    """
    ratio_moments(x, y, scale)
    u = x / scale
    if u > 700:
        raise RangeError("x/scale", u, "at most 700")
    return float(y / (2 * scale) * (math.exp(u) * scipy.special.exp1(u) + math.exp(-u) * scipy.special.expi(u)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInference:
    """The inference of a reader from the two noised counts: the ratio's median and the ends of its interval.

    `true_ratio` is y/x; the published ratio lies in [`low`, `high`] with probability `level`.
    """

    true_ratio: float
    median: float
    low: float
    high: float
    level: float


def infer_ratio(x: int, y: int, noise_epsilon: float, *, level: float = 0.95) -> RatioInference:
    """Return the law of Y/X when both counts get two-sided geometric noise of `noise_epsilon`, exactly summed.

    Run by the holder of the table before publication. P[Y/X <= r] is summed over the noise of X; X <= 0 counts as an
    infinite ratio (the reader learns nothing).

    Raises:
        RangeError: not 0 <= y <= x, x < 1, epsilon outside [1e-5, 100], or level outside (0, 1).
    """
    if x < 1:
        raise RangeError("x", x, "at least 1")
    if not 0 <= y <= x:
        raise RangeError("y", y, f"0 to x = {x}")
    if not 1e-5 <= noise_epsilon <= 100:
        raise RangeError("noise epsilon", noise_epsilon, "1e-5 to 100")
    if not 0 < level < 1:
        raise RangeError("level", level, "above 0 and below 1")
    tail = (1 - level) / 2
    low, median, high = (_quantile(x, y, noise_epsilon, share) for share in (tail, 0.5, 1 - tail))
    return RatioInference(true_ratio=y / x, median=median, low=low, high=high, level=level)


def _quantile(x: int, y: int, epsilon: float, share: float) -> float:
    low, high = -1.0, 2.0
    while _ratio_cdf(x, y, epsilon, low) > share:
        low *= 2
        if low < -1e9:
            return -math.inf
    while _ratio_cdf(x, y, epsilon, high) < share:
        high *= 2
        if high > 1e9:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        if _ratio_cdf(x, y, epsilon, middle) < share:
            low = middle
        else:
            high = middle
    return high


def _ratio_cdf(x: int, y: int, epsilon: float, ratio: float) -> float:
    """Return P[(y + Z2) <= ratio (x + Z1) and x + Z1 > 0]."""
    span = min(_LARGEST_NOISE_SPAN, math.ceil(40 / epsilon))
    noise = np.arange(max(-span, 1 - x), span + 1)
    mass = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(noise))
    # The comparison of a float product with an integer is off by one step at most where the product is an integer.
    bound = np.floor(ratio * (x + noise) - y + 1e-9)
    return float(np.sum(mass * _geometric_cdf(bound, epsilon)))


def _geometric_cdf(values: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Return P[Z <= z] of two-sided geometric noise with ratio a = exp(-epsilon), float64 of the same shape."""
    a = math.exp(-epsilon)
    below = np.exp(epsilon * np.minimum(values, 0)) / (1 + a)
    above = 1 - np.exp(-epsilon * (np.maximum(values, 0) + 1)) / (1 + a)
    return np.where(values < 0, below, above)
