"""Exact numbers, spans of whole numbers and lengths of time, as command lines and specification files have them.

ASCII digits only, a point as decimal sign, exact values: a number is never read through a float. Texts outside the
grammar (nan, inf, '1,5', '1_0', full-width digits, blanks) are refused with the value and the allowed range.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, Final

import click
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.limits import DAY_S

from fleetcount.command.options import parse_count, shown_text

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_RATIO: Final = re.compile(r"[+-]?[0-9]{1,30}/0*[1-9][0-9]{0,29}", re.ASCII)
_LENGTH: Final = re.compile(r"([0-9]{1,9}) ?(s|min|h|d)", re.ASCII)
_UNIT_S: Final = {"s": 1, "min": 60, "h": 3600, "d": DAY_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """The allowed values of a number: from `low` to `high`, each end included or not."""

    low: Fraction
    high: Fraction
    low_included: bool = True
    high_included: bool = True

    def __contains__(self, value: Fraction) -> bool:
        above = value >= self.low if self.low_included else value > self.low
        return above and (value <= self.high if self.high_included else value < self.high)

    def __str__(self) -> str:
        low = f"at least {_text(self.low)}" if self.low_included else f"above {_text(self.low)}"
        return f"{low} and {'at most' if self.high_included else 'below'} {_text(self.high)}"


def _text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    decimal = f"{float(value):.12g}"
    return decimal if Fraction(decimal) == value else f"{value.numerator}/{value.denominator}"


def parse_number(text: str, allowed: NumberRange) -> Fraction:
    """Return the exact value of a decimal ('0.45', '1e-3') or a ratio ('9/20').

    Raises:
        ValueError: not a number of the grammar, or outside `allowed`; the message names the value and the range.
    """
    if not (_DECIMAL.fullmatch(text) or _RATIO.fullmatch(text)):
        raise ValueError(f"{shown_text(text)} is not a number like 0.5 or 1/2; it must be {allowed}")
    value = Fraction(text)
    if value not in allowed:
        raise ValueError(f"{shown_text(text)} is out of range; it must be {allowed}")
    return value


def parse_length(text: object) -> int:
    """Return the seconds of a length of time ("10 min", "1h").

    Raises:
        ValueError: not a whole number above 0 with a unit; the message names the value and what is allowed.
    """
    match = _LENGTH.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f'{shown_text(str(text))} is not a length of time like "10 min"; units are s, min, h, d')
    return int(match[1]) * _UNIT_S[match[2]]


def parse_spans(what: str, text: str, low: int, high: int) -> frozenset[int]:
    """Return the numbers of "1,5-9", each from `low` to `high`.

    Raises:
        UsageError: something else, a number outside the range, or a span that goes down.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = parse_count(first, low, high)
            end = parse_count(last, start, high) if dash else start
        except ValueError as error:
            raise UsageError(f"{what} {str(error)[:120]}, as in 1,5-9") from None
        found.update(range(start, end + 1))
    return frozenset(found)


def spans_text(indices: Iterable[int]) -> str:
    """Return window numbers in words: "windows 3 to 5 and 9"."""
    ordered = sorted(indices)
    runs = [list(run) for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0][1]}" if len(run) == 1 else f"{run[0][1]} to {run[-1][1]}" for run in runs]
    what = "window" if len(ordered) == 1 else "windows"
    return f"{what} {', '.join(spans[:-1])}{' and ' if len(spans) > 1 else ''}{spans[-1]}"


class Length(click.ParamType[int]):
    """A length of time, in seconds, from `low` to `high` of them."""

    name = "length"

    def __init__(self, low: int = 1, high: int = 10**9 * DAY_S) -> None:
        self.low = low
        self.high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds, or fail naming the value."""
        if isinstance(value, int):
            return value
        try:
            length = parse_length(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self.low <= length <= self.high:
            allowed = f"{self.low} s to {self.high // DAY_S} d"
            self.fail(f"{shown_text(str(value))} is out of range; it must be {allowed}", param, ctx)
        return length


class ExactNumber(click.ParamType[Fraction]):
    """An exact number inside a range, as a `Fraction`."""

    name = "number"

    def __init__(self, allowed: NumberRange) -> None:
        self.allowed = allowed

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the exact value, or fail naming the value and the range."""
        if isinstance(value, Fraction):
            return value
        try:
            return parse_number(str(value), self.allowed)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Several(click.ParamType[tuple[Any, ...]]):
    """Values of one kind with commas between them."""

    name = "list"

    def __init__(self, one: "click.ParamType[Any]") -> None:
        self.one = one

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values, or fail as their kind does."""
        if isinstance(value, tuple):
            return value
        return tuple(self.one.convert(part.strip(), param, ctx) for part in str(value).split(","))


EPSILON: Final = ExactNumber(NumberRange(low=Fraction(1, 1000), high=Fraction(10)))
"""A privacy loss: 0.001 to 10. Below nothing useful comes out, above nothing is protected."""
SAMPLING_RATE: Final = ExactNumber(NumberRange(low=Fraction(1, 10**6), high=Fraction(1, 2), high_included=False))
"""A sampling rate: at least that of a question, below 1/2."""
SHARE: Final = ExactNumber(NumberRange(low=Fraction(0), high=Fraction(1), low_included=False))
"""A part of a budget: above 0, at most 1."""
WEIGHT: Final = ExactNumber(NumberRange(low=Fraction(0), high=Fraction(10**6), low_included=False))
"""How much one aim counts beside others: above 0, at most 10^6."""
LEVEL: Final = ExactNumber(NumberRange(low=Fraction(1, 2), high=Fraction(999_999, 1_000_000)))
"""The level of an interval."""
POSTERIOR: Final = ExactNumber(NumberRange(low=Fraction(0), high=Fraction(1), low_included=False, high_included=False))
QUANTILE: Final = POSTERIOR
"""Which quantile: strictly between 0 and 1."""
NUMBER: Final = ExactNumber(NumberRange(low=Fraction(-(10**15)), high=Fraction(10**15)))
"""A number in the unit of a question's values."""
DELTA: Final = ExactNumber(NumberRange(low=Fraction(0), high=Fraction(1, 1000), low_included=False))
"""The delta at which a question is stated: above 0, at most 1/1000."""
