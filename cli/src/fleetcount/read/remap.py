"""`fleetcount remap`: read every cell of a release with one's own prior and loss.

Reads files and prints; the best answer is found by analysis over the record's true channel. It must not change a
record.
"""

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

import click
import numpy as np
from fleetcount_analysis.channels import noise_size
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.interval_words import level_text
from fleetcount_analysis.remap import LOSSES, Loss, Remap, one_sided_remap, response_remap, sampling_remap
from fleetcount_mechanisms.design import Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release.record import Cell, ReleaseRecord, verify_record_signatures
from fleetcount_protocol.release.record_json import decimal_text, record_from_json
from fleetcount_transport.csv_rows import CsvFault, csv_rows

from fleetcount.command.base import JSON, StrictCommand, aligned, one_line, show
from fleetcount.command.numbers import NumberRange, parse_number
from fleetcount.command.options import PATH, parse_count, read_text, write_file
from fleetcount.command.outputs import check_output_file
from fleetcount.read.report import WIDEST_NAME

_LARGEST_COUNT: Final = 100_000
_LARGEST_FILE: Final = 16 * 2**20
_MOST_ROWS: Final = 200
_COLUMNS: Final = ("cell", "answer", "estimate", "low", "high")
_HEADERS: Final = ("count,probability", "count,weight")
_PROBABILITY: Final = NumberRange(low=Fraction(0), high=Fraction(1))
_WEIGHT: Final = NumberRange(low=Fraction(0), high=Fraction(10) ** 12)
_SUM_SLACK: Final = Fraction(1, 10**9)


@click.command(cls=StrictCommand)
@click.option("--release", required=True, metavar="RELEASE.json", type=PATH, help="The signed record.")
@click.option("--prior", required=True, metavar="PRIOR.csv", type=PATH, help="What you believed before, see above.")
@click.option(
    "--loss",
    required=True,
    metavar="absolute|squared|zero-one|FILE",
    help="What a wrong answer costs; FILE.csv holds loss[count][answer], n+1 lines of n+1 numbers.",
)
@click.option("--output", metavar="FILE.csv", type=PATH, help="Write the table there as well.")
@JSON
def remap(release: Path, prior: Path, loss: str, output: Path | None, as_json: bool) -> None:
    """Read every cell of a release as its best answer under your own prior and loss.

    The published estimate is unbiased, and for that may be negative or a fraction. If you know something of the counts
    beforehand (they are whole, at least 0, mostly small) and what an error costs you, another answer loses less on
    average: the one of least expected loss given the released number. It follows from your prior and the exact law
    of sampling and noise, and costs no privacy.

    PRIOR.csv says how likely each count is, for a cell before the release: a header count,probability (adding up to 1)
    or count,weight, then one line a count; counts that are not listed are impossible.

    \b
      count,weight
      0,50
      1,20
      2,10

    Works on every release; each cell is read by its own number, without larger cells and totals. Of one noise without
    sampling, no private mechanism could tell this user more (Ghosh, Roughgarden, Sundararajan, Theorem 3.1). A release
    has a noise of every aggregator, which protects against the aggregators themselves: then this is the best reading of
    what was released, and no more is claimed. Where devices randomize, their number is taken as released.
    """
    if output is not None:
        check_output_file(output)
    weights = read_prior(prior)
    costs = read_loss(loss, len(weights) - 1)
    record, signatures = record_from_json(read_text(release))
    verify_record_signatures(record, signatures)
    found = remaps_of(record, weights, costs)
    rows = _rows(record, found)
    expected = sum(one.expected_loss for one in found) / len(found)
    if output is not None:
        write_file(output, _csv(rows).encode())
    told = [dict(zip(_COLUMNS, _numbers(row), strict=True)) for row in rows]
    lines = [*_lines(record, expected, rows), *([] if output is None else [f"wrote {output}"])]
    result = {
        "question": record.window.name,
        "level": str(record.level),
        "expected_loss": expected,
        "cells": told,
    }
    show(result, lines, as_json=as_json)


def read_prior(path: Path) -> list[float]:
    """Return the probabilities of the counts 0..n of a prior file.

    Raises:
        UsageError: not of the form, a count twice, or probabilities that do not add up to 1; names line and value.
    """
    rows = _csv_rows(path)
    header = ",".join(rows[0])
    if header not in _HEADERS:
        raise UsageError(one_line(f"{path}: the header is {header[:60]!r}; it must be {' or '.join(_HEADERS)}"))
    allowed = _PROBABILITY if header == _HEADERS[0] else _WEIGHT
    found: dict[int, Fraction] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2:
            raise UsageError(f"{path}, line {number}: {len(row)} fields; there must be 2")
        count = _count(path, number, row[0])
        if count in found:
            raise UsageError(f"{path}, line {number}: count {count} is there twice")
        found[count] = _number(path, number, header[6:], row[1], allowed)
    total = sum(found.values(), Fraction(0))
    if allowed is _PROBABILITY and abs(total - 1) > _SUM_SLACK:
        raise UsageError(f"{path}: the probabilities add up to {float(total):.12g}; they must add up to 1")
    if total == 0 or max(found) == 0:
        raise UsageError(f"{path}: the prior must give weight to something, and list a count above 0")
    return [float(found.get(count, Fraction(0)) / total) for count in range(max(found) + 1)]


