"""How one device answers, as the two numbers an engine draws with; and which numbers a release opens.

Takes the exact law from `mechanism_laws` and rounds it to floats for drawing; it draws nothing itself.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.responses import KaryResponse, MangatVector, OptimizedUnaryEncoding
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Mechanism
from fleetcount_simulator.scenario.laws import Law, law_of

__all__ = ["AnswerLaw", "Shape", "answer_law"]

Shape = Literal["sampling", "binary", "k-ary", "bits", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLaw:
    """The law of a device's answer to a question of V values.

    `hit` and `miss` are, by shape: "sampling": p and (1-p)/(V+1), the chance of being sampled and of each other face.
    "binary": P[Yes | Yes], P[Yes | No]. "k-ary": P[v | v], P[v | another]. "bits": P[a bit is 1 | it is 1], P[.. | it
    is 0]. "truth": 1 and 0.
    """

    shape: Shape
    values: int
    hit: float
    miss: float

    @property
    def rounds(self) -> int:
        """How many messages a device sends: 2 for sampling, otherwise 1."""
        return 2 if self.shape == "sampling" else 1

    @property
    def with_zero(self) -> bool:
        """Whether the release opens output 0 as well."""
        return self.shape in {"binary", "k-ary"}

    @property
    def outputs(self) -> int:
        """How many numbers a release opens: V, or V+1 with output 0 first."""
        return self.values + 1 if self.with_zero else self.values


def answer_law(mechanism: Mechanism, values: int) -> AnswerLaw:
    """Return the law of a device's answer for V values.

    Raises:
        ScenarioError: a parameter is missing or outside its range, the kind does not answer V values, or a kind whose
            privacy is the aggregators' noise alone has none.
    """
    if mechanism.kind in {"direct", "one-sided"} and mechanism.noise_epsilon is None:
        raise ScenarioError(f"mechanism {mechanism.name!r}: kind {mechanism.kind!r} needs noise_epsilon")
    if mechanism.kind == "one-sided" and mechanism.direction not in {"up", "down"}:
        raise ScenarioError(
            f"mechanism {mechanism.name!r}: direction is {mechanism.direction!r}; allowed: 'up', 'down'"
        )
    try:
        exact = law_of(mechanism, values)
    except MechanismError as error:
        raise ScenarioError(f"mechanism {mechanism.name!r}: {error}") from error
    shape, hit, miss = _numbers(exact)
    return AnswerLaw(shape=shape, values=values, hit=float(hit), miss=float(miss))


def _numbers(law: Law) -> tuple[Shape, Fraction, Fraction]:
    """Return the shape of a law with its `hit` and `miss`, exact."""
    match law:
        case None:
            return "truth", Fraction(1), Fraction(0)
        case SamplingDie():
            return "sampling", law.sampling_rate, law.face_probability(0)
        case KaryResponse():
            return "k-ary", law.keep, law.other
        case MangatVector() | OptimizedUnaryEncoding():
            return "bits", law.bit_probability(1, 1), law.bit_probability(1, 0)
        case _:
            return "binary", law.probability(1, 1), law.probability(1, 0)
