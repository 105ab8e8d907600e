"""Traffic driven by SUMO itself, on a network, with routes, from a configuration; and the memory a trace takes."""

import gzip
import subprocess
import tempfile
import tracemalloc
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_simulator.cells.road_network import read_network
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations import build, sumo
from fleetcount_simulator.populations.sumo import SumoPrograms

needs_sumo = pytest.mark.skipif(find_spec("sumo") is None, reason="needs SUMO (`make nightly` installs it)")
ROUTES = """<routes>
<trip id="one" depart="0" from="A0B0" to="C1C2"/>
<trip id="three" depart="30" from="C2B2" to="A1A0"/>
</routes>
"""
CONFIG = """<configuration><input><net-file value="grid.net.xml"/><route-files value="trips.rou.xml"/></input>
<time><end value="200"/></time></configuration>
"""


def program(name: str) -> str:
    spec = find_spec("sumo")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / "bin" / name)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    grid = ("--grid", "--grid.number", "3", "--grid.length", "120", "--output-file", "grid.net.xml")
    subprocess.run([program("netgenerate"), *grid], cwd=folder, check=True, capture_output=True)
    (folder / "grid.net.xml.gz").write_bytes(gzip.compress((folder / "grid.net.xml").read_bytes()))
    (folder / "trips.rou.xml").write_text(ROUTES)
    (folder / "run.sumocfg").write_text(CONFIG)
    run = ("-c", "run.sumocfg", "--fcd-output", "fcd.xml", "--device.fcd.period", "10", "--seed", "1")
    subprocess.run([program("sumo"), *run], cwd=folder, check=True, capture_output=True)
    return folder


EDGES = {"cells": "edges"}
OFTEN = {"interval_s": 20, "step_s": 10}


def driven(folder: Path, question: dict[str, Any], **keys: Any) -> Population:
    before = sorted(folder.iterdir())
    # In the folder that all tests share others have SUMO's files meanwhile.
    with tempfile.TemporaryDirectory() as own, pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", own)
        try:
            return build({"kind": "sumo"} | OFTEN | keys, question, 1, folder)
        finally:
            assert not list(Path(own).iterdir())
            assert sorted(folder.iterdir()) == before


def histograms(population: Population) -> list[dict[str, int]]:
    labels = ("none of them", *population.question.labels)
    return [
        {label: count for label, count in zip(labels, population.histogram(epoch).tolist(), strict=True) if count}
        for epoch in range(population.epochs)
    ]


@pytest.mark.nightly
@needs_sumo
def test_a_configuration_a_network_with_routes_and_its_data_are_the_same_traffic(town: Path) -> None:
    from_config = driven(town, EDGES, config="run.sumocfg")
    from_network = driven(town, EDGES, network="grid.net.xml.gz", routes="trips.rou.xml", duration_s=200)
    from_data = build(
        {"kind": "fcd", "file": "fcd.xml", "interval_s": 20}, EDGES | {"network": "grid.net.xml"}, 1, town
    )

    assert from_config.devices == from_network.devices == from_data.devices == 2
    assert histograms(from_config) == histograms(from_network) == histograms(from_data)
    assert from_config.question.places is None
    assert from_network.question.values == len(read_network(town / "grid.net.xml").names) == 24
    assert from_network.question.labels == from_data.question.labels
    assert sum(int(from_network.histogram(epoch)[1:].sum()) for epoch in range(from_network.epochs)) >= 3


@pytest.mark.nightly
@needs_sumo
def test_trips_are_made_for_a_network_without_routes(town: Path) -> None:
    population = driven(town, EDGES | {"edge": "nearest"}, network="grid.net.xml", vehicles=40, duration_s=300)

    assert population.devices == 40
    assert population.epochs >= 10
    assert max(sum(population.histogram(epoch)[1:]) for epoch in range(population.epochs)) >= 5


@pytest.mark.nightly
@needs_sumo
def test_the_nearest_edge_is_mostly_the_edge_itself(town: Path) -> None:
    keys = {"network": "grid.net.xml", "vehicles": 60, "duration_s": 300}
    own, nearest = driven(town, EDGES, **keys), driven(town, EDGES | {"edge": "nearest"}, **keys)

    answers = [(own.truths(e, 0, 60), nearest.truths(e, 0, 60)) for e in range(own.epochs)]
    named = [(first[first > 0], second[first > 0]) for first, second in answers]
    same = np.concatenate([first == second for first, second in named])

    # The rest stands where two streets meet; a lane lies a lane's width beside its edge's line.
    assert len(same) > 50
    assert same.mean() > 0.8


@pytest.mark.nightly
@needs_sumo
def test_sumo_is_ended_when_it_takes_too_long(town: Path) -> None:
    with pytest.raises(ScenarioError, match=r"population.timeout_s: sumo was not ready after 0.001 s"):
        driven(town, EDGES, network="grid.net.xml", timeout_s="1/1000")


