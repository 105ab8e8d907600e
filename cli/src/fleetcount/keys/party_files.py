"""The configuration files of those who ask, answer and carry: analyst, device and relay, as commands write them.

Texts alone; it must not write a file or make a key.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fleetcount_protocol.window.fields import Aggregator
from fleetcount_transport.toml_writing import toml_base64, toml_tables, toml_text

TEST: Final = "of a test deployment, by `fleetcount keys init`. Every path is relative to this file."
"""What the first line says of a party that `keys init` made, behind what it is."""
Tables = Iterable[tuple[str, Mapping[str, str]]]


def trusted_table(one: Aggregator) -> tuple[str, dict[str, str]]:
    """Return the [[aggregators]] of a party that trusts an aggregator, with where it is reached."""
    rows = {
        "id": toml_text(one.aggregator_id),
        "operator": toml_text(one.operator),
        "signing_public_key": toml_base64(one.signing_public_key),
        "grpc_endpoint": toml_text(one.grpc_endpoint),
    }
    return "[[aggregators]]", rows


def reader_toml(
    deployment: str,
    aggregators: Sequence[Aggregator],
    *,
    name: str = "analyst",
    ca_file: str = "../ca/aggregators.crt",
    comment: str = f"One analyst {TEST}",
) -> str:
    """Return an analyst's configuration file, its key and certificate beside it."""
    rows = {
        "deployment": toml_text(deployment),
        "certificate_file": toml_text(f"{name}.crt"),
        "key_file": toml_text(f"{name}.key"),
        "aggregator_ca_file": toml_text(ca_file),
    }
    return toml_tables(comment, [("[reader]", rows), *map(trusted_table, aggregators)])


def device_toml(
    deployment: str,
    aggregators: Sequence[Aggregator],
    *,
    transport: str,
    tables: Tables,
    policy: Mapping[str, str],
    signals: Mapping[str, Mapping[str, str]],
    name: str = "device",
    comment: str = f"One device {TEST}",
) -> str:
    """Return a device's configuration file, its key and certificate beside it.

    `tables` are those of the transport, `policy` what the owner allows, `signals` where the value of each path is from.
    """
    own = {
        "deployment": toml_text(deployment),
        "state_file": '"device.db"',
        "certificate_file": toml_text(f"{name}.crt"),
        "key_file": toml_text(f"{name}.key"),
        "transport": toml_text(transport),
    }
    return toml_tables(
        comment,
        [
            ("[device]", own),
            *tables,
            ("[policy]                            # what the owner allows; a window beyond it is refused", policy),
            *map(trusted_table, aggregators),
            *((f"[signals.{toml_text(path)}]", rows) for path, rows in signals.items()),
        ],
    )
