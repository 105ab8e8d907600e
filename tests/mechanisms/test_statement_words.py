"""Plain sentences promise what the views of a statement promise, and never more."""

import re
from decimal import Decimal
from math import exp

import pytest
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.statement import views_of
from fleetcount_mechanisms.statement_words import plain_sentences

from tests.support.protocol_samples import every_window
from tests.support.question_samples import every_question

WINDOWS = every_window()
QUESTION = every_question()
POWER = re.compile(r"(?:a factor of ([0-9.]+) \()?e\^([0-9.]+)")


@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_one_or_two_sentences_round_every_number_up(name: str) -> None:
    design = WINDOWS[name].design
    views = views_of(design)

    public, together = plain_sentences(design, views)

    for sentence, slug in ((public, "public_and_broker"), (together, "all_aggregators")):
        view = next(view for view in views if view.adversary == slug)
        shown = POWER.search(sentence)
        if shown is None:
            assert view.epsilon is None or view.neighbours in ("one-sided", "one-sided-down")
            continue
        assert view.epsilon is not None
        assert view.epsilon <= Decimal(shown[2]) <= view.epsilon + Decimal("0.01")
        assert shown[1] is None or exp(view.epsilon) <= float(shown[1]) <= exp(view.epsilon) + 0.1


def test_what_has_one_direction_says_that_the_other_has_no_bound() -> None:
    mangat, exact = WINDOWS["mangat"].design, QUESTION["one_sided"]

    noised, opened = plain_sentences(mangat, views_of(mangat))
    window, _ = plain_sentences(exact.design, question_views(exact.design, exact.shape, exact.delta))

    assert "no bound" not in noised
    assert "said Yes rather than No" in opened
    assert opened.endswith("The odds of any other change have no bound.")
    assert "one answer against none" in window
    assert window.endswith("The odds of any other change have no bound.")


@pytest.mark.parametrize("name", sorted(QUESTION))
def test_a_window_speaks_of_one_answer_and_of_all_of_them(name: str) -> None:
    question = QUESTION[name]
    views = question_views(question.design, question.shape, question.delta)

    public, together = plain_sentences(question.design, views)

    # A delta bounds no chance, and no sentence says so.
    assert ("which is no bound on their chance" in public) is (views[0].epsilon is not None and views[0].delta > 0)
    assert "except with" not in public
    powers = [Decimal(power) for _, power in POWER.findall(public)]
    stated = views[:3:2] if question.schedule.windows > 1 else views[:1]
    assert len(powers) == len(stated)
    assert all(power >= (view.epsilon or 0) for power, view in zip(powers, stated, strict=True))
    seen = ("the answer",) if question.schedule.windows == 1 else ("each answer", "randomized answers")
    assert any(one in together for one in seen)


def test_exact_counts_are_called_exact() -> None:
    design = WINDOWS["sampling_exact"].design

    public, _ = plain_sentences(design, views_of(design))

    assert public.startswith("The counts are exact: ")
    assert public.endswith("learns a device's answer with probability 0.25.")
    assert "honest" not in public
