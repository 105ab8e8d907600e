"""`fleetcount simulate`: every example runs, the same seed gives the same tables, bad input is one line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pytest
from fleetcount.study.simulate import summary_lines
from fleetcount_analysis.interval_words import numbers_text
from fleetcount_simulator.attackers import KINDS as ATTACKERS
from fleetcount_simulator.examples import EXAMPLES, example_about, example_text
from fleetcount_simulator.model import Epochs, Faults
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_simulator.scenario.grid import LIST_KEYS
from fleetcount_simulator.scenario.mechanisms import mechanism_keys, mechanism_kinds
from fleetcount_simulator.scenario.standing import ScheduleTable
from fleetcount_simulator.study.experiment import CaseSummary
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.study.results import TABLES
from fleetcount_simulator.study.scores import METRICS
from fleetcount_transport.settings import names_of

from tests.support.processes import wait_until

STUDY = """
name = "small"
seed = 3
runs = 30

[population]
kind = "city"
devices = 2000
values = 5

[question]
cells = "none"

[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = [1, 2]
"""
LONG = STUDY.replace("runs = 30", "runs = 100000").replace("values = 5", "values = 50")


def study(folder: Path, text: str = STUDY) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def contents(output: Path) -> dict[str, str]:
    with duckdb.connect() as database:
        return {name: repr(database.execute(f"SELECT * FROM '{output / name}.parquet'").fetchall()) for name in TABLES}


def test_the_examples_are_listed_and_printed(fleetcount: Callable) -> None:
    listed = fleetcount("simulate", "--examples")

    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == list(EXAMPLES)
    for_programs = json.loads(fleetcount("simulate", "--examples", "--json").out)
    assert [f"{one['name']}  {one['about']}" for one in for_programs] == [
        "  ".join(line.split(maxsplit=1)) for line in listed.out.splitlines()
    ]
    refused = fleetcount("simulate", "--example", "coverage", "--json")
    assert (refused.code, refused.out) == (2, "")
    for beside, said in (
        (("coverage.toml",), "a scenario file"),
        (("--runs", "2"), "--runs"),
        (("--output", "x"), "--output"),
    ):
        refused = fleetcount("simulate", *beside, "--example", "coverage")
        assert (refused.code, refused.out) == (2, "")
        assert f"--example prints and stops: {said} is given, allowed without it" in refused.error_line
    for name in EXAMPLES:
        assert fleetcount("simulate", "--example", name).out == example_text(name)
        assert 40 < len(example_about(name)) < 140


def test_every_example_is_a_scenario(tmp_path: Path) -> None:
    for name in EXAMPLES:
        plan = read_scenario(study(tmp_path, example_text(name)), STANDARD.population)

        assert plan.name == name
        assert plan.plans, name


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("coverage", "liars") else pytest.mark.nightly)
        for name in EXAMPLES
        if not name.startswith("network-")
    ],
)
def test_every_example_runs(fleetcount: Callable, tmp_path: Path, name: str) -> None:
    output = tmp_path / "out"

    ran = fleetcount("simulate", study(tmp_path, example_text(name)), "--runs", "3", "--output", output)

    assert ran.code == 0, ran.err
    assert f"results: {output}" in ran.out
    assert "coverage" in ran.out.splitlines()[0]
    assert all((output / f"{table}.parquet").is_file() for table in TABLES)
    assert json.loads((output / "run.json").read_text())["status"] == "complete"


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "released"),
    [("network-small", " 1/1 "), ("network-windows", " 10/12 ")],
)
def test_the_network_examples_run_real_programs(fleetcount: Callable, tmp_path: Path, name: str, released: str) -> None:
    output = tmp_path / "out"

    ran = fleetcount("simulate", study(tmp_path, example_text(name)), "--output", output)

    assert ran.code == 0, ran.err
    assert json.loads((output / "run.json").read_text())["engine"] == "network"
    assert released in ran.out


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no report, which takes a second of a core: for tests of what else a study writes."""
    monkeypatch.setattr("fleetcount_site.report.write_report", lambda directory: directory)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=[pytest.mark.nightly, pytest.mark.processes])])
def test_the_same_seed_gives_the_same_tables_whatever_the_workers(
    fleetcount: Callable, tmp_path: Path, workers: int
) -> None:
    """Of two workers' processes: tests/simulator/study/test_scale.py."""
    file = study(tmp_path)

    one = fleetcount("simulate", file, "--output", tmp_path / "one", "--csv")
    two = fleetcount("simulate", file, "--output", tmp_path / "two", "--workers", workers)
    other = fleetcount("simulate", file, "--output", tmp_path / "other", "--seed", "4")

    assert one.code == two.code == other.code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one")["releases"] != contents(tmp_path / "other")["releases"]
    assert (tmp_path / "one" / "releases.csv").read_text().startswith("case,run,epoch,released,")
    assert not (tmp_path / "two" / "releases.csv").exists()
    assert json.loads((tmp_path / "other" / "run.json").read_text())["seed"] == 4


