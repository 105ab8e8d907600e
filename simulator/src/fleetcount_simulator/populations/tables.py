"""CSV and Parquet tables read in pieces: chosen columns, strict numbers, ranges, and the line of every fault.

It holds one piece at a time and knows of a column what `Column` says: its form and range. Numbers are decimal digits,
perhaps with an exponent: what other readers take for numbers (1_0.5, nan, inf, full-width digits, a decimal comma) is
refused. One too large for a float is infinite and so outside of every range.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.csv_rows import CsvFault, csv_batches
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.files import lines
from fleetcount_simulator.cells.model import NUMBER, Floats
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.columns import BATCH, Column, Rows

MAX_COLUMNS: Final = 256
_ONE_NUMBER: Final = re.compile(NUMBER, re.ASCII)
_COUNT: Final = re.compile(r"-?[0-9]{1,15}(?:\.0)?", re.ASCII)
_MANY_NUMBERS: Final = re.compile(rf"(?:{NUMBER}\n)*", re.ASCII)
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,6})[0-9]{0,3})?"
    r"(?:Z| ?UTC|([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?)?",
    re.ASCII,
)
"""A moment and its offset, as ISO 8601, PostgreSQL, DuckDB, Polars, pandas and GNU date write it; without one, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """A piece of a table: by role the texts or the numbers of a column, and the place of its rows in the file.

    Numbers are float64, one for each row, and a column of moments is in Unix seconds.
    """

    texts: Mapping[str, Sequence[str]]
    numbers: Mapping[str, Floats]
    place: Rows


def read_table(
    path: Path, columns: Mapping[str, Column], delimiter: str = ",", only_with: str | None = None
) -> Iterator[Batch]:
    """Yield a table in pieces; `columns` by role. A name that ends in .parquet is Parquet, any other CSV (RFC 4180).

    Other columns of the file are skipped, and so are rows without a value in the column of the role `only_with`, which
    is one of `columns`.

    Raises:
        ScenarioError: a file that cannot be read, is truncated or changes, a missing column, a field outside its
            grammar or range; with the line (CSV) or the row (Parquet).
    """
    if path.suffix.lower() == ".parquet":
        # DuckDB takes a tenth of a second to load and is needed for Parquet alone.
        from fleetcount_simulator.populations.parquet import read_parquet

        for rows, place in read_parquet(path, columns, only_with):
            yield _batch(rows, columns, place)
    else:
        for rows, place in _csv_rows(path, columns, delimiter, only_with):
            yield _batch(rows, columns, place)


def column_names(path: Path, delimiter: str = ",") -> Sequence[str]:
    """Return the names of a table's columns; none where the CSV is malformed, of which `read_table` says how.

    Raises:
        ScenarioError: a file that cannot be opened, or a line of it that is no text or too long.
    """
    if path.suffix.lower() == ".parquet":
        from fleetcount_simulator.populations.parquet import names_of  # As in `read_table`.

        return names_of(path)
    with closing(lines(path)) as text:
        try:
            return next(csv_batches(text, 1, delimiter), (0, [[]]))[1][0]
        except CsvFault:
            return ()


def _batch(rows: Mapping[str, Sequence[Any]], columns: Mapping[str, Column], place: Rows) -> Batch:
    texts: dict[str, Sequence[str]] = {}
    numbers: dict[str, Floats] = {}
    for role, column in columns.items():
        if column.textual:
            texts[role] = rows[role]
        else:
            numbers[role] = in_range(_numbers(rows[role], column, place), column, place)
    return Batch(texts=texts, numbers=numbers, place=place)


def _numbers(cells: Any, column: Column, place: Rows) -> Floats:
    if not isinstance(cells, np.ndarray):
        read = _parsed_moments if column.form == "utc" else parsed_numbers
        numbers = read(cells, column.name, place)
    else:
        numbers = cells.astype(np.float64, copy=False)
    if column.form == "count":
        _check_counts(cells, numbers, column.name, place)
    return numbers


def _check_counts(cells: Any, numbers: Floats, name: str, place: Rows) -> None:
    wrong = np.flatnonzero(numbers != np.floor(numbers)).tolist()
    if not isinstance(cells, np.ndarray):
        wrong = [row for row, cell in enumerate(cells) if not _COUNT.fullmatch(cell)]
    if wrong:
        raise ScenarioError(f"{place.of(wrong[0])}: {name} is {cells[wrong[0]]}, not a whole number in digits alone")


