"""The privacy statement of a question: for each adversary what it sees, and what it can learn of one device.

The only place where it is worded. It must not state a loss smaller than the truth: the decimals of a view are rounded
up. p is the sampling rate, e1 the epsilon of each aggregator's geometric noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Relation, Truth, kind_of
from fleetcount_mechanisms.design import Design, LedgerLoss
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.losses import (
    exact_message_epsilon,
    linked_delta,
    neighbours_of,
    stated_loss,
)
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import rounded_up
from fleetcount_mechanisms.responses import AsymmetricVector, RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie

_PLACES: Final = 5
_DELTA_PLACES: Final = 9
"""A stated delta is a billionth (`losses`)."""
_NONE: Final = Decimal("0.00000")


_RELATIONS: Final = {"one-cell": Relation.ANY_VALUE, "two-cell": Relation.ANY_VALUE} | {it.value: it for it in Relation}
"""The relation of each change a view is about; `Neighbours` are the two ways in which a value moves counts of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryView:
    """What one adversary can learn of one device from one release.

    adversary is a stable slug, audience the same in words; epsilon is rounded up to 5 decimal places, None when no
    finite epsilon exists; delta is rounded up too; neighbours names the change protected; sentence is for people.

    Raises:
        MechanismError: a negative epsilon, or a delta outside [0, 1].
    """

    adversary: str
    audience: str
    epsilon: Decimal | None
    delta: Decimal
    neighbours: str
    sentence: str

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.epsilon is not None and self.epsilon < 0:
            raise MechanismError(f"epsilon is {self.epsilon}, allowed: 0 or more")
        if not 0 <= self.delta <= 1:
            raise MechanismError(f"delta is {self.delta}, allowed: 0..1")


_Views = tuple[AdversaryView, ...]


# A loss is exact arithmetic, some milliseconds, and many ask of one design.
@lru_cache(maxsize=256)
def views_of(design: Design) -> _Views:
    """Return the privacy statement of one release: what each adversary could learn of one device, the public first.

    Raises:
        MechanismError: a law of noise whose promise is not worked out.
    """
    if isinstance(design.noise, OneSidedNoise):
        return _one_sided(design, design.noise)
    if not isinstance(design.noise, TwoSidedNoise | GaussianNoise | NoNoise):
        raise MechanismError(f"noise is {design.noise.name!r}, allowed: a law whose promise is worked out")
    covered = _covered(design) if design.noised else ()
    if design.form is AnswerForm.TWO_ROUNDS:
        return _sampling(design, covered)
    if design.form is AnswerForm.TRUTH:
        return *covered, _all_aggregators(Fraction(1), design.aggregators, _neighbours(design))
    return _response(design.answer, covered, design.aggregators)


def epsilon_of(design: Design) -> Decimal | None:
    """Return the loss of the published result for `relation_of` it, rounded up; None when it has no finite one."""
    return views_of(design)[0].epsilon


def relation_of(design: Design) -> Relation:
    """Return for which change of a device's truth the epsilon of the published result holds.

    Raises:
        MechanismError: the public view is about a change that belongs to no relation of ledgers.
    """
    named = views_of(design)[0].neighbours
    if named not in _RELATIONS:
        raise MechanismError(f"neighbours is {named!r}, allowed: {', '.join(_RELATIONS)}")
    return _RELATIONS[named]


def ledger_loss_of(design: Design) -> LedgerLoss:
    """Return what ledgers charge: the loss of any value replaced by any other, where there is one."""
    relation, public = relation_of(design), views_of(design)[0]
    if relation is not Relation.ANY_BIT:
        stated = Decimal(0) if public.epsilon is None else public.delta
        return LedgerLoss(epsilon=public.epsilon, relation=relation, delta=stated)
    loss, delta = stated_loss(design, any_value=True)
    return LedgerLoss(epsilon=rounded_up(loss), relation=Relation.ANY_VALUE, delta=delta_up(delta))


def delta_up(delta: Fraction) -> Decimal:
    """Return the delta of a finite epsilon as it is printed: 0, or rounded up to 9 places."""
    return rounded_up(delta, _DELTA_PLACES) if delta else Decimal(0)


def of_levels(levels: Levels) -> str:
    """Return what is counted beside the cells, in words: nothing, " of 2 zooms", " and their margins and total"."""
    zooms = f" of {len(levels.sides)} zooms" if len(levels.sides) > 1 else ""
    named = {"margins": bool(levels.margins), "weighted sum": levels.weighted, "total": levels.total}
    beside = [name for name, opened in named.items() if opened]
    return zooms + (f" and their {' and '.join(beside)}" if beside else "")


def _counts(design: Design) -> str:
    return f"the released counts{of_levels(design.levels)}"


