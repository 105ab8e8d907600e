"""`fleetcount plan --at-once`: the noise of sets, how many told any, and what does not go with it."""

import json
from collections.abc import Callable
from fractions import Fraction

import fleetcount as fc
import pytest
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_protocol.errors import UsageError

PLAN = ("plan", "--devices", "10000", "--values", "10", "--epsilon", "1")
DIRECT = (*PLAN, "--mechanism", "direct")


def test_a_set_has_noise_for_all_that_it_moves_and_a_free_number_of_holders(fleetcount: Callable) -> None:
    said = fleetcount(*DIRECT, "--at-once", "3")
    told = json.loads(fleetcount(*DIRECT, "--at-once", "3", "--json").out)
    lines = said.out.splitlines()

    assert (said.code, lines[0].startswith("10,000 devices, 10 values, up to 3 at once, 2 aggregators")) == (0, True)
    # Six of ten numbers move, and three come: the total has what three leave, as a cell of one value a device has.
    assert "Noise for the 6 numbers that a set moves; the counts add up to more than devices." in lines
    (holders,) = (line for line in lines if line.startswith("Devices that told any, a number of its own: error "))
    one = fc.plan(devices=10_000, values=10, epsilon=1, mechanism="direct")
    assert holders.endswith(f" {one.standard_error(0):,.1f}")
    assert "That a device told anything at all is protected like its answer" in said.out
    assert told["total_standard_error"] == pytest.approx(one.standard_error(0), rel=1e-4)
    assert (told["at_once"], told["release_epsilon"]) == (3, "1.00000")
    planned = fc.plan(devices=10_000, values=10, epsilon=1, mechanism="direct", at_once=3)
    assert planned.plan.design.noise == TwoSidedNoise(Fraction(166666, 1_000_000))
    assert planned.columns_of()["standard_error"][0] == told["rows"][0]["standard_error"]


def test_a_set_of_all_values_leaves_nothing_for_a_number_of_holders(fleetcount: Callable) -> None:
    whole = fleetcount(*DIRECT, "--at-once", "10")

    assert "Noise for the 10 numbers that a set moves" in whole.out
    assert "Devices that told any" not in whole.out
    assert json.loads(fleetcount(*DIRECT, "--at-once", "3", "--no-total", "--json").out)["total_standard_error"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at-once", "11"), "at_once is 11, allowed: 1 to the number of values, 10"),
        (("--at-once", "0"), "'--at-once'"),
        *(((*DIRECT[-2:], "--at-once", "3", *other), "--at-once is about one release") for other in (
            ("--zooms", "2"), ("--cross", "5,2"), ("--show", "mean"), ("--levels", "2,4"), ("--windows", "3"),
            ("--in-order",),
        )),
        (("--at-once", "3", "--sampling-rate", "0.3"), "at_once is 3 of sampling answers, allowed: of direct ones"),
        (("--at-once", "3", "--mechanism", "one-sided"), "at_once is 3 of one-sided answers, allowed: of direct ones"),
        (("--at-once", "3", "--mechanism", "k-ary", "--epsilon-local", "1"), "at_once is 3 of k-ary answers"),
        ((*DIRECT[-2:], "--at-once", "3", "--epsilon-local", "1"), "epsilon_local is given"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_sets_is_refused_in_one_line(
    fleetcount: Callable, options: tuple[str, ...], said: str
) -> None:
    refused = fleetcount(*PLAN, *options)

    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert said in refused.error_line


@pytest.mark.parametrize("more", [{"zooms": 2}, {"show": "mean"}, {"mechanism": "sampling"}])
def test_python_refuses_them_too(more: dict) -> None:
    with pytest.raises(UsageError, match="at_once is 2"):
        fc.plan(**({"devices": 100, "values": 9, "epsilon": 1, "mechanism": "direct", "at_once": 2} | more))
