"""Randomized responses a device computes alone: two-coin, Warner, Mangat, k-ary, and unary encodings of bits.

It must not look at a truth outside `randomize`, and must not round a probability towards less privacy: from_epsilon
never gives more than was asked.

Each response has outputs 0..V. The estimates of the cells 1..V are computed from the (noised) counts of all outputs;
the sum of these counts is used as the number of devices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from math import lcm
from typing import Protocol, Self

from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_between,
    require_counts,
    require_fraction,
    require_open_unit,
    require_position,
)
from fleetcount_mechanisms.randomness import RandomSource, UniformBelow, fraction_down
from fleetcount_mechanisms.response_laws import (
    GRID,
    BinaryLaw,
    bounded_power,
    log_ratio_up,
    probability_above,
    probability_below,
    response_sd,
)

_ONE = Fraction(1)


class RandomizedResponse(Protocol):
    """A randomized response whose answer is one output."""

    @property
    def values(self) -> int:
        """V, the number of cells; outputs are 0..V."""
        ...

    @property
    def epsilon(self) -> float:
        """The exact loss of one answer, rounded up to a float."""
        ...

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth]."""
        ...

    def randomize(self, truth: int, source: RandomSource) -> int:
        """Return the answer to give for a truth in 0..V."""
        ...


@dataclass(frozen=True, slots=True)
class _Binary:
    """The common part of the yes/no responses; a subclass sets _law."""

    _law: BinaryLaw = field(init=False, repr=False, compare=False)

    @property
    def values(self) -> int:
        """V = 1: output 1 is Yes, output 0 is No."""
        return 1

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth].

        Raises:
            MechanismError: output or truth is neither 0 nor 1.
        """
        return self._law.probability(output, truth)

    def randomize(self, truth: int, source: RandomSource) -> int:
        """Return the device's answer, 0 or 1, from one draw.

        Raises:
            MechanismError: the truth is neither 0 nor 1 (the message withholds it).
        """
        return self._law.draw(truth, source)

    def standard_deviation(self, count: int, population: int) -> float:
        """Return the sd of the estimate for `count` Yes among `population`, before central noise."""
        return response_sd(count, population, float(self._law.given_yes), float(self._law.given_no))


@dataclass(frozen=True, slots=True)
class TwoCoin(_Binary):
    """Two coins: with probability q the truth, otherwise Yes with probability r ([SP] appendix A, Eq. 30).

    A = P[1 | Yes] = q + (1 - q) r, B = P[1 | No] = (1 - q) r; truth_probability is q, yes_probability is r.

    Raises:
        MechanismError: q or r not exact or not in (0, 1).
    """

    truth_probability: Fraction
    yes_probability: Fraction

    def __post_init__(self) -> None:
        """Check both coins."""
        truth = require_open_unit("truth probability", self.truth_probability)
        given_no = (1 - truth) * require_open_unit("yes probability", self.yes_probability)
        object.__setattr__(self, "truth_probability", truth)
        object.__setattr__(self, "yes_probability", Fraction(self.yes_probability))
        object.__setattr__(self, "_law", BinaryLaw(truth + given_no, given_no))

    @classmethod
    def from_epsilon(cls, epsilon: Fraction, yes_probability: Fraction = Fraction(1, 2)) -> Self:
        """Return the coins with the given second coin whose loss is at most epsilon.

        With r and its complement, the smaller one m decides: q <= (E - 1) m / (1 + (E - 1) m), E = e**epsilon.

        Raises:
            MechanismError: epsilon not in (0, 20] or too small for the grid of 10**-12, or r not in (0, 1).
        """
        second = require_open_unit("yes probability", yes_probability)
        odds = (bounded_power(epsilon) - 1) * min(second, 1 - second)
        return cls(fraction_down(odds / (1 + odds), GRID), second)

    @property
    def epsilon_yes(self) -> float:
        """ln(A/B), the loss when the answer is Yes, rounded up (Equation 30)."""
        return log_ratio_up(self._law.given_yes, self._law.given_no)

    @property
    def epsilon_no(self) -> float:
        """ln((1 - B)/(1 - A)), the loss when the answer is No, rounded up; the paper leaves it out."""
        return log_ratio_up(1 - self._law.given_no, 1 - self._law.given_yes)

    @property
    def epsilon(self) -> float:
        """The loss of one answer, the larger of the two, rounded up."""
        return max(self.epsilon_yes, self.epsilon_no)


@dataclass(frozen=True, slots=True)
class Warner(_Binary):
    """Warner's response: the truth with probability `keep`, its opposite otherwise.

    Raises:
        MechanismError: keep not exact or not in (1/2, 1).
    """

    keep: Fraction

    def __post_init__(self) -> None:
        """Check the probability."""
        keep = require_fraction("keep", self.keep)
        if not Fraction(1, 2) < keep < 1:
            raise MechanismError(f"keep is {keep}, allowed: 1/2 < keep < 1")
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "_law", BinaryLaw(keep, 1 - keep))

    @classmethod
    def from_epsilon(cls, epsilon: Fraction) -> Self:
        """Return the response with keep = e**eps/(e**eps + 1) rounded down, so its loss is at most epsilon.

        Raises:
            MechanismError: epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_below(epsilon, 1))

    @property
    def epsilon(self) -> float:
        """ln(keep/(1 - keep)), rounded up."""
        return log_ratio_up(self.keep, 1 - self.keep)


