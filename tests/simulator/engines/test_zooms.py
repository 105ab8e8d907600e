"""Engines, cases and scenario files of releases of several zooms: the right sums, fresh noise on each, refusals."""

from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Attacker, Case, EngineName, Mechanism
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.study.readings import read_releases

from tests.simulator.fleets import DIRECT, ONE_SIDED, SAMPLING, Held, case, fleet, seed

GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=4, rows=2)
COUNTS = (5, 3, 0, 2, 4, 1, 1, 0, 6)
"""Nobody's value, then the eight squares."""
SILENT = {"noise_epsilon": Fraction(100), "zooms": 2}
"""Noise that is other than 0 less often than once in 10**40 times."""
ENGINES: tuple[EngineName, ...] = ("exact-law", "per-device")


class OnGrid(Held):
    """A fleet whose values are the squares of a grid."""

    @property
    def question(self) -> AnswerSpace:
        return replace(super().question, domain=GRID)


def on_grid(mechanism: Mechanism, **changes: Any):
    held = fleet(COUNTS)
    return case(OnGrid(values=held.values, largest=8), mechanism, **changes)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("mechanism", [DIRECT, SAMPLING, ONE_SIDED], ids=lambda one: one.name)
def test_an_engine_opens_the_sums_of_every_zoom(mechanism: Mechanism, name: EngineName) -> None:
    one = on_grid(replace(mechanism, **SILENT))

    outcome = engine(name).run(one, 0, range(20), seed())

    assert outcome.outputs.shape == (20, 10)
    for row in outcome.outputs.tolist():
        assert row == Levels(8, (4, 2), (1, 2)).all_sums(row[:8])
    if mechanism is not SAMPLING:
        assert outcome.outputs[0].tolist() == [*COUNTS[1:], 3 + 0 + 1 + 1, 2 + 4 + 0 + 6]
    assert read_releases(one, outcome).estimates.shape == (20, 8)


@pytest.mark.parametrize("name", ENGINES)
def test_noise_is_drawn_anew_for_every_number_of_every_zoom(name: EngineName) -> None:
    """A larger square less the squares inside it: five noises of each of two aggregators, and no device."""
    one = on_grid(replace(DIRECT, noise_epsilon=Fraction(1, 2), zooms=2))

    outputs = engine(name).run(one, 0, range(4000), seed()).outputs

    apart = outputs[:, 8] - outputs[:, [0, 1, 4, 5]].sum(axis=1)
    spread = 5 * 2 * one.design.noise.draw_variance
    # The fourth moment of ten geometric noises leaves 4,000 variances within a sixth of theirs but for 1e-9.
    assert abs(apart.var() / spread - 1) < 1 / 6
    assert abs(np.corrcoef(outputs[:, 8] - outputs[:, 8].mean(), outputs[:, 0])[0, 1]) < 0.1


class OfAMean(Case):
    """A case whose direct answers are opened with their weighted sum and their total."""

    @property
    def design(self) -> Design:
        levels = Levels(8, (8, 1), weighted=True, total=True)
        spread = Spread(levels=levels, ratios=(Fraction(1, 14), Fraction(1, 2)))
        return spread.design(Truth(8), cast("NoiseLaw", self.mechanism.noise))


@pytest.mark.parametrize("name", ENGINES)
def test_the_weighted_sum_has_the_law_of_its_level(name: EngineName) -> None:
    held = fleet(COUNTS)
    silent, noised = (
        OfAMean(
            index=0,
            point={},
            population=held,
            min_batch_size=0,
            mechanism=replace(DIRECT, noise_epsilon=None, noise_variance=Fraction(one)),
        )
        for one in ("1/4", "2800")
    )
    truth = Levels(8, weighted=True, total=True).all_sums(COUNTS[1:])

    outputs = engine(name).run(noised, 0, range(4000), seed()).outputs - truth

    assert engine(name).run(silent, 0, range(1), seed()).outputs.shape == (1, 10)
    for column, ratio in ((0, 1), (8, 1 / 14), (9, 1 / 2)):
        # 4,000 variances of normals are within 14 % of theirs but for 1e-9, and their mean within 6 deviations.
        assert abs(outputs[:, column].var() / (2 * 2800 * ratio) - 1) < 0.14
        assert abs(outputs[:, column].mean()) < 6 * (2 * 2800 * ratio / 4000) ** 0.5
    assert abs(np.corrcoef(outputs[:, 8], outputs[:, 0])[0, 1]) < 0.1


def test_a_real_window_of_the_case_has_its_zooms() -> None:
    asked = question_of(on_grid(replace(ONE_SIDED, zooms=2), min_batch_size=2))

    assert (asked.release.sides, len(asked.release.thresholds)) == ((1, 2), 10)


@pytest.mark.parametrize(
    ("changes", "attackers", "grid", "said"),
    [
        (
            {"zooms": 3},
            (),
            True,
            "squares of 4 times the side are asked of a grid of 4 by 2 squares, allowed: 2 at most",
        ),
        ({"zooms": 2}, (), False, "zooms is 2, allowed with a square grid"),
        ({"zooms": 2}, (Attacker(name="a", kind="liars"),), True, "allowed with no attackers"),
        ({"zooms": 2, "noise_epsilon": None}, (), True, "levels is 2 of exact counts"),
    ],
)
def test_a_case_whose_zooms_cannot_be_is_refused(
    changes: dict[str, Any], attackers: tuple[Attacker, ...], grid: bool, said: str
) -> None:
    one = on_grid(replace(SAMPLING, noise_epsilon=Fraction(1)), attackers=attackers)
    one = replace(
        one, mechanism=replace(one.mechanism, **changes), population=one.population if grid else fleet(COUNTS)
    )

    with pytest.raises(ScenarioError, match=said):
        _ = one.design
