"""The statement of a question: three lines an adversary, rounded up, honest about coins, and the same in plain
words.
"""

from decimal import Decimal
from fractions import Fraction
from math import exp, log

import pytest
from fleetcount_mechanisms.accounting.question_losses import question_losses
from fleetcount_mechanisms.accounting.question_statement import (
    NEIGHBOURS,
    one_window_words,
    plain_words,
    question_views,
)
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import (
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import AdversaryView, views_of

DELTA = Fraction(1, 10**9)
DAYS = (24,) * 30
HOURLY = ScheduleShape(units=(1,) * 720, days=DAYS)
DAILY = ScheduleShape(units=DAYS, days=DAYS)
DIE = SamplingDie.uniform(Fraction(1, 4), 5)
TOSSED = SamplingDie.uniform(Fraction(1, 4), 40)
MONTH = GaussianNoise(Fraction("25.692") ** 2)
READERS = ("public_and_broker", "one_aggregator", "all_but_one_aggregators")


def design(answer: AnswerLaw, noise: NoiseLaw, aggregators: int = 2) -> Design:
    return Design(answer=answer, noise=noise, values=answer.values, aggregators=aggregators)


def lines(question: Design, shape: ScheduleShape, adversary: str) -> list[AdversaryView]:
    return [view for view in question_views(question, shape, DELTA) if view.adversary == adversary]


@pytest.mark.parametrize(
    "answer", [Truth(1), Truth(5), DIE, KaryResponse(Fraction(1, 2), 3), MangatVector(Fraction(1, 5), 3)]
)
@pytest.mark.parametrize("noise", [TwoSidedNoise(Fraction(1, 10)), MONTH], ids=["geometric", "Gaussian"])
def test_every_audience_of_a_release_has_three_lines(answer: AnswerLaw, noise: NoiseLaw) -> None:
    views = question_views(design(answer, noise, 3), DAILY, DELTA)
    audiences = [view.adversary for view in views_of(design(answer, TwoSidedNoise(Fraction(1)), 3))]

    assert [view.adversary for view in views] == [name for name in audiences for _ in NEIGHBOURS]
    assert [view.neighbours for view in views] == list(NEIGHBOURS) * len(audiences)
    assert {view.adversary for view in views} >= {*READERS, "all_aggregators"}
    for view in views:
        number = view.delta if view.epsilon is None else view.epsilon
        assert f"{number:f}".removesuffix(".00000") in view.sentence
        assert len(view.sentence.encode()) < 500


def test_what_is_printed_is_the_loss_rounded_up() -> None:
    for shape in (HOURLY, DAILY):
        for question in (design(DIE, MONTH), design(Truth(5), MONTH), design(DIE, TwoSidedNoise(Fraction(1, 10)))):
            lost = question_losses(question, shape, DELTA)
            for name in READERS:
                shown = [view.epsilon for view in lines(question, shape, name)]
                for epsilon, exact in zip(shown, (lost.one_answer, lost.one_day, lost.whole_question), strict=True):
                    assert epsilon is not None
                    assert exact <= Fraction(epsilon) < exact + Fraction(1, 10**5)


@pytest.mark.parametrize(
    "noise", [pytest.param(GaussianNoise(Fraction(9)), marks=pytest.mark.nightly), MONTH, TwoSidedNoise(Fraction(1, 5))]
)
@pytest.mark.parametrize(
    "answer",
    [
        *(Truth(1), Truth(4), DIE, SamplingDie.uniform(Fraction(9, 20), 1), KaryResponse(Fraction(1, 2), 3)),
        *(Mangat(Fraction(1, 10)), MangatVector(Fraction(1, 10), 3), OptimizedUnaryEncoding(Fraction(1, 5), 3)),
    ],
    ids=lambda answer: f"{type(answer).__name__}-{answer.values}",
)
def test_a_question_of_one_window_is_a_single_release(answer: AnswerLaw, noise: NoiseLaw) -> None:
    """Nothing is lost to a delta that is not needed, nor to a change of more than the release is stated for."""
    asked, once = design(answer, noise), ScheduleShape(units=(1,), days=(1,))

    assert question_views(asked, once, DELTA) == views_of(asked)
    at_another = question_views(asked, once, DELTA / 10)
    assert [view.adversary for view in at_another] == [view.adversary for view in views_of(asked)]
    if not isinstance(noise, GaussianNoise):
        assert at_another == views_of(asked)


def test_a_month_of_direct_maps_prints_the_promise() -> None:
    shown = [view.epsilon for view in lines(design(Truth(5), MONTH), HOURLY, "public_and_broker")]
    seen = lines(design(Truth(5), MONTH), HOURLY, "all_aggregators")

    assert shown == [Decimal("0.30401"), Decimal("1.59126"), Decimal("9.99997")]
    assert all(view.epsilon is None and view.delta == 1 for view in seen)
    assert all(view.delta == Decimal("1e-9") for view in lines(design(Truth(5), MONTH), HOURLY, "one_aggregator"))


def test_all_aggregators_are_told_apart_by_chance_of_any_and_of_all() -> None:
    one, day, question = lines(design(DIE, MONTH), DAILY, "all_aggregators")
    fresh = lines(design(DIE, MONTH), HOURLY, "all_aggregators")

    assert [view.delta for view in (one, day, question)] == [Decimal("0.25"), Decimal("0.25"), Decimal("0.99983")]
    assert "all of them with probability 8.7e-19" in question.sentence
    assert "180.0 of 720 answers are expected to be seen, more than 552 with a chance below 1e-9" in question.sentence
    assert [view.delta for view in fresh] == [Decimal("0.25"), Decimal("0.99900"), 1]


def test_a_coin_that_does_not_help_says_so() -> None:
    answer, day, question = (view.sentence for view in lines(design(DIE, MONTH), DAILY, "public_and_broker"))

    assert "other answers of the same toss betray it" in answer
    assert "betray" not in day + question
    assert all("betray" not in view.sentence for view in lines(design(DIE, MONTH), HOURLY, "public_and_broker"))
    leaked = lines(design(DIE, MONTH), DAILY, "sampled_bit_leaked")
    direct = lines(design(Truth(5), MONTH), DAILY, "public_and_broker")
    assert [view.epsilon for view in leaked] == [view.epsilon for view in direct]


def test_round_two_messages_betray_a_unit_together() -> None:
    """With the coin of one unit all messages are the truth; without it each is a face of the die."""
    small = ScheduleShape(units=(3,), days=(3,))
    die = SamplingDie.uniform(Fraction(1, 4), 2)
    shown = [view.epsilon for view in lines(design(die, MONTH), small, "one_round_two_message")]
    truth = log(0.25 + 0.75 * (1 / 3) ** 3) - log(0.75 * (1 / 3) ** 3)

    assert all(abs(float(epsilon or 0) - truth) < 2e-5 for epsilon in shown)
    fresh = lines(design(die, MONTH), ScheduleShape(units=(1,), days=(1,)), "one_round_two_message")[0]
    assert fresh.epsilon is not None
    assert exp(float(fresh.epsilon)) == pytest.approx(2, rel=1e-4)


def test_responses_keep_their_local_loss_and_one_sided_ones_say_so() -> None:
    shown = lines(design(KaryResponse.from_epsilon(Fraction(1, 2), 3), MONTH), HOURLY, "all_aggregators")
    mangat = lines(design(Mangat(Fraction(1, 10)), MONTH), HOURLY, "one_answer_alone")

    assert [view.epsilon is not None and view.epsilon > 0 for view in shown] == [True] * 3
    assert all("only a value replaced by none is protected" in view.sentence for view in mangat)
    down = lines(design(Truth(2), OneSidedNoise(Fraction(1, 10), "down")), HOURLY, "public_and_broker")
    assert all("only none replaced by a value is protected" in view.sentence for view in down)
    assert down[-1].epsilon == Decimal("72.00000")
    up = design(Truth(2), OneSidedNoise(Fraction(1, 10)))
    for view in lines(up, HOURLY, "all_but_one_aggregators"):
        assert "only a value replaced by none is protected, any other change has no finite epsilon" in view.sentence
    assert [view.epsilon for view in lines(up, HOURLY, "public_and_broker")] == [
        Decimal(text) for text in ("0.10000", "2.40000", "72.00000")
    ], "pure losses add up: no square-root gain"
    words = plain_words(up, HOURLY, DELTA)[0]
    assert "the odds of a value against none" in words
    assert words.endswith("The odds of any other change have no bound.")


def test_exact_counts_have_no_finite_epsilon() -> None:
    views = lines(design(DIE, NoNoise()), DAILY, "public_and_broker")

    assert [view.epsilon for view in views] == [None] * 3
    assert [view.delta for view in views] == [Decimal("0.25"), Decimal("0.25"), Decimal("0.99983")]


def test_plain_words_are_short_and_say_what_the_numbers_say() -> None:
    direct = plain_words(design(Truth(5), MONTH), HOURLY, DELTA)
    daily = plain_words(design(DIE, MONTH, 3), DAILY, DELTA)

    assert direct == (
        "As long as one operator is honest, a reader of all 720 releases moves the odds of one answer against any other"
        " by at most a factor of e^0.31, and of all answers of a device together by at most e^10.00 (epsilons"
        " at delta 0.000000001; with a chance of at most 2 in 10^8 the odds move more).",
        "If both operators collude, they see every answer.",
    )
    assert "a reader together with 2 operators" in daily[0]
    assert daily[1] == (
        "If all 3 operators collude, they see 1 answer in 4 on average: none at all with probability 0.00017, every one"
        " with probability 8.7e-19."
    )
    assert "up to 24 answers" in daily[2]
    local = plain_words(design(KaryResponse.from_epsilon(Fraction(1, 2), 3), NoNoise()), HOURLY, DELTA)
    assert local[0].startswith("A reader of all 720 releases")
    assert "e^0.51 for one answer" in local[1] or "e^0.50 for one answer" in local[1]
    assert len(plain_words(design(DIE, NoNoise()), HOURLY, DELTA)) == 2


def test_delta_is_needed() -> None:
    with pytest.raises(MechanismError, match="delta is 0"):
        question_views(design(Truth(1), MONTH), HOURLY, Fraction(0))


@pytest.mark.parametrize("noise", [GaussianNoise(Fraction(267)), TwoSidedNoise(Fraction(1, 8))])
@pytest.mark.parametrize(
    ("answer", "units"),
    [
        (Truth(40), (1,) * 12),  # Without a coin every window is a unit of its own.
        *((TOSSED, units) for units in ((1,) * 12, (4, 4, 4), (12,))),
        pytest.param(TOSSED, (6, 6), marks=pytest.mark.nightly),
    ],
)
def test_one_truth_told_at_every_level_of_a_walk_is_stated_as_so_many_answers(
    answer: AnswerLaw, noise: NoiseLaw, units: tuple[int, ...]
) -> None:
    asked = design(answer, noise)
    plain = ScheduleShape(units=units, days=(4, 4, 4))
    walks = ScheduleShape(units=units, days=(4, 4, 4), levels=4)

    one, day = question_views(asked, walks, DELTA)[:2]
    single, same_day = question_views(asked, plain, DELTA)[:2]

    assert one.epsilon == day.epsilon == same_day.epsilon
    assert single.epsilon is not None
    assert one.epsilon is not None
    assert single.epsilon < one.epsilon or (single.epsilon == one.epsilon and max(units) > 1)
    assert "a change of one answer of one certificate, told at 4 levels" in one.sentence
    for told, alone in zip(question_views(asked, walks, DELTA), question_views(asked, plain, DELTA), strict=True):
        assert (told.epsilon is None) == (alone.epsilon is None)
        assert told.delta >= alone.delta
        if told.epsilon is not None and alone.epsilon is not None:
            assert told.epsilon >= alone.epsilon


def test_levels_that_do_not_divide_the_windows_are_refused() -> None:
    with pytest.raises(MechanismError, match="levels is 5, allowed: a divisor of the 12 windows"):
        ScheduleShape(units=(12,), days=(12,), levels=5)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (KaryResponse(Fraction(1, 2), 3), "it is the truth with a chance of 0.5000."),
        (Warner(Fraction(11, 20)), "it is the truth with a chance of 0.5500."),
        (TwoCoin(Fraction(1, 2), Fraction(9, 10)), "the truth with a chance of 0.9500 for a yes, 0.5500 for a no."),
        (Warner(Fraction(99_992, 100_000)), "it is the truth with a chance of 1.0000."),
        (Warner(Fraction(55_001, 100_000)), "it is the truth with a chance of 0.5501."),
        (TwoCoin(Fraction(1, 2), Fraction(90_001, 100_000)), "a chance of 0.9501 for a yes, 0.5500 for a no."),
        (OptimizedUnaryEncoding(Fraction(1, 4), 3), "had to say is 1 with a chance of 0.5000, that of every other"),
        (OptimizedUnaryEncoding(Fraction(24_999, 100_000), 3), "that of every other value with 0.2499"),
        (OptimizedUnaryEncoding(Fraction(1, 4), 1), "the bit of what it had to say is 1 with a chance of 0.5000."),
    ],
)
def test_one_window_of_several_says_how_often_an_answer_is_the_truth(answer: AnswerLaw, truth: str) -> None:
    assert truth in one_window_words(design(answer, TwoSidedNoise(Fraction(1))), HOURLY)


@pytest.mark.parametrize("keep", [Fraction(5251, 10_000), Fraction(5276, 10_000), Fraction(7, 10), Fraction(9, 10)])
def test_the_odds_of_one_window_of_several_have_no_delta(keep: Fraction) -> None:
    said = one_window_words(design(Warner(keep), TwoSidedNoise(Fraction(1))), HOURLY)

    loss = float(said.partition("factor of e^")[2].partition(",")[0])
    assert 0 <= loss - log(keep / (1 - keep)) < 0.01
