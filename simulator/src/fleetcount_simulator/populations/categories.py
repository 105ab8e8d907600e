"""Kind `categories`: a table `vehicle,value`, the same file that `fleetcount demo --truths` reads.

At most 100,000 vehicles and 4,095 values; an empty value is "none of them". Truths do not change over the epochs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells import read
from fleetcount_simulator.cells.files import lines
from fleetcount_simulator.cells.model import value_type
from fleetcount_simulator.cells.named import declared_names, question_of
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import FleetKeys
from fleetcount_simulator.populations.snapshots import Fleet, Moment, Snapshots, drawn_order
from fleetcount_simulator.truths import Truths, parse_truths

ABOUT: Final = "a table vehicle,value: one row per device, as for the demo"
CELLS: Final = ("categories",)
MAX_CHARACTERS: Final = 64 * 2**20


@settings
class Keys(FleetKeys):
    """[population] of kind `categories`."""

    file: Path = setting(Settings.file, about="the table (.csv or .csv.gz)", example='"fuel.csv"')


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return the vehicles of a table, all in their order or some drawn at random.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    asked = read(question, folder, CELLS, default="categories")
    truths = parse_truths(_text(keys.file), keys.file.name)
    names = declared_names(asked.settings) or truths.categories
    made, vehicles = question_of(asked.title, names), len(truths.values)
    moment = Moment(np.arange(vehicles, dtype=np.int32), _values(truths, names, keys.file.name))
    order = drawn_order(vehicles, moment.vehicles, Fleet(devices=keys.devices, seed=seed))
    return Snapshots(made, [moment], vehicles, order, keys.devices or vehicles, steady=True)


def _values(truths: Truths, names: tuple[str, ...], file: str) -> Any:
    numbers = {"": 0} | {name: number for number, name in enumerate(names, start=1)}
    for row, value in enumerate(truths.values):
        if value not in numbers:
            # A field has no line end, so every row is one line; line 1 is the header.
            near = nearest(value, names[:12])
            raise ScenarioError(f"{file} line {row + 2}: {shown(value)} is not among question.values; {near}")
    return np.array([numbers[value] for value in truths.values], dtype=value_type(len(names)))


def _text(path: Path) -> str:
    parts: list[str] = []
    size = 0
    for line in lines(path):
        size += len(line)
        if size > MAX_CHARACTERS:
            raise ScenarioError(f"{path.name}: more than {MAX_CHARACTERS} characters")
        parts.append(line)
    return "".join(parts)
