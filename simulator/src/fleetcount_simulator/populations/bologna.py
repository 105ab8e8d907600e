"""Kind `bologna`: the morning peak of Bologna that comes with the repository, every fifth minute from 10 to 70.

Thirteen epochs, 9,000 vehicles or so, at most 1,300 on the road at once; positions in metres, speeds, no edges.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_transport.settings import settings

from fleetcount_simulator.cells import RECORDED, read
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import TraceKeys
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.shipped import shipped
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
    path = shipped("bologna", "bologna/positions.csv.gz")
    asked = read(question, folder, CELLS)
    return recorded(path, _COLUMNS, asked, keys.clock(Fraction(0)), keys.fleet(seed))
