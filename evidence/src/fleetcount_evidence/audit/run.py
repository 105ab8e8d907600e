"""An audit: questions shared out over processes, counts of outcomes added up, every line of every statement attacked.

It decides which claims are broken; it prints and writes nothing.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Final

import numpy as np
from fleetcount_analysis.interval_words import rounded
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_simulator.study.processes import carry_out
from numpy.typing import NDArray

from fleetcount_evidence.audit.bounds import strongest_attack
from fleetcount_evidence.audit.noise_checks import Check, check_noise, check_reading, draws_after_restarts
from fleetcount_evidence.audit.questions import AuditedDesign, neighbouring_truths
from fleetcount_evidence.audit.releases import draw_releases
from fleetcount_evidence.audit.slot_checks import check_slots
from fleetcount_evidence.audit.views import observation_of, outcome_count, outcomes

_JOB: Final = 40_000
_CHUNK: Final = 10_000
_LEAST_A_TRUTH: Final = 20
_READINGS: Final = 500

Integers = NDArray[np.int64]
Step = Callable[[str, int, int], None]
Counts = dict[str, Integers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of one statement, attacked: the claimed loss and the proved lower bound.

    `of_delta` says that both are a delta (at eps = 0), for a line that claims no finite epsilon; `pair` names the two
    truths that the strongest attack distinguishes, `trials` is the number of releases (or messages) it was judged on.
    """

    question: AuditedDesign
    view: AdversaryView
    bound: float
    pair: str
    trials: int

    @property
    def of_delta(self) -> bool:
        """Whether claim and bound are a delta."""
        return self.view.epsilon is None

    @property
    def claim(self) -> float:
        """The loss that the statement prints."""
        return float(self.view.delta if self.view.epsilon is None else self.view.epsilon)

    @property
    def gap(self) -> float:
        """How far the bound is below the claim; below 0 the claim is broken."""
        return self.claim - self.bound

    @property
    def broken(self) -> bool:
        """Whether the proved loss is above the claimed one."""
        return self.bound > self.claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All lines attacked and all checks made; `releases` of fleets were made in `seconds` by `processes`."""

    lines: tuple[Line, ...]
    checks: tuple[Check, ...]
    releases: int
    seconds: float
    processes: int

    @property
    def releases_a_second(self) -> float:
        """Releases made and evaluated in a second, by all processes together."""
        return self.releases / max(self.seconds, 1e-9)

    @property
    def failures(self) -> list[str]:
        """A sentence for each broken claim and each failed check."""
        lines = [
            f"{one.question.label}, V = {one.question.design.values}, k = {one.question.design.aggregators}, "
            f"{one.view.adversary}: {'delta' if one.of_delta else 'epsilon'} is at least "
            f"{rounded(one.bound, 5, ROUND_FLOOR)}, claimed {rounded(one.claim, 5, ROUND_CEILING)}"
            for one in self.lines
            if one.broken
        ]
        return lines + [f"{one.name}: p = {one.p_value:.1e}" for one in self.checks if not one.passed]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    place: int
    question: AuditedDesign
    releases: int


def run_audit(
    asked: Sequence[AuditedDesign], trials: int, *, draws: int, processes: int | None = None, step: Step
) -> Audit:
    """Return an audit: every line of the questions' statements attacked, with `trials` releases in all, and all checks.

    Each law of noise is checked on `draws` draws, and so is in which window a device is asked where that is one of
    several; None for `processes` is one a core, 1 is this process alone. A question with a broken line is attacked once
    more with fresh trials, and only the second result counts: at 0.1 % error for each of many lines, one is sometimes
    broken by chance.

    Raises:
        ScenarioError: the audit does not know a view or a relation of neighbours.
        ProcessError: a worker process died.
    """
    processes = os.cpu_count() or 1 if processes is None else processes
    checks = list(_checks(asked, draws, step))
    started = time.perf_counter()
    lines, releases = attack_questions(asked, trials, processes, step)
    seconds = time.perf_counter() - started
    doubted = [one for one in asked if any(line.broken for line in lines if line.question is one)]
    if doubted:

        def step_again(_: str, done: int, total: int) -> None:
            step("broken lines again", done, total)

        again, _ = attack_questions(doubted, trials, processes, step_again)
        lines = [line for line in lines if line.question not in doubted] + again
    return Audit(lines=tuple(lines), checks=tuple(checks), releases=releases, seconds=seconds, processes=processes)


def _checks(asked: Sequence[AuditedDesign], draws: int, step: Step) -> Iterator[Check]:
    laws = list(dict.fromkeys(law for one in asked if one.design.noised for law in one.design.laws))
    readable = [one for one in asked if not one.one_a_call]
    asked_once = any(one.one_in > 1 for one in asked)
    total = len(laws) + len(readable) + asked_once
    step("noise and reading", 0, total)
    for done, (law, restarted) in enumerate(zip(laws, draws_after_restarts(laws), strict=True)):
        step("noise and reading", done, total)
        yield from check_noise(law, draws, restarted)
    for done, question in enumerate(readable, start=len(laws)):
        step("noise and reading", done, total)
        yield check_reading(question, _READINGS)
    if asked_once:
        step("noise and reading", total - 1, total)
        yield from check_slots(draws)
    step("noise and reading", total, total)


def attack_questions(asked: Sequence[AuditedDesign], trials: int, processes: int, step: Step) -> tuple[list[Line], int]:
    """Return the lines of all statements, attacked, and how many releases were made."""
    for question in asked:
        for view in question.views:
            observation_of(view)  # Refuses an unknown view before the first trial, which may take hours.
            neighbouring_truths(question, view.neighbours)
    jobs = [job for place, question in enumerate(asked) for job in _jobs(place, question, trials)]
    total = sum(job.releases for job in jobs)
    counts: list[Counts] = [{} for _ in asked]
    done = 0
    step("releases", done, total)
    carried_out = carry_out(_count, jobs, processes) if processes > 1 else ((job, _count(job)) for job in jobs)
    for job, counted in carried_out:
        for slug, array in counted.items():
            counts[job.place][slug] = counts[job.place].get(slug, 0) + array
        done += job.releases
        step("releases", done, total)
    lines = [_line(question, view, counts[place]) for place, question in enumerate(asked) for view in question.views]
    return lines, total


def _jobs(place: int, question: AuditedDesign, trials: int) -> Iterator[_Job]:
    truths = len(question.truths)
    left = max(round(trials * question.share) // truths, _LEAST_A_TRUTH) * truths
    whole = _JOB // 10 if question.one_a_call else _JOB
    whole -= whole % truths
    while left:
        part = min(left, whole)
        yield _Job(place=place, question=question, releases=part)
        left -= part


def _count(job: _Job) -> Counts:
    """Return how often each view saw each outcome: (2 halves, truths, outcomes) int64 by slug; run by a worker."""
    question = job.question
    truths, counts = question.truths, Counts()
    for place in range(len(truths)):
        left = job.releases // len(truths)
        while left:
            rows = min(left, _CHUNK)
            _add_outcomes(counts, question, place, rows)
            left -= rows
    return counts


def _add_outcomes(counts: Counts, question: AuditedDesign, place: int, rows: int) -> None:
    truths = question.truths
    seen = draw_releases(question, truths[place], rows).only(question.moved)
    for view in question.views:
        observed = observation_of(view)(seen)
        size = outcome_count(observed.shape[1], question.one_in)
        codes = outcomes(observed, None if question.one_in == 1 else seen.slots, question.one_in)
        table = counts.setdefault(view.adversary, np.zeros((2, len(truths), size), dtype=np.int64))
        for half in (0, 1):
            table[half, place] += np.bincount(codes[half::2], minlength=size)


def _line(question: AuditedDesign, view: AdversaryView, counts: Counts) -> Line:
    neighbours, truths = neighbouring_truths(question, view.neighbours), question.truths
    pairs = [(truths.index(one), truths.index(other)) for one, other in neighbours]
    delta = None if view.epsilon is None else float(view.delta)
    attack = strongest_attack(counts[view.adversary], pairs, delta=delta)
    one, other = ("".join(map(str, truth)) for truth in neighbours[attack.pair])
    return Line(
        question=question,
        view=view,
        bound=attack.bound,
        pair=f"{one} against {other}",
        trials=sum(attack.trials),
    )
