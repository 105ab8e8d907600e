"""The privacy statement of a question: for each adversary three lines, for one answer, one UTC day and the whole
question.

The only place where it is worded. It must not state a loss smaller than the truth: printed numbers are rounded up. All
lines are for one certificate: the losses of two keys on one vehicle, or of a vehicle with a wiped ledger, add up.
"""

from collections.abc import Iterator
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from math import ceil
from typing import Final, cast

from fleetcount_mechanisms.accounting.charges import (
    chance_of_all,
    chance_of_any,
    expected_answers,
    quantile,
)
from fleetcount_mechanisms.accounting.question_losses import (
    QuestionLosses,
    day_units,
    larger_chance,
    question_losses,
)
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerForm, Relation
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import require_open_unit
from fleetcount_mechanisms.losses import STATED_DELTA, moves_loss
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import WIDE, near_decimal, rounded_up
from fleetcount_mechanisms.repeated import LARGEST_EPSILON, optimal_loss_repeated
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import AdversaryView, of_levels, views_of
from fleetcount_mechanisms.statement_words import with_total

NEIGHBOURS: Final = ("one-answer", "one-day", "whole-question")
"""The changes that the lines of a question are about, in their order."""

_PLACES: Final = 5
_SMALL: Final = Context(prec=2, rounding=ROUND_CEILING)
_CHANGES: Final = (
    "a change of one answer of one certificate",
    "a change of all answers of one UTC day of one certificate",
    "a change of all answers of one certificate to the question",
)
_COIN_REVEALED: Final = "; the sampling coin does not help here: other answers of the same toss betray it"
_SEES: Final = {
    "public_and_broker": ("all releases", "one aggregator"),
    "one_aggregator": ("its shares and all releases", "another"),
    "all_but_one_aggregators": ("their shares and all releases", "the remaining one"),
}


def question_views(design: Design, shape: ScheduleShape, delta: Fraction) -> tuple[AdversaryView, ...]:
    """Return what each adversary could learn of one device from the whole question, the public first.

    Audiences are those of a single release; each has three views, in the order of `NEIGHBOURS`, and finite epsilons are
    at `delta`. A question of one window has one view for each audience: that of its release, or with Gaussian noise and
    a `delta` other than `STATED_DELTA` the first of the three. A question of exact sums has no finite epsilon.

    Raises:
        MechanismError: delta not in (0, 1), or a law of noise whose promise is not worked out.
    """
    require_open_unit("delta", delta)
    once = shape.units == (1,) and shape.levels == 1
    if once and (delta == STATED_DELTA or not isinstance(design.noise, GaussianNoise)):
        return views_of(design)
    # The audiences of Gaussian noise are those of two-sided noise: they depend on whether there is noise, not its law.
    noise = TwoSidedNoise(Fraction(1)) if isinstance(design.noise, GaussianNoise) else design.noise
    audiences = views_of(
        Design(answer=design.answer, noise=noise, values=design.values, aggregators=design.aggregators)
    )
    views = (view for audience in audiences for view in _lines(audience, design, shape, delta))
    return tuple(view for view in views if not once or view.neighbours == NEIGHBOURS[0])


def _lines(audience: AdversaryView, design: Design, shape: ScheduleShape, delta: Fraction) -> Iterator[AdversaryView]:
    slug = audience.adversary
    if slug == "one_round_two_message":
        who = replace(audience, audience="whoever opens every round-two message of a device, and no round-one message")
        yield from _finite(who, _message_losses(design, shape, delta), delta, "these messages", levels=shape.levels)
    elif slug == "sampled_bit_leaked":
        yield from _leaked(audience, design, shape, delta)
    elif slug in _SEES and (design.noised or design.device_randomizes):
        sees, honest = _SEES[slug]
        sees += _each(design)
        condition = f", as long as {honest} adds its noise" if design.noised else ""
        losses = question_losses(design, shape, delta)
        ending, known = condition + _one_sided(design), _coin_revealed(design, shape)
        yield from _finite(audience, losses, delta, sees, ending, known, shape.levels)
    elif design.device_randomizes:
        local = replace(design, noise=NoNoise())
        alone = "whoever opens every answer of a device, and nothing else"
        who = replace(audience, audience=alone) if slug == "one_answer_alone" else audience
        losses, what = question_losses(local, shape, delta), "every randomized answer of the device"
        yield from _finite(who, losses, delta, what, _one_sided(local), levels=shape.levels)
    else:
        yield from _revealed(audience, design, shape)


