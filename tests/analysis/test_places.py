"""A grid's metres become the longitudes and latitudes that PROJ gives, to a millimetre, or are refused."""

from dataclasses import dataclass

import numpy as np
import pyproj
import pytest
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.places import PLACED, can_place, to_degrees
from hypothesis import given, settings
from hypothesis import strategies as st

MILLIMETRE = 1e-3
DEGREE_M = 111_320


@dataclass(frozen=True)
class Frame:
    epsg: int
    offset_x: str = "0"
    offset_y: str = "0"


def distance_m(epsg: int, x: np.ndarray, y: np.ndarray) -> float:
    """Return how far our places are from PROJ's, at most."""
    longitude, latitude = to_degrees(Frame(epsg))(x, y)
    east, north = pyproj.Transformer.from_crs(epsg, 4326, always_xy=True).transform(x, y)
    around = (longitude - east + 180) % 360 - 180
    return float(DEGREE_M * np.hypot(latitude - north, around * np.cos(np.radians(latitude))).max())


UTM = [*range(32601, 32661), *range(32701, 32761), *range(25828, 25839)]


def test_every_zone_is_placed_as_proj_places_it() -> None:
    eastings, northings = np.meshgrid(np.linspace(0, 1_000_000, 15), np.linspace(10_000, 9_300_000, 25))

    assert max(distance_m(epsg, eastings.ravel(), northings.ravel()) for epsg in UTM) < MILLIMETRE


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(UTM), st.floats(-500_000, 1_500_000), st.floats(0, 9_990_000))
def test_the_question_holds_to_a_thousand_kilometres_from_its_meridian(epsg: int, x: float, y: float) -> None:
    assert distance_m(epsg, np.array([x]), np.array([y])) < MILLIMETRE


@given(st.floats(-20_037_508, 20_037_508), st.floats(-20_037_508, 20_037_508))
def test_web_mercator_is_placed_as_proj_places_it(x: float, y: float) -> None:
    assert distance_m(3857, np.array([x]), np.array([y])) < MILLIMETRE


def test_degrees_stay_and_x_is_the_longitude() -> None:
    east, north = to_degrees(Frame(4326, "-11", "1"))(np.array([0.25]), np.array([45.0]))
    assert (east.tolist(), north.tolist()) == ([11.25], [44.0])


@pytest.mark.parametrize("epsg", [32600, 32661, 32700, 32761, 25827, 25839, 3035, 4258, 3856, 1024, 32767])
def test_another_code_is_refused_with_those_that_can_be_placed(epsg: int) -> None:
    assert not can_place(epsg)
    with pytest.raises(RangeError) as refused:
        to_degrees(Frame(epsg))
    assert str(refused.value) == f"EPSG code of the frame is {epsg}; allowed is one that can be placed: {PLACED}"


@pytest.mark.parametrize(
    ("epsg", "x", "y", "said"),
    [
        (32632, 1_500_001.0, 0.0, "easting in the frame is 1500001; allowed is -500000 to 1500000"),
        (32632, 0.0, 10_000_001.0, "northing in the frame is 10000001; allowed is -10000000 to 10000000"),
        (32733, 500_000.0, -1.0, "northing in the frame is -1; allowed is 0 to 20000000"),
        (3857, 20_037_509.0, 0.0, "easting in the frame is 20037509"),
        (3857, 0.0, -20_037_509.0, "northing in the frame is -20037509"),
        (4326, 180.5, 0.0, "longitude in the frame is 180.5; allowed is -180 to 180"),
        (4326, 0.0, -90.5, "latitude in the frame is -90.5; allowed is -90 to 90"),
        (32632, float("nan"), 0.0, "easting in the frame is nan"),
        (32632, 500_000.0, float("inf"), "northing in the frame is inf"),
    ],
)
def test_a_position_that_the_system_has_not_is_refused(epsg: int, x: float, y: float, said: str) -> None:
    with pytest.raises(RangeError, match=said):
        to_degrees(Frame(epsg))(np.array([500_000.0 if epsg > 30_000 else 1.0, x]), np.array([1.0, y]))
