"""Vehicles with several categories at once: from a table to the sums of the engines, and what is refused."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread, noise_for
from fleetcount_mechanisms.statement import epsilon_of
from fleetcount_protocol.window.domain import Categories
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.held_sets import HeldSets
from fleetcount_simulator.model import Case
from fleetcount_simulator.network.fleet_spec import FleetSpec
from fleetcount_simulator.network.plan import plan_of
from fleetcount_simulator.network.question import question_of
from fleetcount_simulator.populations import build
from fleetcount_simulator.rounding import fleet_truth
from fleetcount_simulator.scenario.file import read_scenario
from fleetcount_simulator.study.readings import read_releases

from tests.simulator.fleets import seed

SCENARIO = """
name = "codes"
seed = 3
runs = 4
[population]
kind = "categories"
file = "codes.csv"
[question]
cells = "categories"
values = ["B", "C", "P", "U"]
at_once = 2
[aggregators]
min_batch_size = 2
[[mechanism]]
kind = "direct"
noise_epsilon = 20
"""
CODES = "vehicle,value\n1,P\n2,U;P\n3,\n4,P;C\n5,C\n6,P;U\n7,\n"


def asked(folder: Path, codes: str = CODES, **changes: str) -> Case:
    text = SCENARIO
    for old, new in changes.items():
        text = text.replace(
            {"at_once": "at_once = 2", "noise": "noise_epsilon = 20", "kind": 'kind = "direct"'}[old], new
        )
    (folder / "codes.csv").write_text(codes)
    (folder / "s.toml").write_text(text)
    return read_scenario(folder / "s.toml", build).case(0)


def test_a_table_of_sets_gives_how_many_tell_each_name_and_how_many_tell_any(tmp_path: Path) -> None:
    one = asked(tmp_path)

    outcome = engine("exact-law").run(one, 0, range(3), seed())

    assert one.population.question.domain == Categories(names=("B", "C", "P", "U"), most=2)
    assert one.population.question.sets == ((2,), (2, 3), (3,), (3, 4))
    # Two told none, then C, P and U; five of seven have any, where the names add up to eight.
    assert outcome.counted.tolist() == [[2, 0, 2, 4, 2]] * 3
    assert outcome.participants.tolist() == [7] * 3
    assert outcome.outputs.tolist() == [[0, 2, 4, 2, 5]] * 3
    assert read_releases(one, outcome).estimates.shape == (3, 4)
    assert fleet_truth(one.population, 0).tolist() == [2, 0, 2, 4, 2]


def test_a_smallest_batch_is_one_of_devices_and_not_of_what_they_tell(tmp_path: Path) -> None:
    at = [asked(tmp_path, codes="vehicle,value\n" + "".join(f"{row},P;U\n" for row in range(5)))]
    at.append(Case(**{name: getattr(at[0], name) for name in ("index", "point", "population", "mechanism")}))

    released = [engine("exact-law").run(one, 0, [0], seed()).released[0] for one in at]

    assert (at[1].min_batch_size, released) == (10, [True, False])


def test_of_more_than_is_told_at_once_every_choice_is_equally_likely(tmp_path: Path) -> None:
    rows = "".join(f"{row},B;C;P;U\n" for row in range(3000))
    one = asked(tmp_path, codes="vehicle,value\n" + rows)

    outcome = engine("exact-law").run(one, 0, range(40), seed())

    # Each of four names is told by half of 3,000; ten standard deviations are 274.
    assert (np.abs(outcome.counted[:, 1:] - 1500) < 274).all()
    assert (outcome.counted[:, 1:].sum(axis=1) == 6000).all()
    assert outcome.counted[:, 0].tolist() == [0] * 40
    assert len({tuple(row) for row in outcome.counted.tolist()}) > 30
    # The whole fleet's truth is what vehicles have, told or not.
    assert fleet_truth(one.population, 0).tolist() == [0, 3000, 3000, 3000, 3000]


def test_single_devices_choose_as_their_sums_are_drawn() -> None:
    """Of three names two are told: sums of two devices have the law of two choices, by the sums and one by one."""
    held = HeldSets(sets=((1, 2, 3),), values=3, most=2)
    generator = np.random.default_rng(7)
    draws = 9000

    sums = Counter(tuple(held.told(np.array([0, 2]), generator).tolist()) for _ in range(draws))
    alone = Counter(tuple(map(tuple, held.choices(np.array([1, 0, 1]), generator))) for _ in range(draws))

    # Both tell the same two names with probability 1/9 each, two different pairs with 2/9 each.
    assert {told: count for told, count in sums.items() if 2 in told[:3] and 0 in told[:3]}.keys() == {
        (2, 2, 0, 2),
        (2, 0, 2, 2),
        (0, 2, 2, 2),
    }
    for told, count in sums.items():
        expected = draws * (1 if 0 in told[:3] else 2) / 9
        assert abs(count - expected) < 8 * expected**0.5
    pairs = [(1, 2), (1, 3), (2, 3)]
    assert set(alone) == {(first, (), last) for first in pairs for last in pairs}
    assert all(abs(count - draws / 9) < 8 * (draws / 9) ** 0.5 for count in alone.values())


def test_the_noise_of_a_loss_is_for_all_that_a_set_moves(tmp_path: Path) -> None:
    one = asked(tmp_path, noise="epsilon = 1")

    planned = noise_for(Truth(4, 2), Fraction(1), TwoSidedNoise, Spread(levels=Levels(4, most=2)))

    assert (one.design.noise, one.design.levels) == (planned, Levels(4, most=2, total=True))
    assert one.design.noise == TwoSidedNoise(Fraction(1, 4))
    assert one.design.coarser == (TwoSidedNoise(Fraction(1, 2)),)
    assert epsilon_of(one.design) == 1
    # All four names at once move as many numbers as they come with: nothing is left for a number of vehicles.
    whole = asked(tmp_path, noise="epsilon = 1", at_once="at_once = 4")
    assert (whole.design.noise, whole.design.levels.total) == (TwoSidedNoise(Fraction(1, 4)), False)
    assert engine("exact-law").run(whole, 0, [0], seed()).outputs.shape == (1, 4)


def test_real_devices_read_what_they_tell(tmp_path: Path) -> None:
    one = asked(tmp_path, codes=CODES + "8,B;C;U\n")
    network = question_of(one)

    plan = plan_of(one, network, 0, seed())

    named = [{*reading} if isinstance(reading, frozenset) else set() for (reading,) in plan.part.readings[0]]
    assert named[:7] == [{"P"}, {"P", "U"}, set(), {"C", "P"}, {"C"}, {"P", "U"}, set()]
    assert len(named[7]) == 2
    assert named[7] < {"B", "C", "U"}
    told = [
        {one.population.question.labels[value - 1] for value in ((), *plan.sets)[place]} for place in plan.truths[0]
    ]
    assert told == named
    assert [level.kind.name for level in network.release.coarser] == ["TOTAL"]


def test_a_set_comes_through_the_file_of_a_fleet_process(tmp_path: Path) -> None:
    part = plan_of(one := asked(tmp_path), question_of(one), 0, seed()).part
    names = ("name", "transport", "connections", "deployment", "question_name", "broker", "relay", "authorities")
    texts: Any = dict.fromkeys((*names, "spool_file", "report_file", "spread"), "x")
    spec = FleetSpec(
        **texts,
        at_once=1,
        signals=(),
        aggregators=(),
        limits={},
        call_timeout_s=1.0,
        reorder=False,
        coin_seed=1,
        numbers=(),
        part=part,
    )
    (tmp_path / "spec.json").write_text(spec.encode())

    assert FleetSpec.read(tmp_path / "spec.json").part.readings == [[*map(tuple, part.readings[0])]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"at_once": "at_once = 5"}, "question.at_once is 5; allowed is 1 to 4, the number of names"),
        ({"at_once": "at_once = 0"}, "question.at_once is 0"),
        ({"at_once": 'separator = ";"'}, "question.separator is given, allowed with question.at_once of 2 or more"),
        ({"at_once": 'at_once = 2\nseparator = "||"'}, "question.separator"),
        ({"at_once": ""}, "line 3: 'U;P' is not among question.values"),
        ({"kind": 'kind = "sampling"'}, "kind is 'sampling'; allowed is 'direct' with question.at_once = 2"),
        ({"kind": 'kind = "direct"\nzooms = 2'}, "zooms is 2; allowed is 1 with question.at_once = 2"),
        ({"codes": "vehicle,value\n1,P;;U\n2,P\n"}, "line 2: 'P;;U' has an empty name"),
        ({"codes": "vehicle,value\n1,P;P\n2,P\n"}, "line 2: 'P' occurs twice in one value"),
        ({"codes": "vehicle,value\n1,P; U\n2,P\n"}, "line 2: ' U' starts or ends with a blank"),
        ({"codes": "vehicle,value\n1,P;X\n2,P\n"}, "line 2: 'X' is not among question.values"),
        ({"codes": "vehicle,value\n1,P|U\n2,P\n"}, "line 2: 'P|U' is not among question.values"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        asked(tmp_path, **change)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_margins_attackers_and_the_engine_of_single_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="draws one value of each: use --engine exact-law or network"):
        engine("per-device").run(asked(tmp_path), 0, [0], seed())
    with pytest.raises(ScenarioError, match="up to 2 values at once, allowed: kind 'direct' without zooms, margins"):
        _ = asked(tmp_path, noise="noise_epsilon = 20\nmargins = true").design
    liars = '\n[[attacker]]\nname = "mallory"\nkind = "liars"\ndevices = 3\nvalue = 1\n'
    with pytest.raises(ScenarioError, match="at_once allows none"):
        engine("exact-law").run(asked(tmp_path, noise=f"noise_epsilon = 20{liars}"), 0, [0], seed())
    (tmp_path / "c.csv").write_text("value,count\na,5\n")
    with pytest.raises(ScenarioError, match=r"question.at_once is 2; .* 1 of this population"):
        build({"kind": "counts", "file": "c.csv"}, {"cells": "categories", "at_once": 2}, 1, tmp_path)
