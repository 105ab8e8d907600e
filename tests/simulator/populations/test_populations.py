"""Every kind of population: its histogram is the count of its truths, however it is cut, in whatever process."""

import hashlib
import pickle
import subprocess
import sys
from collections.abc import Iterable
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations import KINDS, about, build, cells_of, keys_of

TRACE = "time,vehicle,lon,lat,speed,edge\n" + "".join(
    f"{60 * moment},car {car},{11.30 + 0.001 * ((car * 7 + moment) % 13)},{44.48 + 0.001 * (car % 11)},9,e{car % 5}\n"
    for moment in range(6)
    for car in range(40)
    if (car + moment) % 3
)
TABLE = "vehicle,value\n" + "".join(f"{row},{'abc'[row % 3] if row % 4 else ''}\n" for row in range(100))
FCD = "<fcd-export>\n" + "".join(
    f'<timestep time="{30 * moment}.00">\n'
    + "".join(
        f'<vehicle id="{car}" x="{car * 31 % 500}.5" y="{(car + moment) * 17 % 400}" speed="9" lane="e{car % 4}_0"/>\n'
        for car in range(moment, moment + 25)
    )
    + "</timestep>\n"
    for moment in range(8)
)
FCD += "</fcd-export>\n"
COUNTS = "value,count\nnorth,700\nsouth,300\n,50\nwest,0\n"
Tables = tuple[dict[str, Any], dict[str, Any]]
SQUARES = {"cells": "square", "size_m": 250}
AROUND = [Decimal("11.29"), Decimal("44.47"), Decimal("11.32"), Decimal("44.50")]
FROM_TRACE = {"kind": "trace", "file": "trace.csv", "interval_s": 60, "lon": "lon", "lat": "lat"}
PARTS = [
    {"signal": "Vehicle.Time", "column": "time", "kind": "bins", "edges": [0, 100], "open_above": True},
    {"signal": "Vehicle.Id", "column": "vehicle", "kind": "categories", "names": ["car 1", "car 2", "car 3"]},
]
CASES: dict[str, Tables] = {
    "counts": ({"kind": "counts", "file": "counts.csv"}, {"cells": "categories"}),
    "counts scaled": ({"kind": "counts", "file": "counts.csv", "devices": 9_999}, {"cells": "none"}),
    "city": ({"kind": "city", "devices": 10_000, "values": 70}, {"cells": "none"}),
    "city, squares": ({"kind": "city", "devices": 9_999, "elsewhere": "1/7"}, SQUARES | {"bounds": [0, 0, 1000, 900]}),
    "city, hot spots": ({"kind": "city", "devices": 9_999, "shape": "normal"}, SQUARES | {"bounds": [0, 0, 1000, 900]}),
    "city, hexagons": (
        {"kind": "city", "devices": 9_999, "shape": "uniform"},
        {"cells": "h3", "resolution": 8, "bounds": AROUND},
    ),
    "bologna": ({"kind": "bologna"}, SQUARES),
    "bologna, fewer": ({"kind": "bologna", "devices": 999}, {"cells": "speed", "bins_kmh": [30, 50]}),
    "bologna, more": ({"kind": "bologna", "devices": 20_001}, {"cells": "none"}),
    "trace, hexagons": (FROM_TRACE, {"cells": "h3", "resolution": 9}),
    "trace, squares": (FROM_TRACE, SQUARES | {"bounds": AROUND}),
    "trace, edges": (FROM_TRACE | {"edge": "edge"}, {"cells": "edges"}),
    "fcd": ({"kind": "fcd", "file": "fcd.xml", "interval_s": 60}, {"cells": "edges"}),
    "sumo": (
        {"kind": "sumo", "columns": 3, "rows": 3, "vehicles": 60, "duration_s": 300, "interval_s": 60},
        {"cells": "edges", "edge": "nearest"},
    ),
    "mobility": ({"kind": "mobility", "devices": 40_000, "interval_s": 7200}, SQUARES),
    "mobility, edges": ({"kind": "mobility", "devices": 3_000, "start_h": 8}, {"cells": "edges"}),
    "mobility, parked": (
        {"kind": "mobility", "devices": 3_000, "parked": "place"},
        {"cells": "h3", "resolution": 8, "origin": AROUND[:2]},
    ),
    "gowalla": ({"kind": "gowalla", "places": 500}, {"cells": "none"}),
    "categories": ({"kind": "categories", "file": "table.csv"}, {"cells": "categories"}),
    "readings": ({"kind": "readings", "file": "trace.csv"}, {"cells": "cross", "of": PARTS}),
    "categories, fewer": ({"kind": "categories", "file": "table.csv", "devices": 37}, {"cells": "categories"}),
}
SEED = 20_130_411


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    (place / "trace.csv").write_text(TRACE)
    (place / "table.csv").write_text(TABLE)
    (place / "fcd.xml").write_text(FCD)
    (place / "counts.csv").write_text(COUNTS)
    return place


def marked(names: Iterable[str]) -> list[Any]:
    """Return cases as parameters: SUMO's are of `make nightly`, which installs it."""
    kinds = {name: CASES[name][0]["kind"] for name in names}
    return [pytest.param(name, marks=[pytest.mark.nightly] if kinds[name] == "sumo" else []) for name in kinds]


