"""The tables of a finished study, from the results of its shards: Parquet that DuckDB or pandas read, CSV on demand.

    cases       a row for each case: every axis, the mechanism and its parameters, devices, values
    releases    for each run of a case at an epoch: the columns of `scores`, and the engine's tallies
    numbers     for each number that one of a case's first releases shows: of the fleet, estimate and interval
    cells       for each value of a case at an epoch: truth, the first run's estimate, coverage over the runs
    attackers   for each measurement of an attacker of a case: the columns of `attackers`
    statement   for each adversary of a case: text, epsilon and delta of one release and of all
    places      for each value that has a place: its outline; cases that ask about the same places share their rows
    rules       for each rule of accounting and number of windows: the noise that the first question's promise needs

It adds up and writes; `scores` does the scoring. Rows are in the order of cases, epochs, runs and values, so that they
do not depend on the division of the work. Missing numbers are NULL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from fleetcount_analysis.csv_texts import csv_cell
from fleetcount_analysis.parquet_files import open_database, written_path
from fleetcount_protocol.window.domain import Numbers
from fleetcount_transport.toml_values import exact_number
from numpy.typing import NDArray

from fleetcount_simulator.model import Case, Places, Row
from fleetcount_simulator.rounding import fleet_truth
from fleetcount_simulator.study.directory import StudyDirectory
from fleetcount_simulator.study.numbers import number_name
from fleetcount_simulator.study.scores import Cells
from fleetcount_simulator.study.shards import ShardResult
from fleetcount_simulator.study.statements import Statement

Columns = dict[str, NDArray[Any]]

TABLES: Final = ("cases", "releases", "numbers", "cells", "attackers", "statement", "places", "rules")


class TableWriter:
    """Writes tables into a study's directory, each whole or not at all; `csv` adds a CSV file beside each."""

    def __init__(self, directory: StudyDirectory, *, csv: bool) -> None:
        self._directory = directory
        self._csv = csv

    def write(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write NAME.parquet, and NAME.csv with `csv`.

        Raises:
            MachineError: the file cannot be written.
        """
        with open_database() as database:
            database.register("made", dict(columns))
            with self._directory.appearing(f"{name}.parquet") as path:
                database.execute(f"COPY made TO {written_path(path)} (FORMAT parquet)")
            if self._csv:
                database.register("cells", {one: _csv_column(column) for one, column in columns.items()})
                with self._directory.appearing(f"{name}.csv") as path:
                    database.execute(f"COPY cells TO {written_path(path)} (FORMAT csv, HEADER)")


def _csv_column(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind not in "OU":
        return column
    return np.array([csv_cell(one) for one in column.tolist()], dtype=object)


def joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> Columns:
    """Return the columns of several parts one below the other; a tally that a part does not have is 0 in its rows."""
    names = dict.fromkeys(name for part in parts for name in part)
    rows = [len(next(iter(part.values()))) for part in parts]
    return {
        name.removeprefix("tally:"): np.concatenate(
            [part.get(name, np.zeros(count, dtype=np.int64)) for part, count in zip(parts, rows, strict=True)]
        )
        for name in names
    }


def row_columns(rows: Sequence[Row], first: Sequence[str]) -> Columns:
    """Return rows as columns, `first` in front; a column is of numbers, of true and false, or of texts.

    Without rows the result has the columns `first`, and they are empty.
    """
    names = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: Sequence[object]) -> NDArray[Any]:
    """Return one column; None is NULL."""
    missing = [value is None for value in values]
    types = {type(value) for value in values if value is not None}
    if types <= {bool}:
        return np.array(values, dtype=object)
    if types <= {int}:
        filled = [0 if value is None else value for value in values]
        return np.ma.MaskedArray(np.array(filled, dtype=np.int64), mask=missing)
    if types <= {int, float}:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([None if value is None else str(value) for value in values], dtype=object)


# Cases and statements.


def case_columns(cases: Sequence[Case], axes: Sequence[str]) -> Columns:
    """Return the cases table. An axis is a column of numbers when all its values are, otherwise of texts."""
    rows: list[dict[str, Any]] = [
        _case_row(case) | {"places": number} for case, number in zip(cases, place_numbers(cases), strict=True)
    ]
    columns = row_columns(rows, ())
    for axis in axes:
        columns[axis] = _axis([case.point.get(axis) for case in cases])
    ordered = ("case", *axes, *(name for name in columns if name != "case" and name not in axes))
    return {name: columns[name] for name in ordered}


def _axis(values: Sequence[str | None]) -> NDArray[Any]:
    numbers = [None if value is None else exact_number(value) for value in values]
    if all((number is None) == (value is None) for number, value in zip(numbers, values, strict=True)):
        return np.array([np.nan if number is None else float(number) for number in numbers], dtype=np.float64)
    return np.array(values, dtype=object)


def case_name(case: Case) -> str:
    """Return the name of a case: its mechanism, then every axis without its section, with its value."""
    return " ".join([case.mechanism.name, *(f"{axis.partition('.')[2]}={text}" for axis, text in case.point.items())])


def _case_row(case: Case) -> dict[str, Any]:
    made, population, question = case.mechanism, case.population, case.epochs.question
    return {
        "case": case.index,
        "name": case_name(case),
        "mechanism": made.name,
        "kind": made.kind,
        "sampling_rate": _float(made.sampling_rate),
        "noise_epsilon": _float(made.noise_epsilon),
        "noise_variance": _float(made.noise_variance),
        "epsilon_local": _float(made.epsilon_local),
        "question": population.question.title,
        "devices": population.devices,
        "values": population.question.values,
        "aggregators": case.aggregators,
        "min_batch_size": case.min_batch_size,
        "epochs": case.epochs.count,
        "coin": None if question is None else question.coin.name.lower(),
        "level": float(case.level),
    }


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def statement_columns(statements: Iterable[tuple[int, Sequence[Statement]]]) -> Columns:
    """Return the statement table: the bounds of one release, and of all that a device answers."""
    rows: list[Row] = [
        {
            "case": case,
            "adversary": one.adversary,
            "audience": one.audience,
            "text": one.text,
            "epsilon": None if one.epsilon is None else float(one.epsilon),
            "delta": float(one.delta),
            "releases": one.releases,
            "total_epsilon": None if one.total_epsilon is None else float(one.total_epsilon),
            "total_delta": float(one.total_delta),
        }
        for case, each in statements
        for one in each
    ]
    return row_columns(rows, ())


# Places.


def place_numbers(cases: Sequence[Case]) -> list[int | None]:
    """Return the number of each case's places, from 0 in order of appearance; None for values without a place."""
    numbers: dict[object, int] = {}
    known: dict[int, int] = {}
    found: list[int | None] = []
    for case in cases:
        question = case.population.question
        places = question.places
        if places is None:
            found.append(None)
            continue
        # Equal objects have equal places; the corners are compared only for questions that were made twice.
        if id(question) not in known:
            content = (question.labels, places.unit, places.lines, places.outlines)
            known[id(question)] = numbers.setdefault(content, len(numbers))
        found.append(known[id(question)])
    return found


def place_columns(cases: Sequence[Case]) -> Columns:
    """Return the places table: every value's label, and its outline as well-known text with corners in `unit`.

    `places` is the number that the cases table gives.
    """
    asked = {
        number: case.population.question
        for case, number in zip(cases, place_numbers(cases), strict=True)
        if number is not None
    }
    rows: list[Row] = [
        {"places": number, "value": value, "label": label, "unit": places.unit, "outline": _outline(corners, places)}
        for number, question in sorted(asked.items())
        if (places := question.places) is not None
        for value, (label, corners) in enumerate(zip(question.labels, places.outlines, strict=True), start=1)
    ]
    return row_columns(rows, ("places", "value", "label", "unit", "outline"))


def _outline(corners: Sequence[tuple[float, float]], places: Places) -> str:
    """Return LINESTRING(x y, x y), or POLYGON((...)) with the first corner again at the end."""
    if places.lines or len(corners) == 2:
        return f"LINESTRING({_corners(corners)})"
    return f"POLYGON(({_corners([*corners, corners[0]])}))"


def _corners(corners: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{float(x)!r} {float(y)!r}" for x, y in corners)


# Numbers.


def number_columns(case: Case, columns: Mapping[str, NDArray[Any]]) -> Columns:
    """Return the numbers that a case's releases show, from the columns of `numbers.shown_numbers`."""
    names, domain = [number_name(q) for q in columns["q"].tolist()], case.population.question.domain
    unit = domain.unit if isinstance(domain, Numbers) else ""
    return {
        "case": np.full(len(names), case.index, dtype=np.int64),
        "run": columns["run"],
        "epoch": columns["epoch"],
        "what": np.array(names, dtype=object),
        "unit": np.array([unit] * len(names), dtype=object),
        **{name: columns[name] for name in ("q", "fleet", "estimate", "low", "high")},
    }


# Cells.


def cell_columns(case: Case, results: Sequence[ShardResult]) -> Columns:
    """Return the cells of one case: every epoch, every value, sums of all shards turned into means."""
    return joined(
        [_epoch_cells(case, epoch, [one.cells[epoch] for one in results]) for epoch in range(case.epochs.count)]
    )


def _epoch_cells(case: Case, epoch: int, parts: Sequence[Cells]) -> Columns:
    labels, truth = case.population.question.labels, fleet_truth(case.population, epoch)[1:]
    total = _added(parts, lambda one: one.releases)[0]
    deviation, squares = _added(parts, lambda one: one.deviation), _added(parts, lambda one: one.squares)
    first = parts[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = deviation / total
        variance = np.maximum(squares - deviation * mean, 0) / (total - 1)
        columns: Columns = {
            "case": np.full(len(truth), case.index, dtype=np.int64),
            "epoch": np.full(len(truth), epoch, dtype=np.int64),
            "value": np.arange(1, len(truth) + 1, dtype=np.int64),
            "label": np.array(labels, dtype=object),
            "truth": truth,
            "counted": first.first_counted[0],
            "estimate": _first(first, first.first_estimate),
            "low": _first(first, first.first_low),
            "high": _first(first, first.first_high),
            "coverage": _added(parts, lambda one: one.inside) / total,
            "coverage_fleet": _added(parts, lambda one: one.inside_fleet) / total,
            "mean_estimate": truth + mean,
            "sd_estimate": np.sqrt(variance) if total > 1 else np.full(len(truth), np.nan),
            "mean_width": _added(parts, lambda one: one.width) / total,
        }
    return columns


def _added(parts: Sequence[Cells], field: Callable[[Cells], NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(sum(field(part) for part in parts))


def _first(cells: Cells, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return run 0's numbers, nan where it was not released."""
    return np.asarray(np.where(cells.first_shown[0], rows[0], np.nan), dtype=np.float64)
