"""Panels of three kinds: lines along an axis, one row a thing, and many cases in a row by rank; and their key.

Turns measures into marks. Error bars are thin lines behind the dots; every dot says its numbers when pointed at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleetcount_simulator.report.axes import Axis, Frame, axis_of, clipped, number, percent
from fleetcount_simulator.report.scene import FONT_PX, Areas, Dots, Lines, Mark, Panel, Point, Words, fitted, text_width
from fleetcount_simulator.report.study import Measure

__all__ = [
    "LABEL_PX",
    "WIDTH_PX",
    "Curve",
    "Item",
    "Style",
    "key_panel",
    "line_panel",
    "rank_panel",
    "row_panel",
    "said",
    "styles",
]

WIDTH_PX: Final = 440.0
_HEIGHT_PX: Final = 300.0
_ROW_PX: Final = 22.0
LABEL_PX: Final = 190.0
"""Most room that the label of a row takes."""
_MOST_TITLES: Final = 400
_SHADES: Final = ((58, 123, 213), (194, 84, 157), (224, 135, 42))
"""Blue over purple to orange, apart from both white and black."""


@dataclass(frozen=True, slots=True)
class Style:
    """Colour and shape of a series, so that it can be told apart without colours too."""

    colour: str
    shape: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: measures at places along x."""

    x: Sequence[float]
    y: Sequence[Measure]
    names: Sequence[str]
    style: Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row: its label, what was measured, and further numbers to be marked with their style."""

    label: str
    measure: Measure
    style: Style = Style("s0")
    others: tuple[tuple[float, Style], ...] = field(default=())


def styles(count: int, *, ordered: bool = False) -> list[Style]:
    """Return so many styles: distinct colours, or shades from one colour to another for ordered numbers."""
    if not ordered or count <= 4:
        return [Style(f"s{place % 7}", place % 4) for place in range(count)]
    return [Style(_shade(place / (count - 1)), place % 4) for place in range(count)]


def _shade(share: float) -> str:
    """Return a colour between the first and the last of `_SHADES`."""
    place = share * (len(_SHADES) - 1)
    lower = min(int(place), len(_SHADES) - 2)
    pairs = zip(_SHADES[lower], _SHADES[lower + 1], strict=True)
    return "#" + "".join(f"{round(one + (place - lower) * (other - one)):02x}" for one, other in pairs)


def said(measure: Measure, *, share: bool = False) -> str:
    """Return a measure with its interval in words: "8.1 (7.9 to 8.2)"."""
    form = percent if share else number
    if not measure.bounded:
        return form(measure.value)
    return f"{form(measure.value)} ({form(measure.low)} to {form(measure.high)})"


def key_panel(entries: Sequence[tuple[str, Style]], width: float = WIDTH_PX) -> Panel:
    """Return what the colours and shapes mean, in as many lines as it takes."""
    marks: list[Mark] = []
    x, y = 0.0, 14.0
    for label, style in entries:
        text = fitted(label, width - 40)
        wide = 20 + text_width(text) + 14
        if x > 0 and x + wide > width:
            x, y = 0.0, y + 20
        marks.append(Dots(points=[(x + 8, y - 4)], colour=style.colour, shape=style.shape, radius=4.5))
        marks.append(Words(x=x + 18, y=y, text=text))
        x += wide
    names = ", ".join(label for label, _ in entries)
    return Panel(width=width, height=y + 6, alt=f"Key: {names}", marks=marks)


def line_panel(curves: Sequence[Curve], x: Axis, y: Axis, *, title: str, alt: str, zero_line: bool = False) -> Panel:
    """Return curves over common axes; a single dot stays a dot."""
    frame = Frame.around(x, y, WIDTH_PX, _HEIGHT_PX, title=title)
    marks = frame.marks(fitted(title, WIDTH_PX - 4))
    if zero_line:
        marks.append(Lines(lines=[[frame.point(x.low, 0), frame.point(x.high, 0)]], colour="rule", width=1.4))
    for curve in curves:
        known = [place for place, measure in enumerate(curve.y) if measure.known]
        points = [frame.point(curve.x[place], curve.y[place].value) for place in known]
        colour = curve.style.colour
        marks.append(Lines(lines=_bars(frame, curve), colour=colour, width=1.4))
        if len(points) > 1:
            marks.append(Lines(lines=[points], colour=colour, width=2))
        titles = [f"{curve.names[place]}: {said(curve.y[place])}" for place in known]
        marks.append(Dots(points=points, colour=colour, shape=curve.style.shape, titles=titles[:_MOST_TITLES]))
    return Panel(width=WIDTH_PX, height=_HEIGHT_PX, alt=alt, marks=marks)


def _bars(frame: Frame, curve: Curve) -> list[list[Point]]:
    return [
        [frame.point(x, measure.low), frame.point(x, measure.high)]
        for x, measure in zip(curve.x, curve.y, strict=True)
        if measure.known and measure.bounded
    ]


def row_panel(
    items: Sequence[Item],
    x: Axis,
    *,
    alt: str,
    band: tuple[float, float] | None = None,
    line: float | None = None,
    share: bool = False,
) -> Panel:
    """Return one row an item: dot, interval and further marks; `band` is where the dots should be."""
    labels = [fitted(item.label, LABEL_PX, FONT_PX - 1) for item in items]
    left = max(text_width(label, FONT_PX - 1) for label in labels) + 12
    height = len(items) * _ROW_PX + 52
    plain = Axis(low=0, high=1, log=False, label="", ticks=())
    frame = Frame.around(x, plain, WIDTH_PX, height, left=left)
    marks: list[Mark] = []
    if band is not None:
        marks.append(_upright_band(frame, *band))
    marks += frame.marks()
    if line is not None:
        marks.append(Lines(lines=[_upright(frame, line)], colour="rule", width=1.4))
    for place, (item, label) in enumerate(zip(items, labels, strict=True)):
        y = frame.top + (place + 0.5) * (frame.bottom - frame.top) / len(items)
        marks += _row(frame, item, label, y, share=share)
    return Panel(width=WIDTH_PX, height=height, alt=alt, marks=marks)


def _row(frame: Frame, item: Item, label: str, y: float, *, share: bool) -> list[Mark]:
    marks: list[Mark] = [Words(x=0, y=y + 4, text=label, size=FONT_PX - 1)]

    def at(value: float) -> Point:
        return clipped(frame.px(value), frame.left, frame.right), y

    for value, style in item.others:
        if math.isfinite(value):
            marks.append(Dots(points=[at(value)], colour=style.colour, shape=style.shape, radius=4.6))
    if item.measure.bounded:
        whole = [at(item.measure.low), at(item.measure.high)]
        marks.append(Lines(lines=[whole], colour=item.style.colour, width=2))
    if item.measure.known:
        title = f"{item.label}: {said(item.measure, share=share)}"
        dot = Dots(points=[at(item.measure.value)], colour=item.style.colour, shape=item.style.shape, titles=[title])
        marks.append(dot)
    else:
        marks.append(Words(x=frame.left + 8, y=y + 4, text="nothing released", size=FONT_PX - 1, colour="soft"))
    return marks


def _upright(frame: Frame, value: float) -> list[Point]:
    x = clipped(frame.px(value), frame.left, frame.right)
    return [(x, frame.top), (x, frame.bottom)]


def _upright_band(frame: Frame, low: float, high: float) -> Areas:
    (x0, top), (x1, bottom) = _upright(frame, low)[0], _upright(frame, high)[1]
    return Areas(rings=[[(x0, top), (x1, top), (x1, bottom), (x0, bottom)]], colour="band")


def rank_panel(
    items: Sequence[Item], y_label: str, *, alt: str, band: tuple[float, float] | None = None, line: float | None = None
) -> Panel:
    """Return many items side by side from the lowest to the highest, as shares in percent."""
    ordered = sorted((item for item in items if item.measure.known), key=lambda item: item.measure.value)
    ends = [end for item in ordered for end in (item.measure.low, item.measure.high, item.measure.value)]
    wanted = [*ends, *(band or ())]
    y = axis_of(wanted, y_label, as_percent=True)
    x = axis_of([1, len(ordered)], "cases, from the lowest to the highest", whole=True)
    frame = Frame.around(x, y, WIDTH_PX, _HEIGHT_PX)
    marks: list[Mark] = []
    if band is not None:
        (x0, top), (x1, bottom) = (frame.left, frame.py(band[1])), (frame.right, frame.py(band[0]))
        marks.append(Areas(rings=[[(x0, top), (x1, top), (x1, bottom), (x0, bottom)]], colour="band"))
    marks += frame.marks()
    if line is not None:
        marks.append(
            Lines(lines=[[(frame.left, frame.py(line)), (frame.right, frame.py(line))]], colour="rule", width=1.4)
        )
    by_style: dict[Style, list[tuple[int, Item]]] = {}
    for place, item in enumerate(ordered, start=1):
        by_style.setdefault(item.style, []).append((place, item))
    for style, members in by_style.items():
        bars = [
            [frame.point(place, item.measure.low), frame.point(place, item.measure.high)]
            for place, item in members
            if item.measure.bounded
        ]
        marks.append(Lines(lines=bars, colour=style.colour, width=1.2))
        points = [frame.point(place, item.measure.value) for place, item in members]
        titles = [f"{item.label}: {said(item.measure, share=True)}" for _, item in members]
        radius = 2.8 if len(ordered) <= 120 else 1.6
        marks.append(
            Dots(points=points, colour=style.colour, shape=style.shape, radius=radius, titles=titles[:_MOST_TITLES])
        )
    return Panel(width=WIDTH_PX, height=_HEIGHT_PX, alt=alt, marks=marks)
