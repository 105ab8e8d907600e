"""A question's table as a file: Parquet to which later windows are appended, CSV, and GeoJSON of one window.

It must not write a number without its interval, level and statement: these are the file's metadata. Files are written
atomically. Columns are those of `COLUMNS` (docs/answers.md); a row is one cell of one released window.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from fleetcount_mechanisms.design import Design
from numpy.typing import NDArray

from fleetcount_analysis.answers.chosen import window_ends
from fleetcount_analysis.answers.combinations import window_totals
from fleetcount_analysis.answers.places import DEGREES, Places
from fleetcount_analysis.answers.readings import readable
from fleetcount_analysis.answers.table import QuestionTable
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.errors import ExportError, ShapeError
from fleetcount_analysis.parquet_files import library, open_database, read_path, rows_of, written_path

COLUMNS: Final = (
    "window_index", "opens", "unit", "cell", "label",
    "raw", "estimate", "low", "high", "low_all", "high_all", "readable",
)  # fmt: skip

"""The columns of every table; behind `label` one of a square grid has `x` and `y`, one of several signals these."""

TOTAL_COLUMNS: Final = {
    "total": ("total_raw", "total_estimate", "total_low", "total_high"),
    "told_any": ("told_any_raw", "told_any_estimate", "told_any_low", "told_any_high"),
}
"""What a table has behind them where releases have a total, by `Levels.total_key`: of all cells, or who told any."""

_FORMAT: Final = "fleetcount-question-table-1"
_KEY: Final = "fleetcount"
_OF_SETS: Final = "vehicles that told this cell; a vehicle that has more than {most} tells {most} of them, drawn anew"
_OF_THE_ASKED: Final = "devices asked in the window, about one in {one_in} of the fleet"
_MEMORY: Final = "1GB"
_PLAIN: Final = " ()[]{}:/-+*=<>"
"""What the first line of a CSV file holds as it is, beside letters and digits: no reader takes it for a delimiter."""


def columns_of(table: QuestionTable, participants: Sequence[int] | None = None) -> dict[str, NDArray[Any]]:
    """Return the table's columns, each of shape (W * V,), window by window, cell by cell.

    `participants` are the noised numbers of devices in the records, one for each window: the readable numbers then
    sum to them at most. Not used for randomized answers, whose tables have such numbers, nor for sets. Of releases with
    a total every row of a window has the total's columns too.

    Raises:
        ShapeError: not one number of participants for each window.
    """
    windows, values = table.raw.shape
    devices = table.devices if table.design.baseline_opened else participants
    # What vehicles told adds up to more than the vehicles: no cell of a set is made smaller by others.
    fitted = devices if table.design.levels.most == 1 else None
    if devices is not None and len(devices) != windows:
        raise ShapeError(f"{len(devices)} numbers of participants; allowed is one a window, {windows}")
    low, high = window_ends(table)
    return {
        "window_index": np.repeat(table.windows, values),
        "opens": np.repeat(table.opens, values).astype("datetime64[s]"),
        "unit": np.repeat(table.units, values),
        "cell": np.tile(np.arange(1, values + 1, dtype=np.int32), windows),
        "label": np.tile(np.array(table.labels, dtype=object), windows),
        **{name: np.tile(places.astype(np.int32), windows) for name, places in table.squares.items()},
        **{_free(name): np.tile(np.array(of, dtype=object), windows) for name, of in table.parts.items()},
        "raw": table.raw.ravel(),
        "estimate": table.estimates.ravel(),
        "low": table.low.ravel(),
        "high": table.high.ravel(),
        "low_all": low,
        "high_all": high,
        "readable": readable(table.estimates, fitted).ravel(),
        **{name: np.repeat(column, values) for name, column in _totals(table).items()},
    }


def _free(name: str) -> str:
    """Return the name of a signal's column, other than those that every table may have."""
    taken = (*COLUMNS, *TOTAL_COLUMNS["total"], "x", "y")
    return f"signal {name}" if name.casefold() in taken else name


def _totals(table: QuestionTable) -> dict[str, NDArray[Any]]:
    """Return the columns of the total, (W,) each; none without a total."""
    if not table.design.levels.total:
        return {}
    names = TOTAL_COLUMNS[table.design.levels.total_key]
    return dict(zip(names, (table.outputs[:, -1], *window_totals(table)), strict=True))


