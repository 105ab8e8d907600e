"""`fleetcount question places`: the places or codes that the walks of a drill-down found, from the records kept.

Reads files; it must not ask an aggregator. What was left out is bounded and not estimated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_analysis.answers.drill_down import (
    FoundPlace,
    PrunedPlace,
    WalkStep,
    chosen_excess,
    find_chance,
    found_places,
    pruned_places,
    smallest_found,
)
from fleetcount_analysis.answers.levels import one_level
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.codes import Codes
from fleetcount_protocol.window.domain import PLACE_BITS, Prefixes

from fleetcount.command.base import JSON, StrictCommand, show
from fleetcount.command.options import PATH, write_file
from fleetcount.command.outputs import check_output_file
from fleetcount.read.records import Chain, kept_records, question_of_records
from fleetcount.read.report import TOLD

_MOST_ROWS: Final = 200
_COLUMNS: Final = ("walk", "bits", "smallest_place", "shown", "estimate", "low", "high")
_CODE_COLUMNS: Final = ("walk", "bits", "code", "shown", "told", "told_low", "told_high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """One walk: its number, how many of its steps have a record, the places or `codes` found, and the cells left out.

    Places have `bits`, and are found once the walk is `finished`: until then nothing says which cells of its last step
    the next one asks about, so none of them is left out, and `false_places` is None. `false_places` is the expected
    number of empty places that pass, `smallest` the least number of devices of which one place in twenty is missed,
    `excess` by how much the estimate of a place at the threshold is too high on average, because it was chosen.
    """

    number: int
    steps: int
    finished: bool
    found: tuple[FoundPlace, ...]
    left_out: tuple[PrunedPlace, ...]
    bits: int
    false_places: float | None
    smallest: int
    excess: float
    codes: Codes | None

    @property
    def noun(self) -> str:
        """What is found."""
        return "place" if self.codes is None else "code"

    def name_of(self, cell: int, bits: int) -> str:
        """Return how a cell is named to people: places by the smallest of them, codes by what they have in common."""
        return f"{cell << PLACE_BITS - bits:#010x}" if self.codes is None else self.codes.label(cell, bits)


@click.command("places", cls=StrictCommand)
@click.option("--records", "directory", required=True, metavar="DIR", type=PATH, help="What `question release` wrote.")
@click.option("--output", metavar="FILE.csv", type=PATH, help="All that was found and all cells left out.")
@JSON
def places(directory: Path, output: Path | None, as_json: bool) -> None:
    """Say which places or codes each walk of a drill-down found, and how many devices may be in those it left out.

    Every record is checked again. Intervals hold for all candidates of a step at once; nothing was asked beneath a cell
    that was left out, so that only a bound is known there. It holds if every aggregator followed the protocol: one that
    adds to its own share steers which cells are left out. A vehicle with several codes tells one of them: what is
    counted are vehicles that told a code, and at least as many have it.
    """
    if output is not None:
        check_output_file(output)
    question = question_of_records(directory).question
    if (walk := question.drill_down) is None:
        raise UsageError(f"question {question.name!r} does not drill down; every record has its whole map")
    walked = list(walks_of(walk, kept_records(directory, Chain(question))))
    codes = question.domain.codes if isinstance(question.domain, Prefixes) else None
    lines = [line for one in walked for line in walk_lines(one, walk, question.release.level)]
    if not walked:
        lines.append("no walk has a record yet")
    if output is not None:
        write_file(output, places_csv(walked, codes).encode())
        lines.append(f"wrote {output}")
    show([_walk_json(one) for one in walked], lines, as_json=as_json)


def _walk_json(one: Walked) -> dict[str, Any]:
    """Return a walk for programs; a cell is named by its smallest place and its bits, or as codes are."""
    if one.codes is not None:
        return _codes_json(one)
    found = [
        {"place": place.cell << PLACE_BITS - one.bits, "estimate": place.estimate, "low": place.low, "high": place.high}
        for place in one.found
    ]
    left = [
        {"place": cell.cell << PLACE_BITS - cell.bits, "bits": cell.bits, "most": cell.most} for cell in one.left_out
    ]
    chances = {"false_places": one.false_places, "smallest_found": one.smallest, "excess_at_threshold": one.excess}
    return {"walk": one.number, "steps": one.steps, "bits": one.bits, "found": found, "left_out": left, **chances}


def _codes_json(one: Walked) -> dict[str, Any]:
    found = [
        {"code": one.name_of(code.cell, one.bits), "told": code.estimate, "low": code.low, "high": code.high}
        for code in one.found
    ]
    left = [
        {"codes": one.name_of(cell.cell, cell.bits), "bits": cell.bits, "most_told": cell.most} for cell in one.left_out
    ]
    chances = {"false_codes": one.false_places, "smallest_found": one.smallest, "excess_at_threshold": one.excess}
    return {"walk": one.number, "steps": one.steps, "bits": one.bits, "found": found, "left_out": left, **chances}


def walks_of(walk: DrillDown, records: Iterator[ReleaseRecord]) -> Iterator[Walked]:
    """Give what each walk came to that has a record of its first step, from the checked records in order."""
    steps: list[WalkStep] = []
    number, codes = -1, None
    for record in records:
        place = record.window.question
        if steps and walk.walk_of(place.index) != number:
            yield _walked(walk, number, steps, codes)
            steps = []
        number = walk.walk_of(place.index)
        domain = _prefixes(record)
        codes = domain.codes
        steps.append(_step(record, domain))
    if steps:
        yield _walked(walk, number, steps, codes)


def _prefixes(record: ReleaseRecord) -> Prefixes:
    if not isinstance(record.window.domain, Prefixes):
        raise UsageError(f"the record of window {record.window_id} is not of prefixes")
    return record.window.domain


def _step(record: ReleaseRecord, domain: Prefixes) -> WalkStep:
    return WalkStep(
        design=one_level(record.window.design, 0),  # A total counts no place.
        level=record.level,
        bits=domain.bits,
        cells=domain.cells,
        raw=tuple(cell.raw for cell in record.cells[: domain.values]),
    )


def _walked(walk: DrillDown, number: int, steps: Sequence[WalkStep], codes: Codes | None) -> Walked:
    levels, last = len(walk.levels), steps[-1]
    finished = len(steps) == levels
    left: list[PrunedPlace] = []
    for step, deeper in pairwise(steps):  # What the next step asked about is what survived.
        left += pruned_places(step, sorted({cell >> deeper.bits - step.bits for cell in deeper.cells}))
    found = found_places(last, walk.threshold) if finished else []
    if finished:
        left += pruned_places(last, sorted(one.cell for one in found))
    return Walked(
        number=number,
        steps=len(steps),
        finished=finished,
        found=tuple(found),
        left_out=tuple(left),
        bits=last.bits,
        false_places=len(last.cells) * find_chance(last.design, walk.threshold, 1, 0) if finished else None,
        smallest=smallest_found(last.design, walk.threshold, levels),
        excess=chosen_excess(last.design, walk.threshold, walk.threshold),
        codes=codes,
    )


def walk_lines(one: Walked, walk: DrillDown, level: Fraction) -> Iterator[str]:
    """Yield a walk in words: what it found with intervals, the bound of what was left out, what is false or missed."""
    share = level_text(level)
    if not one.finished:
        yield f"walk {one.number}: {one.steps} of {len(walk.levels)} steps have a record; no {one.noun} is found yet"
    else:
        many = "" if len(one.found) == 1 else "s"
        yield (
            f"walk {one.number}: {len(one.found)} {one.noun}{many} of {one.bits} bits"
            f" at {walk.threshold} devices or more"
        )
    if one.codes is not None and one.found:
        yield f"  {TOLD}:"
    for place in one.found[:_MOST_ROWS]:
        ends = interval_text(place.estimate, place.low, place.high)
        yield f"  {one.name_of(place.cell, one.bits)}  {place.estimate:,.0f}, {share} interval {ends}"
    if len(one.found) > _MOST_ROWS:
        yield f"  and {len(one.found) - _MOST_ROWS} more, smaller ones"
    yield from bound_lines(one, level)


def bound_lines(one: Walked, level: Fraction) -> Iterator[str]:
    """Yield in words what is known of what a walk did not show: its bound, what is false, and what is missed."""
    if one.found:
        yield (
            f"  {one.noun}s are chosen by their estimates, which are on average too high: of a {one.noun} at the"
            " threshold by"
            f" {one.excess:,.1f}, of larger ones by less; the intervals hold for all that were looked at"
        )
    if one.left_out:
        most = max(place.most for place in one.left_out)
        bounded = "place has" if one.codes is None else "code was told by"
        which = "left out: no other" if one.finished else "left out so far: no such"
        yield (
            f"  {which} {bounded} more than {most:,} ({level_text(level)} for each step, at least"
            f" {level_text(max(Fraction(0), 1 - one.steps * (1 - level)))} for all), unless an aggregator added to its"
            f" share what is no device's: by that it steers which {one.noun}s a walk leaves out"
        )
    if one.false_places is not None:
        yield (
            f"  false {one.noun}s: {one.false_places:.2g} of the last step's cells pass although empty, in expectation;"
            f" missed: one {one.noun} in twenty of {one.smallest:,}, more of smaller ones"
        )
    if one.codes is not None:
        yield (
            "  a vehicle with several codes tells one of them: at least as many have a code as told it; how many more,"
            " and how many have one that was left out, no number here bounds"
        )


def places_csv(walked: Sequence[Walked], codes: Codes | None = None) -> str:
    """Return every place or code found and every cell left out, a row each."""
    rows: list[tuple[object, ...]] = []
    for one in walked:
        for place in one.found:
            shown = _in_table(one, place.cell, one.bits)
            rows.append((one.number, one.bits, shown, "found", f"{place.estimate:.3f}", place.low, place.high))
        for cell in one.left_out:
            shown = _in_table(one, cell.cell, cell.bits)
            rows.append((one.number, cell.bits, shown, "left out", "", "", cell.most))
    return csv_table(_COLUMNS if codes is None else _CODE_COLUMNS, rows)


def _in_table(one: Walked, cell: int, bits: int) -> int | str:
    return cell << PLACE_BITS - bits if one.codes is None else one.name_of(cell, bits)
