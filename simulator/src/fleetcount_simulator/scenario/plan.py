"""A scenario: what one study runs, as an ordered list of cases whose populations are made when first needed.

It reads no file, draws nothing and runs nothing.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Attacker, Case, EngineName, Epochs, Faults, Population, Timed
from fleetcount_simulator.scenario.mechanisms import AskedMechanism
from fleetcount_simulator.scenario.source import ScenarioSource

PopulationMaker = Callable[[Mapping[str, Any], Mapping[str, Any], int, Path], Population]
"""`populations.build`: population table, question table, seed, folder of the scenario file."""

_KEPT_POPULATIONS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CasePlan:
    """One point of the grid before its population is made: tables of population and question, everything else read."""

    index: int
    point: Mapping[str, str]
    population: Mapping[str, Any] = field(repr=False)
    question: Mapping[str, Any] = field(repr=False)
    mechanism: AskedMechanism
    aggregators: int
    min_batch_size: int
    level: Fraction
    keep_cells: bool
    faults: Faults
    attackers: tuple[Attacker, ...]
    epochs: Epochs

    @property
    def population_key(self) -> str:
        """A text equal for plans that ask the same population the same question."""
        return json.dumps([self.population, self.question], default=str, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """A whole study: its name, seed, number of runs and cases.

    `file` is the file's name in messages, `text` its content, `folder` what relative paths in it count from,
    `source` what names its lines. `case(i)`
    gives case i with its population; populations of equal settings are one object, and the eight used last are kept.
    Not safe for threads.
    """

    file: str
    name: str
    title: str
    seed: int
    runs: int
    engine: EngineName
    plans: tuple[CasePlan, ...]
    axes: tuple[str, ...]
    text: str = field(repr=False)
    source: ScenarioSource = field(repr=False)
    folder: Path
    make_population: PopulationMaker
    _populations: OrderedDict[str, Population] = field(
        default_factory=OrderedDict[str, Population], init=False, repr=False
    )

    def case(self, index: int) -> Case:
        """Return a case; make its population now unless it is among the eight used last.

        Raises:
            ScenarioError: the population cannot be made, or what is asked does not fit it; names file and key.
        """
        plan = self.plans[index]
        population = self._population(plan)
        if plan.epochs.count > population.epochs:
            can = f"this population can be asked {population.epochs} times"
            key = "epochs.count" if plan.epochs.question is None else "schedule.windows"
            raise self.source.refuse(key, f"is {plan.epochs.count}; {can}")
        self._check_clock(plan, population)
        return Case(
            index=index,
            point=plan.point,
            population=population,
            mechanism=plan.mechanism.for_question(population.question),
            aggregators=plan.aggregators,
            min_batch_size=plan.min_batch_size,
            level=plan.level,
            faults=plan.faults,
            attackers=plan.attackers,
            epochs=plan.epochs,
        )

    def _check_clock(self, plan: CasePlan, population: Population) -> None:
        """Refuse a question whose days would not be those of its population."""
        if plan.epochs.question is None or not isinstance(population, Timed):
            return
        asked = plan.epochs.question.schedule
        for key, given, own in zip(("every_s", "start_s"), (asked.every_s, asked.first), population.clock, strict=True):
            if given != own:
                raise self.source.refuse(f"schedule.{key}", f"is {given}; this population is asked by its own {own:g}")

    def _population(self, plan: CasePlan) -> Population:
        key = plan.population_key
        if key not in self._populations:
            self._populations[key] = self._made(plan)
        self._populations.move_to_end(key)
        while len(self._populations) > _KEPT_POPULATIONS:
            self._populations.popitem(last=False)
        return self._populations[key]

    def _made(self, plan: CasePlan) -> Population:
        try:
            return self.make_population(plan.population, plan.question, self.seed, self.folder)
        except ScenarioError as error:
            raise self.source.located(error) from error
