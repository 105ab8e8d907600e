"""An interval and its number as people read them: the same words in terminals, notebooks and pages.

Standard library only; it must not compute an end.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final

BELOW_NOISE: Final = "0, below noise"


def interval_text(estimate: float | Decimal | Fraction, low: int, high: int) -> str:
    """Return an interval in words: "7 to 45"; "0, below noise" where no count explains an estimate far below 0.

    There the nearest possible count stands for the interval. "0 to 0" would read as an exact count, which it is only
    without noise, or with noise on one side.
    """
    return BELOW_NOISE if low == high == 0 and estimate < 0 else f"{low:,} to {high:,}"


def level_text(level: Fraction) -> str:
    """Return the level of an interval in percent: "95 %"."""
    return f"{float(level * 100):g} %"
