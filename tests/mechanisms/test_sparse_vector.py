"""Threshold answers in a fixed order: exact laws, exact losses, and what one-sidedness saves."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_evidence.papers.asymmetric.policies import exact_loss_ratio, vector_place_policy
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.sparse_vector import (
    AsymmetricSparseVector,
    Mark,
    SanitizedSparseVector,
    asymmetric_sparse_law,
    sanitized_law,
)

from tests.support.audit import chi_square_p
from tests.support.plain_sparse_vector import PlainSparseVector, expected_correct_safe

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["salap.law"]
SAFE, ABOVE, NONE = Mark.SAFE, Mark.ABOVE, Mark.UNANSWERED
Q = Fraction(1, 3)
TRIPS = [frozenset(), frozenset("A"), frozenset("B"), frozenset("AB")]


def visits(database: tuple[frozenset[str], ...]) -> tuple[int, int]:
    return sum("A" in trip for trip in database), sum("B" in trip for trip in database)


def test_the_law_matches_the_golden_numbers():
    run = SanitizedSparseVector(epsilon=Fraction(1), maximum=5, thresholds=(2, 2, 2))

    law = run.law((1, 3, 0))

    assert float(law[SAFE, 3, NONE]) == pytest.approx(GOLDEN["('_', 3, 'x')"], abs=1e-9)
    assert float(law[SAFE, 5, NONE]) == pytest.approx(GOLDEN["('_', 5, 'x')"], abs=1e-9)
    assert float(law[4, NONE, NONE]) == pytest.approx(GOLDEN["(4, 'x', 'x')"], abs=1e-9)


@pytest.mark.parametrize("aborts", [1, 2, 3])
def test_laws_sum_to_one_and_nothing_is_answered_after_the_last_abort(aborts: int):
    law = sanitized_law(Q, 4, (1, 3, 0), (2, 1, 0), aborts)

    assert sum(law.values()) == 1
    for answers in law:
        ended = [i for i, answer in enumerate(answers) if answer is NONE]
        numbers = [i for i, answer in enumerate(answers) if isinstance(answer, int)]
        assert len(numbers) == aborts if ended else len(numbers) <= aborts
        assert all(i > j for i in ended for j in numbers)


@pytest.mark.parametrize("aborts", [1, 2])
def test_c_aborts_cost_exactly_c_eps_for_any_number_of_queries(aborts: int):
    def law(database: tuple[frozenset[str], ...]) -> dict[tuple[int | Mark, ...], Fraction]:
        a, b = visits(database)
        return sanitized_law(Q, 2, (a, b, a), (0, 0, 1), aborts)

    assert exact_loss_ratio(law, vector_place_policy("AB"), TRIPS, 2) == 1 / Q**aborts


def test_aborts_without_numbers_cost_as_much():
    def law(database: tuple[frozenset[str], ...]) -> dict[tuple[int | Mark, ...], Fraction]:
        a, b = visits(database)
        return asymmetric_sparse_law(Q, (a, b, a), (0, 0, 1), 2)

    assert exact_loss_ratio(law, vector_place_policy("AB"), TRIPS, 2) == 1 / Q**2


def test_safe_alone_costs_nothing():
    many, few = (sanitized_law(Q, 3, counts, (1, 1)) for counts in ((1, 1), (0, 1)))

    assert many[SAFE, SAFE] < few[SAFE, SAFE]


def test_the_asymmetric_vector_is_the_sanitized_one_without_its_numbers():
    sanitized = sanitized_law(Q, 4, (1, 3, 0), (2, 1, 0), 2)
    merged: dict[tuple[int | Mark, ...], Fraction] = {}
    for answers, mass in sanitized.items():
        key = tuple(ABOVE if isinstance(answer, int) else answer for answer in answers)
        merged[key] = merged.get(key, Fraction(0)) + mass

    assert asymmetric_sparse_law(Q, (1, 3, 0), (2, 1, 0), 2) == merged


@pytest.mark.parametrize("aborts", [1, 2])
@pytest.mark.parametrize("kind", [SanitizedSparseVector, AsymmetricSparseVector])
def test_runs_follow_the_exact_law(kind: type[SanitizedSparseVector] | type[AsymmetricSparseVector], aborts: int):
    run = kind(epsilon=Fraction(1), maximum=4, thresholds=(2, 1, 0), aborts=aborts)
    wider = kind(epsilon=Fraction(10, 13), maximum=4, thresholds=(2, 1, 0), aborts=aborts)
    source = SeededRandom(31)

    drawn = [run.run((1, 1, 0), source) for _ in range(20_000)]

    assert chi_square_p(drawn, run.law((1, 1, 0))) > 1e-20
    assert chi_square_p(drawn, wider.law((1, 1, 0))) < 1e-20
    assert run.total_epsilon == aborts


def test_a_run_never_says_safe_of_a_count_above_its_threshold():
    run, source = SanitizedSparseVector(epsilon=Fraction(1, 2), maximum=5, thresholds=(0, 1, 2)), SeededRandom(32)

    wrong = [
        (counts, answers)
        for counts in itertools.product(range(6), repeat=3)
        for answers in [run.run(counts, source) for _ in range(5)]
        if any(count > t and a is SAFE for count, t, a in zip(counts, run.thresholds, answers, strict=True))
    ]

    assert wrong == []


class RecordingSource:
    """A seeded stream that remembers what was asked for."""

    def __init__(self, seed: int) -> None:
        self.inner, self.requests = SeededRandom(seed), list[int]()

    def random_bytes(self, count: int, /) -> bytes:
        self.requests.append(count)
        return self.inner.random_bytes(count)


def test_an_aborted_run_draws_as_many_bytes_as_a_whole_one():
    run = SanitizedSparseVector(epsilon=Fraction(1), maximum=9, thresholds=(3,) * 5)
    busy, quiet = RecordingSource(1), RecordingSource(1)

    aborted, whole = run.run((9,) * 5, busy), run.run((0,) * 5, quiet)

    assert aborted[1:] == (NONE,) * 4
    assert NONE not in whole
    assert busy.requests == quiet.requests


def test_every_query_has_its_own_noise():
    run, source = SanitizedSparseVector(epsilon=Fraction(1), maximum=20, thresholds=(0, 0), aborts=2), SeededRandom(33)

    drawn = {run.run((1, 1), source) for _ in range(200)}

    assert any(first != second for first, second in drawn)


@pytest.mark.parametrize("aborts", [1, 2, 4])
def test_the_expected_number_of_safe_answers_is_that_of_the_law(aborts: int):
    counts, thresholds = (0, 2, 1, 0), (1, 1, 2, 0)
    law = sanitized_law(Q, 4, counts, thresholds, aborts)

    expected = sum((mass * answers.count(SAFE) for answers, mass in law.items()), Fraction(0))

    assert expected_correct_safe(Q, counts, thresholds, aborts) == expected


# The plain sparse vector, for comparison.


def test_the_plain_vector_keeps_its_eps_for_moves_in_either_direction():
    run = PlainSparseVector(epsilon=Fraction(1), thresholds=(1, 2, 0), aborts=2)
    law = run.law((1, 2, 0))

    losses = [
        max(law[answers] / other[answers] for answers in law)
        for moves in itertools.product((-1, 0, 1), repeat=3)
        for other in [run.law(tuple(c + m for c, m in zip((1, 2, 0), moves, strict=True)))]
    ]

    assert math.fsum(law.values()) == pytest.approx(1, abs=1e-9)
    assert 1.3 < max(losses) <= math.e


def test_plain_runs_follow_their_law():
    run, source = PlainSparseVector(epsilon=Fraction(2), thresholds=(1, 2), aborts=1), SeededRandom(34)

    drawn = [run.run((1, 1), source) for _ in range(10_000)]

    assert chi_square_p(drawn, {answers: Fraction(mass) for answers, mass in run.law((1, 1)).items()}) > 1e-20
    wider = PlainSparseVector(epsilon=Fraction(1, 2), thresholds=(1, 2), aborts=1).law((1, 1))
    assert chi_square_p(drawn, {answers: Fraction(mass) for answers, mass in wider.items()}) < 1e-20


def test_at_equal_eps_the_plain_vector_is_often_wrong_where_the_one_sided_is_never():
    epsilon, thresholds, busy = Fraction(1), (2,), (3,)

    plain = PlainSparseVector(epsilon=epsilon, thresholds=thresholds).law(busy)
    sided = AsymmetricSparseVector(epsilon=epsilon, maximum=9, thresholds=thresholds).law(busy)

    assert plain[SAFE,] > 0.3
    assert (SAFE,) not in sided


# Bad input.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"maximum": 0}, "maximum is 0"),
        ({"aborts": 0}, "aborts is 0"),
        ({"thresholds": ()}, "number of thresholds is 0"),
        ({"thresholds": (5,)}, r"threshold is 5, allowed: 0\.\.4"),
        ({"thresholds": (-1,)}, "threshold is -1"),
        ({"epsilon": 0.5}, "epsilon"),
    ],
)
@pytest.mark.parametrize("kind", [SanitizedSparseVector, AsymmetricSparseVector])
def test_bad_public_parameters_are_refused(kind: type, change: dict[str, object], message: str):
    with pytest.raises(MechanismError, match=message):
        kind(**{"epsilon": Fraction(1), "maximum": 5, "thresholds": (2,)} | change)


def test_counts_that_do_not_fit_are_refused_and_not_shown():
    run = SanitizedSparseVector(epsilon=Fraction(1), maximum=5, thresholds=(2, 2))

    with pytest.raises(MechanismError, match="1 entries"):
        run.run((1,), SeededRandom(0))
    with pytest.raises(MechanismError, match=r"0\.\.5 \(the value given is withheld\)"):
        run.run((1, 6), SeededRandom(0))
    with pytest.raises(MechanismError, match="1 entries"):
        PlainSparseVector(epsilon=Fraction(1), thresholds=(2, 2)).run((1,), SeededRandom(0))
    with pytest.raises(MechanismError, match="aborts is 0"):
        PlainSparseVector(epsilon=Fraction(1), thresholds=(2,), aborts=0)
