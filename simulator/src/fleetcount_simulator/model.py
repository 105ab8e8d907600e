"""The values and protocols of a study: question, population, mechanism, faults, attackers, case, outcome.

All other modules of this package make or read these; nothing here draws, counts, reads a file or a clock. NumPy arrays
are int64, and no function changes an array after passing it on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

import numpy as np
from fleetcount_mechanisms.answers import AnswerLaw, Truth, answer_named
from fleetcount_mechanisms.design import MOST_AGGREGATORS, Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, neighbouring_sides
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, Side, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.planning import spread_for_show
from fleetcount_mechanisms.responses import Flips
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.domain import Numbers, ValueDomain, most_of
from fleetcount_protocol.window.fields import levels_of
from fleetcount_transport.settings import read_rows, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.standing import StandingQuestion

Integers = NDArray[np.int64]
EngineName = Literal["exact-law", "per-device", "network"]
MechanismKind = str
"""The one spelling of a mechanism (`fleetcount_mechanisms.answers`), "one-sided" for the truth under such noise."""
ONE_SIDED: Final = "one-sided"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Where the values lie, for a map: the outline of value v is `outlines[v-1]`, corners (x, y) in `unit`.

    Outlines are areas, or open lines (road edges) where `lines`; a pair of corners always is a line. `unit` is "m" (a
    projected frame) or "deg" (longitude, latitude).
    """

    outlines: tuple[tuple[tuple[float, float], ...], ...] = field(repr=False)
    unit: Literal["m", "deg"]
    lines: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerSpace:
    """What is asked: a title, V labels (value v is `labels[v-1]`, 0 is "none of them"), and where the values lie.

    `domain` is how a device's signal becomes a value; only the network engine needs it, and only up to 4,095 values.
    Where it is `Numbers`, `readings` are all that devices read, ascending and in its unit: a population then says which
    reading a device holds, 1..R, and an engine rounds it to a value (`rounding`).
    Where devices have several values at once, `sets` are all sets of values that they hold, distinct and not empty, and
    a population says which set a device holds, 1..H; it tells up to `most` of them (`held_sets`).
    """

    title: str
    labels: tuple[str, ...] = field(repr=False)
    places: Places | None = None
    domain: ValueDomain | None = None
    readings: tuple[Fraction, ...] = field(default=(), repr=False)
    sets: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    @property
    def values(self) -> int:
        """V, the number of values without 0."""
        return len(self.labels)

    @property
    def held(self) -> int:
        """How many things a device may hold without 0: R readings, H sets, or the V values."""
        return len(self.readings) or len(self.sets) or self.values

    @property
    def most(self) -> int:
        """How many values a device tells at once at most."""
        return most_of(self.domain)


