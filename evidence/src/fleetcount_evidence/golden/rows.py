"""The rows of a golden file: fields read by name and type, every refusal by name.

It must not compute or compare anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis.errors import AnalysisError

LARGEST_EXPONENT: Final = 100_000
"""Numbers are read from 1e-100000 on: p**U of a long question is far below what a float holds, and compared exactly."""
_SHOWN: Final = 80
_FLOAT_BITS: Final = 1000
_DIGITS: Final = Context(prec=15, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)


class MalformedGoldenError(AnalysisError):
    """A golden file does not have the fields or the types of its group; the message names group, row and field."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """A number of a file that is too large, too small or too long to be judged; its row is a miss, the others are not.

    `message` names it and what is allowed.
    """

    message: str

    @classmethod
    def within(cls, value: object) -> "Beyond | None":
        """Return the first such number in a value as it was parsed, None if there is none."""
        if isinstance(value, Beyond):
            return value
        parts: Iterable[object] = ()
        if isinstance(value, Mapping):
            parts = cast("Mapping[str, object]", value).values()  # A JSON object.
        elif isinstance(value, list):
            parts = cast("list[object]", value)  # A JSON list.
        return next((found for part in parts if (found := cls.within(part))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRow:
    """A row's fields, read by name and type; every field must be read or compared in the end.

    Raises:
        MalformedGoldenError: (each method) the field is missing or of another type.
    """

    where: str
    fields: Mapping[str, object]
    used: set[str] = field(default_factory=set[str])

    def raw(self, name: str) -> object:
        """Return a field as it was parsed."""
        if name not in self.fields:
            raise MalformedGoldenError(f"{self.where}: field {name!r} is missing")
        self.used.add(name)
        return self.fields[name]

    def exact(self, name: str) -> Fraction:
        """Return a number as the exact fraction of its decimal text."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise self.malformed(name, value, "a number")
        return Fraction(value)

    def real(self, name: str) -> float:
        """Return a number as a float."""
        return float(self.exact(name))

    def integer(self, name: str) -> int:
        """Return an integer."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.malformed(name, value, "an integer")
        return value

    def ratio(self, name: str) -> Fraction:
        """Return a text like '9/10' as a fraction."""
        return ratio_of(self.raw(name), f"{self.where}.{name}")

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers."""
        return integers_of(self.raw(name), f"{self.where}.{name}")

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of integers."""
        value = self.raw(name)
        if not isinstance(value, list):
            raise self.malformed(name, value, "a list of pairs of integers")
        rows = [integers_of(row, f"{self.where}.{name}") for row in cast("list[object]", value)]  # A JSON list.
        if any(len(row) != 2 for row in rows):
            raise self.malformed(name, value, "a list of pairs of integers")
        return tuple((first, second) for first, second in rows)

    def malformed(self, name: str, value: object, wanted: str) -> MalformedGoldenError:
        """Return the error for a field of a wrong type."""
        return MalformedGoldenError(f"{self.where}: field {name!r} is {shown(value)}; it must be {wanted}")


def ratio_of(value: object, where: str) -> Fraction:
    """Return a text like '9/10', or a number, as a fraction.

    Raises:
        MalformedGoldenError: it is neither.
    """
    if isinstance(value, str) and len(value) <= _SHOWN:
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            pass
    elif isinstance(value, int | Fraction) and not isinstance(value, bool):
        return Fraction(value)
    raise MalformedGoldenError(f"{where} is {shown(value)}; it must be a fraction like '9/10'")


def integers_of(value: object, where: str) -> tuple[int, ...]:
    """Return a list of integers as a tuple.

    Raises:
        MalformedGoldenError: it is something else.
    """
    items = cast("list[object]", value) if isinstance(value, list) else [None]  # A JSON list, or a sure refusal.
    found = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))
    if len(found) != len(items):
        raise MalformedGoldenError(f"{where} is {shown(value)}; it must be a list of integers")
    return found


def shown(value: object, most: int = _SHOWN) -> str:
    """Return a value for a message, at most 80 characters long or as many as `most` says."""
    text = _decimal_text(value) if isinstance(value, Fraction) else repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _decimal_text(value: Fraction) -> str:
    """Return a number as a float shows it, beyond a float's range to 15 digits."""
    top, bottom = abs(value.numerator).bit_length(), value.denominator.bit_length()
    if not value or abs(top - bottom) < _FLOAT_BITS:
        return repr(float(value))
    return str(_DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator)))
