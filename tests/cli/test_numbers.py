"""The number grammar of the command line: exact, ASCII, bounded; everything else is refused with value and range."""

from fractions import Fraction

import pytest
from fleetcount.command.numbers import EPSILON, SAMPLING_RATE, parse_number
from fleetcount.command.options import parse_count
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import case

EXACT = [("0.5", Fraction(1, 2)), ("1/3", Fraction(1, 3)), ("1e-2", Fraction(1, 100)), ("10", Fraction(10))]


def test_a_number_is_read_exactly() -> None:
    for text, value in EXACT:
        with case(text):
            assert parse_number(text, EPSILON.allowed) == value


NO_EPSILON = [
    *["0", "-1", "nan", "inf", "-inf", "1e-320", "1e4", "1,5", "１", "1_0", " 1", "1 ", "1\n", "", "0x1", "1/0"],
    *["1e999", "1e9999", "1" * 31, "١", "½", "+", ".", "1.", ".5", "1e", "True", "1/-2"],
]


def test_an_epsilon_outside_grammar_or_range_is_refused_with_value_and_range() -> None:
    for text in NO_EPSILON:
        with case(text):
            with pytest.raises(ValueError, match=r"it must be at least 0\.001 and at most 10$") as refusal:
                parse_number(text, EPSILON.allowed)

            assert repr(text[:30])[1:-1] in str(refusal.value)


@pytest.mark.parametrize("text", ["0", "1e-7", "1", "1.0000001", "0.5", "-0.1", "1/2"])
def test_a_sampling_rate_is_one_of_a_question_below_a_half(text: str) -> None:
    with pytest.raises(ValueError, match=r"at least 1e-06 and below 0\.5"):
        parse_number(text, SAMPLING_RATE.allowed)


NO_COUNT = ["0", "-1", "1e12", "1000001", "1.0", "２", "", "1 000", "0x10", "nan"]


def test_a_count_outside_its_range_is_refused() -> None:
    for text in NO_COUNT:
        with case(text), pytest.raises(ValueError, match="it must be 1 to 1000000"):
            parse_count(text, 1, 1_000_000)


def test_a_long_value_is_shown_cut() -> None:
    with pytest.raises(ValueError, match="is not a whole number") as refusal:
        parse_count("9" * 100_000, 1, 5)

    assert len(str(refusal.value)) < 120


@given(st.fractions(min_value=Fraction(1, 1000), max_value=10, max_denominator=10**9))
def test_every_ratio_in_range_is_read_as_itself(value: Fraction) -> None:
    assert parse_number(f"{value.numerator}/{value.denominator}", EPSILON.allowed) == value


@given(st.text(max_size=12))
def test_any_text_is_a_number_in_range_or_a_named_refusal(text: str) -> None:
    try:
        value = parse_number(text, EPSILON.allowed)
    except ValueError as refusal:
        assert "it must be" in str(refusal)  # noqa: PT017 either outcome is allowed, a refusal must name the range
    else:
        assert Fraction(1, 1000) <= value <= 10
