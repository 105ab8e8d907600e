"""What a study says of a number: intervals beside the fleet's, of a case's first releases, in tables and report."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_protocol.window.domain import Outside
from fleetcount_simulator.engines import engine
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, Epochs
from fleetcount_simulator.rounding import Rounding, rounding_of
from fleetcount_simulator.study import numbers
from fleetcount_simulator.study.numbers import number_summaries, shown_numbers
from fleetcount_simulator.study.registries import STANDARD
from fleetcount_simulator.study.results import number_columns
from fleetcount_simulator.study.shards import ShardOrder, decode_shard, run_shard

from tests.simulator.engines.test_numbers import TENS, Numbered, numbered, space
from tests.simulator.fleets import DIRECT, case, seed

MEAN = replace(DIRECT, noise_epsilon=None, noise_variance=Fraction(50), show="mean")
QUANTILES = replace(DIRECT, noise_epsilon=Fraction(1), show="quantiles")
HALVED = space(replace(TENS, high=Fraction(30), values=4))
COUNTS = (10, 60, 200, 300, 100, 40)
"""Nobody's value, then the readings -7, 3, 10, 16 and 25 of values 0, 10 and 20."""


def rounding(outside: Outside = Outside.CLAMP) -> Rounding:
    found = rounding_of(space(replace(TENS, outside=outside)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("outside", "q", "wanted"),
    [
        # As devices take them: 60 at 0, 200 at 3, 300 at 10, 100 at 16, 40 at 20.
        (Outside.CLAMP, "0.08", 0),
        (Outside.CLAMP, "0.09", 3),
        (Outside.CLAMP, "0.8", 10),
        (Outside.CLAMP, "0.801", 16),
        (Outside.CLAMP, "0.99", 20),
        # Those beyond the ends have no value: 200 at 3, 300 at 10, 100 at 16.
        (Outside.NONE, "0.001", 3),
        (Outside.NONE, "1/3", 3),
        (Outside.NONE, "0.34", 10),
        (Outside.NONE, "0.99", 16),
    ],
)
def test_a_quantile_of_the_fleet_is_the_first_reading_with_the_share_up_to_it(
    outside: Outside, q: str, wanted: float
) -> None:
    assert rounding(outside).taken_quantile(np.array(COUNTS), Fraction(q)) == wanted


def test_the_fleet_is_compared_as_devices_take_what_they_read() -> None:
    taken, none = rounding(), rounding(Outside.NONE)

    assert taken.taken_mean(np.array(COUNTS)) == pytest.approx((200 * 3 + 300 * 10 + 100 * 16 + 40 * 20) / 700)
    assert taken.mean(np.array(COUNTS)) == pytest.approx((-420 + 600 + 3000 + 1600 + 1000) / 700)
    assert none.taken_mean(np.array(COUNTS)) == pytest.approx((200 * 3 + 300 * 10 + 100 * 16) / 600)
    assert np.isnan(none.taken_quantile(np.array([9, 5, 0, 0, 0, 5]), Fraction(1, 2)))


def asked(mechanism: Any, **changes: Any) -> Case:
    return case(numbered(COUNTS, HALVED if mechanism is QUANTILES else space()), mechanism, **changes)


def test_intervals_hold_the_mean_of_the_fleet_at_their_level_and_are_no_wider_than_it_needs() -> None:
    one = asked(MEAN)
    outcome = engine("exact-law").run(one, 0, range(4), seed())

    rows = shown_numbers(one, outcome, 0, range(4))

    assert np.isnan(rows["q"]).all()
    assert rows["fleet"] == pytest.approx([6000 / 700] * 4)
    inside = (rows["low"] <= rows["fleet"]) & (rows["fleet"] <= rows["high"])
    # None of 4 at a level of 95 % comes once in 160,000 times.
    assert inside.sum() >= 1
    # Rounding to points 10 apart has a deviation of .19 at most, to which noise adds a third: 4 to 5 of them.
    assert 0.5 < (rows["high"] - rows["low"]).mean() < 1.5
    (summary,) = number_summaries(one, rows)
    assert (summary.what, summary.intervals, summary.holding) == ("mean", 4, inside.sum())
    assert summary.error == pytest.approx(np.sqrt(np.mean((rows["estimate"] - rows["fleet"]) ** 2)))
    assert (summary.low, summary.estimate, summary.high) == tuple(rows[name][0] for name in ("low", "estimate", "high"))


def test_intervals_are_of_the_first_releases_of_a_case_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numbers.MOST_RELEASES, "quantiles", 5)
    held = np.tile(np.repeat(np.arange(6), COUNTS).astype(np.uint16), (3, 1))
    one = case(Numbered(held, 5, asked=HALVED), QUANTILES, epochs=Epochs(count=3))
    found = list[tuple[int, int]]()

    for epoch in range(3):
        # Runs 1 to 3 of a case, as a shard may have them.
        outcome = engine("exact-law").run(one, epoch, range(1, 4), seed())
        rows = shown_numbers(one, outcome, epoch, range(1, 4))
        found += sorted({*zip(rows["run"].tolist(), rows["epoch"].tolist(), strict=True)})
        assert rows["q"].tolist() == [0.1, 0.25, 0.5, 0.75, 0.9] * (len(rows["q"]) // 5)

    # Releases 0, 1 and 2 are run 0's; of run 1 those of epochs 0 and 1 are among the first five.
    assert found == [(1, 0), (1, 1)]


def test_what_was_not_released_shows_nothing() -> None:
    one = asked(QUANTILES, min_batch_size=10_000)
    outcome = engine("exact-law").run(one, 0, range(2), seed())

    rows = shown_numbers(one, outcome, 0, range(2))

    assert all(column.size == 0 for column in rows.values())
    assert number_summaries(one, rows) == ()
    assert number_columns(one, rows)["what"].size == 0


@pytest.mark.parametrize("mechanism", [MEAN, QUANTILES], ids=["mean", "quantiles"])
def test_a_fleet_of_which_nobody_has_a_value_has_no_number_to_compare_with(mechanism: Any) -> None:
    one = case(numbered((100, 0, 0, 0, 0, 0), HALVED if mechanism is QUANTILES else space()), mechanism)
    outcome = engine("exact-law").run(one, 0, range(2), seed())

    assert outcome.released.all()
    assert shown_numbers(one, outcome, 0, range(2))["fleet"].size == 0


TEXT = """
name = "speeds"
seed = 7
runs = 3

[population]
kind = "bologna"
start_s = 2400
devices = 1000

[question]
cells = "number"
low_kmh = 0
high_kmh = 120
points = 16
outside = "none"

[[mechanism]]
kind = "direct"
epsilon = 2
show = "quantiles"
"""


def test_a_shard_keeps_its_numbers_and_one_without_them_is_damaged() -> None:
    order = ShardOrder(
        text=TEXT,
        file="speeds.toml",
        folder=str(Path.cwd()),
        seed=7,
        engine="exact-law",
        case=0,
        first_run=0,
        runs=3,
        registries=STANDARD,
    )

    content = run_shard(order)
    result = decode_shard(content)

    assert [len(column) for column in result.numbers.values()] == [15] * len(numbers.NUMBERS)
    assert result.numbers["run"].tolist() == sorted([0, 1, 2] * 5)
    with pytest.raises(ScenarioError, match="the result of a shard is damaged"):
        decode_shard(content.replace(b"number/low", b"number/lox"))
