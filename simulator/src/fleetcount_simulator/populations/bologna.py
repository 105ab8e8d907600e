"""Kind `bologna`: the morning peak of Bologna that comes with the repository, every fifth minute from 10 to 70.

Thirteen epochs, 9,000 vehicles or so, at most 1,300 on the road at once; positions in metres, speeds, no edges.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_transport.settings import settings
from fleetcount_transport.toml_values import shown

from fleetcount_simulator.cells import RECORDED, read
from fleetcount_simulator.demo_scenarios import BOLOGNA_FILE, Sighting, Traces
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import TraceKeys
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.shipped import shipped
from fleetcount_simulator.populations.snapshots import check_vehicle
from fleetcount_simulator.populations.tables import read_table
from fleetcount_simulator.populations.trace import recorded

ABOUT: Final = "cars and buses of Bologna, one morning peak hour (comes with the repository)"
CELLS: Final = RECORDED


@settings
class Keys(TraceKeys):
    """[population] of kind `bologna`."""


_COLUMNS: Final[Mapping[str, Column]] = {
    "time": Column(name="t", form="number", low=0),
    "vehicle": Column(name="vehicle"),
    "x": Column(name="x", form="number", low=-1e6, high=1e6),
    "y": Column(name="y", form="number", low=-1e6, high=1e6),
    "speed": Column(name="speed_mps", form="number", low=0, high=1000),
}


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return Bologna's morning.

    Raises:
        ScenarioError: a key that cannot be used, or an installation without the data.
    """
    path = shipped("bologna", BOLOGNA_FILE)
    asked = read(question, folder, CELLS)
    return recorded(path, _COLUMNS, asked, keys.clock(Fraction(0)), keys.fleet(seed))


def read_traces(path: Path) -> Traces:
    """Read where every vehicle is at each moment, from a table like the shipped one.

    Raises:
        ScenarioError: what `read_table` refuses, no rows, a vehicle's name that does not print, a vehicle twice at one
            moment; with the line.
    """
    traces: Traces = {}
    for batch in read_table(path, _COLUMNS):
        numbers = (batch.numbers[role].tolist() for role in ("time", "x", "y", "speed"))
        rows = zip(batch.texts["vehicle"], *numbers, strict=True)
        for row, (vehicle, moment, x, y, speed_mps) in enumerate(rows):
            check_vehicle(vehicle, row, batch.place.of)
            sighting = Sighting(x=x, y=y, speed_mps=speed_mps)
            if traces.setdefault(moment, {}).setdefault(vehicle, sighting) is not sighting:
                raise ScenarioError(f"{batch.place.of(row)}: vehicle {shown(vehicle)} occurs twice at {moment:g}")
    if not traces:
        raise ScenarioError(f"{path.name}: no rows")
    return traces
