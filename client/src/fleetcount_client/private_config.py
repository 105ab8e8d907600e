"""The section [private] of a device's configuration: which places and values of a signal its owner keeps to himself.

Reads a table, never a signal.
"""

from typing import Final, cast

from fleetcount_protocol.window.signal import Kind, kind_of
from fleetcount_transport.settings import read_rows, read_settings, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_client.private_places import Circle, Polygon, PrivatePlaces, PrivateSignal

_MOST_PLACES: Final = 1000


def _circles(table: Table, key: str) -> tuple[Circle, ...]:
    return read_rows(table, key, Circle, least=0, most=_MOST_PLACES, what="private circles")


def _polygons(table: Table, key: str) -> tuple[Polygon, ...]:
    return read_rows(table, key, Polygon, least=0, most=_MOST_PLACES, what="private polygons")


def _values(table: Table, key: str) -> frozenset[bool | float | str]:
    values = table.raw(key)
    listed = cast("list[object]", values) if isinstance(values, list) else [None]
    if not {None, Kind.OTHER}.isdisjoint(map(kind_of, listed)):
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
