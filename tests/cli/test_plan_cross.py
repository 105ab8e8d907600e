"""What a table of several signals will give, before any device is asked."""

import json
import math
from collections.abc import Callable
from fractions import Fraction

import pytest

PLAN = (
    "plan",
    "--devices",
    "10000",
    "--values",
    "64",
    "--epsilon",
    "1",
    "--mechanism",
    "direct",
    "--noise",
    "gaussian",
)


def test_a_cross_says_what_cells_margins_and_total_err_by(fleetcount: Callable) -> None:
    cells = json.loads(fleetcount(*PLAN, "--no-total", "--json").out)
    found = json.loads(fleetcount(*PLAN, "--cross", "16,4", "--json").out)
    said = fleetcount(*PLAN, "--cross", "16,4").out

    alone = math.sqrt(2 * Fraction(cells["noise_variance"]))
    errors = found["joined_standard_errors"]
    assert [round(one / alone, 2) for one in (errors["cell"], *errors["margins"])] == [1.5, 1.5, 1.47]
    assert "A table of 16 by 4; standard error in devices with all its numbers reconciled" in said
    assert f"a value of signal 1, 16 of them: {errors['margins'][0]:,.1f}, {2 * alone:,.1f}" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cross", "16,5"), "--cross is 16,5, allowed: 2 or 3 numbers whose product is --values = 64"),
        (("--cross", "64"), "--cross is 64, allowed: 2 or 3 numbers"),
        (("--cross", "2,2,4,4"), "--cross is 2,2,4,4, allowed: 2 or 3 numbers"),
        (
            ("--cross", "16,4", "--shares", "0.5,0.5"),
            "--shares are 1/2, 1/2, allowed: one above 0 for the cells and each",
        ),
        (("--cross", "16,4", "--windows", "3"), "--cross is about one release"),
        (("--cross", "16,4", "--zooms", "2"), "--cross is about one release"),
    ],
)
def test_what_goes_not_with_a_cross_is_refused(fleetcount: Callable, options: tuple[str, ...], said: str) -> None:
    ran = fleetcount(*PLAN, *options)

    assert ran.code == 2
    assert said in ran.error_line


def test_under_a_coin_a_margin_is_a_sum_of_cells(fleetcount: Callable) -> None:
    ran = fleetcount("plan", "--devices", "10", "--values", "64", "--epsilon", "1", "--cross", "16,4")

    assert ran.code == 2
    assert "allowed with --mechanism direct; of others a margin is the sum of its cells" in ran.error_line
