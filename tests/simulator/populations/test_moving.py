"""Vehicles that move: which sighting counts at an epoch, who is on, and the built-in town."""

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_simulator.demo_scenarios import BOLOGNA_GRID, bologna_position, find_bologna
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations import build
from fleetcount_simulator.populations.bologna import read_traces
from fleetcount_simulator.populations.commuters import BLOCK, Day, Town, day_of, roads_of, where
from hypothesis import given, settings
from hypothesis import strategies as st

LINE = {"cells": "square", "size_m": 1, "bounds": [0, 0, 1000, 1]}
Sighting = tuple[int, int, int]
"""Time, vehicle, x."""


def trace(rows: list[Sighting], folder: Path, **keys: Any) -> Population:
    text = "time,vehicle,x,y\n" + "".join(f"{time},{vehicle},{x}.5,0.5\n" for time, vehicle, x in rows)
    (folder / "t.csv").write_text(text)
    return build({"kind": "trace", "file": "t.csv"} | keys, LINE, 1, folder)


def by_hand(rows: list[Sighting], interval: int, window: int, start: int) -> dict[int, dict[int, int]]:
    """Return epoch to vehicle to x, by the words of the documentation, one row after the other."""
    found: dict[int, dict[int, int]] = {}
    first: dict[int, int] = {}
    for time, vehicle, x in rows:
        epoch = (time - start) // interval
        if epoch < 0:
            continue
        first.setdefault(epoch, time)
        counts = time == first[epoch] if window == 0 else time - start - epoch * interval < window
        if counts:
            found.setdefault(epoch, {}).setdefault(vehicle, x)
    return found


sightings = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 5), st.integers(0, 999)),
    min_size=1,
    max_size=60,
    unique_by=lambda r: r[:2],
).map(sorted)


@settings(max_examples=60)
@given(sightings, st.integers(1, 30), st.integers(0, 30), st.integers(0, 20) | st.none(), st.integers(1, 9))
def test_an_epoch_holds_each_vehicle_s_first_sighting_in_its_window(
    rows: list[Sighting], interval: int, window: int, start: int | None, piece: int
) -> None:
    import tempfile

    from fleetcount_simulator.populations import tables

    window = min(window, interval)
    expected = by_hand(rows, interval, window, rows[0][0] if start is None else start)
    keys = {"interval_s": interval, "window_s": window} | ({} if start is None else {"start_s": start})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BATCH", piece)
        if not expected:
            with pytest.raises(ScenarioError, match="no sighting"):
                trace(rows, Path(folder), **keys)
            return
        population = trace(rows, Path(folder), **keys)

    vehicles = list(dict.fromkeys(vehicle for _, vehicle, _ in rows))
    assert population.devices == len(vehicles)
    assert population.epochs == max(expected) + 1
    for epoch in range(population.epochs):
        seen = expected.get(epoch, {})
        truths = population.truths(epoch, 0, len(vehicles)).tolist()
        assert truths == [seen[vehicle] + 1 if vehicle in seen else 0 for vehicle in vehicles]
        on = population.reachable(epoch, 1, 0, len(vehicles))
        later = population.reachable(epoch, 2, 0, len(vehicles))
        assert on is not None
        assert later is not None
        next_seen = expected.get(epoch + 1, {}) if epoch + 1 < population.epochs else seen
        assert on.tolist() == [vehicle in seen for vehicle in vehicles]
        assert later.tolist() == [vehicle in next_seen for vehicle in vehicles]


def test_the_default_window_is_the_interval_and_the_default_interval_five_minutes(tmp_path: Path) -> None:
    population = trace([(0, 1, 10), (299, 2, 20), (300, 1, 30)], tmp_path)

    assert [population.truths(epoch, 0, 2).tolist() for epoch in range(population.epochs)] == [[11, 21], [31, 0]]


def test_moments_with_tenths_of_seconds_since_1970_fall_into_their_epochs(tmp_path: Path) -> None:
    tenths = range(100)
    moments = [float(Fraction("1769443022.3") + Fraction(tenth, 10)) for tenth in tenths]
    rows = "".join(f"{moment},{tenth},{tenth}.5,0.5\n" for tenth, moment in enumerate(moments))
    (tmp_path / "t.csv").write_text("time,vehicle,x,y\n" + rows)

    def seen(**keys: Any) -> list[list[int]]:
        population = build({"kind": "trace", "file": "t.csv"} | keys, LINE, 1, tmp_path)
        histograms = [population.histogram(epoch)[1:] for epoch in range(population.epochs)]
        return [np.flatnonzero(one).tolist() for one in histograms]

    assert seen(interval_s="1/10") == seen(interval_s="1/10", window_s=0) == [[tenth] for tenth in tenths]
    for window in range(1, 11):
        expected = [[10 * epoch + tenth for tenth in range(window)] for epoch in range(10)]
        assert seen(interval_s=1, window_s=f"{window}/10") == expected


