"""Two-sided geometric noise: its digits multiply to its law, its draws follow it, and its time does not tell it."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.geometric import TwoSidedGeometric, digit_thresholds
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom, exp_minus_bounds, uniform_below
from scipy import stats

from tests.support.cases import case

EPSILONS = [Fraction(1, 10), Fraction(1), Fraction(1572442, 10**6), Fraction(4)]
DRAWS = 100_000


TOP = 2**127 - 1


class Words:
    """A source whose 128-bit words are prescribed and whose requests are counted."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)
        self.requests: list[int] = []

    def random_bytes(self, count: int, /) -> bytes:
        self.requests.append(count)
        words, self.words = self.words[: count // 16], self.words[count // 16 :]
        return b"".join(word.to_bytes(16, "little") for word in words)


def digit_law(epsilon: Fraction, bits: int) -> dict[int, Fraction]:
    """Return the law of the value made by comparing `bits`-bit words with the thresholds, ties counted as False."""
    plan = digit_thresholds(epsilon, bits)
    chances = [Fraction(threshold, 2**bits) for threshold in plan.thresholds]
    law: dict[int, Fraction] = {0: 1 - chances[0]}
    for digits in itertools.product((0, 1), repeat=plan.digits):
        chance = math.prod(
            (chances[place + 1] if digit else 1 - chances[place + 1] for place, digit in enumerate(digits)),
            start=chances[0] / 2,
        )
        magnitude = 1 + sum(digit << place for place, digit in enumerate(digits))
        law[magnitude] = law[-magnitude] = chance
    return law


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
def test_the_digits_multiply_to_the_geometric_law_to_120_binary_digits(epsilon: Fraction) -> None:
    bits = 160
    low, high = (Fraction(bound, 2**bits) for bound in exp_minus_bounds(epsilon, bits))

    law = digit_law(epsilon, bits)

    # (1 - y)/(1 + y) falls with y and y**z grows, so bounds of y bound the law.
    for value in range(-8, 9):
        least = (1 - high) / (1 + high) * low ** abs(value)
        most = (1 - low) / (1 + low) * high ** abs(value)
        assert least - Fraction(1, 2**120) <= law.get(value, Fraction(0)) <= most + Fraction(1, 2**120)


def test_the_probability_function_is_a_distribution_with_the_stated_variance() -> None:
    for epsilon in EPSILONS:
        noise = TwoSidedGeometric(epsilon)
        window = range(-600, 601)

        assert math.fsum(noise.pmf(value) for value in window) == pytest.approx(1, abs=1e-12)
        assert math.fsum(value * value * noise.pmf(value) for value in window) == pytest.approx(
            noise.variance, rel=1e-9
        )
        assert noise.pmf(3) / noise.pmf(4) == pytest.approx(math.exp(epsilon))


def p_value(draws: list[int], epsilon: float) -> float:
    """Return the chi-square p-value of draws against the law at epsilon, cells of at least 20 expected."""
    ratio = math.exp(-epsilon)
    reach = 0
    while len(draws) * (1 - ratio) / (1 + ratio) * ratio ** (reach + 1) >= 20:
        reach += 1
    counts = Counter(max(-reach - 1, min(reach + 1, value)) for value in draws)
    cells = [(1 - ratio) / (1 + ratio) * ratio ** abs(value) for value in range(-reach, reach + 1)]
    tail = ratio ** (reach + 1) / (1 + ratio)
    expected = [len(draws) * chance for chance in (tail, *cells, tail)]
    return float(stats.chisquare([counts[value] for value in range(-reach - 1, reach + 2)], expected).pvalue)


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
def test_a_hundred_thousand_draws_follow_the_law_and_not_the_law_at_1_3_times_the_scale(epsilon: Fraction) -> None:
    draws = TwoSidedGeometric(epsilon).sample_many(SystemRandom(), DRAWS)

    assert p_value(draws, float(epsilon)) > 1e-20
    assert p_value(draws, float(epsilon) / 1.3) < 1e-20
    assert p_value(draws, float(epsilon) * 1.3) < 1e-20


def test_single_draws_follow_the_same_law() -> None:
    noise, source = TwoSidedGeometric(Fraction(1)), SystemRandom()

    draws = [noise.sample(source) for _ in range(20_000)]

    assert p_value(draws, 1.0) > 1e-20
    assert p_value(draws, 1 / 1.3) < 1e-20


def test_every_draw_takes_the_same_bytes_whatever_its_value() -> None:
    noise, plan = TwoSidedGeometric(Fraction(1)), digit_thresholds(Fraction(1), 127)
    columns = plan.digits + 3
    # Zeros set every coin; a 1 is above the threshold of "beyond", whose chance is below 2**-128.
    least, most = Words(*[TOP] * columns), Words(*[0] * (columns - 1), 1)

    assert noise.sample(least) == 0
    assert noise.sample(most) == 2**plan.digits
    assert least.requests == most.requests == [columns * 16]


def drawn(epsilon: Fraction, words: dict[int, int], *further: int) -> int:
    """Return the draw with these words in its columns (0 sign, 1 nonzero, 2.. digits, last beyond), else highest."""
    columns = digit_thresholds(epsilon).digits + 3
    return TwoSidedGeometric(epsilon).sample(Words(*(words.get(column, TOP) for column in range(columns)), *further))


def test_the_sign_is_one_fair_bit_and_each_digit_has_its_place() -> None:
    epsilon = Fraction(1)

    assert drawn(epsilon, {}) == 0
    assert drawn(epsilon, {0: 0, 1: 0}) == 1
    assert drawn(epsilon, {0: 2**126 - 1, 1: 0}) == 1
    assert drawn(epsilon, {0: 2**126, 1: 0}) == -1
    assert drawn(epsilon, {0: 2**127, 1: 2**127}) == 1, "the 128th bit of a word is ignored"
    assert [drawn(epsilon, {0: 0, 1: 0, 2 + place: 0}) for place in range(4)] == [2, 3, 5, 9]


def test_a_word_next_to_its_threshold_decides_and_a_tie_is_settled_by_further_digits() -> None:
    epsilon = Fraction(1)
    threshold = digit_thresholds(epsilon, 127).thresholds[0]
    further = digit_thresholds(epsilon, 255).thresholds[0] & (2**128 - 1)

    assert drawn(epsilon, {0: 0, 1: threshold - 1}) == 1
    assert drawn(epsilon, {0: 0, 1: threshold + 1}) == 0
    assert drawn(epsilon, {0: 0, 1: threshold}, further - 1) == 1
    assert drawn(epsilon, {0: 0, 1: threshold}, further + 1) == 0


def test_ties_are_settled_in_their_own_lanes() -> None:
    epsilon = Fraction(1)
    noise, plan = TwoSidedGeometric(epsilon), digit_thresholds(epsilon, 127)
    tie, low, high = plan.thresholds[0], 0, 2**128 - 1
    rest = [TOP] * 5 * (plan.digits + 1)

    draws = noise.sample_many(Words(*[0] * 5, tie, TOP, tie, 0, tie, *rest, low, high, low), 5)

    assert draws == [1, 0, 0, 1, 1]


def test_the_far_tail_is_one_event_and_exact() -> None:
    epsilon = Fraction(1)
    plan = digit_thresholds(epsilon, 127)
    last = plan.digits + 2

    # The first 127 digits of exp(-128) are zero: only a word of zeros gets to further digits.
    once = [drawn(epsilon, {0: sign, 1: 0, last: 0}, 0, 2**128 - 1) for sign in (0, TOP)]
    twice = drawn(epsilon, {0: 0, 1: 0, last: 0}, 0, 0, 0, 2**128 - 1)

    assert plan.thresholds[-1] == 0
    assert epsilon * 2**plan.digits >= 89
    assert once == [1 + 2**plan.digits, -1 - 2**plan.digits]
    assert twice == 1 + 2 * 2**plan.digits
    assert drawn(epsilon, {1: TOP, last: 0}, 0) == 0, "a value of zero has no magnitude to add to"


def by_definition(epsilon: Fraction, source: RandomSource, count: int) -> list[int]:
    """Return the draws as geometric.py defines them: word by word, coin by coin, without a lane or a mask.

    Sign, "not 0", binary digits, "beyond", each from a column of words; a tied word goes on with its own coin's digits,
    and what lies beyond is tossed last.
    """
    plan = digit_thresholds(epsilon, 127)
    columns = [
        [int.from_bytes(source.random_bytes(16), "little") % 2**127 for _ in range(count)]
        for _ in range(plan.digits + 3)
    ]
    coins = [
        [plan.settle(index, source) if word == threshold else word < threshold for word in column]
        for index, (threshold, column) in enumerate(zip(plan.thresholds, columns[1:], strict=True))
    ]
    draws: list[int] = []
    for lane in range(count):
        magnitude = 1 + sum(coins[1 + place][lane] << place for place in range(plan.digits))
        if coins[0][lane] and coins[-1][lane]:
            magnitude += plan.beyond(source)
        sign = 1 if columns[0][lane] < 2**126 else -1
        draws.append(sign * magnitude if coins[0][lane] else 0)
    return draws


def test_draws_are_those_of_the_definition_when_ties_and_the_far_tail_are_everywhere() -> None:
    """The two branches no sampling test can reach, in every lane, column and combination."""
    for seed in range(40):
        with case(f"seed {seed}"):
            epsilon = (Fraction(1, 7), Fraction(1), Fraction(9), Fraction(90))[seed % 4]
            plan, chance, count = digit_thresholds(epsilon, 127), SeededRandom(seed), 1 + seed % 9
            edges = [0, TOP, 2**126, 2**126 - 1, 2**127, 2**128 - 1]
            words = [edges[uniform_below(chance, len(edges))] for _ in range(count)]
            for threshold in plan.thresholds:
                near = [threshold, threshold, 2**127 + threshold, max(0, threshold - 1), threshold + 1]
                words += [near[uniform_below(chance, len(near))] for _ in range(count)]
            further = [uniform_below(chance, 3) * (2**127) for _ in range(500)]
            further = [min(word, 2**128 - 1) for word in further]

            drawn_at_once = TwoSidedGeometric(epsilon).sample_many(Words(*words, *further), count)

            assert drawn_at_once == by_definition(epsilon, Words(*words, *further), count)


def test_draws_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    noise = TwoSidedGeometric(Fraction(1, 2))

    draws = noise.sample_many(SystemRandom(), 5000)

    assert len(draws) == 5000
    assert noise.sample_many(SystemRandom(), 0) == []
    assert p_value(draws[2048:], 0.5) > 1e-20
    assert p_value(draws[:2048], 0.5) > 1e-20


def test_fewer_bits_give_the_same_law_once_ties_are_settled() -> None:
    epsilon, source = Fraction(1), SystemRandom()
    plan = digit_thresholds(epsilon, 4)

    def coin(index: int) -> bool:
        word = source.random_bytes(1)[0] >> 4
        return plan.settle(index, source) if word == plan.thresholds[index] else word < plan.thresholds[index]

    def draw() -> int:
        magnitude = sum(coin(place + 1) << place for place in range(plan.digits))
        magnitude += plan.beyond(source) if coin(plan.digits + 1) else 0
        sign = 1 - 2 * (source.random_bytes(1)[0] & 1)
        return sign * (1 + magnitude) if coin(0) else 0

    assert p_value([draw() for _ in range(30_000)], 1.0) > 1e-20


def test_the_time_of_a_draw_is_measured_against_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    noise, source = TwoSidedGeometric(Fraction(1, 10)), SystemRandom()
    values, times = [], []

    for _ in range(4000):
        started = time.perf_counter_ns()
        value = noise.sample(source)
        times.append(time.perf_counter_ns() - started)
        values.append(abs(value))
    correlation = stats.spearmanr(values, times).statistic

    # Timing on a shared machine decides nothing; the rule that can fail is the one on bytes above.
    with capsys.disabled():
        print(f"\ntime against |noise|, epsilon 0.1, 4000 draws: rank correlation {correlation:+.3f}")
    assert len(set(values)) > 20


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TwoSidedGeometric(Fraction(0)), "noise epsilon is 0"),
        (lambda: TwoSidedGeometric(Fraction(101)), "noise epsilon is 101, allowed: 1/1000000 <="),
        (lambda: TwoSidedGeometric(Fraction(1, 10**7)), "noise epsilon is 1/10000000"),
        (lambda: TwoSidedGeometric(0.5), "exact Fraction"),  # type: ignore[arg-type] # is refused
        (lambda: digit_thresholds(Fraction(1), 0), "bits is 0"),
        (lambda: TwoSidedGeometric(Fraction(1)).sample_many(SystemRandom(), -1), "count is -1"),
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)