def _finite(
    audience: AdversaryView,
    losses: QuestionLosses,
    delta: Fraction,
    sees: str,
    condition: str = "",
    coin_revealed: tuple[bool, ...] = (False, False, False),
    levels: int = 1,
) -> Iterator[AdversaryView]:
    shown_delta = _exact_up(delta)
    epsilons = (losses.one_answer, losses.one_day, losses.whole_question)
    told = f", told at {levels} levels" if levels > 1 else ""
    changes = (_CHANGES[0] + told, *_CHANGES[1:])
    for neighbours, change, epsilon, known in zip(NEIGHBOURS, changes, epsilons, coin_revealed, strict=True):
        shown = rounded_up(epsilon, _PLACES)
        ending = condition + _COIN_REVEALED * known
        yield replace(
            audience,
            epsilon=shown,
            delta=shown_delta,
            neighbours=neighbours,
            sentence=f"sees {sees}; epsilon {shown}, delta {shown_delta:f}, for {change}{ending}.",
        )


def _each(design: Design) -> str:
    words = of_levels(design.levels)
    return f"{words} each" if words else ""


def _coin_revealed(design: Design, shape: ScheduleShape) -> tuple[bool, ...]:
    """Return for each of `NEIGHBOURS` whether unchanged answers of the same toss may reveal the coin."""
    if design.form is not AnswerForm.TWO_ROUNDS:
        return (False, False, False)
    return max(shape.units) > shape.levels, max(shape.units) > shape.largest_day, False


def _one_sided(design: Design) -> str:
    if not design.charge_relation.one_way:
        return ""
    protected = _HIDDEN[design.charge_relation]
    return f"; one-sided: only {protected} is protected, any other change has no finite epsilon"


def _exact_up(delta: Fraction) -> Decimal:
    """Return delta rounded up to 25 places, without trailing zeros."""
    return _ceiling(delta, 25).normalize(WIDE)


def _leaked(audience: AdversaryView, design: Design, shape: ScheduleShape, delta: Fraction) -> Iterator[AdversaryView]:
    if not design.noised:
        yield from _revealed(audience, design, shape, sure=True)
        return
    changed = shape.levels, shape.largest_day, shape.windows
    losses = [moves_loss(design.moves, windows, delta) for windows in changed]
    found = QuestionLosses(one_answer=losses[0], one_day=losses[1], whole_question=losses[2])
    sees = f"all releases{_each(design)} and these bits"
    yield from _finite(audience, found, delta, sees, levels=shape.levels)


def _message_losses(design: Design, shape: ScheduleShape, delta: Fraction) -> QuestionLosses:
    """Return the losses of round-two messages alone: ln(1 + p/((1-p) f**m)) for a unit of m answers.

    f is the smallest face probability of a device that is not sampled. Either all messages of a unit say the truth or
    no message does, so one answer loses as much as its whole unit.
    """
    die = cast("SamplingDie", design.answer)
    rest = 1 - die.sampling_rate
    odds = near_decimal(die.sampling_rate / rest)

    def unit(windows: int) -> Fraction:
        rarest = WIDE.power(near_decimal(die.smallest_face_probability / rest), windows)
        return Fraction(WIDE.ln(WIDE.add(Decimal(1), WIDE.divide(odds, rarest))))

    def together(sizes: tuple[int, ...]) -> Fraction:
        if len(set(sizes)) == 1 and unit(sizes[0]) <= LARGEST_EPSILON:
            return max(Fraction(0), optimal_loss_repeated(unit(sizes[0]), len(sizes), delta))
        return sum((unit(size) for size in sizes), Fraction(0))

    return QuestionLosses(
        one_answer=unit(max(shape.units)) if shape.levels == 1 else max(map(together, set(day_units(shape.answers)))),
        one_day=max(together(sizes) for sizes in set(day_units(shape))),
        whole_question=together(shape.units),
    )


