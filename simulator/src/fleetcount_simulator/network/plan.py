"""The plan of the devices of one run, window by window: their readings, their faults, when they join and leave.

Pure: starts nothing. It refuses a case that real aggregators and devices cannot run, before a process starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, cast

import numpy as np
from fleetcount_client.signals import Said
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.limits import MAX_ORDERS_PER_QUESTION, MAX_QUESTION_WINDOWS
from fleetcount_protocol.question.fields import Coin, DrillDown, candidates
from fleetcount_protocol.window.domain import Categories, FixedDomain, Prefixes, ValueDomain
from fleetcount_protocol.window.fields import ReleaseKind
from fleetcount_protocol.window.signal import Signal
from numpy.typing import NDArray

from fleetcount_simulator.engines.opened_sums import run_seed
from fleetcount_simulator.engines.participation import earliest_joining
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.held_sets import ValueSet, sets_of
from fleetcount_simulator.model import Case
from fleetcount_simulator.network.device_faults import draw_device_faults
from fleetcount_simulator.network.fleet_spec import FleetPart
from fleetcount_simulator.network.question import NetworkQuestion, readings_of
from fleetcount_simulator.rounding import rounding_of
from fleetcount_simulator.standing import StandingQuestion, membership_windows, schedule_of

MOST_ANSWERS: Final = 1_000_000
"""Windows times devices: each answer takes milliseconds and its traces stay in memory to the end."""
_TIMED_FAULTS: Final = ("late", "clock_skew_s", "outage", "naive")
"""Faults of time and of aggregators: with many windows their effect on one window would reach into the next."""
_NEWS_S: Final = 5.0
_NEWS_EACH_S: Final = 0.025
"""Seconds between two queries for orders, per device: to apply an order costs a device about 4 ms."""
_NO_NEWS_S: Final = 3_600.0
"""The same where the question has no orders."""
_DELTA: Final = Fraction(1, 10**9)
_ONCE: Final = StandingQuestion(schedule=schedule_of(1, 1, 0), coin=Coin.WINDOW, epsilon=None, delta=_DELTA)
_NOISED: Final = (ReleaseKind.GEOMETRIC, ReleaseKind.GAUSSIAN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetPlan:
    """The plan of a fleet in the windows of its question. Arrays are (windows, devices).

    `truths` are values 0..V, `unharmed` is whether a device has no fault that could keep it from being counted,
    `pauses` are (first, last) window of each outage, ascending and not adjacent. Where devices have several values at
    once, truths are what they tell: 0, or place h of `sets`, h = 1..H. With `walk` the question drills down;
    `truths` are then values of the domain of the first step.
    """

    question: StandingQuestion
    part: FleetPart = field(repr=False)
    truths: NDArray[np.int64] = field(repr=False)
    unharmed: NDArray[np.bool_] = field(repr=False)
    pauses: Sequence[tuple[int, int]]
    walk: DrillDown | None = None
    sets: Sequence[ValueSet] = field(default=(), repr=False)

    def truths_of(self, index: int, domain: ValueDomain) -> NDArray[np.int64]:
        """Return each device's truth in a window that asks `domain`: values 0..V, shape (devices,), int64."""
        row = self.truths[index]
        if self.walk is not None and isinstance(domain, Prefixes):
            read = (cast("Signal", reading) for (reading,) in self.part.readings[index])
            row = np.array([domain.value_of(reading) for reading in read], dtype=np.int64)
        return np.asarray(row, dtype=np.int64)


def widest_step(question: NetworkQuestion, walk: DrillDown) -> NetworkQuestion:
    """Return the question of the walk's step with most candidates, which decides the length of all steps' windows."""
    most = [tuple(range(min(walk.most_survivors, 1 << bits))) for bits in walk.levels[:-1]]
    steps = [candidates(survivors, walk, step) for step, survivors in enumerate(most, start=1)]
    domain = max((question.domain, *steps), key=lambda one: one.values)
    mechanism = question.mechanism
    if isinstance(mechanism, SamplingDie):
        mechanism = SamplingDie.uniform(mechanism.sampling_rate, domain.values, allow_large_rate=True)
    return replace(question, domain=domain, mechanism=mechanism)


def question_of(case: Case, asked: NetworkQuestion) -> StandingQuestion:
    """Return the standing question of a case, after checking that real devices can be asked it.

    Raises:
        ScenarioError: they cannot; the message names the key and what is allowed.
    """
    question = case.epochs.question
    if question is None:
        raise ScenarioError("the case has no [schedule]")
    if question.coin is Coin.DAY:
        raise ScenarioError(
            "schedule.coin is 'day', a real UTC day that no study waits for; the network engine takes: 'window',"
            " 'question'"
        )
    if question.windows > MAX_QUESTION_WINDOWS or question.windows * case.population.devices > MOST_ANSWERS:
        raise ScenarioError(
            f"schedule.windows is {question.windows} for {case.population.devices} devices; the network engine takes at"
            f" most {MAX_QUESTION_WINDOWS} windows and {MOST_ANSWERS} answers"
        )
    if asked.release.kind not in _NOISED:
        raise ScenarioError(
            f"mechanism {case.mechanism.name!r} has release {asked.release.kind.label!r}; real devices are asked a"
            " question with noise on both sides only: 'geometric', 'gaussian'"
        )
    for name in _TIMED_FAULTS:
        if getattr(case.faults, name):
            raise ScenarioError(
                f"faults.{name} is given with a [schedule]; the network engine takes: loss, drop_out, ignition,"
                " duplicates, reorder"
            )
    if 2 * len(_pauses(question)) > MAX_ORDERS_PER_QUESTION:
        raise ScenarioError(
            f"schedule.outages has {len(_pauses(question))} entries; the network engine takes at most"
            f" {MAX_ORDERS_PER_QUESTION // 2}"
        )
    if case.epochs.device_epsilon is None:
        most = replace(case, epochs=replace(case.epochs, device_epsilon=Fraction(LARGEST_BUDGET)))
        if earliest_joining(most) > 0:
            raise ScenarioError(
                f"all windows of mechanism {case.mechanism.name!r} lose more than epsilon {LARGEST_BUDGET} at delta"
                f" {float(question.delta):g}, the most a device's ledger can allow: take more noise or fewer windows"
            )
    return question


