"""Kind `counts`: the number of devices of each value, from a table `value,count` or from the scenario itself.

An empty value is "none of them". A billion devices cost no more than ten: only counts are stored.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells import CellSpec, read
from fleetcount_simulator.cells.model import MAX_CELLS, check_count
from fleetcount_simulator.cells.named import checked_name, declared_names, question_of
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Population
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.fixed import MAX_DEVICES, fixed
from fleetcount_simulator.populations.tables import read_table

ABOUT: Final = "the number of devices of each value: a table value,count, or counts in the scenario"
CELLS: Final = ("categories", "none", "h3")
_CELL: Final = re.compile(r"[1-9a-f][0-9a-f]{14,15}", re.ASCII)
_TITLE: Final = "Which of these is yours?"


def _counts(table: Table, key: str) -> dict[str, int]:
    content = table.raw(key)
    if not isinstance(content, dict) or not content:
        raise table.refuse(key, 'one value or more with its devices, { "north" = 700, "south" = 300 }')
    counts = cast("dict[str, object]", content)
    for value, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_DEVICES:
            raise table.wrong(key, f"gives {shown(value)} = {shown(count)}; it must be 0 to {MAX_DEVICES}")
    return cast("dict[str, int]", counts)


@settings
class Keys:
    """[population] of kind `counts`."""

    file: Path | None = setting(
        Settings.file,
        default=None,
        about="the table (.csv, .csv.gz, .parquet); an empty value is none of them",
        example='"ages.csv"',
    )
    counts: dict[str, int] | None = setting(
        _counts, default=None, about="instead of a file: value = count", example='{ "north" = 700, "south" = 300 }'
    )
    value: str = setting(
        Table.printable, 200, default="value", about='column of the value; default "value"', example='"age"'
    )
    count: str = setting(
        Table.printable, 200, default="count", about='column of the count; default "count"', example='"patients"'
    )
    elsewhere: int = setting(
        Table.integer,
        0,
        MAX_DEVICES,
        default=0,
        about="further devices, without a value; default 0",
        example="5000",
    )
    devices: int | None = setting(
        Table.integer,
        2,
        MAX_DEVICES,
        default=None,
        about="scale counts to this sum, 2 to 10^12 (largest remainders rounded up); default: as they are",
        example="1000000000",
    )

    def __post_init__(self) -> None:
        if (self.file is None) == (self.counts is None):
            raise UnfitKeyError("file", problem="or counts must be given, one of the two")


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return a population of counts.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    asked = read(question, folder, CELLS, default="categories", title=_TITLE)
    key, counts = f"population.{'counts' if keys.file is None else 'file'}", _listed(keys, asked)
    elsewhere = counts.pop("", 0) + keys.elsewhere
    made, names = _question(asked, list(counts))
    return fixed(made, elsewhere, [counts.get(name, 0) for name in names], keys.devices, key)


def _listed(keys: Keys, asked: CellSpec) -> dict[str, int]:
    """Return the counts of the file or of the scenario itself, by name; "" is none of them."""
    allowed = declared_names(asked.settings) if asked.kind == "categories" else None
    counts: dict[str, int] = {}
    if keys.file is None:
        for value, count in (keys.counts or {}).items():
            _take(counts, value, count, "population.counts", allowed)
        return counts
    columns = {
        "value": Column(name=keys.value),
        "count": Column(name=keys.count, form="count", low=0, high=MAX_DEVICES),
    }
    for batch in read_table(keys.file, columns):
        for row, (value, count) in enumerate(zip(batch.texts["value"], batch.numbers["count"].tolist(), strict=True)):
            _take(counts, value, count, batch.place.of(row), allowed)
    if not counts:
        raise ScenarioError(f"{keys.file.name}: no rows")
    return counts


def _take(counts: dict[str, int], value: str, count: float, place: str, allowed: tuple[str, ...] | None) -> None:
    name = checked_name(value, place) if value else ""
    if name and allowed is not None and name not in allowed:
        raise ScenarioError(f"{place}: {shown(name)} is not among question.values; {nearest(name, allowed[:12])}")
    if name in counts:
        raise ScenarioError(f"{place}: the value {shown(name)} occurs twice")
    if len(counts) > MAX_CELLS:
        raise ScenarioError(f"{place}: more than {MAX_CELLS} values")
    counts[name] = int(count)


def _question(asked: CellSpec, names: list[str]) -> tuple[AnswerSpace, list[str]]:
    if asked.kind == "h3":
        return _hexagons(asked, names)
    declared = declared_names(asked.settings) if asked.kind == "categories" else None
    ordered = names if declared is None else list(declared)
    return question_of(asked.title, ordered), ordered


def _hexagons(asked: CellSpec, names: list[str]) -> tuple[AnswerSpace, list[str]]:
    # The library accepts several spellings of a cell; only its own lower-case text is accepted here, so that names
    # differ.
    from h3.api import basic_int as h3

    from fleetcount_simulator.cells import hexagons

    resolution = asked.settings.integer("resolution", 0, 15)
    for key in ("bounds", "origin"):
        if asked.settings.has(key):
            raise asked.settings.wrong(key, "is not used: the table names the cells")
    for name in names:
        cell = int(name, 16) if _CELL.fullmatch(name) else 0
        if not h3.is_valid_cell(cell) or h3.get_resolution(cell) != resolution:
            raise ScenarioError(f"question.resolution: {shown(name)} is not an H3 cell of resolution {resolution}")
    ordered = sorted(names, key=lambda name: int(name, 16))
    cells = np.array([int(name, 16) for name in ordered], dtype=np.int64)
    check_count(len(cells), "population")
    return hexagons.question_of(asked.title, resolution, cells), ordered
