"""The design of a question: how each device answers, which noise each aggregator adds, and the consequences of both.

Windows, scenarios and plans produce a `Design`; statement, charge, opened outputs and noise for a target come from it
and from nowhere else, estimates and intervals from `fleetcount_analysis.reading` (docs/decisions/0012). It must not
hold a time, a key or a signal: these belong to the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

from fleetcount_mechanisms.answers import (
    AnswerForm,
    AnswerKind,
    AnswerLaw,
    Relation,
    Zooms,
    channel_of,
    kind_of,
    require_zooms,
)
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import RandomizedResponse

if TYPE_CHECKING:  # Loaded by `views`: a device that starts needs neither a statement nor its exact logarithms.
    from fleetcount_mechanisms.statement import AdversaryView

FEWEST_AGGREGATORS: Final = 2
MOST_AGGREGATORS: Final = 5
"""How many aggregators a question has, everywhere: windows, plans and scenarios."""

_RELATIONS: Final = {"one-cell": Relation.ANY_VALUE, "two-cell": Relation.ANY_VALUE} | {it.value: it for it in Relation}
"""The relation of each change a view is about; `Neighbours` are the two ways in which a value moves counts of cells."""


class Outputs(Enum):
    """Which sums are opened."""

    CELLS = "1..V"
    """Two rounds: output 0 of a difference has no further information. Truth: output 0 beside the cells would double
    the loss of a yes/no question, and in a one-sided release it moves against the side that noise protects."""
    ALL = "0..V"
    """The sum of all outputs stands for the number of devices: estimates need it, and no party may know it exactly."""
    PARTICIPATION = "participation, 1..V"
    """The same number for bit vectors: how many set the participation bit, then the cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLoss:
    """The loss that ledgers of devices and aggregators add up, for one relation.

    `epsilon` is rounded up, None if no finite one exists. The relation is any value, or none, replaced by any other;
    one-sided where no finite loss for that exists. With a `delta` above 0 the epsilon is not pure: a ledger that adds
    up pure epsilons refuses it.

    Raises:
        MechanismError: the relation is ANY_BIT: the loss of one bit is not that of a value.
    """

    epsilon: Decimal | None
    relation: Relation
    delta: Decimal = Decimal(0)

    @property
    def pure(self) -> bool:
        """Whether `epsilon` may be added to others as it is."""
        return self.epsilon is not None and self.delta == 0

    def __post_init__(self) -> None:
        """Check the relation."""
        if self.relation is Relation.ANY_BIT:
            raise MechanismError(f"relation is {self.relation.value!r}, allowed: 'any-value', 'one-sided'")


