"""Kind `fcd`: SUMO's floating-car data (`--fcd-output`) as XML, plain or .gz, as CSV or as Parquet, streamed.

Vehicles only; persons and containers are skipped. Positions are metres, or degrees when SUMO wrote them with
`--fcd-output.geo`. No element is kept and no entity expanded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import shown

from fleetcount_simulator.cells import RECORDED, CellSpec, declare, read
from fleetcount_simulator.cells.model import Frame, Positions, Roads
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.cells.xml_stream import elements
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import TraceKeys
from fleetcount_simulator.populations.columns import BATCH, Column, Rows
from fleetcount_simulator.populations.snapshots import Clock, Fleet, Recorder, Sightings
from fleetcount_simulator.populations.tables import Batch, check_fix, column_names, in_range, parsed_numbers, read_table

ABOUT: Final = "SUMO floating-car data (--fcd-output), .xml, .xml.gz, .csv or .parquet"
CELLS: Final = RECORDED


@settings
class Keys(TraceKeys):
    """[population] of kind `fcd`."""

    file: Path = setting(
        Settings.file, about="the floating-car data: .xml, .csv, each perhaps .gz, or .parquet", example='"fcd.xml.gz"'
    )
    geo: bool | None = setting(
        Table.boolean,
        default=None,
        about="true when x, y are longitude and latitude (--fcd-output.geo); default false, unless all look like them",
        example="true",
    )


_PASSED_OVER: Final = frozenset({"person", "container"})
_NEEDED: Final = ("id", "x", "y")
_NEEDED_FOR: Final[Mapping[str, tuple[str, ...]]] = {"speed": ("speed",), "edges": ("lane",)}


@dataclass(slots=True)
class _Rows:
    """The vehicles of a piece: the texts of the file, and the line of each."""

    time: list[str] = field(default_factory=list[str])
    vehicle: list[str] = field(default_factory=list[str])
    x: list[str] = field(default_factory=list[str])
    y: list[str] = field(default_factory=list[str])
    speed: list[str] = field(default_factory=list[str])
    edge: list[str] = field(default_factory=list[str])
    lines: list[int] = field(default_factory=list[int])


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return the vehicles of floating-car data.

    Raises:
        ScenarioError: a key or an element that cannot be used; with the dotted key, or the file and line.
    """
    asked = read(question, folder, CELLS)
    return recorded(keys.file, asked, keys.clock(Fraction(0)), keys.fleet(seed), geo=keys.geo)


def recorded(
    path: Path,
    asked: CellSpec,
    clock: Clock,
    fleet: Fleet,
    roads: Roads | None = None,
    *,
    geo: bool | None = None,
) -> Population:
    """Return the vehicles of a file; `roads` is SUMO's network, where it is known.

    Raises:
        ScenarioError: the file cannot be used; or `geo` is None and places are asked of what may be degrees.
    """
    suspected = geo is None and roads is None and asked.kind in ("square", "h3")
    frame = Frame(unit="deg" if geo else "m", speed=True, edges=True, roads=roads)
    recorder = Recorder(declare(asked, frame), clock, path.name)
    needed = (*_NEEDED, *_NEEDED_FOR.get(asked.kind, ()))
    for piece in _pieces(path, needed, geo=bool(geo)):
        suspected = suspected and bool((abs(piece.positions.x) <= 180).all() and (abs(piece.positions.y) <= 90).all())
        if geo:
            check_fix(piece.positions.x, piece.positions.y, piece.place)
        recorder.add(piece)
    population = recorder.close(fleet)
    if suspected:
        said = "all x are within 180 and all y within 90, as longitudes and latitudes are"
        raise ScenarioError(f"{path.name}: {said}; write geo = true in [population], or geo = false if they are metres")
    return population


def _pieces(path: Path, needed: tuple[str, ...], *, geo: bool) -> Iterator[Sightings]:
    if path.suffix.lower() == ".parquet" or ".csv" in path.suffixes:
        for batch in read_table(path, _columns(needed, _written_first(path), geo=geo), ";", only_with="lane"):
            yield _of_table(batch)
    else:
        for rows in _rows(path, needed):
            yield _sightings(rows, path.name, geo=geo)


