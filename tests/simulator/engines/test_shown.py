"""Engines of a number that is asked for its mean or quantiles: the sums of every level, and one law in each engine."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_mechanisms.levels import Levels
from fleetcount_protocol.window.domain import Numbers
from fleetcount_protocol.window.fields import LevelKind
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, EngineName
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.study.numbers import mean_numbers, shown_numbers
from fleetcount_simulator.study.readings import read_releases

from tests.simulator.engines.test_engines_agree import ALPHA, ENGINES, MISHAPS, PAIRED, two_sample, worst
from tests.simulator.engines.test_numbers import numbered, space
from tests.simulator.fleets import DIRECT, case, fleet, seed

SPEEDS = Numbers(low=Fraction(0), high=Fraction(70), values=8, unit="km/h")
READINGS = tuple(map(Fraction, ("3", "10", "24", "41.5", "66")))
COUNTS = (40, 60, 200, 400, 100, 60)
"""Nobody's value, then the five speeds."""
LEVELS = {
    "mean": Levels(8, (8, 1), weighted=True, total=True),
    "quantiles": Levels(8, (8, 1), (1, 2, 4), total=True),
}
SHOWS = tuple(LEVELS)


def asked(show: str, noise: str = "1/2", **changes: object) -> Case:
    direct = replace(DIRECT, noise_epsilon=Fraction(noise), show=show)
    return case(numbered(COUNTS, space(SPEEDS, READINGS)), direct, **changes)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("show", SHOWS)
def test_an_engine_opens_the_sums_of_what_devices_rounded_to_at_every_level(show: str, name: EngineName) -> None:
    # The weakest level's noise is other than 0 less often than once in 10**6 times.
    one = asked(show, "100")

    outcome = engine(name).run(one, 0, range(5), seed())

    assert len({tuple(row) for row in outcome.counted.tolist()}) == 5
    for opened, counted in zip(outcome.outputs.tolist(), outcome.counted.tolist(), strict=True):
        levels, exact = LEVELS[show], LEVELS[show].all_sums(counted[1:])
        first = levels.values
        assert opened[:first] == exact[:first]
        assert opened[first:] == exact[first:]


@pytest.mark.parametrize("show", SHOWS)
def test_the_engines_agree_on_every_opened_number_under_every_fault_at_once(show: str) -> None:
    one = asked(show, faults=MISHAPS)

    law, devices = (engine(name).run(one, 0, range(PAIRED), seed(3)) for name in ENGINES)

    assert worst(law, devices) > ALPHA


def means(one: Case, outcome: CaseOutcome) -> np.ndarray:
    found = mean_numbers(one, outcome, read_releases(one, outcome), 0)
    assert found is not None
    return found[0]


def test_the_engines_agree_on_the_estimate_of_the_mean_and_another_noise_is_seen() -> None:
    one, other = asked("mean", "1/100"), asked("mean", "1/300")

    law, devices = (means(one, engine(name).run(one, 0, range(PAIRED), seed(5))) for name in ENGINES)
    louder = means(other, engine("per-device").run(other, 0, range(PAIRED), seed(5)))

    assert two_sample(law, devices) > ALPHA
    assert two_sample(law, louder) < ALPHA


@pytest.mark.parametrize("name", ENGINES)
def test_the_weighted_sum_knows_the_mean_better_than_the_cells_do(name: EngineName) -> None:
    one = asked("mean", "1/10")
    outcome = engine(name).run(one, 0, range(300), seed())

    joined, cells = means(one, outcome), means(replace(one, mechanism=replace(one.mechanism, show=None)), outcome)

    assert joined.std() < 0.5 * cells.std()
    known = mean_numbers(one, outcome, read_releases(one, outcome), 0)
    assert known is not None
    assert abs(joined.mean() - known[1]) < 6 * joined.std() / 300**0.5


@pytest.mark.parametrize("name", ENGINES)
def test_quantiles_lie_beside_those_of_the_fleet(name: EngineName) -> None:
    one = asked("quantiles", "4")
    outcome = engine(name).run(one, 0, range(10), seed())

    rows = shown_numbers(one, outcome, 0, range(10))

    # 820 with a value: ranks 82, 205, 410, 615 and 738 of 60, 260, 660, 760 and 820 devices.
    assert rows["fleet"].reshape(10, 5).tolist() == [[10, 10, 24, 24, 41.5]] * 10
    inside = (rows["low"] <= rows["fleet"]) & (rows["fleet"] <= rows["high"])
    assert inside.sum() >= 49
    assert (np.abs(rows["estimate"] - rows["fleet"]) <= 10).all()


@pytest.mark.parametrize("show", SHOWS)
def test_real_devices_are_asked_the_same_levels_with_the_same_noise(show: str) -> None:
    one = asked(show, min_batch_size=2)

    question = question_of(one)

    assert question.release.weighted is (show == "mean")
    kinds = {"mean": [LevelKind.WEIGHTED], "quantiles": [LevelKind.ZOOM] * 2}[show]
    assert [level.kind for level in question.release.coarser] == [*kinds, LevelKind.TOTAL]
    assert [level.noise for level in question.release.coarser] == [law.epsilon for law in one.design.laws[1:]]


def test_values_that_are_no_numbers_have_no_mean_and_show_nothing() -> None:
    direct = replace(DIRECT, show="mean")
    one = case(fleet((5, 5, 5)), direct)

    with pytest.raises(ScenarioError, match=r"show is 'mean', allowed with question\.cells = 'number'"):
        _ = one.design
    plain = case(fleet((5, 5, 5)), DIRECT)
    outcome = engine("exact-law").run(plain, 0, [0], seed())
    assert all(column.size == 0 for column in shown_numbers(plain, outcome, 0, [0]).values())