def plan_of(case: Case, asked: NetworkQuestion, run: int, seed: np.random.SeedSequence, epoch: int = 0) -> FleetPlan:
    """Return the plan of the fleet in a numbered run; `seed` as in `Engine.run`, of any window of a question.

    The faults of window t are those of epoch t; a case without a [schedule] is asked at `epoch` alone.

    Raises:
        ScenarioError: as `question_of`.
    """
    devices, rounds = case.population.devices, 2 if asked.two_rounds else 1
    if case.epochs.question is None:
        question, seeds = _ONCE, {epoch: seed}
    else:
        question, before = question_of(case, asked), seed.spawn_key[:-1]
        seeds = {at: np.random.SeedSequence(seed.entropy, spawn_key=(*before, at)) for at in range(question.windows)}
    drawn = [draw_device_faults(case, at, rounds, run_seed(one, run).spawn(2)[1]) for at, one in seeds.items()]
    truths, sets = _told(case, {at: run_seed(one, run) for at, one in seeds.items()})
    readings = _readings(asked.domain, sets)
    came, gone = membership_windows(question, 0, devices)
    # A device that has not joined or has left gets no fault: its client does not answer then anyhow.
    away = [(window < came) | (window >= gone) for window in range(question.windows)]
    part = FleetPart(
        readings=[[readings[value] for value in row] for row in truths.tolist()],
        faults=[np.where(off, 0, one.flags).tolist() for off, one in zip(away, drawn, strict=True)],
        came=came.tolist(),
        gone=gone.tolist(),
        skews=drawn[0].skews.tolist(),
        news_s=max(_NEWS_S, devices * _NEWS_EACH_S) if question.outages else _NO_NEWS_S,
    )
    unharmed = np.stack([one.unharmed for one in drawn])
    pauses = _pauses(question)
    return FleetPlan(question=question, part=part, truths=truths, unharmed=unharmed, pauses=pauses, sets=sets)


def _told(case: Case, seeds: Mapping[int, np.random.SeedSequence]) -> tuple[NDArray[np.int64], tuple[ValueSet, ...]]:
    """Return what devices tell by window and device, and the sets that these are places of: none of single values.

    Of a set with more values than are told the told ones are chosen here, so that its device reads these; the draws
    are those of child 2 of the run's seed, as in `_truths`.
    """
    held = sets_of(case.population.question)
    if held is None:
        return np.stack([_truths(case, at, one) for at, one in seeds.items()]), ()
    told = [held.choices(_held(case, at), _generator(one)) for at, one in seeds.items()]
    sets = tuple(sorted({one for row in told for one in row} - {()}))
    places = {(): 0} | {one: place for place, one in enumerate(sets, start=1)}
    return np.array([[places[one] for one in row] for row in told], dtype=np.int64), sets


def _readings(domain: ValueDomain, sets: Sequence[ValueSet]) -> list[tuple[Said, ...]]:
    """Return the readings of a device by its truth."""
    if not sets or not isinstance(domain, Categories):
        return [readings_of(domain, value) for value in range(domain.values + 1)]
    return [(None,), *((frozenset(domain.label(value) for value in one),) for one in sets)]


def _truths(case: Case, epoch: int, seed: np.random.SeedSequence) -> NDArray[np.int64]:
    """Return each device's value 0..V; a number between points is rounded here, so that its device reads a point.

    The draws are those of child 2 of the run's seed: children 0 and 1 are the devices' coins and faults.
    """
    held = _held(case, epoch)
    rounding = rounding_of(case.population.question)
    if rounding is None:
        return held
    return rounding.values(held, _generator(seed).random(held.size))


def _held(case: Case, epoch: int) -> NDArray[np.int64]:
    return case.population.truths(epoch, 0, case.population.devices).astype(np.int64)


def _generator(seed: np.random.SeedSequence) -> np.random.Generator:
    own = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, 2))
    return np.random.Generator(np.random.PCG64(own))


def faultless_plan(
    domain: FixedDomain, readings: Sequence[Sequence[Signal]], walk: DrillDown | None = None
) -> FleetPlan:
    """Return the plan of devices without faults that take part in all windows and toss one coin per window.

    `readings` are by window and device; with `walk` the windows are its steps.
    """
    truths = np.array([[domain.value_of(reading) for reading in row] for row in readings], dtype=np.int64)
    windows, devices = truths.shape
    part = FleetPart(
        readings=[[(reading,) for reading in row] for row in readings],
        faults=[[0] * devices] * windows,
        came=[0] * devices,
        gone=[windows] * devices,
        skews=[0.0] * devices,
        news_s=_NO_NEWS_S,
    )
    question = replace(_ONCE, schedule=schedule_of(windows, 1, 0))
    return FleetPlan(
        question=question,
        part=part,
        truths=truths,
        unharmed=np.ones(truths.shape, dtype=np.bool_),
        pauses=[],
        walk=walk,
    )


def _pauses(question: StandingQuestion) -> list[tuple[int, int]]:
    """Return (first, last) of the maximal runs of windows without a release, ascending."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(question.outages):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return runs
