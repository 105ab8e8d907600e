"""`fleetcount plan`: what a count will give before anyone is asked: error, smallest count seen, loss per adversary.

Plans and prints; asks no device and starts nothing.
"""

import csv
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fleetcount.exits import one_line
from fleetcount.files import check_output_directory, staged_directory
from fleetcount.lazy import StrictCommand
from fleetcount.numbers import EPSILON, LEVEL, SAMPLING_RATE, Count

if TYPE_CHECKING:  # SciPy and matplotlib are loaded when the options are known to be good.
    from fleetcount_mechanisms.planning import SamplingPlan

__all__ = ["plan", "plan_rows"]

_FILE = click.Path(path_type=Path)
_MOST_DEVICES: Final = 10**9
_MOST_VALUES: Final = 4095
_COLUMNS: Final = ("true count", "standard error", "low", "high", "width", "width in %")
_POINTS: Final = 60


@click.command(cls=StrictCommand, short_help="What a number of devices and an epsilon will give.")
@click.option("--devices", required=True, type=Count(1, _MOST_DEVICES), help="How many will answer.")
@click.option("--values", required=True, type=Count(1, _MOST_VALUES), help="V, the cells or categories without 'none'.")
@click.option("--epsilon", required=True, type=EPSILON, help="Loss of the published counts, 0.001 to 10.")
@click.option("--sampling-rate", type=SAMPLING_RATE, help="Between 0 and 1/2 (default 0.45, 0.25 or 0.10 by V).")
@click.option("--aggregators", type=Count(2, 255), default=2, show_default=True, help="How many, 2 to 255.")
@click.option("--level", type=LEVEL, default="0.95", show_default=True, help="Of the intervals, 0.5 to 0.999999.")
@click.option("--output", metavar="DIR", type=_FILE, help="Write plan.csv, plan.json, plan.svg and plan.png there.")
def plan(  # one parameter an option, passed by name
    devices: int,
    values: int,
    epsilon: Fraction,
    sampling_rate: Fraction | None,
    aggregators: int,
    level: Fraction,
    output: Path | None,
) -> None:
    """Show what a count by Sampling Privacy will give, before anyone is asked.

    For true counts from 0 to all devices: the standard error and the exact interval that a typical release gives; the
    smallest count that is told apart from 0; and what each adversary could learn. The error does not grow with the
    devices that are elsewhere: 1,000 among 2,000 and among 2,000,000 are seen equally well.

    The noise is planned so that the release loses at most the epsilon asked for. At one epsilon a larger sampling rate
    is always more accurate; a smaller one only helps if all aggregators collude, who then see the truth that often.
    """
    from fleetcount_mechanisms.planning import plan_sampling

    if output is not None:
        check_output_directory(output)
    planned = plan_sampling(devices, values, epsilon, aggregators, sampling_rate, level=level)
    rows = plan_rows(planned, _round_counts(devices))
    for line in [*_head(planned), "", *_table(rows), "", *_foot(planned)]:
        click.echo(line)
    if output is not None:
        with staged_directory(output) as stage:
            _write(stage, planned, rows)
        click.echo(one_line(f"wrote plan.csv, plan.json, plan.svg, plan.png in {output}"))


def plan_rows(planned: "SamplingPlan", counts: Sequence[int]) -> list[tuple[int, float, int, int]]:
    """Return (true count, standard error, low, high): the exact interval when the released number is the expected one.

    The expected number is p n rounded to the nearest whole; counts in devices.
    """
    from fleetcount_analysis.intervals import sampling_intervals

    rate = planned.die.sampling_rate
    outputs = [round(rate * count) for count in counts]
    intervals = sampling_intervals(outputs, rate, planned.noise_epsilon, planned.aggregators, planned.level)
    return [(count, planned.sd(count), low, high) for count, (low, high) in zip(counts, intervals, strict=True)]


def _round_counts(devices: int) -> list[int]:
    """Return 0, the powers of ten and their thirds below the number of devices, and that number."""
    steps = [factor * 10**power for power in range(10) for factor in (1, 3)]
    return [0, *(step for step in steps if 3 <= step < devices), devices]


