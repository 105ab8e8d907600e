"""Randomized responses: laws exact for every number drawn, losses equal to their enumeration, estimates unbiased."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.response_laws import k_ary_sd, mangat_sd, two_coin_sd, unary_sd, warner_sd
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    TwoCoin,
    Warner,
)
from scipy import stats

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())
CLOSE: dict[str, Any] = {"rel": 1e-9}
RESPONSES: list[RandomizedResponse] = [
    TwoCoin(Fraction(4, 5), Fraction(1, 5)),
    Warner(Fraction(3, 4)),
    Mangat(Fraction(1, 3)),
    KaryResponse(Fraction(1, 2), 4),
]
NAME = {"ids": lambda response: type(response).__name__}


class Number:
    """A source of one number, however often it is asked."""

    def __init__(self, number: int) -> None:
        self.number = number

    def random_bytes(self, count: int, /) -> bytes:
        return self.number.to_bytes(count, "little")


def test_two_coin_losses_and_errors_are_the_golden_ones() -> None:
    for row in GOLDEN["rr"]:
        coins = TwoCoin(Fraction(str(row["q"])), Fraction(str(row["r"])))

        assert coins.epsilon_yes == pytest.approx(row["eps_yes"], **CLOSE)
        assert coins.epsilon_no == pytest.approx(row["eps_no"], **CLOSE)
        for population, sd in row["sd"].items():
            assert coins.standard_deviation(100, int(population)) == pytest.approx(sd, **CLOSE)
            assert two_coin_sd(100, int(population), row["q"], row["r"]) == pytest.approx(sd, **CLOSE)


def test_the_errors_of_the_other_responses_are_the_golden_ones() -> None:
    for row in GOLDEN["warner.sd"]:
        assert warner_sd(row["eps"], row["N"]) == pytest.approx(row["sd"], **CLOSE)
    for row in GOLDEN["mangat.sd"]:
        assert mangat_sd(row["eps"], row["N"], row["n"]) == pytest.approx(row["sd"], **CLOSE)
    for row in GOLDEN["krr.sd"]:
        assert k_ary_sd(row["eps"], row["k"], row["N"], row["n"]) == pytest.approx(row["sd"], **CLOSE)
    for row in GOLDEN["oue.sd"]:
        assert unary_sd(row["eps"], row["N"], row["n"]) == pytest.approx(row["sd"], **CLOSE)


@pytest.mark.parametrize("response", RESPONSES, **NAME)
def test_every_row_of_the_law_sums_to_one(response: RandomizedResponse) -> None:
    outputs = range(response.values + 1)

    assert all(sum(response.probability(output, truth) for output in outputs) == 1 for truth in outputs)


@pytest.mark.parametrize("response", RESPONSES, **NAME)
def test_the_answers_own_exactly_their_share_of_the_numbers(response: RandomizedResponse) -> None:
    # Every bound here divides 1200, and a draw is its number modulo the bound.
    for truth in range(response.values + 1):
        found = Counter(response.randomize(truth, Number(number)) for number in range(1200))

        assert {output: Fraction(count, 1200) for output, count in found.items()} == {
            output: response.probability(output, truth)
            for output in range(response.values + 1)
            if response.probability(output, truth)
        }


@pytest.mark.parametrize("response", [RESPONSES[0], RESPONSES[1], RESPONSES[3]], **NAME)
def test_the_loss_is_that_of_the_enumerated_law_rounded_up(response: RandomizedResponse) -> None:
    positions = range(response.values + 1)
    worst = max(
        response.probability(output, first) / response.probability(output, second)
        for output, first, second in itertools.product(positions, repeat=3)
    )

    assert response.epsilon == pytest.approx(math.log(worst), rel=1e-12)
    assert response.epsilon >= math.log(worst)


def test_mangats_yes_is_deniable_and_its_no_is_proof() -> None:
    mangat = Mangat(Fraction(1, 3))

    ratios = [mangat.probability(output, 1) / mangat.probability(output, 0) for output in (0, 1)]

    assert math.log(max(ratios)) == pytest.approx(mangat.epsilon)
    assert mangat.probability(0, 1) == 0


@pytest.mark.parametrize("response", RESPONSES, **NAME)
def test_answers_of_the_system_source_follow_the_law_and_not_a_stretched_one(response: RandomizedResponse) -> None:
    source, outputs = SystemRandom(), range(response.values + 1)
    for truth in outputs:
        law = [float(response.probability(output, truth)) for output in outputs]
        found = Counter(response.randomize(truth, source) for _ in range(30_000))
        possible = [output for output in outputs if law[output]]
        counts = [found[output] for output in possible]

        assert set(found) <= set(possible)
        if len(possible) > 1:
            bent = [law[output] ** (1 / 1.3) for output in possible]
            assert stats.chisquare(counts, [30_000 * law[output] for output in possible]).pvalue > 1e-20
            assert stats.chisquare(counts, [30_000 * chance / sum(bent) for chance in bent]).pvalue < 1e-20


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(5, 2), Fraction(8)], ids=str)
def test_a_response_made_for_an_epsilon_never_loses_more_and_hardly_less(epsilon: Fraction) -> None:
    made: list[Any] = [
        TwoCoin.from_epsilon(epsilon),
        TwoCoin.from_epsilon(epsilon, Fraction(1, 5)),
        Warner.from_epsilon(epsilon),
        Mangat.from_epsilon(epsilon),
        KaryResponse.from_epsilon(epsilon, 9),
        MangatVector.from_epsilon(epsilon, 9),
        OptimizedUnaryEncoding.from_epsilon(epsilon, 9),
    ]

    for response in made:
        assert epsilon * Fraction(99_999, 100_000) < response.epsilon <= epsilon


def test_two_coins_made_for_an_epsilon_count_both_answers() -> None:
    coins = TwoCoin.from_epsilon(Fraction(1), Fraction(9, 10))

    assert coins.epsilon_no > coins.epsilon_yes
    assert coins.epsilon == coins.epsilon_no <= 1


@pytest.mark.parametrize("vector", [MangatVector(Fraction(1, 3), 6), OptimizedUnaryEncoding(Fraction(1, 4), 6)], **NAME)
def test_the_bits_of_a_vector_are_randomized_apart(
    vector: MangatVector | OptimizedUnaryEncoding,
) -> None:
    source, truth = SystemRandom(), (1, 0, 0, 1, 0, 1)

    found = [0] * 6
    for _ in range(20_000):
        found = [count + bit for count, bit in zip(found, vector.randomize_bits(truth, source), strict=True)]

    for count, bit in zip(found, truth, strict=True):
        chance = vector.bit_probability(1, bit)
        if chance == 1:
            assert count == 20_000
        else:
            assert stats.binomtest(count, 20_000, float(chance)).pvalue > 1e-20
            assert stats.binomtest(count, 20_000, min(0.99, float(chance) * 1.3)).pvalue < 1e-20


def test_the_loss_of_unary_encodings_is_that_of_one_hot_truths() -> None:
    unary, mangat = OptimizedUnaryEncoding(Fraction(1, 4), 3), MangatVector(Fraction(1, 3), 3)

    def law(vector: Any, truth: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
        return {
            bits: math.prod((vector.bit_probability(b, t) for b, t in zip(bits, truth, strict=True)), start=Fraction(1))
            for bits in itertools.product((0, 1), repeat=3)
        }

    first, second, nowhere = law(unary, (1, 0, 0)), law(unary, (0, 1, 0)), law(mangat, (0, 0, 0))
    both = law(mangat, (1, 1, 0))
    assert math.log(max(first[bits] / second[bits] for bits in first)) == pytest.approx(unary.epsilon)
    assert math.log(max(both[bits] / nowhere[bits] for bits in both)) == pytest.approx(2 * mangat.epsilon)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Warner(Fraction(1, 2)), "keep is 1/2, allowed: 1/2 < keep < 1"),
        (lambda: Warner(0.75), "exact Fraction"),  # type: ignore[arg-type] # is refused
        (lambda: Mangat(Fraction(0)), "flip is 0, allowed: 0 < flip < 1"),
        (lambda: TwoCoin(Fraction(1), Fraction(1, 2)), "truth probability is 1"),
        (lambda: TwoCoin(Fraction(1, 2), Fraction(0)), "yes probability is 0"),
        (lambda: KaryResponse(Fraction(1, 5), 4), "keep is 1/5, allowed: 1/5 < keep < 1"),
        (lambda: KaryResponse(Fraction(1, 2), 0), "values is 0, allowed: values >= 1"),
        (lambda: OptimizedUnaryEncoding(Fraction(1, 2), 3), "flip is 1/2, allowed: 0 < flip < 1/2"),
        (lambda: Warner.from_epsilon(Fraction(-1)), "epsilon is -1, allowed: epsilon > 0"),
        (lambda: Mangat.from_epsilon(Fraction(1, 10**13)), "epsilon is 1/10000000000000"),
        (lambda: KaryResponse.from_epsilon(Fraction(100), 3), "epsilon is 100, allowed: 0 < epsilon <= 20"),
        (lambda: RESPONSES[0].probability(2, 0), "output is 2"),
        (lambda: RESPONSES[3].probability(5, 0), "output is 5, allowed: 0..4"),
        (lambda: RESPONSES[3].probability(0.5, 0), "output is 0.5, allowed: 0..4"),  # type: ignore[arg-type] # is refused
        (lambda: MangatVector(Fraction(1, 3), 2).bit_probability(1, 0, 0), "cell is 0, allowed: 1..2"),
        (lambda: MangatVector(Fraction(1, 3), 2).bit_probability(1, 0, 3), "cell is 3, allowed: 1..2"),
        (lambda: MangatVector(Fraction(1, 3), 2).standard_deviation(1, 2, 0), "cell is 0, allowed: 1..2"),
        (lambda: AsymmetricVector(Fraction(1, 3), (Flips.UP, Flips.DOWN)).hides(-1, 1), "value is -1, allowed: 0..2"),
        (lambda: AsymmetricVector(Fraction(1, 3), (Flips.UP, Flips.DOWN)).hides(1, 3), "value is 3, allowed: 0..2"),
        (lambda: RESPONSES[0].randomize(2, Number(1)), "a truth must be in 0..1"),
        (lambda: RESPONSES[3].randomize(-1, Number(1)), "a truth must be in 0..4"),
        (lambda: MangatVector(Fraction(1, 3), 2).randomize_bits((1, 2), Number(1)), "a truth must be in 0..1"),
        (lambda: MangatVector(Fraction(1, 3), 2).randomize_bits((1,), Number(1)), "truth bits has 1 entries"),
        (lambda: mangat_sd(1.0, 10, 11), "count is 11, allowed: 0 <= count <= population = 10"),
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)
