"""From the kept records of a series to its table, and from what a user names to cells, windows and places of it.

Reads files; it must not print, and computes nothing itself: `fleetcount_analysis.answers` does.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleetcount_analysis.answers import GridPlaces, HexagonPlaces, SeriesTable, WindowCounts, cells_inside, series_table
from fleetcount_analysis.answers.places import Places
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release import ReleaseRecord
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import H3Cells, SquareGrid

from fleetcount.files import read_text
from fleetcount.numbers import parse_count
from fleetcount.series_records import Chain, kept_records, series_of_records

__all__ = ["KeptTable", "parse_spans", "places_of", "read_table", "table_of"]

_AREAS: Final = (".geojson", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """The table of a directory of records; `participants` are the released numbers of devices, None where hidden."""

    series: Series
    table: SeriesTable
    participants: tuple[int, ...] | None = field(repr=False)

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
        part = series_table(table.design, table.level, table.labels, table.statement, counts, table.missing)
        devices = None if self.participants is None else tuple(self.participants[row] for row in rows)
        return KeptTable(series=self.series, table=part, participants=devices)

    def cells(self, text: str) -> frozenset[int]:
        """Return the cells that a user names: numbers ("1,5-9"), or the path of a GeoJSON area.

        Raises:
            UsageError: neither, or cells that have no place.
            RangeError: an area that cannot be used or holds no cell.
        """
        if not text.endswith(_AREAS):
            return parse_spans("cell", text, 1, self.table.design.values)
        try:
            area = json.loads(read_text(Path(text)))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{text} is no JSON") from error
        if not isinstance(area, dict):
            raise UsageError(f"{text} holds no GeoJSON object")
        return cells_inside(places_of(self.series), area)


def read_table(directory: Path) -> KeptTable:
    """Return the table of a directory of records, every signature and the chain checked again.

    Raises:
        UsageError: no record, or a file that cannot be read.
        SignatureError, CheckFailedError: as `series_records.kept_records`.
    """
    series = series_of_records(directory).series
    chain = Chain(series)
    kept = table_of(series, kept_records(directory, chain), chain.missing)
    if kept is None:
        raise UsageError(f"{directory} holds no record yet; fetch them with 'fleetcount series records'")
    return kept


def table_of(series: Series, records: Iterable[ReleaseRecord], missing: dict[int, str]) -> KeptTable | None:
    """Return the table of records in the order of their windows, None if there is none.

    `missing` is looked at after the last record: following the chain may fill it meanwhile.

    Raises:
        UsageError: a drill-down, each window of which asks about other places.
    """
    if series.drill_down is not None:
        problem = "drills down, so that it has no one table; see 'fleetcount series places'"
        raise UsageError(f"series {series.name!r} {problem}")
    counts: list[WindowCounts] = []
    devices: list[int] = []
    labels: tuple[str, ...] = ()
    statement: tuple[str, ...] = ()
    for record in records:
        if not counts:
            labels = tuple(cell.label for cell in record.cells)
            statement = tuple(f"{view.audience}, {view.neighbours}: {view.sentence}" for view in record.statement)
        counts.append(_counts(series, record))
        devices += [] if record.participants is None else [record.participants.raw]
    if not counts:
        return None
    table = series_table(series.design, series.release.level, labels, statement, counts, missing)
    return KeptTable(series=series, table=table, participants=tuple(devices) or None)


def _counts(series: Series, record: ReleaseRecord) -> WindowCounts:
    if record.task.series is None:
        raise UsageError("the record is of no window of a series")
    index = record.task.series.index
    baseline = () if record.baseline_raw is None else (record.baseline_raw,)
    return WindowCounts(
        index=index,
        opens=series.schedule.opens(index),
        unit=series.schedule.unit_of(series.coin, index),
        outputs=(*baseline, *(cell.raw for cell in record.cells)),
    )


def places_of(series: Series) -> Places:
    """Return where the cells of a series are.

    Raises:
        UsageError: its values are no places.
    """
    match series.domain:
        case SquareGrid(x0=x0, y0=y0, size=size, columns=columns, rows=rows):
            return GridPlaces(x0=x0, y0=y0, size=size, columns=columns, rows=rows)
        case H3Cells() as domain:
            return HexagonPlaces(cells=domain.cells)
        case _:
            raise UsageError(f"series {series.name!r} asks for no places; areas and maps are for grids and H3 cells")


def parse_spans(what: str, text: str, low: int, high: int) -> frozenset[int]:
    """Return the numbers of "1,5-9", each from `low` to `high`.

    Raises:
        UsageError: something else, a number outside the range, or a span that goes down.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = parse_count(first, low, high)
            end = parse_count(last, start, high) if dash else start
        except ValueError as error:
            raise UsageError(f"{what} {str(error)[:120]}, as in 1,5-9") from None
        found.update(range(start, end + 1))
    return frozenset(found)
