"""The sections of a device's configuration that name a KUKSA databroker and the signals it gives.

Reads no token; it must not connect.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Final, cast

from fleetcount_transport.settings import UnfitKeyError, read_settings, setting, settings
from fleetcount_transport.toml_table import ConfigError, Table
from fleetcount_transport.toml_values import Range

from fleetcount_client.kuksa import Databroker, DatabrokerSettings, KuksaSource, VehicleSignal
from fleetcount_client.private_places import UtmZone

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_MOST_CHARACTERS: Final = 1000
_ONE_ONLY: Final = ("factor", "offset")
_TWO_ONLY: Final = ("utm", "offset_x", "offset_y")
_ANY_NUMBER: Final = Range("[-1000000000, 1000000000]")


def _paths(table: Table, key: str) -> tuple[str, ...]:
    value = table.raw(key)
    paths = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    wanted = 2 if isinstance(value, list) else 1
    names = [one for one in paths if isinstance(one, str) and len(one) <= _MOST_CHARACTERS and _PATH.fullmatch(one)]
    if not len(names) == len(paths) == wanted:
        raise table.refuse(key, 'a VSS path, "Vehicle.Speed", or two: [longitude, latitude]')
    return tuple(names)


def _zone(table: Table, key: str) -> UtmZone:
    text = table.text(key, r"([1-9]|[1-5][0-9]|60)[NS]", 'a zone of UTM: "32N"')
    return UtmZone(number=int(text[:-1]), south=text.endswith("S"))


@settings
class SignalTable:
    """[signals."PATH"] with the key `kuksa`: what `VehicleSignal` says."""

    kuksa: tuple[str, ...] = setting(_paths)
    fresh_s: float = setting(Table.seconds, 0.1, 86_400, default=60.0)
    factor: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    offset: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    utm: UtmZone | None = setting(_zone, default=None)
    offset_x: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    offset_y: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)

    def __post_init__(self) -> None:
        one = len(self.kuksa) == 1
        for key in _TWO_ONLY if one else _ONE_ONLY:
            if getattr(self, key) is not None:
                goes_with = "[longitude, latitude]" if one else "one path"
                raise UnfitKeyError(key, problem=f"goes with {goes_with} in kuksa")


def read_databroker(root: Table) -> Databroker:
    """Return the databroker of the section `[kuksa]`.

    Raises:
        ConfigError: a key that cannot be used, plaintext to another machine, or gRPC that is not installed.
    """
    if find_spec("grpc") is None:
        raise ConfigError("kuksa needs grpc: install fleetcount-client[kuksa] or fleetcount[kuksa]")
    return Databroker(read_settings(root, "kuksa", DatabrokerSettings))


def read_signal(signals: Table, name: str, databroker: Databroker) -> KuksaSource:
    """Return the source of one section `[signals."PATH"]` with the key `kuksa`.

    Raises:
        ConfigError: a key that cannot be used.
    """
    table = read_settings(signals, name, SignalTable)
    return KuksaSource(
        databroker,
        VehicleSignal(
            paths=table.kuksa,
            fresh_s=table.fresh_s,
            factor=Fraction(1) if table.factor is None else table.factor,
            offset=table.offset or Fraction(0),
            zone=table.utm,
            offset_x=table.offset_x or Fraction(0),
            offset_y=table.offset_y or Fraction(0),
        ),
    )
