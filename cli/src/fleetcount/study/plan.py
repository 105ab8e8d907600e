"""`fleetcount plan`: error, smallest count seen and loss per adversary of a count, before any device is asked.

It must not ask a device or start a process.
"""

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from fleetcount_analysis.answers import joined_errors, smallest_refused
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.interval_words import level_text, number_text
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS, Design
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread
from fleetcount_mechanisms.planning import SHOWN, Plan, plan_question
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of, views_of
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_QUESTION_WINDOWS

from fleetcount.analyst.planning import (
    MOST_DEVICES,
    MOST_VALUES,
    NOISES,
    AskedLevels,
    aims_of,
    answer_law,
    error_text,
    exact_text,
    facing,
    half_widths,
    mean_errors,
    median_errors,
    noise_law,
    number_errors,
    plan_rows,
    round_counts,
    shares_of,
    shares_text,
    title_of,
    values_text,
)
from fleetcount.command.base import EXPLAIN, JSON, OneOf, StrictCommand, aligned, one_line, show
from fleetcount.command.numbers import DELTA, EPSILON, LEVEL, POSTERIOR, SAMPLING_RATE, SHARE, Length, Several
from fleetcount.command.options import PATH, Count, check_output_directory
from fleetcount.command.outputs import staged_directory
from fleetcount.command.statements import privacy_lines, statement_json
from fleetcount.study.plan_cross import cross_errors, cross_lines, cross_spread
from fleetcount.study.plan_windows import PlannedQuestion, compare_ways, parse_levels, plan_walks, total_sd

_COLUMNS: Final = ("true count", "standard error", "low", "high", "width", "width in %")
_FLIPS: Final = ("up", "down", "both")
_THREATS: Final = ("one-honest", "all-collude", "none-trusted")