class Population(Protocol):
    """Who is asked and what each would truly answer, at every epoch. A pure function of its data and its seed."""

    @property
    def question(self) -> AnswerSpace:
        """The question this population was made for."""
        ...

    @property
    def devices(self) -> int:
        """How many devices there are, the same at every epoch."""
        ...

    @property
    def epochs(self) -> int:
        """The number of epochs at which it can be asked."""
        ...

    def histogram(self, epoch: int) -> Integers:
        """Return shape (V+1,): how many devices hold each value, [0] none of them; the sum is `devices`.

        Of readings shape (R+1,), of sets (H+1,): how many hold each.
        """
        ...

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.uint16] | NDArray[np.int32]:
        """Return the values 0..V (readings 0..R, sets 0..H) of devices start..stop-1; together they are `histogram`."""
        ...

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Return which of the devices are on (ignition, coverage) in round 1 or 2; None when all always are."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A population that knows the time of day of its epochs."""

    @property
    def clock(self) -> tuple[float, float]:
        """(Seconds from one epoch to the next, seconds from the midnight before the first day to epoch 0)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """How devices answer and aggregators release, before the number of values V is known. Unused parameters are None.

    `sampling` needs sampling_rate; responses need epsilon_local (or their own `parameters`, exact fractions by the
    names of `fleetcount_mechanisms`); `one-sided` needs direction. `noise_epsilon` is e1 of every aggregator's
    two-sided (one-sided: asymmetric) geometric noise, `noise_variance` the parameter of discrete Gaussian noise
    instead; with both None there is no noise. `zooms` is the number of zooms at which a square grid is counted;
    `margins` opens those of a cross, with the cells' noise on each number. `flips` are those of an asymmetric answer.
    `show` is what a number is asked for, "mean" or "quantiles", whose levels follow (`shown_spread`).
    """

    name: str
    kind: MechanismKind
    sampling_rate: Fraction | None = None
    epsilon_local: Fraction | None = None
    noise_epsilon: Fraction | None = None
    noise_variance: Fraction | None = None
    direction: Literal["up", "down"] | None = None
    parameters: tuple[tuple[str, Fraction], ...] = ()
    zooms: int = 1
    margins: bool = False
    show: str | None = None
    flips: tuple[Flips, ...] = ()

    @property
    def beside(self) -> str:
        """What it opens beside the cells but a total, as the scenario asks for it; "" for nothing."""
        if self.show is not None:
            return f"show is {self.show!r}"
        return f"zooms is {self.zooms}" if self.zooms > 1 else "margins is true" if self.margins else ""

    def answer(self, values: int) -> AnswerLaw:
        """Return the law of a device's answer for V values.

        Raises:
            MechanismError: a parameter is missing or outside its range, or a yes-or-no kind is asked V > 1 values.
        """
        given = dict(self.parameters)
        if self.sampling_rate is not None:
            given["sampling_rate"] = self.sampling_rate
        name = "direct" if self.kind == ONE_SIDED else self.kind
        return answer_named(name, values, epsilon_local=self.epsilon_local, parameters=given, flips=self.flips)

    @property
    def noise(self) -> NoiseLaw:
        """The law of each aggregator's noise; raises MechanismError for a parameter outside its range."""
        if self.noise_variance is not None:
            return GaussianNoise(self.noise_variance)
        if self.noise_epsilon is None:
            return NoNoise()
        if self.kind == ONE_SIDED:
            return OneSidedNoise(self.noise_epsilon, cast("Side", self.direction))  # It refuses None itself.
        return TwoSidedNoise(self.noise_epsilon)

    def design_of_sets(self, values: int, most: int, aggregators: int) -> Design:
        """Return the design of a question that lets devices tell up to `most` of V values at once.

        The number of devices that tell any is opened beside the cells where it is free (`Spread.with_total_for`).

        Raises:
            MechanismError: devices that randomize or are sampled, one-sided noise, zooms or margins; as `design`.
        """
        if self.kind != "direct" or self.beside:
            raise MechanismError(
                f"devices tell up to {most} values at once, allowed: kind 'direct' without zooms, margins, show"
            )
        answer, noise = Truth(values, most), self.noise
        spread = Spread(levels=Levels(values, most=most)).with_total_for(answer, type(noise))
        return spread.design(answer, noise, aggregators)

    def design(self, values: int, aggregators: int, levels: Levels | None = None) -> Design:
        """Return the design of a question of V values, for a number of aggregators and the levels that are opened.

        Raises:
            MechanismError: as `answer` and `noise`, or parts that do not fit.
        """
        return _design(self, values, aggregators, levels or Levels(values))


def shown_spread(show: str, values: int, law: type[NoiseLaw], zooms: int = 1) -> Spread:
    """Return what a direct number of V points opens for its mean or quantiles, and the total that is free beside it.

    `zooms` above 1 are those of quantiles, halves as far as V allows without them.

    Raises:
        MechanismError: a single value, zooms that do not fit V, or without them a V that cannot be halved.
    """
    sides = neighbouring_sides(zooms) if zooms > 1 else ()
    return spread_for_show(show, values, law, sides).with_total_for(Truth(values), law)


@lru_cache(maxsize=256)
def _design_of_number(mechanism: Mechanism, values: int, aggregators: int) -> Design:
    answer, noise = mechanism.answer(values), mechanism.noise
    spread = shown_spread(str(mechanism.show), values, type(noise), mechanism.zooms)
    return spread.design(answer, noise, aggregators)


@lru_cache(maxsize=256)
def _design(mechanism: Mechanism, values: int, aggregators: int, levels: Levels) -> Design:
    # Cached, so that a study computes the statement of a design once.
    answer, noise = mechanism.answer(values), mechanism.noise
    return Design(answer=answer, noise=noise, values=values, aggregators=aggregators, levels=levels)


_SHARE: Final = Range("[0, 1]")
_SECONDS: Final = Range("[0, 86400]")


@settings
class _Outage:
    """[[faults.outage]]: when an aggregator goes down, and for how long."""

    aggregator: int = setting(Table.integer, 0, MOST_AGGREGATORS - 1)
    step: str = setting(Table.slug)
    seconds: Fraction = setting(Table.number, _SECONDS)


def _outages(table: Table, key: str) -> tuple[tuple[int, str, Fraction], ...]:
    return tuple((one.aggregator, one.step, one.seconds) for one in read_rows(table, key, _Outage, least=0, most=16))


