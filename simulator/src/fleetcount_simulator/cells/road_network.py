"""The edges of a SUMO network file, streamed.

It reads names and lines only: no lanes, no junctions, no connections. What lies inside a junction is left out.
"""

import re
from pathlib import Path
from typing import Final

from fleetcount_protocol.layout import prints

from fleetcount_simulator.cells.model import MAX_CELLS, Roads
from fleetcount_simulator.cells.xml_stream import elements
from fleetcount_simulator.errors import ScenarioError

MAX_NAME_BYTES: Final = 200
_NUMBER: Final = r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?"
_SHAPE: Final = re.compile(rf"{_NUMBER},{_NUMBER}(?:,{_NUMBER})?(?: {_NUMBER},{_NUMBER}(?:,{_NUMBER})?)+", re.ASCII)

_INSIDE_JUNCTIONS: Final = frozenset({"internal", "crossing", "walkingarea", "connector"})
"""Functions of edges that are no road (SUMO's documentation, "SUMO Road Networks", edges)."""

Line = tuple[tuple[float, float], ...]


def read_network(path: Path) -> Roads:
    """Return the edges of a .net.xml or .net.xml.gz, by name; the line is the edge's own, or that of its first lane.

    Raises:
        ScenarioError: no network, truncated, a shape outside the number grammar, an edge twice or without a line, more
            than 100,000 edges; with the line.
    """
    found: dict[str, Line | None] = {}
    current = ""
    for depth, name, attributes, line in elements(path, "net"):
        place = f"{path.name} line {line}"
        if depth == 1:
            current = ""
            if name == "edge" and attributes.get("function") not in _INSIDE_JUNCTIONS:
                current = _edge_name(attributes.get("id", ""), found, place)
                found[current] = _line(attributes["shape"], place) if "shape" in attributes else None
        elif depth == 2 and name == "lane" and current and found[current] is None:
            found[current] = _line(attributes.get("shape", ""), place)
    return _roads(found, path.name)


def _edge_name(name: str, found: dict[str, Line | None], place: str) -> str:
    if not name or not prints(name) or name != name.strip() or len(name.encode()) > MAX_NAME_BYTES:
        raise ScenarioError(f"{place}: an edge is named {name[:40]!r}; it must be 1 to 200 printable bytes")
    if name in found:
        raise ScenarioError(f"{place}: the edge {name[:40]!r} occurs twice")
    if len(found) == MAX_CELLS:
        raise ScenarioError(f"{place}: more than {MAX_CELLS} edges")
    return name


def _line(shape: str, place: str) -> Line:
    if not _SHAPE.fullmatch(shape):
        raise ScenarioError(f"{place}: the shape is {shape[:40]!r}, not two corners x,y or more")
    corners = (corner.split(",") for corner in shape.split(" "))
    return tuple((float(corner[0]), float(corner[1])) for corner in corners)


def _roads(found: dict[str, Line | None], file: str) -> Roads:
    if not found:
        raise ScenarioError(f"{file}: no edge")
    names = sorted(found)
    lines = [found[name] for name in names]
    bare = next((name for name, line in zip(names, lines, strict=True) if line is None), None)
    if bare is not None:
        raise ScenarioError(f"{file}: the edge {bare[:40]!r} has no line")
    return Roads(names=tuple(names), lines=tuple(line for line in lines if line is not None))