@dataclass(frozen=True, slots=True)
class Mangat(_Binary):
    """Mangat's response: Yes answers Yes; No answers Yes with probability `flip`, No otherwise.

    One-sided: a Yes is always deniable, (ln 1/flip, "No may leak")-asymmetric differential privacy ([ADP]); an answer
    No proves a No.

    Raises:
        MechanismError: flip not exact or not in (0, 1).
    """

    flip: Fraction

    def __post_init__(self) -> None:
        """Check the probability."""
        flip = require_open_unit("flip", self.flip)
        object.__setattr__(self, "flip", flip)
        object.__setattr__(self, "_law", BinaryLaw(_ONE, flip))

    @classmethod
    def from_epsilon(cls, epsilon: Fraction) -> Self:
        """Return the response with flip = e**-eps rounded up, so its one-sided loss is at most epsilon.

        Raises:
            MechanismError: epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_above(epsilon, 0))

    @property
    def epsilon(self) -> float:
        """The one-sided loss ln(1/flip) of a Yes, rounded up; a No has no finite loss."""
        return log_ratio_up(_ONE, self.flip)


@dataclass(frozen=True, slots=True)
class KaryResponse:
    """k-ary randomized response on outputs 0..V, k = V + 1: the truth with probability `keep`, else another.

    Raises:
        MechanismError: V below 1, keep not exact or not in (1/(V + 1), 1).
    """

    keep: Fraction
    values: int
    _uniform: UniformBelow = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the probability."""
        require_at_least("values", self.values, 1)
        keep = require_fraction("keep", self.keep)
        if not Fraction(1, self.values + 1) < keep < 1:
            raise MechanismError(f"keep is {keep}, allowed: 1/{self.values + 1} < keep < 1")
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "_uniform", UniformBelow(bound=keep.denominator * self.values))

    @classmethod
    def from_epsilon(cls, epsilon: Fraction, values: int) -> Self:
        """Return the response with keep = e**eps/(e**eps + V) rounded down, so its loss is at most epsilon.

        Raises:
            MechanismError: V below 1, epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_below(epsilon, require_at_least("values", values, 1)), values)

    @property
    def other(self) -> Fraction:
        """The probability Q of each single output other than the truth."""
        return (1 - self.keep) / self.values

    @property
    def epsilon(self) -> float:
        """ln(keep/Q), rounded up."""
        return log_ratio_up(self.keep, self.other)

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth].

        Raises:
            MechanismError: output or truth not in 0..V.
        """
        require_between("output", output, 0, self.values)
        return self.keep if output == require_position(truth, self.values) else self.other

    def randomize(self, truth: int, source: RandomSource) -> int:
        """Return the device's answer in 0..V, from one draw whose cost does not depend on V.

        Raises:
            MechanismError: the truth is not in 0..V (the message withholds it).
        """
        position = require_position(truth, self.values)
        number = self._uniform.draw(source)
        # Of the numbers drawn each of the V other outputs has `weight`, the truth has the rest. `lie` counts the
        # outputs without the truth, so from the truth's position on it is one too small.
        weight = self.keep.denominator - self.keep.numerator
        lie = number // weight
        lie += lie >= position
        return (position, lie)[number < weight * self.values]

    def standard_deviation(self, count: int, population: int) -> float:
        """Return the sd of a cell's estimate for `count` among `population`, before central noise."""
        return response_sd(count, population, float(self.keep), float(self.other))


