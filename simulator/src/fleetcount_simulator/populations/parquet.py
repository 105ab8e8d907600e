"""Columns of a Parquet file in pieces, through DuckDB.

It must not let DuckDB see any other file, load an extension or use more than a little memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.files import same_file
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.columns import BATCH, Column, Place

_CONFIG: Final[dict[str, Any]] = {"threads": 1, "memory_limit": "512MB", "autoinstall_known_extensions": False}
_SIZES: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_WHOLE: Final = frozenset(sign + size for sign in ("", "U") for size in _SIZES)
_NUMBERS: Final = _WHOLE | {"FLOAT", "DOUBLE", "HUGEINT", "UHUGEINT"}
_MOMENTS: Final = frozenset({"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"})


def read_parquet(path: Path, columns: Mapping[str, Column]) -> Iterator[tuple[dict[str, Sequence[Any]], Place]]:
    """Yield the chosen columns in pieces: texts as lists, numbers and moments (seconds since 1970) as float64.

    Raises:
        ScenarioError: no Parquet, truncated or changing, a missing column or one of another type, a null; with its row.
    """
    if any(character in path.name for character in "*?["):
        raise ScenarioError(f"{path.name}: the name of a Parquet file must not hold *, ? or [")
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        with same_file(path):
            described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
            types = {str(row[0]): str(row[1]) for row in described}
            chosen = ", ".join(_expression(column, types, path.name) for column in columns.values())
            connection.execute(f"SELECT {chosen} FROM read_parquet(?)", [str(path)])  # noqa: S608 quoted in _expression
            first = 1
            while rows := connection.fetchmany(BATCH):
                yield _piece(rows, columns, Place(path.name, "row", first)), Place(path.name, "row", first)
                first += len(rows)
    except duckdb.Error as error:
        said = str(error).replace(str(path), path.name).splitlines()[0]
        raise ScenarioError(f"{path.name} cannot be read as Parquet: {said[:120]}") from error
    finally:
        connection.close()


def _expression(column: Column, types: Mapping[str, str], file: str) -> str:
    if column.name not in types:
        raise ScenarioError(f"{file}: no column {shown(column.name)}; {nearest(column.name, list(types)[:12])}")
    kind, quoted = types[column.name], '"' + column.name.replace('"', '""') + '"'
    if column.form == "text" and (kind == "VARCHAR" or kind in _WHOLE):
        return f"CAST({quoted} AS VARCHAR)"
    if column.form == "number" and (kind in _NUMBERS or kind.startswith("DECIMAL")):
        # A float32 is its own shortest decimal, as everywhere (`fleetcount_protocol.window.signal`).
        return f"CAST(CAST({quoted} AS VARCHAR) AS DOUBLE)" if kind == "FLOAT" else f"CAST({quoted} AS DOUBLE)"
    if column.form == "utc" and kind in _MOMENTS:
        return f"epoch_us({quoted}) / 1e6"
    allowed = {"text": "a text or a whole number", "number": "a number", "utc": "a timestamp"}[column.form]
    raise ScenarioError(f"{file}: the column {shown(column.name)} is of type {kind[:40]}, not {allowed}")


def _piece(rows: list[tuple[Any, ...]], columns: Mapping[str, Column], place: Place) -> dict[str, Sequence[Any]]:
    piece: dict[str, Any] = {}
    for (role, column), cells in zip(columns.items(), zip(*rows, strict=True), strict=True):
        if None in cells:
            raise ScenarioError(f"{place.of(cells.index(None))}: {column.name} is null")
        piece[role] = list(cells) if column.form == "text" else np.array(cells, dtype=np.float64)
    return piece
