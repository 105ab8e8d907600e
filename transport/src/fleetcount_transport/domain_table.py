"""Tables of a file that say which values a signal, or several at once, may have: of questions, and of scenarios.

Reads text; one function reads the values of a signal, whether it stands alone or is a part of a cross.
"""

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, cast

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.domain import (
    CROSSED,
    MAX_VALUES,
    Bins,
    Categories,
    Cross,
    H3Cells,
    Numbers,
    Outside,
    Part,
    SingleDomain,
    SquareGrid,
    ValueDomain,
)
from fleetcount_protocol.window.frame import EPSG_CODES, OFFSET_FORM, OFFSET_PATTERN, Frame
from fleetcount_protocol.window.signal import check_signal

from fleetcount_transport.settings import names_of, read_settings, read_table, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number

_POINTS: Final = 5
"""Points of a number that is not direct and has none in the file: the mean of n devices under noise of variance S is
most accurate at about 1 + (4n/S)^(1/3), 3 for a thousand devices and 8 for a hundred thousand at a deviation of 36."""
SIGNAL_TEXT: Final = r"[^\0-\x1f]{1,200}"
_SIZE: Final = Range("(0, 1000000000]")


def _exact(table: Table, key: str, value: object) -> Fraction:
    number = exact_number(value)
    if number is not None:
        return number
    raise table.refuse(key, 'an exact number, whole or as text: "12.5" or "25/2"')


def _exact_number(table: Table, key: str) -> Fraction:
    return _exact(table, key, table.raw(key))


def _list(table: Table, key: str, allowed: str) -> list[object]:
    value = table.raw(key)
    if not isinstance(value, list) or not value:
        raise table.refuse(key, f"a list of {allowed}")
    return cast("list[object]", value)


def exact_numbers(table: Table, key: str, allowed: str) -> tuple[Fraction, ...]:
    return tuple(_exact(table, key, value) for value in _list(table, key, allowed))


def _names(table: Table, key: str) -> tuple[str, ...]:
    names = _list(table, key, "texts")
    if not all(isinstance(name, str) for name in names):
        raise table.refuse(key, "texts")
    return tuple(cast("list[str]", names))


def _cell_indexes(table: Table, key: str) -> tuple[int, ...]:
    cells = _list(table, key, 'cell indexes in hexadecimal: ["8a1fb46622dffff"]')
    if not all(isinstance(cell, str) and re.fullmatch(r"[1-9a-f][0-9a-f]{0,15}", cell, re.ASCII) for cell in cells):
        raise table.refuse(key, 'cell indexes in lower-case hexadecimal: ["8a1fb46622dffff"]')
    return tuple(sorted(int(cell, 16) for cell in cast("list[str]", cells)))


@settings
class FrameTable:
    """[domain.frame]: where on Earth the metres of a grid are."""

    epsg: int = setting(Table.integer, *EPSG_CODES)
    offset_x: str = setting(Table.text, OFFSET_PATTERN, OFFSET_FORM, default="0")
    offset_y: str = setting(Table.text, OFFSET_PATTERN, OFFSET_FORM, default="0")


def _frame(table: Table, key: str) -> Frame:
    frame = read_settings(table, key, FrameTable)
    return Frame(epsg=frame.epsg, offset_x=frame.offset_x, offset_y=frame.offset_y)


@settings
class BinsTable:
    """[domain] of kind `bins`."""

    kind: str = setting(Table.slug)
    edges: tuple[Fraction, ...] = setting(exact_numbers, 'numbers as text: ["0", "50"]')
    open_above: bool = setting(Table.boolean, default=False)
    unit: str = setting(Table.text, r"[^\0-\x1f]{0,200}", "at most 200 characters", default="")

    def domain(self) -> Bins:
        """Return the bins."""
        return Bins(edges=self.edges, open_above=self.open_above, unit=self.unit)


