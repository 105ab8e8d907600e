"""Words of figures: numbers with three digits, texts cut to their room, letters the font lacks."""

import math

import pytest
from fleetcount_analysis.figures.words import drawable, ends, loss, number, percent, short


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


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (12_345.0, 12_345.0, "12.3k to 12.4k"),
        (9_994.2, 9_994.2, "9,994 to 10k"),
        (9_999.0, 99_951.0, "9,990 to 100k"),
        (-3.14159, -0.009991, "−3.15 to −0.0099"),
        (99.96, 999_501.0, "99.9 to 1M"),
        (0.0, 0.1, "0 to 0.1"),
        (1.26e-5, 1.21e-5, "1.2e−5 to 1.3e−5"),
    ],
)
def test_the_ends_of_an_interval_are_rounded_outwards(low: float, high: float, text: str) -> None:
    assert ends(low, high) == text


def test_the_ends_of_a_share_are_rounded_outwards_and_a_loss_up() -> None:
    assert ends(0.29, 0.94501, share=True) == "29 % to 94.6 %"
    assert [loss(0.12301), loss(1.0), loss(0.5, 1.31e-6)] == ["0.124", "1", "0.5, delta 1.4e−6"]
