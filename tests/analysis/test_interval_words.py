"""Levels and numbers in words: what is written is not more than is known, and two ends that differ read differently."""

from decimal import ROUND_FLOOR
from fractions import Fraction

import pytest
from fleetcount_analysis.interval_words import level_text, number_text, numbers_text


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("19/20", "95 %"),
        ("0.975", "97.5 %"),
        ("0.9999", "99.99 %"),
        ("0.99999999", "99.999999 %"),
        ("2999999999/3000000000", "99.9999 %"),
        ("2/3", "66.6666 %"),
        ("0.00001", "0.001 %"),
    ],
)
def test_a_level_below_all_never_reads_as_all(level: str, said: str) -> None:
    assert level_text(Fraction(level)) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (36.5123, 47.4, "36.51 to 47.4"),
        (0.26651, 0.29211, "0.2665 to 0.2922"),
        (-0.29211, -0.26651, "-0.2922 to -0.2665"),
        (-9.9996, -1.00001e-4, "-10 to -0.0001"),
        (4.56785e-6, 1.23451e17, "4.567e-06 to 1.235e+17"),
        (47.4, 47.9, "47.4 to 47.9"),
        (100_030, 100_050, "100,030 to 100,050"),
        (1000.123, 1000.456, "1,000.123 to 1,000.456"),
        (5e10, 5e10 + 2e6, "50,000,000,000 to 50,002,000,000"),
        (1e-6, 3e-6, "1e-06 to 3e-06"),
        (40, float("inf"), "40 to ∞"),
        (0, 0, "0 to 0"),
    ],
)
def test_ends_far_from_zero_keep_the_digits_in_which_they_differ(low: float, high: float, said: str) -> None:
    assert numbers_text(low, high) == said


def test_a_large_number_has_all_digits_before_the_point() -> None:
    assert [number_text(one) for one in (12_345.6, -1_234_567.8, 12.3456, float("nan"))] == [
        "12,346",
        "-1,234,568",
        "12.35",
        "nan",
    ]
    assert number_text(float("nan"), rounding=ROUND_FLOOR) == "nan"
