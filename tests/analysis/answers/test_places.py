"""Outlines and the cells inside an area, of square grids and of hexagons."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.places import DEGREES, OWN_UNIT, GridPlaces, HexagonPlaces, cells_inside
from fleetcount_analysis.errors import RangeError

GRID = GridPlaces(x0=Fraction(100), y0=Fraction(-50), size=Fraction(20), columns=4, rows=3)
HEXAGONS = (0x881EA50F13FFFFF, 0x881EA50F17FFFFF)


def box(x0: float, y0: float, x1: float, y1: float) -> list[list[float]]:
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]


def test_a_grid_is_numbered_row_by_row() -> None:
    assert GRID.coordinates == OWN_UNIT
    assert GRID.outline(6) == [(120, -30), (140, -30), (140, -10), (120, -10), (120, -30)]
    assert GRID.centres()[5].tolist() == [130, -20]
    assert GRID.values == 12


def test_a_frame_turns_metres_into_degrees() -> None:
    placed = GridPlaces(
        x0=Fraction(0), y0=Fraction(0), size=Fraction(1000), columns=2, rows=1,
        to_degrees=lambda x, y: (x / 111_195 + 11.3, y / 111_195 + 44.5),
    )  # fmt: skip

    assert placed.coordinates == DEGREES
    assert placed.outline(2)[0] == pytest.approx((11.3 + 1000 / 111_195, 44.5))


def test_hexagons_have_six_corners_around_their_middle() -> None:
    places = HexagonPlaces(cells=HEXAGONS)
    ring = np.array(places.outline(1))

    assert (ring[0] == ring[-1]).all()
    assert len(ring) == 7
    assert ring[:-1].mean(axis=0) == pytest.approx(places.centres()[0], abs=1e-3)
    area = {"type": "Polygon", "coordinates": [places.outline(2)]}
    assert cells_inside(places, area) == {2}
    with pytest.raises(RangeError, match="H3 cell is 5"):
        HexagonPlaces(cells=(5,))


@pytest.mark.parametrize("west", [-360, 0, 360])
def test_an_area_is_the_same_a_turn_further(west: float) -> None:
    places = GridPlaces(
        x0=Fraction(0), y0=Fraction(0), size=Fraction(1), columns=4, rows=1,
        to_degrees=lambda x, y: ((x + 178 + 180) % 360 - 180, y),
    )  # fmt: skip

    assert places.centres()[:, 0].tolist() == [178.5, 179.5, -179.5, -178.5]
    area = {"type": "Polygon", "coordinates": [box(179 + west, 0, 181 + west, 1)]}
    assert cells_inside(places, area) == {2, 3}


@pytest.mark.parametrize(
    "area",
    [
        {"type": "FeatureCollection", "features": None},
        {"type": "FeatureCollection"},
        {"type": "FeatureCollection", "features": [None]},
        {"type": "Polygon", "coordinates": None},
        {"type": "Polygon", "coordinates": 5},
        {"type": "MultiPolygon", "coordinates": [7]},
        {"type": "Feature"},
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}},
        {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": None}]},
    ],
)
def test_what_holds_no_area_is_refused(area: dict) -> None:
    with pytest.raises(RangeError):
        cells_inside(GRID, area)


def test_a_line_by_the_longer_way_around_the_earth_is_refused() -> None:
    places = GridPlaces(
        x0=Fraction(179), y0=Fraction(0), size=Fraction(1), columns=2, rows=1, to_degrees=lambda x, y: (x, y)
    )
    for ring in (box(179.2, 0, -179.8, 1), box(-179.8, 0, 179.2, 1)[:-1]):
        with pytest.raises(RangeError, match=r"ring 1 of polygon 1 is a line from longitude -?179.[28] to -?179.[28]"):
            cells_inside(places, {"type": "Polygon", "coordinates": [ring]})

    for found, ring in (({1}, box(179.2, 0, 180.2, 1)), ({2}, box(-180, 0, -179.2, 1)), ({1, 2}, box(-180, 0, 180, 1))):
        assert cells_inside(places, {"type": "Polygon", "coordinates": [ring]}) == found


def test_an_area_in_another_reference_system_is_refused() -> None:
    area = {"type": "Polygon", "coordinates": [box(11.29, 44.5, 11.32, 44.52)]}
    placed = GridPlaces(
        x0=Fraction(0), y0=Fraction(0), size=Fraction(1000), columns=2, rows=1,
        to_degrees=lambda x, y: (x / 111_195 + 11.3, y / 111_195 + 44.5),
    )  # fmt: skip

    for name in ("urn:ogc:def:crs:OGC:1.3:CRS84", "EPSG:4326", "urn:ogc:def:crs:EPSG::4326"):
        assert cells_inside(placed, area | {"crs": {"type": "name", "properties": {"name": name}}}) == {1, 2}
    with pytest.raises(RangeError, match="crs is 'EPSG:3857'"):
        cells_inside(placed, area | {"crs": {"type": "name", "properties": {"name": "EPSG:3857"}}})


@pytest.mark.parametrize(
    ("area", "cells"),
    [
        (
            {
                "type": "FeatureCollection",
                "features": [
                    {"type": "Feature", "geometry": None},
                    {
                        "type": "Feature",
                        "geometry": {
                            "type": "GeometryCollection",
                            "geometries": [{"type": "Polygon", "coordinates": [box(100, -50, 140, -30)]}],
                        },
                    },
                ],
            },
            {1, 2},
        ),
        ({"type": "Polygon", "coordinates": [box(100, -50, 140, -30)]}, {1, 2}),
        ({"type": "Polygon", "coordinates": [box(100, -50, 180, 10), box(115, -35, 145, -5)]}, set(range(1, 13)) - {6}),
        ({"type": "MultiPolygon", "coordinates": [[box(100, -50, 120, -30)], [box(160, -10, 180, 10)]]}, {1, 12}),
        ({"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [box(100, -50, 140, -30)]}}, {1, 2}),
    ],
)
def test_the_cells_of_an_area_are_those_with_their_middle_inside(area: dict, cells: set[int]) -> None:
    assert cells_inside(GRID, area) == cells
    assert cells_inside(GRID, {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": area}
        if area["type"] != "Feature" else area]}) == cells  # fmt: skip


def test_a_star_holds_what_a_formula_says() -> None:
    grid = GridPlaces(x0=Fraction(-50), y0=Fraction(-50), size=Fraction(1), columns=100, rows=100)
    angles = np.linspace(0, 2 * math.pi, 721)
    radius = 30 + 10 * np.cos(5 * angles)
    ring = np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1).tolist()

    found = cells_inside(grid, {"type": "Polygon", "coordinates": [ring]})

    middle = grid.centres()
    distance = np.hypot(*middle.T) - 30 - 10 * np.cos(5 * np.arctan2(middle[:, 1], middle[:, 0]))
    sure = np.abs(distance) > 0.05
    inside = np.isin(np.arange(1, 10_001), list(found))
    assert np.array_equal(inside[sure], distance[sure] < 0)


@pytest.mark.parametrize("moved", [0.0, 1e-13])
def test_a_ring_that_touches_itself_or_is_drawn_twice_holds_what_it_goes_around(moved: float) -> None:
    # Two squares that meet in a corner, by rounding a little more than that, and a square that is drawn twice.
    eight = [[100, -50], [120, -50], [120, -30], [140, -30], [140, -10], [120 - moved, -10], [120 - moved, -30 - moved]]
    eight += [[100, -30], [100, -50]]
    twice = box(100, -50, 140, -30)

    assert cells_inside(GRID, {"type": "Polygon", "coordinates": [eight]}) == {1, 6}
    assert cells_inside(GRID, {"type": "Polygon", "coordinates": [[*twice, *twice]]}) == {1, 2}


def test_one_crossing_among_many_corners_is_found() -> None:
    angles = np.linspace(0, 2 * math.pi, 5_001)
    round_ring = np.stack([200 * np.cos(angles), 200 * np.sin(angles)], axis=1)
    assert cells_inside(GRID, {"type": "Polygon", "coordinates": [round_ring.tolist()]}) == set(range(1, 13))
    swapped = round_ring.copy()
    swapped[[3_500, 3_510]] = swapped[[3_510, 3_500]]

    with pytest.raises(RangeError, match=r"ring 1 of polygon 1 is crossing itself at \[-60\.[0-9]+, -190\.[0-9]+\]"):
        cells_inside(GRID, {"type": "Polygon", "coordinates": [swapped.tolist()]})


@pytest.mark.parametrize(
    ("area", "words"),
    [
        ({"type": "Point", "coordinates": [1, 2]}, "type of GeoJSON is 'Point'"),
        ({}, "type of GeoJSON is None"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]}, "ring is 2 positions"),
        ({"type": "Polygon", "coordinates": [box(0, 0, math.nan, 1)]}, "ring is 5 positions"),
        ({"type": "Polygon", "coordinates": [5]}, "not a list of positions"),
        ({"type": "Polygon", "coordinates": [[[10**400, 0], [0, 1], [1, 1], [0, 0]]]}, "not a list of positions"),
        ({"type": "Polygon", "coordinates": [[{}, {}, {}, {}]]}, "not a list of positions"),
        ({"type": "Polygon", "coordinates": None}, "coordinates of GeoJSON is None"),
        ({"type": "Polygon", "coordinates": [], "crs": {"properties": None}}, "without the middle of a cell"),
        ({"type": "FeatureCollection", "features": None}, "features of GeoJSON is None"),
        ({"type": "Feature", "geometry": "POLYGON"}, "type of GeoJSON is None"),
        ({"type": "Polygon", "coordinates": [box(0, 0, 1, 1)]}, "without the middle of a cell"),
        (
            {"type": "Polygon", "coordinates": [[[100, -50], [180, 10], [180, -50], [100, 10], [100, -50]]]},
            r"^ring 1 of polygon 1 is crossing itself at \[140, -20\]; allowed is a ring whose lines do not cross",
        ),
        (
            {
                "type": "MultiPolygon",
                "coordinates": [
                    [box(100, -50, 120, -30)],
                    [box(100, -50, 180, 10), [*box(110, -40, 120, -30)[:2], [110, -30], [120, -30], [110, -40]]],
                ],
            },
            r"^ring 2 of polygon 2 is crossing itself at \[115, -35\]",
        ),
    ],
)
def test_bad_areas_are_refused(area: dict, words: str) -> None:
    with pytest.raises(RangeError, match=words):
        cells_inside(GRID, area)


def test_a_grid_without_size_is_refused() -> None:
    with pytest.raises(RangeError, match="grid is"):
        GridPlaces(x0=Fraction(0), y0=Fraction(0), size=Fraction(0), columns=1, rows=1)
