"""The die and the two-round answer: exact for every number a draw can be, unbiased by enumerating every answer."""

import itertools
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from fleetcount_mechanisms.sampling import SamplingDie, estimate, estimate_baseline, toss
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

UNIFORM = [SamplingDie.uniform(Fraction(1, 4), 3), SamplingDie.uniform(Fraction(9, 20), 1)]
WEIGHTED = SamplingDie(
    sampling_rate=Fraction(1, 4),
    values=3,
    face_probabilities=(Fraction(3, 8), Fraction(1, 8), Fraction(1, 16), Fraction(3, 16)),
)


def law(die: SamplingDie, truth: int) -> dict[tuple[int, int], Fraction]:
    pairs = itertools.product(range(die.values + 1), repeat=2)
    return {pair: die.pair_probability(*pair, truth) for pair in pairs if die.pair_probability(*pair, truth)}


@pytest.mark.parametrize("die", [*UNIFORM, WEIGHTED], ids=str)
def test_the_law_of_the_pair_sums_to_one_and_has_the_laws_of_the_rounds_as_margins(die: SamplingDie) -> None:
    positions = range(die.values + 1)
    for truth in positions:
        pairs = law(die, truth)

        assert sum(pairs.values()) == 1
        for output in positions:
            first = sum(chance for pair, chance in pairs.items() if pair[0] == output)
            second = sum(chance for pair, chance in pairs.items() if pair[1] == output)
            assert first == die.round_one_probability(output)
            assert second == die.round_two_probability(output, truth)


@pytest.mark.parametrize("die", [*UNIFORM, WEIGHTED], ids=str)
def test_round_one_has_the_same_law_for_every_truth(die: SamplingDie) -> None:
    margins = [
        {output: sum(chance for pair, chance in law(die, truth).items() if pair[0] == output) for output in range(4)}
        for truth in range(die.values + 1)
    ]

    assert all(margin == margins[0] for margin in margins)


@pytest.mark.parametrize("die", [*UNIFORM, WEIGHTED], ids=str)
def test_the_estimate_is_unbiased_for_every_truth(die: SamplingDie) -> None:
    for truth in range(die.values + 1):
        expected = [Fraction(0)] * die.values
        for (first, second), chance in law(die, truth).items():
            difference = [(second == cell) - (first == cell) for cell in range(1, die.values + 1)]
            for cell, value in enumerate(estimate(die, difference)):
                expected[cell] += chance * value

        assert expected == [int(truth == cell) for cell in range(1, die.values + 1)]
        assert estimate_baseline(1, expected) == int(truth == 0)


class Number:
    def __init__(self, number: int, order: str) -> None:
        self.number, self.order = number, order

    def random_bytes(self, count: int, /) -> bytes:
        return self.number.to_bytes(count, self.order)  # type: ignore[arg-type] # "big" or "little" by construction


@pytest.mark.parametrize("die", UNIFORM, ids=str)
def test_every_answer_of_the_uniform_die_owns_exactly_its_share_of_the_numbers(die: SamplingDie) -> None:
    for truth in range(die.values + 1):
        bounds = [0, die.limit]
        for face in range(1, die.values + 2):
            bounds.append(face * die.face_span)
        found: dict[tuple[int, int], Fraction] = Counter()
        for start, end in itertools.pairwise(sorted(bounds)):
            # Division by a constant is monotone: both ends of a stretch decide all of it.
            answers = {toss(die, truth, Number(number, "big"))[:2] for number in (start, end - 1)}
            assert len(answers) == 1
            found[answers.pop()] += Fraction(end - start, die.limit)

        assert dict(found) == law(die, truth)


def test_a_number_beyond_the_limit_is_drawn_again() -> None:
    die = SamplingDie.uniform(Fraction(1, 4), 2)
    numbers = [die.limit, 256**die.byte_count - 1, 0]

    class Source:
        def random_bytes(self, count: int, /) -> bytes:
            return numbers.pop(0).to_bytes(count, "big")

    answer = toss(die, 2, Source())

    assert tuple(answer) == (0, 0, False)
    assert numbers == []


def p_value(die: SamplingDie, truth: int, answers: Counter[tuple[int, int]], rate: Fraction) -> float:
    """Return the chi-square p-value of answers against the pair law with another sampling rate."""
    scale = (1 - rate) / (1 - die.sampling_rate)
    expected = {pair: Fraction(0) for pair in law(die, truth)}
    for face in range(die.values + 1):
        expected[(face, face)] += die.face_probability(face) * scale
    expected[(0, truth)] += rate
    total = answers.total()
    return float(
        stats.chisquare([answers[pair] for pair in expected], [float(total * e) for e in expected.values()]).pvalue
    )


@pytest.mark.parametrize("die", [*UNIFORM, WEIGHTED], ids=str)
@pytest.mark.parametrize("truth", [0, 1])
def test_a_hundred_thousand_answers_follow_the_law_and_not_that_of_1_3_times_the_rate(
    die: SamplingDie, truth: int
) -> None:
    source = SystemRandom()

    answers = Counter(toss(die, truth, source)[:2] for _ in range(100_000))

    assert set(answers) <= set(law(die, truth))
    assert p_value(die, truth, answers, die.sampling_rate) > 1e-20
    assert p_value(die, truth, answers, die.sampling_rate * Fraction(13, 10)) < 1e-20


