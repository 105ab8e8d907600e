"""Panels and charts as SVG text: inside a page with colours by role, or as a file with the colours of paper.

Every text is escaped here, and numbers are rounded to a hundredth of a pixel. It decides nothing about what is drawn.
"""

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from fleetcount_simulator.report.layout import corners, paletted, placed, printable
from fleetcount_simulator.report.scene import COLOURS, Areas, Chart, Dots, Lines, Mark, Panel, Point, Raster, Words

__all__ = ["chart_file", "inline_panel"]

_FONTS: Final = "system-ui,'DejaVu Sans',sans-serif"

Colour = Callable[[str], str]


def inline_panel(panel: Panel, identity: str) -> str:
    """Return a panel for a page, with CSS variables for the colours of roles; `identity` is unique in the page."""
    body = "".join(_mark(mark, _variable) for mark in panel.marks)
    return (
        f'<svg role="img" aria-labelledby="{identity}" viewBox="0 0 {_n(panel.width)} {_n(panel.height)}" '
        f'width="{_n(panel.width)}" height="{_n(panel.height)}" font-family="{_FONTS}">'
        f'<title id="{identity}">{_text(panel.alt)}</title>{body}</svg>'
    )


def chart_file(chart: Chart) -> bytes:
    """Return a chart as an SVG file on white: title, key and panels; text stays text."""
    layout = placed(chart)
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(layout.width)}" height="{_n(layout.height)}" '
        f'viewBox="0 0 {_n(layout.width)} {_n(layout.height)}" font-family="{_FONTS}">',
        f"<title>{_text(chart.title)}</title><desc>{_text(chart.caption)}</desc>",
        f'<rect width="100%" height="100%" fill="{COLOURS["paper"]}"/>',
        _mark(layout.title, _paper),
    ]
    for panel, (x, y) in layout.panels:
        marks = "".join(_mark(mark, _paper) for mark in panel.marks)
        parts.append(f'<g transform="translate({_n(x)} {_n(y)})"><title>{_text(panel.alt)}</title>{marks}</g>')
    return ("".join(parts) + "</svg>\n").encode()


def _variable(colour: str) -> str:
    return colour if colour.startswith("#") else f"var(--{colour})"


def _paper(colour: str) -> str:
    return COLOURS.get(colour, colour)


def _mark(mark: Mark, colour: Colour) -> str:
    match mark:
        case Lines():
            return (
                f'<path d="{_paths(mark.lines, "")}" fill="none" stroke="{colour(mark.colour)}" '
                f'stroke-width="{_n(mark.width)}" stroke-linejoin="round"/>'
            )
        case Areas():
            return f'<path d="{_paths(mark.rings, "z")}" fill="{colour(mark.colour)}"/>'
        case Dots():
            return f'<g fill="{colour(mark.colour)}">{_dots(mark)}</g>'
        case Words():
            bold = ' font-weight="600"' if mark.bold else ""
            anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
            return (
                f'<text x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}" '
                f'fill="{colour(mark.colour)}"{anchor}{bold}>{_text(mark.text)}</text>'
            )
        case Raster():
            return _image(mark)


def _dots(mark: Dots) -> str:
    made: list[str] = []
    for place, (x, y) in enumerate(mark.points):
        title = f"<title>{_text(mark.titles[place])}</title>" if place < len(mark.titles) else ""
        made.append(f'<path d="{_shape(mark.shape, x, y, mark.radius)}">{title}</path>')
    return "".join(made)


def _shape(shape: int, x: float, y: float, radius: float) -> str:
    if shape % 4 == 0:
        r, start = _n(radius), f"M{_n(x - radius)} {_n(y)}"
        return f"{start}a{r} {r} 0 1 0 {_n(2 * radius)} 0a{r} {r} 0 1 0 {_n(-2 * radius)} 0z"
    return _paths([corners(shape, x, y, radius)], "z")


def _paths(lines: Sequence[Sequence[Point]], end: str) -> str:
    return "".join("M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in line) + end for line in lines if line)


def _image(mark: Raster) -> str:
    content = io.BytesIO()
    paletted(mark).save(content, "png", compress_level=6)
    data = base64.b64encode(content.getvalue()).decode()
    return (
        f'<image x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _text(text: str) -> str:
    return escape(printable(text))
