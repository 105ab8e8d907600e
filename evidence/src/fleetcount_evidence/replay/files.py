"""Reads JSON vector files and their fields; refuses a field that is missing or of the wrong form.

It checks forms only; `vectors` interprets the values. Every function raises `VectorFileError` for such a field.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

from fleetcount_protocol.errors import UsageError

MAX_FILE_BYTES: Final = 64 << 20
"""Largest vector file that is read: 64 MiB."""

JsonObject = Mapping[str, object]
"""A JSON object."""

_Entry = TypeVar("_Entry")


class VectorFileError(UsageError):
    """A file is not a vector file: unreadable, not JSON, or a field is missing or of the wrong form."""


def read_json(path: Path) -> object:
    """Return the content of a JSON file.

    Raises:
        VectorFileError: the file is unreadable, larger than 64 MiB, or not JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise VectorFileError(f"{path.name} has more than {MAX_FILE_BYTES} bytes")
        return json.loads(content)
    except OSError as error:
        raise VectorFileError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise VectorFileError(f"{path.name} is not JSON: {error}") from error


def value_of(record: JsonObject, name: str) -> object:
    """Return the value of a field, of any form.

    Raises:
        VectorFileError: the field is missing.
    """
    if name not in record:
        raise VectorFileError(f"field {name!r} is missing")
    return record[name]


def text_of(record: JsonObject, name: str) -> str:
    """Return a text."""
    value = value_of(record, name)
    if not isinstance(value, str):
        raise VectorFileError(f"field {name!r} is not a text")
    return value


def hex_of(record: JsonObject, name: str) -> bytes:
    """Return the bytes of a hexadecimal text."""
    return _from_hex(text_of(record, name), name)


def _from_hex(text: object, name: str) -> bytes:
    if not isinstance(text, str) or not re.fullmatch(r"(?:[0-9a-fA-F]{2})*", text):
        raise VectorFileError(f"field {name!r} is not hexadecimal")
    return bytes.fromhex(text)


def entries_of(record: JsonObject, name: str) -> list[object]:
    """Return a list, its entries unchecked."""
    value = value_of(record, name)
    if not isinstance(value, list):
        raise VectorFileError(f"field {name!r} is not a list")
    return cast("list[object]", value)  # Every caller checks the entries.


def hexes_of(record: JsonObject, name: str) -> list[bytes]:
    """Return a list of hexadecimal texts as bytes."""
    return [_from_hex(entry, name) for entry in entries_of(record, name)]


def records_of(entries: Sequence[object], name: str) -> list[JsonObject]:
    """Return entries as a list of objects.

    Raises:
        VectorFileError: an entry is not an object.
    """
    if not all(isinstance(entry, dict) for entry in entries):
        raise VectorFileError(f"an entry of {name} is not an object")
    return cast("list[JsonObject]", list(entries))  # Checked above; the keys of a JSON object are texts.


def integer_of(record: JsonObject, name: str) -> int:
    """Return a whole number."""
    value = value_of(record, name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise VectorFileError(f"field {name!r} is not a whole number")
    return value


def integers_of(record: JsonObject, *names: str) -> list[int]:
    """Return several whole numbers."""
    return [integer_of(record, name) for name in names]


def proofs_of(record: JsonObject) -> list[int]:
    """Return the number of proofs in a list, or an empty list when the object does not give it."""
    return [integer_of(record, "proofs")] if "proofs" in record else []


def flag_of(record: JsonObject, name: str) -> bool:
    """Return true or false."""
    value = value_of(record, name)
    if not isinstance(value, bool):
        raise VectorFileError(f"field {name!r} is not true or false")
    return value


def numbers_of(record: JsonObject, name: str) -> list[int]:
    """Return a list of whole numbers; decimal texts are read too: some readers of JSON lose digits above 2**53."""
    entries = [str(entry) for entry in entries_of(record, name) if not isinstance(entry, bool | float)]
    if len(entries) != len(entries_of(record, name)) or not all(
        re.fullmatch(r"[0-9]{1,40}", entry) for entry in entries
    ):
        raise VectorFileError(f"field {name!r} is not a list of whole numbers")
    return [int(entry) for entry in entries]


def entry_at(entries: Sequence[_Entry], index: int, name: str) -> _Entry:
    """Return the entry with this index.

    Raises:
        VectorFileError: the index is out of range.
    """
    if not 0 <= index < len(entries):
        raise VectorFileError(f"{name} has {len(entries)} entries, none with index {index}")
    return entries[index]
