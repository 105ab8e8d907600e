"""Draws are exact: checked by feeding every byte string there is to small draws, and by counting otherwise."""

import os
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import (
    RandomSource,
    SeededRandom,
    SystemRandom,
    UniformBelow,
    WeightedChoice,
    uniform_below,
    weighted_index,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats


class Numbers:
    """A source that gives prescribed little-endian numbers, one a request."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def random_bytes(self, count: int, /) -> bytes:
        return self.numbers.pop(0).to_bytes(count, "little")


def test_every_remainder_owns_equally_many_numbers_and_the_rest_are_drawn_again() -> None:
    draw = UniformBelow(bound=7)

    assert draw.byte_count == 8
    assert draw.limit % 7 == 0
    assert 2**64 - draw.limit < 7
    assert [draw.draw(Numbers(number)) for number in range(8)] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert draw.draw(Numbers(draw.limit, 2**64 - 1, 5)) == 5


@given(st.integers(1, 2**200))
def test_a_draw_is_repeated_with_a_chance_below_2_to_the_minus_32(bound: int) -> None:
    draw = UniformBelow(bound=bound)

    whole = 256**draw.byte_count
    assert draw.limit % bound == 0
    assert Fraction(whole - draw.limit, whole) < Fraction(1, 2**32)


def test_many_draws_at_once_replace_the_rejected_ones() -> None:
    draw = UniformBelow(bound=7)
    block = b"".join(number.to_bytes(8, "little") for number in (3, draw.limit, 6))

    class Source:
        calls = 0

        def random_bytes(self, count: int, /) -> bytes:
            self.calls += 1
            return block if self.calls == 1 else (4).to_bytes(count, "little")

    assert draw.draw_many(Source(), 3) == [3, 6, 4]


@pytest.mark.parametrize("weights", [(1,), (3, 1), (0, 5, 0), (1, 2, 3, 4), (7, 0, 1, 1, 40)], ids=str)
def test_weighted_choice_has_exactly_its_weights_when_every_number_is_tried(weights: tuple[int, ...]) -> None:
    choice = WeightedChoice(weights)
    bound = sum(weights) * len(weights)

    found = Counter(choice.draw(Numbers(number)) for number in range(bound))

    assert [found[index] for index in range(len(weights))] == [weight * len(weights) for weight in weights]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
def test_weighted_choice_is_exact_for_any_weights(weights: list[int]) -> None:
    choice = WeightedChoice(tuple(weights))

    found = Counter(choice.draw(Numbers(number)) for number in range(sum(weights) * len(weights)))

    assert [found[index] for index in range(len(weights))] == [weight * len(weights) for weight in weights]


@pytest.mark.parametrize("source", [SystemRandom(), SeededRandom(1)], ids=lambda source: type(source).__name__)
def test_both_sources_are_uniform_over_bytes_and_a_bent_one_is_caught(source: RandomSource) -> None:
    data = source.random_bytes(100_000)
    counts = [data.count(bytes([value])) for value in range(256)]

    bent = [count * 13 // 10 if value < 128 else count * 7 // 10 for value, count in enumerate(counts)]

    assert stats.chisquare(counts).pvalue > 1e-20
    assert stats.chisquare(bent).pvalue < 1e-20


def test_a_seed_gives_one_stream_however_it_is_cut() -> None:
    whole = SeededRandom(7).random_bytes(50_000)
    source = SeededRandom(7)

    pieces = b"".join(source.random_bytes(size) for size in (1, 16_383, 0, 16_384, 17_000, 232))

    assert pieces == whole
    assert SeededRandom(8).random_bytes(32) != whole[:32]
    assert SeededRandom(7 * 256).random_bytes(32) != whole[:32]


def test_the_system_source_is_the_operating_system_itself_and_keeps_nothing() -> None:
    assert SystemRandom.random_bytes is os.urandom
    assert SystemRandom.__slots__ == ()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: uniform_below(Numbers(1), 0), "bound is 0, allowed: bound >= 1"),
        (lambda: UniformBelow(bound=2.5), "bound must be an int, not float"),  # type: ignore[arg-type] # is refused
        (lambda: WeightedChoice(()), "0 weights sum to 0"),
        (lambda: weighted_index(Numbers(1), [1, -1]), "weight is -1"),
        (lambda: SeededRandom(-1), "seed is -1"),
    ],
)
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)


def test_uniform_draws_from_the_system_pass_and_a_modulo_without_rejection_fails() -> None:
    bound = 192
    draws = UniformBelow(bound=bound).draw_many(SystemRandom(), 100_000)
    biased = [value % bound for value in os.urandom(100_000)]

    def p_value(values: list[int]) -> float:
        counts = Counter(values)
        return float(stats.chisquare([counts[value] for value in range(bound)]).pvalue)

    assert p_value(draws) > 1e-20
    assert p_value(biased) < 1e-20