def _change(neighbours: str) -> str:
    """Return a neighbour relation in words."""
    if neighbours == "any-bit":
        return "a change of one place of one device's truth"
    if neighbours == "any-value":
        return "any change of one device's truth"
    return f"a {neighbours} change of one device's truth"


def _finite(
    adversary: str,
    audience: str,
    loss: Fraction | tuple[Fraction, Fraction],
    neighbours: str,
    sees: str,
    *,
    change: str | None = None,
) -> AdversaryView:
    epsilon, delta = loss if isinstance(loss, tuple) else (loss, Fraction(0))
    shown = rounded_up(epsilon, _PLACES)
    protects = change or _change(neighbours)
    return AdversaryView(
        adversary=adversary,
        audience=audience,
        epsilon=shown,
        delta=delta_up(delta) if delta else _NONE,
        neighbours=neighbours,
        sentence=f"sees {sees}; epsilon {shown}, delta {delta_up(delta):f}, for {protects}.",
    )


def _revealed(adversary: str, audience: str, delta: Fraction, neighbours: str, sees: str) -> AdversaryView:
    shown = rounded_up(delta, _PLACES)
    learns = "for certain" if delta == 1 else f"with probability {shown} and nothing otherwise"
    return AdversaryView(
        adversary=adversary,
        audience=audience,
        epsilon=None,
        delta=shown,
        neighbours=neighbours,
        sentence=f"sees {sees}; no finite epsilon, delta {shown}: learns a device's truth {learns}.",
    )


def _released_to(aggregators: int) -> tuple[tuple[str, str, str, str], ...]:
    """Return the readers of a release who have at most the shares and noises of all but one aggregator.

    Each is (slug, description, the shares it also sees, the aggregator whose noise it does not know).
    """
    rest = f"any {aggregators - 1} of the {aggregators} aggregators, together with any number of devices"
    return (
        ("public_and_broker", "everyone who reads the release, and the broker", "", "one aggregator"),
        ("one_aggregator", "one aggregator", "its shares and ", "another"),
        ("all_but_one_aggregators", rest, "their shares and ", "the remaining one"),
    )


def _all_aggregators(delta: Fraction, aggregators: int, neighbours: str) -> AdversaryView:
    what = "both rounds of every device" if delta < 1 else "the answer of every device"
    return _revealed("all_aggregators", f"all {aggregators} aggregators together", delta, neighbours, what)


# Noise on both sides: what one honest aggregator's noise covers.


def _neighbours(design: Design) -> str:
    """Return the change of an answer that devices do not randomize; a set that changes moves any number of cells."""
    return Relation.ANY_VALUE.value if design.levels.most > 1 else neighbours_of(design.values).value


def _covered(design: Design) -> _Views:
    if not design.device_randomizes:
        neighbours, what = _neighbours(design), _counts(design)
    else:
        neighbours = (Relation.ANY_BIT if design.kind.multi_hot else Relation.ANY_VALUE).value
        what = "noised counts of randomized answers"
    loss = stated_loss(design)
    return tuple(
        _finite(
            slug,
            who,
            loss,
            neighbours,
            shares + what,
            change=f"{_change(neighbours)}, as long as {honest} adds its noise",
        )
        for slug, who, shares, honest in _released_to(design.aggregators)
    )


# Sampling Privacy [SP]: the difference of the two rounds over cells 1..V, noised or exact.


def _sampling(design: Design, covered: _Views) -> _Views:
    """Return the views of a two-round count.

    With noise the public, one aggregator and all but one of them see a loss of eps'; without, as in [SP] itself, no
    finite epsilon, delta = p. All together see the truth with probability p; if the bit "this device was sampled"
    leaks, the loss of a direct release remains, for geometric noise e1 (one-cell) or 2 e1 (two-cell), once a zoom; one
    round-two message alone loses max ln(1 + p/pi_v).
    """
    die, aggregators = cast("SamplingDie", design.answer), design.aggregators
    neighbours, delta = neighbours_of(die.values), linked_delta(die)
    leaked = ("sampled_bit_leaked", "whoever knows that a device was sampled, and reads the release")
    if not design.noised:
        covered = tuple(
            _revealed(slug, who, delta, neighbours.value, f"{shares}the exact counts")
            for slug, who, shares, _ in _released_to(aggregators)
        )
        sampled = _revealed(*leaked, Fraction(1), neighbours.value, "the exact counts and that bit")
    else:
        direct = stated_loss(replace(design, answer=Truth(die.values)))
        sampled = _finite(*leaked, direct, neighbours.value, f"{_counts(design)} and that bit")
    message = _finite(
        "one_round_two_message",
        "whoever opens one round-two message alone",
        exact_message_epsilon(die),
        Relation.ANY_VALUE.value,
        "one round-two message without its round-one message",
    )
    return *covered, _all_aggregators(delta, aggregators, neighbours.value), sampled, message


