"""The privacy statement of a release in two plain sentences, for people who do not read tables.

They follow from the views in a signed record and from its design, so every program prints the same sentences. It must
not promise more than the views do: every number is rounded up.
"""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

from fleetcount_mechanisms.answers import Relation
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_mechanisms.statement import AdversaryView

_PUBLIC: Final = "public_and_broker"
_TOGETHER: Final = "all_aggregators"
_UP: Final = Context(prec=30, rounding=ROUND_CEILING)
_LARGEST_SHOWN: Final = 3
"""From this epsilon on only the power e^epsilon is printed: a large factor is harder to read than its exponent."""
_CHANGES: Final = {
    Relation.ANY_BIT.value: "one place of a device's answer being so rather than not",
    Relation.ONE_SIDED.value: "a device having said Yes rather than No",
    Relation.ONE_SIDED_DOWN.value: "a device having said No rather than Yes",
    Relation.ASYMMETRIC.value: "a device having a value rather than one that hides it",
    "one-cell": "a device being counted rather than not",
}
_ONE_WAY: Final = frozenset(one.value for one in Relation if one.one_way)
_ANY_CHANGE: Final = "a device having one answer rather than another"
_WITH_TOTAL: Final = (
    " That a device {did} at all is protected like its answer, no better, since {total} is a number"
    " of its own; several that come or go together move it together."
)
_NO_BOUND: Final = " The odds of any other change have no bound."


def with_total(levels: Levels) -> str:
    """Return the sentence about what a total tells, of sets the number of devices with any; "" without one."""
    if not levels.total:
        return ""
    if levels.most > 1:
        return _WITH_TOTAL.format(did="told anything", total="how many told any")
    return _WITH_TOTAL.format(did="answered", total="the total of all cells")


def plain_sentences(design: Design, views: Sequence[AdversaryView]) -> tuple[str, ...]:
    """Return two sentences: what a reader of the release can learn of a device, and what all operators together can.

    `views` are those of a release of the design, or those of a window of a question, which has three for each
    adversary: for one answer, one day and all answers. An adversary without a view has no sentence.
    """
    public = [view for view in views if view.adversary == _PUBLIC]
    together = [view for view in views if view.adversary == _TOGETHER]
    found = (_public(design, public) if public else "", _collusion(design, together) if together else "")
    return tuple(sentence[0].upper() + sentence[1:] for sentence in found if sentence)


def _public(design: Design, public: Sequence[AdversaryView]) -> str:
    first, last, window = public[0], public[-1], len(public) > 1
    who = f"whoever reads {'all releases of the question' if window else 'this release'}"
    if design.aggregators > 2:
        who += f", even together with {design.aggregators - 1} of the {design.aggregators} operators,"
    if first.epsilon is None or last.epsilon is None:
        return f"the counts are exact: {who} and knows the other devices learns a device's answer{_chance(first)}."
    honest = "as long as one operator is honest, " if design.noised else ""
    if isinstance(design.noise, OneSidedNoise) and not window:
        # Only the view's own sentence says which side is covered.
        return honest + first.sentence.partition(": ")[2]
    one_sided = first.neighbours in _ONE_WAY or (window and _one_sided(design, opened=False))
    change = _one_way(design) if one_sided and window else _CHANGES.get(first.neighbours, _ANY_CHANGE)
    all_answers = f", and of all its answers to the question together by {_factor(last.epsilon)}" if window else ""
    failing = ""
    if first.delta:
        failing = (
            f", but for rare cases: these are epsilons at delta {first.delta:f}, which is no bound on their chance"
        )
    moved = f"{honest}{who} can move the odds of {change} by {_factor(first.epsilon)} at most{all_answers}{failing}."
    return moved + _NO_BOUND * one_sided + with_total(design.levels)


def _collusion(design: Design, together: Sequence[AdversaryView]) -> str:
    view, window = together[0], len(together) > 1
    everybody = "both operators" if design.aggregators == 2 else f"all {design.aggregators} operators"
    seen = f"if {everybody} work together, they see"
    if view.epsilon is None:
        return f"{seen} {'each answer' if window else 'the answer'} of a device{_chance(view)}."
    one_sided = view.neighbours in _ONE_WAY or (window and _one_sided(design, opened=True))
    change = _one_way(design) if one_sided and window else _CHANGES.get(view.neighbours, _ANY_CHANGE)
    moved = f"{seen} randomized answers, which move the odds of {change} by {_factor(view.epsilon)} at most."
    return moved + _NO_BOUND * one_sided


def _one_sided(design: Design, *, opened: bool) -> bool:
    """Return whether the loss of a question's window holds in one direction only.

    The `neighbours` of such a view name a span of time, so the direction follows from the design: two-sided noise
    covers an answer whose own law is one-sided, unless the answer itself is `opened`.
    """
    local = design.device_randomizes and design.kind.relation.one_way
    return isinstance(design.noise, OneSidedNoise) or (local and (opened or not design.noised))


def _one_way(design: Design) -> str:
    """Return the change that a loss one way is about, in a question of many windows."""
    if design.kind.relation is Relation.ASYMMETRIC:
        return _CHANGES[Relation.ASYMMETRIC.value]
    return "none against one answer" if design.charge_relation is Relation.ONE_SIDED_DOWN else "one answer against none"


def _factor(epsilon: Decimal) -> str:
    """Return a factor rounded up, with its exponent: "a factor of 2.8 (e^1)"."""
    power = f"e^{epsilon.quantize(Decimal('0.01'), rounding=ROUND_CEILING).normalize():f}"
    if epsilon >= _LARGEST_SHOWN:
        return f"a factor of {power}"
    factor = _UP.exp(epsilon).quantize(Decimal("0.1"), rounding=ROUND_CEILING).normalize()
    return f"a factor of {factor:f} ({power})"


def _chance(view: AdversaryView) -> str:
    return "" if view.delta == 1 else f" with probability {view.delta.normalize():f}"
