"""The audited designs, every one that a question can have, and the neighbouring truths that a view's claim is about.

This module chooses parameters only: it draws nothing and contains no formula of a loss.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, cast

from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Relation, Truth, answer_named
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import STATED_DELTA, Neighbours
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import noise_for
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.responses import AsymmetricVector, Flips
from fleetcount_mechanisms.statement import AdversaryView, of_levels, views_of
from fleetcount_protocol.question.fields import Coin, Schedule
from fleetcount_simulator.errors import ScenarioError

DeviceTruth = tuple[int, ...]
"""One device's truth as V bits: all 0 for "none of them", several 1 only where an answer is a set of values."""
Audience = tuple[DeviceTruth, DeviceTruth]

_AGGREGATORS: Final = (2, 3, 5)
_RELEASE_EPSILON: Final = Fraction(1)
_LOCAL_EPSILON: Final = Fraction(1)
_NOISED_RESPONSE_EPSILON: Final = Fraction(1, 2)
_GAUSSIAN: Final = GaussianNoise(Fraction(4))
_GAUSSIAN_ON_RESPONSES: Final = GaussianNoise(Fraction(64))
"""Wide enough that the noise gives a smaller loss than the devices' own coins."""
_ZOOMS: Final = Levels(8, (4, 2), (1, 2))
"""Audited with the noise of the other designs, so that no further law has to be checked."""
_TOTAL: Final = Levels(3, total=True)
_WEIGHTED: Final = Levels(3, weighted=True, total=True)
_SETS: Final = Levels(3, most=2, total=True)
"""The number of devices with any has the noise of a cell: at that one it is free for two of three values."""
_MARGINS: Final = Levels(4, margins=(2, 2), total=True)
_WIDER: Final = GaussianNoise(Fraction(16))
"""A total of sampled answers has four times the variance of a cell."""
_WIDEST: Final = GaussianNoise(Fraction(32))
"""And eight times below a rate of 1/5."""
_MOST_VALUES: Final = 2
"""Of more the truths are three: the trials of a truth fall with their number."""
_YES_NO: Final = ("two-coin", "warner", "mangat")
_MANY: Final = ("mangat-vector", "k-ary", "unary", "asymmetric")
ONE_WINDOW: Final = "one-window"
"""The name of all designs that ask each device in one window of several."""
DESIGN_NAMES: Final = ("sampling", *_YES_NO, *_MANY, "direct", "one-sided", ONE_WINDOW)
"""The designs by `Design.name`, and `ONE_WINDOW`."""
_ONE_IN: Final = 5
"""A question covers 30 days; the law is the same for any number of windows, and of few an attack sees each often."""
_ONE_IN_SHARES: Final = {
    ("warner", 1): Fraction(27, 100),
    ("k-ary", 2): Fraction(26, 100),
    ("k-ary", 4): Fraction(42, 100),
}
"""Of the trials of `ONE_WINDOW` alone, for the answers whose gap is reported: what comes to a like gap of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedDesign:
    """A design under audit and its `share` of the trials; `one_a_call`: each release's noise in a call of its own.

    With `one_in` W above 1 the question has W windows, and the device is asked in one of them.
    """

    design: Design
    share: Fraction = Fraction(0)
    one_a_call: bool = False
    one_in: int = 1

    @property
    def views(self) -> tuple[AdversaryView, ...]:
        """The lines of the statement that is attacked: of one release, or of the question of `one_in` windows."""
        if self.one_in == 1:
            return views_of(self.design)
        hourly = Schedule(first=0, every_s=3600, windows=self.one_in, round_one_s=600, round_two_s=0, expiry_s=60)
        return question_views(self.design, hourly.shape(Coin.WINDOW, one_in=self.one_in), STATED_DELTA)

    @property
    def label(self) -> str:
        """Design and law of noise, for tables; "one by one" where each release's noise is a call of its own."""
        noise = self.design.noise
        law = f"{noise.name} {noise.direction}" if isinstance(noise, OneSidedNoise) else noise.name
        if isinstance(self.design.answer, AsymmetricVector):
            law += f", wrong {', '.join(one.name.lower() for one in self.design.answer.flips)}"
        levels = of_levels(self.design.levels).removeprefix(" of ").removeprefix(" and ")
        opened = f", {levels}" if levels else ""
        if (most := self.design.levels.most) > 1:
            opened += f", up to {most} at once"
        if self.one_in > 1:
            opened += f", one window of {self.one_in}"
        return f"{self.design.name}, noise {law}{opened}{', one by one' if self.one_a_call else ''}"

    @property
    def _far_apart(self) -> tuple[int, int]:
        """Two values that lie in different cells of every level but the total, and as far apart as any are."""
        if self.design.levels.count == 1 or not self.design.levels.nested:
            return 1, self.design.values
        columns, _ = self.design.levels.grid or (2, 1)
        return 1, 1 + columns // 2

    @property
    def moved(self) -> list[int]:
        """The indices, from 0, of the opened numbers that depend on the truth; an attack leaves the others out.

        With several levels, or many values, the truths are few and most numbers depend on none of them.
        """
        every = range(self.design.output_count)
        if self.design.levels.count == 1 and self.design.values > _MOST_VALUES:
            # Of responses, whose numbers begin with that of none, or of the devices that take part.
            return [0, *self._far_apart]
        if self.design.levels.count == 1 or self.design.levels.most > 1:
            return list(every)
        counted = [self.design.levels.all_sums(truth) for truth in self.truths]
        return [place for place in every if any(row[place] for row in counted)]

    @property
    def truths(self) -> tuple[DeviceTruth, ...]:
        """Every truth that one device can have; with levels, and of four values, three: none, and two far apart.

        Of sets these two have no value in common, so that as many numbers move as a set that becomes another can move.
        """
        values = self.design.values
        if (most := self.design.levels.most) > 1:
            ends = ((0, 0), (0, most), (most, min(2 * most, values)))
            return tuple(tuple(int(low < cell <= high) for cell in range(1, values + 1)) for low, high in ends)
        if self.design.levels.count > 1 or values > _MOST_VALUES:
            return tuple(tuple(int(cell == truth) for cell in range(1, values + 1)) for truth in (0, *self._far_apart))
        if self.design.kind.multi_hot:
            return tuple(itertools.product((0, 1), repeat=values))
        return tuple(tuple(int(cell == truth) for cell in range(1, values + 1)) for truth in range(values + 1))