def _csv_rows(
    path: Path, columns: Mapping[str, Column], delimiter: str, only_with: str | None
) -> Iterator[tuple[dict[str, Sequence[str]], Rows]]:
    with closing(lines(path)) as text:
        header: list[str] = []
        where: dict[str, int] = {}
        try:
            for first, batch in csv_batches(text, BATCH, delimiter):
                begun = bool(header)
                if not begun:
                    header = batch[0]
                    where = {role: _position(header, column.name, path.name) for role, column in columns.items()}
                rows = batch if begun else batch[1:]
                numbers = range(first + len(batch) - len(rows), first + len(batch))
                place = Rows(path.name, "line", numbers)
                _check_widths(rows, len(header), place)
                if only_with is not None:
                    there = [number for number, row in enumerate(rows) if row[where[only_with]]]
                    place = Rows(path.name, "line", [numbers[one] for one in there])
                    rows = [rows[number] for number in there]
                yield {role: [row[position] for row in rows] for role, position in where.items()}, place
        except CsvFault as fault:
            raise ScenarioError(f"{path.name} {fault}") from fault
        if not header:
            raise ScenarioError(f"{path.name} line 1: no header; it must name the column {_first(columns)!r}")


def _first(columns: Mapping[str, Column]) -> str:
    return next(iter(columns.values())).name


def _position(header: list[str], name: str, file: str) -> int:
    if len(header) > MAX_COLUMNS:
        raise ScenarioError(f"{file} line 1: {len(header)} columns; it must be at most {MAX_COLUMNS}")
    if header.count(name) > 1:
        raise ScenarioError(f"{file} line 1: the column {shown(name)} occurs twice")
    if name not in header:
        hint = " (separated by semicolons?)" if len(header) == 1 and ";" in header[0] else ""
        near = nearest(name, [shown(cell).strip("'\"") for cell in header][:12])
        raise ScenarioError(f"{file} line 1: no column {shown(name)}{hint}; {near}")
    return header.index(name)


def _check_widths(rows: list[list[str]], width: int, place: Rows) -> None:
    for number, row in enumerate(rows):
        if len(row) != width:
            raise ScenarioError(f"{place.of(number)}: {len(row)} fields, not {width} (truncated?)")


def parsed_numbers(cells: Sequence[str], name: str, place: Rows) -> Floats:
    """Return the numbers of a column, float64; `in_range` refuses one that is too large for it.

    Raises:
        ScenarioError: a cell outside the grammar; with its line.
    """
    if not _MANY_NUMBERS.fullmatch("\n".join((*cells, ""))):
        wrong = next(i for i, cell in enumerate(cells) if not _ONE_NUMBER.fullmatch(cell))
        raise ScenarioError(f"{place.of(wrong)}: {name} is {shown(cells[wrong])}, not a number like -12.5")
    return np.array(list(map(float, cells)), dtype=np.float64)


def _parsed_moments(cells: Sequence[str], name: str, place: Rows) -> Floats:
    plain: list[str] = []
    offsets = np.zeros(len(cells))
    for number, cell in enumerate(cells):
        read = _MOMENT.fullmatch(cell)
        if read is None:
            allowed = "a moment like 2026-01-26T15:57:02Z or 2026-01-26 16:57:02+01:00"
            raise ScenarioError(f"{place.of(number)}: {name} is {shown(cell)}, not {allowed}")
        moment, fraction, sign, hours, minutes = read.groups()
        plain.append(f"{moment}.{fraction}" if fraction else moment)
        if sign:
            offsets[number] = (3600 * int(hours) + 60 * int(minutes or 0)) * (1 if sign == "+" else -1)
    try:
        moments = np.array(plain, dtype="datetime64[us]")
    except ValueError:
        wrong = next(i for i, cell in enumerate(plain) if not _is_moment(cell))
        raise ScenarioError(f"{place.of(wrong)}: {name} is {shown(cells[wrong])}, which is no date") from None
    return moments.astype(np.int64) / 1e6 - offsets


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


def check_fix(longitude: Floats, latitude: Floats, place: Callable[[int], str]) -> None:
    """Refuse longitude 0, latitude 0: receivers write it when they have no fix.

    Raises:
        ScenarioError: there is one; with its line.
    """
    lost = (longitude == 0) & (latitude == 0)
    if lost.any():
        where = place(int(lost.argmax()))
        raise ScenarioError(f"{where}: longitude 0, latitude 0 is a receiver without a fix; leave such rows out")
