"""The data of a report: the record and the tables of a study, read with DuckDB and summed up by case.

It only reads. No other module computes error bars. Releases stay in DuckDB (there may be two million): it returns sums
by case and by epoch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import duckdb
from fleetcount_analysis.figures.charts import Measure
from fleetcount_analysis.parquet_files import open_database, rows_of

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.study.directory import StudyDirectory

Z95: Final = 1.959963984540054
LEAST_INTERVALS: Final = 40
MOST_DOTS: Final = 120
"""A line of more epochs than this is averaged over groups of epochs, so that it can be read."""
_NEEDED: Final = ("cases", "releases", "cells", "attackers", "statement")

_BY_CASE: Final = """
    SELECT "case", {extra} count(*) AS asked, count(*) FILTER (WHERE released) AS released, max(cells) AS cells,
      avg(participants) AS participants, max(max_abs_error) FILTER (WHERE released) AS worst,
      avg(mean_width) FILTER (WHERE released) AS width,
      avg(rmse * rmse) FILTER (WHERE released) AS square, stddev_samp(rmse * rmse) FILTER (WHERE released) AS square_sd,
      avg(rmse_fleet * rmse_fleet) FILTER (WHERE released) AS square_fleet,
      stddev_samp(rmse_fleet * rmse_fleet) FILTER (WHERE released) AS square_fleet_sd,
      {means}
    FROM {releases} GROUP BY "case" {group} ORDER BY "case" {group}
"""
_NUMBERS: Final = """
    SELECT "case", what, any_value(unit) AS unit, avg(fleet) AS fleet, avg(estimate) AS mean_estimate,
      sqrt(avg((estimate - fleet) * (estimate - fleet))) AS error, avg(high - low) AS width,
      arg_min(estimate, run * 1000000 + epoch) AS estimate, arg_min(low, run * 1000000 + epoch) AS low,
      arg_min(high, run * 1000000 + epoch) AS high, count(*) AS intervals,
      count(*) FILTER (WHERE low <= fleet AND fleet <= high) AS holding
    FROM {numbers} GROUP BY "case", what ORDER BY "case", min(q)
"""
_MEANS: Final = ("bias", "bias_fleet", "coverage", "coverage_fleet")
_SCORES: Final = frozenset(
    {"case", "run", "epoch", "released", "cells", "participants", "mean_abs_error", "max_abs_error", "mean_width"}
    | {"rmse", "rmse_fleet", *_MEANS}
)


NOTHING: Final = Measure(math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A case and its results. Errors, biases and widths in devices of a cell; an epsilon is None where it is not
    finite.

    `error`, `bias`, `coverage` are against the devices counted, `_fleet` against all devices. `mean_truth` is the mean
    count of a cell, nan without the cells table. `tallies` are sums over all releases.
    """

    index: int
    name: str
    mechanism: str
    kind: str
    question: str
    devices: int
    values: int
    aggregators: int
    level: float
    point: Mapping[str, float | str | None]
    places: int | None = None
    asked: int = 0
    released: int = 0
    error: Measure = NOTHING
    error_fleet: Measure = NOTHING
    bias: Measure = NOTHING
    bias_fleet: Measure = NOTHING
    coverage: Measure = NOTHING
    coverage_fleet: Measure = NOTHING
    width: float = math.nan
    worst: float = math.nan
    participants: float = math.nan
    mean_truth: float = math.nan
    epsilon: float | None = None
    total_epsilon: float | None = None
    delta: float = 0.0
    total_delta: float = 0.0
    answered: int = 1
    tallies: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def judged(self) -> bool:
        """Whether there are enough intervals to see how often they hold the truth."""
        return self.released * self.values >= LEAST_INTERVALS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Study:
    """All data of a report: record, axes that were swept, cases, epochs, statements, attackers, rules of noise, and the
    numbers that releases show, summed up by case.

    `epochs` has sums of `epoch_step` epochs each, empty where every question is asked once.
    """

    record: Mapping[str, Any]
    axes: tuple[str, ...]
    cases: tuple[CaseResult, ...]
    epochs: Mapping[int, Sequence[Mapping[str, Any]]] = field(repr=False)
    statements: Sequence[Mapping[str, Any]] = field(repr=False)
    attackers: Sequence[Mapping[str, Any]] = field(repr=False)
    rules: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    numbers: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    epoch_step: int = 1

    @property
    def complete(self) -> bool:
        """Whether the study has finished."""
        return self.record.get("status") == "complete"


