"""`fleetcount plan --windows`: every way to ask again and again under one promise, side by side.

It must not ask a device or start a process.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_analysis.answers import joined_errors
from fleetcount_analysis.answers.drill_down import least_threshold, smallest_found
from fleetcount_analysis.interval_words import level_text, number_text
from fleetcount_client.policy import DEFAULT_PERIOD_S
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.comparison import Compared, Unit, compare
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import InfeasibleTargetError
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread
from fleetcount_mechanisms.planning import MEAN_OF, Plan
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_DRILL_DOWN_LEVELS, MAX_QUESTION_LIFETIME_S
from fleetcount_protocol.question.fields import DAY_S, Coin, Schedule
from fleetcount_protocol.question.question import ONE_ANSWER_PERIOD_S
from fleetcount_protocol.window.domain import PLACE_BITS
from fleetcount_protocol.window.window import report_bytes

from fleetcount.analyst.planning import ANY_GAUSSIAN, error_text, number_errors, shares_of, shares_text
from fleetcount.command.base import one_line, show
from fleetcount.command.outputs import staged_directory

_HEAD: Final = ("way", "sd at 0", "sd at 100", "sd at 1,000", "total", "seen from", "bytes", "rounds", "if all collude")
_COUNTS: Final = (0, 100, 1000)
_NUMBER_HEAD: Final = (
    "way",
    *(f"of {devices:,}" for devices in MEAN_OF),
    *("sd of a point", "total", "bytes", "rounds", "if all collude"),
)
_OF_NUMBERS: Final = {
    "mean": "mean of so many numbers from 0 to 1",
    "quantiles": "median of so many numbers spread evenly from 0 to 1",
}
_CHOSEN_BY: Final = MEAN_OF[1]
"""How many devices' mean or median errs the least in the way that is recommended."""
_THREATS: Final = {
    "one-honest": "One operator is honest",
    "all-collude": "All operators may collude",
    "none-trusted": "No operator is trusted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuestion:
    """What is planned: so many windows, one every so many seconds, under (epsilon, delta) for all of them together.

    Unless it is asked `alone`, the noise is strong enough for such questions one after the other. `show` is what a
    number is asked for, whose `spread` follows from the law of noise.
    """

    devices: int
    values: int
    epsilon: Fraction
    aggregators: int
    level: Fraction
    windows: int
    every: int
    delta: Fraction
    threat: str | None
    spread: Spread | Callable[[type[PlannedNoise]], Spread] | None = None
    show: str | None = None
    alone: bool = False
    total: bool = True


def compare_ways(asked: PlannedQuestion, output: Path | None, *, as_json: bool = False) -> None:
    """Print the ways to ask, in `output` too, and which one to take against a threat if one is named.

    The first window opens at midnight UTC.

    Raises:
        UsageError: more windows than fit into the longest question.
        MechanismError: no way keeps the promise.
    """
    windows, most = asked.windows, 1 + (MAX_QUESTION_LIFETIME_S - 1) // asked.every
    if windows > most:
        days = MAX_QUESTION_LIFETIME_S // DAY_S
        raise UsageError(f"--windows is {windows}, allowed so far apart: 1 to {most:,}, within {days} days")
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
        spread=asked.spread,
        periods=None if asked.alone or windows == 1 else _periods(schedule, units),
        one_in=-(-ONE_ANSWER_PERIOD_S // asked.every),
        total=asked.total,
    )
    kept = [row for row in rows if asked.threat in (None, row.threat.value)]
    if not kept:
        raise InfeasibleTargetError(f"epsilon is {asked.epsilon} over {windows} windows, allowed: one noise can keep")
    lines = _lines(kept, asked)
    if asked.threat is not None:
        best = min(kept, key=lambda row: _error(row.plan))
        taken = f"{_THREATS[asked.threat]}: take {best.name!r}; if all collude, {_collusion(best, windows)}."
        lines += ["", taken, *_response_keys(best.plan)]
    show([_record(row, windows) for row in kept], lines, as_json=as_json)
    if output is not None:
        with staged_directory(output) as stage:
            text = json.dumps([_record(row, windows) for row in kept], indent=1) + "\n"
            (stage / "plan.json").write_text(text, encoding="utf-8")
        click.echo(one_line(f"wrote plan.json in {output}"), err=as_json)


def _response_keys(plan: Plan) -> Iterator[str]:
    """Yield the keys with which a question file asks for randomized answers, if the way is one of these.

    Noise is that of the file's epsilon, whose usual kind of several windows errs more where few are asked.
    """
    design = plan.design
    if design.local_epsilon is not None:
        once = f'; [schedule] one_in = {plan.one_in}; [release] kind = "geometric"' if plan.one_in > 1 else ""
        law = f'[mechanism] kind = "{design.kind.name}", epsilon_local = "{design.local_epsilon:.6g}"'
        yield f'In a question file: mode = "response"; {law}{once}.'


def _periods(schedule: Schedule, units: dict[Unit, Coin]) -> dict[Unit, tuple[Counter[int], ...]]:
    return {unit: schedule.followed(coin, DEFAULT_PERIOD_S) for unit, coin in units.items()}


def _lines(rows: Sequence[Compared], asked: PlannedQuestion) -> list[str]:
    """Return the table, as Markdown, and what its columns mean."""
    windows, promise = asked.windows, _promise_text(asked)
    head, printed = (_HEAD, _printed) if asked.show is None else (_NUMBER_HEAD, _printed_of_number)
    said = []
    if isinstance(asked.spread, Spread):
        levels, shares = asked.spread.levels, shares_of(asked.spread.design(Truth(asked.values), ANY_GAUSSIAN))
        said = [f"Counts are of any of {len(levels.sides)} zooms in one report; epsilon is of all."]
        said += [f"In a question file: {shares_text(levels, shares)}"]
    return [
        f"{windows:,} window{'s' if windows > 1 else ''}, {promise} for all answers of a device together, against",
        *_columns_words(asked),
        *_followed_words(asked),
        *said,
        "",
        *_table([head, *(printed(row, windows) for row in rows)]),
        *(_zoom_lines(rows) if asked.show is None else ()),
    ]


def _columns_words(asked: PlannedQuestion) -> list[str]:
    if asked.show is not None:
        return [
            f"everyone but all operators together. of 200: error of the {_OF_NUMBERS[asked.show]},",
            "in a window; sd of a point: error of its count; total: that of all points together, read with them;",
            "bytes: the shares that a device sends for one answer.",
        ]
    return [
        "everyone but all operators together. sd: error of one cell of one window, true count 0, 100 or 1,000;",
        "total: that of all cells together where nobody is in one, by a number of its own if opened, with which cells",
        "are read too, else added up;",
        f"seen from: the smallest count told apart from 0 ({level_text(asked.level)} each way); bytes: the shares",
        "that a device sends for one answer.",
    ]


def _followed_words(asked: PlannedQuestion) -> list[str]:
    if asked.windows == 1:
        return []
    if asked.alone:
        return ["The noise is for this question alone: devices with default limits refuse a next one for a while."]
    return [
        f"Such questions may follow one another without a pause: the noise is for all that {DEFAULT_PERIOD_S // DAY_S}",
        "days touch (--alone: for this question alone).",
    ]


def _record(row: Compared, windows: int) -> dict[str, Any]:
    plan, design = row.plan, row.plan.design
    return {
        "way": row.name,
        "threat": row.threat.value,
        "coin": row.unit,
        "answer": design.name,
        "one_in": plan.one_in,
        "noise": design.noise.name,
        **{f"noise_{name}": str(value) for name, value in design.noise.parameters.items()},
        **{f"sd_{count}": cell_sd(plan, count) for count in _COUNTS},
        **number_errors(design),
        "sd_total": total_sd(plan),
        "smallest_count_seen": plan.smallest_count_seen,
        "bytes": _bytes(row),
        "rounds": design.rounds,
        "if_all_collude": _collusion(row, windows),
    }


def _printed(row: Compared, windows: int) -> tuple[str, ...]:
    plan = row.plan
    seen = plan.smallest_count_seen
    errors = [f"{cell_sd(plan, count):,.1f}" for count in _COUNTS]
    return (
        row.name,
        *errors,
        "-" if (whole := total_sd(plan)) is None else f"{whole:,.1f}",
        "none" if seen is None else f"{seen:,}",
        f"{_bytes(row):,}",
        str(plan.design.rounds),
        _collusion(row, windows),
    )


def _printed_of_number(row: Compared, windows: int) -> tuple[str, ...]:
    plan = row.plan
    (errors,) = number_errors(plan.design).values()
    whole = total_sd(plan)
    return (
        row.name,
        *map(error_text, errors.values()),
        f"{cell_sd(plan, 0):,.1f}",
        "-" if whole is None else f"{whole:,.1f}",
        f"{_bytes(row):,}",
        str(plan.design.rounds),
        _collusion(row, windows),
    )


def _error(plan: Plan) -> float:
    """Return by what a way is chosen: the error of an empty cell, of a number that of its mean or median."""
    errors = [each[_CHOSEN_BY] for each in number_errors(plan.design).values()]
    return errors[0] if errors else plan.sd(0)


def cell_sd(plan: Plan, count: int) -> float:
    """Return the error of a cell of so many devices, joined with larger cells and the total where answers have them."""
    design, error = plan.design, plan.sd(min(count, plan.devices))
    if design.levels.count == 1 or design.device_randomizes:
        return error
    # Who is in the sample is not known better by joining.
    return math.sqrt(joined_errors(design)[0] ** 2 + error**2 - plan.sd(0) ** 2)


def _zoom_lines(rows: Sequence[Compared]) -> list[str]:
    """Return the errors of the larger cells of direct answers, in counts of all zooms that add up."""
    lines = []
    for row in rows:
        levels = row.plan.design.levels
        if len(levels.sides) > 1:
            each = zip(levels.sides[1:], joined_errors(row.plan.design)[1:], strict=False)
            lines.append(f"{row.name}, " + ", ".join(f"{levels.larger(side)}: {sd:,.1f}" for side, sd in each))
    return ["", "Larger cells, sd at 0 in counts that add up:", *lines] if lines else []


def total_sd(plan: Plan) -> float | None:
    """Return the error of the sum of all cells where none holds a device; None of one value, and of responses.

    Of sets it is that of the number of vehicles that told any, None where that is not opened. Joined with the cells
    where there is a total, the sum of the cells else. A response's sum of all cells is not what it is asked for: how
    many answer is known better.
    """
    design = plan.design
    if design.levels.most > 1 and not design.levels.total:
        return None
    if design.levels.total:
        alone = math.sqrt(design.aggregators * design.laws[-1].draw_variance) / float(design.exposure)
        return joined_errors(design)[-1] if design.levels.most == 1 else alone
    if design.values == 1 or design.device_randomizes:
        return None
    return math.sqrt(design.values) * plan.sd(0)


def _bytes(row: Compared) -> int:
    return report_bytes(row.plan.design)


def _collusion(row: Compared, windows: int) -> str:
    design = row.plan.design
    if row.plan.one_in > 1:
        return "the promise holds; which window it was is seen"
    if row.unit is None:
        return "every answer is seen" if design.exposure == 1 else "the promise holds"
    if windows == 1 or row.unit == "window":
        return f"each answer is seen with chance {design.exposure}"
    whole = "all answers of a day are seen" if row.unit == "day" else "all answers are seen"
    return f"{whole} with chance {design.exposure}"


def _promise_text(asked: PlannedQuestion) -> str:
    epsilon, delta = (number_text(float(one), rounding=ROUND_CEILING) for one in (asked.epsilon, asked.delta))
    return f"epsilon {epsilon} at delta {delta.replace('e-0', 'e-')}"


# `fleetcount plan --levels`: what a drill-down will find under one promise, by every way that its windows may ask.
#
# It must not ask a device or start a process.

FALSE_PLACES: Final = Fraction(1, 20)
"""Empty cells that pass one step, in expectation, at the threshold that is proposed."""
_CHANCE: Final = Fraction(95, 100)
_RATE: Final = Fraction(1, 4)
_WALKS_HEAD: Final = ("way", "sd at a level", "threshold", "smallest place found")


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the levels of a drill-down, written like 11,18,25,32.

    Raises:
        UsageError: not 2 to 8 ascending numbers of bits from 1 to 32.
    """
    good = re.fullmatch(r"[0-9]{1,2}(,[0-9]{1,2})*", text, re.ASCII)
    levels = tuple(map(int, text.split(","))) if good else ()
    ascending = all(low < high for low, high in pairwise((0, *levels, PLACE_BITS + 1)))
    if not 2 <= len(levels) <= MAX_DRILL_DOWN_LEVELS or not ascending:
        raise UsageError(
            f"--levels is {text[:40]!r}, allowed: 2 to {MAX_DRILL_DOWN_LEVELS} ascending numbers of bits, 1 to"
            f" {PLACE_BITS}, like 11,18,25,32"
        )
    return levels


def plan_walks(asked: PlannedQuestion, levels: tuple[int, ...], *, as_json: bool = False) -> None:
    """Print for every way what threshold empty cells rarely pass, and the smallest place that a walk then finds.

    `asked.values` bounds the candidates of a step; `asked.windows` counts every level as a window.

    Raises:
        UsageError: windows that are no whole walks, or a step that has more candidates than allowed.
        MechanismError: no noise keeps the promise.
    """
    children = 1 << max(fine - coarse for coarse, fine in pairwise(levels))
    survivors, first = asked.values // children, 1 << levels[0]
    if survivors < 1 or first > asked.values:
        raise UsageError(f"--values is {asked.values}, allowed with these --levels: {max(children, first)} or more")
    if asked.windows % len(levels):
        raise UsageError(f"--windows is {asked.windows}, allowed: a multiple of the {len(levels)} levels")
    candidates = max(first, survivors * children)
    walks = asked.windows // len(levels)
    rows = list(_rows(asked, len(levels), candidates))
    head = (
        f"{walks:,} walk{'s' if walks > 1 else ''} over {', '.join(map(str, levels))} bits, a window a level: one truth"
        f" asked at {len(levels)} levels\ncounts as {len(levels)} answers: {_promise_text(asked)} for all"
        f" answers of a device together.\nAt most {survivors} survivors of {children} children each:"
        f" {candidates:,} candidates a step.\n"
    )
    foot = (
        f"\nthreshold: empty cells pass it {float(FALSE_PLACES):g} times a step, in expectation; smallest place found:"
        f" with {float(_CHANCE):.0%},\nwhatever the number of devices elsewhere, unless more than {survivors} cells of"
        " a step are busier."
    )
    names = ("way", "sd_at_a_level", "threshold", "smallest_place_found")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    shown = ((way, f"{sd:,.1f}", f"{least:,}", f"{place:,}") for way, sd, least, place in rows)
    show(found, [*head.split("\n"), *_table([_WALKS_HEAD, *shown]), *foot.split("\n")], as_json=as_json)


def _rows(asked: PlannedQuestion, levels: int, candidates: int) -> Iterator[tuple[str, float, int, int]]:
    for name, design in _designs(asked, candidates):
        threshold = least_threshold(design, candidates, FALSE_PLACES)
        deviation = (design.aggregators * design.noise.draw_variance) ** 0.5 / float(design.exposure)
        found = smallest_found(design, threshold, levels, _CHANCE)
        yield name, deviation, threshold, found


def _designs(asked: PlannedQuestion, candidates: int) -> Iterator[tuple[str, Design]]:
    schedule = Schedule(
        first=0, every_s=asked.every, windows=asked.windows, round_one_s=1, round_two_s=0, expiry_s=DAY_S
    )
    sampling = SamplingDie.uniform(_RATE, candidates)
    answers: dict[str, AnswerLaw] = {"direct": Truth(candidates), f"sampling {_RATE}": sampling}
    for way, answer in answers.items():
        for law in (TwoSidedNoise, GaussianNoise):
            noise = noise_for_promise(answer, schedule.shape(Coin.WINDOW), asked.epsilon, asked.delta, law)
            design = Design(answer=answer, noise=noise, values=candidates, aggregators=asked.aggregators)
            yield f"{way}, {'geometric' if law is TwoSidedNoise else 'Gaussian'}", design


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = [[part.ljust(width) for part, width in zip(row, widths, strict=True)] for row in rows]
    return [f"| {' | '.join(line)} |" for line in (head, ["-" * width for width in widths], *body)]
