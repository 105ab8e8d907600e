"""From the kept records of a question to its table, and from what a user names to cells, windows and places of it.

Reads files; it must not print, and computes nothing itself: `fleetcount_analysis.answers` does.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fleetcount_analysis.answers import (
    GridPlaces,
    HexagonPlaces,
    QuestionTable,
    WindowCounts,
    cells_inside,
    level_numbers,
    question_table,
    table_design,
    table_numbers,
)
from fleetcount_analysis.answers.places import PartPlaces, Places
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.places import PLACED, can_place, to_degrees
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import Cross, H3Cells, SquareGrid, ValueDomain
from fleetcount_protocol.window.window import Window

from fleetcount.command.numbers import parse_spans
from fleetcount.command.options import read_text
from fleetcount.read.averages import OpenedNumbers, opened_numbers, rows_apart
from fleetcount.read.crosstabs import names_of
from fleetcount.read.records import Chain, kept_records, question_of_records

_AREAS: Final = (".geojson", ".json")
_SQUARE: Final = re.compile(r"\(\s*(?P<x>[0-9]{1,9})\s*,\s*(?P<y>[0-9]{1,9})\s*\)")
"""A square of a grid by the name that tables, maps and files have for it, "7,2", in parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """The table of a directory of records; `participants` are the released numbers of devices, None where hidden.

    Of a question with zooms the table is that of one, the finest being 0, joined with the total where the question has
    one; `opened` has the numbers of all levels.
    """

    question: Question
    table: QuestionTable
    participants: tuple[int, ...] | None = field(repr=False)
    opened: tuple[tuple[int, ...], ...] = field(repr=False)
    zoom: int = 0

    @property
    def last(self) -> int:
        """The last released window."""
        return int(self.table.windows[-1])

    def after(self, window: int) -> "KeptTable | None":
        """Return the part behind a window, None if nothing is."""
        rows = [row for row, index in enumerate(self.table.windows.tolist()) if index > window]
        if not rows:
            return None
        table = self.table
        counts = [
            WindowCounts(
                index=int(table.windows[row]),
                opens=int(table.opens[row]),
                unit=int(table.units[row]),
                outputs=tuple(table.outputs[row].tolist()),
            )
            for row in rows
        ]
        part = question_table(
            table.design,
            table.level,
            table.labels,
            table.statement,
            counts,
            table.missing,
            table.width,
            table.parts,
        )
        part = replace(part, one_in=table.one_in)
        devices = None if self.participants is None else tuple(self.participants[row] for row in rows)
        opened = tuple(self.opened[row] for row in rows)
        return KeptTable(question=self.question, table=part, participants=devices, opened=opened, zoom=self.zoom)

    def cells(self, text: str) -> frozenset[int]:
        """Return the cells that a user names: numbers ("1,5-9"), squares ("(7,2)"), or the path of a GeoJSON area.

        Raises:
            UsageError: none of them, cells that have no place, or an area that cannot be used or holds no cell.
        """
        if not text.endswith(_AREAS):
            return parse_spans("cell", _SQUARE.sub(self._number, text), 1, self.table.design.values)
        return cells_in_file(places_of(self.question, self.zoom), Path(text))

    def _number(self, square: re.Match[str]) -> str:
        name = f"{int(square['x'])},{int(square['y'])}"
        if name not in self.table.labels:
            raise UsageError(
                f"no cell is called {square[0]!r}; there are {self.table.labels[0]!r} to the last,"
                f" {self.table.labels[-1]!r}"
            )
        return str(self.table.labels.index(name) + 1)


def cells_in_file(places: Places, path: Path) -> frozenset[int]:
    """Return the values whose middle lies inside the area of a GeoJSON file.

    Raises:
        UsageError: it cannot be read, is no JSON object, or what `cells_inside` refuses; with the name of the file.
    """
    try:
        area = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON") from error
    if not isinstance(area, dict):
        raise UsageError(f"{path} holds no GeoJSON object")
    try:
        return cells_inside(places, area)
    except RangeError as error:
        raise UsageError(f"{path}: {error}") from error


def read_table(directory: Path, zoom: int = 0) -> KeptTable:
    """Return the table of a directory of records at a zoom, every signature and the chain checked again.

    Raises:
        UsageError: no record, a zoom that the question does not have, or a file that cannot be read.
        SignatureError, CheckFailedError: as `records.kept_records`.
    """
    question = question_of_records(directory).question
    chain = Chain(question)
    kept = table_of(question, kept_records(directory, chain), chain.missing, zoom)
    if kept is None:
        raise UsageError(f"{directory} holds no record yet; fetch them with 'fleetcount question release'")
    return kept


