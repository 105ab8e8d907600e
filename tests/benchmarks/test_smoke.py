"""Every benchmark still runs, in its smallest size: a second or some, which say nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rows import Taken

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bench.py"
NAMES = sorted(script.stem for script in (ROOT / "benchmarks").glob("bench_*.py"))
QUICK = {"bench_client", "bench_window"}
"""A second of a core each; together they use most of what benchmarks share."""

pytestmark = pytest.mark.processes


@pytest.mark.timeout(900)  # The first on a machine compiles.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in NAMES]
)
def test_every_benchmark_runs_in_its_smallest_size(name: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    command = [sys.executable, str(SCRIPT), name, "--smoke", "--output", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads(kept.read_text())
    assert values["sizes"] == "smoke"
    rows = [Taken.from_json(row) for row in values["rows"]]
    assert rows
    assert {one.benchmark for one in rows} == {name.removeprefix("bench_")}
    places = [(one.row.path, one.row.peer) for one in rows]
    assert sorted(set(places)) == sorted(places), "two rows cannot be told apart"
    assert all(one.row.note for one in rows if one.row.ours is None), "a row does not say why it did not run"
    assert f"{len(rows)} rows: " in done.stdout
