"""A release for people: its table and its privacy statement, and the checked record from an aggregator's answer.

It must not print a number without its interval and the statement, draw a picture or open a connection.
"""

import contextlib
import math
import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from fleetcount_analysis.interval_words import BELOW_NOISE, interval_text, level_text
from fleetcount_mechanisms.design import Outputs
from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import ReleaseAnswer, WindowState
from fleetcount_protocol.release.record import ReleaseRecord, decode_record, verify_record_signatures
from fleetcount_protocol.release.record_json import decimal_text, sides_words
from fleetcount_protocol.window.domain import Cross, Prefixes
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window

from fleetcount.command.base import RefusedByPolicyError, aligned
from fleetcount.command.statements import privacy_lines, statement_json

if TYPE_CHECKING:
    from fleetcount.read.averages import OpenedNumbers

MOST_ROWS: Final = 200
WIDEST_NAME: Final = 48
TOLD: Final = "vehicles that told this code"
"""What numbers of codes count: a vehicle with several codes tells one of them."""
TOLD_IT: Final = "vehicles that told it"
"""What numbers of sets count: a vehicle that has more than it may tell at once tells some of them."""
_LARGEST: Final = 10**15
_MOST_ORDERED: Final = 512
_WIDEST: Final = 100
"""Characters of a line where the terminal has no width."""
_TOTAL: Final = ("estimate", "low", "high")


def checked_record(
    answer: ReleaseAnswer, window: Window, trusted: Mapping[AggregatorId, TrustedAggregator]
) -> ReleaseRecord:
    """Return the record of an answer after checking every signature and that it answers this very window.

    Raises:
        RefusedByPolicyError: the window is not released (yet), or was aborted; with its state and reason.
        SignatureError: a signature does not verify, or the record is of another window.
    """
    if answer.state is WindowState.ABORTED:
        raise RefusedByPolicyError(f"question {window.name!r} was aborted: {answer.abort_reason}")
    if answer.state is not WindowState.RELEASED:
        raise RefusedByPolicyError(f"question {window.name!r} is {answer.state.value}, not released yet")
    record = decode_record(answer.record)
    if record.window_id != window.window_id:
        raise SignatureError(f"the record answers window {record.window_id}, not {window.window_id}")
    verify_record_signatures(record, answer.signatures, trusted)
    return record


def readable_counts(record: ReleaseRecord) -> list[int] | None:
    """Return whole numbers of at least 0 for people, one per cell, zoom by zoom; for sums use the estimates.

    They obey the noised number of participants where the record has one, but of sets, which add up to more. None where
    NumPy is not installed, or an estimate is beyond 10^15.
    """
    if any(abs(cell.estimate) > _LARGEST for cell in record.cells):
        return None
    try:
        from fleetcount_analysis.answers.levels import level_numbers
        from fleetcount_analysis.answers.readings import readable
    except ModuleNotFoundError:  # Whoever only fetches a release needs no NumPy.
        return None
    design = record.window.design
    estimates = [float(cell.estimate) for cell in record.cells]
    opened = [*([] if record.baseline_raw is None else [record.baseline_raw]), *(cell.raw for cell in record.cells)]
    counts: list[int] = []
    for zoom in range(design.levels.count):
        if zoom == design.levels.weighted_place:
            counts.append(round(level_numbers(design, estimates, zoom)[0]))
            continue
        devices = None if record.participants is None else record.participants.raw
        if design.baseline_opened:
            devices = sum(opened) if design.outputs is Outputs.ALL else opened[0]
        devices = None if design.levels.most > 1 else devices
        counts += readable(level_numbers(design, estimates, zoom), devices).tolist()
    return counts


