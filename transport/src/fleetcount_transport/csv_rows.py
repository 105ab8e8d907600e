"""The rows of a CSV text (RFC 4180): one reader for every table that a person hands over.

It must not know what a column means.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

_BATCH: Final = 16_384
"""Rows that `csv_batches` holds at a time."""


_UNCLOSED: Final = " (a quote that is not closed?)"


class CsvFault(ValueError):  # noqa: N818 - it is no error that a user sees; each reader words its own
    """A text that is not CSV: the line, counted from 1, and what is wrong there."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


def csv_batches(
    lines: Iterable[str], size: int = _BATCH, delimiter: str = ","
) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the rows of a text at most `size` at a time, each batch behind the number of its first line.

    Every row is one line, so row i of a batch stands on line first + i. Blank lines at the end are passed over, as
    editors and exporters leave them.

    Raises:
        CsvFault: a quote in the wrong place or not closed, a field that holds a line end, or a blank line that rows
            follow.
    """
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    blank: int | None = None
    fault: CsvFault | None = None
    while fault is None:
        first, rows = reader.line_num + 1, list[list[str]]()
        try:
            # What was read before an error stays in the list: its rows are given, and then the fault.
            rows.extend(islice(reader, size))
        except csv.Error as error:
            hint = _UNCLOSED if "end of data" in str(error) else ""
            # The line on which the row begins: of a quote that is not closed the reader is at the end of the text.
            fault = CsvFault(first + len(rows), f"{error}{hint}")
        else:
            if not rows:
                return
        if reader.line_num - first + 1 != len(rows):
            wrong = next((i for i, row in enumerate(rows) if any("\n" in cell or "\r" in cell for cell in row)), None)
            if wrong is not None:
                fault = CsvFault(first + wrong, f"a field holds a line end{_UNCLOSED}")
                rows = rows[:wrong]
        if blank is None and not all(rows):
            blank = first + rows.index([])
        if blank is not None:
            behind = rows[max(0, blank - first) :]
            rows = rows[: max(0, blank - first)]
            fault = CsvFault(blank, "the line is blank") if any(behind) else fault
        if rows:
            yield first, rows
    raise fault


def csv_rows(lines: Iterable[str], delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield every row of a text behind the number of its line; as `csv_batches`."""
    for first, rows in csv_batches(lines, delimiter=delimiter):
        yield from enumerate(rows, start=first)