def _revealed(
    audience: AdversaryView, design: Design, shape: ScheduleShape, *, sure: bool = False
) -> Iterator[AdversaryView]:
    rate = Fraction(1) if sure else design.exposure
    one, day = (max(len(units) for units in day_units(by)) for by in (shape.answers, shape))
    chances = chance_of_any(rate, one), chance_of_any(rate, day), chance_of_any(rate, len(shape.units))
    every = f"; it learns all of them with probability {_chance(chance_of_all(rate, len(shape.units)))}"
    tails = ("", "", every + ", " + _expected(rate, shape))
    learns = ("learns one answer", "learns an answer of one UTC day", "learns an answer of the question")
    for neighbours, chance, does, tail in zip(NEIGHBOURS, chances, learns, tails, strict=True):
        shown = _ceiling(chance, _PLACES)
        sentence = f"no finite epsilon, delta {shown}: {does} with probability {shown}{tail}."
        if rate == 1:
            sentence = "no finite epsilon, delta 1: learns every answer of the device for certain."
        yield replace(audience, epsilon=None, delta=shown, neighbours=neighbours, sentence=sentence)


def _expected(rate: Fraction, shape: ScheduleShape) -> str:
    expected = _ceiling(expected_answers(rate, shape.units), 1)
    most = quantile(rate, shape.units)
    return f"{expected} of {shape.windows} answers are expected to be seen, more than {most} with a chance below 1e-9"


def _ceiling(exact: Fraction, places: int) -> Decimal:
    """Return an exact number rounded up."""
    return Decimal(ceil(exact * 10**places)).scaleb(-places)


def _chance(chance: Fraction) -> str:
    """Return a probability rounded up: to 5 places, or to two digits where it is small."""
    if chance >= Fraction(1, 1000):
        return str(_ceiling(chance, _PLACES))
    return str(_SMALL.divide(Decimal(chance.numerator), Decimal(chance.denominator))).lower()


def plain_words(design: Design, shape: ScheduleShape, delta: Fraction) -> tuple[str, ...]:
    """Return two or three short sentences with the same statement in plain words.

    Raises:
        MechanismError: as `question_views`.
    """
    sentences = [_public_words(design, shape, delta), _collusion_words(design, shape, delta)]
    if design.form is AnswerForm.TWO_ROUNDS and max(shape.units) > 1:
        sentences.append(
            f"One toss of the coin holds for up to {max(shape.units)} answers: who sees one of them sees all of them."
        )
    return tuple(sentences)


_HIDDEN: Final = {
    Relation.ONE_SIDED: "a value replaced by none",
    Relation.ONE_SIDED_DOWN: "none replaced by a value",
    Relation.ASYMMETRIC: "a value replaced by one that hides it",
}
_ONE_WAY: Final = {one: words.replace("replaced by", "against") for one, words in _HIDDEN.items()}


def _public_words(design: Design, shape: ScheduleShape, delta: Fraction) -> str:
    if not design.noised and not design.device_randomizes:
        return "The counts are exact: a reader who knows the other devices learns what the coin lets through."
    losses = question_losses(design, shape, delta)
    # A delta is no bound on how often the odds move more: it says how much such cases weigh.
    one, whole = (rounded_up(loss + 2 * delta, 2) for loss in (losses.one_answer, losses.whole_question))
    chance = larger_chance(design, shape, Fraction(one), Fraction(whole))
    rarely = f"; with a chance of at most {_in_powers(chance)} the odds move more" if chance else ""
    who = "a reader" if design.aggregators == 2 else f"a reader together with {design.aggregators - 1} operators"
    one_sided = design.charge_relation.one_way
    change = _ONE_WAY.get(design.charge_relation, "one answer against any other")
    honest = "As long as one operator is honest, " if design.noised else ""
    sentence = (
        f"{honest}{who} of all {shape.windows} releases moves the odds of {change} by at most a factor of e^{one}, "
        f"and of all answers of a device together by at most e^{whole}"
        f" (epsilons at delta {_exact_up(delta):f}{rarely})."
        + " The odds of any other change have no bound." * one_sided
        + with_total(design.levels)
    )
    return sentence[0].upper() + sentence[1:]


