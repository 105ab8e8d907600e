"""Values of TOML files: exact numbers, their ranges, and their text in messages.

It must not read a file or a table.
"""

import re
from collections.abc import Collection
from datetime import date, time
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.errors import did_you_mean

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_RATIO: Final = re.compile(r"[+-]?[0-9]{1,30}/0*[1-9][0-9]{0,29}", re.ASCII)
_SHOWN: Final = 60
_LARGEST_EXPONENT: Final = 400


def shown(value: object) -> str:
    """Return a value as text for a message: in the file's spelling, cut at 60 characters."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, Decimal | Fraction):
        text = str(value)
    elif isinstance(value, date | time):
        text = value.isoformat()
    elif isinstance(value, dict):
        text = "a table"
    else:
        try:
            text = repr(value)
        except ValueError:  # Python does not print whole numbers of more than 4,300 digits.
            text = "a very long number"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def nearest(key: str, known: Collection[str]) -> str:
    """Return "did you mean 'x'?", or the list of the known keys."""
    return did_you_mean(key, known).removeprefix("; ") or f"known are: {', '.join(known) or 'none'}"


def exact_number(value: object) -> Fraction | None:
    """Return a whole number, a decimal or a text like "0.05" or "1/20" as its exact value; None for anything else.

    A binary float is refused: it is not exactly the number in the file.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, Decimal):
        sound = value.is_finite() and abs(value.adjusted()) <= _LARGEST_EXPONENT
        return Fraction(value) if sound else None
    if isinstance(value, str) and (_DECIMAL.fullmatch(value) or _RATIO.fullmatch(value)):
        return Fraction(value)
    return None


class Range:
    """The allowed values of an exact number, written as an interval: `Range("(0, 1/2)")`, `Range("[0, 1]")`."""

    __slots__ = ("_high", "_high_included", "_low", "_low_included")

    def __init__(self, text: str) -> None:
        low, high = text[1:-1].split(",")
        self._low, self._high = Fraction(low.strip()), Fraction(high.strip())
        self._low_included, self._high_included = text.startswith("["), text.endswith("]")

    def __contains__(self, value: Fraction) -> bool:
        above = value >= self._low if self._low_included else value > self._low
        return above and (value <= self._high if self._high_included else value < self._high)

    def __str__(self) -> str:
        low = f"{'at least' if self._low_included else 'above'} {self._low}"
        return f"{low} and {'at most' if self._high_included else 'below'} {self._high}"