def test_a_trace_takes_memory_for_what_counts_not_for_its_rows(tmp_path: Path) -> None:
    rows = (f"{moment},car {car},{car}.25,{moment % 700}.5,{'x' * 60}\n" for moment in range(1500) for car in range(40))
    with gzip.open(tmp_path / "t.csv.gz", "wt", compresslevel=1) as file:
        file.write("time,vehicle,x,y,note\n")
        file.writelines(rows)
    question = {"cells": "square", "size_m": 100, "bounds": [0, 0, 1000, 1000]}

    tracemalloc.start()
    try:
        population = build({"kind": "trace", "file": "t.csv.gz", "interval_s": 150}, question, 1, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # 60,000 rows are 58 MB as Python objects; a piece of 16,384 rows is 17 MB.
    assert population.epochs == 10
    assert population.devices == 40
    assert peak < 32 * 2**20


def test_what_sumo_drives_is_written_as_it_is_read_whatever_a_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sumocfg").write_text(CONFIG)
    asked: list[str] = []

    def run(self: SumoPrograms, program: str, arguments: Sequence[str], directory: Path, timeout_s: float) -> None:
        asked.extend(arguments)
        raise ScenarioError("SUMO would run here")

    monkeypatch.setattr(sumo, "sumo_home", lambda: tmp_path)
    monkeypatch.setattr(SumoPrograms, "run", run)
    with pytest.raises(ScenarioError, match="SUMO would run here"):
        driven(tmp_path, {"cells": "square", "size_m": 100}, config="run.sumocfg")

    options = ("--fcd-output.geo", "--human-readable-time", "--fcd-output.attributes", "--output-prefix")
    assert [asked[asked.index(option) + 1] for option in options] == ["false", "false", "x,y,speed,lane", ""]


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        ((0, 70, 140), r"population\.step_s is 10: SUMO recorded every 70 s; .* multiple of the .* step-length"),
        ((0, 35, 105), r"SUMO recorded every 35 s"),
        ((0, 70, 80), ""),
        ((0, 10.0004, 40), ""),
        ((0,), ""),
    ],
)
def test_sightings_that_sumo_records_more_rarely_than_asked_are_refused(
    moments: Sequence[float], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sumocfg").write_text(CONFIG)
    car = '<vehicle id="one" x="5" y="5" speed="3" lane="a_0"/>'
    steps = "".join(f'<timestep time="{moment}">{car}</timestep>' for moment in moments)

    def run(self: SumoPrograms, program: str, arguments: Sequence[str], directory: Path, timeout_s: float) -> None:
        (directory / "fcd.xml.gz").write_bytes(gzip.compress(f"<fcd-export>{steps}</fcd-export>".encode()))

    monkeypatch.setattr(sumo, "sumo_home", lambda: tmp_path)
    monkeypatch.setattr(SumoPrograms, "run", run)
    with pytest.raises(ScenarioError, match=said) if said else nullcontext():
        assert driven(tmp_path, {"cells": "square", "size_m": 100}, config="run.sumocfg").devices == 1


@pytest.mark.nightly
@needs_sumo
def test_a_step_length_that_does_not_divide_the_asked_step_is_refused(town: Path) -> None:
    (town / "odd.sumocfg").write_text(CONFIG.replace("</time>", '<step-length value="0.7"/></time>'))

    with pytest.raises(ScenarioError, match=r"step_s is 10: SUMO recorded every 70 s"):
        driven(town, EDGES, config="odd.sumocfg")
    assert driven(town, EDGES, config="odd.sumocfg", step_s=7).devices == 2


@pytest.mark.nightly
@needs_sumo
def test_traffic_is_read_where_its_own_configuration_asks_for_degrees_clock_times_and_a_prefix(tmp_path: Path) -> None:
    corners = (("a", 11.30, 44.48), ("b", 11.32, 44.48), ("c", 11.32, 44.50))
    nodes = "".join(f'<node id="{name}" x="{x}" y="{y}"/>' for name, x, y in corners)
    (tmp_path / "n.nod.xml").write_text(f"<nodes>{nodes}</nodes>")
    edges = '<edge id="ab" from="a" to="b"/><edge id="bc" from="b" to="c"/>'
    (tmp_path / "e.edg.xml").write_text(f"<edges>{edges}</edges>")
    made = ("-n", "n.nod.xml", "-e", "e.edg.xml", "--proj.utm", "-o", "grid.net.xml")
    subprocess.run([program("netconvert"), *made], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "trips.rou.xml").write_text('<routes><trip id="one" depart="0" from="ab" to="bc"/></routes>')
    own = {"fcd-output.geo": "true", "human-readable-time": "true"}
    own |= {"fcd-output.attributes": "angle", "output-prefix": "own_"}
    options = "".join(f'<{name} value="{value}"/>' for name, value in own.items())
    (tmp_path / "run.sumocfg").write_text(CONFIG.replace("</configuration>", f"{options}</configuration>"))

    from_config = driven(tmp_path, {"cells": "square", "size_m": 100}, config="run.sumocfg")

    assert from_config.question.values > 1