def _in_powers(chance: Fraction) -> str:
    """Return a probability above 0 rounded up to one digit: "2 in 10^8"."""
    if chance >= Fraction(1, 10):
        return str(_ceiling(chance, 1))
    shown = Context(prec=1, rounding=ROUND_CEILING).divide(Decimal(chance.numerator), Decimal(chance.denominator))
    return f"{shown.as_tuple().digits[0]} in 10^{-shown.adjusted()}"


def _collusion_words(design: Design, shape: ScheduleShape, delta: Fraction) -> str:
    everybody = "both operators" if design.aggregators == 2 else f"all {design.aggregators} operators"
    if design.device_randomizes:
        local = question_losses(replace(design, noise=NoNoise()), shape, delta)
        return (
            f"If {everybody} collude, they see the randomized answers: the odds move by at most e^"
            f"{rounded_up(local.one_answer, 2)} for one answer, e^{rounded_up(local.whole_question, 2)} for all"
            f" together{_of_hidden(design)}."
        )
    rate = design.exposure
    if rate == 1:
        return f"If {everybody} collude, they see every answer."
    units = len(shape.units)
    share = f"{rate.numerator} answer{'s' * (rate.numerator > 1)} in {rate.denominator}"
    return (
        f"If {everybody} collude, they see {share} on average: none at all with probability "
        f"{_chance_down((1 - rate) ** units)}, every one with probability {_chance(chance_of_all(rate, units))}."
    )


def one_window_words(design: Design, shape: ScheduleShape) -> str:
    """Return what everybody learns of a device whose question asks it in one window of several: that window's answer.

    Each device randomizes by itself, so that the words are about whoever reads the answer: all operators together.
    """
    answers = len(shape.units)
    once = "once" if answers == 1 else f"{answers} times, each time"
    # Without delta, at which a loss is a little smaller: the sentence says "at most".
    loss = rounded_up(Fraction(design.local_epsilon or 0), 2)
    relation, bits = design.kind.relation, design.form is AnswerForm.BITS
    several = " for each of its values" if relation.one_way and bits else ""
    end = f": {_truth_words(design)}."
    if relation.one_way:
        # What an answer that cannot come of another truth says is said with certainty, whatever the chance of it.
        end = "; the odds of any other change have no bound."
    return (
        f"A device answers {once} with a randomized answer that moves the odds of"
        f" {_ONE_WAY.get(relation, 'what it had to say')} by at most a factor of e^{loss}{several}, if all operators"
        f" together read it{end} In which window it answered is seen by every aggregator."
    )


def _truth_words(design: Design) -> str:
    """Return how often a randomized answer is the truth: a bit a value is not, but has one that tells of it.

    Chances are rounded so that an answer tells no less than is said.
    """
    hit, miss = design.channel
    yes, no = rounded_up(hit, 4), rounded_up(1 - miss, 4)
    if design.form is AnswerForm.BITS:
        of_others = f", that of every other value with {1 - no}" if design.values > 1 else ""
        return f"the bit of what it had to say is 1 with a chance of {yes}{of_others}"
    if design.values == 1 and hit + miss != 1:
        return f"it is the truth with a chance of {yes} for a yes, {no} for a no"
    return f"it is the truth with a chance of {yes}"


def _of_hidden(design: Design) -> str:
    hidden = _HIDDEN.get(design.kind.relation)
    return f", for {hidden}; those of any other change have no bound" if hidden else ""


def _chance_down(chance: Fraction) -> str:
    """Return the probability of a favourable event, rounded down to two digits."""
    digits = Context(prec=2, rounding="ROUND_FLOOR")
    return str(digits.divide(Decimal(chance.numerator), Decimal(chance.denominator))).lower()
