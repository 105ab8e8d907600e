"""Runs a study: divides it into shards, runs these, stores each result, and writes the tables at the end.

It decides the order of the work and the place of its results; `shards` does one shard, `scale` chooses the processes.
"""

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, EngineName
from fleetcount_simulator.scenario.plan import Scenario
from fleetcount_simulator.study import results
from fleetcount_simulator.study.directory import StudyDirectory, open_study
from fleetcount_simulator.study.numbers import NumberSummary, number_summaries
from fleetcount_simulator.study.rules import rule_rows
from fleetcount_simulator.study.scale import Runner
from fleetcount_simulator.study.shards import (
    Registries,
    ShardOrder,
    ShardResult,
    case_digest,
    decode_shard,
    shard_sizes,
)
from fleetcount_simulator.study.statements import Statement, statement_of

MAX_CELL_ROWS: Final = 5_000_000


class Step(Protocol):
    """A callback for progress: `done` of `total` in a phase."""

    def __call__(self, phase: str, done: int, total: int, /) -> None:
        """Show it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """The settings beside the scenario: engine, runs per case, output directory, whether to write CSV too, command."""

    engine: EngineName
    runs: int
    output: Path
    csv: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSummary:
    """A summary of a case: means over its releases, errors and widths in devices; nan where nothing was released.

    `numbers` are those that its releases show.
    """

    name: str
    releases: int
    asked: int
    rmse: float
    bias_fleet: float
    coverage: float
    coverage_fleet: float
    mean_width: float
    statement: tuple[Statement, ...]
    numbers: tuple[NumberSummary, ...] = ()


def run_study(
    scenario: Scenario, settings: StudySettings, registries: Registries, runner: Runner, step: Step
) -> list[CaseSummary]:
    """Run the shards that are not finished, write every table, and return one summary per case.

    An interrupted study continues with its unfinished shards: the output directory has the others. Nothing is written
    before all cases and their populations have been made once.

    Raises:
        ScenarioError: a case cannot be made or run, or the output directory is not this study's.
        ProcessError: a worker died.
        MachineError: the results cannot be written.
    """
    started = time.monotonic()
    prepared = _prepared(scenario, settings, registries, step)
    identity = {
        "scenario": scenario.text,
        "seed": scenario.seed,
        "version": importlib.metadata.version("fleetcount"),
        "engine": settings.engine,
        "numpy": np.__version__,
    }
    with open_study(settings.output, identity) as directory:
        record = identity | _circumstances(scenario, settings)
        directory.write_record(record | {"status": "running"})
        _carry_out(directory, prepared, runner, step)
        summaries = _write_tables(directory, scenario, prepared, settings, step)
        seconds = round(time.monotonic() - started, 3)
        directory.write_record(record | {"status": "complete", "seconds": seconds})
    return summaries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prepared:
    """A case that has been made once without an error: its digest, its statement and its orders."""

    index: int
    digest: str
    statement: tuple[Statement, ...]
    orders: tuple[ShardOrder, ...]


def _prepared(scenario: Scenario, settings: StudySettings, registries: Registries, step: Step) -> list[_Prepared]:
    """Make every case once, so that a mistake in the last one is found before the first one runs."""
    found: list[_Prepared] = []
    rows = 0
    for index, plan in enumerate(scenario.plans):
        step("preparing cases", index, len(scenario.plans))
        case = scenario.case(index)
        values, devices = case.population.question.values, case.population.devices
        rows += values * case.epochs.count if plan.keep_cells else 0
        orders = tuple(
            ShardOrder(
                text=scenario.text,
                file=scenario.file,
                folder=str(scenario.folder),
                seed=scenario.seed,
                engine=settings.engine,
                case=index,
                first_run=first,
                runs=runs,
                registries=registries,
            )
            for first, runs in shard_sizes(settings.engine, values, devices, settings.runs)
        )
        found.append(_Prepared(index=index, digest=case_digest(case), statement=statement_of(case), orders=orders))
    if rows > MAX_CELL_ROWS:
        raise ScenarioError(f"{scenario.file}: the cells of all cases are {rows} rows; set metrics.keep_cells = false")
    step("preparing cases", len(scenario.plans), len(scenario.plans))
    return found


def _circumstances(scenario: Scenario, settings: StudySettings) -> dict[str, Any]:
    """Return the fields of the record that do not identify the study: its names, sizes, start and machine."""
    return {
        "name": scenario.name,
        "title": scenario.title,
        "file": scenario.file,
        "runs": settings.runs,
        "cases": len(scenario.plans),
        "axes": list(scenario.axes),
        "command": list(settings.command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }


def _carry_out(directory: StudyDirectory, prepared: Sequence[_Prepared], runner: Runner, step: Step) -> None:
    """Run every shard without a stored result."""
    orders = [order for case in prepared for order in case.orders]
    missing = [order for order in orders if directory.shard(order.name) is None]
    done = len(orders) - len(missing)
    step("simulating", done, len(orders))
    for order, content in runner.run(missing) if missing else ():
        directory.keep_shard(order.name, content)
        done += 1
        step("simulating", done, len(orders))


def _results_of(directory: StudyDirectory, case: _Prepared) -> list[ShardResult]:
    """Return a case's results in the order of its runs."""
    found: list[ShardResult] = []
    for order in case.orders:
        content = directory.shard(order.name)
        result = None if content is None else decode_shard(content)
        if result is None or result.digest != case.digest:
            raise ScenarioError(
                f"output {directory.path}: shard {order.name} was made from other data; choose a new directory"
            )
        found.append(result)
    return found


