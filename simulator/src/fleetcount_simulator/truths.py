"""Truths from a table: the strict reader of `vehicle,value` files.

It parses text only and knows no window, no mechanism and no file system. It refuses what is outside the grammar, with
the line, and guesses nothing.
"""

import io
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.layout import prints
from fleetcount_transport.csv_rows import CsvFault, csv_rows

from fleetcount_simulator.errors import ScenarioError

MAX_VEHICLES: Final = 100_000
MAX_DISTINCT: Final = 4095
MAX_NAME_BYTES: Final = 200
MAX_SET_BYTES: Final = 16_384
"""The longest value that holds several names."""
COLUMNS: Final = ("vehicle", "value")
_MOST_NAMED: Final = 10
_LONGEST_SHOWN: Final = 24
"""Ten bad rows fit into the one line of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """What every vehicle would truly answer: `values[i]` is vehicle i's category, "" for none of them.

    With a `separator` a value holds several categories, each once.
    """

    values: tuple[str, ...] = field(repr=False)
    separator: str = ""

    def names_of(self, value: str) -> tuple[str, ...]:
        """Return the categories of a value, none of an empty one."""
        return _names(value, self.separator)

    @property
    def categories(self) -> tuple[str, ...]:
        """The distinct categories, sorted by code point."""
        return tuple(sorted({name for value in set(self.values) for name in self.names_of(value)}))


def _names(value: str, separator: str) -> tuple[str, ...]:
    return (*(value.split(separator) if separator else (value,)),) if value else ()


def parse_truths(text: str, name: str, separator: str = "") -> Truths:
    """Return the truths of a CSV text with the header `vehicle,value`.

    UTF-8 without NUL; a byte-order mark and CRLF are accepted; quotes as in RFC 4180. A vehicle occurs once; an empty
    value means "none of them". Texts are normalised to Unicode NFC. With a `separator` of one character a value holds
    several names between which it stands, each once and none of them empty.

    Raises:
        ScenarioError: anything else, with the file's name and the line; of several bad rows the first ten.
    """
    if "\0" in text:
        raise ScenarioError(f"{name}: holds a NUL character")
    values: list[str] = []
    seen: set[str] = set()
    bad: list[str] = []
    order: tuple[int, int] | None = None
    try:
        for line, row in csv_rows(io.StringIO(text.removeprefix("\ufeff"), newline="")):
            if order is None:
                order = _column_order(row, name)
                continue
            problem, vehicle, value = _checked(row, order, separator)
            if vehicle in seen and not problem:
                problem = f"vehicle {_shown(vehicle)} occurs twice"
            if problem:
                bad.append(f"line {line}: {problem}")
            seen.add(vehicle)
            values.append(value)
            if len(values) > MAX_VEHICLES:
                raise ScenarioError(f"{name}: more than {MAX_VEHICLES} vehicles")
    except CsvFault as fault:  # No row behind it can be told from the next.
        bad.append(str(fault))
    _refuse(bad, name)
    return _whole(values, name, separator)


def _refuse(bad: list[str], name: str) -> None:
    if len(bad) == 1:
        raise ScenarioError(f"{name} {bad[0]}")
    if bad:
        first = "; ".join(bad[:_MOST_NAMED])
        more = f"; and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        raise ScenarioError(f"{name}: {len(bad)} bad rows: {first}{more}")


def _whole(values: list[str], name: str, separator: str) -> Truths:
    truths = Truths(values=tuple(values), separator=separator)
    if len(values) < 2:
        raise ScenarioError(f"{name}: {len(values)} vehicles; a count needs 2 to {MAX_VEHICLES}")
    if not 1 <= len(truths.categories) <= MAX_DISTINCT:
        raise ScenarioError(f"{name}: {len(truths.categories)} distinct values; it must be 1 to {MAX_DISTINCT}")
    return truths


def _column_order(header: list[str], name: str) -> tuple[int, int]:
    if sorted(header) != sorted(COLUMNS):
        hint = " (separated by semicolons?)" if any(";" in cell for cell in header) else ""
        raise ScenarioError(f"{name}: the header is {_shown(','.join(header))}, not 'vehicle,value'{hint}")
    return header.index(COLUMNS[0]), header.index(COLUMNS[1])


def _checked(row: list[str], order: tuple[int, int], separator: str) -> tuple[str, str, str]:
    """Return what is wrong with a row, "" for nothing, its vehicle and its value."""
    if len(row) != len(COLUMNS):
        return f"{len(row)} fields, not 2", "", ""
    vehicle, value = (unicodedata.normalize("NFC", row[index]) for index in order)
    problem = "" if vehicle else "the vehicle is empty"
    names = _names(value, separator)
    for cell in (vehicle, *names):
        problem = problem or _wrong(cell)
    if separator and not problem:
        problem = _wrong_set(value, names)
    return problem, vehicle, value


def _wrong_set(value: str, names: tuple[str, ...]) -> str:
    if len(value.encode()) > MAX_SET_BYTES:
        return f"{_shown(value)} is longer than {MAX_SET_BYTES} bytes"
    if "" in names:
        return f"{_shown(value)} has an empty name"
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    return f"{_shown(twice[0])} occurs twice in one value" if twice else ""


def _wrong(cell: str) -> str:
    if len(cell.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"{_shown(cell)} is longer than {MAX_NAME_BYTES} bytes"
    if not prints(cell):  # The rule of a question's categories, which these become.
        return f"{_shown(cell)} holds a control or format character or a line end"
    return f"{_shown(cell)} starts or ends with a blank" if cell != cell.strip() else ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…")