def _head(planned: "SamplingPlan") -> list[str]:
    die = planned.die
    return [
        f"{planned.devices:,} devices, {die.values} value{'s' if die.values > 1 else ''}, "
        f"{planned.aggregators} aggregators, epsilon {planned.release_epsilon} of a release",
        f"sampling rate {_exact(die.sampling_rate)}; each aggregator's noise: epsilon {_exact(planned.noise_epsilon)}",
    ]


def _exact(value: Fraction) -> str:
    text = f"{float(value):.6g}"
    return text if Fraction(text) == value else f"{text} ({value})"


def _table(rows: Sequence[tuple[int, float, int, int]]) -> list[str]:
    cells = [_COLUMNS, *(_printed(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_COLUMNS))]
    return ["  ".join(f"{part:>{width}}" for part, width in zip(row, widths, strict=True)) for row in cells]


def _printed(row: tuple[int, float, int, int]) -> tuple[str, ...]:
    count, error, low, high = row
    share = f"{100 * (high - low) / count:.1f}" if count else "-"
    return f"{count:,}", f"{error:,.1f}", f"{low:,}", f"{high:,}", f"{high - low:,}", share


def _foot(planned: "SamplingPlan") -> list[str]:
    seen, level = planned.smallest_count_seen, f"{float(planned.level * 100):g} %"
    first = (
        f"The smallest count told apart from 0 ({level} both ways): {seen:,}"
        if seen is not None
        else f"No count among {planned.devices:,} devices is told apart from 0 ({level} both ways)"
    )
    views = [f"  {view.audience}: {view.sentence}" for view in planned.views]
    warnings = [f"Warning: {warning}" for warning in planned.warnings]
    return [first, "", "What each adversary can learn of one device:", *views, *([""] if warnings else []), *warnings]


def _write(directory: Path, planned: "SamplingPlan", rows: Sequence[tuple[int, float, int, int]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["true_count", "standard_error", "low", "high"])
    writer.writerows((count, f"{error:.6g}", low, high) for count, error, low, high in rows)
    (directory / "plan.csv").write_text(text.getvalue(), encoding="utf-8")
    (directory / "plan.json").write_text(json.dumps(_record(planned), indent=1) + "\n", encoding="utf-8")
    _draw(directory / "plan", planned)


def _record(planned: "SamplingPlan") -> dict[str, Any]:
    return {
        "devices": planned.devices,
        "values": planned.die.values,
        "aggregators": planned.aggregators,
        "sampling_rate": str(planned.die.sampling_rate),
        "noise_epsilon": str(planned.noise_epsilon),
        "release_epsilon": None if planned.release_epsilon is None else f"{planned.release_epsilon:f}",
        "level": str(planned.level),
        "smallest_count_seen": planned.smallest_count_seen,
        "warnings": list(planned.warnings),
        "adversaries": [
            {
                "adversary": view.adversary,
                "audience": view.audience,
                "epsilon": None if view.epsilon is None else f"{view.epsilon:f}",
                "delta": f"{view.delta:f}",
                "neighbours": view.neighbours,
                "sentence": view.sentence,
            }
            for view in planned.views
        ],
    }


def _draw(stem: Path, planned: "SamplingPlan") -> None:
    import numpy as np
    from fleetcount_analysis.figures import plan_plot, save_figure
    from scipy.special import ndtri

    counts = np.unique(np.rint(np.geomspace(1, max(planned.devices, 2), _POINTS)))
    quantile = float(ndtri(float((1 + planned.level) / 2)))
    rate, empty = float(planned.die.sampling_rate), planned.sd(0)
    sampling = quantile * np.sqrt(counts * (1 - rate) / rate)
    title = (
        f"{planned.devices:,} devices, {planned.die.values} values, {planned.aggregators} aggregators, "
        f"epsilon {planned.release_epsilon}, sampling rate {rate:g}"
    )
    figure = plan_plot(
        counts.tolist(),
        sampling=sampling.tolist(),
        noise=[quantile * empty] * len(counts),
        both=np.hypot(sampling, quantile * empty).tolist(),
        smallest_count_seen=planned.smallest_count_seen,
        title=title,
        level_percent=float(planned.level * 100),
    )
    save_figure(figure, stem)
