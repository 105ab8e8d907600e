"""The rows of a golden file: fields read by name and kind; every refusal names the field.

It must not compute or compare anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis.errors import AnalysisError

LARGEST_EXPONENT: Final = 100_000
"""Numbers are read from 1e-100000 on: p**U of a long question is far below what a float holds, and compared exactly."""
_SHOWN: Final = 80
_MOST_DIGITS: Final = 400
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
class Fields:
    """An object of a golden file, its fields read by name and kind; `finish` refuses a field that was not read.

    Raises:
        MalformedGoldenError: (each method) the field is missing or of another kind.
        AnalysisError: (`number`, `whole`) a number that is too large or too small to be judged.
    """

    where: str
    fields: Mapping[str, object]
    used: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, value: object, where: str) -> "Fields":
        """Return the fields of a JSON object."""
        if not isinstance(value, Mapping):
            raise MalformedGoldenError(f"{where} is {shown(value)}; it must be an object")
        return cls(where=where, fields=cast("Mapping[str, object]", value))  # A JSON object.

    def raw(self, name: str) -> object:
        """Return a field as it was parsed."""
        if name not in self.fields:
            raise MalformedGoldenError(f"{self.where}: field {name!r} is missing")
        self.used.add(name)
        return self.fields[name]

    def exact(self, name: str) -> Fraction:
        """Return a JSON number as the exact fraction of its decimal text."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise self._malformed(name, "a number")
        return Fraction(value)

    def real(self, name: str) -> float:
        """Return a JSON number as a float."""
        return float(self.exact(name))

    def integer(self, name: str) -> int:
        """Return a JSON integer."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._malformed(name, "an integer")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of JSON integers."""
        return tuple(self._of_item(name, item).integer(name) for item in self._list(name))

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of JSON integers."""
        found = [self._of_item(name, item).integers(name) for item in self._list(name)]
        if any(len(pair) != 2 for pair in found):
            raise self._malformed(name, "a list of pairs of integers")
        return tuple((first, second) for first, second in found)

    def number(self, name: str) -> Fraction:
        """Return a number, or its text: decimal, or a fraction like '9/10'."""
        return number_of(self.raw(name), f"{self.where}.{name}")

    def whole(self, name: str) -> int:
        """Return an integer, or its text."""
        value = self.number(name)
        if value.denominator != 1:
            raise self._malformed(name, "an integer")
        return value.numerator

    def items(self, name: str) -> Sequence[object]:
        """Return a list of at least one entry."""
        found = self._list(name)
        if not found:
            raise self._malformed(name, "a list of at least one entry")
        return found

    def names(self, _name: str) -> Sequence[str]:
        """Return the names of all fields."""
        self.used.update(self.fields)
        return tuple(self.fields)

    def finish(self, compared: Iterable[str] = ()) -> None:
        """Check that every field was read, or is `compared`."""
        unknown = sorted(set(self.fields) - self.used - set(compared))
        if unknown:
            raise MalformedGoldenError(f"{self.where}: field {shown(unknown[0])} is not one of this group")

    def _list(self, name: str) -> Sequence[object]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise self._malformed(name, "a list")
        return cast("list[object]", value)  # A JSON list.

    def _of_item(self, name: str, item: object) -> "Fields":
        return Fields(where=self.where, fields={name: item})

    def _malformed(self, name: str, wanted: str) -> MalformedGoldenError:
        return MalformedGoldenError(f"{self.where}: field {name!r} is {shown(self.fields[name])}; it must be {wanted}")


def number_of(value: object, where: str) -> Fraction:
    """Return a number, or its text of any size up to 1e100000: decimal, or a fraction like '9/10'.

    Raises:
        MalformedGoldenError: `value` is neither.
        AnalysisError: the number is too large or too small to be judged.
    """
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
        return Fraction(value)
    try:
        if not isinstance(value, str) or len(value) > _MOST_DIGITS:
            raise ValueError("no short text")
        top, _, bottom = value.partition("/")
        parts = [Decimal(part) for part in ((top, bottom) if bottom else (top,))]
        if not all(part.is_finite() for part in parts) or (bottom and not parts[1]):
            raise ValueError("no number")
    except (ValueError, InvalidOperation):
        raise MalformedGoldenError(f"{where} is {shown(value)}; it must be a number like '0.5' or '9/10'") from None
    # Before the fraction is made: Fraction("1e999999999") would take all memory.
    if any(part and abs(part.adjusted()) > LARGEST_EXPONENT for part in parts):
        raise AnalysisError(f"{where} is {shown(value)}, allowed: 1e-{LARGEST_EXPONENT} to 1e{LARGEST_EXPONENT}, or 0")
    return Fraction(parts[0]) / (Fraction(parts[1]) if bottom else 1)


def shown(value: object, most: int = _SHOWN) -> str:
    """Return a value as a text for a message, cut to `most` characters."""
    text = _decimal_text(value) if isinstance(value, Fraction) else repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _decimal_text(value: Fraction) -> str:
    """Return the text of the nearest float; for a number beyond a float's range, 15 digits."""
    top, bottom = abs(value.numerator).bit_length(), value.denominator.bit_length()
    if not value or abs(top - bottom) < _FLOAT_BITS:
        return repr(float(value))
    return digits_of(value)


def digits_of(number: Fraction) -> str:
    """Return a number as a decimal of 15 digits, whatever its size."""
    return str(_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator)))