def metadata_of(table: QuestionTable, title: str = "") -> dict[str, Any]:
    """Return the description of the numbers, law, level, statement and missing windows, as plain JSON values."""
    design, one_in = table.design, table.one_in
    return {
        "format": _FORMAT,
        "title": title,
        "mechanism": design.name,
        "answer": _parameters(design.answer),
        "noise": {"law": design.noise.name} | _parameters(design.noise),
        "aggregators": design.aggregators,
        "values": design.values,
        **({"counts": _OF_SETS.format(most=design.levels.most)} if design.levels.most > 1 else {}),
        **({"counts": _OF_THE_ASKED.format(one_in=one_in), "one_in": one_in} if one_in > 1 else {}),
        **({design.levels.total_key: _total_of(design)} if design.levels.total else {}),
        **({"signals": list(table.parts)} if table.parts else {}),
        **({"margins": _margins_of(design)} if design.levels.margins else {}),
        "level": str(table.level),
        "intervals": "low, high: each alone; low_all, high_all: all cells of a window at once, so also the largest",
        "statement": list(table.statement),
        "missing": {str(window): reason for window, reason in sorted(table.missing.items())},
    }


def _margins_of(design: Design) -> list[dict[str, Any]]:
    """Return the noise of each margin; cells are joined with all of them."""
    laws = design.laws[1 : 1 + len(design.levels.margins)]
    return [{"noise": {"law": law.name} | _parameters(law)} for law in laws]


def _total_of(design: Design) -> dict[str, Any]:
    if design.levels.most > 1:
        apart = "read alone; the cells add up to what was told, which is no number of vehicles"
        used = f"{design.levels.total_words}: {apart}"
    else:
        used = "cells and sums are joined with it"
    return {"noise": {"law": design.laws[-1].name} | _parameters(design.laws[-1]), "used": used}


def write_csv(table: QuestionTable, path: Path, title: str = "", participants: Sequence[int] | None = None) -> None:
    """Write the table as UTF-8 CSV: the metadata, the names of the columns, then a row a line.

    The first line is `#`, a space and the metadata as percent-encoded JSON (RFC 3986, section 2.1); readers skip it.
    Times are ISO 8601 in UTC; labels are as `csv_text` gives them.

    Raises:
        ExportError: the file cannot be written.
        ShapeError: as `columns_of`.
    """
    columns = columns_of(table, participants)
    # Readers that guess the form of a file look at its first line too: a delimiter or a quote there misleads them.
    first = "# " + quote(json.dumps(metadata_of(table, title), ensure_ascii=False), safe=_PLAIN) + "\n"
    content = (first + csv_table(list(columns), _rows(columns))).encode()
    _write_atomically(path, lambda temporary: _write_bytes(temporary, content))


def write_geojson(
    table: QuestionTable,
    places: Places,
    window: int,
    path: Path,
    title: str = "",
    participants: Sequence[int] | None = None,
) -> None:
    """Write one window as a GeoJSON FeatureCollection: a polygon for each cell, with the columns as its properties.

    The metadata are the member `fleetcount` of the collection. Coordinates are degrees (RFC 7946, section 4).

    Raises:
        ShapeError: not one place for each value; as `columns_of`.
        RangeError: a window that was not released.
        ExportError: places that are not in degrees, or the file cannot be written.
    """
    if places.coordinates != DEGREES:
        # Readers take what GeoJSON says for degrees, also where a reference system is denied.
        raise ExportError(f"{path.name}: GeoJSON is in degrees, and these places are {places.coordinates}")
    if places.values != table.design.values:
        raise ShapeError(f"{places.values} places; allowed is one a value, {table.design.values}")
    row = table.rows([window])[0]
    columns = columns_of(table, participants)
    part = slice(row * places.values, (row + 1) * places.values)
    columns = {name: column[part] for name, column in columns.items()}
    features = [
        {
            "type": "Feature",
            "id": value,
            "geometry": {"type": "Polygon", "coordinates": [places.outline(value)]},
            "properties": dict(zip(columns, cells, strict=True)),
        }
        for value, cells in enumerate(_rows(columns), start=1)
    ]
    metadata = metadata_of(table, title) | {"coordinates": places.coordinates}
    collection = {"type": "FeatureCollection", _KEY: metadata, "features": features}
    content = json.dumps(collection, ensure_ascii=False).encode()
    _write_atomically(path, lambda temporary: _write_bytes(temporary, content))


def write_parquet(table: QuestionTable, path: Path, title: str = "", participants: Sequence[int] | None = None) -> None:
    """Write the table as Parquet; the metadata are the JSON text under the key `fleetcount` of the file's footer.

    Raises:
        ExportError: the file cannot be written, or the package duckdb is not there.
        ShapeError: as `columns_of`.
    """
    columns, metadata = columns_of(table, participants), metadata_of(table, title)
    _write_atomically(path, lambda temporary: _copy(columns, metadata, temporary))


