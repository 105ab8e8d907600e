"""Figures as SVG text, in a file or inside a page whose style sheet and security policy are strict, and as PNG.

Cleans what matplotlib writes: attributes instead of styles, no name that nothing points at, and notes: a text that
matplotlib carries through in the name of a group (`noted`) becomes the title of a mark, or the text as it was meant.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from matplotlib.figure import Figure

from fleetcount_analysis.figures.style import COLOURS, in_style
from fleetcount_analysis.figures.words import printable

Element = ElementTree.Element

_NOTE: Final = "\u241e"  # Pictures of separators: they may stand in XML, where the separators themselves may not.
_NEXT: Final = "\u241f"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_ROLES: Final = {colour: f"var(--{role})" for role, colour in COLOURS.items() if role != "paper"}
_LESS: Final = ("metadata", "style")


def noted(notes: Sequence[str]) -> str:
    """Return the name (gid) for an artist that carries the titles of its marks in their order, or its true text."""
    return _NOTE + _NEXT.join(printable(note).replace(_NEXT, " ") for note in notes)


@in_style
def rendered(figure: Figure, *, title: str = "", description: str = "") -> dict[str, bytes]:
    """Return a figure's SVG and PNG files by their endings; the same figure gives the same bytes."""
    root = _cleaned(figure, "f")
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg"}
    for name, text in (("desc", description), ("title", title)):
        if text:
            root.insert(0, _element(name, text))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return {
        "svg": ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n",
        "png": picture.getvalue(),
    }


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write STEM.svg and STEM.png, each whole or not at all, and return both paths."""
    files = {stem.with_name(f"{stem.name}.{ending}"): content for ending, content in rendered(figure).items()}
    for target, content in files.items():
        part = target.with_name(f".{target.name}.part")
        try:
            part.write_bytes(content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    svg, png = files
    return svg, png


@in_style
def page_svg(figure: Figure, alt: str, identity: str) -> str:
    """Return a figure for a page, with CSS variables for the colours of roles and the page's font.

    `alt` is read to those who do not see it; `identity` is unique in the page.
    """
    figure.patch.set_visible(False)  # The paper is the page's own.
    root = _cleaned(figure, identity)
    for element in root.iter():
        element.attrib.pop("font-family", None)
        for name in ("fill", "stroke"):
            if name in element.attrib:
                element.set(name, _ROLES.get(element.attrib[name], element.attrib[name]))
    root.attrib |= {"role": "img", "aria-labelledby": identity}
    told = _element("title", alt)
    told.set("id", identity)
    root.insert(0, told)
    return ElementTree.tostring(root, encoding="unicode")


def _element(name: str, text: str) -> Element:
    made = ElementTree.Element(name)
    made.text = printable(text)
    return made


def _cleaned(figure: Figure, identity: str) -> Element:
    """Return the SVG of a figure without name spaces, styles and names that nothing points at."""
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    root = ElementTree.fromstring(content.getvalue())  # noqa: S314 # matplotlib's own, from this process
    root.attrib = {name: root.attrib[name].removesuffix("pt") for name in ("viewBox", "width", "height")}
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        element.text = (element.text or "").strip() or None
        element.tail = None
        for child in [child for child in element if child.tag.rpartition("}")[2] in _LESS]:
            element.remove(child)
        _plain_attributes(element, identity)
    # What matplotlib's own style sheet says.
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    _annotate(root)
    _forget_names(root, identity)
    return root


def _plain_attributes(element: Element, identity: str) -> None:
    """Turn styles into attributes, and make names and what points at them unique in a page."""
    named = dict(part.split(": ", 1) for part in element.attrib.pop("style", "").split("; ") if part)
    element.attrib.update(named)
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if _HREF in element.attrib:
        target = element.attrib.pop(_HREF)
        element.set("href", f"#{identity}-{target[1:]}" if target.startswith("#") else target.replace("\n", ""))
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{identity}-"))


def _annotate(root: Element) -> None:
    """Give the marks of a noted group their titles, and a noted text its true letters."""
    for group in root.iter("g"):
        name = group.get("id", "")
        if not name.startswith(_NOTE):
            continue
        notes = name[1:].split(_NEXT)
        for mark, note in zip(group.iter("use"), notes, strict=False):
            mark.append(_element("title", note))
        for text in group.iter("text"):
            text.text = notes[0]


def _forget_names(root: Element, identity: str) -> None:
    """Keep the names that something points at."""
    pointed = {element.get("href", "")[1:] for element in root.iter("use")}
    pointed |= {element.get("clip-path", "").removeprefix("url(#").removesuffix(")") for element in root.iter()}
    for element in root.iter():
        name = f"{identity}-{element.attrib.pop('id', '')}"
        if name in pointed:
            element.set("id", name)
