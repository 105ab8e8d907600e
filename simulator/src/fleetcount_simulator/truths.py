"""Truths from a table: the strict reader of `vehicle,value` files.

Holds text only: it knows no task, no mechanism and no file system. What the grammar does not know is refused with its
line, never guessed.
"""

import csv
import io
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from fleetcount_simulator.errors import ScenarioError

__all__ = ["MAX_VEHICLES", "Truths", "parse_truths"]

MAX_VEHICLES: Final = 100_000
MAX_DISTINCT: Final = 4095
MAX_NAME_BYTES: Final = 200
COLUMNS: Final = ("vehicle", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """What every vehicle would truly answer: `values[i]` is vehicle i's category, "" for none of them."""

    values: tuple[str, ...] = field(repr=False)

    @property
    def categories(self) -> tuple[str, ...]:
        """The distinct categories, sorted by code point."""
        return tuple(sorted(set(self.values) - {""}))


def parse_truths(text: str, name: str) -> Truths:
    """Return the truths of a CSV text with the header `vehicle,value`.

    UTF-8 without NUL; a byte-order mark and CRLF are accepted; quotes as in RFC 4180. A vehicle stands once; an empty
    value means "none of them". Texts are brought to Unicode NFC.

    Raises:
        ScenarioError: anything else, with the file's name and the line.
    """
    if "\0" in text:
        raise ScenarioError(f"{name}: holds a NUL character")
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    values: list[str] = []
    seen: set[str] = set()
    order: tuple[int, int] | None = None
    try:
        for row in reader:
            if order is None:
                order = _column_order(row, name)
                continue
            vehicle, value = _checked(row, order, f"{name} line {reader.line_num}")
            if vehicle in seen:
                raise ScenarioError(f"{name} line {reader.line_num}: vehicle {_shown(vehicle)} stands twice")
            seen.add(vehicle)
            values.append(value)
            if len(values) > MAX_VEHICLES:
                raise ScenarioError(f"{name}: more than {MAX_VEHICLES} vehicles")
    except csv.Error as error:
        raise ScenarioError(f"{name} line {reader.line_num}: {error}") from error
    return _whole(values, name)


def _whole(values: list[str], name: str) -> Truths:
    truths = Truths(values=tuple(values))
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


def _checked(row: list[str], order: tuple[int, int], place: str) -> tuple[str, str]:
    if len(row) != len(COLUMNS):
        raise ScenarioError(f"{place}: {len(row)} fields, not 2")
    vehicle, value = (unicodedata.normalize("NFC", row[index]) for index in order)
    if not vehicle:
        raise ScenarioError(f"{place}: the vehicle is empty")
    for cell in (vehicle, value):
        if len(cell.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise ScenarioError(f"{place}: {_shown(cell)} is longer than {MAX_NAME_BYTES} bytes")
        if any(unicodedata.category(character) in {"Cc", "Cs"} for character in cell):
            raise ScenarioError(f"{place}: {_shown(cell)} holds a control character or a line end")
        if cell != cell.strip():
            raise ScenarioError(f"{place}: {_shown(cell)} starts or ends with a blank")
    return vehicle, value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