def append_parquet(
    table: QuestionTable, path: Path, title: str = "", participants: Sequence[int] | None = None
) -> None:
    """Append later windows to a Parquet file, or write a new file.

    Old rows are copied unchanged. The new file replaces the old one atomically, so that a reader sees one of the two.

    Raises:
        ExportError: the file is not such a table, has another law, level or statement, or reaches to a window of the
            table or a later one; as `write_parquet`.
        ShapeError: as `columns_of`.
    """
    if not path.exists():
        write_parquet(table, path, title, participants)
        return
    columns, metadata = columns_of(table, participants), metadata_of(table, title)
    before, last = _described(path, tuple(columns))
    for name in metadata:
        if name != "missing" and before.get(name) != metadata[name]:
            raise ExportError(
                f"{path.name} has {name} {_short(before.get(name))}; the table has {_short(metadata[name])}"
            )
    if int(table.windows[0]) <= last:
        raise ExportError(
            f"{path.name} reaches to window {last}; the table starts at {int(table.windows[0])}, not after it"
        )
    metadata["missing"] = before["missing"] | metadata["missing"]
    _write_atomically(path, lambda temporary: _copy(columns, metadata, temporary, after=path))


def last_window(path: Path) -> int:
    """Return the last window in the Parquet file of a table; later ones can be appended.

    Raises:
        ExportError: the file is not such a table, or the package duckdb is not there.
    """
    return _described(path)[1]


def _parameters(law: Any) -> dict[str, str]:  # laws are frozen dataclasses
    """Return the parameters of a law of answers or of noise as texts, by name."""
    return {one.name: str(getattr(law, one.name)) for one in fields(law) if one.init and one.compare}


def _rows(columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return the rows as plain values, times as ISO 8601 in UTC."""
    times = [f"{time}Z" for time in np.datetime_as_string(columns["opens"], unit="s").tolist()]
    return zip(*(times if name == "opens" else columns[name].tolist() for name in columns), strict=True)


def _described(path: Path, expected: tuple[str, ...] | None = None) -> tuple[dict[str, Any], int]:
    """Return the metadata and the last window of a table's file, whose columns must be the expected ones if any are."""
    try:
        with open_database(_MEMORY) as database:
            rows = database.execute(
                f"SELECT decode(value) FROM parquet_kv_metadata({read_path(path)}) WHERE decode(key) = ?",  # noqa: S608
                [_KEY],
            ).fetchall()
            names = database.execute(f"DESCRIBE SELECT * FROM {rows_of(path)}").fetchall()  # noqa: S608
            found = database.execute(f"SELECT max(window_index) FROM {rows_of(path)}").fetchone()  # noqa: S608
        metadata = json.loads(rows[0][0]) if len(rows) == 1 else None
    except (library().Error, ValueError) as error:
        raise ExportError(f"{path.name} cannot be read as the table of a question") from error
    columns = tuple(row[0] for row in names)
    known = expected in (None, columns) and set(COLUMNS) <= set(columns)
    if not isinstance(metadata, dict) or not known or not found or found[0] is None:
        raise ExportError(f"{path.name} is not the table of a question")
    if not isinstance(metadata.get("missing"), dict):
        raise ExportError(f"{path.name} names no missing windows")
    return metadata, int(found[0])


def _copy(
    columns: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any], path: Path, after: Path | None = None
) -> None:
    """Write the columns as Parquet, behind the rows of the file `after` where one is named."""
    text = json.dumps(metadata, ensure_ascii=False).replace("'", "''")
    # NumPy's times have no zone; without one Parquet calls them local, and readers shift them when they join.
    query = "SELECT * REPLACE (opens::TIMESTAMP AT TIME ZONE 'UTC' AS opens) FROM made"
    if after is not None:
        query = f"SELECT * FROM {rows_of(after)} UNION ALL {query}"  # noqa: S608 # quoted
    try:
        with open_database(_MEMORY) as database:
            database.register("made", dict(columns))
            form = f"(FORMAT parquet, KV_METADATA {{{_KEY}: '{text}'}})"
            database.execute(f"COPY ({query}) TO {written_path(path)} {form}")
    except library().Error as error:
        raise ExportError(f"the table cannot be written: {str(error).splitlines()[0][:120]}") from error


def _write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let a file appear under its name when it is whole and durable."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ExportError(f"{path.name} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
