"""The families of answer laws: what one device's answer is, by which name, and with which parameters.

There is one row a family; a new mechanism is added here (CONTRIBUTING.md). `design` says what follows for a question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, cast

from fleetcount_mechanisms.errors import MechanismError, did_you_mean, require_at_least, require_between
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie

# On which side of a threshold a count is: the three answers and the one rule for them.
#
# The rule knows no confidence level: the caller says how certain its interval is.


class Side(Enum):
    """On which side of its threshold t a count is."""

    SAFE = "safe"
    """The count is at most t."""
    DANGER = "danger"
    """The count is above t."""
    UNKNOWN = "not known"
    """The interval contains counts on both sides of t."""


def side_of(low: int, high: int, threshold: int) -> Side:
    """Return the side of a count in `low` to `high`, both included; it is as certain as this interval is."""
    if high <= threshold:
        return Side.SAFE
    return Side.DANGER if low > threshold else Side.UNKNOWN


class AnswerForm(Enum):
    """What one device's answer is, and so which circuit proves it and how answers add up."""

    TWO_ROUNDS = "two rounds"
    """A position 0..V in each of two rounds; what adds up is round two minus round one (Sampling Privacy)."""
    TRUTH = "truth"
    """The true position 0..V, or the set of true ones, in shares: privacy is the aggregators' noise alone (direct)."""
    POSITION = "position"
    """One position 0..V, randomized by the device."""
    BITS = "bits"
    """One bit a cell, each randomized by the device, behind a first bit that is always 1."""


class Relation(Enum):
    """For which change of one device's truth a loss holds; ledgers add up losses of one relation."""

    ANY_VALUE = "any-value"
    """Any value, or none, replaced by any other."""
    ANY_BIT = "any-bit"
    """One place of a vector changed; m places cost m times as much."""
    ONE_SIDED = "one-sided"
    """Value to none only: the other way no finite loss exists."""
    ONE_SIDED_DOWN = "one-sided-down"
    """None to value only, the mirror image: that a device has a value may leak."""
    ASYMMETRIC = "asymmetric"
    """A value to one that hides it, by the answer law's `hides`; both differ from question to question."""

    @property
    def one_way(self) -> bool:
        """Whether a loss by it says nothing of the reverse change; losses of two such relations never add up."""
        return self not in (Relation.ANY_VALUE, Relation.ANY_BIT)

    @property
    def hidden(self) -> str:
        """What is hidden behind what, in words, where that is one way only."""
        return _HIDDEN[self]


_HIDDEN: Final = {
    Relation.ANY_VALUE: "any value behind any other",
    Relation.ANY_BIT: "any place of a vector behind its reverse",
    Relation.ONE_SIDED: "a value behind none",
    Relation.ONE_SIDED_DOWN: "none behind a value",
    Relation.ASYMMETRIC: "a value behind those that hide it",
}


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer law of direct mode: the truth itself, for V = `values`, of which a device has `most` at once at most.

    Raises:
        MechanismError: V below 1, or `most` not in 1..V.
    """

    values: int
    most: int = 1

    def __post_init__(self) -> None:
        """Check both numbers."""
        require_at_least("values", self.values, 1)
        require_between("number of values at once", self.most, 1, self.values)


BitVectorResponse = MangatVector | OptimizedUnaryEncoding | AsymmetricVector
AnswerLaw = SamplingDie | Truth | RandomizedResponse | BitVectorResponse
"""The law of one device's answer; `register_answer` adds another family of responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKind:
    """What a design must know of a family of answer laws; one row a family, all rows in this module.

    `parameters` are the law's own exact probabilities, by the names of its attributes, those in `defaults` optional;
    `flips` means that it also takes one of `Flips` for each value, BOTH without them.
    `make(values, parameters)` and `from_epsilon(epsilon, values, parameters)` return the law; the latter is None for a
    law without a local loss. `relation` is the change for which the loss of a single opened answer holds; `multi_hot`
    means that the truth is a set of values.
    """

    law: type
    name: str
    form: AnswerForm
    make: Callable[[int, Mapping[str, Any]], Any]
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Fraction] = field(default_factory=lambda: MappingProxyType({}))
    from_epsilon: Callable[[Fraction, int, Mapping[str, Any]], Any] | None = None
    flips: bool = False
    relation: Relation = Relation.ANY_VALUE
    multi_hot: bool = False

    @property
    def own(self) -> str:
        """The parameter that a question may give in place of the loss of one answer."""
        return self.parameters[0]