class Tables:
    """The tables of one study directory, asked in SQL; a name in braces is a table: `SELECT * FROM {cells}`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database = open_database("2GB")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def has(self, name: str) -> bool:
        """Return whether the study has a table."""
        return (self._directory / f"{name}.parquet").is_file()

    def rows(self, query: str, values: Sequence[object] = (), **parts: str) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries; `values` replace its question marks, `parts` its names in braces.

        Raises:
            ScenarioError: a table cannot be read or lacks a column.
        """
        sources = {name: self._source(name) for name in (*_NEEDED, "numbers", "places", "rules")}
        try:
            found = self._database.execute(query.format(**sources, **parts), list(values))
            names = [str(column[0]) for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            raise ScenarioError(f"output {self._directory}: its tables cannot be read: {first}") from error

    def columns(self, name: str) -> dict[str, list[Any]]:
        """Return a whole table by columns, in the order of its rows; a null is None.

        Raises:
            ScenarioError: the table cannot be read.
        """
        try:
            found = self._database.execute(f"SELECT * FROM {self._source(name)}")  # noqa: S608 - a quoted path
            names = [str(column[0]) for column in found.description or ()]
            rows = found.fetchall()
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            raise ScenarioError(f"output {self._directory}: its tables cannot be read: {first}") from error
        return {one: [row[place] for row in rows] for place, one in enumerate(names)}

    def _source(self, name: str) -> str:
        return rows_of(self._directory / f"{name}.parquet")


def read_study(directory: Path, tables: Tables) -> Study:
    """Return the study in a directory; one that has no tables yet has no cases.

    Raises:
        ScenarioError: the directory holds no study, or its tables cannot be read.
    """
    record = StudyDirectory(directory).record()
    if record is None:
        raise ScenarioError(f"output {directory} holds no study (run.json is missing)")
    axes = tuple(str(axis) for axis in record.get("axes", ()))
    if not all(tables.has(name) for name in _NEEDED):
        return Study(record=record, axes=axes, cases=(), epochs={}, statements=(), attackers=())
    statements = tables.rows('SELECT * FROM {statement} ORDER BY "case"')
    last = tables.rows("SELECT max(epoch) AS epoch FROM {releases}")[0]["epoch"] or 0
    step = -(-(int(last) + 1) // MOST_DOTS)
    return Study(
        record=record,
        axes=axes,
        cases=_cases(tables, axes, statements),
        epochs=_epochs(tables, step) if last else {},
        epoch_step=step,
        statements=statements,
        attackers=tables.rows('SELECT * FROM {attackers} ORDER BY "case"'),
        rules=tables.rows("SELECT * FROM {rules}") if tables.has("rules") else (),
        numbers=tables.rows(_NUMBERS) if tables.has("numbers") else (),
    )


def _cases(tables: Tables, axes: Sequence[str], statements: Sequence[Mapping[str, Any]]) -> tuple[CaseResult, ...]:
    sums = {row["case"]: row for row in _sums(tables)}
    tallies = {row["case"]: row for row in _tallies(tables)}
    truths: Sequence[Mapping[str, Any]] = ()
    if tables.rows("SELECT 1 FROM {cells} LIMIT 1"):
        truths = tables.rows('SELECT "case", avg(truth) AS truth FROM {cells} GROUP BY "case"')
    mean_truths = {row["case"]: float(row["truth"]) for row in truths}
    public: dict[int, Mapping[str, Any]] = {}
    for statement in statements:
        public.setdefault(statement["case"], statement)
    found: list[CaseResult] = []
    cases = tables.rows('SELECT * FROM {cases} ORDER BY "case"')
    mechanisms = {row["mechanism"] for row in cases}
    for row in cases:
        index = int(row["case"])
        said = public.get(index, {})
        found.append(
            CaseResult(
                **_identity(row, axes, alone=len(mechanisms) == 1),
                **_scores(sums.get(index)),
                mean_truth=mean_truths.get(index, math.nan),
                epsilon=said.get("epsilon"),
                total_epsilon=said.get("total_epsilon"),
                delta=float(said.get("delta", 0)),
                total_delta=float(said.get("total_delta", 0)),
                answered=int(said.get("releases", 1)),
                tallies={
                    name: int(count) for name, count in tallies.get(index, {}).items() if name != "case" and count
                },
            )
        )
    return tuple(found)


def _identity(row: Mapping[str, Any], axes: Sequence[str], *, alone: bool) -> dict[str, Any]:
    """Return the fields that identify a case; with `alone` all cases have one mechanism, whose name is left out."""
    whole = {name: int(row[name]) for name in ("devices", "values", "aggregators")}
    texts = {name: str(row[name]) for name in ("name", "mechanism", "kind", "question")}
    if alone:
        texts["name"] = texts["name"].removeprefix(texts["mechanism"]).strip() or texts["name"]
    point = {axis: _finite(row.get(axis)) for axis in axes}
    places = row.get("places")
    return (
        whole
        | texts
        | {
            "index": int(row["case"]),
            "level": float(row["level"]),
            "point": point,
            "places": None if places is None else int(places),
        }
    )


def _finite(value: Any) -> float | str | None:
    """Return a case's value of an axis, None for the nan that a numeric column has where the case lacks the axis."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _sums(tables: Tables, step: int | None = None) -> list[dict[str, Any]]:
    means = ", ".join(
        f"avg({name}) FILTER (WHERE released) AS {name}, stddev_samp({name}) FILTER (WHERE released) AS {name}_sd"
        for name in _MEANS
    )
    extra, group = ("", "") if step is None else (f"epoch // {step} * {step} AS epoch,", f", epoch // {step} * {step}")
    return tables.rows(_BY_CASE, means=means, extra=extra, group=group)


def _tallies(tables: Tables) -> list[dict[str, Any]]:
    names = [row["column_name"] for row in tables.rows("DESCRIBE SELECT * FROM {releases}")]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names if name not in _SCORES]
    sums = "".join(f", sum({name}) AS {name}" for name in quoted)
    return tables.rows('SELECT "case" {sums} FROM {releases} GROUP BY "case"', sums=sums)


def _epochs(tables: Tables, step: int) -> dict[int, list[dict[str, Any]]]:
    """Return the sums of every `step` epochs, by case; "epoch" is the first of them."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in _sums(tables, step):
        found.setdefault(row["case"], []).append({"epoch": int(row["epoch"]), **_scores(row)})
    return found


def _scores(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a case that follow from its releases."""
    if row is None:
        return {}
    asked, released = int(row["asked"]), int(row["released"])
    plain = {"asked": asked, "released": released, "participants": float(row["participants"])}
    if released == 0:
        return plain
    return plain | {
        "worst": float(row["worst"]),
        "width": float(row["width"]),
        "error": _root_measure(row["square"], row["square_sd"], released),
        "error_fleet": _root_measure(row["square_fleet"], row["square_fleet_sd"], released),
        "bias": _mean_measure(row["bias"], row["bias_sd"], released),
        "bias_fleet": _mean_measure(row["bias_fleet"], row["bias_fleet_sd"], released),
        "coverage": share_measure(row["coverage"], row["coverage_sd"], released, int(row["cells"])),
        "coverage_fleet": share_measure(row["coverage_fleet"], row["coverage_fleet_sd"], released, int(row["cells"])),
    }


def _mean_measure(mean: float, deviation: float | None, releases: int) -> Measure:
    """Return a mean over releases with its normal interval."""
    if deviation is None or releases < 2:
        return Measure(mean)
    half = Z95 * deviation / math.sqrt(releases)
    return Measure(mean, mean - half, mean + half)


def _root_measure(square: float, deviation: float | None, releases: int) -> Measure:
    """Return the root of a mean square; the interval is the root of the mean's."""
    inner = _mean_measure(square, deviation, releases)
    return Measure(math.sqrt(square), _root(inner.low), _root(inner.high))


def share_measure(share: float, deviation: float | None, releases: int, cells: int) -> Measure:
    """Return a share of cells with Wilson's interval (1927) of a binomial over `releases` times `cells` trials.

    Cells of one release are not independent. Where the shares of releases vary more than those of independent cells
    would, the number of trials is divided by the ratio of the variances (Kish's design effect). Fewer than 10 releases
    do not show the variance.
    """
    trials = float(releases * cells)
    alone = share * (1 - share) / cells
    if deviation is not None and releases >= 10 and alone > 0:
        trials /= max(1.0, deviation**2 / alone)
    middle = (share + Z95**2 / (2 * trials)) / (1 + Z95**2 / trials)
    half = Z95 / (1 + Z95**2 / trials) * math.sqrt(share * (1 - share) / trials + Z95**2 / (4 * trials**2))
    return Measure(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def _root(square: float) -> float:
    """Return a square root, 0 for a number below 0."""
    return math.nan if math.isnan(square) else math.sqrt(max(0.0, square))
