"""The demo: what it writes, what it prints, and that it always ends its children."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount.read.report import statement_lines, table_lines
from fleetcount.show.demo_question import DemoOptions, question_of
from fleetcount.show.demo_results import comparison_csv, covered
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release.record import verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_simulator.demo_scenarios import Sighting, bologna_position


def options(**changes: object) -> DemoOptions:
    plain: dict[str, object] = {
        "vehicles": None,
        "aggregators": 2,
        "transport": "both",
        "mode": "sampling",
        "epsilon": Fraction(1),
        "sampling_rate": None,
        "truths": None,
        "yes": None,
        "output": Path("out"),
        "seed": 1,
        "insecure_coins": False,
        "keep": False,
    }
    return DemoOptions(**{**plain, **changes})  # type: ignore[arg-type] # the fields above, by name


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1), Fraction(10)])
@pytest.mark.parametrize("mode", ["sampling", "mangat", "direct"])
@pytest.mark.parametrize("rate", [None, Fraction(1, 1000), Fraction(499, 1000)])
def test_every_allowed_epsilon_and_rate_gives_noise_a_window_takes(
    epsilon: Fraction, mode: str, rate: Fraction | None
) -> None:
    question = question_of(options(mode=mode, epsilon=epsilon, sampling_rate=rate if mode == "sampling" else None))

    assert question.network.release.noise_epsilon is not None
    assert Fraction(1, 10**6) <= question.network.release.noise_epsilon <= 10


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("vehicle,value\n1,a\n2,b\n")

    for changes, named in [
        ({"mode": "mangat", "truths": tmp_path / "t.csv"}, "--truths needs --yes"),
        ({"mode": "mangat", "truths": tmp_path / "t.csv", "yes": "c"}, "a value no vehicle has"),
        ({"truths": tmp_path / "t.csv", "vehicles": 3}, "the file has 2"),
        ({"sumo": True, "truths": tmp_path / "t.csv"}, "--sumo goes without --truths"),
        ({"sumo": True, "drill_down": True}, "--sumo goes without --drill-down"),
        ({"drill_down": True, "connections": "shared"}, "--connections is 'shared', allowed with --drill-down: own"),
        ({"sumo": True, "vehicles": 5_001}, "--vehicles is 5001, allowed with --sumo: 2 to 5000"),
        ({"truths": tmp_path / "t.csv", "yes": "a"}, "--yes goes with"),
        ({"truths": tmp_path / "t.csv", "windows": 2}, "--windows is 2, allowed with --truths: 1"),
    ]:
        with pytest.raises(UsageError, match=named):
            question_of(options(**changes))


@pytest.mark.parametrize(
    ("changes", "ways"),
    [({}, "shared"), ({"drill_down": True}, "own"), ({"connections": "own"}, "own")],
)
def test_vehicles_share_a_connection_unless_each_is_to_have_its_own(changes: dict[str, object], ways: str) -> None:
    assert options(**changes).ways == ways


@pytest.mark.parametrize("mode", ["sampling", pytest.param("mangat", marks=pytest.mark.nightly)])
def test_the_morning_moves_on_between_windows_with_the_same_vehicles(mode: str) -> None:
    once, twice = (question_of(options(mode=mode, vehicles=300, windows=windows)) for windows in (1, 2))
    every = question_of(options(mode=mode, vehicles=300, windows=13))

    assert once.scenario.vehicles == twice.scenario.vehicles == 300
    first, later = twice.scenario.readings
    assert later != first
    assert len(set(every.scenario.readings)) == 13


@pytest.mark.parametrize(("mode", "values"), [("sampling", 81), ("mangat", 1)])
def test_with_sumo_every_window_asks_where_its_cars_are_then(
    mode: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [Sighting(x=10.0, y=10.0, speed_mps=3.0), None]
    then = [Sighting(x=300.0, y=10.0, speed_mps=10.0), Sighting(x=2000.0, y=2000.0, speed_mps=1.0)]
    asked = []
    monkeypatch.setattr("fleetcount.show.demo_question.drive_fleet", lambda *how: asked.append(how) or [first, then])

    question = question_of(options(sumo=True, vehicles=2, windows=2, mode=mode, seed=7))

    assert asked == [(2, 7, 2)]
    assert question.scenario.vehicles == 2
    assert question.scenario.domain.values == values
    cells = [[question.scenario.domain.value_of(one) for one in window] for window in question.scenario.readings]
    assert cells == ([[1, 0], [2, 81]] if mode == "sampling" else [[0, 0], [1, 0]])


def test_every_window_asks_the_same_vehicles_in_the_same_order() -> None:
    parked = {name: Sighting(x=float(place), y=0.0, speed_mps=0.0) for place, name in enumerate("abcdef")}
    traces = {moment: dict(parked) for moment in range(0, 900, 300)}

    first, second, third = bologna_position(traces, 4, 7, 3).readings

    assert first == second == third
    assert len(set(first)) == 4


def start(output: Path, *arguments: str, program: Sequence[str] = ("-m", "fleetcount")) -> "subprocess.Popen[str]":
    """Start a demo whose temporary directory lies in a folder of this test, so that what is left over is seen."""
    (output.parent / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, *program, "demo", "--output", str(output), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(output.parent / "tmp")},
    )


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of processes that name this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(directory).encode() in words:
            found.append(words.decode(errors="replace"))
    return found


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["--vehicles", "60", "--transport", "both"], 72),
        (["--vehicles", "60", "--transport", "both", "--connections", "own"], 72),
        (["--vehicles", "60", "--transport", "relay", "--connections", "own"], 72),
        (["--vehicles", "60", "--transport", "grpc", "--mode", "mangat", "--aggregators", "3"], 1),
        (["--transport", "mqtt", "--truths", "TRUTHS", "--sampling-rate", "0.4"], 3),
    ],
)
def test_a_small_demo_writes_a_signed_record_a_comparison_and_a_picture(
    tmp_path: Path, arguments: list[str], cells: int, fleetcount: Callable[..., Any]
) -> None:
    colours = ["red", "green", "$x^{blue", ""]
    rows = "".join(f"v{i},{colours[i % 4]}\n" for i in range(40))
    (tmp_path / "truths.csv").write_text("vehicle,value\n" + rows)
    words = [str(tmp_path / "truths.csv") if word == "TRUTHS" else word for word in arguments]

    demo = start(tmp_path / "out", *words)
    out, err = demo.communicate(timeout=110)

    assert demo.returncode == 0, err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "comparison.csv",
        "map.png",
        "map.svg",
        "release.json",
        "trusted.toml",
    ]
    record, signatures = record_from_json((tmp_path / "out" / "release.json").read_text())
    verify_record_signatures(record, signatures)
    with (tmp_path / "out" / "comparison.csv").open(newline="") as file:
        compared = list(csv.DictReader(file))
    assert len(compared) == len(record.cells) == cells
    truths = [int(row["truth"]) for row in compared]
    assert comparison_csv(record, truths) == (tmp_path / "out" / "comparison.csv").read_text()
    # Ten standard deviations of the widest of the three; an interval may miss its truth, one in twenty does.
    assert all(abs(cell.estimate - truth) < 100 for cell, truth in zip(record.cells, truths, strict=True))
    assert covered(record, truths) >= 0.8 * cells or cells < 20
    for line in [*table_lines(record, truths), *statement_lines(record)]:
        assert line in out
    assert f"; truth {sum(truths)}" in out.split("all cells together: ")[1]
    verified = fleetcount("verify", tmp_path / "out" / "release.json", "--config", tmp_path / "out" / "trusted.toml")
    assert (verified.code, "trusted by" in verified.out) == (0, True)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_children_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path / "out", "--vehicles", "40")
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith(("connecting", "round one")):
            break
    assert processes_of(tmp_path)

    demo.send_signal(number)
    _, err = demo.communicate(timeout=30)

    assert demo.returncode == 130
    assert err.splitlines()[-1] == "fleetcount demo: interrupted"
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_morning_of_windows_is_one_question_that_can_be_asked(tmp_path: Path, fleetcount: Callable) -> None:
    output = tmp_path / "out"
    process = start(output, "--windows", "2", "--vehicles", "24", "--transport", "grpc")
    out, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert "of all answers of a device together by at most e^2.00" in " ".join(out.split())
    assert out.count("24 of 24 vehicles hold every receipt") == 2
    names = [f"window-{index:02d}.{ending}" for index in range(2) for ending in ("csv", "png", "svg")]
    table = [name for name in ("question.parquet", "question.csv") if (output / name).exists()]
    files = ["00000.json", "00001.json", "question", "time-lapse.gif", "trusted.toml", *table, *names]
    assert sorted(path.name for path in output.iterdir()) == sorted(files)
    assert (output / "time-lapse.gif").read_bytes()[:3] == b"GIF"
    ran = fleetcount("question", "export", "--records", output, "--sum", "1-72", "--difference", "0,1")
    assert ran.code == 0, ran
    assert "all cells, window 1 less window 0:" in ran.out
    again = fleetcount("demo", "--windows", "2", "--output", output)
    assert (again.code, "is not empty; choose a new directory" in again.error_line) == (2, True)
    assert not processes_of(tmp_path)