@dataclass(frozen=True, slots=True)
class _BitVector:
    """The common part of the unary encodings: V independent yes/no channels, one for each cell."""

    values: int
    bit_laws: tuple[BinaryLaw, ...] = field(init=False, repr=False, compare=False)
    """The law of every cell's bit; equal ones are one object."""
    counted_laws: tuple[tuple[BinaryLaw, int], ...] = field(init=False, repr=False, compare=False)
    """Each law there is, and how many cells have it."""
    _uniform: UniformBelow = field(init=False, repr=False, compare=False)
    _limits: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def _prepare(self, laws: Mapping[object, BinaryLaw], cells: Sequence[object]) -> None:
        """Set the law of every cell's bit by its name, all drawn on one common denominator."""
        counted = Counter(cells)
        common = lcm(*(laws[one].uniform.bound for one in counted))
        scaled = {
            one: tuple(limit * (common // laws[one].uniform.bound) for limit in laws[one].limits) for one in counted
        }
        object.__setattr__(self, "bit_laws", tuple(laws[one] for one in cells))
        object.__setattr__(self, "counted_laws", tuple((laws[one], often) for one, often in counted.items()))
        object.__setattr__(self, "_uniform", UniformBelow(bound=common))
        object.__setattr__(self, "_limits", tuple(scaled[one] for one in cells))

    def bit_probability(self, output: int, truth: int, cell: int = 1) -> Fraction:
        """Return P[the bit of a cell 1..V says `output` | its truth].

        Raises:
            MechanismError: output or truth is neither 0 nor 1, or no such cell.
        """
        return self._law(cell).probability(output, truth)

    def _law(self, cell: int) -> BinaryLaw:
        return self.bit_laws[require_between("cell", cell, 1, self.values) - 1]

    def randomize_bits(self, truth_bits: Sequence[int], source: RandomSource) -> tuple[int, ...]:
        """Return V answered bits for V true bits.

        Raises:
            MechanismError: not exactly V bits, or one that is neither 0 nor 1 (the message withholds it).
        """
        require_counts("truth bits", truth_bits, self.values)
        limits = [pair[require_position(bit, 1)] for pair, bit in zip(self._limits, truth_bits, strict=True)]
        numbers = self._uniform.draw_many(source, self.values)
        return tuple(int(number < limit) for number, limit in zip(numbers, limits, strict=True))

    def standard_deviation(self, count: int, population: int, cell: int = 1) -> float:
        """Return the sd of a cell's estimate for `count` among `population`, before central noise."""
        law = self._law(cell)
        return response_sd(count, population, float(law.given_yes), float(law.given_no))


@dataclass(frozen=True, slots=True)
class MangatVector(_BitVector):
    """Mangat's response on every cell of a multi-hot vector: a 1 stays, a 0 becomes 1 with probability `flip`.

    Removing one visited place costs ln(1/flip), removing m of them m times as much (vector policy, [ADP]).

    Raises:
        MechanismError: V below 1, flip not exact or not in (0, 1).
    """

    flip: Fraction

    def __init__(self, flip: Fraction, values: int) -> None:
        """Check the probability."""
        object.__setattr__(self, "flip", require_open_unit("flip", flip))
        object.__setattr__(self, "values", require_at_least("values", values, 1))
        self._prepare({0: BinaryLaw(_ONE, self.flip)}, (0,) * values)

    @classmethod
    def from_epsilon(cls, epsilon: Fraction, values: int) -> Self:
        """Return the response with flip = e**-eps rounded up; epsilon is the loss of one place.

        Raises:
            MechanismError: V below 1, epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_above(epsilon, 0), values)

    @property
    def epsilon(self) -> float:
        """The one-sided loss ln(1/flip) of one visited place, rounded up."""
        return log_ratio_up(_ONE, self.flip)


@dataclass(frozen=True, slots=True)
class OptimizedUnaryEncoding(_BitVector):
    """Optimized unary encoding: the true cell's bit is 1 with probability 1/2, every other one with `flip`.

    Raises:
        MechanismError: V below 1, flip not exact or not in (0, 1/2).
    """

    flip: Fraction

    def __init__(self, flip: Fraction, values: int) -> None:
        """Check the probability."""
        exact = require_fraction("flip", flip)
        if not 0 < exact < Fraction(1, 2):
            raise MechanismError(f"flip is {exact}, allowed: 0 < flip < 1/2")
        object.__setattr__(self, "flip", exact)
        object.__setattr__(self, "values", require_at_least("values", values, 1))
        self._prepare({0: BinaryLaw(Fraction(1, 2), exact)}, (0,) * values)

    @classmethod
    def from_epsilon(cls, epsilon: Fraction, values: int) -> Self:
        """Return the response with flip = 1/(e**eps + 1) rounded up, so its loss on one-hot truths is at most epsilon.

        Raises:
            MechanismError: V below 1, epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_above(epsilon, 1), values)

    @property
    def epsilon(self) -> float:
        """The loss ln((1 - flip)/flip) of a one-hot truth that moves, rounded up; ln(1/(2 flip)) for V = 1, one bit."""
        return log_ratio_up(Fraction(1, 2) if self.values == 1 else 1 - self.flip, self.flip)


class Flips(Enum):
    """Which way the bit of a value may be wrong, as one-sided noise has a direction ([ADP] Definition V.2)."""

    UP = 1
    """A 0 may become 1: that a device has the value can be explained by its having another."""
    DOWN = 2
    """A 1 may become 0: that a device does not have the value can be explained by its having it."""
    BOTH = 3
    """Either."""


@dataclass(frozen=True, slots=True)
class AsymmetricVector(_BitVector):
    """One bit a value, wrong only in the ways in which the value is protected: [ADP] Definition V.3 of bits.

    With f = `flip`, P[1 | 1] and P[1 | 0] are 1 and f where `flips` is UP, 1 - f and 0 where it is DOWN, 1/(1 + f) and
    f/(1 + f) where it is BOTH. A bit that may be wrong loses ln(1/f) by a change that this hides, and without limit by
    any other. So a value x is hidden behind a value y where x is not DOWN and y is not UP; "none", which has no bit, is
    hidden behind every y and hides every x.

    Raises:
        MechanismError: no value, flip not exact or not in (0, 1), or something else than `Flips`.
    """

    flip: Fraction
    flips: tuple[Flips, ...]

    def __init__(self, flip: Fraction, flips: Sequence[Flips]) -> None:
        """Check the probability."""
        if any(type(one) is not Flips for one in flips):
            raise MechanismError(f"flips are {tuple(flips)[:3]}, allowed: one of Flips for each value")
        exact = require_open_unit("flip", flip)
        object.__setattr__(self, "flip", exact)
        object.__setattr__(self, "flips", tuple(flips))
        object.__setattr__(self, "values", require_at_least("values", len(flips), 1))
        laws: dict[object, BinaryLaw] = {
            Flips.UP: BinaryLaw(_ONE, exact),
            Flips.DOWN: BinaryLaw(1 - exact, Fraction(0)),
            Flips.BOTH: BinaryLaw(1 / (1 + exact), exact / (1 + exact)),
        }
        self._prepare(laws, tuple(flips))

    @classmethod
    def from_epsilon(cls, epsilon: Fraction, flips: Sequence[Flips]) -> Self:
        """Return the response with flip = e**(-eps/k) rounded up; k = 2 where a hidden change moves two bits, else 1.

        Raises:
            MechanismError: no value, epsilon not in (0, 20], or too small for the grid of 10**-12.
        """
        return cls(probability_above(epsilon / _bits_moved(flips), 0), flips)

    def hides(self, value: int, other: int) -> bool:
        """Return whether an answer of a device with `value` can be explained by `other`, 0..V each, 0 being none."""
        pair = (require_between("value", one, 0, self.values) for one in (value, other))
        have, lack = (self.flips[one - 1] if one else Flips.BOTH for one in pair)
        return value == other or (have is not Flips.DOWN and lack is not Flips.UP)

    @property
    def epsilon(self) -> float:
        """The loss of an answer by a change that it hides, k ln(1/flip), rounded up."""
        return log_ratio_up(_ONE, self.flip ** _bits_moved(self.flips))


def _bits_moved(flips: Sequence[Flips]) -> int:
    """Return how many bits the largest change that is hidden moves: one value against another, or against none."""
    have = [place for place, one in enumerate(flips) if one is not Flips.DOWN]
    lack = [place for place, one in enumerate(flips) if one is not Flips.UP]
    return 2 if have and lack and (have != lack or len(have) > 1) else 1