def _write_tables(
    directory: StudyDirectory, scenario: Scenario, prepared: Sequence[_Prepared], settings: StudySettings, step: Step
) -> list[CaseSummary]:
    """Write the tables, reading the shards of one case at a time; return the summaries."""
    releases: list[Mapping[str, NDArray[Any]]] = []
    numbers: list[Mapping[str, NDArray[Any]]] = []
    cells: list[Mapping[str, NDArray[Any]]] = []
    attackers: list[Mapping[str, Any]] = []
    cases: list[Case] = []
    summaries: list[CaseSummary] = []
    for one, plan in zip(prepared, scenario.plans, strict=True):
        step("writing tables", one.index, len(prepared))
        case, shards = scenario.case(one.index), _results_of(directory, one)
        releases_by_shard = results.joined([shard.releases for shard in shards])
        order = np.lexsort((releases_by_shard["run"], releases_by_shard["epoch"]))  # by epoch, then by run
        columns = {name: column[order] for name, column in releases_by_shard.items()}
        number = np.full(len(columns["run"]), one.index, dtype=np.int64)
        releases.append({"case": number} | columns)
        shown = results.joined([shard.numbers for shard in shards])
        numbers.append(results.number_columns(case, shown))
        attackers += [{"case": one.index, **row} for shard in shards for row in shard.attackers]
        if plan.keep_cells:
            cells.append(results.cell_columns(case, shards))
        cases.append(case)
        summaries.append(_summary(case, columns, shown, one.statement))
    writer = results.TableWriter(directory, csv=settings.csv)
    for name, made in (
        ("cases", results.case_columns(cases, scenario.axes)),
        ("releases", results.joined(releases)),
        ("numbers", results.joined(numbers)),
        (
            "cells",
            results.joined(cells)
            if cells
            else results.row_columns((), ("case", "epoch", "value", "truth", "estimate")),
        ),
        ("attackers", results.row_columns(attackers, ("case", "attacker", "kind", "measure"))),
        ("statement", results.statement_columns((one.index, one.statement) for one in prepared)),
        ("places", results.place_columns(cases)),
        ("rules", results.row_columns(next(filter(None, map(rule_rows, cases)), ()), ("rule", "windows", "sd"))),
    ):
        writer.write(name, made)
    step("writing tables", len(prepared), len(prepared))
    return summaries


def _summary(
    case: Case,
    columns: Mapping[str, NDArray[Any]],
    numbers: Mapping[str, NDArray[Any]],
    statement: tuple[Statement, ...],
) -> CaseSummary:
    shown = columns["released"]

    def mean(name: str) -> float:
        return float(np.mean(columns[name][shown])) if shown.any() else float("nan")

    return CaseSummary(
        name=results.case_name(case),
        releases=int(shown.sum()),
        asked=len(shown),
        rmse=float(np.sqrt(np.mean(columns["rmse"][shown] ** 2))) if shown.any() else float("nan"),
        bias_fleet=mean("bias_fleet"),
        coverage=mean("coverage"),
        coverage_fleet=mean("coverage_fleet"),
        mean_width=mean("mean_width"),
        statement=statement,
        numbers=number_summaries(case, numbers),
    )
