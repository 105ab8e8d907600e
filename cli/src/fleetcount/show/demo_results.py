"""What the demo leaves behind and says of it: one record or a folder of records, beside the truth, and pictures.

Writes into a directory it is given; the caller makes it appear whole or not at all.
"""

import base64
import importlib.util
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from fleetcount_analysis.answers import append_parquet, everybody, write_csv
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_data.streets import BOLOGNA_EPSG, BOLOGNA_OFFSET, bologna_streets
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.question.question import encode_signed_question
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.release.record_json import decimal_text, record_to_json
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.frame import Frame
from fleetcount_simulator.network.run import QuestionAsked, WindowAsked

from fleetcount.question.files import describe_question
from fleetcount.read.records import QUESTION_FILE, Chain, save_record
from fleetcount.read.report import statement_lines, table_lines
from fleetcount.read.table import table_of
from fleetcount.show.demo_question import DemoOptions, DemoQuestion

WIDTH: Final = 100
"""Columns of what is said of a question."""
_FRAME_MS: Final = 1_200
_MOVING: Final = "time-lapse.gif"
KEYS_FILE: Final = "trusted.toml"
_TOO_FEW: Final = "too_few_reports"
_DRAWING: Final = {"matplotlib": "matplotlib", "PIL": "Pillow"}
"""What pictures need beyond the demo itself, by the name under which it is loaded."""


class Told(NamedTuple):
    """What was written, what is said of it, and which command reads it again, where one does."""

    written: list[str]
    lines: list[str]
    then: Sequence[str] = ()


def tell_window(stage: Path, question: DemoQuestion, options: DemoOptions, result: QuestionAsked) -> Told:
    """Write the record of one window beside the truth; tell its table and statement."""
    (one,), record, truths = result.windows, result.records[0], question.scenario.truths()
    (stage / "release.json").write_text(record_to_json(record, one.signatures), encoding="utf-8")
    (stage / "comparison.csv").write_text(comparison_csv(record, truths), encoding="utf-8")
    picture = partial(draw, stage / "map", _title(question.scenario.question, record), record, truths)
    written = ["release.json", write_keys(stage, record), "comparison.csv"]
    lines = [
        *table_lines(record, truths),
        *sum_lines(result, record, truths, question.scenario.vehicles),
        "",
        *statement_lines(record, explain=options.explain),
        "",
        _covered_line(record, truths),
        f"{int(one.account.counted.sum())} of {question.scenario.vehicles} vehicles hold every aggregator's receipt",
    ]
    release, keys = options.output / "release.json", options.output / KEYS_FILE
    then = [f"check its signatures: fleetcount verify {release} --config {keys}"]
    return Told([*written, *drawn(["map.svg", "map.png"], picture)], lines, then)


def tell_windows(stage: Path, question: DemoQuestion, options: DemoOptions, result: QuestionAsked) -> Told:
    """Write a record, a table and a map a window, and all in one table and a moving picture; tell the last table.

    What it leaves is a directory of records as `fleetcount question release` makes it, with the pictures beside.
    """
    scenario, records = question.scenario, result.records
    truths = [scenario.truths(window) for window in range(len(result.windows))]
    chain = keep_records(stage, result)
    for index, record in records.items():
        (stage / f"window-{index:02d}.csv").write_text(comparison_csv(record, truths[index]), encoding="utf-8")
    table = _write_table(stage, chain, list(records.values()))

    def maps() -> None:
        scale = max(1.0, *(float(count) for counts in truths for count in counts))
        for index, record in records.items():
            title = f"Window {index}: {_title(scenario.question, record)}"
            draw(stage / f"window-{index:02d}", title, record, truths[index], scale)

    pictures = drawn(["a map (svg, png) a window"], maps)
    if pictures:
        pictures += drawn([_MOVING], lambda: _time_lapse(sorted(stage.glob("window-*.png")), stage / _MOVING))
    last = max(records)
    lines = [
        *(window_line(index, one, truths[index], scenario.vehicles) for index, one in enumerate(result.windows)),
        *table_lines(records[last], truths[last]),
        *sum_lines(result, records[last], truths[last], scenario.vehicles),
        "",
        *describe_question(result.signed, WIDTH, explain=options.explain),
    ]
    written = [f"{len(records)} records and for each a table (csv)", table, *pictures]
    return Told(written, lines, [asking_line(options.output, len(truths[last]))])


