"""Many numbers at once become what each becomes by itself: the arrays of a study and the rule of devices agree."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_protocol.window.domain import Bins, SquareGrid
from fleetcount_protocol.window.signal import converted
from fleetcount_simulator.cells.borders import bins_of, least_above, steps_of
from hypothesis import given
from hypothesis import strategies as st

DECIMALS = st.decimals(-1000, 1000, places=3).map(Fraction)
_SIDES = ["0.1", "0.01", "100.3", "250", "1", "0.000277", "12.5", "1000000", "1/3", "0.0000001"]
SIDES = st.sampled_from(_SIDES).map(Fraction)
KMH = Fraction(18, 5)


def around(number: float, steps: int) -> float:
    for _ in range(abs(steps)):
        number = math.nextafter(number, math.copysign(math.inf, steps))
    return number


NUMBERS = st.floats(-1e7, 1e7) | st.builds(around, DECIMALS.map(float), st.integers(-3, 3))


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.lists(DECIMALS, min_size=1, max_size=8, unique=True))
def test_bins_of_many_are_the_bins_of_each(numbers: list[float], edges: list[Fraction]) -> None:
    bins = Bins(edges=tuple(sorted(edges)), open_above=True, unit="")

    assert bins_of(np.array(numbers), bins.edges).tolist() == [bins.value_of(one) for one in numbers]


@given(st.lists(NUMBERS.map(abs), min_size=1, max_size=20), st.lists(DECIMALS, min_size=1, max_size=8, unique=True))
def test_bins_of_many_in_another_unit_are_the_bins_of_each(speeds: list[float], edges: list[Fraction]) -> None:
    bins = Bins(edges=tuple(sorted(edges)), open_above=True, unit="km/h")
    on_edges = [float(edge / KMH) for edge in bins.edges]

    read = [bins.value_of(converted(one, KMH, Fraction(0))) for one in (*speeds, *on_edges)]

    assert bins_of(np.array([*speeds, *on_edges]), bins.edges, KMH).tolist() == read
    assert read[len(speeds) :] == list(range(1, bins.values + 1))


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.integers(-30, 30), DECIMALS, SIDES)
def test_steps_of_many_are_the_columns_of_each(
    numbers: list[float], step: int, start: Fraction, size: Fraction
) -> None:
    grid = SquareGrid(x0=start, y0=start, size=size, columns=50, rows=1)
    asked = [*numbers, *(around(float(start + step * size), ulps) for ulps in range(-2, 3))]

    steps = steps_of(np.array(asked), start, size)

    inside = np.where((steps >= 0) & (steps < 50), steps + 1, 0)
    assert inside.tolist() == [grid.value_of((one, start)) for one in asked]


def test_what_is_infinite_or_far_away_is_in_no_step_and_in_the_last_bin() -> None:
    steps = steps_of(np.array([math.inf, -math.inf, 1e300]), Fraction(0), Fraction(1, 10))

    assert steps.tolist() == [math.inf, -math.inf, pytest.approx(1e301)]
    assert bins_of(np.array([math.inf, -math.inf]), (Fraction(0), Fraction(1))).tolist() == [2, 0]
    assert least_above(Fraction(0), KMH) <= 0 <= least_above(Fraction("4.1")) == 4.1
