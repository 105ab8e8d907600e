"""`fleetcount plan --levels`: what a drill-down will find under one promise, by every way that its windows may ask.

It must not ask a device or start a process.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from fleetcount_analysis.answers.drill_down import least_threshold, smallest_found
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import MAX_DRILL_DOWN_LEVELS
from fleetcount_protocol.question.fields import DAY_S, Coin, Schedule
from fleetcount_protocol.window.domain import PLACE_BITS

from fleetcount.command.results import show
from fleetcount.study.plan_windows import PlannedQuestion

FALSE_PLACES: Final = Fraction(1, 20)
"""Empty cells that pass one step, in expectation, at the threshold that is proposed."""
_CHANCE: Final = Fraction(95, 100)
_RATE: Final = Fraction(1, 4)
_HEAD: Final = ("way", "sd at a level", "threshold", "smallest place found")


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
        f" asked at {len(levels)} levels\ncounts as {len(levels)} answers. Epsilon {float(asked.epsilon):g} at delta"
        f" {float(asked.delta):g} for all answers of a device together.\nAt most {survivors} survivors of"
        f" {children} children each: {candidates:,} candidates a step.\n"
    )
    foot = (
        f"\nthreshold: empty cells pass it {float(FALSE_PLACES):g} times a step, in expectation; smallest place found:"
        f" with {float(_CHANCE):.0%},\nwhatever the number of devices elsewhere, unless more than {survivors} cells of"
        " a step are busier."
    )
    names = ("way", "sd_at_a_level", "threshold", "smallest_place_found")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    shown = ((way, f"{sd:,.1f}", f"{least:,}", f"{place:,}") for way, sd, least, place in rows)
    show(found, [*head.split("\n"), *_table(shown), *foot.split("\n")], as_json=as_json)


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


def _table(rows: Iterator[Sequence[str]]) -> list[str]:
    lines = [_HEAD, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    lines.insert(1, tuple("-" * width for width in widths))
    padded = ((f"{part:<{width}}" for part, width in zip(line, widths, strict=True)) for line in lines)
    return ["| " + " | ".join(line) + " |" for line in padded]