def asking_line(records: Path, values: int) -> str:
    """Return the line with a command that asks records of so many values for their largest counts."""
    return f"ask them: fleetcount question export --records {records} --largest {min(3, values)}"


def window_line(index: int, one: WindowAsked, truths: Sequence[int], vehicles: int) -> str:
    """Say how a window of many came out: how many truths its intervals hold, or why it has no record."""
    found = f"not released: {why_none(one)}" if one.record is None else _covered_line(one.record, truths)
    return f"window {index}: {found}; {int(one.account.counted.sum())} of {vehicles} vehicles hold every receipt"


def why_none(one: WindowAsked) -> str:
    """Return why a window has no record, in words: the reason of the aggregators, or that none came in time."""
    counted, least = int(one.account.counted.sum()), one.window.min_batch_size
    if one.answer is None:
        return "no aggregator had the record in time; this machine is too busy for so many vehicles"
    if one.answer.abort_reason == _TOO_FEW:
        return (
            f"{_TOO_FEW}: {counted} vehicles hold every receipt, and {least} reports are the least; the others came too"
            " late: ask fewer --vehicles, or on a machine with less to do"
        )
    return f"the aggregators ended it: {one.answer.abort_reason}"


def sum_lines(result: QuestionAsked, record: ReleaseRecord, truths: Sequence[int], vehicles: int) -> list[str]:
    """Return the sum of all cells with its interval and the truth, and what the vehicles in no cell answered."""
    kept = table_of(result.signed.question, [record], {})
    if kept is None:
        return []
    index = record.window.question.index
    found = everybody(kept.table, [index])
    counted, level = sum(truths), level_text(found.level)
    ends = f"{level} interval {interval_text(found.estimate, found.low, found.high)}"
    lines = [f"all cells together: {found.estimate:,.0f}, {ends}; truth {counted:,}"]
    if counted < vehicles:
        lines.append(f"the other {vehicles - counted:,} of {vehicles:,} vehicles are in no cell: they answer 'none'")
    return lines


def write_keys(stage: Path, record: ReleaseRecord) -> str:
    """Write the public keys of the demo's aggregators, with which its records can be verified; return the file's name.

    The private ones were this run's alone, and go with it.
    """
    parties = [
        f"[[aggregators]]\nid = {json.dumps(one.aggregator_id)}\noperator = {json.dumps(one.operator)}\n"
        f'signing_public_key = "{base64.b64encode(one.signing_public_key).decode()}"\n'
        for one in record.window.aggregators
    ]
    (stage / KEYS_FILE).write_text("\n".join(parties), encoding="utf-8")
    return KEYS_FILE


def _covered_line(record: ReleaseRecord, truths: Sequence[int]) -> str:
    inside, level = covered(record, truths), level_text(record.level)
    return f"{inside} of {len(truths)} truths lie in their {level} interval"


def comparison_csv(record: ReleaseRecord, truths: Sequence[int]) -> str:
    """Return cell,truth,estimate,low,high for every cell, in the window's order."""
    rows = (
        (cell.label, truth, decimal_text(cell.estimate), cell.low, cell.high)
        for cell, truth in zip(record.cells, truths, strict=True)
    )
    return csv_table(("cell", "truth", "estimate", "low", "high"), rows)


def covered(record: ReleaseRecord, truths: Sequence[int]) -> int:
    """Return how many truths lie inside their interval."""
    return sum(cell.low <= truth <= cell.high for cell, truth in zip(record.cells, truths, strict=True))


