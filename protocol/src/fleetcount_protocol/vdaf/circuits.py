"""Validity circuits: fleetcount's own TwoRoundOneHot, OneHot and Multihot, and the draft's SumVec for vectors of bits.

A circuit defines how a measurement becomes field elements and which of them are valid. This module neither shares nor
proves anything and has no source of randomness.

TwoRoundOneHot(L), OneHot(L) and Multihot, private code points 0xFFFF1001 to 0xFFFF1003, are fleetcount's own, not
reviewed by the CFRG. In the first two, with one element rho of joint randomness, weights w_0 = 0 and w_v = rho**v, and
for each vector r

    x = sum of w_v r[v],    y = sum of w_v**2 r[v],    s = sum of r[v] - 1/k,

a OneHot report is valid when x**2 - y and s are zero, a TwoRoundOneHot report when x1**2 - y1, x2**2 - y2, x1**2 - x1
x2, s1 and s2 are. As polynomials in rho, r(X)**2 = r(X**2) forces r(X) = 0 or X**d, the sum fixes r[0], and x1 (x1 -
x2) = 0 holds only for r1 = e_0 or r1 = r2 (that is why w_0 = 0). So exactly the 2L-1 honest pairs (0, v) and (v, v)
pass for every rho; an invalid pair passes one proof for at most 2(L-1) + 7 of the p values that rho and the query
randomness can take.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.field import FIELD64, FIELD128, PrimeField
from fleetcount_protocol.vdaf.flp import GadgetCall, Mul, ParallelMul

MAX_LENGTH: Final = 1 << 24
"""The longest vector of any circuit, far above the 4,096 of a window: it limits memory with absurd parameters."""


def check_range(what: str, value: int, low: int, high: int) -> None:
    """Refuse a parameter outside low..high.

    Raises:
        UsageError: with value and range.
    """
    if not low <= value <= high:
        raise UsageError(f"{what} is {value}, not {low}..{high}")


def check_size(what: str, vector: Sequence[object], length: int) -> None:
    """Refuse a vector of another length.

    Raises:
        UsageError: with both lengths, never an entry.
    """
    if len(vector) != length:
        raise UsageError(f"{what} has {len(vector)} entries, not {length}")


def unit_vector(length: int, position: int) -> list[int]:
    """Return e_position, `length` integers.

    Raises:
        UsageError: a position outside 0..length-1; the message does not show it, because it is secret.
    """
    if not 0 <= position < length:
        raise UsageError(f"the measurement is not 0..{length - 1}")
    vector = [0] * length
    vector[position] = 1
    return vector


def range_weights(maximum: int) -> list[int]:
    """Return weights whose subset sums are exactly 0..maximum: 1, 2, 4, ... and maximum less the sum of these.

    Source: draft-irtf-cfrg-vdaf, section 7.4.2.
    """
    bits = maximum.bit_length()
    powers = [1 << place for place in range(bits - 1)]
    return [*powers, maximum - sum(powers)]


def encode_in_range(value: int, maximum: int) -> list[int]:
    """Return the zeros and ones whose weighted sum is `value`, without the last weight if the others are enough.

    Raises:
        UsageError: a value outside 0..maximum; the message does not show it, because it is secret.
    """
    if not 0 <= value <= maximum:
        raise UsageError(f"the measurement is not 0..{maximum}")
    weights = range_weights(maximum)
    last = int(value > sum(weights[:-1]))
    rest = value - last * weights[-1]
    return [*((rest >> place) & 1 for place in range(len(weights) - 1)), last]


def bit_checks(
    field: PrimeField,
    measurement: Sequence[int],
    joint_rand: Sequence[int],
    shares_inverse: int,
    chunk_length: int,
    call: GadgetCall,
) -> int:
    """Return sum over chunks of sum_j r**(j+1) m_j (m_j - 1), zero if all entries are 0 or 1 (draft, section 7.4.3).

    The last chunk is padded with zeros. Each chunk has one element r of joint randomness.
    """
    modulus = field.modulus
    padding = [0] * (len(joint_rand) * chunk_length - len(measurement))
    padded = [*measurement, *padding]
    total = 0
    for index, base in enumerate(joint_rand):
        chunk = padded[index * chunk_length : (index + 1) * chunk_length]
        inputs = [0] * (2 * chunk_length)
        inputs[0::2] = [
            power * word % modulus for power, word in zip(field.powers(base, chunk_length), chunk, strict=True)
        ]
        inputs[1::2] = [(word - shares_inverse) % modulus for word in chunk]
        total += call(inputs)
    return total % modulus


def check_bits_fit(field: PrimeField, maximum: int) -> None:
    """Refuse a maximum whose weighted bits could wrap around the modulus.

    Raises:
        UsageError: with the maximum and its number of bits.
    """
    if 1 << maximum.bit_length() >= field.modulus:
        raise UsageError(f"max_measurement is {maximum}: its {maximum.bit_length()} bits do not fit {field.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BitVector:
    """The common part of circuits with the bit check: `length` entries, `chunk_length` products in each gadget call.

    Raises:
        UsageError: a length or a chunk length outside 1..2**24.
    """

    field: PrimeField = FIELD128
    length: int
    chunk_length: int

    def __post_init__(self) -> None:
        check_range("length", self.length, 1, MAX_LENGTH)
        check_range("chunk_length", self.chunk_length, 1, MAX_LENGTH)

    @property
    def measurement_length(self) -> int:
        """One element an entry."""
        return self.length

    @property
    def output_length(self) -> int:
        """One element an entry."""
        return self.length

    @property
    def gadget(self) -> ParallelMul:
        """`chunk_length` products a call."""
        return ParallelMul(count=self.chunk_length)

    @property
    def gadget_calls(self) -> int:
        """One call a chunk."""
        return -(-self.measurement_length // self.chunk_length)

    @property
    def joint_rand_length(self) -> int:
        """One element a chunk."""
        return self.gadget_calls

    def decode(self, output: Sequence[int], measurements: int) -> list[int]:
        """Return the sums, place by place."""
        return list(output)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumVec(BitVector):
    """A vector of numbers 0..max_measurement; the result is their sum, place by place (draft, section 7.4.3).

    `chunk_length` products share one gadget call; about the square root of length * bits makes the proof shortest.

    Raises:
        UsageError: a length, a chunk length or a maximum out of range, or a maximum whose bits do not fit the field.
    """

    max_measurement: int
    name: str = dataclasses.field(default="SumVec", init=False)
    eval_output_length: int = dataclasses.field(default=1, init=False)

    def __post_init__(self) -> None:
        BitVector.__post_init__(self)
        check_range("max_measurement", self.max_measurement, 1, self.field.modulus // 2)
        check_bits_fit(self.field, self.max_measurement)

    @property
    def bits(self) -> int:
        """Elements an entry."""
        return self.max_measurement.bit_length()

    @property
    def measurement_length(self) -> int:
        """`bits` elements an entry."""
        return self.length * self.bits

    def encode(self, measurement: Sequence[int]) -> list[int]:
        """Return the bits of all entries, one entry after the other.

        Raises:
            UsageError: another number of entries, or an entry outside 0..max_measurement.
        """
        check_size("the measurement", measurement, self.length)
        return [bit for entry in measurement for bit in encode_in_range(int(entry), self.max_measurement)]

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return every entry's weighted sum of bits."""
        if self.bits == 1:
            return list(measurement)
        weights, bits = range_weights(self.max_measurement), self.bits
        starts = range(0, self.measurement_length, bits)
        return [self.field.inner_product(weights, measurement[start : start + bits]) for start in starts]

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return the bit check of all entries."""
        return [bit_checks(self.field, measurement, joint_rand, shares_inverse, self.chunk_length, call)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multihot(BitVector):
    """A set of at most `most` of `length` values, and whether it has any; the result is the count of each and of both.

    A measurement is a bit a value, the bit h "it has any", and the bits of the rest: how many values there are beyond
    h, 0 to most - 1. Every bit is 0 or 1, the number of ones is h plus the rest, and rest times (h - 1) is zero: so h
    is 1 for exactly the sets that are not empty. Like the draft's MultihotCountVec (section 7.4.5), with h and with one
    element of joint randomness: product t is weighed by its power t + 1. It is in place t // calls of call t % calls,
    so that in every place the products of all calls stand together and are summed up with the same weights.

    Raises:
        UsageError: a length or a chunk length outside its range, or `most` outside 1..length.
    """

    most: int
    field: PrimeField = FIELD64
    name: str = dataclasses.field(default="Multihot", init=False)
    eval_output_length: int = dataclasses.field(default=2, init=False)

    def __post_init__(self) -> None:
        BitVector.__post_init__(self)
        check_range("most", self.most, 1, min(self.length, self.field.modulus - 1))

    @property
    def rest_weights(self) -> list[int]:
        """The weights of the bits behind h; none where a set has one value at most."""
        return range_weights(self.most - 1) if self.most > 1 else []

    @property
    def measurement_length(self) -> int:
        """A bit a value, h, and the bits of the rest."""
        return self.length + 1 + len(self.rest_weights)

    @property
    def checked_length(self) -> int:
        """How many products are checked: one a bit, and that of the rest if there is one."""
        return self.measurement_length + (self.most > 1)

    @property
    def gadget_calls(self) -> int:
        """One call a chunk of products."""
        return -(-self.checked_length // self.chunk_length)

    @property
    def joint_rand_length(self) -> int:
        """One element, whose powers weigh the products."""
        return 1

    @property
    def output_length(self) -> int:
        """The bits of the values, and h."""
        return self.length + 1

    def encode(self, measurement: Sequence[int]) -> list[int]:
        """Return the bits of the values, h, and the rest in range-checked form.

        Raises:
            UsageError: another length, an entry that is not 0 or 1, or more than `most` ones.
        """
        check_size("the measurement", measurement, self.length)
        if any(bit not in (0, 1) for bit in measurement):
            raise UsageError("an entry of the measurement is not 0 or 1")
        ones = sum(bits := [int(bit) for bit in measurement])
        if ones > self.most:
            raise UsageError(f"the measurement has more than {self.most} ones")
        holds = int(ones > 0)
        return [*bits, holds, *(encode_in_range(ones - holds, self.most - 1) if self.most > 1 else ())]

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the bits of the values, and h."""
        return list(measurement[: self.length + 1])

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return the check of all products, and the number of ones less h and the rest."""
        modulus, calls = self.field.modulus, self.gadget_calls
        holds, weights = measurement[self.length], self.rest_weights
        rest = self.field.inner_product(weights, measurement[self.length + 1 :]) if weights else 0
        padding = [0] * (self.chunk_length * calls - self.checked_length)
        lefts = [*measurement, *([rest] if weights else ()), *padding]
        rights = [*measurement, *([holds] if weights else ()), *padding]
        powers = self.field.powers(joint_rand[0], len(lefts))
        weighed = [power * left % modulus for power, left in zip(powers, lefts, strict=True)]
        others = [(right - shares_inverse) % modulus for right in rights]
        products = 0
        for first in range(calls):
            inputs = [0] * (2 * self.chunk_length)
            inputs[0::2], inputs[1::2] = weighed[first::calls], others[first::calls]
            products += call(inputs)
        return [products % modulus, (sum(measurement[: self.length]) - holds - rest) % modulus]


class PowerSum:
    """The linear form r -> sum of base**v r[v], v = 1 and up: the circuit's x for base rho, its y for base rho**2.

    Computed by blocks of B entries, B about the square root of the length: 2 B powers instead of one for each entry.
    Sums start at a large multiple of p, so that every addition is one of long integers: the running time on a device
    does not depend on the position of its one.
    """

    __slots__ = ("_block_powers", "_modulus", "_start", "_table")

    def __init__(self, field: PrimeField, base: int, length: int) -> None:
        block = math.isqrt(length) + 1
        *self._table, block_power = 1, *field.powers(base, block)
        self._block_powers = [1, *field.powers(block_power, (length - 1) // block)]
        self._modulus = field.modulus
        self._start = field.modulus << field.modulus.bit_length()

    def of(self, vector: Sequence[int]) -> int:
        """Return the form's value; entry 0 has weight 0."""
        table, block, start, modulus = self._table, len(self._table), self._start, self._modulus
        blocks = [sum(map(mul, table, vector[at : at + block]), start) % modulus for at in range(0, len(vector), block)]
        total: int = sum(map(mul, self._block_powers, blocks), start)
        return (total - vector[0]) % modulus

    def of_unit(self, position: int) -> int:
        """Return the form's value for e_position, 0 <= position < length: base**position, and 0 for position 0."""
        block, place = divmod(position, len(self._table))
        # With p added all factors are long integers: a one is no faster to multiply by than any other power.
        weight = (self._block_powers[block] + self._modulus) * (self._table[place] + self._modulus)
        return (position > 0) * weight % self._modulus


