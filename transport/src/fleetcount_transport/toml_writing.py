"""What commands write as TOML: tables of rows whose values are TOML already.

It must not know what a table means. `toml_table` reads.
"""

import base64
import json
from collections.abc import Iterable, Mapping


def toml_text(value: str) -> str:
    """Return a text as a TOML basic string."""
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def toml_base64(value: bytes) -> str:
    """Return bytes as a TOML string in base64."""
    return toml_text(base64.b64encode(value).decode())


def toml_tables(comment: str, tables: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Return a TOML file: a first line of comment, then each table's heading ("[grpc]", "[[peers]]") and its rows.

    A heading "" stands for the rows above every table. A value is TOML; what it has behind two blanks and a # stays.
    """
    parts = [f"# {comment}"]
    for heading, rows in tables:
        parts += ["", heading] if heading else []
        parts += [f"{key} = {value}" for key, value in rows.items()]
    return "\n".join(parts) + "\n"
