"""Sources of random bytes and the exact draws made from them.

It must not round a probability: every draw is exact, by rejection on whole bytes. The only place that touches the
operating system's generator.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_fraction

# A draw is repeated with probability below 2**-SPARE_BITS, so in practice every draw costs the same.
SPARE_BITS = 32
_LEAST_BYTES = 8
_STREAM_BLOCK = 16_384


class RandomSource(Protocol):
    """Anything that hands out uniform random bytes."""

    def random_bytes(self, count: int, /) -> bytes:
        """Return `count` uniform, independent bytes."""
        ...


class SystemRandom:
    """The operating system's generator: the only source for coins, shares, noise and keys.

    Nothing is buffered, so that a forked process cannot repeat its parent's bytes.
    """

    __slots__ = ()

    # Bound straight to the system call: a Python frame in between would cost a tenth of a two-round answer.
    random_bytes = staticmethod(os.urandom)


class SeededRandom:
    """A reproducible stream, SHAKE-128 over a counter: for simulation and tests only, never for a device's coins.

    Block i of the stream is SHAKE-128(label, seed length, seed, i) of 16 KiB. Not safe to share between threads.

    Raises:
        MechanismError: the seed is not an int of at least 0.
    """

    __slots__ = ("_block", "_counter", "_prefix", "_used")

    def __init__(self, seed: int) -> None:
        """Start the stream of `seed` (any int from 0)."""
        require_at_least("seed", seed, 0)
        encoded = seed.to_bytes((seed.bit_length() + 7) // 8, "big")
        self._prefix = b"fleetcount seeded stream 1" + len(encoded).to_bytes(8, "big") + encoded
        self._counter = 0
        self._block = b""
        self._used = 0

    def random_bytes(self, count: int, /) -> bytes:
        """Return the next `count` bytes of the stream."""
        end = self._used + count
        if end <= len(self._block):
            piece = self._block[self._used : end]
            self._used = end
            return piece
        return self._across_blocks(count)

    def _across_blocks(self, count: int) -> bytes:
        import hashlib  # Only simulations come here; a device need not load it.

        pieces = [self._block[self._used :]]
        missing = count - len(pieces[0])
        while missing > 0:
            counter = self._counter.to_bytes(8, "big")
            self._block = hashlib.shake_128(self._prefix + counter).digest(_STREAM_BLOCK)
            self._counter += 1
            pieces.append(self._block[:missing])
            self._used = len(pieces[-1])
            missing -= self._used
        return b"".join(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformBelow:
    """A prepared exact uniform draw from 0..bound-1.

    The number of bytes is fixed by the bound; a draw at or above the largest multiple of the bound is rejected, with
    probability below 2**-32 and independently of the result, which is the remainder.

    Raises:
        MechanismError: the bound is not an int of at least 1.
    """

    bound: int
    byte_count: int = field(init=False, repr=False, compare=False)
    limit: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fix the number of bytes and the rejection limit."""
        require_at_least("bound", self.bound, 1)
        byte_count = max(_LEAST_BYTES, (self.bound.bit_length() + SPARE_BITS + 7) // 8)
        whole = 1 << 8 * byte_count
        object.__setattr__(self, "byte_count", byte_count)
        object.__setattr__(self, "limit", whole - whole % self.bound)

    def draw(self, source: RandomSource) -> int:
        """Return one uniform int in 0..bound-1."""
        while True:
            number = int.from_bytes(source.random_bytes(self.byte_count), "little")
            if number < self.limit:
                return number % self.bound

    def draw_many(self, source: RandomSource, count: int) -> list[int]:
        """Return `count` independent uniform ints in 0..bound-1, mostly from one request for bytes."""
        size, limit, bound = self.byte_count, self.limit, self.bound
        block = source.random_bytes(size * count)
        numbers = [int.from_bytes(block[start : start + size], "little") for start in range(0, size * count, size)]
        kept = [number % bound for number in numbers if number < limit]
        while len(kept) < count:
            kept.append(self.draw(source))
        return kept


def uniform_below(source: RandomSource, bound: int) -> int:
    """Return an exact uniform int in 0..bound-1.

    Raises:
        MechanismError: the bound is not an int of at least 1.
    """
    return UniformBelow(bound=bound).draw(source)


def uniform_many_below(source: RandomSource, bound: int, count: int) -> list[int]:
    """Return `count` independent exact uniform ints in 0..bound-1.

    Raises:
        MechanismError: the bound is below 1 or the count below 0.
    """
    require_at_least("count", count, 0)
    return UniformBelow(bound=bound).draw_many(source, count)


def bernoulli(source: RandomSource, probability: Fraction) -> bool:
    """Return True with exactly the given probability in [0, 1]; certain coins draw too.

    Raises:
        MechanismError: the probability is not exact or not in [0, 1].
    """
    exact = require_fraction("probability", probability)
    if not 0 <= exact <= 1:
        raise MechanismError(f"probability is {exact}, allowed: 0 <= probability <= 1")
    return uniform_below(source, exact.denominator) < exact.numerator


@dataclass(frozen=True, slots=True)
class WeightedChoice:
    """A prepared exact draw of an index with given integer weights, at a cost that does not depend on their number.

    The alias method in integers: with n weights of total T every index owns a column of height T, filled by its own n
    * weight first and by one other index, its alias, above. One uniform draw below n * T picks the column and the
    height in it.

    Raises:
        MechanismError: no weights, a negative or non-integer weight, or a total of 0.
    """

    weights: tuple[int, ...]
    _uniform: UniformBelow = field(init=False, repr=False, compare=False)
    _total: int = field(init=False, repr=False, compare=False)
    _heights: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _aliases: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the weights and fill the columns."""
        for weight in self.weights:
            require_at_least("weight", weight, 0)
        total = sum(self.weights)
        if total <= 0:
            raise MechanismError(f"the {len(self.weights)} weights sum to {total}, allowed: a sum > 0")
        heights, aliases = _alias_columns(self.weights, total)
        object.__setattr__(self, "_uniform", UniformBelow(bound=total * len(self.weights)))
        object.__setattr__(self, "_total", total)
        object.__setattr__(self, "_heights", heights)
        object.__setattr__(self, "_aliases", aliases)

    def draw(self, source: RandomSource) -> int:
        """Return index i with probability weights[i] / sum(weights)."""
        column, height = divmod(self._uniform.draw(source), self._total)
        return (self._aliases[column], column)[height < self._heights[column]]


def _alias_columns(weights: Sequence[int], total: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    heights = [weight * len(weights) for weight in weights]
    aliases = list(range(len(weights)))
    low = [index for index, height in enumerate(heights) if height < total]
    high = [index for index, height in enumerate(heights) if height > total]
    while low:
        # The heights of the open columns average `total`, so a column below it always leaves one above it.
        short, tall = low.pop(), high[-1]
        aliases[short] = tall
        heights[tall] -= total - heights[short]
        if heights[tall] <= total:
            high.pop()
        if heights[tall] < total:
            low.append(tall)
    return tuple(heights), tuple(aliases)


def weighted_index(source: RandomSource, weights: Sequence[int]) -> int:
    """Return index i with probability weights[i] / sum(weights); prepare a WeightedChoice to draw more than once.

    Raises:
        MechanismError: no weights, a negative or non-integer weight, or a total of 0.
    """
    return WeightedChoice(weights=tuple(weights)).draw(source)
