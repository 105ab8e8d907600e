"""CSV and Parquet tables read in pieces: chosen columns, strict numbers, ranges, and the line of every fault.

One piece is in memory at a time, and the meaning of a column is not known here. Numbers have decimal digits only: other
spellings (1_0.5, nan, inf, full-width digits, a decimal comma) are refused.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.files import lines
from fleetcount_simulator.cells.model import Floats
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.columns import BATCH, Column, Place, Rows

MAX_COLUMNS: Final = 256
_NUMBER: Final = r"-?[0-9]{1,15}(?:\.[0-9]{1,18})?"
_ONE_NUMBER: Final = re.compile(_NUMBER, re.ASCII)
_MANY_NUMBERS: Final = re.compile(rf"(?:{_NUMBER}\n)*", re.ASCII)
_UTC: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """A piece of a table: per role the texts or the numbers, and the place of its rows in the file."""

    texts: Mapping[str, Sequence[str]]
    numbers: Mapping[str, Floats]
    place: Place


def read_table(path: Path, columns: Mapping[str, Column]) -> Iterator[Batch]:
    """Yield a table in pieces; `columns` by role. A name that ends in .parquet is Parquet, any other CSV (RFC 4180).

    Other columns of the file are skipped.

    Raises:
        ScenarioError: a file that cannot be read, is truncated or changes, a missing column, a field outside its
            grammar or range; with the line (CSV) or the row (Parquet).
    """
    if path.suffix.lower() == ".parquet":
        # DuckDB takes a tenth of a second to load and is needed for Parquet alone.
        from fleetcount_simulator.populations.parquet import read_parquet

        for rows, place in read_parquet(path, columns):
            yield _batch(rows, columns, place)
    else:
        for rows, place in _csv_rows(path, columns):
            yield _batch(rows, columns, place)


def _batch(rows: Mapping[str, Sequence[Any]], columns: Mapping[str, Column], place: Place) -> Batch:
    texts: dict[str, Sequence[str]] = {}
    numbers: dict[str, Floats] = {}
    for role, column in columns.items():
        if column.form == "text":
            texts[role] = rows[role]
        else:
            numbers[role] = in_range(_numbers(rows[role], column, place), column, place)
    return Batch(texts=texts, numbers=numbers, place=place)


def _numbers(cells: Any, column: Column, place: Place) -> Floats:
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64, copy=False)
    read = _parsed_moments if column.form == "utc" else parsed_numbers
    return read(cells, column.name, place)


def _csv_rows(path: Path, columns: Mapping[str, Column]) -> Iterator[tuple[dict[str, Sequence[str]], Place]]:
    with closing(lines(path)) as text:
        reader = csv.reader(text, strict=True)
        try:
            header = next(reader, [])
            where = {role: _position(header, column.name, path.name) for role, column in columns.items()}
            while True:
                before = reader.line_num
                rows = list(islice(reader, BATCH))
                if not rows:
                    return
                place = Place(path.name, "line", before + 1)
                _check_rows(rows, len(header), place, reader.line_num - before)
                yield {role: [row[position] for row in rows] for role, position in where.items()}, place
        except csv.Error as error:
            raise ScenarioError(f"{path.name} line {reader.line_num}: {error}") from error


def _position(header: list[str], name: str, file: str) -> int:
    if not header:
        raise ScenarioError(f"{file} line 1: no header; it must name the column {name!r}")
    if len(header) > MAX_COLUMNS:
        raise ScenarioError(f"{file} line 1: {len(header)} columns; it must be at most {MAX_COLUMNS}")
    if header.count(name) > 1:
        raise ScenarioError(f"{file} line 1: the column {shown(name)} occurs twice")
    if name not in header:
        hint = " (separated by semicolons?)" if len(header) == 1 and ";" in header[0] else ""
        near = nearest(name, [shown(cell).strip("'\"") for cell in header][:12])
        raise ScenarioError(f"{file} line 1: no column {shown(name)}{hint}; {near}")
    return header.index(name)


def _check_rows(rows: list[list[str]], width: int, place: Place, lines_read: int) -> None:
    """Refuse a row of another width, and a field with a line end, behind which the line numbers would be wrong."""
    if lines_read != len(rows):
        first = next(i for i, row in enumerate(rows) if any("\n" in cell or "\r" in cell for cell in row))
        raise ScenarioError(f"{place.of(first)}: a field holds a line end (a quote that is not closed?)")
    for number, row in enumerate(rows):
        if len(row) != width:
            raise ScenarioError(f"{place.of(number)}: {len(row)} fields, not {width} (truncated?)")


def parsed_numbers(cells: Sequence[str], name: str, place: Rows) -> Floats:
    """Return the numbers of a column.

    Raises:
        ScenarioError: a cell outside the grammar; with its line.
    """
    if not _MANY_NUMBERS.fullmatch("\n".join((*cells, ""))):
        wrong = next(i for i, cell in enumerate(cells) if not _ONE_NUMBER.fullmatch(cell))
        raise ScenarioError(f"{place.of(wrong)}: {name} is {shown(cells[wrong])}, not a number like -12.5")
    return np.array(list(map(float, cells)), dtype=np.float64)


def _parsed_moments(cells: Sequence[str], name: str, place: Place) -> Floats:
    for number, cell in enumerate(cells):
        if not _UTC.fullmatch(cell):
            allowed = "a moment of UTC like 2026-01-26T15:57:02Z"
            raise ScenarioError(f"{place.of(number)}: {name} is {shown(cell)}, not {allowed}")
    plain = [cell.removesuffix("Z").removesuffix("+00:00") for cell in cells]
    try:
        moments = np.array(plain, dtype="datetime64[us]")
    except ValueError:
        wrong = next(i for i, cell in enumerate(plain) if not _is_moment(cell))
        raise ScenarioError(f"{place.of(wrong)}: {name} is {shown(cells[wrong])}, which is no date") from None
    return moments.astype(np.int64) / 1e6


def _is_moment(cell: str) -> bool:
    try:
        np.datetime64(cell, "us")
    except ValueError:
        return False
    return True


def in_range(numbers: Floats, column: Column, place: Rows) -> Floats:
    """Return the numbers when all lie in the column's range.

    Raises:
        ScenarioError: one that does not, or is no number; with its line.
    """
    wrong = ~((numbers >= column.low) & (numbers <= column.high))
    if wrong.any():
        first = int(wrong.argmax())
        problem = f"{column.name} is {numbers[first]:.15g}; it must be {column.low:g} to {column.high:g}"
        swapped = " (are longitude and latitude swapped?)" if (column.low, column.high) == (-90, 90) else ""
        raise ScenarioError(f"{place.of(first)}: {problem}{swapped}")
    return numbers
