"""Reads the data of the experiments: the shipped extracts, or a folder of the same layout.

It must not read or return a person's row, only counts; the exception is a census file that the user names.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import fleetcount_data
import numpy as np
from fleetcount_analysis.errors import AnalysisError
from fleetcount_transport.csv_rows import CsvFault, csv_rows
from numpy.typing import NDArray

MAX_BYTES: Final = 512 * 2**20
Codes = NDArray[np.int64]
ReadT = TypeVar("ReadT")
_WEIGHT: Final = "persons"


class ExtractError(AnalysisError):
    """A data file is missing or malformed; the message names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A Gowalla location: its number, check-ins, different users, and its name where it is a public place."""

    number: str
    checkins: int
    users: int
    name: str

    @property
    def label(self) -> str:
        """The name, or the number."""
        return self.name or f"location {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A range of ages or tumour sizes, and the number of patients in it."""

    number: int
    label: str
    patients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A table with integer codes: `codes` is (records, columns) int64; `codes[r, c]` is an index into `labels[c]`.

    `labels[c]` are the values of column c in alphabetical order.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    codes: Codes

    def without(self, column: str, label: str) -> "Records":
        """Return the records whose value in `column` is not `label` (a missing value)."""
        place = self.columns.index(column)
        if label not in self.labels[place]:
            return self
        kept = self.codes[self.codes[:, place] != self.labels[place].index(label)]
        return _recoded(self.name, self.columns, self.labels, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The columns of a census file that are used: one table for each sensitive column, with the quasi-identifiers."""

    sensitive: tuple[str, ...] = ("Occupation", "Education")
    quasi_identifiers: tuple[str, ...] = ()
    """Empty for all other columns of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracts:
    """The data folders: a user's first, then the shipped one."""

    folders: tuple[Path, ...]
    census: Census = Census()

    @staticmethod
    def shipped(extra: Path | None = None, census: Census | None = None) -> "Extracts":
        """Return the user's folder, if given, followed by the shipped one: a user's file replaces the shipped file.

        Raises:
            ExtractError: the user's folder is not a directory.
        """
        if extra is not None and not extra.is_dir():
            raise ExtractError(f"data folder {str(extra)!r} is not a directory")
        ours = fleetcount_data.folder()
        return Extracts(folders=(ours,) if extra is None else (extra, ours), census=census or Census())

    def locations(self) -> list[Location]:
        """Return the Gowalla locations with at least 12 users, busiest first."""

        def location(row: list[str]) -> Location:
            return Location(number=row[0], checkins=int(row[1]), users=int(row[2]), name=row[3])

        return self._table("gowalla_nyc/locations.csv", ["location", "checkins", "users", "name"], location)

    def checkin_histogram(self) -> dict[int, int]:
        """Return the number of locations by number of check-ins, over all locations."""
        header = ["checkins", "locations"]
        return dict(self._table("gowalla_nyc/histogram.csv", header, lambda row: (int(row[0]), int(row[1]))))

    def patients(self, attribute: str) -> list[Group]:
        """Return the breast cancer patients by 'age' or by 'tumor_size'."""
        header = ["group", "range", "patients", "recurrences"]
        return self._table(
            f"breast_cancer/{attribute}.csv",
            header,
            lambda row: Group(number=int(row[0]), label=row[1], patients=int(row[2])),
        )

    def city(self) -> dict[int, int]:
        """Return the number of locations of the city by number of visitors."""
        return dict(self._table("city/counts.csv", ["visitors", "locations"], lambda row: (int(row[0]), int(row[1]))))

    def adult(self) -> Records:
        """Return the Adult records, eight attributes."""
        return _records("Adult", *_columns(self._path("adult/combinations.csv.gz"), (), ()))

    def census_records(self) -> Records | None:
        """Return the records of census.csv or census.csv.gz in the user's folder, or None without such a file."""
        for name in ("census.csv", "census.csv.gz"):
            path = self.folders[0] / name
            if path.is_file():
                wanted = self.census
                return _records("census", *_columns(path, wanted.sensitive, wanted.quasi_identifiers))
        return None

    def _path(self, name: str) -> Path:
        for folder in self.folders:
            if (folder / name).is_file():
                return folder / name
        raise ExtractError(f"{name} is not part of this installation; name a folder with it")

    def _table(self, name: str, header: list[str], read: Callable[[list[str]], ReadT]) -> list[ReadT]:
        path = self._path(name)
        rows = _rows(path)
        if rows[0] != header:
            raise ExtractError(f"{path.name}: the header is {','.join(rows[0])[:80]!r}, not {','.join(header)!r}")
        found: list[ReadT] = []
        for line, row in enumerate(rows[1:], 2):
            try:
                found.append(read(row))
            except ValueError as error:
                raise ExtractError(f"{path.name} row {line}: {error}") from error
        return found


def _rows(path: Path) -> list[list[str]]:
    """Return the header and all rows of a CSV file, each as long as the header."""
    try:
        rows = [row for _, row in csv_rows(io.StringIO(_content(path), newline=""))]
    except CsvFault as fault:
        raise ExtractError(f"{path.name} {fault}") from fault
    if len(rows) < 2:
        raise ExtractError(f"{path.name}: {len(rows)} rows; a header and at least one row are needed")
    if len(set(rows[0])) != len(rows[0]):
        raise ExtractError(f"{path.name}: the header has a column name twice")
    for line, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ExtractError(f"{path.name} row {line}: {len(row)} fields, not {len(rows[0])}")
    return rows


def _content(path: Path) -> str:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ExtractError(f"{path.name} cannot be read: {error}") from error
    if len(content) > MAX_BYTES:
        raise ExtractError(f"{path.name} holds more than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ExtractError(f"{path.name} is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise ExtractError(f"{path.name} holds a NUL character")
    return text


def _columns(
    path: Path, sensitive: Sequence[str], quasi_identifiers: Sequence[str]
) -> tuple[tuple[str, ...], list[list[str]], list[int]]:
    """Return the wanted columns' names, their cells column by column, and the number of persons of each row."""
    rows = _rows(path)
    header = rows[0]
    wanted = [*quasi_identifiers, *(name for name in sensitive if name not in quasi_identifiers)]
    if not quasi_identifiers:
        wanted = [name for name in header if name != _WEIGHT]
    missing = [name for name in (*wanted, *sensitive) if name not in header]
    if missing:
        raise ExtractError(f"{path.name} has no column {missing[0]!r}; its columns are {', '.join(header)[:200]}")
    cells = [[row[header.index(name)] for row in rows[1:]] for name in wanted]
    return tuple(wanted), cells, _weights(path.name, header, rows[1:])


def _weights(name: str, header: list[str], rows: list[list[str]]) -> list[int]:
    if _WEIGHT not in header:
        return [1] * len(rows)
    place = header.index(_WEIGHT)
    weights = [int(row[place]) if row[place].isascii() and row[place].isdigit() else 0 for row in rows]
    if min(weights) < 1 or sum(weights) > 10_000_000:
        raise ExtractError(f"{name}: column {_WEIGHT!r} must hold whole numbers from 1 that sum to at most 10000000")
    return weights


def _records(name: str, columns: tuple[str, ...], cells: list[list[str]], weights: list[int]) -> Records:
    labels = tuple(tuple(sorted(set(column))) for column in cells)
    places = [{label: code for code, label in enumerate(column)} for column in labels]
    coded = [[place[cell] for cell in column] for place, column in zip(places, cells, strict=True)]
    codes = np.repeat(np.array(coded, dtype=np.int64).T, np.array(weights), axis=0)
    return Records(name=name, columns=columns, labels=labels, codes=codes)


def _recoded(name: str, columns: tuple[str, ...], labels: tuple[tuple[str, ...], ...], codes: Codes) -> Records:
    """Return records without the labels that no record has."""
    kept: list[tuple[str, ...]] = []
    fresh = np.empty_like(codes)
    for place, column in enumerate(labels):
        present, fresh[:, place] = np.unique(codes[:, place], return_inverse=True)
        kept.append(tuple(column[code] for code in present))
    return Records(name=name, columns=columns, labels=tuple(kept), codes=fresh)
