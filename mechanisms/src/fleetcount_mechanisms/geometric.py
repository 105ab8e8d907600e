"""Two-sided geometric noise: exact, and drawn in a time that does not depend on the value.

It must not loop until a coin falls (the number of turns would be the noise) and must not round a probability.

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

Every draw takes the same number of 128-bit uniforms and compares each with the first 128 binary digits of its
irrational probability; all digits are drawn whatever the others are. Only a tie of all 128 (probability 2**-128 each)
and "beyond" (below 2**-128) take longer, exactly.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_positive
from fleetcount_mechanisms.exponential import CoinShape, ExponentialCoin
from fleetcount_mechanisms.randomness import RandomSource

__all__ = [
    "LARGEST_EPSILON",
    "SMALLEST_EPSILON",
    "DigitThresholds",
    "TwoSidedGeometric",
    "digit_thresholds",
]

SMALLEST_EPSILON: Final = Fraction(1, 10**6)
LARGEST_EPSILON: Final = Fraction(100)
_WORD_BITS: Final = 64
_DRAW_BITS: Final = 128
_BEYOND: Final = 89
_CHUNK: Final = 4096


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


def digit_thresholds(epsilon: Fraction, bits: int = _WORD_BITS) -> DigitThresholds:
    """Return the thresholds of a geometric draw with ratio exp(-epsilon) for uniform words of `bits` bits.

    For callers that draw many cells at once. With ties settled the law is exact for every number of bits; fewer bits
    only tie more often.

    Raises:
        MechanismError: epsilon is not an exact number in [10**-6, 100], or bits is below 1.
    """
    exact = _require_noise_epsilon(epsilon)
    require_at_least("bits", bits, 1)
    places = 0
    while exact * (1 << places) < _BEYOND:
        places += 1
    coins = [ExponentialCoin(exponent=exact, shape=CoinShape.TWICE_ODDS)]
    coins += [ExponentialCoin(exponent=exact * (1 << place), shape=CoinShape.ODDS) for place in range(places)]
    coins.append(ExponentialCoin(exponent=exact * (1 << places)))
    thresholds = tuple(coin.threshold(bits) for coin in coins)
    return DigitThresholds(epsilon=exact, bits=bits, thresholds=thresholds, coins=tuple(coins))


class _Words:
    """The uniform 128-bit words of one chunk of draws.

    The high halves of all words come first and are always looked at; the low halves follow, looked at on a tie.
    """

    __slots__ = ("_count", "_high", "_low", "_source", "_thresholds")

    def __init__(self, thresholds: DigitThresholds, count: int, columns: int, source: RandomSource) -> None:
        words = memoryview(source.random_bytes(_DRAW_BITS // 8 * count * columns)).cast("Q")
        self._high, self._low = words[: count * columns], words[count * columns :]
        self._thresholds, self._count, self._source = thresholds, count, source

    def column(self, column: int) -> list[int]:
        start = column * self._count
        return self._high[start : start + self._count].tolist()

    def coin(self, index: int, column: int) -> list[bool]:
        """Toss coin `index` for every draw of the chunk with the words of `column`."""
        words = self.column(column)
        high, low = divmod(self._thresholds.thresholds[index], 1 << _WORD_BITS)
        outcomes = [word < high for word in words]
        if high in words:
            self._break_ties(index, column, words, outcomes, high, low)
        return outcomes

    def _break_ties(self, index: int, column: int, words: list[int], outcomes: list[bool], high: int, low: int) -> None:
        for position, word in enumerate(words):
            if word == high:
                second = self._low[column * self._count + position]
                outcomes[position] = second < low or (second == low and self._thresholds.settle(index, self._source))

    def magnitudes(self, first_column: int) -> list[int]:
        """Return one-sided values from the digit coins and "beyond", in columns from `first_column`."""
        digits = self._thresholds.digits
        values = [0] * self._count
        for place in range(digits):
            weight = 1 << place
            outcomes = self.coin(place + 1, first_column + place)
            values = [value + weight * outcome for value, outcome in zip(values, outcomes, strict=True)]
        beyond = self.coin(digits + 1, first_column + digits)
        if any(beyond):
            values = [
                value + outcome and self._thresholds.beyond(self._source)
                for value, outcome in zip(values, beyond, strict=True)
            ]
        return values


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
        words = _Words(self._thresholds, count, self._thresholds.digits + 3, source)
        nonzero = words.coin(0, 0)
        # The top bit of a word is the fair sign; the factor is -1, 0 or 1.
        factors = [
            present * (1 - 2 * (word >> _WORD_BITS - 1)) for present, word in zip(nonzero, words.column(1), strict=True)
        ]
        return [factor * (1 + value) for factor, value in zip(factors, words.magnitudes(2), strict=True)]