def table_lines(record: ReleaseRecord, truths: Sequence[int] | None = None) -> list[str]:
    """Return the table, at most 200 rows: label, interval, a readable number, the raw estimate, side and truth if any.

    That of two signals has these in rows and columns, and margins, where the terminal is wide enough. The interval is
    what is known, so it stands first. A longer table shows the largest estimates and says how many rows
    are left out. Under that of a one-sided release stands how sure its sides are, under one with a total how many
    devices are in all cells together.
    """
    if not truths and (grid := _grid_lines(record)):
        return grid
    words, counts = sides_words(record), readable_counts(record)
    further = (
        ("about",) if counts else (),
        ("raw estimate",),
        ("side",) if words else (),
        ("truth",) if truths else (),
    )
    head = (*table_heads(record), *(name for one in further for name in one))
    # A weighted sum counts no devices; the mean that it is for stands below the table.
    levels = record.window.design.levels
    hidden = levels.starts()[levels.weighted_place] if levels.weighted_place else None
    places = [place for place in range(len(record.cells)) if place != hidden]
    rows = [_table_row(record, place, counts, truths) for place in places]
    left_out = 0
    if len(rows) > MOST_ROWS:
        largest = sorted(range(len(rows)), key=lambda i: record.cells[places[i]].estimate, reverse=True)[:MOST_ROWS]
        left_out = len(rows) - MOST_ROWS
        rows = [rows[i] for i in sorted(largest)]
    lines = aligned([head, *rows], most=WIDEST_NAME)
    if left_out:
        lines.append(f"... and {left_out} smaller ones in the files")
    if any(BELOW_NOISE in row for row in rows):
        share = f"{float((1 - record.level) / 2 * 100):g} %"
        lines.append(
            f"{BELOW_NOISE}: a number this far below 0 is rarer than {share} at every count; 0 is nearest, not exact"
        )
    # Beside truths the demo says it with the true sum.
    return [*lines, words] if words else lines + ([] if truths else [*total_line(record), *numbers_line(record)])


def _grid_lines(record: ReleaseRecord) -> list[str]:
    """Return the table of two signals with its margins, if the terminal has room for it; else nothing."""
    if not isinstance(record.window.domain, Cross):
        return []
    try:
        from fleetcount.read.crosstabs import grid_lines
    except ModuleNotFoundError:  # As in `readable_counts`.
        return []
    return grid_lines(record, shutil.get_terminal_size((_WIDEST, 24)).columns)


def table_heads(record: ReleaseRecord) -> tuple[str, str]:
    """Return what stands above the names of cells and above their intervals."""
    interval, domain = f"{level_text(record.level)} interval", record.window.domain
    codes = isinstance(domain, Prefixes) and domain.codes is not None
    if record.window.design.levels.most > 1:
        return "category", f"{TOLD_IT}, {interval}"
    return ("code", f"{TOLD}, {interval}") if codes else ("cell", interval)


def total_of(record: ReleaseRecord) -> tuple[float, int, int] | None:
    """Return the estimate of all cells together and its interval's ends, None where no total was opened.

    Of sets it is the number of vehicles that told any.

    Joined with the cells by least squares; read from the total alone where NumPy is not installed.
    """
    design = record.window.design
    if not design.levels.total:
        return None
    last = record.cells[-1]
    try:
        from fleetcount_analysis.answers import WindowCounts, everybody, question_table, table_design, table_numbers
    except ModuleNotFoundError:  # As in `readable_counts`.
        return float(last.estimate), last.low, last.high
    outputs = table_numbers(design, [cell.raw for cell in record.cells], 0)
    counts, labels = WindowCounts(index=0, opens=0, unit=0, outputs=outputs), [""] * design.values
    table = question_table(table_design(design, 0), record.level, labels, (), [counts])
    found = everybody(table, 0)
    return found.estimate, found.low, found.high


def total_line(record: ReleaseRecord) -> list[str]:
    """Return the line about all cells together, of sets the vehicles that told any; none where none was opened."""
    found = total_of(record)
    if found is None:
        return []
    estimate, low, high = found
    about = round(estimate)
    ends, reach = interval_text(estimate, low, high), max(high - about, about - low)
    whole = record.window.design.levels.total_words
    return [f"{whole}: {about:,} ± {reach:,}, {level_text(record.level)} interval {ends}"]


def _whole(record: ReleaseRecord) -> dict[str, dict[str, Any]]:
    found = total_of(record)
    return {} if found is None else {record.window.design.levels.total_key: dict(zip(_TOTAL, found, strict=True))}


