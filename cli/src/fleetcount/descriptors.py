"""An aggregator's public descriptor: the small TOML file that its operator gives to the authors of tasks.

Public parts only: id, operator, endpoints, public keys. Opens no connection.
"""

import base64
import binascii
import json
import tomllib
from pathlib import Path
from typing import Final, cast

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task.task import Aggregator, HpkeKey
from fleetcount_transport.toml_table import Table

from fleetcount.files import read_text

__all__ = ["encode_descriptor", "parse_toml", "read_descriptor", "toml_text"]

_KEYS: Final = ("id", "operator", "grpc_endpoint", "mqtt_broker", "signing_public_key", "hpke_keys")
_MAX_BYTES: Final = 2**20


def toml_text(value: str) -> str:
    """Return a text as a TOML basic string."""
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def parse_toml(path: Path) -> dict[str, object]:
    """Return the content of a TOML file.

    Raises:
        UsageError: it cannot be read, or is not TOML; with the line.
    """
    try:
        return tomllib.loads(read_text(path, largest=_MAX_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def encode_descriptor(aggregator: Aggregator) -> str:
    """Return the descriptor file of an aggregator."""
    rows = [
        "# Public description of one aggregator: give it to the authors of tasks. It holds no secret.",
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
    table = Table(path, "", parse_toml(path), _KEYS)
    rows = table.raw("hpke_keys")
    if not isinstance(rows, list) or not rows:
        raise table.refuse("hpke_keys", "one or more [[hpke_keys]] tables")
    try:
        return Aggregator(
            aggregator_id=AggregatorId(table.text("id", r"[^\0]*", "an aggregator id")),
            operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
            grpc_endpoint=table.endpoint("grpc_endpoint") if table.raw("grpc_endpoint") else "",
            mqtt_broker=table.endpoint("mqtt_broker") if table.raw("mqtt_broker") else "",
            hpke_keys=tuple(_hpke_key(path, i, row) for i, row in enumerate(cast("list[object]", rows))),
            signing_public_key=table.base64_bytes("signing_public_key", 32),
        )
    except DecodeError as error:
        raise UsageError(f"{path}: {error}") from error


def _hpke_key(path: Path, number: int, row: object) -> HpkeKey:
    table = Table(path, f"hpke_keys[{number}]", row, ("key_id", "public_key"))
    key_id = table.integer("key_id", 0, 255)
    value = table.raw("public_key")
    try:
        # X25519 has 32 bytes, the post-quantum hybrid 1,216: the task's own rules judge the size.
        return HpkeKey(key_id=key_id, public_key=base64.b64decode(str(value), validate=True))
    except (binascii.Error, ValueError) as error:
        raise table.refuse("public_key", "base64") from error
