"""The words for an interval, the same in terminals, notebooks and pages.

Standard library only; it must not compute an interval end. An end is rounded outwards wherever it is rounded: what is
shown is never narrower than what is known.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Final

BELOW_NOISE: Final = "0, below noise"
_MOST_PLACES: Final = 12
_EVERY_DIGIT: Final = Context(prec=999)
_ENDLESS: Final = 4
"""Digits behind the point of a number that has endlessly many: rounded down, a level below 100 % never reads as it."""


def interval_text(estimate: float | Decimal | Fraction, low: int, high: int) -> str:
    """Return an interval in words: "7 to 45", or "0, below noise" for 0 to 0 with an estimate below 0.

    Such an interval means that no count is compatible with the estimate. The words "0 to 0" would suggest an exact
    count, which there is only without noise or with one-sided noise.
    """
    return BELOW_NOISE if low == high == 0 and estimate < 0 else f"{low:,} to {high:,}"


def level_text(level: Fraction) -> str:
    """Return the level of an interval in percent, with every digit: "95 %"."""
    return f"{level_digits(level * 100)} %"


def level_digits(value: Fraction) -> str:
    """Return a positive number in digits, all of them where they end within 12 behind the point, else rounded down."""
    ending = value * 10**_MOST_PLACES
    places = _MOST_PLACES if ending.denominator == 1 else _ENDLESS
    whole, part = divmod(math.floor(value * 10**places), 10**places)
    return f"{whole}.{part:0{places}d}".rstrip("0").rstrip(".")


def rounded(number: float, places: int, rounding: str) -> Decimal:
    """Return a finite number, which is taken for its shortest digits, to `places` behind the point.

    `rounding` is one of the standard library's: `ROUND_FLOOR` for a lower end, `ROUND_CEILING` for an upper one.
    """
    return Decimal(repr(float(number))).quantize(Decimal(1).scaleb(-places), rounding, _EVERY_DIGIT)


def number_text(number: float, width: float = 0.0, rounding: str = "") -> str:
    """Return a number to four digits, and all before the point; to a hundredth of the `width` of an interval beside it.

    An interval far from 0 is narrow beside its ends: with four digits alone both may read alike. Without a `rounding`
    (`rounded`) it is rounded to the nearest.
    """
    if not math.isfinite(number):
        return f"{number}"
    sizes = [(abs(number), 3), (width, 2)]
    places = max((digits - math.floor(math.log10(size)) for size, digits in sizes if 0 < size < math.inf), default=0)
    if number and not 1e-4 <= abs(number) < 1e15:
        digits = 3 - math.floor(math.log10(abs(number))) if rounding else 0
        return f"{float(rounded(number, digits, rounding)) if rounding else number:,.4g}"
    places = min(max(places, 0), _MOST_PLACES)
    text = f"{rounded(number, places, rounding) if rounding else number:,.{places}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def numbers_text(low: float, high: float) -> str:
    """Return the ends of an interval of numbers, which may be infinite: "36.5 to 47.4", "40 to ∞"."""
    upper = number_text(high, high - low, ROUND_CEILING) if math.isfinite(high) else "∞"
    return f"{number_text(low, high - low, ROUND_FLOOR)} to {upper}"
