"""A file's number is exact, finite and within its range, whose open ends are outside."""

import tomllib
from decimal import Decimal
from fractions import Fraction

import pytest
from fleetcount_transport.toml_values import Range, exact_number, shown


@pytest.mark.parametrize(
    "value", [Decimal("1e401"), Decimal("1e-401"), Decimal("nan"), Decimal("inf"), True, 0.5, "nan", "1_0"]
)
def test_what_is_no_exact_number_of_a_sane_size_is_none(value: object) -> None:
    assert exact_number(value) is None


@pytest.mark.parametrize("value", [Decimal("0.05"), "0.05", "1/20", Fraction(1, 20)])
def test_every_spelling_of_a_number_is_its_exact_value(value: object) -> None:
    assert exact_number(value) == Fraction(1, 20)


def test_an_open_end_is_outside_and_a_closed_one_inside() -> None:
    inside = [Fraction(end) in Range(text) for text in ("(0, 1)", "[0, 1]", "(0, 1]", "[0, 1)") for end in (0, 1)]

    assert inside == [False, False, True, True, False, True, True, False]


@pytest.mark.parametrize("written", ["2027-03-28", "07:30:00", "2027-03-28T07:30:00+00:00", "1979-05-27T00:32:00"])
def test_a_time_of_a_file_is_shown_as_it_is_written(written: str) -> None:
    assert shown(tomllib.loads(f"at = {written}")["at"]) == written
