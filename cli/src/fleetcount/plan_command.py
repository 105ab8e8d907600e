"""`fleetcount plan`: what a count will give before anyone is asked: error, smallest count seen, loss per adversary.

It must not ask a device or start a process.
"""

import csv
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS, Outputs
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_SERIES_WINDOWS

from fleetcount.exits import one_line
from fleetcount.files import check_output_directory, staged_directory
from fleetcount.lazy import StrictCommand
from fleetcount.numbers import DELTA, EPSILON, LEVEL, POSTERIOR, SAMPLING_RATE, Count, Length
from fleetcount.plan_series import Asked, compare_ways
from fleetcount.plan_walks import parse_levels, plan_walks

if TYPE_CHECKING:  # SciPy and matplotlib are loaded when the options are known to be good.
    from fleetcount_mechanisms.answers import AnswerLaw
    from fleetcount_mechanisms.design import Design
    from fleetcount_mechanisms.losses import PlannedNoise
    from fleetcount_mechanisms.planning import Plan

__all__ = ["plan", "plan_rows"]

_FILE = click.Path(path_type=Path)
_MOST_DEVICES: Final = 10**9
_MOST_VALUES: Final = 4095
_COLUMNS: Final = ("true count", "standard error", "low", "high", "width", "width in %")
_POINTS: Final = 60
_NOISES: Final = ("geometric", "gaussian")
_THREATS: Final = ("one-honest", "all-collude", "none-trusted")


@click.command(cls=StrictCommand, short_help="What a number of devices and an epsilon will give.")
@click.option("--devices", required=True, type=Count(1, _MOST_DEVICES), help="How many will answer.")
@click.option("--values", required=True, type=Count(1, _MOST_VALUES), help="V, the cells or categories without 'none'.")
@click.option("--mechanism", default="sampling", show_default=True, help="As in task files, or direct or one-sided.")
@click.option("--epsilon", required=True, type=EPSILON, help="Loss of the published counts, 0.001 to 10.")
@click.option("--noise", type=click.Choice(_NOISES), default=_NOISES[0], show_default=True, help="Its law.")
@click.option("--sampling-rate", type=SAMPLING_RATE, help="Between 0 and 1/2 (default 0.45, 0.25 or 0.10 by V).")
@click.option("--epsilon-local", type=EPSILON, help="Loss of one answer alone, where devices randomize it.")
@click.option(
    "--aggregators",
    type=Count(FEWEST_AGGREGATORS, MOST_AGGREGATORS),
    default=FEWEST_AGGREGATORS,
    show_default=True,
    help=f"How many, {FEWEST_AGGREGATORS} to {MOST_AGGREGATORS}.",
)
@click.option("--windows", type=Count(1, MAX_SERIES_WINDOWS), help="Compare every way to ask so many times.")
@click.option("--every", type=Length(), default="1 h", show_default=True, help="With --windows: how often.")
@click.option("--delta", type=DELTA, default="1e-9", show_default=True, help="With --windows: delta of the promise.")
@click.option("--threat", type=click.Choice(_THREATS), help="With --windows: recommend a way against this one.")
@click.option("--levels", help="What a drill-down finds: bits of its steps, like 11,18,25,32.")
@click.option("--level", type=LEVEL, default="0.95", show_default=True, help="Of the intervals, 0.5 to 0.999999.")
@click.option("--largest-posterior", type=POSTERIOR, help="Show what this limit of an aggregator refuses.")
@click.option("--output", metavar="DIR", type=_FILE, help="Write plan.csv, plan.json, plan.svg and plan.png there.")
def plan(  # one parameter an option, passed by name
    devices: int,
    values: int,
    epsilon: Fraction,
    aggregators: int,
    level: Fraction,
    output: Path | None,
    **others: Any,
) -> None:
    """Show what a count will give, by Sampling Privacy or another mechanism, before anyone is asked.

    For true counts from 0 to all devices: the standard error and the exact interval that a typical release gives; the
    smallest count that is told apart from 0; and what each adversary could learn. The error does not grow with the
    devices that are elsewhere: 1,000 among 2,000 and among 2,000,000 are seen equally well.

    The noise is planned so that the release loses at most the epsilon asked for, with Gaussian noise at delta 1e-9:
    more noise for one release, less for many. At one epsilon a larger sampling rate is more accurate: for one value
    always, for several in every cell of at least as many devices as there are aggregators. What a smaller one buys: if
    all aggregators collude, they see each truth with that probability only.

    With --windows epsilon is the loss of all answers of a device to a series, at delta: every way to ask is compared,
    and the threat that each answers is named (some seconds). --threat one-honest: at least one operator is honest;
    all-collude: all may collude, and then see a part; none-trusted: the promise holds against all of them.

    With --levels the windows are walks of a drill-down, a window a level, and --values bounds the candidates of a step:
    the threshold that empty cells rarely pass, and the smallest place that a walk then finds.
    """
    from fleetcount_mechanisms.planning import plan_question

    if output is not None:
        check_output_directory(output)
    series = {name: others.pop(name) for name in ("windows", "every", "delta", "threat")}
    steps = None if (levels := others.pop("levels")) is None else parse_levels(levels)
    if steps is not None and (output is not None or series["threat"] is not None):
        raise UsageError("--levels goes with neither --output nor --threat")
    if steps is not None and series["windows"] is None:
        series["windows"] = len(steps)
    if series["windows"] is not None:
        if others["largest_posterior"] is not None:
            raise UsageError("--largest-posterior is about one record, allowed: without --windows")
        asked = Asked(devices=devices, values=values, epsilon=epsilon, aggregators=aggregators, level=level, **series)
        compare_ways(asked, output) if steps is None else plan_walks(asked, steps)
        return
    if series["threat"] is not None:
        raise UsageError(f"--threat is {series['threat']!r}, allowed with --windows: how often the question is asked")
    mechanism, noise, limit = (others.pop(name) for name in ("mechanism", "noise", "largest_posterior"))
    law = _noise_law(mechanism, noise)
    answer = _answer(mechanism, values, **others)
    planned = plan_question(devices, answer, epsilon, aggregators, noise=law, level=level)
    rows = plan_rows(planned, _round_counts(devices))
    for line in [*_head(planned), "", *_table(rows), "", *_foot(planned), *_refused(planned.design, limit)]:
        click.echo(line)
    if output is not None:
        with staged_directory(output) as stage:
            _write(stage, planned, rows)
        click.echo(one_line(f"wrote plan.csv, plan.json, plan.svg, plan.png in {output}"))


