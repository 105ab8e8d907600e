"""What all aggregators together learn over units of a coin: exact sums, chances and quantiles."""

import math
from fractions import Fraction

import pytest
from fleetcount_mechanisms.accounting.charges import (
    chance_of_all,
    chance_of_any,
    expected_answers,
    exposure_of,
    quantile,
)
from fleetcount_mechanisms.errors import MechanismError

P = Fraction(1, 4)


@pytest.mark.parametrize(
    ("units", "any_answer", "every", "most"),
    [((1,) * 720, 1.0, 3.28704949737456e-434, 252), ((24,) * 30, 0.99982, 8.7e-19, 552), ((720,), 0.25, 0.25, 720)],
)
def test_the_table_of_a_month(units: tuple[int, ...], any_answer: float, every: float, most: int) -> None:
    assert float(chance_of_any(P, len(units))) == pytest.approx(any_answer, abs=5e-6)
    assert float(chance_of_all(P, len(units))) == pytest.approx(every, rel=5e-3)
    assert expected_answers(P, units) == 180
    assert quantile(P, units) == most


def test_a_quantile_that_is_met_exactly_is_not_exceeded() -> None:
    # P[Bin(9, 1/10) > 8] is 1e-9.
    assert quantile(Fraction(1, 10), (1,) * 9) == 8
    assert quantile(Fraction(1, 10), (1,) * 9, Fraction(1, 10**9) - Fraction(1, 10**20)) == 9
    assert quantile(Fraction(1), (2, 3)) == 5
    assert quantile(Fraction(1, 2), (1, 1), Fraction(1, 2)) == 1


def test_units_of_two_sizes_add_up_as_enumeration_says() -> None:
    units, rate = (1, 1, 3, 3, 5), Fraction(1, 3)
    law: dict[int, Fraction] = {}
    for mask in range(1 << len(units)):
        picked = [unit for place, unit in enumerate(units) if mask >> place & 1]
        chance = rate ** len(picked) * (1 - rate) ** (len(units) - len(picked))
        law[sum(picked)] = law.get(sum(picked), Fraction(0)) + chance
    for rare in (Fraction(1, 1000), Fraction(1, 100), Fraction(1, 10), Fraction(1, 2)):
        expected = min(most for most in range(14) if sum(law.get(more, 0) for more in range(most + 1, 14)) <= rare)
        assert quantile(rate, units, rare) == expected


def test_the_two_sums_add_up() -> None:
    both = exposure_of(P, 24) + exposure_of(P, 1)

    assert (both.chance, both.answers) == (Fraction(1, 2), Fraction(25, 4))
    assert chance_of_any(P, 2) <= both.chance


def test_wrong_rates_and_units_are_refused() -> None:
    for rate in (Fraction(0), Fraction(3, 2)):
        with pytest.raises(MechanismError, match="sampling rate is"):
            exposure_of(rate, 1)
    with pytest.raises(MechanismError, match="windows is 0"):
        exposure_of(P, 0)
    with pytest.raises(MechanismError, match="allowed: one or more"):
        quantile(P, ())
    with pytest.raises(MechanismError, match="rare is 1"):
        quantile(P, (1,), Fraction(1))
    with pytest.raises(MechanismError, match="20001 units"):
        quantile(P, (1,) * 20_001)
    with pytest.raises(MechanismError, match="40 sizes"):
        quantile(P, tuple(range(1, 41)))
    assert math.isclose(float(chance_of_any(P, 1)), 0.25)
