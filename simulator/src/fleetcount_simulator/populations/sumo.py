"""Kind `sumo`: traffic that SUMO simulates, headless, on a generated grid or on a given network (extra `traffic`).

SUMO runs once, in a temporary directory, with the population's seed; its floating-car data are streamed into a
population and the directory is removed. No other file is written, unless a given configuration asks SUMO for one.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells import RECORDED, read
from fleetcount_simulator.cells.model import Roads
from fleetcount_simulator.cells.road_network import read_network
from fleetcount_simulator.cells.settings import ANY_LENGTH, Settings
from fleetcount_simulator.cells.xml_stream import elements
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import TraceKeys
from fleetcount_simulator.populations.fcd import recorded

ABOUT: Final = "traffic that SUMO simulates on a generated grid or a given network (extra: traffic)"
CELLS: Final = RECORDED
_BLOCK: Final = Range("[50, 5000]")
_TRIPS: Final = 4
"""Spawn key of the draw of trips under a population's seed."""
_GRID_KEYS: Final = ("columns", "rows", "block_m")
_QUIET: Final = ("--no-step-log", "--no-warnings", "--duration-log.disable", "--xml-validation", "never")
# A configuration may ask for degrees, for times of a clock, for other attributes or for a prefix to every file's name.
_AS_READ: Final = (
    *("--fcd-output.geo", "false", "--human-readable-time", "false"),
    *("--fcd-output.attributes", "x,y,speed,lane", "--output-prefix", ""),
)


@settings
class Keys(TraceKeys):
    """[population] of kind `sumo`: a configuration, a network, or a generated grid."""

    config: Path | None = setting(
        Settings.file,
        default=None,
        about="a configuration to run (.sumocfg) instead of a grid",
        example='"run.sumocfg"',
    )
    network: Path | None = setting(
        Settings.file,
        default=None,
        about="a network (.net.xml, .net.xml.gz) instead of a grid",
        example='"town.net.xml.gz"',
    )
    routes: Path | None = setting(
        Settings.file,
        default=None,
        about="with network: its routes; default: random trips",
        example='"town.rou.xml"',
    )
    columns: int | None = setting(
        Table.integer, 2, 100, default=None, about="grid: streets from west to east, 2 to 100; default 8", example="10"
    )
    rows: int | None = setting(
        Table.integer,
        2,
        100,
        default=None,
        about="grid: streets from south to north, 2 to 100; default 8",
        example="10",
    )
    block_m: Fraction | None = setting(
        Table.number,
        _BLOCK,
        default=None,
        about="grid: metres between crossings, 50 to 5000; default 200",
        example="150",
    )
    vehicles: int | None = setting(
        Table.integer,
        2,
        100_000,
        default=None,
        about="random trips without routes, 2 to 100000; default 500",
        example="2000",
    )
    duration_s: int | None = setting(
        Table.integer,
        60,
        86_400,
        default=None,
        about="simulated seconds, 60 to 86400; default 1800",
        example="3600",
    )
    step_s: int = setting(
        Table.integer,
        1,
        3600,
        default=30,
        about="seconds between sightings, 1 to 3600; of config a multiple of its step-length; default 30",
        example="10",
    )
    timeout_s: Fraction = setting(
        Table.number,
        ANY_LENGTH,
        default=Fraction(600),
        about="the longest SUMO may take; default 600",
        example="1200",
    )

    def __post_init__(self) -> None:
        if self.config is not None and (self.network is not None or self.routes is not None):
            raise UnfitKeyError("config", problem="names its own network and routes; give it alone")
        if self.routes is not None and self.network is None:
            raise UnfitKeyError("routes", problem="needs population.network, the network they were made for")
        for key in _GRID_KEYS:
            if getattr(self, key) is not None and (self.config is not None or self.network is not None):
                raise UnfitKeyError(key, problem="is for the generated grid; a network is given")
        if self.vehicles is not None and (self.config is not None or self.routes is not None):
            raise UnfitKeyError("vehicles", problem="is for random trips; routes are given")

    @property
    def seconds(self) -> int:
        """The simulated seconds, unless a configuration decides them."""
        return self.duration_s or 1800


