"""Kind `categories`: a table `vehicle,value`, the same file that `fleetcount demo --truths` reads.

At most 100,000 vehicles and 4,095 values; an empty value is "none of them". Truths do not change over the epochs. Of a
question that lets a vehicle tell several categories at once a value holds several names.
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
from fleetcount_simulator.cells.named import named_keys, question_of
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations.clock_keys import FleetKeys
from fleetcount_simulator.populations.snapshots import Fleet, Moment, Snapshots, drawn_order
from fleetcount_simulator.truths import Truths, parse_truths

ABOUT: Final = "a table vehicle,value: one row per device, as for the demo"
CELLS: Final = ("categories",)
MAX_CHARACTERS: Final = 64 * 2**20
_SEPARATOR: Final = ";"


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
    named = named_keys(asked.settings)
    separator = "" if named.at_once == 1 else named.separator or _SEPARATOR
    truths = parse_truths(_text(keys.file), keys.file.name, separator)
    names, vehicles = named.values or truths.categories, len(truths.values)
    numbered = _numbered(truths, names, keys.file.name)
    if named.at_once == 1:
        held, made = [row[0] if row else 0 for row in numbered], question_of(asked.title, names)
    else:
        sets = sorted(set(numbered) - {()})
        places = {(): 0} | {one: place for place, one in enumerate(sets, start=1)}
        held, made = [places[row] for row in numbered], question_of(asked.title, names, named.at_once, sets)
    moment = Moment(np.arange(vehicles, dtype=np.int32), np.array(held, dtype=value_type(made.held)))
    order = drawn_order(vehicles, moment.vehicles, Fleet(devices=keys.devices, seed=seed))
    return Snapshots(made, [moment], vehicles, order, keys.devices or vehicles, steady=True)


def _numbered(truths: Truths, names: tuple[str, ...], file: str) -> list[tuple[int, ...]]:
    """Return the values 1..V of every vehicle, ascending."""
    numbers = {name: number for number, name in enumerate(names, start=1)}
    found: list[tuple[int, ...]] = []
    for row, value in enumerate(truths.values):
        held = truths.names_of(value)
        for name in held:
            if name not in numbers:
                # A field has no line end, so every row is one line; line 1 is the header.
                near = nearest(name, names[:12])
                raise ScenarioError(f"{file} line {row + 2}: {shown(name)} is not among question.values; {near}")
        found.append(tuple(sorted(numbers[name] for name in held)))
    return found


def _text(path: Path) -> str:
    parts: list[str] = []
    size = 0
    for line in lines(path):
        size += len(line)
        if size > MAX_CHARACTERS:
            raise ScenarioError(f"{path.name}: more than {MAX_CHARACTERS} characters")
        parts.append(line)
    return "".join(parts)
