"""CSV files that go out, and the texts in their cells: names of places and categories that others chose.

Every CSV file of the product is written by `csv_table` or has its texts from `csv_cell`. It must not know what a column
means.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

_BEGINS_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # The wide forms too.
_TEXT: Final = "'"


def csv_text(text: str) -> str:
    """Return a text as a cell that no spreadsheet takes for a formula (CWE-1236).

    One that begins as a formula does, and is no number, gets an apostrophe before it: `=1+1` becomes `'=1+1`.
    """
    if not text.startswith(_BEGINS_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return _TEXT + text
    return text


def csv_cell(value: object) -> object:
    """Return what stands in a cell: a text as `csv_text` gives it, anything else as it is."""
    return csv_text(value) if isinstance(value, str) else value


def csv_table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV (as RFC 4180, but lines end with LF): the names of the columns, then a row a line.

    Cells are as `csv_cell` gives them, and None is empty.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, header))
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()
