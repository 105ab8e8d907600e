"""Cells: exact at borders, checked before H3 is asked, and with a place on the map for every value."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_protocol.window.domain import Bins, H3Cells, Numbers, Outside, SquareGrid
from fleetcount_simulator.cells import KINDS, RECORDED, declare, keys_of, read
from fleetcount_simulator.cells.hexagons import cells_of
from fleetcount_simulator.cells.model import Floats, Frame, Positions, Roads, Values, value_type
from fleetcount_simulator.cells.projection import Projection
from fleetcount_simulator.cells.road_network import read_network
from fleetcount_simulator.errors import ScenarioError
from h3.api import basic_int as h3
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import said_by

METRES, DEGREES = Frame(unit="m", speed=True), Frame(unit="deg")
NOWHERE = Path()


def answered(
    question: Mapping[str, Any], frame: Frame, positions: Positions, folder: Path = NOWHERE
) -> tuple[Any, Values]:
    cells = declare(read(question, folder, RECORDED), frame)
    keys = cells.keys(positions)
    seen = np.unique(keys)
    values = cells.close(seen[seen >= 0])
    return values.of(keys), values


def at(x: list[float] | Floats, y: list[float] | Floats, **more: Any) -> Positions:
    return Positions(x=np.array(x, dtype=np.float64), y=np.array(y, dtype=np.float64), **more)


coordinates = st.lists(
    st.tuples(st.floats(-2000, 2000), st.floats(-2000, 2000))
    | st.tuples(st.integers(-80, 80), st.integers(-80, 80)).map(lambda pair: (pair[0] * 12.5, pair[1] * 12.5))
    | st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda pair: (pair[0] * 100.3, pair[1] * 100.3)),
    min_size=1,
    max_size=30,
)


@given(coordinates, st.sampled_from(["250", "12.5", "33", "0.5", "100.3"]))
def test_squares_agree_with_the_domain_devices_use(points: list[tuple[float, float]], size: str) -> None:
    side = float(size)
    question = {"cells": "square", "size_m": size, "bounds": [-2 * side, -side, 3 * side, 2 * side]}
    question["bounds"] = [Decimal(str(bound)) for bound in question["bounds"]]  # type: ignore[attr-defined]

    values, made = answered(question, METRES, at([x for x, _ in points], [y for _, y in points]))

    grid = made.question.domain
    assert isinstance(grid, SquareGrid)
    assert (grid.columns, grid.rows) == (5, 3)
    assert [int(value) for value in values] == [grid.value_of(point) for point in points]


@given(coordinates)
def test_squares_from_data_hold_every_position_and_no_empty_row_at_the_border(
    points: list[tuple[float, float]],
) -> None:
    values, made = answered(
        {"cells": "square", "size_m": 250}, METRES, at([x for x, _ in points], [y for _, y in points])
    )

    grid = made.question.domain
    if grid is not None:
        assert [int(value) for value in values] == [grid.value_of(point) for point in points]
    columns = [int(label.split(",")[0]) for label in made.question.labels]
    used = {columns[value - 1] for value in values}
    assert values.min() >= 1
    assert {0, max(columns)} <= used


def test_the_outline_of_a_square_is_where_the_domain_says() -> None:
    _, made = answered({"cells": "square", "size_m": 100, "bounds": [0, 0, 300, 200]}, METRES, at([5], [5]))

    places, grid = made.question.places, made.question.domain
    assert places is not None
    assert isinstance(grid, SquareGrid)
    for value, outline in enumerate(places.outlines, start=1):
        centre = np.mean(outline, axis=0)
        assert grid.value_of((float(centre[0]), float(centre[1]))) == value
        assert len(outline) == 4


def test_a_position_that_is_no_number_or_far_away_is_outside() -> None:
    values, _ = answered(
        {"cells": "square", "size_m": 1, "bounds": [0, 0, 2, 2]},
        METRES,
        at([1, np.nan, np.inf, 1e300, -1e18, 2, 0], [1, 1, 1, 1, 1, 1, 0]),
    )

    assert values.tolist() == [4, 0, 0, 0, 0, 0, 1]


def test_squares_of_longitude_and_latitude_are_as_wide_as_they_are_high() -> None:
    bounds = [Decimal("11.30"), Decimal("44.48"), Decimal("11.36"), Decimal("44.52")]
    _, made = answered({"cells": "square", "size_m": 500, "bounds": bounds}, DEGREES, at([11.33], [44.50]))

    places = made.question.places
    assert places is not None
    assert places.unit == "deg"
    (left, below), (right, _), (_, above), _ = places.outlines[0]
    assert h3.great_circle_distance((below, left), (below, right), "m") == pytest.approx(500, rel=2e-3)
    assert h3.great_circle_distance((below, left), (above, left), "m") == pytest.approx(500, rel=2e-3)


@given(st.floats(-170, 170), st.floats(-80, 80), st.floats(-20_000, 20_000), st.floats(-20_000, 20_000))
def test_a_projection_goes_there_and_back(longitude: float, latitude: float, x: float, y: float) -> None:
    projection = Projection(Fraction(longitude), Fraction(latitude))

    there = projection.to_degrees(np.array([x]), np.array([y]))
    back = projection.to_metres(*there)

    assert back[0][0] == pytest.approx(x, abs=1e-4)
    assert back[1][0] == pytest.approx(y, abs=1e-4)


@pytest.mark.parametrize(
    ("longitude", "latitude"),
    [(0, 91), (0, -90.0001), (540, 0), (-180.5, 0), (np.nan, 0), (0, np.nan), (np.inf, 0), (0, -np.inf), (0, 1e308)],
)
def test_what_h3_would_take_without_a_word_is_refused_before(longitude: float, latitude: float) -> None:
    with pytest.raises(ScenarioError, match="no place on Earth"):
        cells_of(np.array([11.3, longitude]), np.array([44.5, latitude]), 9)


@given(st.floats(-180, 180), st.floats(-90, 90), st.integers(0, 15))
def test_a_hexagon_is_the_one_of_the_library(longitude: float, latitude: float, resolution: int) -> None:
    cell = cells_of(np.array([longitude, longitude]), np.array([latitude, latitude]), resolution)

    assert cell.tolist() == [h3.latlng_to_cell(latitude, longitude, resolution)] * 2


def test_hexagons_have_one_spelling_their_outline_and_a_domain() -> None:
    x, y = np.linspace(11.30, 11.36, 50), np.linspace(44.48, 44.52, 50)
    values, made = answered({"cells": "h3", "resolution": 9}, DEGREES, at(x, y))

    question = made.question
    assert isinstance(question.domain, H3Cells)
    assert question.places is not None
    assert all(label == label.lower() and len(label) == 15 for label in question.labels)
    assert {len(outline) for outline in question.places.outlines} <= {5, 6, 7}
    for place, value in enumerate(values.tolist()):
        cell = h3.latlng_to_cell(float(y[place]), float(x[place]), 9)
        assert question.labels[value - 1] == f"{cell:x}"
        assert question.domain.value_of(f"{cell:x}") == value


def test_a_pentagon_and_a_cell_across_the_date_line_have_outlines_in_one_piece() -> None:
    pentagon = h3.get_pentagons(5)[0]
    latitude, longitude = h3.cell_to_latlng(pentagon)
    _, made = answered({"cells": "h3", "resolution": 5}, DEGREES, at([longitude, 180, -179.99], [latitude, 10, 10]))

    assert made.question.places is not None
    for outline in made.question.places.outlines:
        longitudes = [corner[0] for corner in outline]
        assert max(longitudes) - min(longitudes) < 1


def test_declared_hexagons_leave_all_others_outside() -> None:
    bounds = [Decimal("11.30"), Decimal("44.48"), Decimal("11.36"), Decimal("44.52")]
    values, made = answered(
        {"cells": "h3", "resolution": 8, "bounds": bounds}, DEGREES, at([11.33, 12.0], [44.50, 44.5])
    )

    assert values[0] >= 1
    assert values[1] == 0
    assert 20 < made.question.values < 60


def test_squares_around_an_origin_go_on_across_180_degrees() -> None:
    question = {"cells": "square", "size_m": 10_000, "origin": [Decimal("179.9"), 0]}

    numbers, values = answered(question, DEGREES, at([179.95, -179.95, 179.85, -179.75], [0.01] * 4))

    assert numbers.tolist() == [2, 3, 1, 5]
    assert values.question.values == 5
    bounded = {"cells": "square", "size_m": 1_000_000, "bounds": [-180, 0, 180, 1]}
    assert answered(bounded, DEGREES, at([179.95, -179.95], [0.01] * 2))[0].tolist() == [41, 1]


def test_metres_become_hexagons_around_an_origin() -> None:
    origin = [Decimal("11.3"), Decimal("44.5")]
    extent = Fraction(0), Fraction(0), Fraction(5001), Fraction(5001)
    generator = np.random.default_rng(5)
    positions = at(generator.uniform(0, 5000, 3000), generator.uniform(0, 5000, 3000))

    values, made = answered(
        {"cells": "h3", "resolution": 9, "origin": origin}, Frame(unit="m", extent=extent), positions
    )

    assert values.min() >= 1
    assert made.question.values > len(np.unique(values))


TOWN = Roads(names=("a", "b", "c"), lines=(((0, 0), (100, 0)), ((0, 10), (50, 60), (100, 10)), ((200, 0), (200, 90))))


def test_the_edge_the_data_name_is_the_value() -> None:
    frame = Frame(unit="m", edges=True, roads=TOWN)

    values, made = answered({"cells": "edges"}, frame, at([0] * 4, [0] * 4, edges=["c", "a", ":junction", ""]))

    assert values.tolist() == [3, 1, 0, 0]
    assert made.question.labels == ("a", "b", "c")
    assert made.question.places is not None
    assert made.question.places.outlines == TOWN.lines


def test_without_a_network_the_edges_seen_are_the_values_by_name() -> None:
    values, made = answered(
        {"cells": "edges"}, Frame(unit="m", edges=True), at([0] * 3, [0] * 3, edges=["z", "b", "z"])
    )

    assert values.tolist() == [2, 1, 2]
    assert made.question.labels == ("b", "z")
    assert made.question.places is None


def test_an_edge_the_network_has_not_is_refused() -> None:
    frame = Frame(unit="m", edges=True, roads=TOWN)

    with pytest.raises(ScenarioError, match="'d', which is not in the network"):
        answered({"cells": "edges"}, frame, at([0], [0], edges=["d"]))


def distance_to(line: tuple[tuple[float, float], ...], x: float, y: float) -> float:
    best = np.inf
    for (x0, y0), (x1, y1) in pairwise(line):
        share = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / ((x1 - x0) ** 2 + (y1 - y0) ** 2), 0, 1)
        best = min(best, float(np.hypot(x - x0 - share * (x1 - x0), y - y0 - share * (y1 - y0))))
    return best


def test_the_nearest_edge_is_the_nearest_by_measuring_every_line() -> None:
    generator = np.random.default_rng(11)
    x, y = generator.uniform(-40, 260, 2000), generator.uniform(-40, 130, 2000)

    values, _ = answered({"cells": "edges", "edge": "nearest", "within_m": 20}, Frame(unit="m", roads=TOWN), at(x, y))

    for place, value in enumerate(values.tolist()):
        distances = [distance_to(line, float(x[place]), float(y[place])) for line in TOWN.lines]
        if value == 0:
            assert min(distances) > 20
        else:
            assert distances[value - 1] == pytest.approx(min(distances), abs=1e-9)
            assert min(distances) <= 20
    assert set(values.tolist()) == {0, 1, 2, 3}


def test_speeds_fall_into_the_bins_devices_use() -> None:
    speeds = np.array([0, 8.3, 30 / 3.6, 13.9, 100.0])

    values, made = answered(
        {"cells": "speed", "bins_kmh": [30, 50]}, METRES, at(np.zeros(5), np.zeros(5), speed_mps=speeds)
    )

    assert isinstance(made.question.domain, Bins)
    assert values.tolist() == [made.question.domain.value_of(float(speed) * 3.6) for speed in speeds] == [0, 0, 1, 2, 2]


def test_speeds_are_kept_exactly_to_be_rounded_as_devices_do() -> None:
    speeds = np.array([0.0, 13.9, 10 / 3.6, -0.0, 13.9, 100.0])
    asked = {"cells": "number", "low_kmh": 0, "high_kmh": 100, "points": 11, "outside": "none"}

    held, made = answered(asked, METRES, at(np.zeros(6), np.zeros(6), speed_mps=speeds))

    assert made.question.domain == Numbers(
        low=Fraction(0), high=Fraction(100), values=11, unit="km/h", outside=Outside.NONE
    )
    assert made.question.labels == tuple(f"{tens} km/h" for tens in range(0, 101, 10))
    assert made.question.readings == (0, 10, Fraction("50.04"), 360)  # What 3.6 times each double is to a device.
    assert held.tolist() == [1, 3, 2, 1, 3, 4]


def test_no_cells_asks_who_is_on_the_road() -> None:
    values, made = answered({"cells": "none"}, METRES, at([1, 2], [1, 2]))

    assert values.tolist() == [1, 1]
    assert made.question.labels == ("on the road",)


def test_values_need_four_bytes_above_65535_only() -> None:
    assert value_type(65_535) is np.uint16
    assert value_type(65_536) is np.int32


def test_a_grid_of_100000_squares_is_the_largest() -> None:
    _, made = answered({"cells": "square", "size_m": 1, "bounds": [0, 0, 1000, 100]}, METRES, at([999.5], [99.5]))

    assert made.question.values == 100_000
    assert made.question.domain is None
    assert made.of(np.array([made.codes[-1]], dtype=np.int64)).tolist() == [100_000]


BAD_QUESTIONS: list[tuple[dict[str, Any], Frame, str]] = [
    ({}, METRES, "question.cells is missing; it must be one of square"),
    ({"cells": "squares"}, METRES, "question.cells is 'squares'; did you mean 'square'?"),
    ({"cells": 3}, METRES, "question.cells is 3"),
    ({"cells": "categories"}, METRES, "question.cells is 'categories'; this population can be asked for square"),
    ({"cells": "square", "size": 3}, METRES, "question.size is unknown; did you mean 'size_m'?"),
    ({"cells": "square"}, METRES, "question.size_m is missing"),
    ({"cells": "square", "size_m": 0}, METRES, "question.size_m is 0"),
    ({"cells": "square", "size_m": -1}, METRES, "question.size_m is -1"),
    ({"cells": "square", "size_m": 1.5}, METRES, "question.size_m is 1.5"),
    ({"cells": "square", "size_m": Decimal("NaN")}, METRES, "question.size_m is NaN"),
    ({"cells": "square", "size_m": "1_0"}, METRES, "question.size_m is '1_0'"),
    ({"cells": "square", "size_m": "１"}, METRES, "question.size_m"),
    (
        {"cells": "square", "size_m": 1, "bounds": [0, 0, 1001, 100]},
        METRES,
        "100100 cells; a question has 1 to 100000",
    ),
    ({"cells": "square", "size_m": 1, "bounds": [0, 0, 0, 1]}, METRES, "question.bounds"),
    ({"cells": "square", "size_m": 1, "bounds": [0, 0, 1]}, METRES, "question.bounds holds 3 entries"),
    ({"cells": "square", "size_m": 1, "bounds": [0, 0, True, 1]}, METRES, "question.bounds holds true"),
    ({"cells": "square", "size_m": 1, "bounds": "all"}, METRES, "question.bounds is 'all'"),
    ({"cells": "square", "size_m": 1, "origin": [0, 0]}, METRES, "question.origin is not used"),
    ({"cells": "square", "size_m": 1}, DEGREES, "question.origin is missing"),
    ({"cells": "square", "size_m": 1, "bounds": [0, 0, 1, 91]}, DEGREES, "question.bounds"),
    ({"cells": "square", "size_m": 1, "origin": [0, 89]}, DEGREES, "question.origin"),
    ({"cells": "h3", "resolution": 16}, DEGREES, "question.resolution is 16"),
    ({"cells": "h3", "resolution": Decimal("9.5")}, DEGREES, "question.resolution is 9.5"),
    ({"cells": "h3", "resolution": "9"}, DEGREES, "question.resolution is '9'"),
    ({"cells": "h3", "resolution": True}, DEGREES, "question.resolution is true"),
    ({"cells": "h3", "resolution": 9}, METRES, "question.origin is missing"),
    ({"cells": "h3", "resolution": 9, "origin": [0, 0]}, DEGREES, "question.origin is not used"),
    ({"cells": "h3", "resolution": 15, "bounds": [0, 0, 10, 10]}, DEGREES, "question.resolution gives more than"),
    ({"cells": "h3", "resolution": 5, "bounds": [-180, 0, 10, 10]}, DEGREES, "question.bounds"),
    ({"cells": "h3", "resolution": 5, "bounds": [0, 80, 10, 91]}, DEGREES, "question.bounds"),
    ({"cells": "edges"}, METRES, "question.edge is 'own', but these data name no edge"),
    ({"cells": "edges", "edge": "nearest"}, METRES, "question.network is missing"),
    ({"cells": "edges", "edge": "nearest"}, Frame(unit="deg", roads=TOWN), "not in degrees"),
    ({"cells": "edges", "edge": "next"}, METRES, "question.edge is 'next'"),
    ({"cells": "edges", "network": "no.net.xml"}, METRES, "question.network is 'no.net.xml'"),
    ({"cells": "edges", "within_m": 3}, Frame(unit="m", edges=True), "question.within_m is for"),
    ({"cells": "speed"}, METRES, "question.bins_kmh is missing"),
    ({"cells": "speed", "bins_kmh": [50, 30]}, METRES, "question.bins_kmh is [50, 30]"),
    ({"cells": "speed", "bins_kmh": [30]}, DEGREES, "question.cells is 'speed', but these data have no speeds"),
    ({"cells": "number", "low_kmh": 0}, METRES, "question.high_kmh is missing"),
    ({"cells": "number", "low_kmh": 5, "high_kmh": 5}, METRES, "question.low_kmh is 5"),
    ({"cells": "number", "low_kmh": 0, "high_kmh": 5, "points": 1}, METRES, "question.points is 1"),
    ({"cells": "number", "low_kmh": 0, "high_kmh": 5, "outside": "drop"}, METRES, "question.outside is 'drop'"),
    (
        {"cells": "number", "low_kmh": 0, "high_kmh": 5},
        DEGREES,
        "question.cells is 'number', but these data have no speeds",
    ),
    ({"cells": "none", "title": ""}, METRES, "question.title is ''"),
    ({"cells": "none", "title": "a\nb"}, METRES, "question.title"),
]


def test_a_question_that_cannot_be_asked_is_refused_by_its_key() -> None:
    for question, frame, named in BAD_QUESTIONS:
        said = said_by(ScenarioError, answered, question, frame, at([11.3], [44.5]))

        assert named in said, question
        assert said.startswith("question."), question
        assert len(said) < 260, question


NET = """<net version="1.20">
<location netOffset="0,0"/>
<edge id=":j_0" function="internal"><lane id=":j_0_0" index="0" speed="9" length="1" shape="0,0 1,1"/></edge>
<edge id="b" from="1" to="2" shape="0.5,0 100,-3.25"><lane id="b_0" index="0" shape="0,2 100,2"/></edge>
<edge id="a" from="2" to="1">
<lane id="a_0" index="0" shape="0,7 100,7 100,9"/><lane id="a_1" index="1" shape="0,9 1,9"/></edge>
<junction id="1" type="dead_end" x="0" y="0" shape="0,0"/>
<edge id=":j_c0" function="crossing"><lane id=":j_c0_0" index="0" speed="9" length="1" shape="0,0 1,1"/></edge>
<edge id=":j_w0" function="walkingarea"><lane id=":j_w0_0" index="0" speed="9" length="1" shape="0,0 1,1"/></edge>
</net>
"""


def test_a_network_gives_its_edges_by_name_without_the_insides_of_junctions(tmp_path: Path) -> None:
    (tmp_path / "n.net.xml").write_text(NET)

    roads = read_network(tmp_path / "n.net.xml")

    assert roads.names == ("a", "b")
    assert roads.lines == (((0, 7), (100, 7), (100, 9)), ((0.5, 0), (100, -3.25)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "n.net.xml line 1: no element found"),
        (NET[:200], "n.net.xml line 4"),
        (NET.replace("net", "nodes"), "the root element is 'nodes'"),
        ("<!DOCTYPE net [<!ENTITY a 'b'>]>" + NET, "line 1: a DOCTYPE"),
        ("<net></net>", "n.net.xml: no edge"),
        (NET.replace('id="a"', 'id="b"'), "line 5: the edge 'b' occurs twice"),
        (NET.replace('id="a"', 'id=""'), "line 5: an edge is named ''"),
        (NET.replace("0.5,0 100,-3.25", "0.5,0"), "line 4: the shape is '0.5,0'"),
        (NET.replace("0.5,0 100,-3.25", "nan,0 1,1"), "line 4: the shape is 'nan,0 1,1'"),
        (NET.replace("0.5,0 100,-3.25", "1e3,0 1,1"), "line 4: the shape"),
        ('<net><edge id="x"/></net>', "the edge 'x' has no line"),
    ],
)
def test_a_network_that_is_none_is_refused_with_its_line(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "n.net.xml").write_text(text)

    with pytest.raises(ScenarioError) as refusal:
        read_network(tmp_path / "n.net.xml")

    assert named in str(refusal.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_explained(kind: str) -> None:
    assert all(key.about and key.example for key in keys_of(kind))
