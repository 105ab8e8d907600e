"""Two-sided geometric noise: exact, and drawn in a time that does not depend on the value.

It must not loop until a coin falls, because the number of iterations would reveal the noise, and must not round a
probability.

Let y = exp(-epsilon) and G a one-sided geometric variable, P[G = g] = (1 - y) y**g for g >= 0. With the binary digits
g = sum of g_i 2**i,

    P[G = g] = (1 - y) * product over i of (y**(2**i))**g_i,

a product of functions of single digits; so the digits are independent, and P[digit i is 1] = y_i / (1 + y_i) with y_i
= exp(-epsilon 2**i) (the constant agrees because (1 + y)(1 + y**2)(1 + y**4)... = 1 / (1 - y)). All digits from place
I on are zero unless G >= 2**I, which has probability exp(-epsilon 2**I); given that, G - 2**I * floor(G / 2**I) keeps
its law and floor(G / 2**I) - 1 is geometric with ratio exp(-epsilon 2**I). I is the first place with epsilon 2**I >=
89 > 128 ln 2, so this one event, "beyond", has a probability below 2**-128.

Two-sided: P[Z = z] = (1 - y)/(1 + y) y**|z|. Hence P[Z != 0] = 2y/(1 + y), the sign is fair, and |Z| - 1 given Z != 0
is the G above, independent of the sign: P[Z = z] = 2y/(1+y) * 1/2 * (1 - y) y**(|z|-1) for z != 0, as it should be.

Every draw takes the same number of 127-bit uniforms and compares each with the first 127 binary digits of its
irrational probability; all digits are drawn in every draw, and all draws of a chunk are compared by one
subtraction of long integers. Only a tie of all 127 digits (probability 2**-127 each) and "beyond" (below 2**-128) take
longer, exactly.
"""

import functools
import math
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_positive
from fleetcount_mechanisms.randomness import CoinShape, ExponentialCoin, RandomSource

SMALLEST_EPSILON: Final = Fraction(1, 10**6)
LARGEST_EPSILON: Final = Fraction(100)
_LANE_BYTES: Final = 16
_DRAW_BITS: Final = 127
_MASK_BITS: Final = 62
_BEYOND: Final = 89
_CHUNK: Final = 2048


def _require_noise_epsilon(epsilon: object) -> Fraction:
    exact = require_positive("noise epsilon", epsilon)
    if not SMALLEST_EPSILON <= exact <= LARGEST_EPSILON:
        raise MechanismError(
            f"noise epsilon is {exact}, allowed: {SMALLEST_EPSILON} <= noise epsilon <= {LARGEST_EPSILON}"
        )
    return exact


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitThresholds:
    """The coins of a geometric draw as integers to compare uniform `bits`-bit words with.

    thresholds[0] is for "the two-sided value is not 0" (ignore it for a one-sided draw), thresholds[i] for binary
    digit i-1, of weight 2**(i-1), and the last for "beyond". A word u below thresholds[i] makes coin i True, a word
    above makes it False, and a word equal to it must be handed to `settle`. The sign of a two-sided value is one fair
    bit more.
    """

    epsilon: Fraction
    bits: int
    thresholds: tuple[int, ...]
    coins: tuple[ExponentialCoin, ...]

    @property
    def digits(self) -> int:
        """The number I of binary digits."""
        return len(self.thresholds) - 2

    def settle(self, index: int, source: RandomSource) -> bool:
        """Return coin `index` given that its word equalled thresholds[index], by drawing further digits."""
        return self.coins[index].settle(source, self.bits)

    def beyond(self, source: RandomSource) -> int:
        """Return what "beyond" adds to the value: 2**I * (1 + geometric with ratio exp(-epsilon 2**I)).

        Its loop does depend on the value; it runs in fewer than one of 2**128 draws.
        """
        multiple = 1
        while self.coins[-1].toss(source):
            multiple += 1
        return multiple << self.digits


def digit_thresholds(epsilon: Fraction, bits: int = 64) -> DigitThresholds:
    """Return the thresholds of a geometric draw with ratio exp(-epsilon) for uniform words of `bits` bits.

    For callers that draw many cells at once. With ties settled the law is exact for every number of bits; fewer bits
    only tie more often.

    Raises:
        MechanismError: epsilon is not an exact number in [10**-6, 100], or bits is below 1.
    """
    return _prepared(_require_noise_epsilon(epsilon), require_at_least("bits", bits, 1))


@functools.lru_cache(maxsize=64)
def _prepared(exact: Fraction, bits: int) -> DigitThresholds:
    # Cached: computing the thresholds takes a hundred times as long as a draw, and they depend on the law alone.
    places = 0
    while exact * (1 << places) < _BEYOND:
        places += 1
    coins = [ExponentialCoin(exponent=exact, shape=CoinShape.TWICE_ODDS)]
    coins += [ExponentialCoin(exponent=exact * (1 << place), shape=CoinShape.ODDS) for place in range(places)]
    coins.append(ExponentialCoin(exponent=exact * (1 << places)))
    thresholds = tuple(coin.threshold(bits) for coin in coins)
    return DigitThresholds(epsilon=exact, bits=bits, thresholds=thresholds, coins=tuple(coins))