# Responses: the local loss holds against every reader; noise on all outputs only improves what the public sees.


def _response(answer: AnswerLaw, covered: _Views, aggregators: int) -> _Views:
    """Return the views of answers that devices randomize: the local loss, and less where noise covers.

    For a vector the loss is that of one place; m places cost m times as much. Mangat's local loss is one-sided; with
    noise the public's loss is for any change.
    """
    what = "exact counts of randomized answers"
    readers = covered or tuple(
        _local(slug, who, answer, shares + what) for slug, who, shares, _ in _released_to(aggregators)
    )
    return (
        *readers,
        _local(
            "all_aggregators", f"all {aggregators} aggregators together", answer, "every device's randomized answer"
        ),
        _local("one_answer_alone", "whoever opens one answer alone", answer, "one randomized answer"),
    )


def _local(adversary: str, audience: str, answer: AnswerLaw, sees: str) -> AdversaryView:
    loss, relation = Fraction(cast("RandomizedResponse", answer).epsilon), kind_of(answer).relation
    change = "a Yes replaced by a No (that a No is a No is not protected)" if relation is Relation.ONE_SIDED else None
    if isinstance(answer, AsymmetricVector):
        change = hidden_words(answer, "value {}".format)
    return _finite(adversary, audience, loss, relation.value, sees, change=change)


_MOST_NAMED: Final = 6
"""A sentence of a record names so many values at most."""


def hidden_words(answer: AsymmetricVector, named: Callable[[int], str]) -> str:
    """Return which changes an asymmetric answer hides, and what nothing hides; values are told as `named`."""
    every = range(1, answer.values + 1)
    have, lack = [v for v in every if answer.hides(v, 0)], [v for v in every if answer.hides(0, v)]
    if len(have) == len(lack) == answer.values:
        return _change(Relation.ANY_VALUE.value)

    def those(values: Sequence[int]) -> str:
        shown, others = ", ".join(named(one) for one in values[:_MOST_NAMED]), len(values) - _MOST_NAMED
        return f"{shown} and {others} others" if others > 0 else shown

    hidden = [f"{those(have)} replaced by {those(lack)} or none" if lack else f"{those(have)} replaced by none"] * bool(
        have
    )
    hidden += [f"none replaced by {those(lack)}"] * bool(lack)
    bare = [f"has {those(told)}" for told in [[v for v in every if v not in have]] if told]
    bare += [f"does not have {those(told)}" for told in [[v for v in every if v not in lack]] if told]
    return f"{', and '.join(hidden)} (that a device {', or '.join(bare)}, is not protected)"


# One-sided noise (AGeo; Takagi et al., Asymmetric Differential Privacy).


def _one_sided(design: Design, noise: OneSidedNoise) -> _Views:
    """Return the views of counts of the truth with noise of one sign.

    "up": P[z | a value] <= e^eps P[z | none], and no finite bound the other way: z = n proves that none was added. A
    device that has another value instead lowers its own cell, so which of two values it has is not protected either.
    "down" is the mirror image: P[z | none] <= e^eps P[z | a value]. A value is one number of every zoom: eps counts
    once a zoom.
    """
    values, aggregators = design.values, design.aggregators
    together = sum((cast("OneSidedNoise", law).epsilon for law in design.laws), Fraction(0))
    epsilon = rounded_up(together, _PLACES)
    had, instead, not_protected = _ONE_SIDED_CLAIMS[noise.direction]
    which = ", nor which of two values it had" if values > 1 else ""
    promise = (
        f"that a device had {had} can always be explained by {instead}, with epsilon {epsilon}; "
        f"that it had {not_protected} is not protected{which}."
    )
    counts = _counts(design).removeprefix("the ")
    sentences = (counts.capitalize(), f"Shares and {counts}", f"Their shares and {counts}")
    covered = tuple(
        AdversaryView(
            adversary=slug,
            audience=who,
            epsilon=epsilon,
            delta=Decimal(0),
            neighbours=design.charge_relation.value,
            sentence=f"{what}, if one aggregator adds its noise: {promise}",
        )
        for (slug, who, _, _), what in zip(_released_to(aggregators), sentences, strict=True)
    )
    exposed = AdversaryView(
        adversary="all_aggregators",
        audience=f"all {aggregators} aggregators together",
        epsilon=None,
        delta=Decimal(1),
        neighbours=design.charge_relation.value,
        sentence="The answer of every device, put together: no finite epsilon; every truth is seen for certain.",
    )
    return *covered, exposed


_ONE_SIDED_CLAIMS: Final = {
    "up": ("a value", '"none of them"', "none"),
    "down": ("none of the values", "any of them", "one"),
}
