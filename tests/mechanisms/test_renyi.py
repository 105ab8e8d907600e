"""The two parts of a sampled unit's loss: what adds an answer, and what removes it; when one of them is enough."""

import math
from fractions import Fraction
from itertools import product

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.randomness import near_log
from fleetcount_mechanisms.renyi import best_order, panel_geometric_divergence
from fleetcount_mechanisms.sampled_gaussian import panel_added, panel_gaussian_divergence, panel_removed

DELTA = Fraction(1, 10**9)


def law_of_the_sum(windows: int, variance: float, reach: int) -> dict[int, float]:
    """Return the law of the sum of `windows` draws of N_Z(0, s), by convolution."""
    draw = {z: math.exp(-z * z / (2 * variance)) for z in range(-reach, reach + 1)}
    mass, total = sum(draw.values()), {0: 1.0}
    for _ in range(windows):
        new = dict[int, float]()
        for (one, chance), (two, weight) in product(total.items(), draw.items()):
            new[one + two] = new.get(one + two, 0.0) + chance * weight / mass
        total = new
    return total


def parts(rate: float, windows: int, variance: float, order: int) -> tuple[float, float]:
    """Return D_a(P||M_0) and D_a(M_0||P) of a unit from the law of its sum."""
    added, removed = list[float](), list[float]()
    for place, chance in law_of_the_sum(windows, variance, math.ceil(14 * math.sqrt(variance)) + order + 3).items():
        if chance > 1e-300:
            ratio = math.log(1 - rate + rate * math.exp((2 * place - windows) / (2 * variance)))
            added.append(math.exp(math.log(chance) + order * ratio))
            removed.append(math.exp(math.log(chance) + (1 - order) * ratio))
    return math.log(math.fsum(added)) / (order - 1), math.log(math.fsum(removed)) / (order - 1)


@pytest.mark.parametrize(
    ("rate", "windows", "variance", "order", "added", "removed"),
    [
        ("9/20", 1, "68", 5, 0.00757170454180294, 0.00732814655434871),
        ("1/10", 24, "20", 4, 0.10609169969291, None),
        ("1/4", 24, "54", 5, 0.128422141251773, 0.0544614597632537),
    ],
)
def test_both_parts_are_those_that_were_computed_apart(
    rate: str, windows: int, variance: str, order: int, added: float, removed: float | None
) -> None:
    unit = Fraction(rate), windows, Fraction(variance), order

    assert float(panel_added(*unit)) == pytest.approx(added, rel=1e-12)
    if removed is not None:
        found = panel_removed(*unit)
        assert found is not None
        assert float(found) == pytest.approx(removed, rel=1e-12)


@pytest.mark.parametrize("rate", ["1/100", "1/4", "9/10"])
@pytest.mark.parametrize(("windows", "variance"), [(1, "1"), (1, "30"), (2, "1"), (3, "2"), (3, "5"), (5, "9/2")])
@pytest.mark.parametrize("order", [2, 5, 17])
def test_the_parts_are_those_of_the_law_of_the_sum(rate: str, windows: int, variance: str, order: int) -> None:
    unit = Fraction(rate), windows, Fraction(variance), order
    added, removed = parts(float(unit[0]), windows, float(unit[2]), order)

    assert float(panel_added(*unit)) == pytest.approx(added, rel=1e-9, abs=1e-13)
    bound = panel_removed(*unit)
    assert bound is not None
    assert float(bound) >= removed - 1e-13
    # For noise of 2 and more the law of the sum is the discrete Gaussian to 1e-7, below it is bounded.
    assert float(bound) <= removed * (1 + 1e-9) + 1e-13 + (1e-3 if unit[2] < 2 else 1e-6) * (windows > 1)
    assert removed <= min(added, -math.log1p(-float(unit[0]))) + 1e-13


def test_a_change_of_two_cells_loses_both_parts_and_of_one_cell_in_one_window_the_first() -> None:
    unit = Fraction(1, 4), 1, Fraction(9), 5
    removed = panel_removed(*unit)
    assert removed is not None

    assert panel_gaussian_divergence(*unit) == panel_added(*unit) + removed
    assert panel_gaussian_divergence(*unit, cells=1) == panel_added(*unit)
    # Many windows with noise below 1: their sum has no bound, and the cap is taken.
    coarse = Fraction(1, 4), 400, Fraction(1, 4), 5
    assert panel_removed(*coarse) is None
    assert panel_gaussian_divergence(*coarse) == panel_added(*coarse) - near_log(Fraction(3, 4))
    with pytest.raises(MechanismError, match="cells is 3"):
        panel_gaussian_divergence(*unit, cells=3)


def test_a_yes_no_unit_whose_next_truth_follows_an_answer_loses_more_than_the_first_part() -> None:
    """p = 1/2, e**e1 = 3, order 2: 19/9 for answers fixed before the unit, 13/6 for a second one that follows."""
    noise = near_log(Fraction(3))

    charged = panel_geometric_divergence(Fraction(1, 2), 2, noise, 2, cells=1)
    alone = panel_geometric_divergence(Fraction(1, 2), 1, noise, 2, cells=1)

    assert math.exp(alone) == pytest.approx(4 / 3)
    assert math.exp(charged) == pytest.approx(133 / 45)
    assert math.exp(charged) > 13 / 6 > 19 / 9
    gauss = Fraction(1, 4), 24, Fraction(54), 5
    assert panel_gaussian_divergence(*gauss, cells=1) == panel_gaussian_divergence(*gauss)
    assert panel_gaussian_divergence(*gauss) > panel_added(*gauss)


def test_the_best_order_is_the_least_of_all() -> None:
    for windows, count in ((1, 720), (24, 30), (720, 2)):

        def loss(order: int, windows: int = windows, count: int = count) -> Fraction:
            return count * panel_gaussian_divergence(Fraction(1, 4), windows, Fraction(100), order)

        order, epsilon = best_order(loss, DELTA)
        around = {one: loss(one) + _price(one) for one in range(2, 30)}
        assert order == min(around, key=lambda one: around[one])
        assert epsilon == around[order]


def _price(order: int) -> Fraction:
    return near_log(1 - Fraction(1, order)) - near_log(DELTA * order) / (order - 1)
