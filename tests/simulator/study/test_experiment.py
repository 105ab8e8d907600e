"""The runner: results depend on scenario, seed and engine alone; a stopped study goes on; nothing is half written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from fleetcount_protocol.errors import MachineError
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Engine, EngineName
from fleetcount_simulator.scenario.plan import Scenario
from fleetcount_simulator.study import shards
from fleetcount_simulator.study.directory import open_study
from fleetcount_simulator.study.experiment import CaseSummary, StudySettings, run_study
from fleetcount_simulator.study.results import TABLES
from fleetcount_simulator.study.scale import Runner, ThisProcess
from fleetcount_simulator.study.shards import ShardOrder, decode_shard, run_shard, shard_sizes

from tests.simulator.scenario_doubles import REGISTRIES, SMALL, EvenPopulation, SimpleEngine, changed, scenario_of

TWO_CASES = changed(epsilon="epsilon = [1, 2]", runs="runs = 40") + "\n[epochs]\ncount = 2\n"


def quiet(phase: str, done: int, total: int) -> None:
    """Show nothing."""


def run(scenario: Scenario, output: Path, *, runner: Runner | None = None, runs: int = 40) -> list[CaseSummary]:
    settings = StudySettings(engine="exact-law", runs=runs, output=output)
    return run_study(scenario, settings, REGISTRIES, runner or ThisProcess(), quiet)


def table(output: Path, name: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        return database.execute(f"SELECT * FROM '{output / name}.parquet'").fetchall()


def tables(output: Path) -> dict[str, str]:
    """Return all tables as text: NULL and not-a-number are equal to themselves."""
    return {name: repr(table(output, name)) for name in TABLES}


def columns(output: Path, name: str) -> Mapping[str, Any]:
    with duckdb.connect() as database:
        return database.execute(f"SELECT * FROM '{output / name}.parquet'").fetchnumpy()


class Interrupted:
    """Carries out some orders, then is interrupted; counts what it was asked."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.asked = 0

    def run(self, orders: Sequence[ShardOrder]) -> Iterator[tuple[ShardOrder, bytes]]:
        self.asked = len(orders)
        for place, order in enumerate(orders):
            if place == self.after:
                raise KeyboardInterrupt
            yield order, run_shard(order)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_MOST_RUNS", 7)


def test_every_table_has_its_rows_in_order(tmp_path: Path) -> None:
    run(scenario_of(TWO_CASES), tmp_path / "out")
    releases, cells = columns(tmp_path / "out", "releases"), columns(tmp_path / "out", "cells")

    assert len(releases["run"]) == 2 * 2 * 40
    assert releases["case"].tolist() == sorted(releases["case"].tolist())
    assert releases["epoch"].tolist() == 2 * (40 * [0] + 40 * [1])
    assert releases["run"].tolist() == 4 * list(range(40))
    assert cells["value"].tolist() == 4 * [1, 2, 3]
    assert cells["label"].tolist()[:3] == ["place 1", "place 2", "place 3"]
    assert columns(tmp_path / "out", "cases")["mechanism.epsilon"].tolist() == [1.0, 2.0]
    assert len(table(tmp_path / "out", "statement")) == 2 * 6
    assert table(tmp_path / "out", "attackers") == []


def test_the_record_says_what_ran(tmp_path: Path) -> None:
    run(scenario_of(TWO_CASES), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "run.json").read_text())

    assert record["scenario"] == TWO_CASES
    assert (record["seed"], record["engine"], record["runs"], record["cases"]) == (7, "exact-law", 40, 2)
    assert record["status"] == "complete"
    assert record["axes"] == ["mechanism.epsilon"]
    assert record["version"]
    assert record["seconds"] >= 0


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_tables_and_another_one_others(tmp_path: Path) -> None:
    run(scenario_of(TWO_CASES), tmp_path / "one")
    run(scenario_of(TWO_CASES), tmp_path / "two")
    run(scenario_of(TWO_CASES.replace("seed = 7", "seed = 8")), tmp_path / "three")

    assert tables(tmp_path / "one") == tables(tmp_path / "two")
    assert tables(tmp_path / "one")["releases"] != tables(tmp_path / "three")["releases"]


def test_releases_do_not_depend_on_how_the_work_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(scenario_of(TWO_CASES), tmp_path / "whole")
    monkeypatch.setattr(shards, "_MOST_RUNS", 7)
    run(scenario_of(TWO_CASES), tmp_path / "cut")

    assert len(list((tmp_path / "cut" / "shards").iterdir())) == 12
    assert tables(tmp_path / "whole")["releases"] == tables(tmp_path / "cut")["releases"]
    whole, cut = columns(tmp_path / "whole", "cells"), columns(tmp_path / "cut", "cells")
    for name in ("estimate", "low", "coverage", "mean_estimate", "sd_estimate", "mean_width"):
        np.testing.assert_allclose(whole[name], cut[name], rtol=1e-12)