@click.command(cls=StrictCommand)
@click.option("--devices", required=True, type=Count(1, MOST_DEVICES), help="How many will answer.")
@click.option("--values", required=True, type=Count(1, MOST_VALUES), help="V, the cells or categories without 'none'.")
@click.option(
    "--mechanism", default="sampling", show_default=True, help="As a question has it, or direct or one-sided."
)
@click.option("--epsilon", required=True, type=EPSILON, help="Loss of the published counts, 0.001 to 10.")
@click.option("--noise", type=OneOf(NOISES), default=NOISES[0], show_default=True, help="Its law.")
@click.option("--sampling-rate", type=SAMPLING_RATE, help="Between 0 and 1/2 (default 0.45, 0.25 or 0.10 by V).")
@click.option("--epsilon-local", type=EPSILON, help="Loss of one answer alone, where devices randomize it.")
@click.option(
    "--aggregators",
    type=Count(FEWEST_AGGREGATORS, MOST_AGGREGATORS),
    default=FEWEST_AGGREGATORS,
    show_default=True,
    help=f"How many, {FEWEST_AGGREGATORS} to {MOST_AGGREGATORS}.",
)
@click.option("--windows", type=Count(1, MAX_QUESTION_WINDOWS), help="Compare every way to ask so many times.")
@click.option("--every", type=Length(), default="1 h", show_default=True, help="With --windows: how often.")
@click.option("--delta", type=DELTA, default="1e-9", show_default=True, help="With --windows: delta of the promise.")
@click.option("--alone", is_flag=True, help="With --windows: noise for this question alone, not for one after another.")
@click.option("--threat", type=OneOf(_THREATS), help="With --windows: recommend a way against this one.")
@click.option("--levels", help="What a drill-down finds: bits of its steps, like 11,18,25,32.")
@click.option("--zooms", type=Several(Count(1, 128)), help="Count a grid of V squares at so many zooms, or sides: 1,8.")
@click.option("--in-order", is_flag=True, help="With --zooms: the values are bins; zooms have 2, 4, ... together.")
@click.option("--shares", type=Several(SHARE), help="With --zooms: their parts of the budget, like 0.83,0.17.")
@click.option("--aim", metavar="AIM", help="With --zooms: choose the shares for cell, block or total: block=2,cell=1.")
@click.option("--show", type=OneOf(SHOWN), help="Of a direct number asked at V points: what is read.")
@click.option("--cross", type=Several(Count(2, MOST_VALUES)), help="The values are a table of signals, like 16,4.")
@click.option("--at-once", type=Count(1, MOST_VALUES), help="Direct: how many values a device has at once at most.")
@click.option("--direction", type=OneOf(_FLIPS[:2]), help="One-sided: no count too small, or none too large.")
@click.option("--flips", type=Several(OneOf(_FLIPS)), help="Asymmetric: up, down or both, for all or each.")
@click.option("--no-total", is_flag=True, help="Open no total of all cells, which costs a cell little or nothing.")
@click.option("--level", type=LEVEL, default="0.95", show_default=True, help="Of the intervals, 0.5 to 0.999999.")
@click.option("--largest-posterior", type=POSTERIOR, help="Show what this limit of an aggregator refuses.")
@click.option("--output", metavar="DIR", type=PATH, help="Write plan.csv, plan.json, plan.svg and plan.png there.")
@EXPLAIN
@JSON
def plan(  # one parameter an option, passed by name
    devices: int,
    values: int,
    epsilon: Fraction,
    aggregators: int,
    level: Fraction,
    output: Path | None,
    explain: bool,
    as_json: bool,
    **others: Any,
) -> None:
    """Show what a count will give, by Sampling Privacy or another mechanism, before any device is asked.

    For true counts from 0 to all devices: the standard error and the exact interval that a typical release gives; the
    smallest count that is told apart from 0; and what each adversary could learn. The error does not grow with the
    devices that are elsewhere: 1,000 among 2,000 and among 2,000,000 are seen equally well.

    The noise is planned so that the release loses at most the epsilon asked for, with Gaussian noise at delta 1e-9:
    more noise for one release, less for many. At one epsilon a larger sampling rate is more accurate: for one value
    always, for several in every cell of at least as many devices as there are aggregators. What a smaller one buys: if
    all aggregators collude, they see each truth with that probability only.

    With --windows epsilon is the loss of all answers of a device to a question, at delta: every way to ask is compared,
    and the threat that each answers is named. The noise is strong enough for such questions one after
    the other, as that of `fleetcount question create` is; --alone (there: followed = false) is for one question, after
    which devices with default limits wait. --threat one-honest: at least one operator is honest;
    all-collude: all may collude, and then see a part; none-trusted: the promise holds against all of them.

    With --zooms the values are the squares of a grid as wide as high, and squares of two, four, ... times the side are
    released beside them, each with noise of its own; epsilon is that of all together. --zooms 1,8 names the sides; with
    --shares 0.83,0.17 the first has most of the budget. With --in-order the values are bins of a number, and 2, 4, ...
    neighbours together are released beside them.

    --aim chooses the shares, as a question file takes them: those with which a cell, a block (a square of the largest
    zoom) or the total errs the least, or with weights, block=2,cell=1, the sum of these times the squared errors. All
    shares in hundredths are compared, of five zooms and more in steps of 1/50 to 1/20. A total beside the zooms needs
    no share: it has what they leave.

    Direct answers to two values or more have the total of all cells beside them, with noise of its own that costs a
    cell nothing, and sampled ones under Gaussian noise and a coin a window have one that costs little; that a device
    is there at all is then protected like its value, no better. --no-total leaves it out.

    With --show mean the values are points of a number, and the sum by which its mean is read is released beside them;
    with --show quantiles 2, 4, ... neighbours together are, and the median is read from all. How far it errs is told of
    200, 1,000 and 100,000 numbers in a range of 1. With --windows the ways to ask are those in direct answers.

    With --cross 16,4 the values are those of two signals together, or of three, and the margin of each is released with
    noise of its own; --shares has the parts of the cells and of each margin, equal ones by default.

    With --at-once a device may have so many of the values at once and tells them all, of more so many of them: the
    noise is for all numbers that a set moves when it becomes another. The total is then how many devices have any.

    With --levels the windows are walks of a drill-down, a window a level, and --values bounds the candidates of a step:
    the threshold that empty cells rarely pass, and the smallest place that a walk then finds.
    """
    if output is not None:
        check_output_directory(output)
    question = {name: others.pop(name) for name in ("windows", "every", "delta", "threat", "alone")}
    levels, cross, limit = (others.pop(name) for name in ("levels", "cross", "largest_posterior"))
    steps, others["at_once"] = None if levels is None else parse_levels(levels), others["at_once"] or 1
    asked = _asked_levels(others)
    together = _not_together(question, steps, asked, cross, others["at_once"], output, limit)
    if refused := together or _without_effect(click.get_current_context()):
        raise UsageError(refused)
    if steps is None and question["windows"] is None:
        mechanism, noise, direction = (others.pop(name) for name in ("mechanism", "noise", "direction"))
        law, answer = noise_law(mechanism, noise), answer_law(mechanism, values, **others)
        spread = _opened(asked, cross, answer, mechanism, law, epsilon)
        planned = plan_question(devices, answer, epsilon, aggregators, noise=law, level=level, spread=spread)
        _show(facing(planned, direction), epsilon, limit, output, explain=explain, as_json=as_json)
        return
    question["windows"] = question["windows"] or len(steps or ())
    of_all: dict[str, Any] = {"aggregators": aggregators, "level": level, "show": asked.show, "total": asked.total}
    opened = asked.of_windows(values)
    whole = PlannedQuestion(devices=devices, values=values, epsilon=epsilon, spread=opened, **of_all, **question)
    compare_ways(whole, output, as_json=as_json) if steps is None else plan_walks(whole, steps, as_json=as_json)