def table_of(
    question: Question, records: Iterable[ReleaseRecord], missing: dict[int, str], zoom: int = 0
) -> KeptTable | None:
    """Return the table of records in the order of their windows at a zoom, None if there is none.

    `missing` is looked at after the last record: following the chain may fill it meanwhile.

    Raises:
        UsageError: a drill-down, each window of which asks about other places, or a zoom that it does not have.
    """
    sides = question.release.sides
    if not 0 <= zoom < len(sides):
        raise UsageError(f"zoom is {zoom}, allowed: 0 to {len(sides) - 1}, the zooms of the question")
    if question.drill_down is not None:
        problem = "drills down, so that it has no one table; see 'fleetcount question places'"
        raise UsageError(f"question {question.name!r} {problem}")
    counts: list[WindowCounts] = []
    opened: list[tuple[int, ...]] = []
    devices: list[int] = []
    labels: tuple[str, ...] = ()
    statement: tuple[str, ...] = ()
    for record in records:
        if not counts:
            labels = level_numbers(question.design, [cell.label for cell in record.cells], zoom)
            views = statement_about(question, record)
            statement = tuple(f"{view.audience}, {view.neighbours}: {view.sentence}" for view in views)
        opened.append(opened_numbers(record))
        counts.append(_counts(question, record, table_numbers(question.design, opened[-1], zoom)))
        devices += [] if record.participants is None else [record.participants.raw]
    if not counts:
        return None
    width = question.domain.coarser(sides[zoom]).columns if isinstance(question.domain, SquareGrid) else None
    design, level, parts = table_design(question.design, zoom), question.release.level, names_of(question.domain)
    table = question_table(design, level, labels, statement, counts, missing, width, parts)
    table = replace(table, one_in=question.one_in)
    kept = tuple(opened)
    return KeptTable(question=question, table=table, participants=tuple(devices) or None, opened=kept, zoom=zoom)


def statement_about(question: Question, record: ReleaseRecord) -> tuple[AdversaryView, ...]:
    """Return what can be learnt of one device from all releases of a question, of one window as its record says it."""
    if question.schedule.windows == 1:
        return record.statement
    return question_views(question.design, question.shape, question.delta)


def opened_in(kept: KeptTable, windows: Iterable[int]) -> OpenedNumbers:
    """Return the opened numbers of some released windows of a question.

    Raises:
        UsageError: sampled windows that share a toss of the coin.
        RangeError: no window, or one that was not released.
    """
    asked, level = kept.question, kept.table.level
    opened = [kept.opened[row] for row in rows_apart(asked.name, kept.table, windows)]
    return OpenedNumbers(name=asked.name, domain=asked.domain, design=asked.design, rows=opened, level=level)


def _counts(question: Question, record: ReleaseRecord, outputs: tuple[int, ...]) -> WindowCounts:
    index = record.window.question.index
    return WindowCounts(
        index=index,
        opens=question.schedule.opens(index),
        unit=question.schedule.unit_of(question.coin, index),
        outputs=outputs,
    )


def places_of(question: Question | Window, zoom: int = 0) -> Places:
    """Return where a question's or a window's cells are, at a zoom: in degrees, unless `place_note` says why not.

    Of several signals a cell is where its value of the first one that has places is.

    Raises:
        UsageError: its values are no places.
    """
    domain = question.domain
    if isinstance(domain, Cross) and (placed := _placed(domain)) is not None:
        members = tuple(domain.apart(value)[placed] for value in range(1, domain.values + 1))
        return PartPlaces(of=_places(question.name, domain.parts[placed].domain), members=members)
    side = question.release.sides[zoom]
    return _places(question.name, domain.coarser(side) if isinstance(domain, SquareGrid) else domain)


def _placed(cross: Cross) -> int | None:
    """Return which part of a cross has places, the first of several."""
    return next((at for at, one in enumerate(cross.parts) if isinstance(one.domain, SquareGrid | H3Cells)), None)


def _places(name: str, domain: ValueDomain) -> Places:
    match domain:
        case SquareGrid(x0=x0, y0=y0, size=size, columns=columns, rows=rows, frame=frame):
            placed = to_degrees(frame) if frame is not None and can_place(frame.epsg) else None
            return GridPlaces(x0=x0, y0=y0, size=size, columns=columns, rows=rows, to_degrees=placed)
        case H3Cells():
            return HexagonPlaces(cells=domain.cells)
        case _:
            raise UsageError(f"{name!r} asks for no places; areas and maps are for grids and H3 cells")


def place_note(question: Question | Window) -> str:
    """Return why a map of a question or a window lies in its grid's own unit; nothing where it lies on Earth."""
    domain = question.domain
    if isinstance(domain, Cross) and (placed := _placed(domain)) is not None:
        domain = domain.parts[placed].domain
    if not isinstance(domain, SquareGrid):
        return ""
    unit = "coordinates are x and y in the grid's own unit"
    if domain.frame is None:
        return f"{unit}: it has no frame that says where on Earth its grid lies"
    epsg = domain.frame.epsg
    return "" if can_place(epsg) else f"{unit}: EPSG {epsg} cannot be placed here, only {PLACED}"