def _power_forms(field: PrimeField, rho: int, length: int) -> tuple[PowerSum, PowerSum]:
    """Return the forms of x and of y."""
    return PowerSum(field, rho, length), PowerSum(field, rho * rho % field.modulus, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneHotVectors:
    """The common part of circuits with one-hot vectors of `length` entries.

    Raises:
        UsageError: a length below 2 or above 2**24.
    """

    field: PrimeField = FIELD64
    length: int
    gadget: Mul = dataclasses.field(default=Mul(), init=False)
    joint_rand_length: int = dataclasses.field(default=1, init=False)

    def __post_init__(self) -> None:
        check_range("length", self.length, 2, MAX_LENGTH)

    def decode(self, output: Sequence[int], measurements: int) -> list[int]:
        """Return the sums as field elements, 0..p-1."""
        return list(output)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRoundOneHot(_OneHotVectors):
    """Two one-hot vectors of `length` = V + 1, equal or the first on 0; the result is the sum of r2 - r1 on 1..V.

    The sums of each round (S1, S2) are never outputs.
    """

    name: str = dataclasses.field(default="TwoRoundOneHot", init=False)
    gadget_calls: int = dataclasses.field(default=3, init=False)
    eval_output_length: int = dataclasses.field(default=5, init=False)

    @property
    def measurement_length(self) -> int:
        """Both vectors."""
        return 2 * self.length

    @property
    def output_length(self) -> int:
        """V differences."""
        return self.length - 1

    def encode(self, measurement: tuple[int, int]) -> list[int]:
        """Return r1 || r2 for positions (round one, round two), each 0..V; round one is 0 or equals round two.

        Raises:
            UsageError: any other pair; the message does not show it.
        """
        check_size("the measurement", measurement, 2)
        round_one, round_two = measurement
        encoded = unit_vector(self.length, round_one) + unit_vector(self.length, round_two)
        if round_one not in (0, round_two):
            raise UsageError("round one is neither 0 nor equal to round two")
        return encoded

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return D_v = r2[v] - r1[v], v = 1..V."""
        return self.field.subtract_vectors(measurement[self.length + 1 :], measurement[1 : self.length])

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return x1**2 - y1, x2**2 - y2, x1**2 - x1*x2, s1, s2."""
        modulus = self.field.modulus
        x_form, y_form = _power_forms(self.field, joint_rand[0], self.length)
        one, two = measurement[: self.length], measurement[self.length :]
        x1, y1, x2, y2 = x_form.of(one), y_form.of(one), x_form.of(two), y_form.of(two)
        square_one = call((x1, x1))
        square_two = call((x2, x2))
        product = call((x1, x2))
        outputs = (
            square_one - y1,
            square_two - y2,
            square_one - product,
            sum(one) - shares_inverse,
            sum(two) - shares_inverse,
        )
        return [output % modulus for output in outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHot(_OneHotVectors):
    """One one-hot vector of `length` = V + 1; the result is the count of each place, 0 included."""

    name: str = dataclasses.field(default="OneHot", init=False)
    gadget_calls: int = dataclasses.field(default=1, init=False)
    eval_output_length: int = dataclasses.field(default=2, init=False)

    @property
    def measurement_length(self) -> int:
        """The vector."""
        return self.length

    @property
    def output_length(self) -> int:
        """The vector."""
        return self.length

    def encode(self, measurement: int) -> list[int]:
        """Return a one in the measurement's place, 0..V."""
        return unit_vector(self.length, measurement)

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the vector itself."""
        return list(measurement)

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return x**2 - y, s."""
        modulus = self.field.modulus
        x_form, y_form = _power_forms(self.field, joint_rand[0], self.length)
        x, y = x_form.of(measurement), y_form.of(measurement)
        return [(call((x, x)) - y) % modulus, (sum(measurement) - shares_inverse) % modulus]