_KINDS: Final[dict[type, AnswerKind]] = {}


def register_answer(kind: AnswerKind) -> None:
    """Make a family of answer laws known to designs.

    Raises:
        MechanismError: its law or its name is known already.
    """
    if kind.law in _KINDS or kind.name in answer_names():
        raise MechanismError(f"answer {kind.name!r} of {kind.law.__name__} is registered twice; allowed: once")
    _KINDS[kind.law] = kind


def kind_of(answer: AnswerLaw) -> AnswerKind:
    """Return the family of an answer law.

    Raises:
        MechanismError: the value is not an answer law.
    """
    return kind_of_law(type(answer))


def kind_of_law(law: type) -> AnswerKind:
    """Return the family of a class of answer laws.

    Raises:
        MechanismError: the class is not an answer law.
    """
    kind = _KINDS.get(law)
    if kind is None:
        raise MechanismError(f"answer is a {law.__name__}, allowed: {', '.join(answer_names())}")
    return kind


def answer_names() -> tuple[str, ...]:
    """Return the name of every family, the one spelling of it in question files, scenarios, records and documents."""
    return tuple(kind.name for kind in _KINDS.values())


def kind_named(name: str) -> AnswerKind:
    """Return the family of a name.

    Raises:
        MechanismError: no such name.
    """
    for kind in _KINDS.values():
        if kind.name == name:
            return kind
    hint = did_you_mean(name, answer_names())
    raise MechanismError(f"answer is {name!r}, allowed: {', '.join(answer_names())}{hint}")


def answer_named(
    name: str,
    values: int,
    *,
    epsilon_local: Fraction | None = None,
    parameters: Mapping[str, Fraction] | None = None,
    flips: Sequence[Flips] = (),
) -> AnswerLaw:
    """Return the law of a family for V values, from its own parameters or else for the loss of one answer.

    Raises:
        MechanismError: a parameter is missing, unknown or outside its range, or a yes/no law is asked V > 1 values;
            `epsilon_local` or `flips` of a family that takes none, or not V flips.
    """
    kind = kind_named(name)
    given: dict[str, Any] = {**kind.defaults, **(parameters or {})}
    if flips and not kind.flips:
        raise MechanismError(f"flips are given to {name}, allowed: to {', '.join(_with_flips())}")
    for unknown in set(given) - set(kind.parameters):
        known = ", ".join(kind.parameters) or "none"
        raise MechanismError(f"parameter {unknown!r} of {name} is unknown, allowed: {known}")
    if epsilon_local is not None and kind.from_epsilon is None:
        raise MechanismError(f"epsilon_local is given to {name}, allowed: to answers that devices randomize")
    if kind.flips:
        given["flips"] = tuple(flips) or (Flips.BOTH,) * values
    if epsilon_local is not None and kind.from_epsilon is not None:
        law = kind.from_epsilon(epsilon_local, values, given)
    else:
        for missing in [one for one in kind.parameters if one not in given]:
            raise MechanismError(f"{missing} is missing" + (", or epsilon_local" if kind.from_epsilon else ""))
        law = kind.make(values, given)
    if law.values != values and kind.flips:
        raise MechanismError(f"flips are of {law.values} values, allowed: of all {values}")
    if law.values != values:
        raise MechanismError(f"{name!r} answers yes or no, V = 1; this question has V = {values}")
    return cast("AnswerLaw", law)


def _with_flips() -> list[str]:
    return [kind.name for kind in _KINDS.values() if kind.flips]


def most_of(answer: AnswerLaw) -> int:
    """Return how many values of a device direct answers tell at once at most; 1 for all other laws."""
    return answer.most if isinstance(answer, Truth) else 1


def channel_of(answer: AnswerLaw) -> tuple[Fraction, Fraction]:
    """Return (P, Q): the chances that a device counts in cell v when its truth is v, and when it is not.

    An answer is a mixture of the truth, with weight P - Q, and of a draw that ignores it. Where cells differ it is the
    channel of those that tell least (`channels_of`).
    """
    form = kind_of(answer).form
    if form is AnswerForm.TRUTH:
        return Fraction(1), Fraction(0)
    if form is AnswerForm.TWO_ROUNDS:
        return cast("SamplingDie", answer).sampling_rate, Fraction(0)
    if form is AnswerForm.BITS:
        return min(distinct_channels(answer), key=lambda channel: channel[0] - channel[1])
    law = cast("RandomizedResponse", answer).probability
    return law(1, 1), law(1, 0)


