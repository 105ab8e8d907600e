"""The sections [signals."PATH"] of a device's configuration: where each signal comes from, and what its readings are.

Reads no signal; it must not connect.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from fleetcount_protocol.ids import is_loopback, split_endpoint
from fleetcount_protocol.window.signal import Kind, kind_of
from fleetcount_transport.settings import UnfitKeyError, names_of, read_table, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_client.shapes import AnySource, Shape, ShapedSource
from fleetcount_client.signal_tables import MOST_JOINED, fresh_s, joined
from fleetcount_client.signals import FileSource, Said, SignalSource, constant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fleetcount_client.kuksa import Databroker

_SOURCES: Final = ("file", "value", "lines", "socket", "kuksa")
_SHAPE: Final = (*names_of(Shape), "any")
_MEMBER: Final = 'a member of the line, "speed", or two: ["x", "y"]'


def _members(table: Table, key: str) -> tuple[str, ...]:
    return joined(table, key, _MEMBER, lambda one: isinstance(one, str) and bool(one))


def _files(table: Table, key: str) -> tuple[Path, ...]:
    if not isinstance(table.raw(key), list):
        return (table.file_name(key),)
    if table.raw("any") is not True or not 2 <= len(table.file_names(key)) <= MOST_JOINED:
        raise table.refuse(key, f"a file name; with any = true 2 to {MOST_JOINED}")
    return table.file_names(key)


def _socket(table: Table, key: str) -> str:
    if re.fullmatch(r"unix:/[^\0]{1,100}", address := str(table.raw(key))):
        return address
    if not is_loopback(split_endpoint(table.endpoint(key))[0]):
        raise table.refuse(key, 'a socket of this machine: "127.0.0.1:PORT" or "unix:/PATH"')
    return address


def _constant(table: Table, key: str) -> Said:
    value = table.raw(key)
    if kind_of(value) in (None, Kind.OTHER):
        raise table.refuse(key, "a number, a text, true or false")
    return cast("Said", value)


@settings
class ValueTable:
    """[signals."PATH"]: a signal that is the whole content of a `file`, or always one `value`."""

    file: tuple[Path, ...] = setting(_files, default=())
    value: Said = setting(_constant, default=None)


@settings
class LinesTable:
    """[signals."PATH"]: a signal among the lines of a file or of a socket; `key` is by default its name."""

    lines: Path | None = setting(Table.file_name, default=None)
    socket: str | None = setting(_socket, default=None)
    key: tuple[str, ...] = setting(_members, default=())
    time: str = setting(Table.text, r"[^\0-\x1f]{1,200}", "1 to 200 characters", default="")
    fresh_s: float | None = setting(fresh_s, default=None)

    def __post_init__(self) -> None:
        if self.fresh_s is not None and not self.time:
            raise UnfitKeyError("fresh_s", allowed="only together with time, the member that holds a line's time")


def read_signals(root: Table) -> dict[str, SignalSource]:
    """Return the sources of [signals], by path.

    Raises:
        ConfigError: a key that cannot be used.
    """
    table, databroker = root.section("signals", None), _databroker(root)
    if databroker is not None and not any(table.section(name, None).has("kuksa") for name in table.content):
        raise root.wrong("kuksa", 'is asked by no signal: allowed is only beside a [signals."PATH"] with the key kuksa')
    return {name: _signal(table, name, databroker) for name in table.content}


def _databroker(root: Table) -> "Databroker | None":
    if not root.has("kuksa"):
        return None
    from fleetcount_client.kuksa_config import read_databroker  # Only where there is one.

    return read_databroker(root)


def _signal(signals: Table, name: str, databroker: "Databroker | None") -> SignalSource:
    given = [key for key in _SOURCES if signals.section(name, None).has(key)]
    if len(given) > 1:
        raise signals.wrong(name, f"has {' and '.join(given)}; allowed is exactly one of {', '.join(_SOURCES)}")
    if given == ["kuksa"]:
        from fleetcount_client.kuksa_config import SignalTable, kuksa_sources  # As above.

        if databroker is None:
            raise signals.wrong(name, "reads from kuksa; give the section [kuksa] with its address")
        table, apart = _table(signals, name, SignalTable)
        asked = read_table(table, SignalTable)
        return _shaped(table, kuksa_sources(asked, databroker, apart=apart), asked.kuksa, apart=apart)
    if given in (["lines"], ["socket"]):
        table, apart = _table(signals, name, LinesTable)
        lines = read_table(table, LinesTable)
        return _shaped(table, _line_sources(lines, name, apart=apart), lines.key, apart=apart)
    table, apart = _table(signals, name, ValueTable)
    source = read_table(table, ValueTable)
    if not given:
        raise signals.wrong(name, f"has no source; allowed is exactly one of {', '.join(_SOURCES)}")
    files = [FileSource(file) for file in source.file]
    return _shaped(table, files or [constant(source.value)], source.file, apart=apart)


def _table(signals: Table, name: str, cls: type["DataclassInstance"]) -> tuple[Table, bool]:
    """Return the table of a signal whose source has the keys of a class, and whether `any` joins several."""
    table = signals.section(name, (*names_of(cls), *_SHAPE))
    return table, table.boolean("any", default=False)


def _shaped(table: Table, sources: Sequence[SignalSource], named: Sequence[object], *, apart: bool) -> SignalSource:
    if apart:
        if len(sources) < 2:
            raise table.wrong("any", "joins 2 or more sources, and there is one")
        return ShapedSource(AnySource(sources), read_table(table, Shape))
    if len(named) > 1 and (unused := [key for key in _SHAPE if table.has(key)]):
        raise table.wrong(unused[0], "goes with one value, and there are two: a position")
    return ShapedSource(sources[0], read_table(table, Shape))


def _line_sources(table: LinesTable, name: str, *, apart: bool) -> list[SignalSource]:
    from fleetcount_client.line_source import LineSource, LineValue  # Only where signals are lines.

    fresh = 60.0 if table.fresh_s is None else table.fresh_s
    keys = table.key or (name,)
    members = [(key,) for key in keys] if apart else [keys]
    place = cast("Path | str", table.lines or table.socket)
    return [LineSource(place, LineValue(keys=one, time=table.time, fresh_s=fresh)) for one in members]
