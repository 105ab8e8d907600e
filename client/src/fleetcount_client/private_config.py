"""The section [private] of a device's configuration: which places and values of a signal its owner keeps to himself.

Reads a table, never a signal.
"""

from fractions import Fraction
from typing import Final, cast

from fleetcount_transport.settings import read_rows, read_settings, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number

from fleetcount_client.private_places import Circle, Polygon, PrivatePlaces, PrivateSignal

_PLACE: Final = Range("[-1000000000, 1000000000]")
_RADIUS: Final = Range("(0, 1000000000]")
_MOST_PLACES: Final = 1000


@settings
class CircleTable:
    """[[private."PATH".circles]]: what `Circle` says, in the signal's own units."""

    x: Fraction = setting(Table.number, _PLACE)
    y: Fraction = setting(Table.number, _PLACE)
    radius: Fraction = setting(Table.number, _RADIUS)


def _corners(table: Table, key: str) -> tuple[tuple[Fraction, Fraction], ...]:
    corners = table.raw(key)
    pairs = cast("list[object]", corners) if isinstance(corners, list) else []
    numbers = [tuple(map(exact_number, cast("list[object]", pair))) if isinstance(pair, list) else () for pair in pairs]
    if len(numbers) < 3 or any(len(pair) != 2 or None in pair for pair in numbers):
        raise table.refuse(key, 'three or more pairs of numbers: [["0", "0"], ["9.5", "0"], ["0", "9.5"]]')
    return cast("tuple[tuple[Fraction, Fraction], ...]", tuple(numbers))


@settings
class PolygonTable:
    """[[private."PATH".polygons]]: what `Polygon` says, in the signal's own units."""

    corners: tuple[tuple[Fraction, Fraction], ...] = setting(_corners)


def _circles(table: Table, key: str) -> tuple[Circle, ...]:
    rows = read_rows(table, key, CircleTable, least=0, most=_MOST_PLACES, what="private circles")
    return tuple(Circle(x=row.x, y=row.y, radius=row.radius) for row in rows)


def _polygons(table: Table, key: str) -> tuple[Polygon, ...]:
    rows = read_rows(table, key, PolygonTable, least=0, most=_MOST_PLACES, what="private polygons")
    return tuple(Polygon(corners=row.corners) for row in rows)


def _values(table: Table, key: str) -> frozenset[bool | float | str]:
    values = table.raw(key)
    listed = cast("list[object]", values) if isinstance(values, list) else [None]
    if not all(isinstance(one, bool | int | float | str) for one in listed):
        raise table.refuse(key, "a list of numbers, texts, true or false")
    return frozenset(cast("list[bool | float | str]", listed))


@settings
class SignalTable:
    """[private."PATH"]: which places and values of one signal are private."""

    circles: tuple[Circle, ...] = setting(_circles, default=())
    polygons: tuple[Polygon, ...] = setting(_polygons, default=())
    values: frozenset[bool | float | str] = setting(_values, default=frozenset())


def read_private(table: Table) -> PrivatePlaces:
    """Return what is private, by signal; raises ConfigError that names the key, its value and what is allowed."""
    signals = {name: read_settings(table, name, SignalTable) for name in table.content}
    return PrivatePlaces(
        {name: PrivateSignal(areas=(*one.circles, *one.polygons), values=one.values) for name, one in signals.items()}
    )