def numbers_of(record: ReleaseRecord) -> dict[str, dict[str, Any]]:
    """Return median, mean and sum of a release for a number, those there are (`numbers_in`)."""
    try:
        from fleetcount.read.averages import opened_of
    except ModuleNotFoundError:  # As in `readable_counts`.
        return {}
    return numbers_in(opened_of(record))


def numbers_in(opened: "OpenedNumbers") -> dict[str, dict[str, Any]]:
    """Return median, mean and sum of windows for a number, those there are: estimate, low and high, None if open.

    The sum is that of the numbers, where releases open the weighted sum by which it is read. Nothing of more values
    than 512, which would take seconds; Python reads them (`VerifiedRelease.quantile`).
    """
    if not 2 <= opened.design.values <= _MOST_ORDERED:
        return {}
    from fleetcount_analysis.errors import AnalysisError  # As in `readable_counts`.

    found = dict[str, dict[str, Any]]()
    # Some releases have no median, others no mean; Python says of each why.
    with contextlib.suppress(UsageError, AnalysisError):
        median = opened.quantile(Fraction(1, 2))
        high = median.high if math.isfinite(median.high) else None
        found["median"] = dict(zip(_TOTAL, (median.estimate, median.low, high), strict=True))
        mean = opened.mean()
        found["mean"] = dict(zip(_TOTAL, (mean.estimate, mean.low, mean.high), strict=True))
        if opened.design.levels.weighted:
            summed = opened.total_of_numbers()
            found["sum"] = dict(zip(_TOTAL, (summed.estimate, summed.low, summed.high), strict=True))
    return found


def numbers_line(record: ReleaseRecord) -> list[str]:
    """Return the line about the median, mean and sum of a release for a number; none of other releases."""
    try:
        from fleetcount.read.averages import opened_of
    except ModuleNotFoundError:  # As in `readable_counts`.
        return []
    said = numbers_text(opened_of(record))
    return [said] if said else []


def numbers_text(opened: "OpenedNumbers") -> str:
    """Return the line about the median, mean and sum of windows for a number; nothing of others."""
    found = numbers_in(opened)
    if not found:
        return ""
    from fleetcount.read.averages import ends_text  # As in `readable_counts`.

    ends = [f"{name} {ends_text(one['low'], one['high'], opened.unit)}" for name, one in found.items()]
    return f"of those with a value: {', '.join(ends)}; {level_text(opened.level)} intervals, each alone"


def _table_row(
    record: ReleaseRecord, place: int, counts: Sequence[int] | None, truths: Sequence[int] | None
) -> tuple[str, ...]:
    cell = record.cells[place]
    side = record.side(cell)
    known = (cell.label, interval_text(cell.estimate, cell.low, cell.high))
    about = (f"{counts[place]:,}",) if counts else ()
    raw = decimal_text(cell.estimate, 1)
    return *known, *about, raw, *(() if side is None else (side.value,)), *((str(truths[place]),) if truths else ())


def statement_lines(record: ReleaseRecord, *, explain: bool = False) -> list[str]:
    """Return the privacy statement in plain sentences, what is said of the participants, and every view on request."""
    noise = ", ".join(sorted({law.law for law in record.noise}))
    return [
        *privacy_lines(record.window.design, record.statement, explain=explain),
        f"At least {record.participants_at_least} took part; each of the {len(record.noise)} aggregators added its own"
        f" noise ({noise}).",
    ]


def release_json(record: ReleaseRecord, truths: Sequence[int] | None = None) -> dict[str, Any]:
    """Return what a program reads of a release: the table, the level and the statement."""
    counts = readable_counts(record)
    cells = [
        {
            "cell": cell.value,
            "label": cell.label,
            "low": cell.low,
            "high": cell.high,
            **({} if counts is None else {"readable": counts[place]}),
            "estimate": float(cell.estimate),
            "raw": cell.raw,
            **({} if (side := record.side(cell)) is None else {"side": side.value}),
            **({} if truths is None else {"truth": truths[place]}),
        }
        for place, cell in enumerate(record.cells)
    ]
    return {
        "question": record.window.name,
        "window_id": record.window_id.hex(),
        "level": str(record.level),
        "participants_at_least": record.participants_at_least,
        "statement": statement_json(record.window.design, record.statement),
        "cells": cells,
        **_whole(record),
        **numbers_of(record),
    }
