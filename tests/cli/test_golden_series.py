"""`fleetcount golden` on the numbers of series: every group is recomputed, a changed number is a miss."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleetcount.golden_command import golden, parse_golden
from fleetcount_analysis.papers.golden import MalformedGoldenError, check_group

PATH = Path(__file__).parents[1] / "golden" / "series.json"
GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text())
DECIMALS = [name for name in GOLDEN if not name.startswith("ledger")]


def result(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the line of one group, read as the command reads it."""
    return check_group(name, parse_golden(json.dumps({name: rows}), "series.json")[name]).line


def test_the_file_is_reproduced() -> None:
    run = CliRunner().invoke(golden, [str(PATH)])

    assert run.exit_code == 0, run.output
    assert run.output.count("ok ") == len(GOLDEN) == 27


@pytest.mark.parametrize("name", GOLDEN)
def test_a_number_wrong_in_the_eighth_digit_is_a_miss(name: str) -> None:
    for row in GOLDEN[name]:
        wrong = copy.deepcopy(row)
        wrong["expected"] = repr(float(row["expected"]) * (1 + 3e-8)) if float(row["expected"]) else "1e-320"
        assert result(name, [wrong]).startswith("MISS")


def test_an_input_that_no_group_knows_or_that_is_no_number_is_refused() -> None:
    row = GOLDEN["rr_rho"][0]
    for inputs in (
        {**row["inputs"], "order": "5"},
        {},
        {"epsilon": "1e999999999"},
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
    ],
)
def test_an_input_out_of_range_is_a_miss_that_says_so_in_one_line(name: str, change: dict[str, str]) -> None:
    row = copy.deepcopy(GOLDEN[name][0])
    row["inputs"].update(change)

    line = result(name, [row])
    assert line.startswith("MISS")
    assert "a refusal" in line
    assert "\n" not in line


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
