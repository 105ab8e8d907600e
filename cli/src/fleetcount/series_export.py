"""`fleetcount series export`: tables, maps and answers from the records of a series.

Reads a directory that `series records` made, asks nobody, and prints no number without its interval and level.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.exits import one_line
from fleetcount.lazy import StrictCommand
from fleetcount.numbers import Count, parse_count
from fleetcount.series_reading import by_reason, spans_text

if TYPE_CHECKING:
    from fleetcount_analysis.answers import Answer, Chosen

    from fleetcount.series_table import KeptTable

__all__ = ["export"]

_FILE: Final = click.Path(path_type=Path)
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".geojson": "geojson", ".json": "geojson"}
_MOST_ROWS: Final = 200


@click.command("export", cls=StrictCommand)
@click.option("--records", required=True, metavar="DIR", type=_FILE, help="What 'series records' has kept.")
@click.option("--output", metavar="FILE", type=_FILE, help="The file to write.")
@click.option("--format", "kind", type=click.Choice(["parquet", "csv", "geojson"]), help="Default: by FILE's ending.")
@click.option("--windows", metavar="WINDOWS", help="Windows to ask about (3 or 0-23 or 1,5-9).")
@click.option("--sum", "cells", metavar="CELLS|AREA.geojson", help="Add these cells (1,5-9) or all inside an area.")
@click.option("--difference", metavar="A,B", help="How much more was counted in window B than in A.")
@click.option("--simultaneous", is_flag=True, help="Every count, with intervals that hold all at once.")
@click.option("--largest", type=Count(1, 4095), metavar="N", help="The N largest counts, with such intervals.")
@click.option("--readable", is_flag=True, help="Whole numbers of at least 0, for people.")
def export(records: Path, output: Path | None, kind: str | None, **questions: Any) -> None:
    """Write the table of a series as Parquet or CSV, one window as a GeoJSON map, or print answers from it.

    A row is one cell of one window: raw number, unbiased estimate, interval, an interval that holds for all cells of
    the window at once, and a readable number. Level, privacy statement and missing windows stand in every file. Parquet
    grows: run it again after 'series records' and new windows are added; old rows are never changed.

    \b
    --sum 1,5-9                    a question fixed before looking: all released windows, or --windows
    --sum district.geojson         the same for every cell whose middle lies in an area
    --difference 8,17              window 17 less window 8, of all cells or of those of --sum
    --largest 5                    found by looking: the intervals allow for everything looked at
    --simultaneous, --readable     the last released window, or --windows

    Sums add counts, not devices: who is counted in two windows counts twice. Never add readable numbers: use --sum.
    """
    from fleetcount.series_table import read_table

    asked = any(questions[name] for name in ("cells", "difference", "simultaneous", "largest", "readable"))
    if output is None and not asked:
        raise UsageError("nothing to do: give --output FILE, or a question (--sum, --difference, --largest, ...)")
    if kind is None and output is not None and output.suffix not in _FORMATS:
        raise UsageError(f"--output is {str(output)[:80]!r}; it must end in .parquet, .csv or .geojson")
    kept = read_table(records)
    lines = [one_line(line) for line in _answers(kept, **questions)]
    if output is not None:
        lines.append(_written(kept, output, kind or _FORMATS[output.suffix], questions["windows"]))
    for line in lines:
        click.echo(line)


def _written(kept: "KeptTable", path: Path, kind: str, windows: str | None) -> str:
    """Write a file; return what is said about it."""
    from fleetcount_analysis.answers import append_parquet, write_csv, write_geojson
    from fleetcount_analysis.answers.export import last_window

    from fleetcount.series_table import places_of

    title = kept.series.name
    if kind == "geojson":
        chosen = _windows(kept, windows, [kept.last])
        if len(chosen) != 1:
            raise UsageError(f"a GeoJSON map shows one window; --windows names {len(chosen)}")
        write_geojson(kept.table, places_of(kept.series), chosen[0], path, title, kept.participants)
        return f"wrote {path}: window {chosen[0]}"
    if windows is not None:
        raise UsageError("--windows is for questions and maps; a table holds every released window")
    if kind == "csv":
        write_csv(kept.table, path, title, kept.participants)
        return f"wrote {path}: {len(kept.table.windows)} windows{_gaps(kept)}"
    later = kept.after(last_window(path) if path.exists() else -1)
    if later is None:
        return f"{path} has every released window already"
    append_parquet(later.table, path, title, later.participants)
    new = len(later.table.windows)
    return f"wrote {path}: {new} new window{'s' * (new > 1)}, up to window {kept.last}{_gaps(kept)}"


def _gaps(kept: "KeptTable") -> str:
    return f"; missing: {spans_text(list(kept.table.missing))}" if kept.table.missing else ""


def _windows(kept: "KeptTable", text: str | None, default: Sequence[int]) -> list[int]:
    from fleetcount.series_table import parse_spans

    if text is None:
        return list(default)
    return sorted(parse_spans("window", text, 0, kept.series.schedule.windows - 1))


# Answers.


def _answers(
    kept: "KeptTable",
    *,
    windows: str | None,
    cells: str | None,
    difference: str | None,
    simultaneous: bool,
    largest: int | None,
    readable: bool,
) -> Iterator[str]:
    from fleetcount_analysis import answers

    table = kept.table
    chosen = kept.cells(cells) if cells else frozenset(range(1, table.design.values + 1))
    what = "all cells" if len(chosen) == table.design.values else f"{len(chosen)} cell{'s' * (len(chosen) > 1)}"
    if cells and not difference:
        over = _windows(kept, windows, table.windows.tolist())
        yield f"sum of {what} over {spans_text(over)}: {_said(answers.total(table, answers.Region.of(chosen, over)))}"
    if difference:
        earlier, later = _pair(difference, kept)
        found = answers.difference(table, answers.Region.of(chosen, later), answers.Region.of(chosen, earlier))
        yield f"{what}, window {later} less window {earlier}: {_said(found)}"
    last = answers.Region.of(range(1, table.design.values + 1), _windows(kept, windows, [kept.last]))
    if largest is not None:
        yield from _list(f"the {largest} largest", answers.largest(table, largest, last))
    if simultaneous:
        yield from _list("every count", answers.all_at_once(table, last))
    if readable:
        yield from _readable(kept, last.windows)
    for reason, spans in by_reason(table.missing):
        yield f"not in it: {spans}: {reason}"


def _said(answer: "Answer") -> str:
    assumed = f", if {answer.assumes}" if answer.assumes else ""
    return f"{answer.estimate:,.1f}, {_percent(answer)} interval {answer.low:,} to {answer.high:,}{assumed}"


def _percent(answer: "Answer") -> str:
    return f"{float(answer.level * 100):g} %"


def _list(head: str, found: "Sequence[Chosen]") -> Iterator[str]:
    first = found[0].answer
    yield f"{head}; the {first.together} intervals hold together with {_percent(first)}"
    for one in found[:_MOST_ROWS]:
        answer = one.answer
        place = f"window {one.window}, cell {one.cell} ({one.label})"
        yield f"{place}: {answer.estimate:,.1f}, {answer.low} to {answer.high}"
    if len(found) > _MOST_ROWS:
        yield f"... and {len(found) - _MOST_ROWS} more; a table has them all"


def _readable(kept: "KeptTable", windows: frozenset[int]) -> Iterator[str]:
    from fleetcount_analysis.answers.export import columns_of

    level = f"{float(kept.table.level * 100):g} %"
    yield f"readable numbers: at least 0 and whole, for people and not for sums; intervals of {level}, each alone"
    columns = {name: values.tolist() for name, values in columns_of(kept.table, kept.participants).items()}
    rows = [row for row, window in enumerate(columns["window_index"]) if window in windows]
    for row in rows[:_MOST_ROWS]:
        place = f"window {columns['window_index'][row]}, cell {columns['cell'][row]} ({columns['label'][row]})"
        yield f"{place}: {columns['readable'][row]}, {columns['low'][row]} to {columns['high'][row]}"
    if len(rows) > _MOST_ROWS:
        yield f"... and {len(rows) - _MOST_ROWS} more; a table has them all"


def _pair(text: str, kept: "KeptTable") -> tuple[int, int]:
    last, parts = kept.series.schedule.windows - 1, text.split(",")
    try:
        earlier, later = (parse_count(part.strip(), 0, last) for part in parts)
    except ValueError:
        raise UsageError(f"--difference is {text[:40]!r}, allowed: two windows from 0 to {last}, as in 8,17") from None
    return earlier, later
