"""The circuits of the draft that no window uses: Count, Sum, Histogram, MultihotCountVec, and SumVec over Field128.

draft-irtf-cfrg-vdaf, section 7.4. The draft's vectors use them, and so test field, proof and sharing too.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import (
    BitVector,
    SumVec,
    bit_checks,
    check_bits_fit,
    check_range,
    check_size,
    encode_in_range,
    range_weights,
    unit_vector,
)
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField
from fleetcount_protocol.vdaf.flp import GadgetCall, Mul
from fleetcount_protocol.vdaf.prio3 import ALGORITHM_IDS, Prio3

DRAFT_IDS: Final = {
    "Count": 0x00000001,
    "Sum": 0x00000002,
    "SumVec": 0x00000003,
    "Histogram": 0x00000004,
    "MultihotCountVec": 0x00000005,
    **ALGORITHM_IDS,
}
"""Algorithm identifiers by circuit name: those that only vectors use (draft, section 10), and those of windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolyEval:
    """A polynomial of one wire, coefficients from the constant upwards (draft, section 7.4.2).

    Raises:
        UsageError: the degree is below 1, or the last coefficient is 0.
    """

    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.coefficients) < 2 or self.coefficients[-1] == 0:
            raise UsageError(f"coefficients {self.coefficients} do not give a polynomial of degree 1 or more")

    @property
    def arity(self) -> int:
        """One wire."""
        return 1

    @property
    def degree(self) -> int:
        """The polynomial's degree."""
        return len(self.coefficients) - 1

    def evaluate(self, field: PrimeField, inputs: Sequence[int]) -> int:
        """Return the polynomial's value at inputs[0] (Horner)."""
        result = 0
        for coefficient in reversed(self.coefficients):
            result = (result * inputs[0] + coefficient) % field.modulus
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One bit; the result is how many were 1 (draft, section 7.4.1)."""

    field: PrimeField = FIELD64
    name: str = dataclasses.field(default="Count", init=False)
    gadget: Mul = dataclasses.field(default=Mul(), init=False)
    gadget_calls: int = dataclasses.field(default=1, init=False)
    measurement_length: int = dataclasses.field(default=1, init=False)
    joint_rand_length: int = dataclasses.field(default=0, init=False)
    output_length: int = dataclasses.field(default=1, init=False)
    eval_output_length: int = dataclasses.field(default=1, init=False)

    def encode(self, measurement: int) -> list[int]:
        """Return the bit as a list of one.

        Raises:
            UsageError: the measurement is not 0, 1, False or True.
        """
        if measurement not in (0, 1):
            raise UsageError("the measurement is not 0 or 1")
        return [int(measurement)]

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the bit's share."""
        return list(measurement)

    def decode(self, output: Sequence[int], measurements: int) -> int:
        """Return the count."""
        return output[0]

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return x*x - x."""
        bit = measurement[0]
        return [(call((bit, bit)) - bit) % self.field.modulus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A number 0..max_measurement; the result is the sum (draft, section 7.4.2).

    Raises:
        UsageError: max_measurement is below 1 or too large for the field.
    """

    field: PrimeField = FIELD64
    max_measurement: int
    name: str = dataclasses.field(default="Sum", init=False)
    joint_rand_length: int = dataclasses.field(default=0, init=False)
    output_length: int = dataclasses.field(default=1, init=False)
    gadget: PolyEval = dataclasses.field(default=PolyEval(coefficients=(0, -1, 1)), init=False)

    def __post_init__(self) -> None:
        check_range("max_measurement", self.max_measurement, 1, self.field.modulus // 2)
        check_bits_fit(self.field, self.max_measurement)

    @property
    def measurement_length(self) -> int:
        """One element a bit."""
        return self.max_measurement.bit_length()

    @property
    def gadget_calls(self) -> int:
        """One call a bit."""
        return self.measurement_length

    @property
    def eval_output_length(self) -> int:
        """One check a bit."""
        return self.measurement_length

    def encode(self, measurement: int) -> list[int]:
        """Return the measurement's bits over the range weights."""
        return encode_in_range(measurement, self.max_measurement)

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the weighted sum of the bits."""
        return [self.field.inner_product(range_weights(self.max_measurement), measurement)]

    def decode(self, output: Sequence[int], measurements: int) -> int:
        """Return the sum."""
        return output[0]

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return b*b - b for every bit b."""
        return [call((bit,)) for bit in measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(BitVector):
    """One of `length` buckets; the result is the count of each (draft, section 7.4.4)."""

    name: str = dataclasses.field(default="Histogram", init=False)
    eval_output_length: int = dataclasses.field(default=2, init=False)

    def encode(self, measurement: int) -> list[int]:
        """Return a one in the measurement's bucket."""
        return unit_vector(self.length, measurement)

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the vector itself."""
        return list(measurement)

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return the bit check of all buckets, and their sum less one."""
        bits = bit_checks(self.field, measurement, joint_rand, shares_inverse, self.chunk_length, call)
        return [bits, (sum(measurement) - shares_inverse) % self.field.modulus]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultihotCountVec(BitVector):
    """A vector of bits with at most `max_weight` ones; the result is the count of each (draft, section 7.4.5).

    Raises:
        UsageError: a length or a chunk length outside its range, or max_weight outside 1..length.
    """

    max_weight: int
    name: str = dataclasses.field(default="MultihotCountVec", init=False)
    eval_output_length: int = dataclasses.field(default=2, init=False)

    def __post_init__(self) -> None:
        BitVector.__post_init__(self)
        check_range("max_weight", self.max_weight, 1, min(self.length, self.field.modulus - 1))

    @property
    def measurement_length(self) -> int:
        """One element an entry, and the bits of the reported weight."""
        return self.length + self.max_weight.bit_length()

    def encode(self, measurement: Sequence[bool]) -> list[int]:
        """Return the bits, then their number in range-checked form.

        Raises:
            UsageError: another length, an entry that is not 0 or 1, or more than `max_weight` ones.
        """
        check_size("the measurement", measurement, self.length)
        if any(bit not in (0, 1) for bit in measurement):
            raise UsageError("an entry of the measurement is not 0 or 1")
        bits = [int(bit) for bit in measurement]
        if sum(bits) > self.max_weight:
            raise UsageError(f"the measurement has more than {self.max_weight} ones")
        return [*bits, *encode_in_range(sum(bits), self.max_weight)]

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the bits without the reported weight."""
        return list(measurement[: self.length])

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return the bit check of everything, and the number of ones less the reported weight."""
        bits = bit_checks(self.field, measurement, joint_rand, shares_inverse, self.chunk_length, call)
        reported = self.field.inner_product(range_weights(self.max_weight), measurement[self.length :])
        return [bits, (sum(measurement[: self.length]) - reported) % self.field.modulus]


def prio3_count(shares: int) -> Prio3:
    """Return Prio3Count."""
    return Prio3(circuit=Count(), algorithm_id=DRAFT_IDS["Count"], shares=shares)


def prio3_sum(max_measurement: int, shares: int) -> Prio3:
    """Return Prio3Sum."""
    return Prio3(circuit=Sum(max_measurement=max_measurement), algorithm_id=DRAFT_IDS["Sum"], shares=shares)


def prio3_sum_vec(length: int, max_measurement: int, chunk_length: int, shares: int) -> Prio3:
    """Return Prio3SumVec (Field128, one proof)."""
    circuit = SumVec(length=length, max_measurement=max_measurement, chunk_length=chunk_length)
    return Prio3(circuit=circuit, algorithm_id=DRAFT_IDS["SumVec"], shares=shares)


def prio3_histogram(length: int, chunk_length: int, shares: int) -> Prio3:
    """Return Prio3Histogram (Field128, one proof)."""
    circuit = Histogram(length=length, chunk_length=chunk_length)
    return Prio3(circuit=circuit, algorithm_id=DRAFT_IDS["Histogram"], shares=shares)


def prio3_multihot_count_vec(length: int, max_weight: int, chunk_length: int, shares: int) -> Prio3:
    """Return Prio3MultihotCountVec (Field128, one proof)."""
    circuit = MultihotCountVec(length=length, max_weight=max_weight, chunk_length=chunk_length)
    return Prio3(circuit=circuit, algorithm_id=DRAFT_IDS["MultihotCountVec"], shares=shares)