def _opened(
    asked: AskedLevels,
    cross: Sequence[int] | None,
    answer: AnswerLaw,
    mechanism: str,
    law: type[PlannedNoise],
    epsilon: Fraction,
) -> Spread:
    """Return the levels that one release opens, of a table of signals or as `asked`."""
    if not cross:
        return asked.spread(answer, mechanism, law, epsilon)
    margins = cross_spread(answer.values, cross, asked.shares, mechanism, law)
    return margins.with_total_for(answer, law) if asked.total else margins


_OF_ONE: Final = ("mechanism", "noise", "sampling_rate", "epsilon_local", "flips", "direction", "explain")
_OF_MANY: Final = ("every", "delta")
_NOT_OF_WALKS: Final = ("level", "no_total", "every")


def _without_effect(context: click.Context) -> str:
    """Return why an option that was given would change nothing, or nothing: defaults are not given.

    With --show all ways are direct, and --mechanism may say so.
    """
    direct = context.params["show"] is not None and context.params["mechanism"] == "direct"

    def given(name: str) -> bool:
        said = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        return said and not (name == "mechanism" and direct)

    walks = context.params["levels"] is not None
    many = walks or context.params["windows"] is not None
    reasons = (
        (many, _OF_ONE, "is about one release, allowed: without --windows, --levels"),
        (not many, _OF_MANY, "is about a question of several windows, allowed: with --windows or --levels"),
        (walks, _NOT_OF_WALKS, "changes no walk, allowed: without --levels"),
        (many and context.params["show"], ("level",), "is of intervals, allowed: without --windows or without --show"),
    )
    unused = (
        f"--{name.replace('_', '-')} {why}" for holds, names, why in reasons if holds for name in names if given(name)
    )
    return next(unused, "")


def _asked_levels(others: dict[str, Any]) -> AskedLevels:
    """Take out of the options those that say what is opened beside the cells."""
    zooms, shares, in_order, show, aim = (others.pop(one) for one in ("zooms", "shares", "in_order", "show", "aim"))
    return AskedLevels(
        zooms=zooms[0] if zooms and len(zooms) == 1 else zooms,
        shares=shares,
        in_order=in_order,
        total=not others.pop("no_total"),
        show=show,
        aims=aims_of(aim),
    )


def _not_together(
    question: Mapping[str, Any],
    steps: Sequence[int] | None,
    asked: AskedLevels,
    cross: Sequence[int] | None,
    at_once: int,
    output: Path | None,
    largest_posterior: Fraction | None,
) -> str:
    """Return why options that were given do not go with each other, or nothing."""
    zoomed, windows, walks = asked.zooms is not None, question["windows"] is not None, steps is not None
    other = zoomed or asked.in_order or asked.show or asked.aims or windows or walks
    alone = "allowed: without --zooms, --in-order, --show, --aim, --windows, --levels"
    threat, limited = question["threat"], largest_posterior is not None
    reasons = (
        (cross and other, f"--cross is about one release, {alone}"),
        (at_once > 1 and (cross or other), f"--at-once is about one release of cells and total, {alone}, --cross"),
        (walks and (output is not None or threat is not None), "--levels goes with neither --output nor --threat"),
        (zoomed and (walks or limited), "--zooms goes with neither --levels nor --largest-posterior"),
        (walks and asked.show, "--show is about a number, allowed: without --levels"),
        ((windows or walks) and limited, "--largest-posterior is about one record, allowed: without --windows"),
        (
            windows and asked.show and threat not in (None, "one-honest"),
            f"--threat is {threat!r} with --show, allowed: one-honest; a number is asked in direct answers alone",
        ),
        (
            question["alone"] and (not windows or walks),
            "--alone is given, allowed with --windows and without --levels: a drill-down is planned alone",
        ),
        (
            not windows and threat is not None,
            f"--threat is {threat!r}, allowed with --windows: how often the question is asked",
        ),
    )
    return next((why for holds, why in reasons if holds), "")