@settings
class Faults:
    """[faults]: what goes wrong on the way; shares of devices are probabilities per device, exact.

    `loss`: neither instalment ever arrives. `drop_out`: the device is off in round two (a half pair, which is removed);
    `ignition` reads that from the population's `reachable` instead. `late`: arrives after its window. `duplicates` and
    `reorder`: sent again, or out of order (must change nothing). `clock_skew_s`: largest error of a device's clock.
    `outage`: (aggregator position, step, seconds down; 0 never comes back), by the steps of docs/operating-trouble.md.
    `naive`: count half pairs, as without agreement (an ablation that shows the bias).
    """

    loss: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    drop_out: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    ignition: bool = setting(Table.boolean, default=False)
    late: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    duplicates: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    reorder: bool = setting(Table.boolean, default=False)
    clock_skew_s: Fraction = setting(Table.number, _SECONDS, default=Fraction(0))
    outage: tuple[tuple[int, str, Fraction], ...] = setting(_outages, default=())
    naive: bool = setting(Table.boolean, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacker:
    """One adversary: its kind and its own parameters, checked by the attackers module that knows the kind."""

    name: str
    kind: Literal["liars", "cheats", "known-others", "colluding-aggregators", "repeating-analyst", "tracker"]
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """How often a case is asked, and the loss that each device's ledger allows in total (None: no limit).

    Without `question` every epoch is a question of its own: the ledger judges it alone, and the device tosses a coin of
    its own for it. With `question` the epochs are the windows of one question: a device that joins reserves the cost of
    all windows that are left, and does not join if its ledger has no room for them.
    """

    count: int = 1
    device_epsilon: Fraction | None = None
    question: StandingQuestion | None = None

    @property
    def tosses(self) -> int:
        """How many times a device tosses its sampling coin over all epochs."""
        return self.count if self.question is None else len(self.question.shape.units)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One point of a scenario's grid: everything an engine needs, and the axes' values that name the point.

    `index` numbers the case within its scenario; with the scenario's seed, the run and the shard it seeds every draw.
    """

    index: int
    point: Mapping[str, str]
    population: Population = field(repr=False)
    mechanism: Mechanism
    aggregators: int = 2
    min_batch_size: int = 10
    level: Fraction = Fraction(95, 100)
    faults: Faults = Faults()  # noqa: RUF009 - Faults is frozen
    attackers: tuple[Attacker, ...] = ()
    epochs: Epochs = Epochs()

    @property
    def design(self) -> Design:
        """The design of the question: what is answered, noised, promised and read.

        Raises:
            ScenarioError: the mechanism cannot ask this question; the message names the mechanism.
        """
        question, mechanism = self.population.question, self.mechanism
        asked, domain = mechanism.beside, question.domain
        fits = isinstance(domain, Numbers) if mechanism.show else domain is not None
        if asked and (self.attackers or not fits):
            wanted = "question.cells = 'number'" if mechanism.show else "a square grid or a cross"
            lacks = "no attackers, who read cells alone" if fits else wanted
            raise ScenarioError(f"mechanism {mechanism.name!r}: {asked}, allowed with {lacks}")
        try:
            if question.sets:
                return mechanism.design_of_sets(question.values, question.most, self.aggregators)
            if mechanism.show is not None:
                return _design_of_number(mechanism, question.values, self.aggregators)
            sides = neighbouring_sides(mechanism.zooms)
            levels = levels_of(cast("ValueDomain", domain), sides, margins=mechanism.margins) if asked else None
            return mechanism.design(question.values, self.aggregators, levels)
        except (MechanismError, QuestionError) as error:
            raise ScenarioError(f"mechanism {mechanism.name!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseOutcome:
    """The outcome of some runs of one case at one epoch; the first axis of every array is the run.

    `outputs` (runs, outputs) is what is opened, noise included: V numbers for sampling, direct, one-sided and bits,
    V+1 (with value 0 first) for responses, followed by those of every coarser level; all zero where `released` (runs,)
    is False. `counted` (runs, V+1) is the histogram of the devices in the agreed set, `participants` (runs,) their
    number: a real release tells neither. Of sets `counted` has how many told no value and how many told each, and
    `devices` (runs,) how many there are, which is no sum of these.
    `tallies` are further numbers per run by name, int64: reports "lost", "half_pairs", "late", "counted_twice", ...
    """

    outputs: Integers
    released: NDArray[np.bool_]
    counted: Integers
    tallies: Mapping[str, Integers] = field(default_factory=dict[str, Integers])
    devices: Integers | None = None

    @property
    def participants(self) -> Integers:
        """The number of devices in the agreed set: shape (runs,), int64."""
        if self.devices is not None:
            return self.devices
        return np.asarray(self.counted.sum(axis=-1), dtype=np.int64)


class Engine(Protocol):
    """Carries out runs of a case. `seed` alone decides every draw, whatever process or machine runs it."""

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> CaseOutcome:
        """Return the outcome of the numbered runs at one epoch; a run's draws depend on its number, not on the shard.

        `seed` has the scenario's seed as entropy and the spawn key (case index, epoch). Run r draws from
        `SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, r))` and its children, and from nothing else, so that
        cutting the runs into other shards changes no number. A coin that holds for several epochs is drawn from
        `unit_seed` of `engines.opened_sums`, the same at each of them.

        Raises:
            ScenarioError: the engine cannot carry out this case; says what to change.
        """
        ...


Row = Mapping[str, Any]
"""One row of a results table: column name to int, float, str, bool or None."""