class _Lanes:
    """A chunk of draws side by side in one integer, a lane of 128 bits each, so that no step depends on a single draw.

    A word w of 127 bits is compared with a threshold T by the subtraction 2**127 + T - 1 - w: it borrows from no other
    lane, and leaves the lane's top bit set exactly when w < T. One more lane above the draws is a guard whose coins are
    always True: it keeps every integer at full length for any draws, so every step takes the same time.
    """

    __slots__ = ("count", "guard", "low", "ones")

    def __init__(self, count: int) -> None:
        self.count = count
        self.ones = int.from_bytes((b"\x01" + bytes(_LANE_BYTES - 1)) * count, "little")
        self.low = ((1 << _DRAW_BITS) - 1) * self.ones
        self.guard = 1 << 8 * _LANE_BYTES * count

    def below(self, words: bytes, threshold: int) -> tuple[int, int]:
        """Return integers with a bit in each lane: the word is below the threshold (guard set); it equals it."""
        numbers = int.from_bytes(words, "little") & self.low
        apart = _levels(self.count, threshold) - numbers
        # On a tie the lane's low 127 bits are all ones: adding one then carries into its top bit, and only then.
        return apart >> _DRAW_BITS & (self.ones | self.guard), (apart ^ apart + self.ones) >> _DRAW_BITS & self.ones

    def values(self, lanes: int) -> list[int]:
        """Return the low 64 bits of each draw's lane, as signed numbers."""
        encoded = lanes.to_bytes(_LANE_BYTES * (self.count + 1), "little")
        # Two 64-bit words a lane, of which the first is the value; the last lane is the guard.
        return list(struct.unpack(f"<{2 * self.count + 2}q", encoded)[:-2:2])


@functools.lru_cache(maxsize=16)
def _lanes(count: int) -> _Lanes:
    return _Lanes(count)


@functools.lru_cache(maxsize=64)
def _levels(count: int, threshold: int) -> int:
    # Cached, at most 64 KiB each: the multiplication would take a quarter of a draw's time.
    lanes = _lanes(count)
    return (lanes.guard << _DRAW_BITS) + ((1 << _DRAW_BITS) + threshold - 1) * lanes.ones


@dataclass(frozen=True, slots=True)
class TwoSidedGeometric:
    """Noise on all integers: P[z] = (1 - y)/(1 + y) y**|z|, y = exp(-epsilon) (alpha in [GEO, Definition 2.1]).

    Added to one integer count it gives epsilon-differential privacy for a change of the count by 1.

    Raises:
        MechanismError: epsilon is not an exact number in [10**-6, 100].
    """

    epsilon: Fraction
    _thresholds: DigitThresholds = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check epsilon and prepare the coins."""
        object.__setattr__(self, "_thresholds", digit_thresholds(self.epsilon, _DRAW_BITS))
        object.__setattr__(self, "epsilon", self._thresholds.epsilon)

    @property
    def variance(self) -> float:
        """The variance 2y / (1 - y)**2; the mean is 0."""
        return 2 / (2 * math.sinh(self.epsilon / 2)) ** 2

    def pmf(self, value: int) -> float:
        """Return P[Z = value]."""
        return math.tanh(self.epsilon / 2) * math.exp(-self.epsilon * abs(value))

    def sample(self, source: RandomSource) -> int:
        """Return one exact draw in constant time."""
        return self.sample_many(source, 1)[0]

    def sample_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent exact draws.

        Raises:
            MechanismError: the count is not an int of at least 0.
        """
        require_at_least("count", count, 0)
        values: list[int] = []
        while len(values) < count:
            values += self._chunk(source, min(_CHUNK, count - len(values)))
        return values

    def _chunk(self, source: RandomSource, count: int) -> list[int]:
        lanes, digits, size = _lanes(count), self._thresholds.digits, _LANE_BYTES * count
        block = source.random_bytes(size * (digits + 3))
        columns = [block[start : start + size] for start in range(0, len(block), size)]
        positive, _ = lanes.below(columns[0], 1 << _DRAW_BITS - 1)
        nonzero, *places, beyond = (
            self._coins(lanes, index, column, source) for index, column in enumerate(columns[1:])
        )
        magnitudes = lanes.ones + sum(place << weight for weight, place in enumerate(places))
        values = _signed(lanes, magnitudes, nonzero, positive)
        return values if beyond == lanes.guard else self._with_beyond(values, beyond, source)

    def _coins(self, lanes: _Lanes, index: int, words: bytes, source: RandomSource) -> int:
        outcomes, ties = lanes.below(words, self._thresholds.thresholds[index])
        while ties:
            # Once in 2**127 words: settle the lowest lane with a tie.
            lane = ties & -ties
            outcomes |= lane * self._thresholds.settle(index, source)
            ties ^= lane
        return outcomes

    def _with_beyond(self, values: list[int], beyond: int, source: RandomSource) -> list[int]:
        for position, value in enumerate(values):
            if beyond >> 8 * _LANE_BYTES * position & 1 and value:
                extra = self._thresholds.beyond(source)
                values[position] += extra if value > 0 else -extra
        return values


def _signed(lanes: _Lanes, magnitudes: int, nonzero: int, positive: int) -> list[int]:
    """Return 0, the magnitude or its negative, lane by lane, chosen by masks."""
    kept = magnitudes & (nonzero << _MASK_BITS) - nonzero
    raised = (kept & (positive << _MASK_BITS) - positive) << 1
    # The lane's low 64 bits are the value in two's complement; the 65th takes the borrow.
    return lanes.values((lanes.ones << 64) + raised - kept)
