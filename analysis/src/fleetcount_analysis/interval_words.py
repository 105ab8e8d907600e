"""The words for an interval, the same in terminals, notebooks and pages.

Standard library only; it must not compute an interval end.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final

BELOW_NOISE: Final = "0, below noise"


def interval_text(estimate: float | Decimal | Fraction, low: int, high: int) -> str:
    """Return an interval in words: "7 to 45", or "0, below noise" for 0 to 0 with an estimate below 0.

    Such an interval means that no count is compatible with the estimate. The words "0 to 0" would suggest an exact
    count, which there is only without noise or with one-sided noise.
    """
    return BELOW_NOISE if low == high == 0 and estimate < 0 else f"{low:,} to {high:,}"


def level_text(level: Fraction) -> str:
    """Return the level of an interval in percent: "95 %"."""
    return f"{float(level * 100):g} %"
