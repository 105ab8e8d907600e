"""Columns of a Parquet file in pieces, through DuckDB.

It must not let DuckDB see any other file, load an extension or use more than a little memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from fleetcount_analysis.parquet_files import open_database, rows_of
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.files import same_file
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.columns import BATCH, Column, Rows

_SIZES: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_WHOLE: Final = frozenset(sign + size for sign in ("", "U") for size in _SIZES)
_NUMBERS: Final = _WHOLE | {"FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT"}
_MOMENTS: Final = frozenset({"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"})
_NANOSECONDS: Final = "TIMESTAMPTZ_NS"
"""What DuckDB 2 calls moments with a zone in nanoseconds, as pandas 1 and 2 write them; `epoch_us` does not take it."""


def read_parquet(
    path: Path, columns: Mapping[str, Column], only_with: str | None = None
) -> Iterator[tuple[dict[str, Sequence[Any]], Rows]]:
    """Yield the chosen columns in pieces: texts as lists, numbers and moments (seconds since 1970) as float64.

    Rows without a value in the column of the role `only_with` are passed over.

    Raises:
        ScenarioError: no Parquet, truncated or changing, a missing column or one of another type, a null; with its row.
    """
    connection, source = open_database(), rows_of(path)
    try:
        with same_file(path):
            described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()  # noqa: S608 # quoted
            types = {str(row[0]): str(row[1]) for row in described}
            chosen = ", ".join(_expression(column, types, path.name) for column in columns.values())
            connection.execute(f"SELECT {chosen} FROM {source}")  # noqa: S608 # quoted
            first = 1
            while rows := connection.fetchmany(BATCH):
                numbers = range(first, first + len(rows))
                first, place = numbers.stop, Rows(path.name, "row", numbers)
                if only_with is not None:
                    role = list(columns).index(only_with)
                    there = [number for number, row in enumerate(rows) if row[role] is not None]
                    place = Rows(path.name, "row", [numbers[one] for one in there])
                    rows = [rows[number] for number in there]
                if rows:
                    yield _piece(rows, columns, place), place
    except duckdb.Error as error:
        said = str(error).replace(str(path), path.name).splitlines()[0]
        raise ScenarioError(f"{path.name} cannot be read as Parquet: {said[:120]}") from error
    finally:
        connection.close()


def names_of(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns; none of a file that is no Parquet."""
    connection, source = open_database(), rows_of(path)
    try:
        described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()  # noqa: S608 # quoted
    except duckdb.Error:
        return ()
    finally:
        connection.close()
    return tuple(str(row[0]) for row in described)


def _expression(column: Column, types: Mapping[str, str], file: str) -> str:
    if column.name not in types:
        raise ScenarioError(f"{file}: no column {shown(column.name)}; {nearest(column.name, list(types)[:12])}")
    kind, quoted = types[column.name], '"' + column.name.replace('"', '""') + '"'
    if column.form == "text" and (kind == "VARCHAR" or kind in _WHOLE):
        return f"CAST({quoted} AS VARCHAR)"
    if column.form == "reading" and (kind in ("VARCHAR", "BOOLEAN") or kind in _NUMBERS or kind.startswith("DECIMAL")):
        return f"COALESCE(CAST({quoted} AS VARCHAR), '')"
    if column.form in ("number", "count") and (kind in _NUMBERS or kind.startswith("DECIMAL")):
        # A float32 is its own shortest decimal, as everywhere (`fleetcount_protocol.window.signal`).
        return f"CAST(CAST({quoted} AS VARCHAR) AS DOUBLE)" if kind == "FLOAT" else f"CAST({quoted} AS DOUBLE)"
    if column.form == "utc" and kind in _MOMENTS:
        return f"epoch_us({quoted}) / 1e6"
    if column.form == "utc" and kind == _NANOSECONDS:
        return f"epoch_us({quoted}::TIMESTAMPTZ) / 1e6"
    allowed = {
        "text": "a text or a whole number",
        "number": "a number",
        "count": "a whole number",
        "utc": "a timestamp",
        "reading": "text, number or boolean",
    }[column.form]
    raise ScenarioError(f"{file}: the column {shown(column.name)} is of type {kind[:40]}, not {allowed}")


def _piece(rows: list[tuple[Any, ...]], columns: Mapping[str, Column], place: Rows) -> dict[str, Sequence[Any]]:
    piece: dict[str, Any] = {}
    for (role, column), cells in zip(columns.items(), zip(*rows, strict=True), strict=True):
        if None in cells:
            raise ScenarioError(f"{place.of(cells.index(None))}: {column.name} is null")
        piece[role] = list(cells) if column.textual else np.array(cells, dtype=np.float64)
    return piece