def distinct_channels(answer: AnswerLaw) -> list[tuple[Fraction, Fraction]]:
    """Return each channel that some cell has."""
    if kind_of(answer).form is not AnswerForm.BITS:
        return [channel_of(answer)]
    return [(law.given_yes, law.given_no) for law, _ in cast("BitVectorResponse", answer).counted_laws]


def channels_of(answer: AnswerLaw) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return the channel of every cell 1..V."""
    if kind_of(answer).form is not AnswerForm.BITS:
        return (channel_of(answer),) * answer.values
    return tuple((law.given_yes, law.given_no) for law in cast("BitVectorResponse", answer).bit_laws)


def _uniform_die(values: int, given: Mapping[str, Fraction]) -> SamplingDie:
    return SamplingDie.uniform(given["sampling_rate"], values)


_ONE_HALF: Final = MappingProxyType({"yes_probability": Fraction(1, 2)})

for _kind in (
    AnswerKind(
        law=SamplingDie,
        name="sampling",
        form=AnswerForm.TWO_ROUNDS,
        make=_uniform_die,
        parameters=("sampling_rate",),
    ),
    AnswerKind(law=Truth, name="direct", form=AnswerForm.TRUTH, make=lambda values, given: Truth(values)),
    AnswerKind(
        law=TwoCoin,
        name="two-coin",
        form=AnswerForm.POSITION,
        make=lambda values, given: TwoCoin(given["truth_probability"], given["yes_probability"]),
        parameters=("truth_probability", "yes_probability"),
        defaults=_ONE_HALF,
        from_epsilon=lambda epsilon, values, given: TwoCoin.from_epsilon(epsilon, given["yes_probability"]),
    ),
    AnswerKind(
        law=Warner,
        name="warner",
        form=AnswerForm.POSITION,
        make=lambda values, given: Warner(given["keep"]),
        parameters=("keep",),
        from_epsilon=lambda epsilon, values, given: Warner.from_epsilon(epsilon),
    ),
    AnswerKind(
        law=Mangat,
        name="mangat",
        form=AnswerForm.POSITION,
        make=lambda values, given: Mangat(given["flip"]),
        parameters=("flip",),
        from_epsilon=lambda epsilon, values, given: Mangat.from_epsilon(epsilon),
        relation=Relation.ONE_SIDED,
    ),
    AnswerKind(
        law=MangatVector,
        name="mangat-vector",
        form=AnswerForm.BITS,
        make=lambda values, given: MangatVector(given["flip"], values),
        parameters=("flip",),
        from_epsilon=lambda epsilon, values, given: MangatVector.from_epsilon(epsilon, values),
        relation=Relation.ONE_SIDED,
        multi_hot=True,
    ),
    AnswerKind(
        law=KaryResponse,
        name="k-ary",
        form=AnswerForm.POSITION,
        make=lambda values, given: KaryResponse(given["keep"], values),
        parameters=("keep",),
        from_epsilon=lambda epsilon, values, given: KaryResponse.from_epsilon(epsilon, values),
    ),
    AnswerKind(
        law=OptimizedUnaryEncoding,
        name="unary",
        form=AnswerForm.BITS,
        make=lambda values, given: OptimizedUnaryEncoding(given["flip"], values),
        parameters=("flip",),
        from_epsilon=lambda epsilon, values, given: OptimizedUnaryEncoding.from_epsilon(epsilon, values),
    ),
    AnswerKind(
        law=AsymmetricVector,
        name="asymmetric",
        form=AnswerForm.BITS,
        make=lambda values, given: AsymmetricVector(given["flip"], given["flips"]),
        parameters=("flip",),
        from_epsilon=lambda epsilon, values, given: AsymmetricVector.from_epsilon(epsilon, given["flips"]),
        flips=True,
        relation=Relation.ASYMMETRIC,
    ),
):
    register_answer(_kind)


_FORMS_WITH_LEVELS: Final = (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH)


def require_levels(answer: AnswerLaw, levels: int) -> int:
    """Return the number of levels at which answers by this law may be opened.

    Raises:
        MechanismError: levels below 1, or above 1 for answers that devices randomize.
    """
    if require_at_least("levels", levels, 1) > 1 and kind_of(answer).form not in _FORMS_WITH_LEVELS:
        # Their error comes from the devices: a reader who adds up the cells gets the same error.
        raise MechanismError(
            f"levels is {levels} of answers by {kind_of(answer).name}, allowed: 1; for answers that devices randomize"
            " a larger cell or a total is no more accurate than the sum of its cells"
        )
    return levels