@pytest.fixture(scope="module", params=marked(CASES))
def case(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Population]:
    name: str = request.param
    skip_without_sumo(name)
    return name, build(*CASES[name], SEED, folder)


def skip_without_sumo(name: str) -> None:
    if CASES[name][0]["kind"] == "sumo" and find_spec("sumo") is None:
        pytest.skip("needs SUMO (`make nightly` installs it)")


def some_epochs(population: Population) -> list[int]:
    return sorted({0, min(population.epochs, 5) - 1, population.epochs - 1})


def test_every_kind_has_a_case() -> None:
    assert {population["kind"] for population, _ in CASES.values()} == set(KINDS)


def test_the_histogram_counts_the_truths_in_any_chunks(case: tuple[str, Population]) -> None:
    _, population = case
    devices = population.devices

    for epoch in some_epochs(population):
        whole = population.truths(epoch, 0, devices)
        counted = np.bincount(whole, minlength=population.question.values + 1)
        assert whole.dtype in (np.uint16, np.int32)
        assert population.histogram(epoch).dtype == np.int64
        assert counted.tolist() == population.histogram(epoch).tolist()
        for chunk, stop in ((7, 200), (1000, devices), (10**9, devices)):
            for start in range(0, min(stop, devices), chunk):
                end = min(start + chunk, devices)
                assert np.array_equal(population.truths(epoch, start, end), whole[start:end])
        assert len(population.truths(epoch, devices, devices)) == 0


def test_ignition_does_not_depend_on_the_chunks_and_is_never_on_for_one_who_is_nowhere(
    case: tuple[str, Population],
) -> None:
    name, population = case
    devices = population.devices

    for epoch in some_epochs(population):
        for round_number in (1, 2):
            whole = population.reachable(epoch, round_number, 0, devices)
            if whole is None:
                continue
            parts = [
                population.reachable(epoch, round_number, start, min(start + 999, devices))
                for start in range(0, devices, 999)
            ]
            assert whole.dtype == np.bool_
            assert np.array_equal(np.concatenate([part for part in parts if part is not None]), whole)
        on = population.reachable(epoch, 1, 0, devices)
        if on is not None and "parked" not in name:
            assert not population.truths(epoch, 0, devices)[~on].any()


def test_devices_and_epochs_that_do_not_exist_are_refused(case: tuple[str, Population]) -> None:
    _, population = case

    for start, stop in ((-1, 2), (2, 1), (0, population.devices + 1)):
        with pytest.raises(ScenarioError, match="do not exist"):
            population.truths(0, start, stop)
    if population.epochs < 2**31 - 1:
        with pytest.raises(ScenarioError, match="there is no epoch"):
            population.histogram(population.epochs)


def test_a_question_is_whole(case: tuple[str, Population]) -> None:
    name, population = case
    question = population.question
    asked, kind = CASES[name][1]["cells"], CASES[name][0]["kind"]

    assert question.values >= 1
    assert len(set(question.labels)) == question.values
    assert (question.domain is not None) == (question.values <= 4095)
    assert question.domain is None or question.domain.values == question.values
    assert question.places is None or len(question.places.outlines) == question.values
    assert (question.places is not None) == (asked in ("square", "h3") or kind in ("sumo", "mobility"))


def facts(population: Population) -> str:
    parts = [population.histogram(epoch).tolist() for epoch in some_epochs(population)]
    first = population.truths(0, 0, min(population.devices, 3000)).tolist()
    reachable = population.reachable(0, 2, 0, min(population.devices, 3000))
    return repr((population.question.labels, parts, first, None if reachable is None else reachable.tolist()))


def test_a_population_travels_to_another_process(case: tuple[str, Population]) -> None:
    _, population = case

    assert facts(pickle.loads(pickle.dumps(population))) == facts(population)


SCRIPT = """
import hashlib, sys
from pathlib import Path
from tests.simulator.populations.test_populations import CASES, SEED, facts
from fleetcount_simulator.populations import build
population = build(*CASES[sys.argv[1]], SEED, Path(sys.argv[2]))
print(hashlib.sha256(facts(population).encode()).hexdigest())
"""


def in_another_process(name: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(folder)],
        cwd=Path(__file__).parents[3],
        env={"PYTHONHASHSEED": "77", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


SEEDED = ("city, squares", "city, hot spots", "bologna, fewer", "mobility, edges", "sumo", "trace, edges")


@pytest.mark.processes
@pytest.mark.parametrize("name", marked(SEEDED))
def test_the_same_seed_gives_the_same_population_in_another_process(name: str, folder: Path) -> None:
    skip_without_sumo(name)

    here = facts(build(*CASES[name], SEED, folder))

    assert in_another_process(name, folder) == hashlib.sha256(here.encode()).hexdigest()


@pytest.mark.parametrize("name", marked(name for name in SEEDED if name != "trace, edges"))
def test_another_seed_gives_another_population(name: str, folder: Path) -> None:
    skip_without_sumo(name)

    assert facts(build(*CASES[name], SEED, folder)) != facts(build(*CASES[name], SEED + 1, folder))


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_explained(kind: str) -> None:
    assert about(kind)
    assert cells_of(kind)
    names = [key.name for key in keys_of(kind)]
    assert names[0] == "kind"
    assert len(set(names)) == len(names)
    assert all(key.about and key.example for key in keys_of(kind))