def test_cells_sum_up_what_the_engine_gave(tmp_path: Path) -> None:
    scenario = scenario_of(TWO_CASES)
    run(scenario, tmp_path / "out")
    seed = np.random.SeedSequence(7, spawn_key=(1, 1))
    estimates = 4.0 * SimpleEngine().run(scenario.case(1), 1, range(40), seed).outputs
    cells = {name: column[9:] for name, column in columns(tmp_path / "out", "cells").items()}

    np.testing.assert_allclose(cells["mean_estimate"], estimates.mean(axis=0))
    np.testing.assert_allclose(cells["sd_estimate"], estimates.std(axis=0, ddof=1))
    np.testing.assert_allclose(cells["estimate"], estimates[0])


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_study_goes_on_and_ends_in_the_same_tables(tmp_path: Path) -> None:
    first, second = Interrupted(5), Interrupted(99)
    with pytest.raises(KeyboardInterrupt):
        run(scenario_of(TWO_CASES), tmp_path / "out", runner=first)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "running"
    assert not (tmp_path / "out" / "releases.parquet").exists()

    run(scenario_of(TWO_CASES), tmp_path / "out", runner=second)
    run(scenario_of(TWO_CASES), tmp_path / "straight")

    assert (first.asked, second.asked) == (12, 7)
    assert tables(tmp_path / "out") == tables(tmp_path / "straight")


@pytest.mark.nightly
@pytest.mark.usefixtures("small_shards")
def test_more_runs_go_on_from_the_shards_that_are_there(tmp_path: Path) -> None:
    counting = Interrupted(99)
    run(scenario_of(TWO_CASES), tmp_path / "out", runs=21)
    run(scenario_of(TWO_CASES), tmp_path / "out", runs=28, runner=counting)

    assert counting.asked == 2
    assert len(table(tmp_path / "out", "releases")) == 2 * 2 * 28


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        (TWO_CASES.replace("seed = 7", "seed = 8"), "another scenario"),
        pytest.param(TWO_CASES + "\n# other\n", "another scenario", marks=pytest.mark.nightly),
    ],
)
def test_another_study_is_refused_and_nothing_changes(tmp_path: Path, text: str, differs: str) -> None:
    run(scenario_of(TWO_CASES), tmp_path / "out")
    before = tables(tmp_path / "out")

    with pytest.raises(ScenarioError, match=f"holds a study of {differs}"):
        run(scenario_of(text), tmp_path / "out")
    assert tables(tmp_path / "out") == before


def test_another_seed_engine_or_numpy_is_refused_by_name(tmp_path: Path) -> None:
    identity = {"scenario": "x", "seed": 1, "version": "1", "engine": "exact-law", "numpy": "2.4.6"}
    with open_study(tmp_path / "out", identity) as directory:
        directory.write_record(identity)
    with (
        pytest.raises(ScenarioError, match=r"another seed \(1, not 2\)"),
        open_study(tmp_path / "out", identity | {"seed": 2}),
    ):
        pass
    with (
        pytest.raises(ScenarioError, match=r"another engine \(exact-law, not network\)"),
        open_study(tmp_path / "out", identity | {"engine": "network"}),
    ):
        pass
    with (
        pytest.raises(ScenarioError, match=r"another numpy \(2.4.6, not 2.5.0\)"),
        open_study(tmp_path / "out", identity | {"numpy": "2.5.0"}),
    ):
        pass


def test_one_process_at_a_time(tmp_path: Path) -> None:
    identity = {"scenario": "x", "seed": 1, "version": "1", "engine": "exact-law", "numpy": "2.4.6"}
    with (
        open_study(tmp_path / "out", identity),
        pytest.raises(ScenarioError, match="in use"),
        open_study(tmp_path / "out", identity),
    ):
        pass


def test_who_was_killed_in_its_first_record_goes_on(tmp_path: Path) -> None:
    identity = {"scenario": "x", "seed": 1, "version": "1", "engine": "exact-law", "numpy": "2.4.6"}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".run.json.0123abcd").write_bytes(b"half")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".notes.0123abcd").write_bytes(b"of somebody else")

    with open_study(tmp_path / "out", identity) as directory:
        directory.write_record(identity)
    with pytest.raises(ScenarioError, match="holds no study"), open_study(tmp_path / "other", identity):
        pass

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "run.json", "shards"]
    assert (tmp_path / "other" / ".notes.0123abcd").read_bytes() == b"of somebody else"


def test_what_a_killed_process_left_behind_is_removed(tmp_path: Path) -> None:
    run(scenario_of(SMALL), tmp_path / "out")
    leftovers = [tmp_path / "out" / "shards" / ".case-0000.npz.0123abcd", tmp_path / "out" / ".cells.parquet.0123abcd"]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    before = tables(tmp_path / "out")
    run(scenario_of(SMALL), tmp_path / "out")

    assert not any(leftover.exists() for leftover in leftovers)
    assert tables(tmp_path / "out") == before


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")

    with pytest.raises(ScenarioError, match="not empty and holds no study"):
        run(scenario_of(SMALL), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_file_or_a_closed_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ScenarioError, match="not a directory"):
        run(scenario_of(SMALL), tmp_path / "file")
    with pytest.raises(MachineError, match="cannot be used"):
        run(scenario_of(SMALL), tmp_path / "file" / "below")