def counted_of(design: Design, truth: DeviceTruth) -> list[int]:
    """Return what a device of this truth adds to the numbers that are opened, if it tells the truth."""
    holders = [int(any(truth))] * (design.levels.most > 1 and design.levels.total)
    return design.opened_sums([*truth, *holders])


def questions(name: str | None = None) -> tuple[AuditedDesign, ...]:
    """Return the questions to audit, of one design or of all, with their shares of the trials, which sum to 1.

    Half of the trials go to the noised yes/no count by Sampling Privacy at k = 2, the release whose gap is reported, a
    fifth to the same with two values, a fiftieth to releases drawn one by one, the rest to all others alike. Of
    `ONE_WINDOW` alone 95 in 100 go to those that `_ONE_IN_SHARES` names.

    Raises:
        ScenarioError: no design of that name.
    """
    if name is not None and name not in DESIGN_NAMES:
        known = ", ".join(DESIGN_NAMES)
        raise ScenarioError(f"design is {name!r}, allowed: {known}{did_you_mean(name, DESIGN_NAMES)}")
    designs = [one for one in _designs() if name in (None, one.name)]
    audited = [AuditedDesign(design=one, share=_fixed_share(one)) for one in designs]
    audited += [
        AuditedDesign(design=one, share=Fraction(1, 100), one_a_call=True)
        for one in designs
        if _fixed_share(one) or name
        if one.noised and one.aggregators == 2
    ]
    if name in (None, ONE_WINDOW):
        audited += [
            AuditedDesign(design=one, share=_one_in_share(one) if name else Fraction(0), one_in=_ONE_IN)
            for one in _asked_once()
        ]
    rest = [one for one in audited if not one.share]
    left = (1 - sum((one.share for one in audited), Fraction(0))) / max(len(rest), 1)
    shares = [one.share or left for one in audited]
    total = sum(shares, Fraction(0))
    return tuple(replace(one, share=share / total) for one, share in zip(audited, shares, strict=True))


def _one_in_share(design: Design) -> Fraction:
    named = design.name, design.values
    return _ONE_IN_SHARES.get(named, Fraction(0)) if isinstance(design.noise, TwoSidedNoise) else Fraction(0)


def _asked_once() -> list[Design]:
    """Return the designs that ask each device in one window of several: responses, with noise on what is opened."""
    laws = [("warner", 1), ("unary", 1), ("unary", 2), ("k-ary", 2), ("k-ary", 4), ("mangat-vector", 2)]
    answers = [answer_named(name, values, epsilon_local=_LOCAL_EPSILON) for name, values in laws]
    answers.append(AsymmetricVector.from_epsilon(_LOCAL_EPSILON, (Flips.UP, Flips.DOWN)))
    return [
        Design(answer=answer, noise=noise, values=answer.values, aggregators=_AGGREGATORS[0])
        for answer in answers
        for noise in _noises(answer)
        if isinstance(noise, TwoSidedNoise) or (isinstance(noise, GaussianNoise) and answer.values > _MOST_VALUES)
    ]


def _fixed_share(design: Design) -> Fraction:
    """Return the share of the trials that `questions` promises to a design; 0 for one of the rest."""
    geometric = isinstance(design.noise, TwoSidedNoise)
    if design.name != "sampling" or not geometric or design.levels.count > 1 or design.aggregators != _AGGREGATORS[0]:
        return Fraction(0)
    return Fraction(1, 2) if design.values == 1 else Fraction(1, 5)


