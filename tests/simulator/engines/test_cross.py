"""Engines and scenario files of a question for several signals: cells, margins, and a window for real devices."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.levels import Levels
from fleetcount_protocol.window.domain import Bins, Categories
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, EngineName
from fleetcount_simulator.network.plan import plan_of
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.populations import build
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_simulator.study.readings import read_releases

from tests.simulator.fleets import DIRECT, SAMPLING, Held, case, fleet, seed
from tests.support.protocol_samples import crossed

CROSS = crossed(
    Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h"), Categories(names=("diesel", "petrol", "gas"))
)
COUNTS = (5, 3, 0, 2, 4, 1, 1)
"""Nobody's value, then the six of both signals."""
SILENT = {"noise_epsilon": Fraction(100), "margins": True}
ENGINES: tuple[EngineName, ...] = ("exact-law", "per-device")


class OfBoth(Held):
    """A fleet whose values are those of two signals."""

    @property
    def question(self) -> AnswerSpace:
        return replace(super().question, domain=CROSS)


def asked(mechanism: Any, **changes: Any):
    return case(OfBoth(values=fleet(COUNTS).values, largest=6), mechanism, **changes)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_opens_cells_and_margins(name: EngineName) -> None:
    one = asked(replace(DIRECT, **SILENT))

    outcome = engine(name).run(one, 0, range(5), seed())

    assert outcome.outputs[0].tolist() == [3, 0, 2, 4, 1, 1, 5, 6, 7, 1, 3]
    assert outcome.outputs[0].tolist() == Levels(6, margins=(2, 3)).all_sums(list(COUNTS[1:]))
    assert read_releases(one, outcome).estimates.shape == (5, 6)


@pytest.mark.parametrize("name", ENGINES)
def test_margins_have_noise_of_their_own(name: EngineName) -> None:
    """A margin less the cells inside it: four noises of each of two aggregators, and no device."""
    one = asked(replace(DIRECT, noise_epsilon=Fraction(1, 2), margins=True))

    outputs = engine(name).run(one, 0, range(4000), seed()).outputs

    apart = outputs[:, 6] - outputs[:, :3].sum(axis=1)
    assert abs(apart.var() / (4 * 2 * one.design.noise.draw_variance) - 1) < 1 / 6


def test_real_devices_read_every_signal_of_the_case() -> None:
    one = asked(replace(DIRECT, **SILENT), min_batch_size=2)
    network = question_of(one)

    plan = plan_of(one, network, 0, seed())

    assert (network.signal, network.release.margins) == ("Vehicle.Speed", (1, 2))
    assert {len(row) for row in plan.part.readings[0]} == {2}
    values = [
        CROSS.together([part.domain.value_of(one) for part, one in zip(CROSS.parts, row, strict=True)])  # type: ignore[union-attr]
        for row in plan.part.readings[0]
    ]
    assert values == plan.truths[0].tolist()
    assert np.bincount(values, minlength=7).tolist() == list(COUNTS)


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (replace(SAMPLING, noise_epsilon=Fraction(1), margins=True), "margins are asked of sampling answers"),
        (replace(DIRECT, noise_epsilon=Fraction(1), margins=True, zooms=2), "zooms are asked of Cross"),
    ],
)
def test_what_margins_do_not_go_with_is_refused(mechanism: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        _ = asked(mechanism).design


SCENARIO = """
name = "both"
seed = 3
runs = 4
[population]
kind = "readings"
file = "fleet.csv"
count = "n"
[question]
cells = "cross"
[[question.of]]
signal = "Vehicle.Speed"
column = "speed"
kind = "bins"
edges = [0, 50]
open_above = true
unit = "km/h"
[[question.of]]
signal = "Vehicle.Category"
column = "fuel"
kind = "categories"
names = ["diesel", "petrol", "gas"]
[[mechanism]]
kind = "direct"
noise_epsilon = 20
margins = true
"""
FLEET = "speed,fuel,n\n10,diesel,3\n20,gas,2\n60,diesel,4\n70,petrol,1\n80,gas,1\n,gas,3\n5,coal,2\n"


@pytest.mark.parametrize("name", ENGINES)
def test_a_scenario_asks_a_table_of_readings(tmp_path: Path, name: EngineName) -> None:
    (tmp_path / "fleet.csv").write_text(FLEET)
    (tmp_path / "s.toml").write_text(SCENARIO)

    one = read_scenario(tmp_path / "s.toml", build).case(0)

    assert one.population.question.domain == CROSS
    assert engine(name).run(one, 0, [0], seed()).counted.tolist() == [[5, 3, 0, 2, 4, 1, 1]]
    (tmp_path / "s.toml").write_text(SCENARIO.replace("noise_epsilon = 20", "epsilon = 1"))
    with pytest.raises(ScenarioError, match="margins and an epsilon are both given"):
        read_scenario(tmp_path / "s.toml", build)
