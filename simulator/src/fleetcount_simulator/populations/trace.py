"""Kind `trace`: a table of sightings (CSV, .csv.gz or Parquet), read once, in pieces.

One row a vehicle and moment, sorted by time. Positions are metres (columns x, y) or degrees (lon, lat); speed and road
edge are read when their columns are named.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fleetcount_simulator.cells import MOVING, CellSpec, declare, read
from fleetcount_simulator.cells.model import Frame, Positions
from fleetcount_simulator.cells.settings import Key, Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import CLOCK_KEYS, FLEET_KEYS, clock_of, fleet_of
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.snapshots import Clock, Fleet, Recorder, Sightings
from fleetcount_simulator.populations.tables import Batch, read_table

_LATITUDE: Final = re.compile(r"lat", re.IGNORECASE)
_DEGREES: Final = re.compile(r"(lat|latitude|lon|lng|long|longitude)(_?deg(rees)?)?$", re.IGNORECASE)
ABOUT: Final = "sightings (CSV or Parquet), sorted by time: time, vehicle, x and y or lon and lat, perhaps speed, edge"
CELLS: Final = MOVING
KEYS: Final = (
    Key(name="file", about="the table: .csv, .csv.gz or .parquet", example='"buses.csv.gz"'),
    *FLEET_KEYS,
    *CLOCK_KEYS,
    Key(name="time", about='column of the time; default "time"', example='"timestamp"'),
    Key(
        name="time_form",
        about='"seconds" (default), or "utc": moments like 2026-01-26T15:57:02Z, read as seconds since 1970',
        example='"utc"',
    ),
    Key(name="vehicle", about='column of the vehicle\'s name; default "vehicle"', example='"vehicle_id"'),
    Key(name="x", about='column of x in metres; default "x", or "lon" and "lat" when given', example='"x"'),
    Key(name="y", about='column of y in metres; default "y"', example='"y"'),
    Key(name="lon", about="column of the longitude in degrees, instead of x", example='"longitude"'),
    Key(name="lat", about="column of the latitude in degrees, instead of y", example='"latitude"'),
    Key(name="speed", about="column of the speed in metres a second", example='"speed_mps"'),
    Key(name="edge", about="column of the road edge's name", example='"edge"'),
)


def build(settings: Settings, question: Mapping[str, Any], seed: int) -> Population:
    """Return the vehicles of a table.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    path, columns = settings.file("file"), _columns(settings)
    asked = read(question, settings.folder, CELLS)
    return recorded(path, columns, asked, clock_of(settings, None), fleet_of(settings, seed))


def recorded(path: Path, columns: Mapping[str, Column], asked: CellSpec, clock: Clock, fleet: Fleet) -> Population:
    """Return the vehicles of a table whose columns are known, by the roles time, vehicle, x, y, speed and edge."""
    degrees = columns["x"].high == 180
    frame = Frame(unit="deg" if degrees else "m", speed="speed" in columns, edges="edge" in columns)
    recorder = Recorder(declare(asked, frame), clock, path.name)
    suspected = asked.kind == "square" and not degrees and all(_DEGREES.match(columns[one].name) for one in "xy")
    for piece in _pieces(path, columns, degrees=degrees):
        if suspected:
            _refuse_degrees(piece.positions, path.name, columns["x"].name, columns["y"].name)
        recorder.add(piece)
    return recorder.close(fleet)


def _refuse_degrees(positions: Positions, file: str, x: str, y: str) -> None:
    """Refuse columns with the names and the ranges of longitude and latitude as metres: all would lie in one square."""
    if (abs(positions.x) <= 180).all() and (abs(positions.y) <= 180).all():
        lon, lat = (y, x) if _LATITUDE.match(x) else (x, y)
        raise ScenarioError(
            f"{file}: {x} and {y} hold degrees, but population.x and y are metres: write lon = {lon!r} and"
            f" lat = {lat!r} in [population] in their place, and origin or bounds in [question]; squares are metres"
        )


def _pieces(path: Path, columns: Mapping[str, Column], *, degrees: bool) -> Iterator[Sightings]:
    for batch in read_table(path, columns):
        positions = Positions(
            x=batch.numbers["x"],
            y=batch.numbers["y"],
            speed_mps=batch.numbers.get("speed"),
            edges=batch.texts.get("edge"),
        )
        if degrees:
            _check_fix(batch)
        times, vehicles = batch.numbers["time"], batch.texts["vehicle"]
        yield Sightings(times=times, vehicles=vehicles, positions=positions, place=batch.place.of)


def _check_fix(batch: Batch) -> None:
    """Refuse longitude 0, latitude 0: what a receiver writes that does not know where it is."""
    lost = (batch.numbers["x"] == 0) & (batch.numbers["y"] == 0)
    if lost.any():
        place = batch.place.of(int(lost.argmax()))
        raise ScenarioError(f"{place}: longitude 0, latitude 0 is a receiver without a fix; leave such rows out")


def _columns(settings: Settings) -> dict[str, Column]:
    in_degrees = settings.has("lon") or settings.has("lat")
    if in_degrees and (settings.has("x") or settings.has("y")):
        raise settings.wrong("x", "and y are metres, lon and lat degrees: name one pair")
    moments = settings.choice("time_form", ("seconds", "utc"), "seconds") == "utc"
    columns = {
        "time": Column(name=settings.printable("time", 200, "time"), form="utc" if moments else "number", low=0),
        "vehicle": Column(name=settings.printable("vehicle", 200, "vehicle")),
    }
    if in_degrees:
        columns["x"] = Column(name=settings.printable("lon", 200, "lon"), form="number", low=-180, high=180)
        columns["y"] = Column(name=settings.printable("lat", 200, "lat"), form="number", low=-90, high=90)
    else:
        columns["x"] = Column(name=settings.printable("x", 200, "x"), form="number", low=-1e9, high=1e9)
        columns["y"] = Column(name=settings.printable("y", 200, "y"), form="number", low=-1e9, high=1e9)
    if settings.has("speed"):
        columns["speed"] = Column(name=settings.printable("speed", 200), form="number", low=0, high=1000)
    if settings.has("edge"):
        columns["edge"] = Column(name=settings.printable("edge", 200))
    return columns
