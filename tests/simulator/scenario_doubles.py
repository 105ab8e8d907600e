"""A population and a scenario text for tests of the file reader and the runner: small, exact, without any file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Case, CaseOutcome, Engine, EngineName, Integers, Row
from fleetcount_simulator.scenario.file import parse_scenario
from fleetcount_simulator.scenario.plan import Scenario
from fleetcount_simulator.study.shards import Registries
from numpy.typing import NDArray

SMALL = """
name = "small"
title = "A small study"
seed = 7
runs = 20

[population]
kind = "even"
devices = 300

[question]
cells = "categories"

[[mechanism]]
kind = "sampling"
sampling_rate = "1/4"
epsilon = 1
"""


class EvenPopulation:
    """`devices` devices spread evenly over 0..V, device i holding i modulo (V+1); the same at every epoch."""

    def __init__(self, devices: int, values: int = 3, epochs: int = 4) -> None:
        self.question = AnswerSpace(title="Which?", labels=tuple(f"place {value}" for value in range(1, values + 1)))
        self.devices = devices
        self.epochs = epochs

    def histogram(self, epoch: int) -> Integers:
        return np.bincount(self.truths(epoch, 0, self.devices), minlength=self.question.values + 1).astype(np.int64)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[np.int32]:
        return (np.arange(start, stop) % (self.question.values + 1)).astype(np.int32)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_] | None:
        return None


def make_even(population: Mapping[str, Any], question: Mapping[str, Any], seed: int, folder: Path) -> EvenPopulation:
    """Stand in for `populations.build`."""
    if population["kind"] != "even":
        raise ScenarioError(f"population.kind: {population['kind']!r} is not known")
    return EvenPopulation(int(population["devices"]), int(question.get("values", 3)))


def small(**changes: str) -> Scenario:
    """Return the small scenario, with texts replaced: `small(runs="runs = 5")` puts a line in place of its own."""
    return scenario_of(changed(**changes))


def changed(**changes: str) -> str:
    """Return the small scenario's text with the line of each key replaced."""
    lines: list[str] = list(SMALL.splitlines())
    for key, line in changes.items():
        place = next(index for index, old in enumerate(lines) if old.startswith(f"{key} ="))
        lines[place] = line
    return "\n".join(lines)


def scenario_of(text: str) -> Scenario:
    """Return the scenario of a text, with even populations."""
    return parse_scenario(text, "study.toml", Path("/nowhere"), make_even)


class SimpleEngine:
    """Sampling by its law, faults and attackers left out: one binomial a cell, seeded by the number of the run."""

    name: EngineName = "exact-law"

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> CaseOutcome:
        counted = np.tile(case.population.histogram(epoch), (len(runs), 1))
        outputs = np.zeros((len(runs), counted.shape[1] - 1), dtype=np.int64)
        for row, run in enumerate(runs):
            generator = np.random.default_rng(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, run)))
            outputs[row] = generator.binomial(counted[row, 1:], float(case.mechanism.sampling_rate or 1))
            for sign in (1, -1) * case.aggregators:
                geometric = generator.geometric(-np.expm1(-float(case.mechanism.noise_epsilon or 50)), outputs.shape[1])
                outputs[row] += sign * (geometric - 1)
        released = np.full(len(runs), case.population.devices >= case.min_batch_size)
        outputs[~released] = 0
        lost = np.zeros(len(runs), dtype=np.int64)
        return CaseOutcome(outputs=outputs, released=released, counted=counted, tallies={"lost": lost})


def simple_engine(name: EngineName) -> Engine:
    """Stand in for `engines.engine`."""
    return SimpleEngine()


def no_attackers(case: Case, outcome: CaseOutcome, seed: np.random.SeedSequence) -> list[Row]:
    """Stand in for `attackers.rows`: one row that says what it was given."""
    return [
        {
            "attacker": case.attackers[0].name,
            "kind": case.attackers[0].kind,
            "measure": "runs",
            "trials": len(outcome.released),
        }
    ]


REGISTRIES = Registries(population=make_even, engine=simple_engine, attacker_rows=no_attackers)
