"""`fleetcount plan --windows`: every way to ask again and again under one promise, side by side.

It must not ask a device or start a process.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.comparison import Compared, Unit, compare
from fleetcount_mechanisms.errors import InfeasibleTargetError
from fleetcount_mechanisms.zooms import Zooms
from fleetcount_protocol.question.fields import DAY_S, Coin, Schedule
from fleetcount_protocol.window.window import report_bytes

from fleetcount.command.exits import one_line
from fleetcount.command.files import staged_directory
from fleetcount.command.results import show

_HEAD: Final = ("way", "sd at 0", "sd at 100", "sd at 1,000", "seen from", "bytes", "rounds", "if all collude")
_COUNTS: Final = (0, 100, 1000)
_THREATS: Final = {
    "one-honest": "One operator is honest",
    "all-collude": "All operators may collude",
    "none-trusted": "No operator is trusted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuestion:
    """What is planned: so many windows, one every so many seconds, under (epsilon, delta) for all of them together."""

    devices: int
    values: int
    epsilon: Fraction
    aggregators: int
    level: Fraction
    windows: int
    every: int
    delta: Fraction
    threat: str | None
    zooms: Zooms | None = None


def compare_ways(asked: PlannedQuestion, output: Path | None, *, as_json: bool = False) -> None:
    """Print the ways to ask, in `output` too, and which one to take against a threat if one is named.

    The first window opens at midnight UTC.

    Raises:
        MechanismError: no way keeps the promise.
    """
    windows = asked.windows
    schedule = Schedule(first=0, every_s=asked.every, windows=windows, round_one_s=1, round_two_s=0, expiry_s=DAY_S)
    units: dict[Unit, Coin] = {"window": Coin.WINDOW, "day": Coin.DAY, "question": Coin.QUESTION}
    shapes: dict[Unit, ScheduleShape] = {unit: schedule.shape(coin) for unit, coin in units.items()}
    rows = compare(
        asked.devices,
        asked.values,
        shapes,
        asked.epsilon,
        asked.delta,
        aggregators=asked.aggregators,
        level=asked.level,
        zooms=asked.zooms,
    )
    kept = [row for row in rows if asked.threat in (None, row.threat.value)]
    if not kept:
        raise InfeasibleTargetError(f"epsilon is {asked.epsilon} over {windows} windows, allowed: one noise can keep")
    lines = _lines(kept, asked)
    if asked.threat is not None:
        best = min(kept, key=lambda row: row.plan.sd(0))
        taken = f"{_THREATS[asked.threat]}: take {best.name!r}; if all collude, {_collusion(best, windows)}."
        lines += ["", taken]
    show([_record(row, windows) for row in kept], lines, as_json=as_json)
    if output is not None:
        with staged_directory(output) as stage:
            text = json.dumps([_record(row, windows) for row in kept], indent=1) + "\n"
            (stage / "plan.json").write_text(text, encoding="utf-8")
        click.echo(one_line(f"wrote plan.json in {output}"), err=as_json)


def _lines(rows: Sequence[Compared], asked: PlannedQuestion) -> list[str]:
    """Return the table, as Markdown, and what its columns mean."""
    windows, promise = asked.windows, f"epsilon {float(asked.epsilon):g} at delta {_power(asked.delta)}"
    table = [_HEAD, *(_printed(row, windows) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEAD))]
    marks = ["-" * width for width in widths]

    def line(parts: Sequence[str]) -> str:
        return "| " + " | ".join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)) + " |"

    said = (
        ""
        if asked.zooms is None
        else f"Counts are of any of {asked.zooms.count} zooms in one report; epsilon is of all."
    )
    body = [line(_HEAD), line(marks), *(line(parts) for parts in table[1:])]
    return [
        f"{windows:,} window{'s' if windows > 1 else ''}, {promise} for all answers of a device together, against",
        "everyone but all operators together. sd: error of one cell of one window, true count 0, 100 or 1,000;",
        f"seen from: the smallest count told from 0 ({float(asked.level * 100):g} % both ways); bytes: the shares a",
        "device sends for one answer.",
        *([] if asked.zooms is None else [said.format(asked.zooms.count)]),
        "",
        *body,
    ]


def _record(row: Compared, windows: int) -> dict[str, Any]:
    plan, design = row.plan, row.plan.design
    return {
        "way": row.name,
        "threat": row.threat.value,
        "coin": row.unit,
        "noise": design.noise.name,
        **{f"noise_{name}": str(value) for name, value in design.noise.parameters.items()},
        **{f"sd_{count}": plan.sd(min(count, plan.devices)) for count in _COUNTS},
        "smallest_count_seen": plan.smallest_count_seen,
        "bytes": _bytes(row),
        "rounds": design.rounds,
        "if_all_collude": _collusion(row, windows),
    }


def _printed(row: Compared, windows: int) -> tuple[str, ...]:
    plan = row.plan
    seen = plan.smallest_count_seen
    errors = [f"{plan.sd(min(count, plan.devices)):,.1f}" for count in _COUNTS]
    return (
        row.name,
        *errors,
        "none" if seen is None else f"{seen:,}",
        f"{_bytes(row):,}",
        str(plan.design.rounds),
        _collusion(row, windows),
    )


def _bytes(row: Compared) -> int:
    return report_bytes(row.plan.design)


def _collusion(row: Compared, windows: int) -> str:
    design = row.plan.design
    if row.unit is None:
        return "every answer is seen" if design.exposure == 1 else "the promise holds"
    if windows == 1 or row.unit == "window":
        return f"each answer is seen with chance {design.exposure}"
    whole = "all answers of a day are seen" if row.unit == "day" else "all answers are seen"
    return f"{whole} with chance {design.exposure}"


def _power(delta: Fraction) -> str:
    return f"{float(delta):.0e}".replace("e-0", "e-")
