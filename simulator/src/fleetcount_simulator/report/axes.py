"""Axes of a panel: from numbers to pixels, round ticks, grid, and the words beside them.

Arithmetic and marks; what is shown along them is decided elsewhere.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fleetcount_simulator.report.scene import FONT_PX, Lines, Mark, Point, Words, text_width

__all__ = ["Axis", "Frame", "axis_of", "clipped", "number", "percent"]

SMALL_PX: Final = FONT_PX - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A direction: its range, whether it is logarithmic, what it is called, and its ticks with their words."""

    low: float
    high: float
    log: bool
    label: str
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one; outside values beyond."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low) if value > 0 else -1.0
        return (value - self.low) / (self.high - self.low)


def axis_of(
    values: Iterable[float],
    label: str,
    *,
    log: bool = False,
    zero: bool = False,
    as_percent: bool = False,
    whole: bool = False,
) -> Axis:
    """Return an axis around the finite values, with ticks at whole numbers only where `whole`.

    `log` holds where all values are positive and differ threefold; `zero` takes 0 in where the axis is linear.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if log and low > 0 and high / low >= 3:
        low, high = low / 1.25, high * 1.25
        return Axis(low=low, high=high, log=True, label=label, ticks=_named(_decades(low, high), as_percent))
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = (low if zero and low == 0 else low - room), high + room
    ticks = [tick for tick in _round_steps(low, high) if not whole or abs(tick - round(tick)) < 1e-9]
    return Axis(low=low, high=high, log=False, label=label, ticks=_named(ticks, as_percent))


def _named(values: Sequence[float], as_percent: bool) -> tuple[tuple[float, str], ...]:
    return tuple((value, percent(value) if as_percent else number(value)) for value in values)


def _round_steps(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten within the range."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten, with 2 and 5 times them where there are few, every second or third where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside[:: math.ceil(len(inside) / 7)]


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
        text = f"{value:.1e}" if size < 1e-4 else f"{value:.2g}"
    return "0" if text in {"-0", "0"} else text.replace("-", "−")


def percent(share: float) -> str:
    """Return a share in percent, one place after the point where it is needed."""
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f}".removesuffix(".0").replace("-", "−") + " %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Two axes in a panel of `width` by `height` pixels; the plot lies between `left`, `right`, `top` and `bottom`."""

    x: Axis
    y: Axis
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @classmethod
    def around(cls, x: Axis, y: Axis, width: float, height: float, *, title: str = "", left: float = 0.0) -> "Frame":
        """Return axes with room for their words; `left` is room wanted at the left, if more than the ticks need."""
        ticks = max([text_width(word, SMALL_PX) for _, word in y.ticks] or [0.0])
        top = (22.0 if title else 4.0) + (20.0 if y.label else 4.0)
        return cls(
            x=x,
            y=y,
            width=width,
            height=height,
            left=max(left, ticks + 10),
            right=width - 14,
            top=top,
            bottom=height - 42,
        )

    def px(self, value: float) -> float:
        """Return the pixel of a number along x."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def py(self, value: float) -> float:
        """Return the pixel of a number along y; the low end is at the bottom."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def point(self, x: float, y: float) -> Point:
        """Return where a pair of numbers lies, held inside the frame."""
        return clipped(self.px(x), self.left, self.right), clipped(self.py(y), self.top, self.bottom)

    def marks(self, title: str = "", *, y_grid: bool = True) -> list[Mark]:
        """Return grid, axis lines, ticks and labels."""
        across = [self.px(value) for value, _ in self.x.ticks]
        up = [self.py(value) for value, _ in self.y.ticks]
        grid = [[(x, self.top), (x, self.bottom)] for x in across]
        grid += [[(self.left, y), (self.right, y)] for y in up] if y_grid else []
        made: list[Mark] = [Lines(lines=grid, colour="grid")]
        made.append(Lines(lines=[[(self.left, self.bottom), (self.right, self.bottom)]], colour="rule"))
        made += self._across_words(across)
        for y, (_, word) in zip(up, self.y.ticks, strict=True):
            made.append(Words(x=self.left - 6, y=y + 4, text=word, size=SMALL_PX, colour="soft", anchor="end"))
        middle = self.height - 6
        made.append(Words(x=self.right, y=middle, text=self.x.label, size=SMALL_PX, colour="soft", anchor="end"))
        if title:
            made.append(Words(x=2, y=15, text=title, bold=True))
        if self.y.label:
            made.append(Words(x=2, y=self.top - 10, text=self.y.label, size=SMALL_PX, colour="soft"))
        return made

    def _across_words(self, across: Sequence[float]) -> list[Mark]:
        """Return the words under the x axis, leaving out those that would touch the one before."""
        made: list[Mark] = []
        free = -math.inf
        for x, (_, word) in zip(across, self.x.ticks, strict=True):
            half = text_width(word, SMALL_PX) / 2
            if x - half < free:
                continue
            free = x + half + 6
            made.append(Words(x=x, y=self.bottom + 16, text=word, size=SMALL_PX, colour="soft", anchor="middle"))
        return made


def clipped(value: float, low: float, high: float) -> float:
    """Return the value, or the nearer end of the range."""
    return min(max(value, low), high)
