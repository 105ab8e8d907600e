"""The columns to read from a table, and the place of a row in its file: shared by the readers of CSV and Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

BATCH: Final = 16_384
"""Rows in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column to read: its name in the file, its form, and for numbers the allowed range.

    "count" is a whole number; in CSV digits alone, since "1.000" is a thousand to some and one to others ("10.0", which
    other programs write of whole numbers, is read too). "utc" is a moment like 2026-01-26T15:57:02Z, read as seconds
    since 1970. "reading" is whatever a signal may be, as
    text: a text, a number, true or false; nothing is "".
    """

    name: str
    form: Literal["text", "number", "count", "utc", "reading"] = "text"
    low: float = -1e12
    high: float = 1e12

    @property
    def textual(self) -> bool:
        """Whether its cells are read as texts."""
        return self.form in ("text", "reading")


@dataclass(frozen=True, slots=True)
class Rows:
    """The place of the rows of a piece in their file, for messages: its name, "line" or "row", and their numbers."""

    file: str
    unit: str
    numbers: Sequence[int]

    def of(self, row: int) -> str:
        """Return "FILE line N" for a row of the piece."""
        return f"{self.file} {self.unit} {self.numbers[row]}"
