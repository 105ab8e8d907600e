"""The line of a dotted key in a TOML text, for messages.

It reads lines, not TOML: it searches for headers and for `key =` at the start of a line, and returns None when it does
not find the key that way. Nothing but the text of messages depends on it.
"""

import re
from collections import Counter
from typing import Final

_HEADER: Final = re.compile(r"\s*(\[\[|\[)\s*([^\[\]]{1,200}?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"' -]{1,200}?)\s*=(?!=)")


def line_of_key(text: str, path: str, *, exact: bool = False) -> int | None:
    """Return the line (from 1) of a dotted key such as "mechanism[1].epsilon", or None.

    Elements of [[tables]] are numbered from 0. Unless `exact`, a key that is not found gets the line of the nearest
    enclosing table.
    """
    lines, path = _lines_of_keys(text), path.replace('"', "")
    while path:
        if path in lines:
            return lines[path]
        if exact:
            return None
        if f"{path}[0]" in lines:
            return lines[f"{path}[0]"]
        path = path[: path.rindex("[")] if path.endswith("]") else path.rpartition(".")[0]
    return None


def _lines_of_keys(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    elements: Counter[str] = Counter()
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = _plain(header[2])
            if header[1] == "[[":
                elements[table] += 1
                table = f"{table}[{elements[table] - 1}]"
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            name = _plain(key[1])
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
