"""Scales of a panel: the range of an axis, whether it is logarithmic, its ticks and the words beside them.

Arithmetic only; matplotlib's axes take the result.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from fleetcount_analysis.figures.style import SMALL_PX
from fleetcount_analysis.figures.words import number, percent, text_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A direction: its range, whether it is logarithmic, what it is called, its ticks and how a number is said."""

    low: float
    high: float
    log: bool
    label: str
    ticks: tuple[float, ...]
    said: Callable[[float], str] = number

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one; outside values beyond."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low) if value > 0 else -1.0
        return (value - self.low) / (self.high - self.low)

    def clipped(self, value: float) -> float:
        """Return the value, or the nearer end of the range."""
        return min(max(value, self.low), self.high)

    @property
    def widest(self) -> float:
        """Pixels of the widest word."""
        return max((text_width(self.said(tick), SMALL_PX) for tick in self.ticks), default=0.0)

    def words(self, length: float) -> list[str]:
        """Return the words of the ticks over so many pixels from left to right; "" for one that would touch another."""
        made: list[str] = []
        free = -math.inf
        for tick in self.ticks:
            word = self.said(tick)
            middle, half = self.share(tick) * length, text_width(word, SMALL_PX) / 2
            fits = middle - half >= free
            made.append(word if fits else "")
            free = middle + half + 6 if fits else free
        return made


def scale_of(
    values: Iterable[float],
    label: str,
    *,
    log: bool = False,
    zero: bool = False,
    as_percent: bool = False,
    whole: bool = False,
) -> Scale:
    """Return a scale around the finite values, with ticks at whole numbers only where `whole`.

    `log` holds where all values are positive and differ threefold; `zero` takes 0 in where the scale is linear.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    said = percent if as_percent else number
    if log and low > 0 and high / low >= 3:
        low, high = low / 1.25, high * 1.25
        return Scale(low=low, high=high, log=True, label=label, ticks=_decades(low, high), said=said)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = (low if zero and low == 0 else low - room), high + room
    ticks = MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1).tick_values(low, high)
    inside = tuple(float(tick) for tick in ticks if low <= tick <= high)
    return Scale(low=low, high=high, log=False, label=label, ticks=inside, said=said)


def _decades(low: float, high: float) -> tuple[float, ...]:
    """Return powers of ten, with 2 and 5 times them where there are few, every second or third where there are many.

    Matplotlib's locator leaves the first and the last one out or puts them outside, depending on its version.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return tuple(inside[:: math.ceil(len(inside) / 7)])
