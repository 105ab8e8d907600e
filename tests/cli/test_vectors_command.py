"""`fleetcount vectors`: one line a file; a miss is code 1, a file that is no vector file code 2, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "vectors"


def test_reproduced_files_are_ok_one_line_each(fleetcount: Callable) -> None:
    names = ["vdaf/Prio3Count_0.json", "vdaf/Prio3Count_bad_meas_share.json", "vdaf/XofTurboShake128.json"]

    ran = fleetcount("vectors", *(VECTORS / name for name in names))

    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["ok"] * 3
    assert ran.err == ""


def test_a_changed_number_and_an_unknown_algorithm_are_misses(fleetcount: Callable, tmp_path: Path) -> None:
    vector = json.loads((VECTORS / "vdaf" / "Prio3Count_0.json").read_text())
    (tmp_path / "Nobody_0.json").write_text(json.dumps(vector))
    vector["agg_result"] += 1
    (tmp_path / "Prio3Count_0.json").write_text(json.dumps(vector))

    ran = fleetcount("vectors", tmp_path / "Nobody_0.json", tmp_path / "Prio3Count_0.json")

    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["MISS", "MISS"]
    assert "2 of 2" in ran.error_line


def test_what_is_no_vector_file_is_named_and_the_rest_is_still_replayed(fleetcount: Callable, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")

    ran = fleetcount("vectors", tmp_path / "broken.json", tmp_path, VECTORS / "vdaf" / "Prio3Count_0.json")

    assert ran.code == 2
    assert [line.split()[0] for line in ran.out.splitlines()] == ["BAD", "BAD", "ok"]
    assert "broken.json" in ran.out
