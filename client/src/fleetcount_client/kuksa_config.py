"""The sections of a device's configuration that name a KUKSA databroker and the signals it gives.

Reads no token; it must not connect.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Final, cast

from fleetcount_protocol.ids import is_loopback, split_endpoint
from fleetcount_transport.toml_table import ConfigError, Table
from fleetcount_transport.toml_values import Range

from fleetcount_client.kuksa import Databroker, DatabrokerSettings, KuksaSource, VehicleSignal
from fleetcount_client.private_places import UtmZone

DATABROKER_KEYS: Final = ("address", "ca_file", "server_name", "token_file", "timeout_s", "insecure")
SIGNAL_KEYS: Final = ("kuksa", "fresh_s", "factor", "offset", "utm", "offset_x", "offset_y")
_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_MOST_CHARACTERS: Final = 1000
_ONE_ONLY: Final = ("factor", "offset")
_TWO_ONLY: Final = ("utm", "offset_x", "offset_y")
_ANY_NUMBER: Final = Range("[-1000000000, 1000000000]")


def read_databroker(table: Table) -> Databroker:
    """Return the databroker of the section `[kuksa]`.

    Raises:
        ConfigError: a key that cannot be used, plaintext to another machine, or gRPC that is not installed.
    """
    if find_spec("grpc") is None:
        raise ConfigError("kuksa needs grpc: install fleetcount-client[kuksa] or fleetcount[kuksa]")
    address = table.endpoint("address")
    encrypted, loopback = table.has("ca_file"), is_loopback(split_endpoint(address)[0])
    insecure = table.boolean("insecure", default=False)
    if not encrypted and not loopback and not insecure:
        raise table.refuse("address", "loopback without TLS; give ca_file, or insecure = true if you mean it")
    if table.has("token_file") and not encrypted and not loopback:
        raise table.refuse("token_file", "only together with ca_file: a token would travel in plaintext")
    if table.has("server_name") and not encrypted:
        raise table.refuse("server_name", "only together with ca_file")
    name = r"[A-Za-z0-9._-]{1,253}"
    return Databroker(
        DatabrokerSettings(
            address=address,
            ca_file=table.existing_file("ca_file") if encrypted else None,
            server_name=table.text("server_name", name, "a host name") if table.has("server_name") else "",
            token_file=table.private_file("token_file") if table.has("token_file") else None,
            timeout_s=table.seconds("timeout_s", 0.1, 20, 2.0),
        )
    )


def read_signal_of(table: Table, databroker: Databroker) -> KuksaSource:
    """Return the source of one section `[signals."PATH"]` with the key `kuksa`.

    Raises:
        ConfigError: a key that cannot be used.
    """
    paths = _paths(table)
    for key in _TWO_ONLY if len(paths) == 1 else _ONE_ONLY:
        if table.has(key):
            raise table.wrong(key, f"goes with {'[longitude, latitude]' if len(paths) == 1 else 'one path'} in kuksa")
    return KuksaSource(
        databroker,
        VehicleSignal(
            paths=paths,
            fresh_s=table.seconds("fresh_s", 0.1, 86_400, 60.0),
            factor=table.number("factor", _ANY_NUMBER, Fraction(1)),
            offset=table.number("offset", _ANY_NUMBER, Fraction(0)),
            zone=_zone(table) if table.has("utm") else None,
            offset_x=table.number("offset_x", _ANY_NUMBER, Fraction(0)),
            offset_y=table.number("offset_y", _ANY_NUMBER, Fraction(0)),
        ),
    )


def _paths(table: Table) -> tuple[str, ...]:
    value = table.raw("kuksa")
    paths = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    wanted = 2 if isinstance(value, list) else 1
    names = [one for one in paths if isinstance(one, str) and len(one) <= _MOST_CHARACTERS and _PATH.fullmatch(one)]
    if not len(names) == len(paths) == wanted:
        raise table.refuse("kuksa", 'a VSS path, "Vehicle.Speed", or two: [longitude, latitude]')
    return tuple(names)


def _zone(table: Table) -> UtmZone:
    text = table.text("utm", r"([1-9]|[1-5][0-9]|60)[NS]", 'a zone of UTM: "32N"')
    return UtmZone(number=int(text[:-1]), south=text.endswith("S"))
