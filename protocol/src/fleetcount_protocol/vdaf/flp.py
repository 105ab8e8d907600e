"""The fully linear proof of Prio3 (draft-irtf-cfrg-vdaf, section 7.3, FlpBBCGGI19): prove, query, decide.

It works on vectors of field elements; randomness is an argument. It neither shares nor encodes anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fleetcount_protocol.errors import UsageError, VerificationFailed
from fleetcount_protocol.vdaf.field import (
    PrimeField,
    double_values,
    evaluation_domain,
    extend_values,
    next_power_of_two,
)

GadgetCall = Callable[[Sequence[int]], int]
"""One call of the circuit's gadget: from its input wires to its output."""


class QueryPointError(VerificationFailed):
    """The query point is a node of the wire polynomials, where a verifier would reveal a wire (2**-62 a proof)."""


class Gadget(Protocol):
    """The only non-linear part of a circuit: a polynomial of `degree` in `arity` inputs."""

    @property
    def arity(self) -> int:
        """Number of input wires."""
        ...

    @property
    def degree(self) -> int:
        """Arithmetic degree, at least 1."""
        ...

    def evaluate(self, field: PrimeField, inputs: Sequence[int]) -> int:
        """Return the gadget's output on `arity` inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Mul:
    """The product of two wires (draft, section 7.4.1)."""

    @property
    def arity(self) -> int:
        """Two wires."""
        return 2

    @property
    def degree(self) -> int:
        """Degree two."""
        return 2

    def evaluate(self, field: PrimeField, inputs: Sequence[int]) -> int:
        """Return inputs[0] * inputs[1]."""
        return inputs[0] * inputs[1] % field.modulus


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMul:
    """The sum of `count` products of neighbouring wires: the draft's ParallelSum(Mul, count), section 7.4.3."""

    count: int

    @property
    def arity(self) -> int:
        """Two wires a product."""
        return 2 * self.count

    @property
    def degree(self) -> int:
        """Degree two."""
        return 2

    def evaluate(self, field: PrimeField, inputs: Sequence[int]) -> int:
        """Return inputs[0] * inputs[1] + inputs[2] * inputs[3] + ..."""
        return field.inner_product(inputs[0::2], inputs[1::2])


class Circuit(Protocol):
    """A validity circuit with one gadget, and the encoding of its measurements (draft, section 7.3.2: Valid).

    Every circuit of this project has exactly one kind of gadget; the draft allows more. Lengths are in field elements.
    `Any` is the measurement's type: each circuit declares its own and checks it in `encode`.
    """

    @property
    def name(self) -> str:
        """The circuit's name in vectors and documents, without the leading 'Prio3'."""
        ...

    @property
    def field(self) -> PrimeField:
        """The field of measurement, proof and outputs."""
        ...

    @property
    def gadget(self) -> Gadget:
        """The gadget (draft: GADGETS[0])."""
        ...

    @property
    def gadget_calls(self) -> int:
        """How often `evaluate` calls the gadget (draft: GADGET_CALLS[0])."""
        ...

    @property
    def measurement_length(self) -> int:
        """Elements of the encoded measurement (draft: MEAS_LEN)."""
        ...

    @property
    def joint_rand_length(self) -> int:
        """Elements of joint randomness a proof (draft: JOINT_RAND_LEN)."""
        ...

    @property
    def output_length(self) -> int:
        """Elements of the aggregatable output (draft: OUTPUT_LEN)."""
        ...

    @property
    def eval_output_length(self) -> int:
        """Elements of the circuit's output, all zero for a valid measurement (draft: EVAL_OUTPUT_LEN)."""
        ...

    def encode(self, measurement: Any) -> list[int]:
        """Return the encoded measurement, `measurement_length` elements.

        Raises:
            UsageError: a measurement that the circuit does not allow; the message does not show it.
        """
        ...

    def truncate(self, measurement: Sequence[int]) -> list[int]:
        """Return the output (a linear map, so that it works on shares)."""
        ...

    def decode(self, output: Sequence[int], measurements: int) -> Any:
        """Return the aggregate result from the sum of `measurements` outputs."""
        ...

    def evaluate(
        self, measurement: Sequence[int], joint_rand: Sequence[int], shares_inverse: int, call: GadgetCall
    ) -> list[int]:
        """Return the outputs for a share of the measurement; constants count as 1/shares, products come from `call`."""
        ...


class _Recorder:
    """Records the wires of every gadget call; the outputs come from the gadget or from the proof's polynomial."""

    __slots__ = ("_output", "rows")

    def __init__(self, seeds: Sequence[int], output: Callable[[int, Sequence[int]], int]) -> None:
        self.rows: list[Sequence[int]] = [seeds]
        self._output = output

    def __call__(self, inputs: Sequence[int]) -> int:
        """Record one call; return its output."""
        self.rows.append(inputs)
        return self._output(len(self.rows) - 1, inputs)