def _noise_law(mechanism: str, noise: str) -> "type[PlannedNoise]":
    from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise, TwoSidedNoise

    if noise == "geometric":
        return OneSidedNoise if mechanism == "one-sided" else TwoSidedNoise
    if mechanism == "one-sided":
        raise UsageError("--noise is 'gaussian', which has two sides; allowed with --mechanism one-sided: geometric")
    return GaussianNoise


def _answer(mechanism: str, values: int, sampling_rate: Fraction | None, epsilon_local: Fraction | None) -> "AnswerLaw":
    from fleetcount_mechanisms.answers import answer_named
    from fleetcount_mechanisms.planning import default_sampling_rate

    if mechanism == "sampling":
        rate = default_sampling_rate(values) if sampling_rate is None else sampling_rate
        return answer_named(mechanism, values, epsilon_local=epsilon_local, parameters={"sampling_rate": rate})
    given = {} if sampling_rate is None else {"sampling_rate": sampling_rate}
    name = "direct" if mechanism == "one-sided" else mechanism
    return answer_named(name, values, epsilon_local=epsilon_local, parameters=given)


def plan_rows(planned: "Plan", counts: Sequence[int]) -> list[tuple[int, float, int, int]]:
    """Return (true count, standard error, low, high): the exact interval when the released number is the expected one.

    The expected number is rounded to the nearest whole; counts in devices.
    """
    from fleetcount_analysis.reading import read

    reading = read(planned.design, [_expected(planned, count) for count in counts], planned.level)
    ends = zip(reading.low[:, 0].tolist(), reading.high[:, 0].tolist(), strict=True)
    return [(count, planned.sd(count), low, high) for count, (low, high) in zip(counts, ends, strict=True)]


def _expected(planned: "Plan", count: int) -> list[int]:
    """Return the opened numbers to expect when `count` devices have value 1 and no other value counts anybody."""
    design, (hit, miss) = planned.design, planned.design.channel
    cell = round(hit * count + miss * (planned.devices - count) + Fraction(design.aggregators * design.noise.mean))
    opened = [cell, *([0] * (design.values - 1))]
    if not design.baseline_opened:
        return opened
    # Output 0 brings the sum of all outputs to the number of devices; the participation bit's count is that number.
    return [planned.devices - (cell if design.outputs is Outputs.ALL else 0), *opened]


def _round_counts(devices: int) -> list[int]:
    """Return 0, the powers of ten and their thirds below the number of devices, and that number."""
    steps = [factor * 10**power for power in range(10) for factor in (1, 3)]
    return [0, *(step for step in steps if 3 <= step < devices), devices]