def drawn(names: Sequence[str], drawing: Callable[[], object]) -> list[str]:
    """Draw; return the names of the pictures. Where a package is missing, say so and return no name."""
    try:
        drawing()
    except ModuleNotFoundError as error:
        if error.name not in _DRAWING:
            raise
        missing = f"needs the package {_DRAWING[error.name]}, which comes with fleetcount[analysis]"
        click.echo(f"not drawn: {', '.join(names)}; {missing}", err=True)
        return []
    return list(names)


def draw(stem: Path, title: str, record: ReleaseRecord, truths: Sequence[int], scale: float = 1.0) -> None:
    """Draw a record beside the truth as SVG and PNG; colours of a map go up to `scale` at least."""
    # Matplotlib takes a second to load: after the work, not before it.
    from fleetcount_analysis.figures import GridGeometry, bars_with_intervals, count_map, save_figure

    estimate = [float(cell.estimate) for cell in record.cells]
    low = [float(cell.low) for cell in record.cells]
    high = [float(cell.high) for cell in record.cells]
    truth = [float(one) for one in truths]
    domain = record.window.domain
    if isinstance(domain, SquareGrid):
        size, columns, rows = float(domain.size), domain.columns, domain.rows
        geometry = GridGeometry(size=size, columns=columns, rows=rows, **_streets_of(domain))
        level = float(100 * record.window.release.level)
        figure = count_map(
            geometry, estimate=estimate, low=low, high=high, truth=truth, title=title, level_percent=level, scale=scale
        )
    else:
        labels = [cell.label for cell in record.cells]
        figure = bars_with_intervals(
            labels, estimate=estimate, low=low, high=high, truth=truth, title=title, unit="vehicles"
        )
    save_figure(figure, stem)


def _streets_of(grid: SquareGrid) -> dict[str, Any]:
    """Return the streets of a grid in Bologna and whose they are, of any other nothing."""
    if grid.frame != Frame(epsg=BOLOGNA_EPSG, offset_x=BOLOGNA_OFFSET[0], offset_y=BOLOGNA_OFFSET[1]):
        return {}
    x0, y0 = float(grid.x0), float(grid.y0)
    lines = [[(x - x0, y - y0) for x, y in street.line] for street in bologna_streets()]
    return {"streets": lines, "source": "streets: SUMO's Bologna scenario, EPL-2.0"}


def _title(question: str, record: ReleaseRecord) -> str:
    """Return the question with the number of aggregators and the loss of one release."""
    epsilon = next((view.epsilon for view in record.statement if view.epsilon is not None), None)
    loss = f", epsilon {epsilon.normalize():f}" if epsilon is not None else ""
    return f"{question} ({len(record.window.aggregators)} aggregators{loss})"


def keep_records(stage: Path, result: QuestionAsked) -> Chain:
    """Write the question and its records as `fleetcount question release` keeps them; return their chain.

    Raises:
        CheckFailedError: the records do not hang together.
    """
    (stage / QUESTION_FILE).write_bytes(encode_signed_question(result.signed))
    write_keys(stage, next(iter(result.records.values())))
    chain = Chain(result.signed.question)
    for index, record in result.records.items():
        chain.follow(record)
        save_record(stage, record, result.windows[index].signatures)
    return chain


def _write_table(stage: Path, chain: Chain, released: Sequence[ReleaseRecord]) -> str:
    kept = table_of(chain.question, released, chain.missing)
    if kept is None:
        raise MachineError("no window was released")
    if importlib.util.find_spec("duckdb") is None:
        write_csv(kept.table, stage / "question.csv", chain.question.name, kept.participants)
        return "question.csv (Parquet needs the package duckdb)"
    append_parquet(kept.table, stage / "question.parquet", chain.question.name, kept.participants)
    return "question.parquet"


def _time_lapse(pictures: Sequence[Path], path: Path) -> None:
    """Join the pictures into a moving one."""
    from PIL import Image

    frames = [Image.open(picture).convert("RGB") for picture in pictures]
    frames = [frame.resize(frames[0].size).quantize() for frame in frames]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_FRAME_MS, loop=0)
