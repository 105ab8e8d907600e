"""The demo: what it writes, what it prints, and that it always ends its children."""

import csv
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.demo_outputs import comparison_csv, covered
from fleetcount.demo_question import DemoOptions, question_of
from fleetcount.release_report import statement_lines, table_lines
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release import record_from_json, verify_record_signatures


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
@pytest.mark.parametrize("mode", ["sampling", "mangat"])
@pytest.mark.parametrize("rate", [None, Fraction(1, 1000), Fraction(499, 1000)])
def test_every_allowed_epsilon_and_rate_gives_noise_a_task_takes(
    epsilon: Fraction, mode: str, rate: Fraction | None
) -> None:
    question = question_of(options(mode=mode, epsilon=epsilon, sampling_rate=rate if mode == "sampling" else None))

    assert question.release.noise_epsilon is not None
    assert Fraction(1, 10**6) <= question.release.noise_epsilon <= 10


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("vehicle,value\n1,a\n2,b\n")

    for changes, named in [
        ({"mode": "mangat", "truths": tmp_path / "t.csv"}, "--truths needs --yes"),
        ({"mode": "mangat", "truths": tmp_path / "t.csv", "yes": "c"}, "a value no vehicle has"),
        ({"truths": tmp_path / "t.csv", "vehicles": 3}, "the file has 2"),
        ({"truths": tmp_path / "t.csv", "yes": "a"}, "--yes goes with"),
    ]:
        with pytest.raises(UsageError, match=named):
            question_of(options(**changes))


def start(output: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a demo whose temporary directory lies in a folder of this test, so that what is left over is seen."""
    (output.parent / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "fleetcount", "demo", "--output", str(output), *arguments],
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["--vehicles", "60", "--transport", "both"], 72),
        (["--vehicles", "60", "--transport", "grpc", "--mode", "mangat", "--aggregators", "3"], 1),
        (["--transport", "mqtt", "--truths", "TRUTHS", "--sampling-rate", "0.4"], 3),
    ],
)
def test_a_small_demo_writes_a_signed_record_a_comparison_and_a_picture(
    tmp_path: Path, arguments: list[str], cells: int
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
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_children_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path / "out", "--vehicles", "40")
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("round one"):
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