@dataclass(frozen=True, slots=True)
class Flp:
    """The proof system of one circuit: its lengths, and the prover's, verifiers' and decider's steps."""

    circuit: Circuit

    @property
    def wire_length(self) -> int:
        """Values of a wire polynomial: the seed and one a call, padded to a power of two (draft: wire_poly_len)."""
        return next_power_of_two(1 + self.circuit.gadget_calls)

    @property
    def gadget_length(self) -> int:
        """Values of the gadget polynomial in the proof (draft: gadget_poly_len)."""
        return self.circuit.gadget.degree * (self.wire_length - 1) + 1

    @property
    def prove_rand_length(self) -> int:
        """Elements of prover randomness: one seed a wire."""
        return self.circuit.gadget.arity

    @property
    def query_rand_length(self) -> int:
        """Elements of query randomness: the query point, and one weight an output when there are several."""
        outputs = self.circuit.eval_output_length
        return 1 + (outputs if outputs > 1 else 0)

    @property
    def proof_length(self) -> int:
        """Elements of one proof: wire seeds, gadget polynomial."""
        return self.circuit.gadget.arity + self.gadget_length

    @property
    def verifier_length(self) -> int:
        """Elements of one verifier: reduced output, wires at the query point, gadget polynomial there."""
        return self.circuit.gadget.arity + 2

    def prove(self, measurement: Sequence[int], prove_rand: Sequence[int], joint_rand: Sequence[int]) -> list[int]:
        """Return the proof for an encoded measurement, valid or not (device; draft: prove).

        Raises:
            UsageError: an argument has the wrong length.
        """
        circuit, field = self.circuit, self.circuit.field
        self._check_lengths(measurement, joint_rand)
        _check_length("prover randomness", prove_rand, self.prove_rand_length)
        # The prover sees the whole measurement, so the gadget is really evaluated; the verifiers read its outputs from
        # the proof instead, which is what the query checks.
        recorder = _Recorder(prove_rand, lambda _, inputs: circuit.gadget.evaluate(field, inputs))
        circuit.evaluate(measurement, joint_rand, 1, recorder)
        return [*prove_rand, *self._gadget_values(recorder.rows)]

    def query(
        self,
        measurement: Sequence[int],
        proof: Sequence[int],
        query_rand: Sequence[int],
        joint_rand: Sequence[int],
        shares_inverse: int,
    ) -> list[int]:
        """Return this aggregator's share of the verifier (draft: query); `shares_inverse` is 1/shares in the field.

        Raises:
            QueryPointError: the query point is a root of unity of the wire domain, so that the verifier would contain
                an input of the gadget.
            UsageError: an argument has the wrong length.
        """
        circuit, field = self.circuit, self.circuit.field
        self._check_lengths(measurement, joint_rand)
        _check_length("proof", proof, self.proof_length)
        _check_length("query randomness", query_rand, self.query_rand_length)
        point = query_rand[-1]
        wire_domain = evaluation_domain(field, self.wire_length)
        if wire_domain.contains(point):
            raise QueryPointError("the query point is a root of unity of the wire domain")
        arity = circuit.gadget.arity
        values = extend_values(field, proof[arity:])
        # The gadget polynomial lies on a finer domain than the wires: the output of call i is every step-th value.
        step = len(values) // self.wire_length
        recorder = _Recorder(proof[:arity], lambda index, _: values[index * step])
        outputs = circuit.evaluate(measurement, joint_rand, shares_inverse, recorder)
        # Random weights, so that wrong outputs do not cancel; the product ends with the outputs, before the point.
        reduced = outputs[0] if len(outputs) == 1 else field.inner_product(query_rand, outputs)
        # The values of a wire polynomial after the last call are zero.
        coefficients = wire_domain.lagrange_coefficients(point)
        wires = [field.inner_product(coefficients, column) for column in zip(*recorder.rows, strict=True)]
        gadget_domain = evaluation_domain(field, len(values))
        return [reduced, *wires, field.inner_product(gadget_domain.lagrange_coefficients(point), values)]

    def decide(self, verifier: Sequence[int]) -> bool:
        """Return whether the sum of all verifier shares proves the measurement valid (draft: decide).

        Raises:
            UsageError: a verifier of the wrong length.
        """
        _check_length("verifier", verifier, self.verifier_length)
        # First: the circuit's outputs are zero. Last: the outputs that the proof claims are those of the gadget, since
        # two different polynomials agree at a random point with probability degree/p only.
        expected = self.circuit.gadget.evaluate(self.circuit.field, verifier[1:-1])
        return verifier[0] == 0 and verifier[-1] == expected

    def _check_lengths(self, measurement: Sequence[int], joint_rand: Sequence[int]) -> None:
        _check_length("measurement", measurement, self.circuit.measurement_length)
        _check_length("joint randomness", joint_rand, self.circuit.joint_rand_length)

    def _gadget_values(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Return the gadget polynomial's first `gadget_length` values: the gadget applied to the wire polynomials."""
        # A gadget of degree d makes polynomials of d times the wires' degree, which need d times as many nodes.
        field, gadget = self.circuit.field, self.circuit.gadget
        padding = [0] * (self.wire_length - len(rows))
        size = next_power_of_two(self.gadget_length)
        wires = [_stretch(field, [*column, *padding], size) for column in zip(*rows, strict=True)]
        points = list(zip(*wires, strict=True))[: self.gadget_length]
        return [gadget.evaluate(field, inputs) for inputs in points]


def _stretch(field: PrimeField, values: list[int], size: int) -> list[int]:
    while len(values) < size:
        values = double_values(field, values)
    return values


def _check_length(what: str, vector: Sequence[int], length: int) -> None:
    if len(vector) != length:
        raise UsageError(f"{what} has {len(vector)} elements, not {length}")