def read_loss(name: str, largest_count: int) -> Loss:
    """Return a named loss, or the matrix of a file: line i holds the losses of answering 0..n when the count is i.

    Raises:
        UsageError: no such name or file, a line of another length, or an entry that is no number from 0 on.
    """
    for known in LOSSES:
        if name == known:
            return known
    path, size = Path(name), largest_count + 1
    if not path.exists():
        raise UsageError(one_line(f"loss is {name[:80]!r}; it must be {', '.join(LOSSES)} or a file"))
    rows = _csv_rows(path)
    if len(rows) != size or any(len(row) != size for row in rows):
        widths = sorted({len(row) for row in rows})
        raise UsageError(
            f"{path} has {len(rows)} lines of {widths[0]} to {widths[-1]} numbers; the prior goes to {largest_count}, "
            f"so there must be {size} lines of {size}"
        )
    matrix = [
        [float(_number(path, line, "loss", text, _WEIGHT)) for text in row] for line, row in enumerate(rows, start=1)
    ]
    return np.array(matrix, dtype=np.float64)


def remaps_of(record: ReleaseRecord, prior: Sequence[float], loss: Loss) -> list[Remap]:
    """Return for each cell the best answers to every number that it may have, from the law of its noise.

    Numbers of larger cells and totals are not used: what one believes of a cell says nothing of them. Where devices
    randomize, the number of devices is the one that the release says.

    Raises:
        RangeError: devices randomize, and the prior goes beyond their number.
        TooLargeError: the channel is too large for the prior's largest count.
    """
    told_as = record.window.design.told_as
    found = {cell: _remap_of(record, prior, loss, cell) for cell in set(told_as)}
    return [found[cell] for cell in told_as]


def _remap_of(record: ReleaseRecord, prior: Sequence[float], loss: Loss, cell: int) -> Remap:
    design = record.window.design
    if isinstance(design.noise, OneSidedNoise):
        return one_sided_remap(prior, loss, design.noise, design.aggregators)
    size, channel = noise_size(design.noise), design.channels[cell - 1]
    if record.baseline_raw is None:
        return sampling_remap(prior, loss, channel[0], size, design.aggregators)
    others = sum(one.raw for one in cells_of(record)) if design.outputs is Outputs.ALL else 0
    return response_remap(prior, loss, channel, record.baseline_raw + others, size, design.aggregators)


def cells_of(record: ReleaseRecord) -> tuple[Cell, ...]:
    """Return the numbers of the cells 1..V, without those of larger cells and of totals behind them."""
    return record.cells[: record.window.values]


def _rows(record: ReleaseRecord, found: Sequence[Remap]) -> list[tuple[str, str, str, str, str]]:
    cells = cells_of(record)
    answers = [int(remap.read([cell.raw])[0]) for remap, cell in zip(found, cells, strict=True)]
    return [
        (cell.label, str(answer), decimal_text(cell.estimate, 2), str(cell.low), str(cell.high))
        for cell, answer in zip(cells, answers, strict=True)
    ]


def _numbers(row: tuple[str, str, str, str, str]) -> tuple[str, int, float, int, int]:
    label, answer, estimate, low, high = row
    return label, int(answer), float(estimate), int(low), int(high)


def _csv(rows: Sequence[tuple[str, str, str, str, str]]) -> str:
    return csv_table(_COLUMNS, rows)


def _lines(record: ReleaseRecord, expected: float, rows: Sequence[tuple[str, str, str, str, str]]) -> list[str]:
    level = f"{level_text(record.level)} interval"
    shown = rows[:_MOST_ROWS]
    table = [(row[0], row[1], row[2], f"{row[3]} to {row[4]}") for row in shown]
    head = ("cell", "your answer", "raw estimate", level)
    lines = aligned([head, *table], most=WIDEST_NAME)
    if len(rows) > len(shown):
        lines.append(f"... and {len(rows) - len(shown)} more cells (--output writes all)")
    lines.append("")
    lines.append(f"Expected loss of these answers under your prior: {expected:.6g} a cell.")
    return lines


def _csv_rows(path: Path) -> list[list[str]]:
    text = read_text(path, largest=_LARGEST_FILE)
    try:
        rows = [row for _, row in csv_rows(io.StringIO(text, newline=""))]
    except CsvFault as fault:
        raise UsageError(one_line(f"{path}, {fault}")) from fault
    if not rows:
        raise UsageError(f"{path} is empty")
    return rows


def _count(path: Path, line: int, text: str) -> int:
    try:
        return parse_count(text, 0, _LARGEST_COUNT)
    except ValueError as error:
        raise UsageError(one_line(f"{path}, line {line}: count {error}")) from None


def _number(path: Path, line: int, what: str, text: str, allowed: NumberRange) -> Fraction:
    try:
        return parse_number(text, allowed)
    except ValueError as error:
        raise UsageError(one_line(f"{path}, line {line}: {what} {error}")) from None
