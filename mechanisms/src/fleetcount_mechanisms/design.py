"""The design of a question: how each device answers, which noise each aggregator adds, and the consequences of both.

Windows, scenarios and plans produce a `Design`; statement, charge, opened outputs and noise for a target come from it
and from nowhere else, estimates and intervals from `fleetcount_analysis.reading` (decision 12). It must not
hold a time, a key or a signal: these belong to the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Final, cast

from fleetcount_mechanisms.answers import (
    AnswerForm,
    AnswerKind,
    AnswerLaw,
    Relation,
    channel_of,
    channels_of,
    distinct_channels,
    kind_of,
    most_of,
    require_levels,
)
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.levels import Levels, Move, drawn_at_once, worst_moves
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise
from fleetcount_mechanisms.responses import AsymmetricVector, RandomizedResponse

FEWEST_AGGREGATORS: Final = 2
MOST_AGGREGATORS: Final = 5
"""How many aggregators a question has, everywhere: windows, plans and scenarios."""

_CELLS: Final = Levels(1)
"""The cells alone, of whichever V a design has."""


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

    `levels` says what is opened, without it the cells alone. `noise` is that of the cells, `coarser` has the noise of
    every level above them, without it that of the cells.

    Raises:
        MechanismError: an answer for another V, another number of aggregators than 2..5, or noise that does not go with
            the answer: the truth needs noise, one-sided noise goes with the truth alone. Levels of another V, of
            answers that devices randomize, without noise or with noise of several families. A total of one-sided
            counts; margins or a weighted sum of anything but direct counts with two-sided noise. Sampled answers with
            levels of unequal noise, but for a total beside the cells alone, under Gaussian noise of a whole multiple of
            their variance.
    """

    answer: AnswerLaw
    noise: NoiseLaw
    values: int
    aggregators: int
    levels: Levels = _CELLS
    coarser: tuple[NoiseLaw, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parts fit."""
        require_at_least("values", self.values, 1)
        if self.levels.count == 1:
            object.__setattr__(self, "levels", Levels(self.values, most=most_of(self.answer)))
        if not self.coarser:
            object.__setattr__(self, "coarser", (self.noise,) * (self.levels.count - 1))
        if self.answer.values != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the answer's own {self.answer.values}")
        require_at_least("aggregators", self.aggregators, FEWEST_AGGREGATORS)
        if self.aggregators > MOST_AGGREGATORS:
            raise MechanismError(f"aggregators is {self.aggregators}, allowed: aggregators <= {MOST_AGGREGATORS}")
        if self.form is AnswerForm.TRUTH and not self.noised:
            raise MechanismError("a direct release has no noise, allowed: noise; nothing else protects the truth")
        if isinstance(self.noise, OneSidedNoise) and most_of(self.answer) > 1:
            raise MechanismError("one-sided noise is on sets of values, allowed: on counts of single values")
        if isinstance(self.noise, OneSidedNoise) and self.form is not AnswerForm.TRUTH:
            raise MechanismError(f"one-sided noise is on answers by {self.kind.name}, allowed: only on direct counts")
        self._check_levels()

    def _check_levels(self) -> None:
        levels = self.levels
        if levels.values != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the {levels.values} cells of the levels")
        if levels.most != most_of(self.answer):
            raise MechanismError(f"levels are of {levels.most} values a device, allowed: {most_of(self.answer)}")
        if len(self.coarser) != levels.count - 1:
            raise MechanismError(f"there are noises of {1 + len(self.coarser)} levels, allowed: of {levels.count}")
        if require_levels(self.answer, levels.count) == 1:
            return
        if not self.noised:
            raise MechanismError(f"levels is {levels.count} of exact counts, allowed: 1; a reader can add them up")
        if any(type(law) is not type(self.noise) for law in self.coarser):
            raise MechanismError(f"levels have noise of several laws, allowed: all {self.noise.name}")
        self._check_rows()
        if isinstance(self.noise, OneSidedNoise):
            self._check_one_sided(self.noise)
        if self.form is AnswerForm.TWO_ROUNDS:
            self._check_sampled()

    def _check_rows(self) -> None:
        if self.levels.nested or (self.form is AnswerForm.TRUTH and not isinstance(self.noise, OneSidedNoise)):
            return
        what = "a weighted sum is" if self.levels.weighted else "margins are"
        raise MechanismError(
            f"{what} asked of {self.name} answers, allowed: of direct ones with two-sided noise; what others lose by"
            " them was not worked out"
        )

    def _check_one_sided(self, noise: OneSidedNoise) -> None:
        if self.levels.total:
            raise MechanismError("a total is asked of one-sided counts, allowed: of counts with two-sided noise")
        if any(cast("OneSidedNoise", law).direction != noise.direction for law in self.coarser):
            raise MechanismError(f"levels have noise of both directions, allowed: all {noise.direction!r}")

    def _check_sampled(self) -> None:
        # What levels of unequal noise lose under one toss of a coin was worked out for the total alone.
        if not self.levels.total:
            if set(self.coarser) != {self.noise}:
                raise MechanismError("zooms of sampled answers have unequal noise, allowed: equal shares; direct: any")
            return
        ratio = self.total_ratio
        if self.levels.count > 2 or ratio is None or ratio.denominator != 1:
            raise MechanismError(
                "a total of sampled answers is allowed beside the cells alone, with Gaussian noise of a whole multiple"
                " of their variance"
            )

    @property
    def total_ratio(self) -> Fraction | None:
        """The variance parameter of the total's Gaussian noise in those of a cell; None without such a total."""
        law = self.coarser[-1] if self.levels.total else None
        if not isinstance(law, GaussianNoise) or not isinstance(self.noise, GaussianNoise):
            return None
        return law.variance / self.noise.variance

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the cached properties, for sending a design to another process."""
        return {part: self.__dict__[part] for part in ("answer", "noise", "values", "aggregators", "levels", "coarser")}

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
    def charge_relation(self) -> Relation:
        """For which change of the truth the charges of ledgers hold: any value, or one way.

        Losses one way enter a ledger for this change alone; a ledger that promises more refuses them.
        """
        if isinstance(self.noise, OneSidedNoise):
            return Relation.ONE_SIDED if self.noise.direction == "up" else Relation.ONE_SIDED_DOWN
        return self.kind.relation if self.device_randomizes and not self.noised else Relation.ANY_VALUE

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
        """How many sums the reports add up to: V, or V + 1 with the baseline, or with the total of sets."""
        return self.values + self.baseline_opened + (self.levels.most > 1 and self.levels.total)

    @property
    def output_count(self) -> int:
        """How many numbers the aggregators noise and open: the sums, and behind them those of every coarser level."""
        return self.baseline_opened + self.levels.opened

    @property
    def cell_count(self) -> int:
        """How many of these numbers count a cell: V, or the cells of all levels."""
        return self.levels.opened

    def opened_sums(self, sums: Sequence[int]) -> list[int]:
        """Return the numbers to noise and open from `summed_count` sums: these, then those of every coarser level."""
        return list(sums) if self.levels.count == 1 else self.levels.all_sums(sums)

    @property
    def laws(self) -> tuple[NoiseLaw, ...]:
        """The noise of every level, that of the cells first."""
        return self.noise, *self.coarser

    @property
    def opened_noise(self) -> tuple[tuple[NoiseLaw, int], ...]:
        """What every aggregator draws, as (law, how many numbers in a row have it), in the order of what is opened."""
        sizes = (self.values + self.baseline_opened, *self.levels.sizes[1:])
        return drawn_at_once(zip(self.laws, sizes, strict=True))

    @property
    def moved_in_level(self) -> int:
        """How many opened numbers of a level a changed answer moves: two, or one if there is one cell only."""
        return 1 if self.values == 1 and self.outputs is not Outputs.ALL else 2

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The worst moves of one changed answer: the noises of the opened numbers that change, and by how much."""
        return worst_moves(self.levels, self.laws, alone=self.moved_in_level == 1)

    @cached_property
    def channel(self) -> tuple[Fraction, Fraction]:
        """(P, Q): the chances that a device counts in cell v when its truth is v, and when it is not (`channel_of`)."""
        return channel_of(self.answer)

    @cached_property
    def channels(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """The same of every cell 1..V, which differ where values are protected differently."""
        return channels_of(self.answer)

    @cached_property
    def told_as(self) -> tuple[int, ...]:
        """For every cell the first one that is told in the same way: 1 where all are."""
        if not isinstance(self.answer, AsymmetricVector):
            return (1,) * self.values
        return tuple(self.answer.flips.index(one) + 1 for one in self.answer.flips)

    def all_told_as(self, cell: int) -> "Design":
        """Return the design in which every value is told as that of a cell is."""
        if not isinstance(self.answer, AsymmetricVector):
            return self
        answer = AsymmetricVector(self.answer.flip, (self.answer.flips[cell - 1],) * self.values)
        return replace(self, answer=answer)

    @property
    def exposure(self) -> Fraction:
        """The chance that all aggregators together see a device's truth: P - Q, p of the die, 1 if direct.

        q of two coins, 2 keep - 1 of Warner, 1 - flip of Mangat (of one place of a vector), P - Q of k-ary. Where cells
        differ it is that of those that tell most.
        """
        return max(hit - miss for hit, miss in distinct_channels(self.answer))