@pytest.mark.usefixtures("undrawn")
def test_the_per_device_engine_is_chosen_by_option(fleetcount: Callable, tmp_path: Path) -> None:
    file = study(tmp_path, STUDY.replace("devices = 2000", "devices = 100"))

    ran = fleetcount("simulate", file, "--engine", "per-device", "--runs", "2", "--output", tmp_path / "out")

    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["engine"] == "per-device"


@pytest.mark.usefixtures("undrawn")
def test_the_table_shows_error_coverage_width_and_privacy(fleetcount: Callable, tmp_path: Path) -> None:
    ran = fleetcount("simulate", study(tmp_path), "--output", tmp_path / "out")
    first, second = (line.split() for line in ran.out.splitlines()[1:3])

    assert first[:3] == ["sampling", "epsilon=1", "30/30"]
    assert first[-2:] == ["1.000", "1.000"]
    assert second[-2:] == ["2.000", "2.000"]
    assert 20 < float(first[3]) < 60
    assert 85 < float(first[5]) <= 100


def test_a_case_without_release_and_many_cases_are_shown_as_such() -> None:
    nothing = float("nan")
    empty = CaseSummary(
        name="empty",
        releases=0,
        asked=5,
        rmse=nothing,
        bias_fleet=nothing,
        coverage=nothing,
        coverage_fleet=nothing,
        mean_width=nothing,
        statement=_public(),
    )
    lines = summary_lines([empty] * 30)

    assert lines[1].split() == ["empty", "0/5", "-", "-", "-", "-", "-", "none", "none"]
    assert lines[26] == "... and 5 more cases in the tables"
    assert lines[-1].startswith("released: none where fewer reports were agreed on than aggregators.min_batch_size")
    assert not any(line.startswith("released:") for line in summary_lines([replace(empty, releases=5)]))
    small, tiny = Decimal("0.12301"), Decimal("0.00000131")
    public = replace(_public()[0], epsilon=small, delta=Decimal(0), total_epsilon=small * 2, total_delta=tiny)
    shown = summary_lines([replace(empty, statement=(public,))])[1]
    assert shown.split()[-4:] == ["0.124", "0.247,", "delta", "1.31e-06"], "a loss is rounded up"


def _public() -> tuple:  # type: ignore[type-arg] # statements, as made below
    from fleetcount_simulator.study.statements import Statement

    one = Statement(
        adversary="public_and_broker",
        audience="all",
        text="all",
        epsilon=None,
        delta=Decimal(1),
        releases=1,
        total_epsilon=None,
        total_delta=Decimal(1),
    )
    return (one,)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["simulate"], "give a scenario file"),
        (["simulate", "none.toml"], "'none.toml' cannot be read: No such file or directory"),
        (["simulate", "--example", "bilion"], "did you mean 'billion'?"),
        (["simulate", "FILE", "--runs", "0"], "it must be 1 to 1000000"),
        (["simulate", "FILE", "--seed", "x"], "'x' is not a whole number"),
        (["simulate", "FILE", "--workers", "0"], "it must be 1 to 256"),
        (["simulate", "FILE", "--engine", "magic"], "'magic'"),
        (["simulate", "FILE", "--engine", "network", "--workers", "2"], "leave --workers and --dask out"),
        (["simulate", "FILE", "--workers", "2", "--dask", "tcp://127.0.0.1:1"], "choose one"),
        (["simulate", "FILE", "--output", "FILE"], "is not a directory"),
        pytest.param(
            ["simulate", "FILE", "--dask", "nonsense"],
            "no Dask scheduler answers at nonsense",
            marks=[
                pytest.mark.nightly,
                pytest.mark.skipif(find_spec("distributed") is None, reason="needs Dask (`make nightly` installs it)"),
            ],
        ),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    file = study(tmp_path)
    monkeypatch.chdir(tmp_path)

    ran = fleetcount(*(str(file) if word == "FILE" else word for word in arguments))

    assert ran.code in {2, 5}
    assert named in [line for line in ran.err.splitlines() if line.startswith("fleetcount")][-1]
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == [file]


def test_a_bad_file_names_file_line_and_key_and_leaves_nothing(fleetcount: Callable, tmp_path: Path) -> None:
    file = study(tmp_path, STUDY.replace("devices = 2000", "devises = 2000"))

    ran = fleetcount("simulate", file, "--output", tmp_path / "out")

    assert ran.code == 2
    assert "small.toml line 8: population.devises" in ran.err
    assert "did you mean 'devices'?" in ran.err
    assert not (tmp_path / "out").exists()