def _designs() -> list[Design]:
    plain = [
        Design(answer=answer, noise=noise, values=answer.values, aggregators=aggregators)
        for answer in _answers()
        for noise in _noises(answer)
        for aggregators in _AGGREGATORS
    ]
    zoomed = [
        Design(answer=answer, noise=noise, values=answer.values, aggregators=_AGGREGATORS[0], levels=_ZOOMS)
        for answer in (answer_named("sampling", 8, parameters={"sampling_rate": default_sampling_rate(2)}), Truth(8))
        for noise in _noises(answer)
        if not isinstance(noise, NoNoise) and getattr(noise, "direction", "up") == "up"
    ]
    direct, rates = Truth(3), (default_sampling_rate(2), default_sampling_rate(10))
    often, rarely = (answer_named("sampling", 3, parameters={"sampling_rate": rate}) for rate in rates)
    geometric = noise_for(direct, _RELEASE_EPSILON)
    totals: list[tuple[AnswerLaw, NoiseLaw, NoiseLaw]] = [
        (direct, _GAUSSIAN, _GAUSSIAN),
        (direct, geometric, geometric),
        (often, _GAUSSIAN, _WIDER),
        (rarely, _GAUSSIAN, _WIDEST),
    ]
    rows = [
        Design(
            answer=Truth(levels.values),
            noise=noise,
            values=levels.values,
            aggregators=_AGGREGATORS[0],
            levels=levels,
            coarser=(further, *((noise,) * (levels.count - 2))),
        )
        for levels in (_WEIGHTED, _MARGINS)
        for noise, further in ((_GAUSSIAN, _WIDER), (geometric, geometric))
    ]
    sets = [
        Design(answer=Truth(3, 2), noise=noise, values=3, aggregators=_AGGREGATORS[0], levels=_SETS, coarser=(noise,))
        for noise in (_GAUSSIAN, geometric)
    ]
    return [
        *plain,
        *zoomed,
        *rows,
        *sets,
        *(
            Design(
                answer=answer, noise=noise, values=3, aggregators=_AGGREGATORS[0], levels=_TOTAL, coarser=(of_total,)
            )
            for answer, noise, of_total in totals
        ),
    ]


def _answers() -> list[AnswerLaw]:
    rated = [
        answer_named("sampling", values, parameters={"sampling_rate": default_sampling_rate(values)})
        for values in (1, 2)
    ]
    yes_no = [answer_named(name, 1, epsilon_local=_LOCAL_EPSILON) for name in _YES_NO]
    many = [answer_named(name, values, epsilon_local=_LOCAL_EPSILON) for name in _MANY for values in (1, 2)]
    one_way = [
        AsymmetricVector.from_epsilon(_LOCAL_EPSILON, flips) for flips in ((Flips.DOWN,), (Flips.UP, Flips.DOWN))
    ]
    return [*rated, *yes_no, *many, *one_way, Truth(1), Truth(2)]


def _noises(answer: AnswerLaw) -> Sequence[NoiseLaw]:
    """Return every kind of release that a question can have with these answers."""
    if isinstance(answer, Truth):
        sides: list[NoiseLaw] = [OneSidedNoise(_RELEASE_EPSILON, "up"), OneSidedNoise(_RELEASE_EPSILON, "down")]
        return [noise_for(answer, _RELEASE_EPSILON), *sides, _GAUSSIAN]
    design = Design(answer=answer, noise=NoNoise(), values=answer.values, aggregators=2)
    if design.form is AnswerForm.TWO_ROUNDS:
        return [noise_for(answer, _RELEASE_EPSILON), NoNoise(), _GAUSSIAN]
    return [noise_for(answer, _NOISED_RESPONSE_EPSILON), NoNoise(), _GAUSSIAN_ON_RESPONSES]


# The pairs of truths that a claim is about.


def neighbouring_truths(question: AuditedDesign, relation: str) -> list[Audience]:
    """Return the pairs (one, other) for which P[seen | one] <= e^eps P[seen | other] + delta is claimed.

    Raises:
        ScenarioError: the audit does not know the relation: a claim that is not attacked must not pass.
    """
    pairs = list(itertools.permutations(question.truths, 2))
    if relation in (Relation.ANY_VALUE.value, Neighbours.TWO_CELL.value):
        return pairs
    if relation == Neighbours.ONE_CELL.value:
        return [pair for pair in pairs if not all(any(truth) for truth in pair)]
    if relation == Relation.ANY_BIT.value:
        return [pair for pair in pairs if _places_apart(pair) == 1]
    if relation in (Relation.ONE_SIDED.value, Relation.ONE_SIDED_DOWN.value):
        sign = 1 if relation == Relation.ONE_SIDED.value else -1
        # One place differs: it is 1 in `one` and 0 in `other`, or the reverse under noise at or below the count.
        return [pair for pair in pairs if _places_apart(pair) == 1 and sign * (sum(pair[0]) - sum(pair[1])) > 0]
    if relation == Relation.ASYMMETRIC.value:
        law = cast("AsymmetricVector", question.design.answer)
        return [pair for pair in pairs if law.hides(*(truth.index(1) + 1 if any(truth) else 0 for truth in pair))]
    raise ScenarioError(f"a statement is about {relation!r} neighbours, which the audit does not know")


def _places_apart(pair: Audience) -> int:
    return sum(one != other for one, other in zip(*pair, strict=True))
