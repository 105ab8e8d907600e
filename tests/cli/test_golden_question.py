"""`fleetcount golden` on the numbers of questions: every group is recomputed, a changed number is a miss."""

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleetcount.evidence.golden import golden, parse_golden
from fleetcount_evidence.golden.comparison import check_group
from fleetcount_evidence.golden.rows import MalformedGoldenError

PATHS = [Path(__file__).parents[1] / "golden" / name for name in ("question.json", "noise.json", "answers.json")]
GOLDEN: dict[str, list[dict[str, Any]]] = {
    name: rows for path in PATHS for name, rows in json.loads(path.read_text()).items()
}


def result(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the line of one group, read as the command reads it."""
    return check_group(name, parse_golden(json.dumps({name: rows}), "question.json")[name]).line


def test_the_file_is_reproduced() -> None:
    found = 0
    for path in PATHS:
        run = CliRunner().invoke(golden, [str(path)])
        assert run.exit_code == 0, run.output
        found += run.output.count("ok ")
    assert found == len(GOLDEN) == 53


@pytest.mark.parametrize("name", GOLDEN)
def test_a_number_wrong_in_the_eighth_digit_is_a_miss(name: str) -> None:
    for row in GOLDEN[name]:
        wrong = copy.deepcopy(row)
        worse = 3e-6 if row.get("tolerance") == "relative 1e-6" else 3e-8
        # A number of a noise file may be a fraction.
        value = float(Fraction(row["expected"]))
        wrong["expected"] = repr(value * (1 + worse)) if value else "1e-320"
        assert result(name, [wrong]).startswith("MISS")


@pytest.mark.parametrize("tolerance", ["relative 1", "relative -1e-9", "about", "absolute 1", 7])
def test_a_tolerance_that_is_none_is_refused(tolerance: object) -> None:
    with pytest.raises(MalformedGoldenError, match="tolerance"):
        result("unit_added", [{**GOLDEN["unit_added"][0], "tolerance": tolerance}])


def test_an_input_that_no_group_knows_or_that_is_no_number_is_refused() -> None:
    row = GOLDEN["rr_rho"][0]
    for inputs in (
        {**row["inputs"], "order": "5"},
        {},
        {"epsilon": "1e99999999999999999999"},
        {"epsilon": "inf"},
        {"epsilon": [1]},
        {"epsilon": "1/0"},
    ):
        with pytest.raises(MalformedGoldenError, match=r"rr_rho row 1, inputs"):
            result("rr_rho", [{**row, "inputs": inputs}])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rr_rho", {"epsilon": "-1"}),
        ("panel_pure", {"changed_windows": "99"}),
        ("panel_renyi_gaussian", {"order": "1"}),
        ("geometric_optimal", {"delta": "1"}),
        ("exposure_quantile", {"units": "0"}),
        ("noise_tail", {"h": "-1"}),
        ("kov_approximate", {"delta_each": "1/10"}),
        ("mean_noise", {"V": 1}),
        ("mean_error", {"V": 10**9}),
        ("mean_width", {"V": 1}),
        ("quantile_end", {"opened": [1, 2]}),
        ("table_variance", {"A": 10**6, "B": 10**6}),
        ("set_price", {"m": 99}),
        ("set_holders", {"m": 100}),
        ("code_found", {"steps": 0}),
        ("one_sided_end", {"epsilon": "0"}),
        ("protected_flip", {"epsilon": "41"}),
        ("protected_flip", {"protects": {"1": [2], "2": [3]}}),
    ],
)
def test_an_input_out_of_range_is_a_miss_that_says_so_in_one_line(name: str, change: dict[str, str]) -> None:
    row = copy.deepcopy(GOLDEN[name][0])
    row["inputs"].update(change)

    line = result(name, [row])
    assert line.startswith("MISS")
    assert "a refusal" in line
    assert "\n" not in line


@pytest.mark.parametrize("value", ["1e-100001", "1e999999999", "1/1e100001"])
def test_a_number_too_small_or_too_large_is_a_miss_of_its_row_alone(value: str) -> None:
    good = GOLDEN["exposure_all"][0]

    line = result("exposure_all", [good, {**good, "expected": value}, {**good, "inputs": {"p": value, "units": "1"}}])

    assert line.startswith("MISS  exposure_all: exposure_all row 2: expected an answer, computed a refusal: ")
    assert value in line
    assert "allowed: 1e-100000 to 1e100000" in line
    assert line.endswith("(and 1 more)")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mean_noise", {"total": "yes"}),
        ("mean_error", {"weighted": "free"}),
        ("quantile_end", {"of": "middle"}),
        ("quantile_end", {"opened": [1, 2.5, 3]}),
        ("table_variance", {"of": "corner"}),
        ("set_price", {"law": "uniform"}),
        ("one_sided_end", {"direction": "sideways"}),
        ("protected_flip", {"protects": [1]}),
        ("protected_flip", {"protects": {"one": [2]}}),
        ("protected_sd", {"value": 4}),
    ],
)
def test_a_word_or_a_policy_that_a_group_does_not_know_is_refused(name: str, change: dict[str, Any]) -> None:
    row = copy.deepcopy(GOLDEN[name][0])
    row["inputs"].update(change)

    with pytest.raises(MalformedGoldenError, match=next(iter(change))):
        result(name, [row])


def test_a_decimal_far_below_what_a_float_holds_is_judged() -> None:
    row = {"inputs": {"p": "1/4", "units": "100000"}, "how": ""}

    assert result("exposure_all", [{**row, "expected": "1.00199880540619E-60206"}]).startswith("ok")
    assert "expected '1.1e-60206', computed '1.001998" in result("exposure_all", [{**row, "expected": "1.1e-60206"}])
    row["inputs"]["units"] = "1" + "0" * 12
    assert "a refusal: 'units is 1000000000000, allowed: " in result("exposure_all", [{**row, "expected": "1"}])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 156 and 32 times the variance of N_Z(0, 1/4), .215012675088138, which is a golden number of its own.
        ("variance_window", "162.880405602820416"),
        ("variance_difference_same_coin", "100.760811205640832"),
        ("variance_difference_other_coin", "352.760811205640832"),
        ("variance_sum_same_coin", "604.760811205640832"),
    ],
)
def test_the_variance_of_a_question_is_that_of_its_noise_not_its_parameter(name: str, expected: str) -> None:
    row = copy.deepcopy(GOLDEN[name][0])
    row["inputs"]["variance"] = "1/4"

    assert result(name, [{**row, "expected": expected}]).startswith("ok")
    noises = 32 if name == "variance_window" else 64
    with_parameter = float(expected) + noises * (0.25 - 0.215012675088138)
    assert result(name, [{**row, "expected": repr(with_parameter)}]).startswith("MISS")


@pytest.mark.parametrize(("variance", "expected"), [("0", "156"), ("1000000000", "32000000156")])
def test_no_noise_and_much_noise_have_the_variance_they_say(variance: str, expected: str) -> None:
    row = copy.deepcopy(GOLDEN["variance_window"][0])
    row["inputs"]["variance"] = variance

    assert result("variance_window", [{**row, "expected": expected}]).startswith("ok")


def test_charges_of_every_kind_add_up() -> None:
    charges: list[dict[str, str]] = [
        {"kind": "panel_geometric", "p": "1/4", "unit_windows": "24", "units": "3", "e1": "1/100"},
        {"kind": "mangat_vector", "epsilon": "1/10", "places": "2"},
    ]
    row: dict[str, Any] = {"inputs": {"charges": charges, "orders": ["9", "3"], "delta": "1e-9"}, "how": ""}

    # Pure: 3 times ln((3/4 + e**.24/4)/(3/4 + e**-.24/4)), and 2/10.
    assert result("ledger_total", [{**row, "expected": "0.561291346709"}]).startswith("ok")
    charges[0]["kind"] = "secret"
    with pytest.raises(MalformedGoldenError, match="kind is 'secret'"):
        result("ledger_total", [{**row, "expected": "1"}])