def _show(  # how it is shown, by name
    planned: Plan, epsilon: Fraction, limit: Fraction | None, output: Path | None, *, explain: bool, as_json: bool
) -> None:
    """Show what one release gives; write it too where a directory is named."""
    rows = plan_rows(planned, round_counts(planned.devices))
    foot = [
        *_total_line(planned),
        *_number_lines(planned),
        *_zoom_lines(planned, epsilon),
        *cross_lines(planned, epsilon),
        *_foot(planned, explain=explain),
        *_refused(planned.design, limit),
    ]
    names = ("true_count", "standard_error", "low", "high")
    record = _record(planned) | {"rows": [dict(zip(names, row, strict=True)) for row in rows]}
    show(record, [*_head(planned), "", *aligned([_COLUMNS, *map(_printed, rows)], left=0), "", *foot], as_json=as_json)
    if output is not None:
        with staged_directory(output) as stage:
            _write(stage, planned, rows)
        click.echo(one_line(f"wrote plan.csv, plan.json, plan.svg, plan.png in {output}"), err=as_json)


def _head(planned: Plan) -> list[str]:
    design = planned.design
    rate = f"sampling rate {exact_text(design.exposure)}" if design.rounds == 2 else f"mechanism {design.name}"
    parameters = ", ".join(f"{name} {exact_text(value)}" for name, value in design.noise.parameters.items())
    if design.noise.epsilon is None:
        parameters = f"{design.noise.name}, {parameters} (sd {design.noise.draw_variance**0.5:.2f})"
    return [
        f"{planned.devices:,} devices, {values_text(design)}, "
        f"{design.aggregators} aggregators, epsilon {epsilon_of(design)}{_at_delta(planned)} of a release",
        f"{rate}; each aggregator's noise: {parameters}",
    ]


def _at_delta(planned: Plan) -> str:
    delta = views_of(planned.design)[0].delta
    return f" (delta {delta:f})" if delta else ""


def _printed(row: tuple[int, float, int, int]) -> tuple[str, ...]:
    count, error, low, high = row
    share = number_text(100 * (high - low) / count) if count else "-"
    return f"{count:,}", f"{error:,.1f}", f"{low:,}", f"{high:,}", f"{high - low:,}", share


def _foot(planned: Plan, *, explain: bool) -> list[str]:
    seen, level = planned.smallest_count_seen, level_text(planned.level)
    first = (
        f"The smallest count told apart from 0 ({level} both ways): {seen:,}"
        if seen is not None
        else f"No count among {planned.devices:,} devices is told apart from 0 ({level} both ways)"
    )
    privacy = privacy_lines(planned.design, views_of(planned.design), explain=explain)
    warnings = [f"Warning: {warning}" for warning in planned.warnings]
    charged = f"A ledger is charged {_charged(planned.design)} for one answer."
    return [first, "", *privacy, "", charged, *([""] if warnings else []), *warnings]


def _refused(design: Design, limit: Fraction | None) -> list[str]:
    """Return from which group on an aggregator with this limit refuses a record."""
    if limit is None:
        return []

    size = smallest_refused(design, limit)
    typical = "typical record with 19 in 20 devices in one cell is refused"
    words = f"no {typical}" if size is None else f"a {typical} from {size:,} devices on"
    return ["", f"With largest_posterior {exact_text(limit)} {words}."]


def _charged(design: Design) -> str:
    loss = ledger_loss_of(design)
    return "no finite epsilon" if loss.epsilon is None else f"epsilon {loss.epsilon} ({loss.relation.value})"


def _write(directory: Path, planned: Plan, rows: Sequence[tuple[int, float, int, int]]) -> None:
    cells = ((count, f"{error:.6g}", low, high) for count, error, low, high in rows)
    text = csv_table(("true_count", "standard_error", "low", "high"), cells)
    (directory / "plan.csv").write_text(text, encoding="utf-8")
    (directory / "plan.json").write_text(json.dumps(_record(planned), indent=1) + "\n", encoding="utf-8")
    # Matplotlib takes longer to load than a plan to compute: only where a picture is asked for.
    from fleetcount_analysis.figures import plan_plot, save_figure

    save_figure(plan_plot(**half_widths(planned), title=title_of(planned)), directory / "plan")


