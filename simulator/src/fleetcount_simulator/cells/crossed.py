"""Values of several signals at once: which columns of a table they are, and what a row of it says.

It must not read data; a row's value is the device's own (`fleetcount_protocol.window.domain`).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, cast

from fleetcount_protocol.window.domain import Bins, Cross, SingleDomain, SquareGrid
from fleetcount_protocol.window.signal import Signal
from fleetcount_transport.domain_table import read_cross
from fleetcount_transport.settings import setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_simulator.cells.model import NUMBER

_NUMBER: Final = re.compile(NUMBER, re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A cross, and the columns that each of its parts is read from: one, or of a grid x and y."""

    cross: Cross
    names: tuple[tuple[str, ...], ...]


def _column(row: Table, domain: SingleDomain) -> tuple[str, ...]:
    given = row.raw("column")
    usual = str(row.raw("signal"))
    names = cast("list[object]", given) if isinstance(given, list) else [row.printable("column", 200, usual)]
    wanted = 2 if isinstance(domain, SquareGrid) else 1
    if len(names) != wanted or not all(isinstance(one, str) and one for one in names):
        raise row.refuse("column", 'the columns of x and y: ["x", "y"]' if wanted == 2 else "the name of one column")
    return tuple(map(str, names))


def _columns(table: Table, key: str) -> Columns:
    cross, rows = read_cross(table, key, ("column",))
    return Columns(cross=cross, names=tuple(map(_column, rows, (part.domain for part in cross.parts))))


@settings
class Keys:
    """[question] of cells `cross`."""

    of: Columns = setting(
        _columns,
        about="2 or 3 tables [[question.of]], one for each signal: `signal`, `column` (of a grid x and y; default: the"
        " signal), and the keys of [domain] in a question file: `kind` and what belongs to it",
        example='[{ signal = "Vehicle.Fuel", column = "fuel", kind = "categories", names = ["a", "b"] }, ...]',
    )


def reading_of(texts: tuple[str, ...], domain: SingleDomain) -> Signal:
    """Return what the cells of a row say as a signal; None where one is empty.

    Raises:
        ValueError: a text in place of a number, which the message has.
    """
    if "" in texts:
        return None
    if not isinstance(domain, Bins | SquareGrid):
        return texts[0]
    strange = next((text for text in texts if not _NUMBER.fullmatch(text)), None)
    if strange is not None:
        raise ValueError(strange)
    numbers = [Decimal(text) for text in texts]
    return (numbers[0], numbers[1]) if len(numbers) > 1 else numbers[0]
