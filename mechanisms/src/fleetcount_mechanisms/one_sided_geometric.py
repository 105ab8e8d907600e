"""One-sided geometric noise: exact, and drawn in a time that does not depend on the value."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import require_at_least
from fleetcount_mechanisms.geometric import DigitThresholds, digit_thresholds
from fleetcount_mechanisms.randomness import RandomSource

_WORD_BITS: Final = 128
# Each word sits in a lane of 192 bits, so that one subtraction compares all words of a draw.
_LANE_BYTES: Final = 24
_ASCII: Final = bytes(48 + (byte & 1) for byte in range(256))


@dataclass(frozen=True, slots=True)
class OneSidedGeometric:
    """Noise of 0, 1, 2, ...: P[G = g] = (1 - q) q^g, q = e^-eps; drawn exactly, in a time that does not depend on G.

    The binary digits of G are independent coins (derived in geometric.py); a draw compares one 128-bit word with each
    digit's threshold and one more with that of "G has further digits", all in one subtraction without branches: in each
    lane, bit 128 of 2^128 + threshold - 1 - word is set exactly when word < threshold, and the bits below it are all
    ones exactly when the two are equal. Only such a tie or further digits, each of probability about 2^-128, take
    longer.

    Raises:
        MechanismError: eps is not an exact number in [10^-6, 100].
    """

    epsilon: Fraction
    _thresholds: DigitThresholds = field(init=False, repr=False, compare=False)
    _ones: int = field(init=False, repr=False, compare=False)
    _minuend: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check eps and lay the thresholds out in lanes."""
        coins = digit_thresholds(self.epsilon, _WORD_BITS)
        lanes = [1 << 8 * _LANE_BYTES * lane for lane in range(coins.digits + 2)]
        # Lane 0 is "further digits", lane i binary digit i - 1; a 1 in the last lane keeps every number at full length.
        thresholds = (coins.thresholds[-1], *coins.thresholds[1:-1])
        guarded = [(1 << _WORD_BITS) + threshold - 1 for threshold in thresholds] + [1 << _WORD_BITS]
        object.__setattr__(self, "_thresholds", coins)
        object.__setattr__(self, "epsilon", coins.epsilon)
        object.__setattr__(self, "_ones", sum(lanes))
        object.__setattr__(self, "_minuend", sum(lane * value for lane, value in zip(lanes, guarded, strict=True)))

    @property
    def mean(self) -> float:
        """Return E[G] = q / (1 - q)."""
        return 1 / math.expm1(float(self.epsilon))

    @property
    def variance(self) -> float:
        """Return Var[G] = q / (1 - q)^2."""
        return 1 / (2 * math.sinh(float(self.epsilon) / 2)) ** 2

    def pmf(self, noise: int) -> float:
        """Return P[G = noise]."""
        epsilon = float(self.epsilon)
        return -math.expm1(-epsilon) * math.exp(-epsilon * noise) if noise >= 0 else 0.0

    def sample(self, source: RandomSource) -> int:
        """Return one exact draw."""
        ones, digits = self._ones, self._thresholds.digits
        words = int.from_bytes(source.random_bytes(_LANE_BYTES * (digits + 1)), "little")
        apart = self._minuend - (words & ones * ((1 << _WORD_BITS) - 1))
        below = apart >> _WORD_BITS & ones
        # On a tie the bits below bit 128 are all ones: adding one then carries into it, and only then.
        if (apart ^ apart + ones) >> _WORD_BITS & ones:
            below = self._without_ties(apart, source)
        coins = below.to_bytes(_LANE_BYTES * (digits + 2), "little")[::_LANE_BYTES]
        # Lane 0 is "further digits"; from the top down, the guard's 1 and the digits are read as one binary number.
        noise = int(coins[:0:-1].translate(_ASCII), 2) - (1 << digits)
        return noise + self._thresholds.beyond(source) if coins[0] else noise

    def sample_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent exact draws.

        Raises:
            MechanismError: the count is not an int of at least 0.
        """
        return [self.sample(source) for _ in range(require_at_least("count", count, 0))]

    def _without_ties(self, apart: int, source: RandomSource) -> int:
        digits = self._thresholds.digits
        below = 1 << 8 * _LANE_BYTES * (digits + 1)
        for lane in range(digits + 1):
            value = apart >> 8 * _LANE_BYTES * lane & (2 << _WORD_BITS) - 1
            tied = value == (1 << _WORD_BITS) - 1
            coin = self._thresholds.settle(lane or digits + 1, source) if tied else value >> _WORD_BITS
            below |= coin << 8 * _LANE_BYTES * lane
        return below
