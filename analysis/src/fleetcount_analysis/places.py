"""Conversion of a grid's own metres to longitude and latitude, by the frame in its signed window.

Pure functions of arrays, without protocol bytes. It must not guess: an EPSG code without a formula here is refused.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]
Inverse = Callable[[Floats, Floats], tuple[Floats, Floats]]

PLACED: Final = (
    "WGS 84 / UTM (32601-32660, 32701-32760), ETRS89 / UTM (25828-25838), Web Mercator (3857), degrees (4326)"
)
"""The reference systems with a formula here, for messages."""

_RADIUS_M: Final = 6_378_137.0
"""Semi-major axis of both ellipsoids, WGS 84 and GRS 80."""
_WGS84_FLATTENING: Final = 1 / 298.257223563
_GRS80_FLATTENING: Final = 1 / 298.257222101
_UTM_SCALE: Final = 0.9996
_UTM_EASTING_M: Final = 500_000.0
_SOUTHERN_NORTHING_M: Final = 10_000_000.0
_MOST_EAST_M: Final = 1_000_000.0
"""The largest distance from a central meridian; a zone ends before 350 km, and the series is exact to a millimetre far
beyond."""
_MOST_NORTH_M: Final = 10_000_000.0
_HALF_EQUATOR_M: Final = math.pi * _RADIUS_M


class Frame(Protocol):
    """A grid's frame, `fleetcount_protocol.window.domain.Frame`: a position is easting and northing plus offset."""

    @property
    def epsg(self) -> int:
        """The code of the reference system in the EPSG register."""
        ...

    @property
    def offset_x(self) -> str:
        """The decimal number that was added to the easting."""
        ...

    @property
    def offset_y(self) -> str:
        """The decimal number that was added to the northing."""
        ...


def can_place(epsg: int) -> bool:
    """Return whether `to_degrees` has the formula of a reference system; `PLACED` lists them."""
    return _inverse(epsg) is not None


def to_degrees(frame: Frame) -> Inverse:
    """Return the function from a grid's own x and y, arrays, to longitudes and latitudes (WGS 84, degrees, float64).

    ETRS89 counts as WGS 84: in Europe they differ by less than a metre. Near the 180th meridian a longitude may be
    above 180.

    Raises:
        RangeError: a code without a formula; from the function, a position outside the reference system.
    """
    inverse = _inverse(frame.epsg)
    if inverse is None:
        raise RangeError("EPSG code of the frame", frame.epsg, f"one that can be placed: {PLACED}")
    # From exact decimals: a float of millions of metres would lose digits of the offset.
    east, north = float(Fraction(frame.offset_x)), float(Fraction(frame.offset_y))

    def placed(x: Floats, y: Floats) -> tuple[Floats, Floats]:
        return inverse(x - east, y - north)

    return placed


def _inverse(epsg: int) -> Inverse | None:
    family, zone = divmod(epsg, 100)
    if epsg == 4326:
        return _degrees
    if epsg == 3857:
        return _web_mercator
    if family in (326, 327) and 1 <= zone <= 60:
        return _utm(zone, _WGS84_FLATTENING, _SOUTHERN_NORTHING_M if family == 327 else 0.0)
    if family == 258 and 28 <= zone <= 38:
        return _utm(zone, _GRS80_FLATTENING, 0.0)
    return None


def _within(what: str, values: Floats, limit: float, zero: float = 0.0) -> None:
    if not np.all(np.abs(values - zero) <= limit):  # In this form nan is refused too.
        worst = values.flat[int(np.argmax(~(np.abs(values - zero) <= limit)))]
        raise RangeError(f"{what} in the frame", f"{worst:.10g}", f"{zero - limit:.10g} to {zero + limit:.10g}")


def _degrees(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    _within("longitude", x, 180.0)
    _within("latitude", y, 90.0)
    return x, y


def _web_mercator(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the inverse of the spherical Mercator projection (IOGP Guidance Note 7-2, method 1024)."""
    _within("easting", x, _HALF_EQUATOR_M)
    _within("northing", y, _HALF_EQUATOR_M)
    return np.degrees(x / _RADIUS_M), np.degrees(np.arctan(np.sinh(y / _RADIUS_M)))


def _utm(zone: int, flattening: float, northing: float) -> Inverse:
    """Return the inverse transverse Mercator projection of a zone, Kruger's series in the third flattening n to n**4.

    IOGP Guidance Note 7-2, method 9807, its coefficients h1' to h4'; derived in Karney, Transverse Mercator with an
    accuracy of a few nanometers (J. Geodesy 85, 2011). Latitude follows from conformal latitude by the series in n of
    Kawase (Bulletin of the GSI 59, 2011). The omitted term in n**5 is three micrometres at 1,000 km from the meridian.
    """
    n = flattening / (2 - flattening)
    radius = _RADIUS_M / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    sphere = (
        n / 2 - 2 / 3 * n**2 + 37 / 96 * n**3 - n**4 / 360,
        n**2 / 48 + n**3 / 15 - 437 / 1440 * n**4,
        17 / 480 * n**3 - 37 / 840 * n**4,
        4397 / 161280 * n**4,
    )
    latitude = (
        2 * n - 2 / 3 * n**2 - 2 * n**3 + 116 / 45 * n**4,
        7 / 3 * n**2 - 8 / 5 * n**3 - 227 / 45 * n**4,
        56 / 15 * n**3 - 136 / 35 * n**4,
        4279 / 630 * n**4,
    )

    def inverse(x: Floats, y: Floats) -> tuple[Floats, Floats]:
        _within("easting", x, _MOST_EAST_M, _UTM_EASTING_M)
        _within("northing", y, _MOST_NORTH_M, northing)
        north, east = (y - northing) / (_UTM_SCALE * radius), (x - _UTM_EASTING_M) / (_UTM_SCALE * radius)
        xi = north - sum(b * np.sin(2 * j * north) * np.cosh(2 * j * east) for j, b in enumerate(sphere, 1))
        eta = east - sum(b * np.cos(2 * j * north) * np.sinh(2 * j * east) for j, b in enumerate(sphere, 1))
        conformal = np.arctan2(np.sin(xi), np.hypot(np.sinh(eta), np.cos(xi)))
        angle = np.arctan2(np.sinh(eta), np.cos(xi))
        latitudes = conformal + sum(d * np.sin(2 * j * conformal) for j, d in enumerate(latitude, 1))
        return np.degrees(angle) + 6 * zone - 183, np.degrees(latitudes)

    return inverse