def _head(planned: "Plan") -> list[str]:
    design = planned.design
    rate = f"sampling rate {_exact(design.exposure)}" if design.rounds == 2 else f"mechanism {design.name}"
    parameters = ", ".join(f"{name} {_exact(value)}" for name, value in design.noise.parameters.items())
    if design.noise.epsilon is None:
        parameters = f"{design.noise.name}, {parameters} (sd {design.noise.draw_variance**0.5:.2f})"
    return [
        f"{planned.devices:,} devices, {design.values} value{'s' if design.values > 1 else ''}, "
        f"{design.aggregators} aggregators, epsilon {design.epsilon}{_at_delta(planned)} of a release",
        f"{rate}; each aggregator's noise: {parameters}",
    ]


def _at_delta(planned: "Plan") -> str:
    delta = planned.design.views()[0].delta
    return f" (delta {delta:f})" if delta else ""


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


def _foot(planned: "Plan") -> list[str]:
    seen, level = planned.smallest_count_seen, f"{float(planned.level * 100):g} %"
    first = (
        f"The smallest count told apart from 0 ({level} both ways): {seen:,}"
        if seen is not None
        else f"No count among {planned.devices:,} devices is told apart from 0 ({level} both ways)"
    )
    views = [f"  {view.audience}: {view.sentence}" for view in planned.design.views()]
    warnings = [f"Warning: {warning}" for warning in planned.warnings]
    charged = f"A ledger is charged {_charged(planned.design)} for one answer."
    learnt = ["What each adversary can learn of one device:", *views]
    return [first, "", *learnt, "", charged, *([""] if warnings else []), *warnings]


def _refused(design: "Design", limit: Fraction | None) -> list[str]:
    """Return from which group on an aggregator with this limit refuses a record."""
    if limit is None:
        return []
    from fleetcount_analysis.answers import smallest_refused

    size = smallest_refused(design, limit)
    typical = "typical record with 19 in 20 devices in one cell is refused"
    words = f"no {typical}" if size is None else f"a {typical} from {size:,} devices on"
    return ["", f"With largest_posterior {_exact(limit)} {words}."]


def _charged(design: "Design") -> str:
    loss = design.ledger_loss
    return "no finite epsilon" if loss.epsilon is None else f"epsilon {loss.epsilon} ({loss.relation.value})"


def _write(directory: Path, planned: "Plan", rows: Sequence[tuple[int, float, int, int]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["true_count", "standard_error", "low", "high"])
    writer.writerows((count, f"{error:.6g}", low, high) for count, error, low, high in rows)
    (directory / "plan.csv").write_text(text.getvalue(), encoding="utf-8")
    (directory / "plan.json").write_text(json.dumps(_record(planned), indent=1) + "\n", encoding="utf-8")
    _draw(directory / "plan", planned)


def _record(planned: "Plan") -> dict[str, Any]:
    design = planned.design
    return {
        "devices": planned.devices,
        "values": design.values,
        "aggregators": design.aggregators,
        "mechanism": design.name,
        "sampling_rate": str(design.exposure) if design.rounds == 2 else None,
        "noise": design.noise.name,
        "noise_epsilon": None,
        **{f"noise_{name}": str(value) for name, value in design.noise.parameters.items()},
        "release_epsilon": None if design.epsilon is None else f"{design.epsilon:f}",
        "ledger_epsilon": None if design.ledger_loss.epsilon is None else f"{design.ledger_loss.epsilon:f}",
        "ledger_relation": design.ledger_loss.relation.value,
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
            for view in planned.design.views()
        ],
    }


def _draw(stem: Path, planned: "Plan") -> None:
    import numpy as np
    from fleetcount_analysis.figures import plan_plot, save_figure
    from scipy.special import ndtri

    counts = np.unique(np.rint(np.geomspace(1, max(planned.devices, 2), _POINTS)))
    quantile = float(ndtri(float((1 + planned.level) / 2)))
    design, empty = planned.design, planned.sd(0)
    both = np.array([planned.sd(round(count)) for count in counts])
    title = (
        f"{planned.devices:,} devices, {design.values} values, {design.aggregators} aggregators, "
        f"epsilon {design.epsilon}{_at_delta(planned)}, "
        + (f"sampling rate {float(design.exposure):g}" if design.rounds == 2 else f"mechanism {design.name}")
    )
    figure = plan_plot(
        counts.tolist(),
        sampling=(quantile * np.sqrt(np.maximum(both**2 - empty**2, 0))).tolist(),
        noise=[quantile * empty] * len(counts),
        both=(quantile * both).tolist(),
        smallest_count_seen=planned.smallest_count_seen,
        title=title,
        level_percent=float(planned.level * 100),
    )
    save_figure(figure, stem)