def test_epochs_can_be_cut_short_or_asked_beyond_the_data(tmp_path: Path) -> None:
    rows = [(0, 1, 10), (300, 1, 20), (600, 1, 30)]

    assert trace(rows, tmp_path, epochs=2).epochs == 2
    longer = trace(rows, tmp_path, epochs=5)
    assert longer.epochs == 5
    assert longer.truths(4, 0, 1).tolist() == [0]


def test_fewer_devices_are_drawn_without_repetition_and_more_repeat_the_vehicles(tmp_path: Path) -> None:
    rows = [(0, vehicle, vehicle) for vehicle in range(50)]

    fewer, more = trace(rows, tmp_path, devices=20), trace(rows, tmp_path, devices=120)

    assert len(set(fewer.truths(0, 0, 20).tolist())) == 20
    assert more.truths(0, 0, 120).tolist() == [place % 50 + 1 for place in range(120)]
    assert more.histogram(0)[1:51].tolist() == [3] * 20 + [2] * 30


def test_those_seen_at_the_first_epoch_can_be_drawn_first(tmp_path: Path) -> None:
    rows = sorted((300 * (vehicle % 4), vehicle, vehicle) for vehicle in range(80))

    few = trace(rows, tmp_path, devices=15, draw="seen")
    more = trace(rows, tmp_path, devices=30, draw="seen")

    assert few.histogram(0)[0] == 0
    assert more.histogram(0)[1:].sum() == 20
    assert more.devices == 30


def test_a_trillion_devices_that_repeat_a_trace_are_counted_without_being_held(tmp_path: Path) -> None:
    population = trace([(0, 1, 10), (0, 2, 20), (300, 2, 30)], tmp_path, devices=10**12)

    assert population.histogram(0)[[11, 21]].tolist() == [5 * 10**11] * 2
    assert population.truths(1, 10**12 - 3, 10**12).tolist() == [31, 0, 31]


def test_bologna_is_what_the_demo_reads() -> None:
    traces = read_traces(find_bologna())
    square = {"cells": "square", "size_m": 250, "bounds": [-50, -50, 2200, 1950]}
    population = build({"kind": "bologna"}, square, 1, Path())

    # A study draws its own map; only a window says where on Earth its grid lies.
    assert population.question.domain == replace(BOLOGNA_GRID, frame=None)
    assert population.epochs == len(traces) == 13
    for epoch, moment in enumerate(sorted(traces)):
        counted = [0] * (BOLOGNA_GRID.values + 1)
        for sighting in traces[moment].values():
            counted[BOLOGNA_GRID.value_of((sighting.x, sighting.y))] += 1
        assert population.histogram(epoch)[1:].tolist() == counted[1:]
    assert bologna_position(traces, 2000, 1).domain == BOLOGNA_GRID


TOWN = Town(
    columns=9,
    rows=5,
    block_m=200.0,
    speed_mps=8.0,
    commuters=0.6,
    errands=0.5,
    rush_hours=(8.0, 17.0),
    rush_spread_h=0.75,
    work_spread=0.2,
)
HOUR = 3600.0


def test_trips_follow_one_another_and_end_before_midnight() -> None:
    day = day_of(TOWN, 7, 0, 0)
    arrivals = day.departures + day.durations

    for vehicle in range(0, BLOCK, 37):
        made = [trip for trip in range(4) if np.isfinite(day.departures[trip, vehicle])]
        at, free = int(day.homes[vehicle]), 0.0
        for trip in made:
            assert day.starts[trip, vehicle] == at
            assert day.departures[trip, vehicle] >= free
            at, free = int(day.ends[trip, vehicle]), float(arrivals[trip, vehicle])
        assert at == day.homes[vehicle]
    assert arrivals[np.isfinite(arrivals)].max() < 24 * HOUR


def test_commuters_and_errands_are_the_shares_asked_for() -> None:
    # 32,768 vehicles: five standard deviations are 0.014; a false alarm has a chance below 1e-6 each.
    day = day_of(TOWN, 7, 0, 0)

    assert np.isfinite(day.departures[0]).mean() == pytest.approx(TOWN.commuters, abs=0.014)
    assert np.isfinite(day.departures[2]).mean() == pytest.approx(TOWN.errands, abs=0.014)
    assert (np.isfinite(day.departures[0]) == np.isfinite(day.departures[1])).all()


def test_home_and_work_stay_and_the_day_differs() -> None:
    monday, tuesday = day_of(TOWN, 7, 0, 0), day_of(TOWN, 7, 0, 1)

    assert np.array_equal(monday.homes, tuesday.homes)
    assert np.array_equal(monday.ends[0], tuesday.ends[0])
    assert np.array_equal(monday.speeds, tuesday.speeds)
    assert not np.array_equal(monday.departures, tuesday.departures)


