"""The section [private] of a device's configuration: which places and values of a signal its owner keeps to himself.

Reads a table, never a signal.
"""

from fractions import Fraction
from typing import Final, cast

from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number

from fleetcount_client.private_places import Circle, Polygon, PrivatePlaces, PrivateSignal

_PLACE: Final = Range("[-1000000000, 1000000000]")
_RADIUS: Final = Range("(0, 1000000000]")
_MOST_PLACES: Final = 1000
_PRIVATE_KEYS: Final = ("circles", "polygons", "values")


def read_private(table: Table) -> PrivatePlaces:
    """Return what is private, by signal; raises ConfigError that names the key, its value and what is allowed."""
    return PrivatePlaces({name: _private_signal(table.section(name, _PRIVATE_KEYS)) for name in table.content})


def _private_signal(table: Table) -> PrivateSignal:
    circles = table.sections("circles", ("x", "y", "radius"), least=0, most=_MOST_PLACES, what="private circles")
    polygons = table.sections("polygons", ("corners",), least=0, most=_MOST_PLACES, what="private polygons")
    values = table.raw("values") if table.has("values") else []
    if not isinstance(values, list) or not all(isinstance(one, bool | int | float | str) for one in values):  # pyright: ignore[reportUnknownVariableType]
        raise table.refuse("values", "a list of numbers, texts, true or false")
    return PrivateSignal(
        areas=(*map(_circle, circles), *map(_polygon, polygons)),
        values=frozenset(cast("list[str | float | bool]", values)),
    )


def _circle(table: Table) -> Circle:
    return Circle(x=table.number("x", _PLACE), y=table.number("y", _PLACE), radius=table.number("radius", _RADIUS))


def _polygon(table: Table) -> Polygon:
    corners = table.raw("corners")
    pairs = cast("list[object]", corners) if isinstance(corners, list) else []
    numbers = [tuple(map(exact_number, cast("list[object]", pair))) if isinstance(pair, list) else () for pair in pairs]
    if len(numbers) < 3 or any(len(pair) != 2 or None in pair for pair in numbers):
        raise table.refuse("corners", 'three or more pairs of numbers: [["0", "0"], ["9.5", "0"], ["0", "9.5"]]')
    return Polygon(corners=tuple(cast("tuple[Fraction, Fraction]", pair) for pair in numbers))