def _written_first(path: Path) -> str:
    """Return after what a table names its columns: "vehicle", or the person or container that was written first."""
    known = column_names(path, ";")
    return next((name for name in ("vehicle", *sorted(_PASSED_OVER)) if f"{name}_id" in known), "vehicle")


def _columns(needed: tuple[str, ...], first: str, *, geo: bool) -> dict[str, Column]:
    """Return the columns of SUMO's tables by the attribute of its XML.

    The lane is always read: a table names its columns by what is written first, and persons and containers stand in
    the same ones as vehicles, but on no lane. On none is also the row of a second in which nobody drove.
    """
    x, y = (180, 90) if geo else (1e9, 1e9)
    columns = {
        "time": Column(name="timestep_time", form="number", low=0),
        "id": Column(name=f"{first}_id"),
        "x": Column(name=f"{first}_x", form="number", low=-x, high=x),
        "y": Column(name=f"{first}_y", form="number", low=-y, high=y),
        "speed": Column(name=f"{first}_speed", form="number", low=0, high=1000),
        "lane": Column(name=f"{first}_lane"),
    }
    return {role: column for role, column in columns.items() if role in ("time", "lane", *needed)}


def _of_table(batch: Batch) -> Sightings:
    lanes = batch.texts.get("lane", ())
    positions = Positions(
        x=batch.numbers["x"],
        y=batch.numbers["y"],
        speed_mps=batch.numbers.get("speed"),
        edges=[lane.rpartition("_")[0] for lane in lanes] if lanes else None,
    )
    times, vehicles = batch.numbers["time"], batch.texts["id"]
    return Sightings(times=times, vehicles=vehicles, positions=positions, place=batch.place.of)


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[_Rows]:
    file, rows, time, keys = path.name, _Rows(), "", set(needed)
    for depth, name, attributes, line in elements(path, "fcd-export"):
        if depth == 1:
            if name != "timestep" or "time" not in attributes:
                raise _unexpected(file, line, name, "timestep", ("time",), attributes)
            time = attributes["time"]
            if len(rows.lines) >= BATCH:
                yield rows
                rows = _Rows()
        elif depth == 2 and name not in _PASSED_OVER:
            if name != "vehicle" or not attributes.keys() >= keys:
                raise _unexpected(file, line, name, "vehicle", needed, attributes)
            rows.time.append(time)
            rows.vehicle.append(attributes["id"])
            rows.x.append(attributes["x"])
            rows.y.append(attributes["y"])
            rows.speed.append(attributes.get("speed", "0"))
            rows.edge.append(attributes.get("lane", "").rpartition("_")[0])
            rows.lines.append(line)
    yield rows


def _unexpected(
    file: str, line: int, name: str, expected: str, needed: tuple[str, ...], attributes: Mapping[str, str]
) -> ScenarioError:
    if name != expected:
        return ScenarioError(f"{file} line {line}: the element {shown(name)} where {expected!r} is expected")
    missing = next(key for key in needed if key not in attributes)
    return ScenarioError(f"{file} line {line}: a {name} without {missing}")


def _sightings(rows: _Rows, file: str, *, geo: bool) -> Sightings:
    place = Rows(file, "line", rows.lines)
    columns = (
        (rows.time, Column(name="time", form="number", low=0)),
        (rows.x, Column(name="x", form="number", low=-180 if geo else -1e9, high=180 if geo else 1e9)),
        (rows.y, Column(name="y", form="number", low=-90 if geo else -1e9, high=90 if geo else 1e9)),
        (rows.speed, Column(name="speed", form="number", low=0, high=1000)),
    )
    time, x, y, speed = (
        in_range(parsed_numbers(cells, column.name, place), column, place) for cells, column in columns
    )
    positions = Positions(x=x, y=y, speed_mps=speed, edges=rows.edge)
    return Sightings(times=time, vehicles=rows.vehicle, positions=positions, place=place.of)
