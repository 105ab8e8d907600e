"""The demo's cars from SUMO: a simulation of a small town, and each car's position and speed in each window.

Every car is one vehicle of the demo and keeps its index over all windows. It knows no mechanism and tosses no coin.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import Bins, SquareGrid

from fleetcount_simulator.demo_scenarios import LOCATION, SPEED, Fleet, Scenario, Sighting, positions, speeds
from fleetcount_simulator.populations.sumo import SumoPrograms, sumo_home
from fleetcount_simulator.populations.sumo_drive import LIBRARIES, Drive

MOST_CARS: Final = 5_000
"""More cars would jam the streets of this town."""
WINDOW_S: Final = 60
"""Simulated seconds from one window to the next."""
SUMO_GRID: Final = SquareGrid(x0=Fraction(-25), y0=Fraction(-25), size=Fraction(250), columns=9, rows=9)
"""Over the whole town: 11 blocks of 200 m each way."""
_CROSSINGS: Final = 12
_BLOCK_M: Final = 200
_FIRST_S: Final = 180
_ENTERING_S: Final = 120
_LONGEST_S: Final = 900.0


def find_sumo() -> Path:
    """Return the directory of SUMO.

    Raises:
        UsageError: SUMO, or the library that drives it, is not installed; the message names the extra.
    """
    if find_spec("libsumo") is None and find_spec("traci") is None:
        raise UsageError("--sumo needs the extra traffic: pip install 'fleetcount[traffic]'")
    return sumo_home()


def drive_fleet(vehicles: int, seed: int, windows: int) -> list[Fleet]:
    """Return the position of each of `vehicles` cars at the moment of each window, from a simulation by SUMO.

    A car that waits to enter has no position.

    Raises:
        UsageError: SUMO is not installed, fails, or takes longer than a quarter of an hour.
    """
    home = find_sumo()
    with tempfile.TemporaryDirectory(prefix="fleetcount-sumo-") as name:
        directory = Path(name)
        network = _town(SumoPrograms(home), directory)
        plan = Drive(
            library=LIBRARIES[0],
            program=str(home / "bin" / "sumo"),
            network=str(network),
            vehicles=vehicles,
            seed=seed,
            entering_s=_ENTERING_S,
            moments=tuple(_FIRST_S + WINDOW_S * window for window in range(windows)),
        )
        places = _driven(plan, home, directory)
    return [[_sighting(moment.get(str(car))) for car in range(vehicles)] for moment in places]


def sumo_position(fleets: Sequence[Fleet]) -> Scenario:
    """Ask every car for its cell of a 250 m grid, once per fleet (a window each)."""
    return Scenario(
        name="sumo-town-cells",
        question="In which cell of a 250 m grid are you now?",
        signal=LOCATION,
        domain=SUMO_GRID,
        readings=positions(fleets),
    )


def sumo_speed(fleets: Sequence[Fleet]) -> Scenario:
    """Ask every car whether it is faster than 30 km/h, once per fleet (a window each); all streets allow 50."""
    return Scenario(
        name="sumo-town-speed",
        question="Are you faster than 30 km/h?",
        signal=SPEED,
        domain=Bins(edges=(Fraction(30),), open_above=True, unit="km/h"),
        readings=speeds(fleets),
    )


def _town(sumo: SumoPrograms, directory: Path) -> Path:
    path = directory / "town.net.xml"
    shape = ("--grid", "--grid.number", str(_CROSSINGS), "--grid.length", str(_BLOCK_M))
    sumo.run("netgenerate", (*shape, "--output-file", str(path)), directory, 60)
    return path


def _driven(plan: Drive, home: Path, directory: Path) -> list[dict[str, list[float]]]:
    """Run the simulation in a process of its own, with libsumo or, where that fails, with traci."""
    said = ""
    for library in LIBRARIES:
        (directory / "plan.json").write_text(replace(plan, library=library).to_json(), encoding="utf-8")
        module = "fleetcount_simulator.populations.sumo_drive"
        command = [sys.executable, "-m", module, str(directory / "plan.json"), str(directory / "places.json")]
        try:
            done = subprocess.run(  # noqa: S603 this interpreter, arguments built here
                command,
                cwd=directory,
                env=os.environ | {"SUMO_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"--sumo: SUMO was not ready after {_LONGEST_S:g} s; take fewer --vehicles") from None
        if done.returncode == 0:
            return cast("list[dict[str, list[float]]]", json.loads((directory / "places.json").read_text()))
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1][:200]
    raise UsageError(f"--sumo: SUMO cannot drive: {said}")


def _sighting(place: list[float] | None) -> Sighting | None:
    # A car that SUMO teleports out of a jam has no position for a moment: SUMO gives nan or a huge number.
    if place is None or not all(map(math.isfinite, place)) or abs(place[0]) > 1e6:
        return None
    return Sighting(x=place[0], y=place[1], speed_mps=max(0.0, place[2]))
