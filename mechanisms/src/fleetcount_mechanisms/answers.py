"""The families of answer laws: what one device's answer is, by which name, and with which parameters.

There is one row a family; a new mechanism is added here (CONTRIBUTING.md). `design` says what follows for a question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, cast

from fleetcount_mechanisms.errors import MechanismError, did_you_mean, require_at_least
from fleetcount_mechanisms.responses import (
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
    """The true position 0..V, in shares: privacy is the aggregators' noise alone (direct mode)."""
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
    """Value to none only (or the mirror image): the other way no finite loss exists."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer law of direct mode: the truth itself, for V = `values`.

    Raises:
        MechanismError: V below 1.
    """

    values: int

    def __post_init__(self) -> None:
        """Check V."""
        require_at_least("values", self.values, 1)


BitVectorResponse = MangatVector | OptimizedUnaryEncoding
AnswerLaw = SamplingDie | Truth | RandomizedResponse | BitVectorResponse
"""The law of one device's answer; `register_answer` adds another family of responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKind:
    """What a design must know of a family of answer laws; one row a family, all rows in this module.

    `parameters` are the law's own exact probabilities, by the names of its attributes, those in `defaults` optional.
    `make(values, parameters)` and `from_epsilon(epsilon, values, parameters)` return the law; the latter is None for a
    law without a local loss. `relation` is the change for which the loss of a single opened answer holds; `multi_hot`
    means that the truth is a set of values.
    """

    law: type
    name: str
    form: AnswerForm
    make: Callable[[int, Mapping[str, Fraction]], Any]
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Fraction] = field(default_factory=lambda: MappingProxyType({}))
    from_epsilon: Callable[[Fraction, int, Mapping[str, Fraction]], Any] | None = None
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
    name: str, values: int, *, epsilon_local: Fraction | None = None, parameters: Mapping[str, Fraction] | None = None
) -> AnswerLaw:
    """Return the law of a family for V values, from its own parameters or else for the loss of one answer.

    Raises:
        MechanismError: a parameter is missing, unknown or outside its range, or a yes/no law is asked V > 1 values.
    """
    kind = kind_named(name)
    given = {**kind.defaults, **(parameters or {})}
    for unknown in set(given) - set(kind.parameters):
        raise MechanismError(f"parameter {unknown!r} of {name} is unknown, allowed: {', '.join(kind.parameters)}")
    if epsilon_local is not None and kind.from_epsilon is not None:
        law = kind.from_epsilon(epsilon_local, values, given)
    else:
        for missing in [one for one in kind.parameters if one not in given]:
            raise MechanismError(f"{missing} is missing" + (", or epsilon_local" if kind.from_epsilon else ""))
        law = kind.make(values, given)
    if law.values != values:
        raise MechanismError(f"{name!r} answers yes or no, V = 1; this question has V = {values}")
    return cast("AnswerLaw", law)


def channel_of(answer: AnswerLaw) -> tuple[Fraction, Fraction]:
    """Return (P, Q): the chances that a device counts in cell v when its truth is v, and when it is not.

    An answer is a mixture of the truth, with weight P - Q, and of a draw that ignores it.
    """
    form = kind_of(answer).form
    if form is AnswerForm.TRUTH:
        return Fraction(1), Fraction(0)
    if form is AnswerForm.TWO_ROUNDS:
        return cast("SamplingDie", answer).sampling_rate, Fraction(0)
    if form is AnswerForm.BITS:
        law = cast("BitVectorResponse", answer).bit_probability
    else:
        law = cast("RandomizedResponse", answer).probability
    return law(1, 1), law(1, 0)


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
):
    register_answer(_kind)


# One report counted at several zooms: the squares of a grid, and above them squares of two, four, ... times the side.
#
# The only place that defines which square lies in which, how many numbers there are and their order. It must not know
# noise, a share or a place on earth.

_FORMS_WITH_ZOOMS = (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH)


@dataclass(frozen=True, slots=True)
class Zooms:
    """A grid of `columns` times `rows` squares counted at `count` zooms, zoom 0 the squares that devices report.

    Square i of a zoom (from 0, row by row) is in column i % columns. A square of zoom z holds four of zoom z - 1. The
    coarsest zoom has two squares or more: so a device that moves between any two values moves at most two numbers of
    every zoom, and one that moves far enough moves two of all of them.

    Raises:
        MechanismError: fewer than 2 zooms, or more than `most_zooms` of the grid.
    """

    columns: int
    rows: int
    count: int

    def __post_init__(self) -> None:
        """Check that every zoom divides the grid."""
        most = most_zooms(self.columns, self.rows)
        if require_at_least("zooms", self.count, 2) > most:
            raise MechanismError(
                f"zooms is {self.count} of a grid of {self.columns} by {self.rows} squares, allowed: {most} at most;"
                " both sides are halved for each, and two squares are left"
            )

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """(Columns, rows) of every zoom, finest first."""
        return tuple((self.columns >> zoom, self.rows >> zoom) for zoom in range(self.count))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many squares every zoom has, finest first."""
        return tuple(columns * rows for columns, rows in self.grids)

    def parents(self, zoom: int) -> tuple[int, ...]:
        """Return for every square of a zoom the square of the next coarser one that holds it, both from 0."""
        columns, rows = self.grids[zoom]
        return tuple(row // 2 * (columns // 2) + column // 2 for row in range(rows) for column in range(columns))

    def all_sums(self, finest: Sequence[int]) -> list[int]:
        """Return the numbers of every zoom, finest first, from those of the finest: what is noised and opened.

        Run by aggregators on sums of shares and by simulators. A caller that counts modulo a prime reduces afterwards.

        Raises:
            MechanismError: the numbers are not as many as the squares of the finest zoom.
        """
        if len(finest) != self.sizes[0]:
            raise MechanismError(f"there are {len(finest)} sums, allowed: the {self.sizes[0]} of the grid")
        found, below = list(finest), list(finest)
        for zoom, size in enumerate(self.sizes[1:]):
            above = [0] * size
            for one, parent in zip(below, self.parents(zoom), strict=True):
                above[parent] += one
            found += above
            below = above
        return found


def most_zooms(columns: int, rows: int) -> int:
    """Return the most zooms of a grid: both sides are even but for the coarsest, which has two squares or more.

    Raises:
        MechanismError: no column or no row.
    """
    require_at_least("columns", columns, 1)
    require_at_least("rows", rows, 1)
    most = 1
    while columns % 2 == rows % 2 == 0 and columns * rows > 4:
        columns, rows, most = columns // 2, rows // 2, most + 1
    return most


def require_zooms(answer: AnswerLaw, zooms: int) -> int:
    """Return the number of zooms at which answers by this law may be counted.

    Raises:
        MechanismError: zooms below 1, or above 1 for answers that devices randomize.
    """
    if require_at_least("zooms", zooms, 1) > 1 and kind_of(answer).form not in _FORMS_WITH_ZOOMS:
        # Their error comes from the devices: a reader who adds up the finest squares gets the same error.
        raise MechanismError(
            f"zooms is {zooms} of answers by {kind_of(answer).name}, allowed: 1; for answers that devices randomize"
            " a coarser zoom is no more accurate than the sum of its squares"
        )
    return zooms
