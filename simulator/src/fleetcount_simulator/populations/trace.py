"""Kind `trace`: a table of sightings (CSV, .csv.gz or Parquet), read once, in pieces.

One row per vehicle and moment, sorted by time. Positions are metres (columns x, y) or degrees (lon, lat); speed and
road edge are read when their columns are named.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.cells import RECORDED, CellSpec, declare, read
from fleetcount_simulator.cells.model import Floats, Frame, Positions
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import TraceKeys
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.snapshots import Clock, Fleet, Recorder, Sightings
from fleetcount_simulator.populations.tables import check_fix, read_table

_LATITUDE: Final = re.compile(r"lat", re.IGNORECASE)
_DEGREES: Final = re.compile(r"(lat|latitude|lon|lng|long|longitude)(_?deg(rees)?)?$", re.IGNORECASE)
_IN_MPS: Final = {
    "m/s": Fraction(1),
    "km/h": Fraction(5, 18),
    "mph": Fraction("0.44704"),
    "knots": Fraction(463, 900),
}
_NO_MPS: Final = re.compile(
    r"km|kilom|kph|mph|miles?|knots?|feet|(^|[^a-z])(kn|kts?|sog|mi|ft|cm)([^a-z]|$)", re.IGNORECASE
)
ABOUT: Final = "sightings (CSV or Parquet), sorted by time: time, vehicle, x and y or lon and lat, perhaps speed, edge"
CELLS: Final = RECORDED


@settings
class Keys(TraceKeys):
    """[population] of kind `trace`."""

    file: Path = setting(Settings.file, about="the table: .csv, .csv.gz or .parquet", example='"buses.csv.gz"')
    delimiter: str = setting(
        Table.choice,
        (",", ";", "\t", "|"),
        default=",",
        about='between fields of a CSV: "," (default), ";", "\\t" or "|"',
        example='";"',
    )
    time: str = setting(
        Table.printable, 200, default="time", about='column of the time; default "time"', example='"timestamp"'
    )
    time_form: str = setting(
        Table.choice,
        ("seconds", "utc"),
        default="seconds",
        about='"seconds" (default), or "utc": moments like 2026-01-26T15:57:02Z or 2026-01-26 16:57:02+01, without an'
        " offset UTC, read as seconds since 1970",
        example='"utc"',
    )
    vehicle: str = setting(
        Table.printable,
        200,
        default="vehicle",
        about='column of the vehicle\'s name; default "vehicle"',
        example='"vehicle_id"',
    )
    x: str | None = setting(
        Table.printable,
        200,
        default=None,
        about='column of x in metres; default "x", or "lon" and "lat" when given',
        example='"x"',
    )
    y: str | None = setting(
        Table.printable, 200, default=None, about='column of y in metres; default "y"', example='"y"'
    )
    lon: str | None = setting(
        Table.printable,
        200,
        default=None,
        about="column of the longitude in degrees, instead of x",
        example='"longitude"',
    )
    lat: str | None = setting(
        Table.printable,
        200,
        default=None,
        about="column of the latitude in degrees, instead of y",
        example='"latitude"',
    )
    speed: str | None = setting(
        Table.printable, 200, default=None, about="column of the speed in `speed_unit`", example='"speed_mps"'
    )
    speed_unit: str | None = setting(
        Table.choice,
        tuple(_IN_MPS),
        default=None,
        about='"m/s" (default), "km/h", "mph" or "knots"; required where the column is named after another than m/s',
        example='"km/h"',
    )
    edge: str | None = setting(
        Table.printable, 200, default=None, about="column of the road edge's name", example='"edge"'
    )


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return the vehicles of a table.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    columns = _columns(keys)
    asked = read(question, folder, CELLS)
    clock, fleet, unit = keys.clock(None), keys.fleet(seed), _IN_MPS[keys.speed_unit or "m/s"]
    return recorded(keys.file, columns, asked, clock, fleet, keys.delimiter, unit)


def recorded(
    path: Path,
    columns: Mapping[str, Column],
    asked: CellSpec,
    clock: Clock,
    fleet: Fleet,
    delimiter: str = ",",
    unit: Fraction = Fraction(1),
) -> Population:
    """Return the vehicles of a table whose columns are known, by the roles time, vehicle, x, y, speed and edge.

    `unit` is what the column of the speed is in, in metres a second.
    """
    degrees = columns["x"].high == 180
    frame = Frame(unit="deg" if degrees else "m", speed="speed" in columns, edges="edge" in columns)
    recorder = Recorder(declare(asked, frame), clock, path.name)
    suspected = asked.kind == "square" and not degrees and all(_DEGREES.match(columns[one].name) for one in "xy")
    for piece in _pieces(path, columns, delimiter, unit):
        if suspected:
            _refuse_degrees(piece.positions, path.name, columns["x"].name, columns["y"].name)
        if degrees:
            check_fix(piece.positions.x, piece.positions.y, piece.place)
        recorder.add(piece)
    return recorder.close(fleet)


def _refuse_degrees(positions: Positions, file: str, x: str, y: str) -> None:
    """Refuse columns with the names and ranges of degrees as metres: all positions would lie in one square."""
    if (abs(positions.x) <= 180).all() and (abs(positions.y) <= 180).all():
        lon, lat = (y, x) if _LATITUDE.match(x) else (x, y)
        raise ScenarioError(
            f"{file}: {x} and {y} hold degrees, but population.x and y are metres: write lon = {lon!r} and"
            f" lat = {lat!r} in [population] in their place, and origin or bounds in [question]; squares are metres"
        )


def _pieces(path: Path, columns: Mapping[str, Column], delimiter: str, unit: Fraction) -> Iterator[Sightings]:
    for batch in read_table(path, columns, delimiter):
        speed = batch.numbers.get("speed")
        positions = Positions(
            x=batch.numbers["x"],
            y=batch.numbers["y"],
            speed_mps=None if speed is None else _in_mps(speed, unit),
            edges=batch.texts.get("edge"),
        )
        times, vehicles = batch.numbers["time"], batch.texts["vehicle"]
        yield Sightings(times=times, vehicles=vehicles, positions=positions, place=batch.place.of)


def _in_mps(speeds: Floats, unit: Fraction) -> Floats:
    """Return speeds in metres a second, each rounded once: so 6.1 km/h is 6.1 again where a question asks for km/h."""
    if unit == 1:
        return speeds
    found, places = np.unique(speeds, return_inverse=True)
    return np.array([float(unit * Fraction(repr(one))) for one in found.tolist()])[places]


def _columns(keys: Keys) -> dict[str, Column]:
    in_degrees = keys.lon is not None or keys.lat is not None
    if in_degrees and (keys.x is not None or keys.y is not None):
        raise UnfitKeyError("x", problem="and y are metres, lon and lat degrees: name one pair")
    columns = {
        "time": Column(name=keys.time, form="utc" if keys.time_form == "utc" else "number", low=0),
        "vehicle": Column(name=keys.vehicle),
    }
    if in_degrees:
        columns["x"] = Column(name=keys.lon or "lon", form="number", low=-180, high=180)
        columns["y"] = Column(name=keys.lat or "lat", form="number", low=-90, high=90)
    else:
        columns["x"] = Column(name=keys.x or "x", form="number", low=-1e9, high=1e9)
        columns["y"] = Column(name=keys.y or "y", form="number", low=-1e9, high=1e9)
    if keys.speed is None and keys.speed_unit is not None:
        raise UnfitKeyError("speed_unit", problem="is given without population.speed, the column of the speed")
    if keys.speed is not None:
        if keys.speed_unit is None and _NO_MPS.search(keys.speed):
            raise UnfitKeyError("speed_unit", allowed=f"one of {', '.join(_IN_MPS)}: {keys.speed!r} may be no m/s")
        columns["speed"] = Column(name=keys.speed, form="number", low=0, high=1000)
    if keys.edge is not None:
        columns["edge"] = Column(name=keys.edge)
    given = dict[str, str]()
    for role, column in columns.items():
        key = {"x": "lon", "y": "lat"}.get(role, role) if in_degrees else role
        if column.name in given:
            raise UnfitKeyError(key, problem=f"is {column.name!r}, the column of population.{given[column.name]} too")
        given[column.name] = key
    return columns
