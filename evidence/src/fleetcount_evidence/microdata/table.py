"""Reads a table of persons from CSV text; every column must have a role: quasi-identifier, sensitive, or dropped.

A column without a role is refused: it could be an identifier. Messages name lines and columns, never a cell's text.
"""

import difflib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleetcount_analysis.errors import AnalysisError
from fleetcount_protocol.layout import prints
from fleetcount_transport.csv_rows import CsvFault, csv_rows

BUCKET_COLUMN: Final = "bucket"
"""The name of the column that both published tables share."""
MOST_RECORDS: Final = 1_000_000
_MOST_COLUMNS: Final = 1_000
_SHOWN: Final = 60


class MicrodataError(AnalysisError):
    """The table, or what is asked of it, cannot be used; the message names line, column or key and what is allowed."""


def shown(name: str) -> str:
    """Return a name in quotes, cut to 60 characters."""
    return repr(name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known name most like this one, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {shown(near[0])}?" if near else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRoles:
    """The role of each column: published exactly, published by buckets, or left out.

    `allow_unique` names quasi-identifiers that may have a different value in every record; `read_table` refuses any
    other such column, which is most likely an identifier.

    Raises:
        MicrodataError: no quasi-identifier, a column with two roles, a quasi-identifier named like the bucket column,
            or a column in `allow_unique` that is not a quasi-identifier.
    """

    quasi_identifiers: tuple[str, ...]
    sensitive: str
    drop: tuple[str, ...] = ()
    allow_unique: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.quasi_identifiers:
            raise MicrodataError("quasi_identifiers is empty; it must name at least one column")
        columns = self.columns
        for column in columns:
            if columns.count(column) > 1:
                raise MicrodataError(
                    f"column {shown(column)} is named twice; it is one of quasi-identifier, sensitive and drop"
                )
        if BUCKET_COLUMN in self.quasi_identifiers:
            raise MicrodataError(f"quasi-identifier {BUCKET_COLUMN!r} has the name of the bucket column; rename it")
        for column in self.allow_unique:
            if column not in self.quasi_identifiers:
                near = nearest(column, self.quasi_identifiers)
                raise MicrodataError(f"allow_unique names {shown(column)}, which is no quasi-identifier{near}")

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that has a role."""
        return (*self.quasi_identifiers, self.sensitive, *self.drop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microdata:
    """The records of a table: `attributes[r]` are record r's quasi-identifiers in the order of the roles.

    `sensitive[r]` is its sensitive value. Dropped columns are not here. For the holder only: `repr` shows no record.
    """

    roles: ColumnRoles
    attributes: tuple[tuple[str, ...], ...] = field(repr=False)
    sensitive: tuple[str, ...] = field(repr=False)


def read_table(text: str, roles: ColumnRoles) -> Microdata:
    """Return the records of a CSV text: a header, commas, quotes doubled inside quotes (RFC 4180).

    A byte order mark and either line ending are accepted; an empty quasi-identifier is a value like others.

    Raises:
        MicrodataError: the text is not CSV; a column name twice, without a role or missing; a record with more or fewer
            fields than the header, a character that does not print, or no sensitive value; fewer than 2 or more than
            1,000,000 records; a quasi-identifier with a different value in every record.
    """
    rows = _rows(text.removeprefix("\ufeff"))
    header = next(rows, (1, list[str]()))[1]
    picked = _positions(header, roles)
    attributes: list[tuple[str, ...]] = []
    sensitive: list[str] = []
    for line, fields in rows:
        _check_record(line, fields, header, picked[-1])
        attributes.append(tuple(sys.intern(fields[position]) for position in picked[:-1]))
        sensitive.append(sys.intern(fields[picked[-1]]))
        if len(sensitive) > MOST_RECORDS:
            raise MicrodataError(f"the table has more than {MOST_RECORDS} records; allowed is 2 to {MOST_RECORDS}")
    if len(sensitive) < 2:
        raise MicrodataError(f"the table has {len(sensitive)} records; it must have 2 to {MOST_RECORDS}")
    _refuse_identifiers(attributes, roles)
    return Microdata(roles=roles, attributes=tuple(attributes), sensitive=tuple(sensitive))


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (its line, fields) of every record, the header first."""
    try:
        yield from csv_rows(io.StringIO(text, newline=""))
    except CsvFault as fault:
        raise MicrodataError(f"line {fault.line} is not CSV: {fault.problem}") from fault


def _positions(header: Sequence[str], roles: ColumnRoles) -> list[int]:
    """Return the positions of the quasi-identifiers, and last that of the sensitive column."""
    if not any(header):
        raise MicrodataError("the table has no header; its first line must name the columns")
    if len(header) > _MOST_COLUMNS:
        raise MicrodataError(f"the header has {len(header)} columns; allowed is 2 to {_MOST_COLUMNS}")
    for column in header:
        _check_column(column, header, roles)
    for column in roles.columns:
        if column not in header:
            hint = "; fields are separated by commas" if len(header) == 1 else nearest(column, header)
            raise MicrodataError(f"column {shown(column)} is not in the table{hint}")
    return [header.index(column) for column in (*roles.quasi_identifiers, roles.sensitive)]


def _check_column(column: str, header: Sequence[str], roles: ColumnRoles) -> None:
    if not column or not prints(column):
        raise MicrodataError(f"the header names a column {shown(column)}; a name must have printable characters only")
    if header.count(column) > 1:
        raise MicrodataError(f"the header names column {shown(column)} {header.count(column)} times; allowed is once")
    if column not in roles.columns and len(header) > 1:
        near = nearest(column, (name for name in roles.columns if name not in header))
        raise MicrodataError(f"column {shown(column)} has no role; list it under quasi_identifiers or under drop{near}")


def _check_record(line: int, fields: Sequence[str], header: Sequence[str], sensitive: int) -> None:
    if len(fields) != len(header):
        raise MicrodataError(f"line {line} has {len(fields)} fields; the header has {len(header)}")
    # An unclosed quote makes one field of the next lines, also in a dropped column: every field is checked.
    if not all(map(prints, fields)):
        column = next(name for name, text in zip(header, fields, strict=True) if not prints(text))
        raise MicrodataError(
            f"line {line}, column {shown(column)}: a line break or another character that does not print "
            "(a quote that is not closed?)"
        )
    if not fields[sensitive] or fields[sensitive].isspace():
        raise MicrodataError(
            f"line {line}, column {shown(header[sensitive])} is empty; every record needs a sensitive value, "
            "if only a word for 'not known'"
        )


def _refuse_identifiers(attributes: Sequence[tuple[str, ...]], roles: ColumnRoles) -> None:
    for position, column in enumerate(roles.quasi_identifiers):
        different = len({record[position] for record in attributes})
        if different == len(attributes) and column not in roles.allow_unique:
            raise MicrodataError(
                f"quasi-identifier {shown(column)} has a different value in each of the {different} records, like "
                "an identifier: list it under drop, or also under allow_unique"
            )
