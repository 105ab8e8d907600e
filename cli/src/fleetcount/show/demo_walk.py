"""`fleetcount demo --drill-down`: the busy places of the morning among 2^32, found from coarse to fine.

Writes what a walk came to beside the truth, and says it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.interval_words import level_text
from fleetcount_analysis.places import to_degrees
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.window.domain import PLACE_BITS, Prefixes
from fleetcount_simulator.demo_scenarios import BOLOGNA_FRAME, BOLOGNA_TREE
from fleetcount_simulator.engines.walks import DrawnWalks, draw_walks
from fleetcount_simulator.network.run import QuestionAsked

from fleetcount.command.base import aligned
from fleetcount.question.files import describe_question
from fleetcount.read.places import Walked, bound_lines, places_csv, walks_of
from fleetcount.show.demo_question import DemoOptions, DemoQuestion
from fleetcount.show.demo_results import WIDTH, Told, drawn, keep_records, why_none

if TYPE_CHECKING:  # Pictures are drawn after the work, where Matplotlib is installed (`demo_results.drawn`).
    from fleetcount_analysis.figures import StepMap

_HEAD: Final = ("place", "x", "y", "estimate", "low", "high", "truth")
_MISSED: Final = "not found"
_MOST_ROWS: Final = 40
_DRAWN: Final = 1_000

Row = tuple[str, ...]


def tell_walk(stage: Path, question: DemoQuestion, options: DemoOptions, result: QuestionAsked) -> Told:
    """Write every file; tell which places were found, which were missed, and what is known of the others."""
    signed, scenario, records = result.signed, question.scenario, list(result.records.values())
    walk, level = signed.question.drill_down, signed.question.release.level
    if walk is None:
        raise UsageError(f"question {signed.question.name!r} does not drill down")
    (walked,) = walks_of(walk, iter(records))
    truths = Counter(int(reading) for reading in scenario.readings[0] if isinstance(reading, int))
    rows = list(_rows(walked, truths, walk.threshold))
    drawn_walks = [_drawn_at(records[-1], replace(walk, threshold=at), truths, options.seed) for at in _beside(walk)]
    keep_records(stage, result)
    written = _write(stage, scenario.question, records, walked, truths, rows)
    written += drawn(["chances.svg", "chances.png"], lambda: _draw_chances(stage / "chances", walk, drawn_walks))
    usual = drawn_walks[1]
    lines = [
        *step_lines(result, scenario.vehicles),
        "",
        f"{len(walked.found)} places of {_length(PLACE_BITS)} found at {walk.threshold} vehicles or more",
        "",
        *_table(rows, f"{level_text(level)} interval"),
        *bound_lines(walked, level),
        _missed(walked, truths, walk.threshold),
        f"{_DRAWN:,} walks drawn over the same morning, all vehicles counted: on average each finds"
        f" {100 * usual.share_found(walk.threshold):.0f} % of the places of {walk.threshold} or more, and"
        f" {float(usual.others.mean()):.2g} empty ones",
        "",
        *describe_question(signed, WIDTH, explain=options.explain),
    ]
    again = f"read it again, every signature checked: fleetcount question places --records {options.output}"
    return Told(written, lines, [again])


def step_lines(result: QuestionAsked, vehicles: int) -> Iterator[str]:
    """Say what came of every step."""
    levels = result.signed.question.schedule.windows
    for step, one in enumerate(result.windows):
        cells = _cells(one.window.domain)
        here = f"step {step + 1} of {levels}: {cells.values:,} squares of {_length(cells.bits)}"
        held = f"{int(one.account.counted.sum())} of {vehicles} vehicles hold every receipt"
        yield f"{here}; {held if one.record is not None else f'not released: {why_none(one)}'}"
    if ended := walk_end(result):
        yield f"the walk ended there: {ended}"


def walk_end(result: QuestionAsked) -> str:
    """Return why a walk ended before its last step, in words; "" if it did not, or its last step has no record."""
    question, last = result.signed.question, result.windows[-1]
    if last.record is None or question.drill_down is None or len(result.windows) == question.schedule.windows:
        return ""
    if next_step(question, last.record) is WalkEnd.RECORD_LATE:
        late_s = last.record.released_at - question.schedule.opens(len(result.windows))
        return (
            f"its record came {late_s:.0f} s after the next step opened; this machine is too busy for so many vehicles"
        )
    most, threshold = max(cell.estimate for cell in last.record.cells), question.drill_down.threshold
    return f"no square reached the threshold of {threshold}: the largest estimate is {float(most):.1f}"


def _cells(domain: object) -> Prefixes:
    if not isinstance(domain, Prefixes):
        raise UsageError("a step of a walk asks about prefixes")
    return domain


def _length(bits: int) -> str:
    left, _, right, _ = BOLOGNA_TREE.corners(0, bits)
    side = right - left
    return f"{side / 1000:,.0f} km" if side >= 1000 else f"{side:g} m"


# Places found, and those that were missed.


def _rows(walked: Walked, truths: Counter[int], threshold: int) -> Iterator[Row]:
    """Give a row for each place found, then for each that truly has as many vehicles as the threshold and was not."""
    for one in walked.found:
        ends = f"{one.estimate:.1f}", str(one.low), str(one.high)
        yield (*_where(one.cell), *ends, str(truths[one.cell]))
    for place in _heavy(truths, threshold):
        if place not in {one.cell for one in walked.found}:
            yield (*_where(place), _MISSED, "", "", str(truths[place]))


def _where(place: int) -> tuple[str, str, str]:
    left, lower, right, upper = BOLOGNA_TREE.corners(place, PLACE_BITS)
    return f"{place:#010x}", f"{(left + right) / 2:g}", f"{(lower + upper) / 2:g}"


def _heavy(truths: Counter[int], threshold: int) -> list[int]:
    return [place for place, count in truths.most_common() if count >= threshold]


def _table(rows: Sequence[Row], interval: str) -> list[str]:
    """Return the rows for people, with both ends in one column, and an empty line behind them."""
    if not rows:
        return ["none, and no place truly has as many", ""]
    shown: list[Row] = [(*_HEAD[:4], interval, _HEAD[-1])]
    shown += [(*row[:4], f"{row[4]} to {row[5]}" if row[4] else "", row[6]) for row in rows[:_MOST_ROWS]]
    more = len(rows) - _MOST_ROWS
    return [*aligned(shown, left=0), *([f"... and {more} more in comparison.csv"] if more > 0 else []), ""]


def _missed(walked: Walked, truths: Counter[int], threshold: int) -> str:
    heavy, found = _heavy(truths, threshold), {one.cell for one in walked.found}
    sure = [place for place in heavy if truths[place] >= walked.smallest]
    return (
        f"in truth {len(heavy)} places have {threshold} or more, {len(found & set(heavy))} of them were found; of the"
        f" {len(sure)} with {walked.smallest} or more, {len(found & set(sure))}; {len(found - set(heavy))} with fewer"
        " were found too"
    )


# The same walk, drawn many times over the truth.


def _beside(walk: DrillDown) -> tuple[int, int, int]:
    """Return a lower threshold, that of the walk, and a higher one."""
    return max(1, walk.threshold * 2 // 3), walk.threshold, walk.threshold * 3 // 2


def _drawn_at(record: ReleaseRecord, walk: DrillDown, truths: Counter[int], seed: int) -> DrawnWalks:
    return draw_walks(record.window.design, walk, truths, _DRAWN, np.random.default_rng(seed))


def _draw_chances(stem: Path, walk: DrillDown, drawn_walks: Sequence[DrawnWalks]) -> None:
    """Draw how often walks find a place of so many vehicles, at three thresholds."""
    from fleetcount_analysis.figures import PALETTE, Line, LinePanel, line_panels, save_figure

    lines: list[Line] = []
    for threshold, one in zip(_beside(walk), drawn_walks, strict=True):
        sizes = np.unique(one.devices)
        shares = [100 * float(one.found[one.devices == size].mean()) for size in sizes]
        empty = f"{float(one.others.mean()):.2g} empty places"
        lines.append(Line(x=sizes.tolist(), y=shares, label=f"threshold {threshold}: {empty} a walk"))
    panel = LinePanel(
        title=f"Places found by {_DRAWN:,} drawn walks over {', '.join(map(str, walk.levels))} bits",
        lines=lines,
        colours={line.label: colour for line, colour in zip(lines, PALETTE, strict=False)},
        x_label="vehicles truly in a place",
        y_label="walks that find it, %",
    )
    save_figure(line_panels([panel], columns=1, width=7), stem)


# Files.


def _write(
    stage: Path,
    question: str,
    records: Sequence[ReleaseRecord],
    walked: Walked,
    truths: Counter[int],
    rows: Sequence[Row],
) -> list[str]:
    """Write all files but the records; return what is said to have been written."""
    (stage / "comparison.csv").write_text(csv_table(_HEAD, rows), encoding="utf-8")
    (stage / "places.csv").write_text(places_csv([walked]), encoding="utf-8")
    (stage / "places.geojson").write_text(json.dumps(_geojson(walked, truths)), encoding="utf-8")
    pictures = drawn(["map.svg", "map.png"], lambda: _draw(stage / "map", question, records, truths))
    return [f"{len(records)} records", "comparison.csv", "places.csv", "places.geojson", *pictures]


def _geojson(walked: Walked, truths: Counter[int]) -> dict[str, Any]:
    """Return found places and cells that were left out, as areas in degrees.

    A cell so large that it reaches out of the network's reference system has no geometry (RFC 7946, section 3.2).
    """
    shown: list[tuple[int, int, Mapping[str, float]]] = [
        (one.cell, walked.bits, {"estimate": one.estimate, "low": one.low, "high": one.high, "truth": truths[one.cell]})
        for one in walked.found
    ]
    shown += [(one.cell, one.bits, {"most_in_a_place": one.most}) for one in walked.left_out]
    features = [
        {
            "type": "Feature",
            "geometry": _polygon(cell, bits),
            "properties": {"smallest_place": cell << PLACE_BITS - bits, "bits": bits, **known},
        }
        for cell, bits, known in shown
    ]
    return {"type": "FeatureCollection", "features": features}


def _ring(cell: int, bits: int) -> list[tuple[float, float]]:
    left, lower, right, upper = BOLOGNA_TREE.corners(cell, bits)
    return [(left, lower), (right, lower), (right, upper), (left, upper), (left, lower)]


def _polygon(cell: int, bits: int) -> dict[str, Any] | None:
    x, y = np.array(_ring(cell, bits), dtype=np.float64).T
    try:
        east, north = to_degrees(BOLOGNA_FRAME)(x, y)
    except RangeError:
        return None
    return {"type": "Polygon", "coordinates": [list(zip(east.tolist(), north.tolist(), strict=True))]}


def _draw(stem: Path, question: str, records: Sequence[ReleaseRecord], truths: Counter[int]) -> None:
    """Draw the estimates of every step, and beside the last one the truth."""
    # Matplotlib takes a second to load: after the work, not before it.
    from fleetcount_analysis.figures import save_figure, step_maps

    steps = [_step_map(record) for record in records]
    last = _cells(records[-1].window.domain)
    truth = Counter[int]()
    for place, count in truths.items():
        truth[place >> PLACE_BITS - last.bits] += count
    seen = [float(truth[cell]) for cell in last.cells]
    title = f"{question} Step by step, {len(records[-1].window.aggregators)} aggregators"
    save_figure(step_maps(steps, truth=seen, title=title), stem)


def _step_map(record: ReleaseRecord) -> "StepMap":
    from fleetcount_analysis.figures import StepMap

    domain = _cells(record.window.domain)
    rings = (_ring(cell, domain.bits) for cell in domain.cells)
    outlines = [f"POLYGON(({', '.join(f'{x:g} {y:g}' for x, y in ring)}))" for ring in rings]
    estimates = [float(cell.estimate) for cell in record.cells]
    return StepMap(title=f"{domain.values:,} squares of {_length(domain.bits)}", outlines=outlines, estimates=estimates)