@dataclass(frozen=True, kw_only=True)
class Design:
    """One question's law: each device answers by `answer`, each of k `aggregators` adds `noise` to V `values`' sums.

    With `zooms` the values are the squares of a grid: the sums of larger squares are noised and opened beside them.

    Raises:
        MechanismError: an answer for another V, another number of aggregators than 2..5, or noise that does not go with
            the answer: the truth needs noise, one-sided noise goes with the truth alone. Zooms of another V, of answers
            that devices randomize, or without noise.
    """

    answer: AnswerLaw
    noise: NoiseLaw
    values: int
    aggregators: int
    zooms: Zooms | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit."""
        require_at_least("values", self.values, 1)
        if self.answer.values != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the answer's own {self.answer.values}")
        require_at_least("aggregators", self.aggregators, FEWEST_AGGREGATORS)
        if self.aggregators > MOST_AGGREGATORS:
            raise MechanismError(f"aggregators is {self.aggregators}, allowed: aggregators <= {MOST_AGGREGATORS}")
        if self.form is AnswerForm.TRUTH and not self.noised:
            raise MechanismError("a direct release has no noise, allowed: noise; nothing else protects the truth")
        if isinstance(self.noise, OneSidedNoise) and self.form is not AnswerForm.TRUTH:
            raise MechanismError(f"one-sided noise is on answers by {self.kind.name}, allowed: only on direct counts")
        if self.zooms is not None:
            self._check_zooms(self.zooms)

    def _check_zooms(self, zooms: Zooms) -> None:
        if zooms.sizes[0] != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the {zooms.sizes[0]} squares of the zooms' grid")
        require_zooms(self.answer, zooms.count)
        if not self.noised:
            raise MechanismError(f"zooms is {zooms.count} of exact counts, allowed: 1; a reader can add them up")

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the cached properties, for sending a design to another process."""
        return {part: self.__dict__[part] for part in ("answer", "noise", "values", "aggregators", "zooms")}

    @cached_property
    def kind(self) -> AnswerKind:
        """The family of the answer law."""
        return kind_of(self.answer)

    @property
    def form(self) -> AnswerForm:
        """What one answer is."""
        return self.kind.form

    @property
    def name(self) -> str:
        """The mechanism's one spelling; counts of the truth under one-sided noise are "one-sided"."""
        return "one-sided" if isinstance(self.noise, OneSidedNoise) else self.kind.name

    @property
    def noised(self) -> bool:
        """Whether the aggregators add noise to what they open."""
        return not isinstance(self.noise, NoNoise)

    @property
    def rounds(self) -> int:
        """How many messages a device sends for one answer: 2 for Sampling Privacy, otherwise 1."""
        return 2 if self.form is AnswerForm.TWO_ROUNDS else 1

    @property
    def device_randomizes(self) -> bool:
        """Whether each answer is a randomized response, with a finite loss of its own against every reader."""
        return self.form in (AnswerForm.POSITION, AnswerForm.BITS)

    @property
    def local_epsilon(self) -> float | None:
        """The loss of one answer alone where devices randomize it, for changes of the family's relation; else None."""
        return cast("RandomizedResponse", self.answer).epsilon if self.device_randomizes else None

    @property
    def outputs(self) -> Outputs:
        """Which sums are opened."""
        if self.form is AnswerForm.POSITION:
            return Outputs.ALL
        return Outputs.PARTICIPATION if self.form is AnswerForm.BITS else Outputs.CELLS

    @property
    def baseline_opened(self) -> bool:
        """Whether a number stands before those of the cells 1..V: output 0, or the participation bit."""
        return self.outputs is not Outputs.CELLS

    @property
    def summed_count(self) -> int:
        """How many sums the reports add up to: V, or V + 1 with the baseline."""
        return self.values + self.baseline_opened

    @property
    def output_count(self) -> int:
        """How many numbers the aggregators noise and open: the sums, and behind them those of every coarser zoom."""
        return self.summed_count + self.cell_count - self.values

    @property
    def cell_count(self) -> int:
        """How many of these numbers count a cell: V, or the squares of all zooms."""
        return self.values if self.zooms is None else sum(self.zooms.sizes)

    @property
    def zoom_count(self) -> int:
        """At how many zooms one answer is counted: 1, or the number of zooms."""
        return 1 if self.zooms is None else self.zooms.count

    def opened_sums(self, sums: Sequence[int]) -> list[int]:
        """Return the numbers to noise and open from `summed_count` sums: these, then those of every coarser zoom."""
        return list(sums) if self.zooms is None else self.zooms.all_sums(sums)

    @cached_property
    def channel(self) -> tuple[Fraction, Fraction]:
        """(P, Q): the chances that a device counts in cell v when its truth is v, and when it is not."""
        return channel_of(self.answer)

    @property
    def exposure(self) -> Fraction:
        """The chance that all aggregators together see a device's truth: P - Q, p of the die, 1 if direct.

        q of two coins, 2 keep - 1 of Warner, 1 - flip of Mangat (of one place of a vector), P - Q of k-ary.
        """
        hit, miss = self.channel
        return hit - miss

    def views(self) -> "tuple[AdversaryView, ...]":
        """Return the privacy statement: what each adversary could learn, one view an adversary, the public first."""
        return self._views

    @cached_property
    def _views(self) -> "tuple[AdversaryView, ...]":
        from fleetcount_mechanisms.statement import views_of  # Imported here: see TYPE_CHECKING above.

        return views_of(self.answer, self.noise, self.aggregators, self.zoom_count)

    @property
    def epsilon(self) -> Decimal | None:
        """The loss of the published result for `relation`, rounded up; None when it has no finite one."""
        return self.views()[0].epsilon

    @property
    def relation(self) -> Relation:
        """For which change of a device's truth `epsilon` holds.

        Raises:
            MechanismError: the public view is about a change that belongs to no relation of ledgers.
        """
        named = self.views()[0].neighbours
        if named not in _RELATIONS:
            raise MechanismError(f"neighbours is {named!r}, allowed: {', '.join(_RELATIONS)}")
        return _RELATIONS[named]

    @cached_property
    def ledger_loss(self) -> LedgerLoss:
        """What ledgers charge: the loss of any value replaced by any other, where there is one."""
        if self.relation is not Relation.ANY_BIT:
            stated = Decimal(0) if self.epsilon is None else self.views()[0].delta
            return LedgerLoss(epsilon=self.epsilon, relation=self.relation, delta=stated)
        from fleetcount_mechanisms.losses import stated_loss  # Imported here: see TYPE_CHECKING above.
        from fleetcount_mechanisms.randomness import rounded_up
        from fleetcount_mechanisms.statement import delta_up

        noise = cast("TwoSidedNoise | GaussianNoise", self.noise)
        loss, delta = stated_loss(self.answer, noise, any_value=True)
        return LedgerLoss(epsilon=rounded_up(loss), relation=Relation.ANY_VALUE, delta=delta_up(delta))