@dataclass(frozen=True, slots=True)
class SumoPrograms:
    """SUMO's programs; `home` is the directory with their files."""

    home: Path

    def run(self, program: str, arguments: Sequence[str], directory: Path, timeout_s: float) -> None:
        """Run a program of SUMO to its end.

        Raises:
            ScenarioError: it failed or took too long; with its errors.
        """
        command = [str(self.home / "bin" / program), *arguments]
        environment = os.environ | {"SUMO_HOME": str(self.home)}
        try:
            done = subprocess.run(  # noqa: S603 SUMO's own program, arguments built here
                command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ScenarioError(f"population.timeout_s: {program} was not ready after {timeout_s:g} s") from error
        except OSError as error:
            raise ScenarioError(f"population.kind: {program} cannot be started: {error.strerror}") from error
        if done.returncode < 0:
            raise ScenarioError(f"population.kind: {program} was ended by signal {-done.returncode}")
        if done.returncode > 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("Error")] or done.stderr.splitlines()
            raise ScenarioError(f"population.kind: {program} ended with {done.returncode}: {' '.join(said)[:200]}")


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return the vehicles of a simulation by SUMO.

    Raises:
        ScenarioError: SUMO is not installed or fails, or a key cannot be used; with the dotted key.
    """
    asked = read(question, folder, CELLS)
    clock, fleet = keys.clock(Fraction(0)), keys.fleet(seed)
    sumo = SumoPrograms(sumo_home())
    with tempfile.TemporaryDirectory(prefix="fleetcount-sumo-") as name:
        directory = Path(name)
        arguments, roads = _drive(sumo, keys, seed, directory)
        data = directory / "fcd.xml.gz"
        ends = () if keys.config is not None and keys.duration_s is None else ("--end", str(keys.seconds))
        recording = ("--fcd-output", str(data), "--device.fcd.period", str(keys.step_s), "--seed", str(seed % 2**31))
        sumo.run("sumo", (*arguments, *ends, *recording, *_AS_READ, *_QUIET), directory, float(keys.timeout_s))
        _check_step(data, keys.step_s)
        return recorded(data, asked, clock, fleet, roads, geo=False)


def sumo_home() -> Path:
    """Return the directory of SUMO: that of the package `eclipse-sumo`, or SUMO_HOME.

    Raises:
        ScenarioError: SUMO is not installed; the message names the extra.
    """
    package = find_spec("sumo")
    places = list(package.submodule_search_locations or ()) if package is not None else []
    for place in (*places, os.environ.get("SUMO_HOME", "")):
        if place and shutil.which("sumo", path=str(Path(place) / "bin")):
            return Path(place)
    raise ScenarioError("population.kind: 'sumo' needs the extra traffic: pip install 'fleetcount[traffic]'")


def _check_step(data: Path, step_s: int) -> None:
    """Refuse data without two moments as close as asked: SUMO records at its own steps only, here of any length.

    Where a configuration skips the moments in which nobody drives, others may lie further apart.
    """
    moments = (float(one["time"]) for _, name, one, _ in elements(data, "fcd-export") if name == "timestep")
    shortest_s = np.inf
    for before, after in pairwise(moments):
        shortest_s = min(shortest_s, after - before)
        if shortest_s < step_s + 0.001:
            return
    if shortest_s < np.inf:
        hint = "give a multiple of the configuration's step-length"
        raise ScenarioError(f"population.step_s is {step_s}: SUMO recorded every {shortest_s:.15g} s; {hint}")


def _drive(sumo: SumoPrograms, keys: Keys, seed: int, directory: Path) -> tuple[tuple[str, ...], Roads | None]:
    """Return SUMO's arguments for configuration or network and routes, and the roads where they are known."""
    if keys.config is not None:
        return ("-c", str(keys.config.resolve())), None
    network = _grid(sumo, keys, directory) if keys.network is None else keys.network.resolve()
    roads = read_network(network)
    routes = _trips(roads, keys, seed, directory) if keys.routes is None else keys.routes.resolve()
    return ("-n", str(network), "-r", str(routes), "--ignore-route-errors", "true"), roads


def _grid(sumo: SumoPrograms, keys: Keys, directory: Path) -> Path:
    path = directory / "grid.net.xml"
    columns, rows, block = str(keys.columns or 8), str(keys.rows or 8), str(float(keys.block_m or 200))
    shape = ("--grid.x-number", columns, "--grid.y-number", rows)
    lengths = ("--grid.x-length", block, "--grid.y-length", block)
    sumo.run("netgenerate", ("--grid", *shape, *lengths, "--output-file", str(path)), directory, 60)
    return path


def _trips(roads: Roads, keys: Keys, seed: int, directory: Path) -> Path:
    """Write trips between random edges, departing evenly over the first three quarters of the time."""
    vehicles = keys.vehicles or 500
    if len(roads.names) < 2:
        raise ScenarioError("population.network: a trip needs two edges; the network has one")
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_TRIPS,)))
    starts = generator.integers(0, len(roads.names), vehicles)
    ends = (starts + generator.integers(1, len(roads.names), vehicles)) % len(roads.names)
    departures = np.sort(generator.uniform(0, 0.75 * keys.seconds, vehicles))
    path = directory / "trips.trips.xml"
    with path.open("w", encoding="utf-8") as file:
        file.write("<routes>\n")
        for trip, (start, end, departure) in enumerate(zip(starts, ends, departures, strict=True)):
            places = f"from={_quoted(roads.names[start])} to={_quoted(roads.names[end])}"
            file.write(f'  <trip id="{trip}" depart="{departure:.2f}" {places}/>\n')
        file.write("</routes>\n")
    return path


def _quoted(name: str) -> str:
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return f'"{escaped}"'
