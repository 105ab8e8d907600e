"""Draw two-sided geometric noise for many cells at once, for tests that need more of it than an aggregator draws.

It must not use a generator of its own: every bit comes from the `RandomSource` it is given. The construction and its
proof are in `fleetcount_mechanisms.geometric`; here the same coins are tossed with NumPy, one column of 64-bit words a
coin, and the one word in 2^64 that ties with its threshold is settled exactly.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_analysis.errors import RangeError
from fleetcount_mechanisms.geometric import DigitThresholds, digit_thresholds
from fleetcount_mechanisms.randomness import RandomSource
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_WORD_BITS: Final = 64
_CHUNK: Final = 1 << 14
_MOST_VALUES: Final = 1 << 30


def geometric_noise(epsilon: Fraction, count: int, source: RandomSource) -> Integers:
    """Return `count` independent draws, int64, of the law P[z] = (1-a)/(1+a) a^|z|, a = exp(-epsilon).

    The law is exact whatever the number of word bits. Source: [GEO] Definition 2.1, docs/privacy.md,
    "The release that is sound".

    Raises:
        RangeError: the count is outside 0 .. 2^30.
        MechanismError: epsilon is not an exact number in [10^-6, 100].
    """
    if not 0 <= count <= _MOST_VALUES:
        raise RangeError("number of noise values", count, f"0 to {_MOST_VALUES}")
    coins = _thresholds(epsilon)
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _CHUNK):
        part = drawn[start : start + _CHUNK]
        part[:] = _draw(coins, part.size, source)
    return drawn


@lru_cache(maxsize=32)
def _thresholds(epsilon: Fraction) -> DigitThresholds:
    return digit_thresholds(epsilon, _WORD_BITS)


def _draw(coins: DigitThresholds, count: int, source: RandomSource) -> Integers:
    """Return one chunk: the coin "not 0", the digits of |z| - 1, the coin "beyond", and a fair sign."""
    columns = len(coins.thresholds) + 1
    block = source.random_bytes(8 * columns * count)
    words = np.frombuffer(block, dtype="<u8").reshape(columns, count)
    magnitude = np.ones(count, dtype=np.int64)
    for place in range(coins.digits):
        magnitude += _coin(coins, place + 1, words[place + 1], source).astype(np.int64) << place
    beyond = _coin(coins, coins.digits + 1, words[coins.digits + 1], source)
    for row in np.flatnonzero(beyond):
        # Fewer than one draw in 2^128 comes here.
        magnitude[row] += coins.beyond(source)
    magnitude *= _coin(coins, 0, words[0], source)
    sign = 1 - 2 * (words[-1] >> np.uint64(_WORD_BITS - 1)).astype(np.int64)
    return np.asarray(magnitude * sign, dtype=np.int64)


def _coin(coins: DigitThresholds, index: int, words: NDArray[np.uint64], source: RandomSource) -> Booleans:
    """Return coin `index` of every draw: below the threshold, or settled where equal to it."""
    threshold = np.uint64(coins.thresholds[index])
    outcome = words < threshold
    for row in np.flatnonzero(words == threshold):
        outcome[row] = coins.settle(index, source)
    return outcome