def test_a_mistake_in_the_last_case_is_found_before_anything_is_written(tmp_path: Path) -> None:
    text = SMALL + '\n[[mechanism]]\nkind = "warner"\nepsilon_local = 1\n'

    with pytest.raises(ScenarioError, match="answers yes or no"):
        run(scenario_of(text), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_of_other_data_are_refused(tmp_path: Path) -> None:
    run(scenario_of(SMALL), tmp_path / "out")
    registries = replace(REGISTRIES, population=_other_population)
    settings = StudySettings(engine="exact-law", runs=40, output=tmp_path / "out")
    other = replace(scenario_of(SMALL), make_population=_other_population)

    with pytest.raises(ScenarioError, match="made from other data"):
        run_study(other, settings, registries, ThisProcess(), quiet)


def _other_population(
    population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path
) -> EvenPopulation:
    return EvenPopulation(301)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    run(scenario_of(SMALL), tmp_path / "out")
    shard = next((tmp_path / "out" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-30])

    with pytest.raises(ScenarioError, match="is damaged"):
        run(scenario_of(SMALL), tmp_path / "out")


def test_a_case_without_a_release_has_no_numbers(tmp_path: Path) -> None:
    summary = run(scenario_of(SMALL + "\n[aggregators]\nmin_batch_size = 301\n"), tmp_path / "out")[0]

    assert (summary.releases, summary.asked) == (0, 40)
    assert np.isnan(summary.rmse)
    assert np.isnan(summary.coverage)
    assert all(row is None for row in _column(tmp_path / "out", "rmse"))


def _column(output: Path, name: str) -> list[Any]:
    with duckdb.connect() as database:
        rows = database.execute(f"SELECT \"{name}\" FROM '{output / 'releases'}.parquet'").fetchall()
    return [row[0] for row in rows]


@pytest.mark.nightly
def test_attackers_are_measured_once_a_case(tmp_path: Path) -> None:
    text = TWO_CASES + '\n[[attacker]]\nkind = "liars"\ndevices = 3\n'
    run(scenario_of(text), tmp_path / "out")

    assert table(tmp_path / "out", "attackers") == [
        (0, "liars", "liars", "runs", 40),
        (1, "liars", "liars", "runs", 40),
    ]


@pytest.mark.nightly
def test_cells_can_be_left_out(tmp_path: Path) -> None:
    run(scenario_of(SMALL + "\n[metrics]\nkeep_cells = false\n"), tmp_path / "out")

    assert table(tmp_path / "out", "cells") == []


def test_more_cells_than_a_table_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_simulator.study.experiment.MAX_CELL_ROWS", 11)
    with pytest.raises(ScenarioError, match=r"cells of all cases are 12 rows; set metrics\.keep_cells"):
        run(scenario_of(TWO_CASES), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class WrongShapes(SimpleEngine):
    """Gives a number too few."""

    def run(self, case: Any, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> Any:
        right = super().run(case, epoch, runs, seed)
        return replace(right, counted=right.counted[:, 1:])


def _wrong_engine(name: EngineName) -> Engine:
    return WrongShapes()


def test_an_engine_that_gives_wrong_shapes_is_caught(tmp_path: Path) -> None:
    registries = replace(REGISTRIES, engine=_wrong_engine)
    settings = StudySettings(engine="exact-law", runs=3, output=tmp_path / "out")

    with pytest.raises(ScenarioError, match="the engine gave"):
        run_study(scenario_of(SMALL), settings, registries, ThisProcess(), quiet)


def test_the_cut_depends_on_case_and_engine_alone() -> None:
    assert shard_sizes("exact-law", 100, 10**9, 1000) == [(0, 1000)]
    assert shard_sizes("exact-law", 1000, 10**9, 700) == [(0, 261), (261, 261), (522, 178)]
    assert shard_sizes("exact-law", 5835, 10**9, 50) == [(0, 44), (44, 6)]
    assert shard_sizes("per-device", 100, 10**7, 3) == [(0, 2), (2, 1)]
    assert shard_sizes("per-device", 100, 10**8, 2) == [(0, 1), (1, 1)]
    assert shard_sizes("network", 9, 1000, 2) == [(0, 1), (1, 1)]


def test_a_result_is_read_back_as_it_was() -> None:
    text = SMALL + '\n[[attacker]]\nkind = "liars"\ndevices = 3\n'
    order = ShardOrder(
        text=text, file="a", folder="/", seed=1, engine="exact-law", case=0, first_run=0, runs=5, registries=REGISTRIES
    )
    result = decode_shard(run_shard(order))

    assert result.releases["run"].tolist() == [0, 1, 2, 3, 4]
    assert result.attackers[0]["trials"] == 5
    assert result.cells[0].releases.tolist() == [5]