def _children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("by", "workers"),
    [
        # Ctrl-C is typed in test_demo_terminal.py.
        pytest.param(signal.SIGINT, 1, id="Ctrl-C", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 1, id="SIGTERM"),
        pytest.param(signal.SIGINT, 2, id="Ctrl-C-workers", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 2, id="SIGTERM-workers", marks=pytest.mark.nightly),
    ],
)
def test_an_interruption_ends_everything_and_the_study_goes_on(
    tmp_path: Path, by: signal.Signals, workers: int
) -> None:
    file, output = study(tmp_path, LONG), tmp_path / "out"
    command = [sys.executable, "-m", "fleetcount", "simulate", str(file), "--output", str(output)]
    command += ["--workers", str(workers)]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True, start_new_session=True)
    try:
        wait_until(lambda: len(list((output / "shards").glob("*.npz"))) >= 3, "parts are finished", 60)
        children = _children(started.pid)
        # A terminal sends Ctrl-C to every process of the command, a supervisor SIGTERM to the first alone.
        os.killpg(started.pid, by) if by == signal.SIGINT else started.send_signal(by)
        _, errors = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()

    assert started.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    wait_until(lambda: not any(map(_alive, children)), "no worker is left", 60)
    assert not (output / "releases.parquet").exists()
    assert json.loads((output / "run.json").read_text())["status"] == "running"
    assert not list((output / "shards").glob(".*"))


def _alive(process: int) -> bool:
    """Return whether a process is there and not merely waiting to be collected by whoever adopted it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_report_is_written_where_it_is_part_of_the_installation(fleetcount: Callable, tmp_path: Path) -> None:
    ran = fleetcount("simulate", study(tmp_path), "--output", tmp_path / "out")

    assert ran.code == 0
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


SPEEDS = """
name = "small"
seed = 3
runs = 3

[population]
kind = "bologna"
start_s = 2400
devices = 2000

[question]
cells = "number"
low_kmh = 0
high_kmh = 120
points = 16

[[mechanism]]
kind = "direct"
noise_sd = 5
show = ["mean", "quantiles"]
"""


@pytest.mark.usefixtures("undrawn")
def test_a_number_stands_beside_that_of_the_fleet_with_its_interval(fleetcount: Callable, tmp_path: Path) -> None:
    output = tmp_path / "out"

    ran = fleetcount("simulate", study(tmp_path, SPEEDS), "--output", output)
    again = json.loads(fleetcount("simulate", study(tmp_path, SPEEDS), "--output", output, "--json").out)

    assert ran.code == 0, ran.err
    shown = [line for line in ran.out.splitlines() if line.startswith("show=") or " to " in line]
    assert len(shown) == 6
    with duckdb.connect() as database:
        table = database.execute(
            f"SELECT what, unit, fleet, estimate, low, high FROM '{output}/numbers.parquet' WHERE run = 0"
        ).fetchall()
    assert [row[0] for row in table] == [
        "mean",
        "quantile 0.1",
        "quantile 0.25",
        "median",
        "quantile 0.75",
        "quantile 0.9",
    ]
    for (what, unit, fleet, estimate, low, high), line in zip(table, shown, strict=True):
        assert unit == "km/h"
        assert low <= estimate <= high
        said = f"{what} {fleet:,.4g} km/h {estimate:,.4g} {numbers_text(low, high)} ".split()
        assert line.split()[2:][: len(said)] == said
        assert line.endswith(" of 3")
    numbers = [one for case in again["cases"] for one in case["numbers"]]
    assert [(one["what"], one["low"], one["intervals"]) for one in numbers] == [(row[0], row[4], 3) for row in table]


@pytest.mark.usefixtures("undrawn")
def test_a_study_of_counts_has_no_numbers(fleetcount: Callable, tmp_path: Path) -> None:
    ran = fleetcount("simulate", study(tmp_path), "--output", tmp_path / "out", "--runs", "2", "--json")

    assert [case["numbers"] for case in json.loads(ran.out)["cases"]] == [[], []]


@pytest.mark.usefixtures("undrawn")
def test_the_documentation_names_every_key_and_column(fleetcount: Callable, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulating.md").read_text(encoding="utf-8")
    attackers = [import_module(f"fleetcount_simulator.attackers.{name}") for name in ATTACKERS.values()]
    fleetcount("simulate", study(tmp_path), "--output", tmp_path / "out")
    with duckdb.connect() as database:
        scored = [
            column[0]
            for table in ("cells", "statement", "numbers")
            for column in database.execute(f"DESCRIBE SELECT * FROM '{tmp_path / 'out' / table}.parquet'").fetchall()
        ]
    expected = {
        *mechanism_kinds(),
        *(key for kind in mechanism_kinds() for key in mechanism_keys(kind)),
        *(field.name for field in fields(Faults)),
        *({field.name for field in fields(Epochs)} - {"question"}),
        *names_of(ScheduleTable),
        *(key for keys in LIST_KEYS.values() for key in keys if key != "outage"),
        *ATTACKERS,
        *(key for module in attackers for key in names_of(module.Keys)),
        *METRICS,
        *(set(scored) - {"case", "run", "epoch", "value", "adversary", "audience"}),
    } - {"outage"}

    assert sorted(word for word in expected if f"`{word}`" not in page and f"`{word} =" not in page) == []


def test_help_teaches(fleetcount: Callable) -> None:
    shown = fleetcount("simulate", "--help").out

    assert "fleetcount simulate --example coverage > coverage.toml" in shown
    assert "docs/simulating.md" in shown
    assert os.linesep in shown
