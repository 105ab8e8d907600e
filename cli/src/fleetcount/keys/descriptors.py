"""An aggregator's public descriptor: the small TOML file that its operator gives to the authors of questions.

Public parts only: id, operator, endpoints, public keys. Opens no connection.
"""

import base64
import json
from pathlib import Path
from typing import Final

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
