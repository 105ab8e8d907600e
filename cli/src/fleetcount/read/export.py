"""`fleetcount question export`: tables, maps and answers from the records of a question.

Reads a directory that `question release` made, connects nowhere, and prints no number without its interval and level.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_analysis import answers
from fleetcount_analysis.answers import Answer, Chosen, append_parquet, joined_levels, write_csv, write_geojson
from fleetcount_analysis.answers.export import columns_of, last_window
from fleetcount_analysis.answers.levels import counted
from fleetcount_analysis.answers.smoothing import smoothed
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_ZOOMS
from fleetcount_protocol.window.signal import decimal_text

from fleetcount.command.base import JSON, OneOf, StrictCommand, one_line, show
from fleetcount.command.numbers import QUANTILE, NumberRange, Several, parse_number, parse_spans, spans_text
from fleetcount.command.options import PATH, Count, parse_count
from fleetcount.command.outputs import check_output_file
from fleetcount.question.files import asked_words
from fleetcount.read.records import by_reason
from fleetcount.read.table import KeptTable, opened_in, place_note, places_of, read_table

_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".geojson": "geojson", ".json": "geojson"}
_MOST_ROWS: Final = 200
Told = tuple[str, dict[str, Any] | None]
"""A line for people, and the same for programs; None where the line only explains other lines."""
_STEP: Final = NumberRange(low=Fraction(0), high=Fraction(10**9), low_included=False)


@click.command("export", cls=StrictCommand)
@click.option("--records", required=True, metavar="DIR", type=PATH, help="What 'question release' has kept.")
@click.option("--output", metavar="FILE", type=PATH, help="The file to write.")
@click.option("--format", "kind", type=OneOf(["parquet", "csv", "geojson"]), help="Default: by FILE's ending.")
@click.option("--windows", metavar="WINDOWS", help="Windows to ask about (3 or 0-23 or 1,5-9).")
@click.option(
    "--sum", "cells", metavar="CELLS|AREA.geojson", help="Add these cells (1,5-9 or '(7,2)') or all inside an area."
)
@click.option("--difference", metavar="A,B", help="How much more was counted in window B than in A.")
@click.option("--simultaneous", is_flag=True, help="Every count, with intervals that hold all at once.")
@click.option("--largest", type=Count(1, 4095), metavar="N", help="The N largest counts, with such intervals.")
@click.option("--readable", is_flag=True, help="Whole numbers of at least 0, for people.")
@click.option("--zoom", type=Count(0, MAX_ZOOMS - 1), default=0, show_default=True, help="Of a release of several.")
@click.option("--consistent", is_flag=True, help="Counts of all its zooms that add up.")
@click.option("--quantile", type=Several(QUANTILE), metavar="Q", help="Of a number: the median is 0.5; or 0.1,0.9.")
@click.option("--mean", is_flag=True, help="Of a number: its mean over the devices with a value.")
@click.option("--smooth", metavar="CELL,STEP", help="A cell over time, if its count moves by about STEP a window.")
@JSON
def export(records: Path, output: Path | None, kind: str | None, zoom: int, as_json: bool, **questions: Any) -> None:
    """Write the table of a question as Parquet or CSV, one window as a GeoJSON map, or print answers from it.

    A row is one cell of one window: raw number, unbiased estimate, interval, an interval that holds for all cells of
    the window at once, and a readable number. Level, privacy statement and missing windows stand in every file. Parquet
    grows: run it again after 'question release' and new windows are added; old rows are never changed.

    \b
    --sum 1,5-9                    a question fixed before looking: all released windows, or --windows
    --sum '(7,2),(8,2)'            the same for squares by their names
    --sum district.geojson         the same for every cell whose middle lies in an area
    --difference 8,17              window 17 less window 8, of all cells or of those of --sum
    --largest 5                    found by looking: the intervals allow for everything looked at
    --simultaneous, --readable     the last released window, or --windows
    --zoom 1                       squares of twice the side, or 2 bins together, in place of the finest
    --consistent                   all zooms of the last released window, or of --windows, so that they add up
    --quantile 0.5,0.9 --mean      of a question for a number: all released windows together, or --windows
    --smooth 4,2.5                 a curve beside the raw numbers, right only if its model is

    Areas and maps are in longitude and latitude if the question has a frame, else in the grid's own unit.

    Sums add counts, not devices: a device counted in two windows counts twice. Never add readable numbers: use --sum.
    """
    asked = any(found for name, found in questions.items() if name != "windows")
    if output is None and not asked:
        raise UsageError("nothing to do: give --output FILE, or a question (--sum, --difference, --largest, ...)")
    if kind is not None and output is None:
        raise UsageError(f"--format is {kind!r}, allowed with --output FILE, which is written in it")
    if kind is None and output is not None and output.suffix not in _FORMATS:
        raise UsageError(f"--output is {str(output)[:80]!r}; it must end in .parquet, .csv or .geojson")
    if unused := _without_effect(zoom, questions):
        raise UsageError(unused)
    if output is not None:
        check_output_file(output)
    kept, windows = read_table(records, zoom), questions["windows"]
    consistent, quantiles, mean = (questions.pop(name) for name in ("consistent", "quantile", "mean"))
    told = list(_averages(kept, quantiles or (), windows, mean=mean)) if quantiles or mean else []
    told += [*_answers(kept, **questions), *(_consistent(kept, windows) if consistent else ())]
    lines = [one_line(line) for line, _ in (*told, *((words, None) for words in asked_words(kept.question))) if line]
    if output is not None:
        lines.append(_written(kept, output, kind or _FORMATS[output.suffix], questions["windows"]))
    missing = {str(index): reason for index, reason in sorted(kept.table.missing.items())}
    rows = [{"level": str(kept.table.level)} | row for _, row in told if row is not None]
    found: dict[str, Any] = {"question": kept.question.name, "missing": missing, "answers": rows}
    found |= {} if kept.question.one_in == 1 else {"one_in": kept.question.one_in}
    show(found | ({} if output is None else {"written": str(output)}), lines, as_json=as_json)


def _without_effect(zoom: int, questions: Mapping[str, Any]) -> str:
    """Return why --windows or --zoom would change nothing of what is asked, or nothing."""
    own, all_zooms = ("difference", "smooth"), ("consistent", "quantile", "mean")
    for given, names, why in (
        (questions["windows"] is not None, own, "has windows of its own, allowed: without --windows"),
        (zoom, all_zooms, "is read from all zooms, allowed: without --zoom"),
    ):
        named = next((name for name in names if questions[name]), None)
        if given and named is not None:
            return f"--{named} {why}"
    return ""


def _written(kept: KeptTable, path: Path, kind: str, windows: str | None) -> str:
    """Write a file; return the line about it."""
    title = kept.question.name
    if kind == "geojson":
        chosen = _windows(kept, windows, [kept.last])
        if len(chosen) != 1:
            raise UsageError(f"a GeoJSON map shows one window; --windows names {len(chosen)}")
        places = places_of(kept.question, kept.zoom)
        if note := place_note(kept.question):
            raise UsageError(f"{note}; GeoJSON is in degrees, and CSV and Parquet have x and y: write one of these")
        write_geojson(kept.table, places, chosen[0], path, title, kept.participants)
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


def _gaps(kept: KeptTable) -> str:
    return f"; missing: {spans_text(list(kept.table.missing))}" if kept.table.missing else ""


def _windows(kept: KeptTable, text: str | None, default: Sequence[int]) -> list[int]:
    if text is None:
        return list(default)
    return sorted(parse_spans("window", text, 0, kept.question.schedule.windows - 1))


# Answers.


def _answers(
    kept: KeptTable,
    *,
    windows: str | None,
    cells: str | None,
    difference: str | None,
    simultaneous: bool,
    largest: int | None,
    readable: bool,
    smooth: str | None,
) -> Iterator[Told]:
    table = kept.table
    chosen = kept.cells(cells) if cells else frozenset(range(1, table.design.values + 1))
    what = "all cells" if len(chosen) == table.design.values else f"{len(chosen)} cell{'s' * (len(chosen) > 1)}"
    if cells and not difference:
        over = _windows(kept, windows, table.windows.tolist())
        summed = answers.total(table, answers.Region.of(chosen, over))
        asked: dict[str, Any] = {"question": "sum", "cells": sorted(chosen), "windows": over}
        what = f"what was told of {what}" if table.design.levels.most > 1 else what
        yield f"sum of {what} over {spans_text(over)}: {_said(summed)}", asked | _row(summed)
    if difference:
        earlier, later = _pair(difference, kept)
        found = answers.difference(table, answers.Region.of(chosen, later), answers.Region.of(chosen, earlier))
        asked = {"question": "difference", "cells": sorted(chosen), "earlier": earlier, "later": later}
        yield f"{what}, window {later} less window {earlier}: {_said(found)}", asked | _row(found)
    last = answers.Region.of(range(1, table.design.values + 1), _windows(kept, windows, [kept.last]))
    if largest is not None:
        yield from _list(f"the {largest} largest", answers.largest(table, largest, last))
    if simultaneous:
        yield from _list("every count", answers.all_at_once(table, last))
    if readable:
        yield from _readable(kept, last.windows)
    if smooth is not None:
        yield from _smooth(kept, smooth)
    for reason, spans in by_reason(table.missing):
        yield f"not in it: {spans}: {reason}", None


def _averages(kept: KeptTable, quantiles: Sequence[Fraction], windows: str | None, *, mean: bool) -> Iterator[Told]:
    """Yield quantiles and the mean over windows, of the devices with a value."""
    over = _windows(kept, windows, kept.table.windows.tolist())
    opened, where = opened_in(kept, over), f"over {spans_text(over)}, of the devices with a value"
    for q in quantiles:
        found = opened.quantile(q)
        high = None if math.isinf(found.high) else found.high
        asked = {"question": "quantile", "q": str(q), "windows": over}
        row = asked | {"estimate": found.estimate, "low": found.low, "high": high, "unit": found.unit}
        yield f"quantile {decimal_text(q)} {where}: {found}", row
    if mean:
        average = opened.mean()
        ends = {"estimate": average.estimate, "low": average.low, "high": average.high}
        asked = {"question": "mean", "windows": over, "unit": opened.unit}
        unit = f", in {opened.unit}" * bool(opened.unit)
        yield f"mean {where}{unit}: {average}", asked | ends
        if opened.design.levels.weighted:
            summed = opened.total_of_numbers()
            ends = {"estimate": summed.estimate, "low": summed.low, "high": summed.high}
            yield f"sum {where}{unit}: {summed}", asked | {"question": "sum of numbers"} | ends


def _said(answer: Answer) -> str:
    assumed = f", if {answer.assumes}" if answer.assumes else ""
    ends = interval_text(answer.estimate, answer.low, answer.high)
    return f"{answer.estimate:,.1f}, {level_text(answer.level)} interval {ends}{assumed}"


def _row(answer: Answer) -> dict[str, Any]:
    """Return an answer for programs; `together` intervals hold at once with `level`."""
    return {
        "estimate": answer.estimate,
        "low": answer.low,
        "high": answer.high,
        "together": answer.together,
        **({"assumes": answer.assumes} if answer.assumes else {}),
    }


def _list(head: str, found: Sequence[Chosen]) -> Iterator[Told]:
    first = found[0].answer
    yield f"{head}; the {first.together} intervals hold together with {level_text(first.level)}", None
    for place, one in enumerate(found):
        answer = one.answer
        where = f"window {one.window}, cell {one.cell} ({one.label})"
        row = {"question": head, "window": one.window, "cell": one.cell, "label": one.label} | _row(answer)
        said = f"{where}: {answer.estimate:,.1f}, {interval_text(answer.estimate, answer.low, answer.high)}"
        yield said if place < _MOST_ROWS else "", row
    if len(found) > _MOST_ROWS:
        yield f"... and {len(found) - _MOST_ROWS} more; --json has all", None


def _readable(kept: KeptTable, windows: frozenset[int]) -> Iterator[Told]:
    level = level_text(kept.table.level)
    yield f"readable numbers: at least 0 and whole, for people, not for sums; intervals of {level}, each alone", None
    columns = {name: values.tolist() for name, values in columns_of(kept.table, kept.participants).items()}
    rows = [row for row, window in enumerate(columns["window_index"]) if window in windows]
    for number, row in enumerate(rows):
        place = f"window {columns['window_index'][row]}, cell {columns['cell'][row]} ({columns['label'][row]})"
        ends = interval_text(columns["estimate"][row], columns["low"][row], columns["high"][row])
        names = ("window_index", "cell", "label", "readable", "raw", "estimate", "low", "high")
        said = f"{place}: {columns['readable'][row]}, {ends}"
        yield said if number < _MOST_ROWS else "", {"question": "readable"} | {n: columns[n][row] for n in names}
    if len(rows) > _MOST_ROWS:
        yield f"... and {len(rows) - _MOST_ROWS} more; --json has all", None


def _consistent(kept: KeptTable, windows: str | None) -> Iterator[Told]:
    design = kept.question.design
    sides, total = len(design.levels.sides), design.levels.total
    if design.levels.most > 1:
        raise UsageError(
            f"question {kept.question.name!r} lets a vehicle tell {design.levels.most} categories at once, whose counts"
            " do not add up to vehicles; --consistent is for one"
        )
    if sides + total == 1 and not design.levels.margins:
        raise UsageError(f"question {kept.question.name!r} has one zoom; --consistent is for several")
    zooms = "the cells and the total" if sides == 1 else f"all {sides} zooms{' and the total' * total}"
    if design.levels.margins:
        zooms = f"the cells, the margins{' and the total' * total}"
    yield (
        f"counts of {zooms} that add up; intervals of {level_text(kept.table.level)}, each alone; and the raw numbers",
        None,
    )
    label = kept.question.first_window.label
    for row in kept.table.rows(_windows(kept, windows, [kept.last])):
        found = joined_levels(design, kept.opened[row], kept.table.level)
        starts = counted(design.levels, design.levels.starts()[:-1])
        for zoom, estimates in enumerate(found.estimates):
            number = starts[zoom]
            ends = zip(estimates.tolist(), found.low[zoom].tolist(), found.high[zoom].tolist(), strict=True)
            for place, (estimate, low, high) in enumerate(ends):
                raw, number = kept.opened[row][number], number + 1
                named = f"zoom {zoom}, cell {label(number)}" if zoom < sides else f"the {label(number)}"
                named = f"margin {label(number)}" if sides <= zoom < sides + len(design.levels.margins) else named
                window = int(kept.table.windows[row])
                row_json = {"window": window, "zoom": zoom, "label": label(number), "raw": raw}
                ends_json = {"question": "consistent", "estimate": estimate, "low": low, "high": high}
                said = f"window {window}, {named}: {estimate:,.1f}, {interval_text(estimate, low, high)}; raw {raw:,}"
                yield said if place < _MOST_ROWS else "", ends_json | row_json
            if estimates.size > _MOST_ROWS:
                more = f"... and {estimates.size - _MOST_ROWS} more of zoom {zoom}"
                yield f"{more}; --json has all", None


def _smooth(kept: KeptTable, text: str) -> Iterator[Told]:
    number, _, step = text.partition(",")
    try:
        cell = parse_count(number.strip(), 1, kept.table.design.values)
        change = parse_number(step.strip(), _STEP)
    except ValueError as error:
        raise UsageError(f"--smooth {str(error)[:160]}: a cell and a step, as in 4,2.5") from None
    curve, table = smoothed(kept.table, [cell], change_sd=float(change)), kept.table
    model = {"assumes": curve.model}
    yield f"cell {cell} ({table.labels[cell - 1]}) over time; {curve.model}", None
    yield "a standard error holds if the model does; it is no interval of the release, which stands behind it", None
    rows = zip(table.windows.tolist(), curve.values[:, 0].tolist(), curve.standard_errors[:, 0].tolist(), strict=True)
    for row, (window, value, spread) in enumerate(rows):
        low, high = int(table.low[row, cell - 1]), int(table.high[row, cell - 1])
        released = table.estimates[row, cell - 1]
        raw = f"released {released:,.1f}, {level_text(kept.table.level)} interval {interval_text(released, low, high)}"
        ends = {"estimate": float(released), "low": low, "high": high}
        known = {"question": "smooth", "cell": cell, "window": window, "smoothed": value, "standard_error": spread}
        yield f"window {window}: smoothed {value:,.1f}, standard error {spread:,.1f}; {raw}", known | ends | model


def _pair(text: str, kept: KeptTable) -> tuple[int, int]:
    last, parts = kept.question.schedule.windows - 1, text.split(",")
    try:
        earlier, later = (parse_count(part.strip(), 0, last) for part in parts)
    except ValueError:
        raise UsageError(f"--difference is {text[:40]!r}, allowed: two windows from 0 to {last}, as in 8,17") from None
    return earlier, later
