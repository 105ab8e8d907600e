"""Scale-out: a pool of processes and a Dask cluster give the tables of one process, bit for bit."""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleetcount_simulator.errors import ProcessError, ScenarioError
from fleetcount_simulator.study import shards
from fleetcount_simulator.study.experiment import StudySettings, run_study
from fleetcount_simulator.study.scale import DaskCluster, Runner, ThisProcess, WorkerPool
from fleetcount_simulator.study.shards import Registries

from tests.simulator.scenario_doubles import REGISTRIES, EvenPopulation, changed, scenario_of
from tests.simulator.study.test_experiment import quiet, tables

pytestmark = pytest.mark.processes

STUDY = changed(epsilon="epsilon = [1, 2, 3]") + '\n[[attacker]]\nkind = "liars"\ndevices = 1\n'


def run(output: Path, runner: Runner, registries: Registries = REGISTRIES) -> dict[str, str]:
    scenario = scenario_of(STUDY)
    run_study(scenario, StudySettings(engine="exact-law", runs=600, output=output), registries, runner, quiet)
    return tables(output)


def test_a_pool_of_processes_gives_the_same_tables(tmp_path: Path) -> None:
    assert run(tmp_path / "pool", WorkerPool(2)) == run(tmp_path / "here", ThisProcess())


@pytest.fixture
def cluster() -> Iterator[str]:
    """A Dask cluster of two worker processes on this machine, on free ports."""
    distributed = pytest.importorskip("distributed", reason="needs Dask (`make nightly` installs it)")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as started:
        yield started.scheduler_address


@pytest.mark.nightly
def test_a_dask_cluster_gives_the_same_tables(tmp_path: Path, cluster: str) -> None:
    assert run(tmp_path / "dask", DaskCluster(cluster)) == run(tmp_path / "here", ThisProcess())


@pytest.mark.nightly
def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs Dask (`make nightly` installs it)")
    monkeypatch.setattr("fleetcount_simulator.study.scale._CONNECT_S", 1)

    with pytest.raises(ProcessError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        run(tmp_path / "dask", DaskCluster("tcp://127.0.0.1:1"))


def _dying_population(
    population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path
) -> EvenPopulation:
    os._exit(3)


@pytest.mark.nightly  # What a pool is made of says so in `test_processes`.
def test_a_worker_that_dies_is_an_error_not_a_wait(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="a worker process died"):
        run(tmp_path / "out", WorkerPool(2), replace(REGISTRIES, population=_dying_population))


def _refusing_population(
    population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path
) -> EvenPopulation:
    raise ScenarioError("population.file: not found here")


@pytest.mark.parametrize("runner", [ThisProcess(), WorkerPool(1)])
def test_a_refusal_in_a_worker_arrives_as_it_was_said(tmp_path: Path, runner: Runner) -> None:
    with pytest.raises(ScenarioError, match=r"study\.toml line \d+: population\.file: not found here"):
        run(tmp_path / "out", runner, replace(REGISTRIES, population=_refusing_population))


def _population_where_interrupts_are_ignored(
    population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path
) -> EvenPopulation:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise ScenarioError("population.kind: this worker would be torn apart by Ctrl-C")
    return EvenPopulation(100)


def test_workers_leave_ctrl_c_to_the_command() -> None:
    registries = replace(REGISTRIES, population=_population_where_interrupts_are_ignored)
    order = shards.ShardOrder(
        text=STUDY, file="a", folder="/", seed=1, engine="exact-law", case=0, first_run=0, runs=1, registries=registries
    )

    assert len(list(WorkerPool(1).run([order]))) == 1


def test_a_worker_with_another_numpy_draws_nothing() -> None:
    order = shards.ShardOrder(
        text=STUDY, file="a", folder="/", seed=1, engine="exact-law", case=0, first_run=0, runs=1, registries=REGISTRIES
    )

    assert shards.run_shard(order)
    with pytest.raises(ScenarioError, match=r"a worker has NumPy \d+\.\d+\.\d+; allowed is 1\.0\.0, as where"):
        shards.run_shard(replace(order, numpy="1.0.0"))


@pytest.mark.nightly  # The tables made of them are the same above.
def test_shards_are_the_same_bytes_wherever_they_run() -> None:
    scenario = scenario_of(STUDY)
    order = shards.ShardOrder(
        text=scenario.text,
        file="a",
        folder="/",
        seed=1,
        engine="exact-law",
        case=1,
        first_run=3,
        runs=5,
        registries=REGISTRIES,
    )
    here = dict(ThisProcess().run([order]))[order]

    assert dict(WorkerPool(1).run([order]))[order] == here