def test_the_answer_says_whether_it_was_sampled() -> None:
    source = SeededRandom(3)

    for die in (UNIFORM[0], WEIGHTED):
        answers = [toss(die, 3, source) for _ in range(2000)]
        assert all(answer.round_one == answer.round_two for answer in answers if not answer.sampled)
        assert all((answer.round_one, answer.round_two) == (0, 3) for answer in answers if answer.sampled)
        assert 350 < sum(answer.sampled for answer in answers) < 650


def test_an_answer_never_shows_itself() -> None:
    answer = toss(UNIFORM[0], 2, SeededRandom(1))

    for shown in (repr(answer), str(answer), f"{answer}", f"{[answer]}", "%s" % (answer,)):  # noqa: UP031 # the way of logging
        assert not any(digit in shown for digit in "0123456789")


@given(
    st.integers(1, 40).flatmap(
        lambda values: st.tuples(
            st.just(values), st.lists(st.integers(1, 100), min_size=values + 2, max_size=values + 2)
        )
    )
)
def test_any_positive_weights_make_a_die_with_exactly_these_probabilities(case: tuple[int, list[int]]) -> None:
    values, weights = case
    total = sum(weights)
    die = SamplingDie(
        sampling_rate=Fraction(weights[0], total),
        values=values,
        face_probabilities=tuple(Fraction(weight, total) for weight in weights[1:]),
        allow_large_rate=True,
    )

    assert [die.face_probability(face) for face in range(values + 1)] == [Fraction(w, total) for w in weights[1:]]
    assert die.smallest_face_probability == Fraction(min(weights[1:]), total)
    answer = toss(die, values, SystemRandom())
    assert 0 <= answer.round_one <= values
    assert answer.round_two in (answer.round_one, values)


def test_equal_faces_are_the_uniform_die() -> None:
    listed = SamplingDie(sampling_rate=Fraction(1, 4), values=2, face_probabilities=(Fraction(1, 4),) * 3)

    assert listed == SamplingDie.uniform(Fraction(1, 4), 2)
    assert listed.face_probabilities is None


def faces(*numerators: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(numerator, 8) for numerator in numerators)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SamplingDie.uniform(Fraction(1, 2), 1), "sampling rate is 1/2, allowed: below 1/2"),
        (lambda: SamplingDie.uniform(Fraction(0), 1), "sampling rate is 0, allowed: 0 <"),
        (lambda: SamplingDie.uniform(Fraction(1), 1, allow_large_rate=True), "sampling rate is 1,"),
        (lambda: SamplingDie.uniform(0.25, 1), "exact Fraction"),  # type: ignore[arg-type] # is refused
        (lambda: SamplingDie.uniform(Fraction(1, 4), 0), "values is 0, allowed: values >= 1"),
        (
            lambda: SamplingDie(sampling_rate=Fraction(1, 8), values=2, face_probabilities=faces(3, 0, 4)),
            "probability of face 1 is 0, allowed: above 0",
        ),
        (
            lambda: SamplingDie(sampling_rate=Fraction(1, 8), values=2, face_probabilities=faces(3, 1, 4)),
            "sum to 9/8, allowed: exactly 1",
        ),
        (
            lambda: SamplingDie(sampling_rate=Fraction(1, 8), values=2, face_probabilities=faces(3, 4)),
            "face probabilities has 2 entries, allowed: exactly 3",
        ),
        (lambda: UNIFORM[0].face_probability(4), "face is 4, allowed: 0..3"),
        (lambda: UNIFORM[0].face_probability(0.5), "face is 0.5, allowed: 0..3"),  # type: ignore[arg-type] # is refused
        (lambda: UNIFORM[0].round_two_probability(1, 4), "a truth must be in 0..3"),
        (lambda: UNIFORM[0].pair_probability(0, 1, -1), "a truth must be in 0..3"),
        (lambda: estimate(UNIFORM[0], [1, 2]), "difference has 2 entries, allowed: exactly 3"),
        (lambda: toss(UNIFORM[0], 4, SystemRandom()), "a truth must be in 0..3"),
        (lambda: toss(WEIGHTED, -1, SystemRandom()), "a truth must be in 0..3"),
        (lambda: toss(UNIFORM[0], True, SystemRandom()), "not bool"),
        (lambda: toss(UNIFORM[0], 1.0, SystemRandom()), "not float"),  # type: ignore[arg-type] # is refused
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)


def test_a_refused_truth_is_not_shown() -> None:
    with pytest.raises(MechanismError) as caught:
        toss(UNIFORM[0], 777_123, SystemRandom())

    assert "777" not in str(caught.value)


@pytest.mark.parametrize("last", [Fraction(1, 8), Fraction(3, 8)])
def test_a_die_sums_to_exactly_one(last: Fraction) -> None:
    faces = (Fraction(1, 4), Fraction(1, 4), last)

    with pytest.raises(MechanismError, match="allowed: exactly 1"):
        SamplingDie(sampling_rate=Fraction(1, 4), values=2, face_probabilities=faces)
