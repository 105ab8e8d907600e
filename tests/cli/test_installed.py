"""What a user has after `pip install`: the demo in an empty folder, and one line for a library that is not there."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.scripts.test_supply import wheel as builder
from tests.support.installed import Installed, install, link, needed_by, with_builder

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

KUKSA = "fleetcount_client.assembly fleetcount_client.grpc_transport"
ANALYSIS = "fleetcount_analysis.figures fleetcount.study.plan fleetcount.read.export"
SIMULATOR = "fleetcount_simulator.network.run fleetcount.show.demo_walk fleetcount.study.simulate"

pytestmark = [with_builder, pytest.mark.processes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel: Path = builder.build(ROOT, tmp_path_factory.mktemp("dist"))
    return wheel


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel without any extra."""
    return install(tmp_path_factory.mktemp("bare") / "venv", built)


@pytest.mark.nightly  # Two aggregators, a broker and 60 vehicles as processes, windows of ten seconds.
@pytest.mark.timeout(400)
def test_the_demo_runs_from_the_wheel_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    everything = install(tmp_path / "venv", built, ["all"])
    folder = tmp_path / "empty"
    folder.mkdir()

    code, out, err = everything.run(
        *("-m", "fleetcount", "demo", "--vehicles", "60"), folder=folder, NUMBA_CACHE_DIR=str(tmp_path / "cache")
    )

    assert code == 0, err
    assert "60 of 60 vehicles hold every aggregator's receipt" in out
    written = {path.name for path in (folder / "out").iterdir()}
    assert {"release.json", "comparison.csv", "map.svg", "map.png"} <= written
    assert json.loads((folder / "out" / "release.json").read_text())["cells"]
    assert str(ROOT) not in out + err
    assert {path.name for path in folder.iterdir()} - {".cache", ".config"} == {"out"}


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("aggregator", "fleetcount_aggregator.process.app fleetcount.run.aggregator fleetcount.question.create"),
        ("mqtt", "fleetcount_client.mqtt_transport"),
        pytest.param("grpc", "fleetcount_client.grpc_transport fleetcount_relay.app", marks=pytest.mark.nightly),
        pytest.param("kuksa", KUKSA, marks=pytest.mark.nightly),
        pytest.param("analysis", ANALYSIS, marks=pytest.mark.nightly),
        pytest.param("simulator", SIMULATOR, marks=pytest.mark.nightly),
        ("site", "fleetcount.show.publish fleetcount.show.serve"),
    ],
)
def test_an_extra_brings_all_that_its_part_loads(bare: Installed, extra: str, modules: str, tmp_path: Path) -> None:
    # A relay is what an aggregator's machine runs beside it, with the same extra.
    rows = EXTRAS["aggregator" if "relay" in modules else extra]
    folder = tmp_path / "extra"
    folder.mkdir()
    link(folder, needed_by(_without_own(rows)))

    code, _, err = bare.run("-c", f"import {', '.join(modules.split())}", folder=tmp_path, PYTHONPATH=str(folder))

    assert code == 0, err


def _without_own(rows: list[str]) -> list[str]:
    """Return requirements with the rows of the extras of ours that they name."""
    found: list[str] = []
    for row in rows:
        if row.startswith("fleetcount["):
            for one in row.removeprefix("fleetcount[").rstrip("]").split(","):
                found += _without_own(EXTRAS[one])
        else:
            found.append(row)
    return found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["demo"], "pip install 'fleetcount[all]'"),
        (["plan", "--devices", "2000", "--values", "72", "--epsilon", "1"], "pip install 'fleetcount[analysis]'"),
        (["simulate", "scenario.toml", "--output", "new"], "pip install 'fleetcount[simulator]'"),
        (["audit"], "pip install 'fleetcount[all]'"),
        (["reproduce", "all", "--output", "new"], "pip install 'fleetcount[all]'"),
        (["aggregator", "serve", "--config", "aggregator.toml"], "pip install 'fleetcount[aggregator]'"),
        (["serve", "site"], "pip install 'fleetcount[site]'"),
    ],
)
def test_without_its_extra_a_command_says_in_one_line_what_to_install(
    bare: Installed, command: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("")
    if command[0] == "simulate":  # A file that would do; without the extra it can still be printed.
        scenario = bare.run("-m", "fleetcount", "simulate", "--example", "coverage", folder=tmp_path)[1]
        (tmp_path / "scenario.toml").write_text(scenario)

    code, out, err = bare.run("-m", "fleetcount", *command, folder=tmp_path)

    assert (code, out, len(err.splitlines())) == (2, "", 1), (out, err)
    assert said in err
    assert "a bug" not in err
