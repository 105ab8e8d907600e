"""What a device reads, as it is before a question asks for it: of which kind, and exactly which number or name.

Run by the device and by the simulator alike. It must not know a question.
"""

import enum
import math
import numbers
import re
import struct
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Final, SupportsInt, cast

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.limits import MAX_TEXT_BYTES

Number = int | float | Decimal | Fraction
Signal = Number | str | bool | tuple[Number, Number] | None
"""What a device reads: a number, a text, a truth value, a position (x, y) in the domain's own units, or nothing."""

_SINGLE: Final = struct.Struct("<f")
_MOST_DIGITS: Final = 5000
"""The exponent of a decimal that stands for a number: of 1e999999999 the exact fraction would fill the memory."""


_MOST_PLACES: Final = 28
_SINGLE_BITS: Final = 24
_DOUBLE_BITS: Final = 53


_SMALLEST_NORMAL: Final = 2.0**-126
"""The smallest float32 with all of its digits (IEEE 754, binary32)."""


class Single(float):
    """A number that was sent as a float32; as a double it holds the same value, and more digits than were meant."""

    __slots__ = ()

    def decimal(self) -> Decimal:
        """Return the shortest decimal that reads back as the same float32."""
        wanted = _SINGLE.pack(self)
        # Six digits of a normal number are never too many; numbers below have fewer digits of their own.
        fewest = 6 if abs(self) >= _SMALLEST_NORMAL else 1
        texts = (f"{float(self):.{digits}g}" for digits in range(fewest, 10))
        return Decimal(next(text for text in texts if _SINGLE.pack(float(text)) == wanted))


class Kind(enum.Enum):
    """What a reading is, whatever its value; the words are for the owner."""

    TRUTH_VALUE = "a truth value"
    NUMBER = "a number"
    TEXT = "a text"
    POSITION = "a position"
    OTHER = "a list or an object"


def kind_of(signal: object) -> Kind | None:
    """Return of which kind a reading is; None where there is no value, as of a number that is not finite."""
    match signal:
        case None:
            return None
        case bool():
            return Kind.TRUTH_VALUE
        case str():
            return Kind.TEXT
        case (x, y) if isinstance(signal, tuple) and {kind_of(x), kind_of(y)} <= {None, Kind.NUMBER}:
            return Kind.POSITION
        case numbers.Real() | Decimal():
            return Kind.NUMBER if exact(signal) is not None else None
        case _:
            return Kind.OTHER


def exact(number: object) -> Fraction | None:
    """Return the number that the text of a number says; None for what is not finite, beyond 10**±5000, or no number.

    A binary number stands for its shortest decimal: the double nearest to 2.3 is 23/10, and so is the float32, as a
    `Single` or of NumPy. A `Decimal`, a `Fraction` and a whole number are what they are.
    """
    match number:
        case bool():
            return None
        case Fraction():
            return number
        case numbers.Integral():
            return Fraction(int(cast("SupportsInt", number)))
        case Single() if math.isfinite(number):
            return Fraction(number.decimal())
        case float():
            return _of_decimal(Decimal(float.__repr__(number)))
        case _:
            return _of_decimal(Decimal(str(number))) if isinstance(number, numbers.Real | Decimal) else None


def _of_decimal(number: Decimal) -> Fraction | None:
    if not number.is_finite():
        return None
    if number == 0:
        return Fraction(0)
    return Fraction(number) if abs(number.adjusted()) < _MOST_DIGITS else None


def converted(number: object, factor: Fraction, offset: Fraction) -> Fraction | None:
    """Return factor * number + offset, exactly; None for what is no number (`exact`).

    A binary number stands for all that lie between its neighbours, as whoever sent it may have computed it, and so does
    what it is converted to: of these the decimal with the fewest digits behind the point counts. So 3.6 times the
    float32 of 0.8333333 m/s is 3 km/h.
    """
    value = exact(number)
    if value is None or (factor == 1 and offset == 0):
        return value
    if not isinstance(number, float) or value == 0:
        return factor * value + offset
    return _shortest_within(factor * Fraction(number) + offset, abs(factor) * _step(number))


def _shortest_within(centre: Fraction, reach: Fraction) -> Fraction:
    """Return the nearest of the decimals with the fewest digits behind the point that are within reach of a number."""
    numerator, denominator = centre.as_integer_ratio()
    nearest, scale = (2 * numerator + denominator) // (2 * denominator), 1
    # In whole numbers: |nearest / scale - centre| > reach.
    while abs(nearest * denominator - numerator * scale) * reach.denominator > reach.numerator * scale * denominator:
        scale *= 10
        nearest = (2 * numerator * scale + denominator) // (2 * denominator)
    return Fraction(nearest, scale)


def _step(number: float) -> Fraction:
    """Return the distance between a binary number and the next larger one."""
    _, exponent = math.frexp(number)
    bits = _SINGLE_BITS if isinstance(number, Single) else _DOUBLE_BITS
    return Fraction(2) ** (exponent - bits)


def name_of(signal: object) -> str | None:
    """Return the text by which categories know a reading, in NFC; None for what has none.

    A truth value is "true" or "false", a whole number is its digits: "1", "-40", unless they are longer than any name.
    """
    if isinstance(signal, str):
        return unicodedata.normalize("NFC", signal)
    if isinstance(signal, bool):
        return "true" if signal else "false"
    number = exact(signal)
    if number is None or number.denominator != 1 or abs(number) >= 10**MAX_TEXT_BYTES:
        return None
    return str(number.numerator)


def decimal_text(number: Fraction) -> str:
    """Return a fraction as people write it: as a decimal where it has one of at most 28 places."""
    for places in range(_MOST_PLACES + 1):
        if 10**places % number.denominator == 0:
            scaled = abs(number.numerator) * (10**places // number.denominator)
            whole, behind = divmod(scaled, 10**places)
            sign = "-" if number < 0 else ""
            return f"{sign}{whole}.{behind:0{places}d}" if places else f"{sign}{whole}"
    return str(number)


# How a window names a device's signal, and the one form in which two names are compared.
#
# Signals are paths of the Vehicle Signal Specification (COVESA VSS, "Data Entry"): a look-alike would have a budget of
# its own. It must not read a signal's value: that is the domain's.

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)*", re.ASCII)


def check_signal(signal: str) -> None:
    """Refuse a signal that is not a path as vehicles name it, for example Vehicle.CurrentLocation.

    Raises:
        QuestionError: characters beyond ASCII letters, digits, "_" and ".", a part that does not begin with a letter,
            or more than 200 characters.
    """
    if len(signal) > MAX_TEXT_BYTES or not _PATH.fullmatch(signal):
        raise QuestionError(
            f"signal is {signal[:40]!a}, allowed: at most {MAX_TEXT_BYTES} of A-Z, a-z, 0-9, '_' in parts that begin "
            "with a letter, separated by '.'"
        )


def normal_signal(signal: str) -> str:
    """Return the form in which budgets compare signals: case folded, Unicode normal form NFC.

    Takes any text, so that a ledger's rows from before `check_signal` still compare.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", signal).casefold())
