"""Which columns of a table are wanted, and where a row of it stands: what the readers of CSV and Parquet share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

BATCH: Final = 16_384
"""Rows held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column to read: its name in the file, what it holds, and for numbers the allowed range.

    "utc" is a moment like 2026-01-26T15:57:02Z, read as seconds since 1970.
    """

    name: str
    form: Literal["text", "number", "utc"] = "text"
    low: float = -1e12
    high: float = 1e12


class Rows(Protocol):
    """Where the rows of a piece stand."""

    def of(self, row: int) -> str:
        """Return "FILE line N" for a row of the piece."""
        ...


@dataclass(frozen=True, slots=True)
class Scattered:
    """Rows with others between them: the name of the file, "line" or "row", and the number of each."""

    file: str
    unit: str
    numbers: Sequence[int]

    def of(self, row: int) -> str:
        """Return "FILE line N"."""
        return f"{self.file} {self.unit} {self.numbers[row]}"


@dataclass(frozen=True, slots=True)
class Place:
    """Rows that follow one another: the name of the file, "line" or "row", and the number of the first."""

    file: str
    unit: str
    first: int

    def of(self, row: int) -> str:
        """Return "FILE line N"."""
        return f"{self.file} {self.unit} {self.first + row}"
