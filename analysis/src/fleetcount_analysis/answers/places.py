"""The places of a table's cells: their outlines for maps, and the cells inside an area for sums.

It must not guess a frame: a square grid without a frame is in its own unit, not in degrees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fleetcount_analysis.errors import ExportError, RangeError

Floats = NDArray[np.float64]
Ring = list[tuple[float, float]]

DEGREES: Final = "longitude and latitude in degrees (WGS 84)"
_DEGREES_NAMED: Final = frozenset({"4326", "CRS84"})
_WITHOUT_AREA: Final = ("Point", "MultiPoint", "LineString", "MultiLineString")
_ROUNDING: Final = 1e-9
OWN_UNIT: Final = "x and y in the grid's own unit, not longitude and latitude"


class Places(Protocol):
    """The places of values 1..V, in the order of the values."""

    @property
    def values(self) -> int:
        """V."""
        ...

    @property
    def coordinates(self) -> str:
        """`DEGREES` or `OWN_UNIT`."""
        ...

    def outline(self, value: int) -> Ring:
        """Return the corners of a cell anticlockwise, the first again at the end."""
        ...

    def centres(self) -> Floats:
        """Return the middle of every cell, (V, 2), in the coordinates of the outlines."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlaces:
    """Squares of side `size` from the corner (x0, y0), row by row northwards, as `SquareGrid` windows number them.

    `to_degrees` turns arrays of x and y into longitudes and latitudes (`fleetcount_analysis.places.to_degrees` makes it
    from a frame); without it outlines stay in the grid's own unit.

    Raises:
        RangeError: a side, number of columns or of rows that is not above 0.
    """

    x0: Fraction
    y0: Fraction
    size: Fraction
    columns: int
    rows: int
    to_degrees: Callable[[Floats, Floats], tuple[Floats, Floats]] | None = None

    def __post_init__(self) -> None:
        """Check the form."""
        if self.size <= 0 or self.columns < 1 or self.rows < 1:
            raise RangeError("grid", (str(self.size), self.columns, self.rows), "a positive size, columns and rows")

    @property
    def values(self) -> int:
        """See `Places`."""
        return self.columns * self.rows

    @property
    def coordinates(self) -> str:
        """See `Places`."""
        return OWN_UNIT if self.to_degrees is None else DEGREES

    def outline(self, value: int) -> Ring:
        """See `Places`."""
        row, column = divmod(value - 1, self.columns)
        corners = [(column + x, row + y) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
        return [(float(x), float(y)) for x, y in self._placed(np.array(corners, dtype=np.float64)).tolist()]

    def centres(self) -> Floats:
        """See `Places`."""
        row, column = np.divmod(np.arange(self.values), self.columns)
        return self._placed(np.stack([column + 0.5, row + 0.5], axis=1))

    def _placed(self, points: Floats) -> Floats:
        """Return points given in squares in the coordinates of the outlines."""
        x, y = (
            float(start) + float(self.size) * part for start, part in zip((self.x0, self.y0), points.T, strict=True)
        )
        return np.stack((x, y) if self.to_degrees is None else self.to_degrees(x, y), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HexagonPlaces:
    """H3 cells as 64-bit numbers; value v is the v-th. An outline that crosses 180 degrees continues above 180.

    Raises:
        ExportError: the package h3 is not installed.
        RangeError: a number that is not an H3 cell.
    """

    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the cells."""
        for cell in self.cells:
            if not _h3().is_valid_cell(f"{cell:x}"):
                raise RangeError("H3 cell", f"{cell:x}", "the number of a cell")

    @property
    def values(self) -> int:
        """See `Places`."""
        return len(self.cells)

    @property
    def coordinates(self) -> str:
        """See `Places`."""
        return DEGREES

    def outline(self, value: int) -> Ring:
        """See `Places`."""
        corners = [(float(east), float(north)) for north, east in _h3().cell_to_boundary(f"{self.cells[value - 1]:x}")]
        if max(corners)[0] - min(corners)[0] > 180:
            corners = [(east + 360 if east < 0 else east, north) for east, north in corners]
        return [*corners, corners[0]]

    def centres(self) -> Floats:
        """See `Places`."""
        middles = [_h3().cell_to_latlng(f"{cell:x}") for cell in self.cells]
        return np.array([(east, north) for north, east in middles], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlaces:
    """The places of a table of several signals, one of which has places: value v lies where `members[v - 1]` of it is.

    Many values lie at one place, one for each combination of the other signals.
    """

    of: Places
    members: tuple[int, ...]

    @property
    def values(self) -> int:
        """See `Places`."""
        return len(self.members)

    @property
    def coordinates(self) -> str:
        """See `Places`."""
        return self.of.coordinates

    def outline(self, value: int) -> Ring:
        """See `Places`."""
        return self.of.outline(self.members[value - 1])

    def centres(self) -> Floats:
        """See `Places`."""
        return np.asarray(self.of.centres()[np.array(self.members) - 1], dtype=np.float64)


def cells_inside(places: Places, area: Mapping[str, Any]) -> frozenset[int]:
    """Return the values whose middle lies inside an area: GeoJSON's Polygon, MultiPolygon or GeometryCollection, or
    Features of them (RFC 7946). A feature without a place (`"geometry": null`, section 3.2) adds nothing, nor does a
    point or a line in a GeometryCollection.

    Coordinates are those of the outlines. Holes are excluded; a centre on an edge counts on either side.

    Raises:
        RangeError: another kind of GeoJSON, another reference system, a ring of fewer than 4 positions, a position that
            is not two finite numbers, or a ring that crosses itself, of which nobody knows what is inside, or has a
            line by the longer way around the Earth; or an area with no middle inside, which would be a sum over
            nothing.
    """
    _check_system(places, area)
    centres, inside = places.centres(), np.zeros(places.values, dtype=bool)
    in_degrees = places.coordinates == DEGREES
    for number, polygon in enumerate(_polygons(area), start=1):
        rings = [_checked_ring(ring) for ring in polygon]
        if in_degrees:
            _check_across_180(number, rings)
        _check_crossings(number, rings)
        if not rings:
            continue
        points = centres.copy()
        if in_degrees:
            # A longitude is one modulo 360: each middle is tried where it is first met eastwards of the area's west.
            west = rings[0][:, 0].min()
            points[:, 0] = west + (points[:, 0] - west) % 360
        odd = np.zeros(places.values, dtype=bool)
        for ring in rings:
            odd ^= _turns(points, ring) != 0
        inside |= odd
    found = frozenset((np.flatnonzero(inside) + 1).tolist())
    if not found:
        raise RangeError(
            "area", "without the middle of a cell", "an area that holds a middle, in " + places.coordinates
        )
    return found


def _check_system(places: Places, area: Mapping[str, Any]) -> None:
    """Refuse an area that says (GeoJSON of 2008, section 3) that it is in another reference system than degrees."""
    system = area.get("crs")
    properties = system.get("properties") if isinstance(system, dict) else None
    name = properties.get("name") if isinstance(properties, dict) else None
    if places.coordinates == DEGREES and name is not None and str(name).rpartition(":")[2] not in _DEGREES_NAMED:
        raise RangeError("crs", repr(name)[:60], "longitude and latitude in degrees: EPSG:4326 or CRS84")


def _polygons(area: object) -> list[list[Any]]:
    """Return the polygons of a GeoJSON object, each as its rings."""
    found: dict[str, Any] = area if isinstance(area, dict) else {}
    kind = found.get("type")
    if kind == "FeatureCollection":
        return [one for feature in _listed(found, "features") for one in _polygons(feature)]
    if kind == "GeometryCollection":
        parts = [one for one in _listed(found, "geometries") if not _has_no_area(one)]
        return [one for geometry in parts for one in _polygons(geometry)]
    if kind == "Feature" and found.get("geometry", ()) is None:
        return []
    if kind == "Feature":
        return _polygons(found.get("geometry"))
    if kind == "Polygon":
        return [_listed(found, "coordinates")]
    if kind == "MultiPolygon":
        return [_listed({"a polygon": one}, "a polygon") for one in _listed(found, "coordinates")]
    allowed = "Polygon, MultiPolygon, GeometryCollection, Feature or FeatureCollection"
    raise RangeError("type of GeoJSON", repr(kind)[:40], allowed)


def _has_no_area(geometry: object) -> bool:
    """Return whether a part of a collection is a point or a line, as cutting a border leaves them beside polygons."""
    return isinstance(geometry, dict) and cast("dict[str, object]", geometry).get("type") in _WITHOUT_AREA


def _listed(found: Mapping[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, list):
        raise RangeError(f"{key} of GeoJSON", repr(value)[:40], "a list")
    return value


def _checked_ring(ring: Any) -> Floats:  # anything that JSON can hold
    try:
        corners = np.array([position[:2] for position in ring], dtype=np.float64)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise RangeError("ring", "not a list of positions", "positions of two numbers") from error
    if corners.ndim != 2 or len(corners) < 4 or corners.shape[1] != 2 or not np.all(np.isfinite(corners)):
        raise RangeError("ring", f"{len(corners)} positions", "4 or more of two finite numbers, the last as the first")
    return corners


def _check_across_180(number: int, rings: list[Floats]) -> None:
    """Refuse a line from 179 to -179 degrees: people mean the short way, RFC 7946 (section 3.1.9) the other one."""
    for place, ring in enumerate(rings, start=1):
        begin, end = ring[:, 0], np.roll(ring[:, 0], -1)
        steps = np.abs(end - begin)
        if (wrong := (steps > 180) & (steps < 360)).any():
            at = int(np.argmax(wrong))
            raise RangeError(
                f"ring {place} of polygon {number}",
                f"a line from longitude {begin[at]:.9g} to {end[at]:.9g}",
                "lines over at most 180 degrees, or all 360; an area across 180 is cut there, or goes on above 180",
            )


def _check_crossings(number: int, rings: list[Floats]) -> None:
    for place, ring in enumerate(rings, start=1):
        crossing = _crossing_of(ring)
        if crossing is not None:
            name, point = f"ring {place} of polygon {number}", ", ".join(f"{one:.9g}" for one in crossing)
            raise RangeError(name, f"crossing itself at [{point}]", "a ring whose lines do not cross")


def _crossing_of(ring: Floats) -> Floats | None:
    """Return a point at which two lines of a ring cross, None if there is none.

    Lines that only touch do not cross, nor do those that cross by less than a billionth of the ring's extent, which is
    rounding. The time is that of the pairs of lines which overlap in x, or in y if those are fewer.
    """
    ends = np.roll(ring, -1, axis=0)
    low, high, slack = np.minimum(ring, ends), np.maximum(ring, ends), _ROUNDING * np.ptp(ring, axis=0).max()
    orders = [np.argsort(low[:, axis]) for axis in (0, 1)]
    lasts = [np.searchsorted(low[order, axis], high[order, axis], "right") for axis, order in enumerate(orders)]
    axis = int(lasts[1].sum() < lasts[0].sum())
    order, last = orders[axis], lasts[axis]
    first, step = np.arange(len(ring)), 1
    while (first := first[first + step < last[first]]).size:
        one, other = order[first], order[first + step]
        a, b, c, d = ring[one], ends[one], ring[other], ends[other]
        from_other, to_other, from_one, to_one = _beside(c, d, a), _beside(c, d, b), _beside(a, b, c), _beside(a, b, d)
        apart = np.minimum.reduce([np.abs(from_other), np.abs(to_other), np.abs(from_one), np.abs(to_one)]) > slack
        crossed = apart & ((from_other > 0) != (to_other > 0)) & ((from_one > 0) != (to_one > 0))
        if crossed.any():
            at = int(np.argmax(crossed))
            share = from_other[at] / (from_other[at] - to_other[at])
            return np.asarray(a[at] + share * (b[at] - a[at]), dtype=np.float64)
        step += 1
    return None


def _beside(start: Floats, end: Floats, point: Floats) -> Floats:
    """Return how far points lie beside lines, on the left above 0; 0 where start and end are one."""
    along, to = end - start, point - start
    length = np.hypot(along[:, 0], along[:, 1])
    across = along[:, 0] * to[:, 1] - along[:, 1] * to[:, 0]
    return np.divide(across, length, out=np.zeros_like(across), where=length > 0)


def _turns(points: Floats, ring: Floats) -> NDArray[np.int64]:
    """Return for every point how many times the ring goes around it: crossings of a ray to the east, up less down."""
    turns = np.zeros(len(points), dtype=np.int64)
    for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        across = (points[:, 1] < y0) != (points[:, 1] < y1)
        if y0 != y1:
            east = across & (points[:, 0] < x0 + (points[:, 1] - y0) * (x1 - x0) / (y1 - y0))
            turns += np.where(east, 1 if y1 > y0 else -1, 0)
    return turns


def _h3() -> Any:  # the library has no types
    try:
        import h3  # Imported here: only hexagons need it, and not every installation has it.
    except ModuleNotFoundError as error:
        raise ExportError("H3 cells need the package h3, which comes with fleetcount[simulator]") from error
    return h3
