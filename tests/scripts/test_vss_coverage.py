"""How much of a catalogue can be asked is counted by the way of a device, and a leaf that is silently none fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.vss_coverage import ASKED, NAMES, REFUSED, leaves, verdict

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vss_coverage.py"
LEAVES: dict[str, dict[str, object]] = {
    "IsBrakesWorn": {"datatype": "boolean"},
    "Speed": {"datatype": "float", "unit": "km/h", "min": -250, "max": 250},
    "Gear": {"datatype": "int8"},
    "Charge": {"datatype": "uint8", "unit": "percent", "min": 0, "max": 100},
    "Kind": {"datatype": "string", "allowed": ["ELECTRIC", "HYBRID"]},
    "Rating": {"datatype": "uint8", "allowed": [1, 2, 3]},
    "Brand": {"datatype": "string"},
    "Codes": {"datatype": "string[]"},
}


SHELF = Path(__file__).resolve().parents[1] / "shelf" / "files"


def counted(folder: Path, leaves: dict[str, dict[str, object]], least: str) -> tuple[int, str]:
    wheels = {"type": "branch", "children": {name: {"type": "sensor"} | leaf for name, leaf in leaves.items()}}
    (folder / "vss.json").write_text(json.dumps({"Vehicle": {"type": "branch", "children": {"Wheel": wheels}}}))
    command = [sys.executable, SCRIPT, folder / "vss.json", "--commit", "0" * 40, "--least", least]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(("least", "code"), [("75", 0), ("76", 1)])
def test_leaves_are_counted_by_what_a_question_makes_of_them(tmp_path: Path, least: str, code: int) -> None:
    ended, said = counted(tmp_path, LEAVES, least)

    assert ended == code
    assert f"leaves of COVESA/vehicle_signal_specification at {'0' * 40}" in said
    assert "75.0 % asked" in said


def test_a_list_is_refused_and_not_silently_none(tmp_path: Path) -> None:
    _, said = counted(tmp_path, {"Codes": LEAVES["Codes"]}, "0")

    assert "100.0 % refused with the reason" in said


def test_of_the_catalogue_itself_brakes_are_asked_and_a_list_is_refused() -> None:
    catalogue = json.loads((SHELF / "vss" / "extract.json").read_text(encoding="utf-8"))
    found = {path: verdict(leaf) for path, leaf in leaves(catalogue["Vehicle"], "Vehicle")}

    brakes = [path for path in found if path.endswith(".IsBrakesWorn")]
    assert len(brakes) == 2
    assert {found[path] for path in brakes} == {ASKED}
    assert {path: said for path, said in found.items() if said != ASKED} == {
        "Vehicle.CurrentLocation.Timestamp": NAMES,
        "Vehicle.Diagnostics.DTCList": REFUSED,
    }
    assert len(found) == 29
