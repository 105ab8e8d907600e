"""Texts of a figure: short forms of numbers, and texts with only characters that its font can draw.

A character that the font of matplotlib lacks is written as its code point, in brackets.
"""

import math
import unicodedata
from decimal import ROUND_CEILING, ROUND_FLOOR
from functools import lru_cache
from typing import Final

from matplotlib.font_manager import FontProperties, findfont, get_font

from fleetcount_analysis.interval_words import rounded

_UNITS: Final = ((1e9, "bn"), (1e6, "M"), (1e4, "k"))


def number(value: float, rounding: str = "") -> str:
    """Return a short form of a number, such as 1,234 or 12k or 3.5M, with three significant digits.

    Without a `rounding` (`fleetcount_analysis.interval_words.rounded`) it is rounded to the nearest.
    """
    if not math.isfinite(value):
        return "–"
    if rounding:
        # Once more, because it may have reached the next unit, which shows fewer digits.
        value = _short_of(_short_of(value, rounding), rounding)
    size = abs(value)
    for unit, word in _UNITS:
        if size >= unit * 0.9995:
            divisor = 1e3 if word == "k" else unit
            return f"{_digits(value / divisor)}{word}"
    return _digits(value)


def _short_of(value: float, rounding: str) -> float:
    """Return a number that has no more digits than its short form shows."""
    size = abs(value)
    places = (2 if size >= 0.01 else 1) - math.floor(math.log10(size)) if size else 0
    return float(rounded(value, places if size >= _UNITS[-1][0] * 0.9995 else max(places, 0), rounding))


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        text = f"{value:,.0f}"
    elif size >= 0.01 or size == 0:
        text = f"{value:.3g}"
    elif size >= 1e-4:
        text = f"{value:.2g}"
    else:
        # A tiny number as "2.5e-7" or "1e-6", without zeros in front of the exponent.
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return "0" if text in {"-0", "0"} else text.replace("-", "−")


def percent(share: float, rounding: str = "") -> str:
    """Return a share, 0 to 1, in percent, with one decimal place unless it is 0; `rounding` as of `number`."""
    if not math.isfinite(share):
        return "–"
    shown = 100 * (rounded(share, 3, rounding) if rounding else share)
    return f"{shown:.1f}".removesuffix(".0").replace("-", "−") + " %"


def loss(epsilon: float, delta: float = 0.0) -> str:
    """Return an epsilon, with its delta unless it is 0, in words, both rounded up: a promise is never too good."""
    text = number(epsilon, ROUND_CEILING)
    return f"{text}, delta {number(delta, ROUND_CEILING)}" if delta else text


def ends(low: float, high: float, *, share: bool = False) -> str:
    """Return the ends of an interval in words, rounded outwards: "7.9 to 8.2"."""
    form = percent if share else number
    return f"{form(low, ROUND_FLOOR)} to {form(high, ROUND_CEILING)}"


def printable(text: str) -> str:
    """Return a text that XML allows: a control character or half of a surrogate pair becomes a blank."""
    return "".join(" " if unicodedata.category(c) in {"Cc", "Cs", "Cn"} else c for c in text)


def short(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def drawable(text: str, most: int = 200) -> str:
    """Return a text of at most `most` characters that the font has; any other becomes, for example, [U+9053]."""
    letters = _letters()
    shown = "".join(letter if ord(letter) in letters else f"[U+{ord(letter):04X}]" for letter in printable(text))
    return short(shown, most)


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
