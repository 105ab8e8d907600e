"""Keys that tables of several kinds of sources share.

It must not read a signal.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, cast

from fleetcount_transport.toml_table import Table

_DAY_S: Final = 86_400
MOST_JOINED: Final = 64
"""Sources that `any = true` joins at most."""


def fresh_s(table: Table, key: str) -> float:
    """Return a number of seconds up to a day, infinity for "any"."""
    if table.raw(key) == "any":
        return math.inf
    if isinstance(table.raw(key), str):
        raise table.refuse(key, f'a number of seconds from 0.1 to {_DAY_S}, or "any"')
    return table.seconds(key, 0.1, _DAY_S)


def joined(table: Table, key: str, allowed: str, fits: Callable[[object], bool]) -> tuple[str, ...]:
    """Return one text, or the texts of a list: two for a position, or with `any = true` 2 to 64."""
    value = table.raw(key)
    texts = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    most = 1 if not isinstance(value, list) else MOST_JOINED if table.raw("any") is True else 2
    least = min(most, 2)
    if not least <= len(texts) <= most or not all(map(fits, texts)):
        raise table.refuse(key, f"{allowed}; with any = true 2 to {MOST_JOINED}")
    return tuple(map(str, texts))
