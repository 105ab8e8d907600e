"""An aggregator's public descriptor: the small TOML file that its operator gives to the authors of questions.

Public parts only: id, operator, endpoints, public keys. Opens no connection.
"""

import base64
import json
import re
from pathlib import Path
from typing import Final

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import check_host, split_endpoint
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_transport.toml_table import Table, read_toml

_KEYS: Final = ("id", "operator", "grpc_endpoint", "mqtt_broker", "signing_public_key", "hpke_keys")


def toml_text(value: str) -> str:
    """Return a text as a TOML basic string."""
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def encode_descriptor(aggregator: Aggregator) -> str:
    """Return the descriptor file of an aggregator."""
    rows = [
        "# Public description of one aggregator: give it to the authors of questions. It holds no secret.",
        f"id = {toml_text(aggregator.aggregator_id)}",
        f"operator = {toml_text(aggregator.operator)}",
        f"grpc_endpoint = {toml_text(aggregator.grpc_endpoint)}",
        f"mqtt_broker = {toml_text(aggregator.mqtt_broker)}",
        f'signing_public_key = "{base64.b64encode(aggregator.signing_public_key).decode()}"',
    ]
    for key in aggregator.hpke_keys:
        rows += ["", "[[hpke_keys]]", f"key_id = {key.key_id}"]
        rows += [f'public_key = "{base64.b64encode(key.public_key).decode()}"']
    return "\n".join(rows) + "\n"


def read_descriptor(path: Path) -> Aggregator:
    """Return the aggregator a descriptor file describes.

    Raises:
        UsageError: not TOML, an unknown or missing key, a wrong value; with the file's name and the key.
    """
    table = read_toml(path, _KEYS)
    return Aggregator(
        aggregator_id=table.aggregator_id("id"),
        operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
        grpc_endpoint=table.endpoint("grpc_endpoint") if table.raw("grpc_endpoint") else "",
        mqtt_broker=table.endpoint("mqtt_broker") if table.raw("mqtt_broker") else "",
        hpke_keys=tuple(map(_hpke_key, table.sections("hpke_keys", ("key_id", "public_key"), least=1, most=256))),
        signing_public_key=table.base64_bytes("signing_public_key", 32),
    )


def _hpke_key(table: Table) -> HpkeKey:
    # X25519 has 32 bytes, the post-quantum hybrid 1,216: the rules of a key list judge the size.
    return HpkeKey(key_id=table.integer("key_id", 0, 255), public_key=table.base64_bytes("public_key"))


def check_names(deployment: str, host: str, broker: str) -> None:
    """Refuse names that no deployment can have; "" stands for no broker.

    Raises:
        UsageError: with the option, its value and what is allowed.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", deployment, re.ASCII):
        raise UsageError(f"--deployment is {deployment[:40]!r}; it must be 1 to 32 of a-z, 0-9 and '-'")
    if not check_host(f"[{host}]" if ":" in host else host):
        raise UsageError(f"--host is {host[:40]!r}; it must be a host name or an address")
    try:
        if broker:
            split_endpoint(broker)
    except UsageError as error:
        raise UsageError(f"--broker: {error}") from None
