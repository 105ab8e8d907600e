"""How the tools of the field read a table that goes out: each reader as documents say it, to rows of plain values."""

import csv
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pandas as pd

Row = tuple[Any, ...]
COLUMNS: Final = ("window_index", "opens", "label", "raw", "estimate", "low", "high")
_SQL: Final = (
    "SELECT window_index, epoch_us(opens) // 1000000, label, raw, estimate, low, high FROM {}"
    " ORDER BY window_index, cell"
)


def of_csv(path: Path) -> list[Row]:
    """The rows by Python's own reader, as a program without a library reads them."""
    with path.open(encoding="utf-8", newline="") as file:
        next(file)
        return [
            (int(row["window_index"]), _seconds(datetime.fromisoformat(row["opens"])), row["label"], int(row["raw"]),
             float(row["estimate"]), int(row["low"]), int(row["high"]))
            for row in csv.DictReader(file)
        ]  # fmt: skip


def of_pandas(path: Path) -> list[Row]:
    """The rows by pandas, with the options that docs/answers.md names."""
    if path.suffix == ".csv":
        frame = pd.read_csv(path, skiprows=1, dtype={"label": str}, keep_default_na=False, parse_dates=["opens"])
    else:
        frame = pd.read_parquet(path)
    return _of_columns({name: frame[name].tolist() for name in COLUMNS})


def of_duckdb(path: Path) -> list[Row]:
    """The rows by the DuckDB that is installed, in a session of another zone."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'America/New_York'")
        return database.execute(_SQL.format(_duckdb_source(path))).fetchall()


def of_other_duckdb(folder: Path) -> Callable[[Path], list[Row]]:
    """Return the reader by the DuckDB that lies in a folder, in a process of its own."""

    def read(path: Path) -> list[Row]:
        program = "import duckdb, json, sys; print(json.dumps(duckdb.execute(sys.argv[1]).fetchall()))"
        command = [sys.executable, "-c", program, _SQL.format(_duckdb_source(path))]
        done = subprocess.run(command, env={"PYTHONPATH": str(folder)}, check=True, capture_output=True, text=True)
        return [tuple(row) for row in json.loads(done.stdout)]

    return read


def _duckdb_source(path: Path) -> str:
    return f"read_csv('{path}', skip = 1)" if path.suffix == ".csv" else f"read_parquet('{path}')"


def of_polars(path: Path) -> list[Row]:
    """The rows by Polars."""
    polars: Any = importlib.import_module("polars")
    if path.suffix == ".csv":
        frame = polars.read_csv(path, skip_rows=1, schema_overrides={"label": polars.String}, try_parse_dates=True)
    else:
        frame = polars.read_parquet(path)
    return _of_columns({name: frame[name].to_list() for name in COLUMNS})


def of_pyarrow(path: Path) -> list[Row]:
    """The rows by pyarrow."""
    arrow: Any = importlib.import_module("pyarrow")
    if path.suffix == ".csv":
        reader: Any = importlib.import_module("pyarrow.csv")
        label = reader.ConvertOptions(column_types={"label": arrow.string()})
        table = reader.read_csv(path, read_options=reader.ReadOptions(skip_rows=1), convert_options=label)
    else:
        table = importlib.import_module("pyarrow.parquet").read_table(path)
    return _of_columns({name: table[name].to_pylist() for name in COLUMNS})


def _of_columns(columns: Mapping[str, list[Any]]) -> list[Row]:
    columns = {**columns, "opens": [_seconds(moment) for moment in columns["opens"]]}
    return list(zip(*columns.values(), strict=True))


def _seconds(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
