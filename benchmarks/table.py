"""All rows of a run as one table: for a terminal, and for a page.

Pure: rows go in, text comes out. What a reader must know about a row is a numbered note below the table.
"""

from collections import Counter
from collections.abc import Sequence

from rows import Row, Taken, number

_HEADINGS = ("", "path", "ours", "beside it", "its value", "ratio", "must", "aim", "verdict", "CPU s", "load", "note")
_VERDICTS = ("aim met", "must met", "aim missed", "missed", "not run")
_LEFT = {"", "path", "beside it", "verdict", "note"}
"""Columns of text; the others are figures and stand at the right."""


def verdicts(taken: Sequence[Taken]) -> str:
    """Return how many rows had which verdict, in one line; rows of which nothing was demanded are not counted."""
    found = Counter(one.row.verdict for one in taken)
    told = [f"{found[verdict]} {verdict}" for verdict in _VERDICTS if found[verdict]]
    return ", ".join(told) or "nothing was demanded"


def text_table(taken: Sequence[Taken]) -> str:
    """Return the table for a terminal with its notes below, a line a row, in the order the rows were taken."""
    notes = _Notes()
    lines = [_HEADINGS, *([_mark(one.row), *_cells(one, notes)] for one in taken)]
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(_HEADINGS))]
    texts = []
    for cells in lines:
        padded = [
            cell.ljust(width) if heading in _LEFT else cell.rjust(width)
            for cell, width, heading in zip(cells, widths, _HEADINGS, strict=True)
        ]
        texts.append("  ".join(padded).rstrip())
    texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join([*texts, *notes.lines()])


def markdown_table(taken: Sequence[Taken]) -> str:
    """Return the table in Markdown with its notes below; a missed row is in bold."""
    notes = _Notes()
    headings = _HEADINGS[1:]
    lines = [
        "| " + " | ".join(headings) + " |",
        "|" + "|".join("---" if heading in _LEFT else "---:" for heading in headings) + "|",
    ]
    for one in taken:
        cells = [_plain(cell) for cell in _cells(one, notes)]
        if one.row.verdict in {"missed", "not run"}:
            place = headings.index("verdict")
            cells[place] = f"**{cells[place]}**"
        lines.append("| " + " | ".join(cells) + " |")
    found = notes.lines()
    return "\n".join([*lines, *([""] if found else []), *(f"{_plain(text)}  " for text in found)])


class _Notes:
    """Notes in the order they first occur, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_of(self, note: str) -> str:
        return f"[{self._numbers.setdefault(note, len(self._numbers) + 1)}]" if note else ""

    def lines(self) -> list[str]:
        return [f"[{place}] {note}" for note, place in self._numbers.items()]


def _cells(one: Taken, notes: _Notes) -> list[str]:
    row = one.row
    return [
        row.path,
        "" if row.ours is None else f"{number(row.ours)} {row.unit}".rstrip(),
        row.peer,
        "" if row.peer_value is None else number(row.peer_value),
        "" if row.ratio is None else number(row.ratio),
        row.demand(row.must),
        row.demand(row.aim),
        row.verdict,
        f"{one.cpu_s:.1f}",
        f"{one.load:.1f}",
        notes.number_of(row.note),
    ]


def _mark(row: Row) -> str:
    return {"missed": "!", "not run": "-"}.get(row.verdict, "")


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, inside a table too."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*").replace("_", "\\_")
