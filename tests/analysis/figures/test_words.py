"""Words of figures: numbers with three digits, texts cut to their room, letters the font lacks."""

import math

import pytest
from fleetcount_analysis.figures.words import drawable, number, percent, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1234.4, "1,234"),
        (12_345.0, "12.3k"),
        (999_700.0, "1M"),
        (2.5e9, "2.5bn"),
        (-3.14159, "−3.14"),
        (0.00001, "1e−5"),
        (math.nan, "–"),
    ],
)
def test_numbers_are_said_with_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_shares_are_said_in_percent() -> None:
    assert [percent(share) for share in (0.95, 0.945, -0.1, math.nan)] == ["95 %", "94.5 %", "−10 %", "–"]


def test_texts_are_cut_to_the_letters_that_fit() -> None:
    assert [short("w" * length, 5) for length in (4, 5, 6)] == ["wwww", "wwwww", "wwww…"]
    assert drawable("道" * 5, 12) == "[U+9053][U+…"


def test_letters_that_the_font_lacks_are_named() -> None:
    assert drawable("a道\U0001f697\u0007é") == "a[U+9053][U+1F697] é"
