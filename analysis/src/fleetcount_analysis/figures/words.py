"""Words of a figure: numbers as a reader says them, and texts as wide as the font draws them.

It measures with the font that comes with matplotlib. What that font lacks is written as its code point, in brackets.
"""

import math
import unicodedata
from functools import lru_cache
from typing import Any, Final

from matplotlib.font_manager import FontProperties, findfont, get_font

from fleetcount_analysis.figures.style import FONT_PX

_MEASURED_AT: Final = 100
"""Size in pixels at which letters are measured."""


def number(value: float) -> str:
    """Return a number as a reader says it: 1,234 or 12k or 3.5M, three digits that count."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    for unit, word in ((1e9, "bn"), (1e6, "M"), (1e4, "k")):
        if size >= unit * 0.9995:
            divisor = 1e3 if word == "k" else unit
            return f"{_digits(value / divisor)}{word}"
    return _digits(value)


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        text = f"{value:,.0f}"
    elif size >= 0.01 or size == 0:
        text = f"{value:.3g}"
    else:
        text = _power(value) if size < 1e-4 else f"{value:.2g}"
    return "0" if text in {"-0", "0"} else text.replace("-", "−")


def _power(value: float) -> str:
    """Return a tiny number as "2.5e-7", "1e-6": without the zeros that say nothing."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def percent(share: float) -> str:
    """Return a share in percent, one place after the point where it is needed."""
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f}".removesuffix(".0").replace("-", "−") + " %"


def printable(text: str) -> str:
    """Return a text without what XML cannot hold: a control character or half a surrogate pair becomes a blank."""
    return "".join(" " if unicodedata.category(c) in {"Cc", "Cs", "Cn"} else c for c in text)


def drawable(text: str) -> str:
    """Return a printable text in letters that the font has: another is written as "[U+9053]"."""
    return "".join(map(_drawn, printable(text)))


def text_width(text: str, size: float = FONT_PX, *, bold: bool = False) -> float:
    """Return how wide a text is drawn, in pixels, without kerning."""
    return sum(_em(letter, bold) for letter in printable(text)) * size


def fitted(text: str, width: float, size: float = FONT_PX, *, bold: bool = False) -> str:
    """Return a printable text cut, with dots, to so many pixels."""
    text = printable(text)
    if text_width(text, size, bold=bold) <= width:
        return text
    room = width / size - _em("…", bold)
    kept = 0
    for letter in text:
        room -= _em(letter, bold)
        if room < 0:
            break
        kept += 1
    return text[:kept] + "…"


def wrapped(text: str, width: float, size: float = FONT_PX, *, bold: bool = False) -> list[str]:
    """Return a text broken between words into lines of at most so many pixels; a longer word is cut."""
    lines = [""]
    for word in printable(text).split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size, bold=bold) <= width:
            lines[-1] = longer
        else:
            lines.append(fitted(word, width, size, bold=bold))
    return [line for line in lines if line]


def _drawn(letter: str) -> str:
    return letter if ord(letter) in _letters() else f"[U+{ord(letter):04X}]"


@lru_cache(maxsize=4096)
def _em(letter: str, bold: bool) -> float:
    """Return how wide a letter is drawn, in sizes of the font."""
    font = _font(bold)
    font.set_size(_MEASURED_AT, 72)
    # FreeType gives the advance of a letter in 1/65536 pixel.
    advances = [float(font.load_char(ord(one)).linearHoriAdvance) / 65536 for one in _drawn(letter)]
    return sum(advances) / _MEASURED_AT


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    return frozenset(_font(False).get_charmap())


def _font(bold: bool) -> Any:
    # Any: the font is public but without annotations.
    return get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