def _record(planned: Plan) -> dict[str, Any]:
    design = planned.design
    lost, charged = epsilon_of(design), ledger_loss_of(design)
    return {
        "devices": planned.devices,
        "values": design.values,
        **({"at_once": design.levels.most} if design.levels.most > 1 else {}),
        **({"zooms": len(shares), "shares": list(map(str, shares))} if (shares := shares_of(design)) else {}),
        "total_standard_error": total_sd(planned),
        **number_errors(design),
        **cross_errors(design),
        "aggregators": design.aggregators,
        "mechanism": design.name,
        "sampling_rate": str(design.exposure) if design.rounds == 2 else None,
        "noise": design.noise.name,
        "noise_epsilon": None,
        **{f"noise_{name}": str(value) for name, value in design.noise.parameters.items()},
        "release_epsilon": None if lost is None else f"{lost:f}",
        "ledger_epsilon": None if charged.epsilon is None else f"{charged.epsilon:f}",
        "ledger_relation": charged.relation.value,
        "level": str(planned.level),
        "smallest_count_seen": planned.smallest_count_seen,
        "warnings": list(planned.warnings),
        **statement_json(design, views_of(design)),
    }


def _total_line(planned: Plan) -> list[str]:
    """Return the error of the total where it is opened, and that of a sum of cells in its place."""
    whole, levels = total_sd(planned), planned.design.levels
    if levels.most > 1:
        moved = (
            f"Noise for the {levels.replaced[0][0]} numbers that a set moves; the counts add up to more than devices."
        )
        told = [] if whole is None else [f"Devices that told any, a number of its own: error {whole:,.1f}"]
        return [moved, *told, ""]
    if whole is None or not levels.total:
        return []
    added = math.sqrt(planned.design.values) * planned.sd(0)
    return [
        f"All cells together, a number of its own: error {whole:,.1f}; the cells added up: {added:,.1f}",
        "",
    ]


def _number_lines(planned: Plan) -> list[str]:
    """Return how far the mean of numbers from 0 to 1 errs, or their median, where a release is for it."""
    found = list[str]()
    for what, errors in (
        ("The mean of numbers from 0 to 1, a sum of its own", mean_errors(planned.design)),
        ("The median of numbers spread evenly from 0 to 1", median_errors(planned.design)),
    ):
        each = ", ".join(f"{error_text(error)} of {devices:,}" for devices, error in errors.items())
        found += [f"{what}: error {each}", ""] if errors else []
    return found


def _zoom_lines(planned: Plan, epsilon: Fraction) -> list[str]:
    """Return the errors of an empty cell at every zoom, under what heads them; nothing of a release of one zoom.

    Raises:
        MechanismError: no noise of one zoom reaches epsilon.
    """
    design = planned.design
    levels = design.levels
    if levels.grid is None or len(levels.sides) == 1:
        return []
    family = type(design.noise)
    alone = plan_question(planned.devices, design.answer, epsilon, design.aggregators, noise=family).sd(0)  # type: ignore[arg-type]
    own = planned.sd(0)
    cells = f"{levels.values} values in order" if levels.line else f"{levels.grid[0]} by {levels.grid[1]} squares"
    lines = [
        f"{len(levels.sides)} zooms of {cells} in one report; standard error of an empty cell as released,",
        "with all zooms reconciled, and of sums of cells where one zoom alone is released under the same epsilon:",
    ]
    sided = design.noise.mean != 0
    # Noise with one side has a mean, and no best combination of zooms was worked out for it.
    agreeing = [None] * levels.count if sided else list(joined_errors(design))
    for side, size, law, joint in zip(levels.sides, levels.sizes, design.laws, agreeing, strict=False):
        shown = "-" if joint is None else f"{joint:,.1f}"
        released = own * math.sqrt(law.draw_variance / design.noise.draw_variance)
        added = alone * math.sqrt(levels.values / size)
        lines.append(f"  {levels.larger(side)}, {size:,} of them: {released:,.1f}, {shown}, {added:,.1f}")
    return [*lines, f"In a question file: {shares_text(levels, shares_of(design))}", ""]
