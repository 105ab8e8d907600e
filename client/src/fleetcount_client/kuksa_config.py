"""The sections of a device's configuration that name a KUKSA databroker and the signals it gives.

Reads no token; it must not connect.
"""

import re
from fractions import Fraction
from importlib.util import find_spec
from typing import Final

from fleetcount_transport.settings import UnfitKeyError, read_settings, setting, settings
from fleetcount_transport.toml_table import ConfigError, Table
from fleetcount_transport.toml_values import Range

from fleetcount_client.kuksa import Databroker, DatabrokerSettings, KuksaSource, VehicleSignal
from fleetcount_client.private_places import UtmZone
from fleetcount_client.signal_tables import fresh_s, joined
from fleetcount_client.signals import SignalSource

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_MOST_CHARACTERS: Final = 1000
_PLACED: Final = ("utm", "offset_x", "offset_y")
_ANY_NUMBER: Final = Range("[-1000000000, 1000000000]")


def _is_path(one: object) -> bool:
    return isinstance(one, str) and len(one) <= _MOST_CHARACTERS and _PATH.fullmatch(one) is not None


def _paths(table: Table, key: str) -> tuple[str, ...]:
    return joined(table, key, 'a VSS path, "Vehicle.Speed", or two: [longitude, latitude]', _is_path)


def _zone(table: Table, key: str) -> UtmZone:
    text = table.text(key, r"([1-9]|[1-5][0-9]|60)[NS]", 'a zone of UTM: "32N"')
    return UtmZone(number=int(text[:-1]), south=text.endswith("S"))


@settings
class SignalTable:
    """[signals."PATH"] with the key `kuksa`: what `VehicleSignal` says."""

    kuksa: tuple[str, ...] = setting(_paths)
    fresh_s: float | None = setting(fresh_s, default=None)
    utm: UtmZone | None = setting(_zone, default=None)
    offset_x: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    offset_y: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)

    def __post_init__(self) -> None:
        for key in _PLACED if len(self.kuksa) == 1 else ():
            if getattr(self, key) is not None:
                raise UnfitKeyError(key, problem="goes with [longitude, latitude] in kuksa")


def read_databroker(root: Table) -> Databroker:
    """Return the databroker of the section `[kuksa]`.

    Raises:
        ConfigError: a key that cannot be used, plaintext to another machine, or gRPC that is not installed.
    """
    if find_spec("grpc") is None:
        raise ConfigError("kuksa needs grpc: install fleetcount-client[kuksa] or fleetcount[kuksa]")
    return Databroker(read_settings(root, "kuksa", DatabrokerSettings))


def kuksa_sources(table: SignalTable, databroker: Databroker, *, apart: bool) -> list[SignalSource]:
    """Return the source of one section `[signals."PATH"]` with the key `kuksa`, or with `apart` one for each path."""
    signals = [(path,) for path in table.kuksa] if apart else [table.kuksa]
    return [
        KuksaSource(
            databroker,
            VehicleSignal(
                paths=paths,
                fresh_s=table.fresh_s,
                zone=table.utm,
                offset_x=table.offset_x or Fraction(0),
                offset_y=table.offset_y or Fraction(0),
            ),
        )
        for paths in signals
    ]