def test_vehicles_drive_along_streets_at_their_speed_and_park_at_crossings() -> None:
    day = day_of(TOWN, 7, 0, 0)
    lines = roads_of(TOWN).lines
    second = 8 * HOUR
    now, later = where(TOWN, day, second), where(TOWN, day, second + 1)
    positions = now.positions

    assert 300 < now.driving.sum() < BLOCK // 5
    on_grid = [
        np.isclose(axis % TOWN.block_m, 0) | np.isclose(axis % TOWN.block_m, TOWN.block_m)
        for axis in (positions.x, positions.y)
    ]
    assert (on_grid[0] | on_grid[1]).all()
    assert (on_grid[0] & on_grid[1])[~now.driving].all()
    both = now.driving & later.driving
    moved = np.abs(later.positions.x - positions.x) + np.abs(later.positions.y - positions.y)
    assert moved[both] == pytest.approx(day.speeds[both])
    assert positions.speed_mps is not None
    assert np.array_equal(positions.speed_mps[now.driving], day.speeds[now.driving])
    assert not positions.speed_mps[~now.driving].any()
    assert isinstance(positions.edges, np.ndarray)
    for vehicle in range(0, BLOCK, 11):
        (x0, y0), (x1, y1) = lines[positions.edges[vehicle]]
        assert min(x0, x1) - 1e-6 <= positions.x[vehicle] <= max(x0, x1) + 1e-6
        assert min(y0, y1) - 1e-6 <= positions.y[vehicle] <= max(y0, y1) + 1e-6


def of_every_eighth(day: Day) -> Day:
    """Return the day of every eighth vehicle of a block."""
    return Day(*(getattr(day, one.name)[..., ::8] for one in fields(Day)))


def test_nobody_jumps_in_a_day() -> None:
    day = of_every_eighth(day_of(TOWN, 8, 0, 0))
    fastest, step = TOWN.speed_mps * 1.2, 60.0
    before = where(TOWN, day, 0.0).positions

    for second in np.arange(step, 24 * HOUR, step):
        now = where(TOWN, day, float(second)).positions
        assert (np.abs(now.x - before.x) + np.abs(now.y - before.y)).max() <= fastest * step + 1e-6
        before = now
    assert np.array_equal(before.x, where(TOWN, day, 0.0).positions.x)


def town(**keys: Any) -> Population:
    question: Mapping[str, Any] = {"cells": "square", "size_m": 500}
    return build({"kind": "mobility", "devices": 20_000, "interval_s": 1800} | keys, question, 3, Path())


def test_the_town_has_two_rush_hours_and_quiet_nights() -> None:
    population = town()
    driving = [int(population.histogram(epoch)[1:].sum()) for epoch in range(population.epochs)]

    assert population.epochs == 48
    assert driving[16] > 5 * driving[24]
    assert driving[35] > 5 * driving[24]
    assert max(driving[:6]) < 20


def test_ignition_is_off_between_trips_and_some_arrive_between_the_rounds() -> None:
    population = town(start_h=8, round_gap_s=120)
    first, second = (population.reachable(0, number, 0, 20_000) for number in (1, 2))

    assert first is not None
    assert second is not None
    assert first.sum() == population.histogram(0)[1:].sum()
    arrived = (first & ~second).sum() / first.sum()
    assert 0.1 < arrived < 0.6


def test_parked_vehicles_answer_their_place_when_asked_to() -> None:
    population = town(parked="place")

    for epoch in (0, 20, 47):
        assert population.histogram(epoch)[0] == 0
    midnight, evening = (population.truths(epoch, 0, 20_000) for epoch in (0, 47))
    assert (midnight == evening).mean() > 0.99
    assert (midnight == population.truths(24, 0, 20_000)).mean() < 0.7


def test_a_vehicle_does_not_depend_on_how_many_others_there_are() -> None:
    few, many = town(devices=500, start_h=8), town(devices=100_000, start_h=8)

    assert np.array_equal(few.truths(1, 0, 500), many.truths(1, 0, 500))


def test_a_week_has_seven_different_days() -> None:
    population = town(hours=168, devices=2000, interval_s=3600, parked="place")
    mornings = [population.truths(24 * day + 8, 0, 2000) for day in range(7)]

    assert population.epochs == 168
    assert all(not np.array_equal(mornings[0], other) for other in mornings[1:])


def test_nobody_commutes_on_a_free_day() -> None:
    keys: dict[str, Any] = {"hours": 14 * 24, "devices": 5000, "interval_s": 3600}
    with_weekend, without = town(free_days=[5, 6], **keys), town(**keys)
    at_eight = [[int(one.histogram(24 * day + 8)[1:].sum()) for day in range(14)] for one in (with_weekend, without)]

    weekend = [day for day in range(14) if day % 7 in (5, 6)]
    assert all(at_eight[0][day] < at_eight[1][day] / 3 for day in weekend)
    assert all(at_eight[0][day] == at_eight[1][day] for day in set(range(14)) - set(weekend))
    first, last = (with_weekend.truths(24 * day + 3, 0, 5000) for day in (0, 6))
    assert np.array_equal(first, last)  # Everybody is at home, or parked there and answers none.


def test_every_street_of_the_town_is_one_edge_by_name() -> None:
    roads = roads_of(TOWN)

    assert list(roads.names) == sorted(set(roads.names))
    assert len(roads.names) == 8 * 5 + 9 * 4
    lengths = [abs(x1 - x0) + abs(y1 - y0) for (x0, y0), (x1, y1) in roads.lines]
    assert lengths == [200.0] * len(lengths)
    assert Fraction(len(set(roads.lines)), len(lengths)) == 1
