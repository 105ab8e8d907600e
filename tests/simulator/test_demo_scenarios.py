"""The demo's scenarios: a pure function of data and seed, with truths that add up to who is on the road."""

import gzip
from pathlib import Path

import pyproj
import pytest
import shapely
from fleetcount_analysis.answers.places import GridPlaces
from fleetcount_analysis.places import to_degrees
from fleetcount_data.streets import bologna_streets
from fleetcount_protocol.window.domain import PLACE_BITS
from fleetcount_simulator.demo_scenarios import (
    BOLOGNA_GRID,
    BOLOGNA_TREE,
    bologna_place,
    bologna_position,
    bologna_speed,
    category,
    find_bologna,
    yes_or_no,
)
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.bologna import read_traces
from fleetcount_simulator.truths import Truths

from tests.support.refusals import said_by

TRACES = read_traces(find_bologna())


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another() -> None:
    assert bologna_position(TRACES, 500, 7) == bologna_position(TRACES, 500, 7)
    assert bologna_position(TRACES, 500, 7).readings != bologna_position(TRACES, 500, 8).readings


@pytest.mark.parametrize("vehicles", [2, 2000, 9000, 20_000])
def test_every_vehicle_on_the_road_is_in_one_cell_and_no_other_is(vehicles: int) -> None:
    scenario = bologna_position(TRACES, vehicles, 1)

    assert scenario.vehicles == vehicles
    assert sum(scenario.truths()) == sum(reading is not None for reading in scenario.readings[0])


def test_the_default_fleet_has_vehicles_on_and_off_the_road_in_many_cells() -> None:
    truths = bologna_position(TRACES, 2000, 1).truths()

    assert 600 < sum(truths) < 1400
    assert sum(count > 0 for count in truths) >= 40


def test_the_places_of_a_walk_are_those_in_which_the_same_vehicles_are() -> None:
    scenario = bologna_place(TRACES, 500, 7, 8, 4)
    (where,), (places, *later) = bologna_position(TRACES, 500, 7).readings, scenario.readings

    assert scenario.domain.values == 256
    assert later == [places] * 3
    for position, place in zip(where, places, strict=True):
        assert (position is None) == (place is None)
        if isinstance(position, tuple) and isinstance(place, int):
            left, lower, right, upper = BOLOGNA_TREE.corners(place, PLACE_BITS)
            assert left <= position[0] < right
            assert lower <= position[1] < upper
    # The city lies on no edge of a large square: it is in one of 524 km and one of 33 km.
    assert len({place >> 16 for place in places if isinstance(place, int)}) == 1


def test_faster_than_fifty_counts_the_fast_only() -> None:
    scenario = bologna_speed(TRACES, 2000, 1)

    assert scenario.truths() == [sum(isinstance(speed, float) and speed >= 50 for speed in scenario.readings[0])]
    assert 10 < scenario.truths()[0] < 200


def test_categories_count_as_the_table_says() -> None:
    truths = Truths(values=("b", "a", "", "b"))

    assert category(truths, 4, 1).truths() == [1, 2]
    assert yes_or_no(truths, "b", 4, 1).truths() == [2]


def test_a_yes_nobody_has_and_more_vehicles_than_rows_are_refused() -> None:
    truths = Truths(values=("b", "a"))

    with pytest.raises(ScenarioError, match="--yes is 'c'"):
        yes_or_no(truths, "c", 2, 1)
    with pytest.raises(ScenarioError, match="the file has 2"):
        category(truths, 3, 1)


HEADER = "t,vehicle,x,y,speed_mps,street\n"


BAD_TRACES: list[tuple[str, str]] = [
    ("", "no header"),
    (HEADER, "no rows"),
    (HEADER.replace("t,", "\ufefftime,"), "no column 't'"),
    (HEADER + "0,a,1,2\n", "4 fields"),
    (HEADER + "0,a,1_0,2,3,b6\n", "x is '1_0'"),
    (HEADER + "0,a,nan,2,3,b6\n", "x is 'nan'"),
    (HEADER + "0,a,１２,2,3,b6\n", "x is"),
    (HEADER + '0,a,"1,5",2,3,b6\n', "x is '1,5'"),
    (HEADER + "0,a,1,2,-3,b6\n", "speed_mps is -3"),
    (HEADER + "-1,a,1,2,3,b6\n", "t is -1"),
    (HEADER + "0,,1,2,3,b6\n", "the vehicle is ''"),
    (HEADER + '0,"a\nb",1,2,3,b6\n', "line 2: a field holds a line end"),
    (HEADER + "0,a\u200b,1,2,3,b6\n", "the vehicle is"),
    (HEADER + "0,a,1,2,3,b6\n0,a,1,2,3,b6\n", "occurs twice"),
    (HEADER + '0,"a,1,2,3,b6\n', "line 2"),
    (HEADER + "0,a\0,1,2,3,b6\n", "NUL"),
]


def test_a_wrong_trace_is_refused_by_name(tmp_path: Path) -> None:
    for text, named in BAD_TRACES:
        path = tmp_path / "trace.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))

        assert named in said_by(ScenarioError, read_traces, path), text


def test_a_truncated_or_foreign_or_bloated_archive_is_refused(tmp_path: Path) -> None:
    whole = find_bologna().read_bytes()
    (tmp_path / "half.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.gz").write_bytes(b"t,vehicle")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(65 * 2**20)))

    for name, reason in [("half.gz", "cannot be read"), ("text.gz", "no column"), ("bomb.gz", "longer than")]:
        with pytest.raises(ScenarioError, match=reason):
            read_traces(tmp_path / name)


def test_every_street_lies_on_earth_inside_the_cell_that_its_vehicles_report() -> None:
    grid = BOLOGNA_GRID
    assert grid.frame is not None
    placed = GridPlaces(
        x0=grid.x0, y0=grid.y0, size=grid.size, columns=grid.columns, rows=grid.rows, to_degrees=to_degrees(grid.frame)
    )
    project = pyproj.Transformer.from_crs(grid.frame.epsg, 4326, always_xy=True)
    points = [(float(x), float(y)) for street in bologna_streets() for x, y in street.line]

    cells = [grid.value_of(point) for point in points]
    rings = {cell: shapely.Polygon(placed.outline(cell)) for cell in set(cells)}

    assert 0 not in cells
    for (x, y), cell in zip(points, cells, strict=True):
        east = x - float(grid.frame.offset_x)
        on_earth = shapely.Point(project.transform(east, y - float(grid.frame.offset_y)))
        assert rings[cell].distance(on_earth) < 1e-7  # Of a degree: a centimetre, for points on an edge.
    everywhere = shapely.union_all(list(rings.values()))
    assert everywhere.contains(shapely.Point(11.3097, 44.4922))  # The stadium beside Via Andrea Costa.
