"""Kind `readings`: a table with a column for each signal, and the value of every row as a device would answer it.

A row is a device, or as many as a column of counts says. Readings do not change over the epochs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from fleetcount_protocol.window.domain import FixedDomain
from fleetcount_transport.settings import read_table as read_settings_of
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import shown

from fleetcount_simulator.cells import read
from fleetcount_simulator.cells.crossed import Columns, reading_of
from fleetcount_simulator.cells.crossed import Keys as CrossKeys
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers, Population
from fleetcount_simulator.populations.columns import Column
from fleetcount_simulator.populations.fixed import MAX_DEVICES, fixed
from fleetcount_simulator.populations.tables import Batch, read_table

ABOUT: Final = "a table with a column for each of several signals: a row is a device"
CELLS: Final = ("cross",)
_COUNT: Final = ""
"""The role of the counts, which no column's name is."""
_REMEMBERED: Final = 1 << 16


@settings
class Keys:
    """[population] of kind `readings`."""

    file: Path = setting(
        Settings.file,
        about="the table (.csv, .csv.gz, .parquet); an empty cell is no reading",
        example='"fleet.csv"',
    )
    count: str | None = setting(
        Table.printable,
        200,
        default=None,
        about="column of how many devices a row stands for; default: one",
        example='"persons"',
    )
    devices: int | None = setting(
        Table.integer,
        2,
        MAX_DEVICES,
        default=None,
        about="scale counts to this sum, 2 to 10^12 (largest remainders rounded up); default: as they are",
        example="1000000",
    )


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return the devices of a table.

    Raises:
        ScenarioError: a key or a row that cannot be used; with the dotted key, or the file and line.
    """
    asked = read(question, folder, CELLS, default="cross")
    columns = read_settings_of(asked.settings, CrossKeys).of
    cross, counts = columns.cross, _counts(keys, columns)
    labels = tuple(cross.label(value) for value in range(1, cross.values + 1))
    space = AnswerSpace(title=asked.title, labels=labels, domain=cross)
    return fixed(space, int(counts[0]), counts[1:].tolist(), keys.devices, "population.file")


def _counts(keys: Keys, columns: Columns) -> Integers:
    """Return how many devices have each value, (V+1,); [0] none of them."""
    roles = {name: Column(name=name, form="reading") for names in columns.names for name in names}
    if keys.count is not None:
        roles[_COUNT] = Column(name=keys.count, form="count", low=0, high=MAX_DEVICES)
    found = np.zeros(columns.cross.values + 1, dtype=np.int64)
    known: list[dict[tuple[str, ...], int]] = [{} for _ in columns.names]
    strange: dict[tuple[str, ...], str] = {}
    for batch in read_table(keys.file, roles):
        values = np.array(_values(batch, columns, known, strange), dtype=np.int64)
        np.add.at(found, values, 1 if keys.count is None else batch.numbers[_COUNT].astype(np.int64))
    if said := next(filter(None, strange.values()), None):
        raise ScenarioError(said)
    return found


def _values(
    batch: Batch, columns: Columns, known: list[dict[tuple[str, ...], int]], strange: dict[tuple[str, ...], str]
) -> list[int]:
    """Return the value of every row; `known` has for each part values that were found before.

    `strange` has of a part the first reading that is none of its values, "" once another is: if none ever is, the
    column is spelled or measured in another way than the question.
    """
    parts: list[list[int]] = []
    for part, names, memory in zip(columns.cross.parts, columns.names, known, strict=True):
        if len(memory) > _REMEMBERED:
            memory.clear()
        domain, values = cast("FixedDomain", part.domain), list[int]()  # No part of a cross is rounded by chance.
        for row, texts in enumerate(zip(*(batch.texts[name] for name in names), strict=True)):
            if texts not in memory:
                try:
                    memory[texts] = domain.value_of(reading_of(texts, domain))
                except ValueError as error:
                    what = f"{' and '.join(names)} is {shown(str(error))}, not a number like -12.5"
                    raise ScenarioError(f"{batch.place.of(row)}: {what}") from None
                if memory[texts]:
                    strange[names] = ""
                elif "" not in texts:
                    what = f"{' and '.join(names)} is {shown(','.join(texts))}"
                    none = f"no value of the question, such as {shown(domain.label(1))}, nor is any other of its column"
                    strange.setdefault(names, f"{batch.place.of(row)}: {what}, {none}")
            values.append(memory[texts])
        parts.append(values)
    return [columns.cross.together(row) for row in zip(*parts, strict=True)]
