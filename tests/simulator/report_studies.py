"""Made-up studies for tests of the report: tables of any size, written as a study writes them, from a fixed seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fleetcount_simulator.study.directory import StudyDirectory
from fleetcount_simulator.study.results import TABLES, TableWriter, row_columns

SCENARIO = """# What this made-up study is for.
name = "made-up"

[faults]
drop_out = [0, "1/100"]
"""


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """A study to be written: every case has `runs` releases an epoch of `values` cells, around true counts of 100."""

    title: str = "A made-up study"
    axes: tuple[str, ...] = ()
    points: Sequence[dict[str, float | str]] = ({},)
    mechanisms: tuple[str, ...] = ("sampling",)
    labels: tuple[str, ...] = ("north", "east", "south", "west")
    runs: int = 20
    epochs: int = 1
    released: bool = True
    share_inside: float = 0.95
    shift: float = 0.0
    attackers: tuple[dict[str, Any], ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    numbers: tuple[dict[str, Any], ...] = ()
    outlines: tuple[str, ...] = ()
    unit: str = "m"
    keep_cells: bool = True
    below_noise: tuple[str, ...] = ()
    status: str = "complete"
    scenario: str = SCENARIO


def attack(**changes: Any) -> dict[str, Any]:
    """Return a row of an attacker who guesses right in 60 of 100 games where 73 % are allowed."""
    plain = {
        "case": 0,
        "attacker": "known-others",
        "kind": "known-others",
        "measure": "guess_rate",
        "target": "value 1 or value 2",
        "epoch": None,
        "questions": 1,
        "trials": 100,
        "measured": 0.60,
        "low": 0.50,
        "high": 0.70,
        "theory": 0.58,
        "bound": 0.73,
        "within": True,
    }
    return plain | changes


def write_study(directory: Path, study: MadeUp) -> Path:
    """Write run.json and every table of the study into a new directory."""
    directory.mkdir()
    target = StudyDirectory(directory)
    generator = np.random.default_rng(20)
    cases = [(point, mechanism) for point in study.points for mechanism in study.mechanisms]
    tables = {
        "cases": [_case(study, index, point, mechanism) for index, (point, mechanism) in enumerate(cases)],
        "releases": [
            _release(study, case, epoch, run, generator)
            for case in range(len(cases))
            for epoch in range(study.epochs)
            for run in range(study.runs)
        ],
        "cells": _cells(study, len(cases), generator) if study.keep_cells else [],
        "attackers": list(study.attackers),
        "statement": [_statement(case) for case in range(len(cases))],
        "places": [
            {"places": 0, "value": value, "label": study.labels[value - 1], "unit": study.unit, "outline": outline}
            for value, outline in enumerate(study.outlines, start=1)
        ],
        "rules": list(study.rules),
        "numbers": list(study.numbers),
    }
    writer = TableWriter(target, csv=False)
    for name in TABLES:
        first = {
            "cells": ("case", "epoch", "value", "truth", "estimate"),
            "attackers": ("case", "attacker", "kind", "measure"),
            "places": ("places", "value", "label", "unit", "outline"),
            "rules": ("rule", "windows", "sd"),
            "numbers": ("case", "run", "epoch", "what", "unit", "q", "fleet", "estimate", "low", "high"),
        }
        writer.write(name, row_columns(tables[name], first.get(name, ())))
    write_record(directory, study, len(cases))
    return directory


def write_record(directory: Path, study: MadeUp, cases: int) -> None:
    """Write run.json alone."""
    StudyDirectory(directory).write_record(
        {
            "scenario": study.scenario,
            "seed": 20,
            "version": "0.1.0",
            "engine": "exact-law",
            "name": "made-up",
            "title": study.title,
            "file": "made-up.toml",
            "runs": study.runs,
            "cases": cases,
            "axes": list(study.axes),
            "command": ["simulate", "made-up.toml"],
            "started": "2026-01-02T03:04:05+00:00",
            "machine": {"system": "Linux", "processor": "x86_64", "cores": 2, "python": "3.11", "numpy": "2.4"},
            "status": study.status,
            "seconds": 1.5,
        }
    )


def _case(study: MadeUp, index: int, point: dict[str, float | str], mechanism: str) -> dict[str, Any]:
    words = " ".join(
        f"{axis.partition('.')[2]}={value:g}" if isinstance(value, float) else f"{axis.partition('.')[2]}={value}"
        for axis, value in point.items()
    )
    return {
        "case": index,
        **{axis: point.get(axis) for axis in study.axes},
        "name": f"{mechanism} {words}".strip(),
        "mechanism": mechanism,
        "kind": "sampling",
        "question": "In which part are you?",
        "devices": int(point.get("population.devices", 500)),
        "values": len(study.labels),
        "aggregators": 2,
        "level": 0.95,
        "places": 0 if study.outlines else None,
    }


def _release(study: MadeUp, case: int, epoch: int, run: int, generator: np.random.Generator) -> dict[str, Any]:
    cells = len(study.labels)
    inside = generator.binomial(cells, study.share_inside) / cells
    error = float(generator.uniform(8, 12)) * (1 + case)
    numbers = {
        "rmse": error,
        "rmse_fleet": error,
        "mean_abs_error": 0.8 * error,
        "max_abs_error": 2 * error,
        "bias": float(generator.normal(study.shift, 1)),
        "bias_fleet": float(generator.normal(study.shift, 1)),
        "coverage": inside,
        "coverage_fleet": inside,
        "mean_width": 4 * error,
    }
    return {
        "case": case,
        "run": run,
        "epoch": epoch,
        "released": study.released,
        "cells": cells,
        "participants": 490,
        **(numbers if study.released else dict.fromkeys(numbers, float("nan"))),
        "lost": 10,
        "counted_twice": 0,
    }


def _cells(study: MadeUp, cases: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for case in range(cases):
        for epoch in range(study.epochs):
            for value, label in enumerate(study.labels, start=1):
                estimate = 100 + float(generator.integers(-20, 20)) if study.released else float("nan")
                low, high = estimate - 20, estimate + 20
                if label in study.below_noise:
                    estimate, low, high = -16.0, 0.0, 0.0
                rows.append(
                    {
                        "case": case,
                        "epoch": epoch,
                        "value": value,
                        "label": label,
                        "truth": 100 + value % 50,
                        "estimate": estimate,
                        "low": low,
                        "high": high,
                    }
                )
    return rows


def _statement(case: int) -> dict[str, Any]:
    return {
        "case": case,
        "adversary": "public_and_broker",
        "audience": "everyone who reads the release",
        "text": "sees the released counts; epsilon 1.",
        "epsilon": 1.0 + 0.5 * case,
        "delta": 0.0,
        "releases": 1,
        "total_epsilon": 1.0 + 0.5 * case,
        "total_delta": 0.0,
    }