@settings
class NumberTable:
    """[domain] of kind `number`."""

    kind: str = setting(Table.slug)
    low: Fraction = setting(_exact_number)
    high: Fraction = setting(_exact_number)
    points: int | None = setting(Table.integer, 2, MAX_VALUES, default=None)
    unit: str = setting(Table.text, r"[^\0-\x1f]{0,200}", "at most 200 characters", default="")
    outside: str = setting(Table.choice, ("clamp", "none"), default="clamp")

    def domain(self) -> Numbers:
        """Return the numbers."""
        outside = Outside[self.outside.upper()]
        return Numbers(low=self.low, high=self.high, values=self.points or _POINTS, unit=self.unit, outside=outside)


@settings
class CategoriesTable:
    """[domain] of kind `categories`."""

    kind: str = setting(Table.slug)
    names: tuple[str, ...] = setting(_names)

    def domain(self) -> Categories:
        """Return the categories."""
        return Categories(names=self.names)


@settings
class GridTable:
    """[domain] of kind `grid`."""

    kind: str = setting(Table.slug)
    x0: Fraction = setting(_exact_number)
    y0: Fraction = setting(_exact_number)
    size: Fraction = setting(Table.number, _SIZE)
    columns: int = setting(Table.integer, 1, 4095)
    rows: int = setting(Table.integer, 1, 4095)
    frame: Frame | None = setting(_frame, default=None)

    def domain(self) -> SquareGrid:
        """Return the grid."""
        return SquareGrid(
            x0=self.x0, y0=self.y0, size=self.size, columns=self.columns, rows=self.rows, frame=self.frame
        )


@settings
class H3Table:
    """[domain] of kind `h3`."""

    kind: str = setting(Table.slug)
    resolution: int = setting(Table.integer, 0, 15)
    cells: tuple[int, ...] = setting(_cell_indexes)

    def domain(self) -> H3Cells:
        """Return the cells."""
        return H3Cells(resolution=self.resolution, cells=self.cells)


_CROSSED: Final = {"bins": BinsTable, "categories": CategoriesTable, "grid": GridTable, "h3": H3Table}
"""The kinds of values that may be a part of a cross."""
_DOMAINS: Final = {**_CROSSED, "number": NumberTable}
_CROSS: Final = "cross"


def read_domain(table: Table, points: int | None = None) -> ValueDomain:
    """Return the values that a table [domain] asks for; a number without `points` in the table has these.

    Raises:
        UsageError: with key, value and what is allowed.
        QuestionError: values of one signal that break a rule; the caller knows their keys.
    """
    if table.choice("kind", (*_DOMAINS, _CROSS)) == _CROSS:
        return read_cross(table.only(("kind", "of")), "of")[0]
    return _read_single(table, (), points)


def read_cross(table: Table, key: str, beside: tuple[str, ...] = ()) -> tuple[Cross, list[Table]]:
    """Return the cross of an array of tables, one for each signal, and these; keys `beside` theirs are read elsewhere.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    least, most = CROSSED
    rows = table.sections(key, None, least=least, most=most, what="tables, one for each signal")
    try:
        return Cross(parts=tuple(_part(row, ("signal", *beside)) for row in rows)), rows
    except QuestionError as error:
        raise table.wrong(key, f"cannot be asked: {error}") from None


def _part(row: Table, beside: tuple[str, ...]) -> Part:
    signal, key = row.text("signal", SIGNAL_TEXT, "a VSS path"), "signal"
    row.choice("kind", tuple(_CROSSED))
    try:
        check_signal(signal)
        key = "kind"
        return Part(signal=signal, domain=_read_single(row, beside))
    except QuestionError as error:
        raise row.wrong(key, f"is {row.raw(key)!r}: {error}") from None


def _read_single(table: Table, beside: tuple[str, ...], points: int | None = None) -> SingleDomain:
    """Return the values of one signal; keys `beside` theirs are read elsewhere."""
    cls = _DOMAINS[table.choice("kind", tuple(_DOMAINS))]
    given: Any = read_table(table.only((*names_of(cls), *beside)), cls)
    if isinstance(given, NumberTable) and given.points is None:
        given = replace(given, points=points)
    return cast("SingleDomain", given.domain())
