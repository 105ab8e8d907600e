"""Road edges: the one the trace names, or the nearest line of a road network.

It must not read a network; `roads` are handed to it. A position inside a junction (an edge name that
starts with ":") is on no edge.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_protocol.window.domain import MAX_VALUES, Categories
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from scipy.spatial import KDTree

from fleetcount_simulator.cells.model import (
    OUTSIDE,
    Cells,
    Floats,
    Frame,
    Positions,
    Roads,
    Values,
    check_count,
)
from fleetcount_simulator.cells.road_network import read_network
from fleetcount_simulator.cells.settings import ANY_LENGTH, Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers, Places


@settings
class Keys:
    """[question] of cells `edges`."""

    edge: str = setting(
        Table.choice,
        ("own", "nearest"),
        default="own",
        about='"own": the edge the data name (default); "nearest": the nearest line',
        example='"own"',
    )
    network: Path | None = setting(
        Settings.file,
        default=None,
        about="a SUMO network (.net.xml or .net.xml.gz): edges and their lines; needed for nearest, and for a map",
        example='"town.net.xml.gz"',
    )
    within_m: Fraction | None = setting(
        Table.number,
        ANY_LENGTH,
        default=None,
        about="nearest only: a position farther from every line is on no edge; default 30",
        example="30",
    )


_SPACING_M: Final = 5.0
_CANDIDATES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnEdges:
    """The edge each position names. The values are all edges of `roads`, or (None) all edges in the data, by name."""

    title: str
    roads: Roads | None
    _codes: dict[str, int] = field(default_factory=dict[str, int], init=False, repr=False)

    def __post_init__(self) -> None:
        for name in () if self.roads is None else self.roads.names:
            self._codes[name] = len(self._codes)

    def keys(self, positions: Positions) -> Integers:
        """Return the number of every position's edge.

        Raises:
            ScenarioError: an edge that is not in the network, or more than `MAX_CELLS` edges.
        """
        if positions.edges is None:
            raise ScenarioError("question.cells: the data name no edge")
        if isinstance(positions.edges, np.ndarray):
            return positions.edges
        return np.fromiter(map(self._code, positions.edges), dtype=np.int64, count=len(positions.edges))

    def _code(self, name: str) -> int:
        if name == "" or name.startswith(":"):
            return OUTSIDE
        code = self._codes.get(name)
        if code is not None:
            return code
        if self.roads is not None:
            raise ScenarioError(f"question.network: the data name the edge {name[:40]!r}, which is not in the network")
        check_count(len(self._codes) + 1, "question.cells = 'edges'")
        return self._codes.setdefault(name, len(self._codes))

    def close(self, seen: Integers) -> Values:
        """Return all edges of the network, or those seen, in the order of their names."""
        names = sorted(self._codes)
        codes = np.array([self._codes[name] for name in names], dtype=np.int64)
        numbers = np.empty(len(names), dtype=np.int64)
        numbers[codes] = np.arange(1, len(names) + 1)
        return Values(
            question=_question(self.title, tuple(names), self.roads), codes=np.arange(len(names)), numbers=numbers
        )


class NearestEdges:
    """The edge whose line is nearest to each position, within a distance; ties go to the first name.

    Lines are cut into pieces of at most 5 m. Among the eight pieces with the nearest middles, the nearest piece
    decides.
    """

    def __init__(self, title: str, roads: Roads, within_m: float) -> None:
        self.title = title
        self.roads = roads
        self.within_m = within_m
        starts, ends, owners = _pieces(roads)
        self._starts, self._ends, self._owners = starts, ends, owners
        self._tree = KDTree((starts + ends) / 2)

    def keys(self, positions: Positions) -> Integers:
        """Return the place in the network of every position's edge."""
        points = np.column_stack([positions.x, positions.y])
        reach = self.within_m + _SPACING_M
        _, near = self._tree.query(points, k=min(_CANDIDATES, len(self._owners)), distance_upper_bound=reach)
        near = near.reshape(len(points), -1)
        missing = near == len(self._owners)
        pieces = np.where(missing, 0, near)
        distances = np.where(missing, np.inf, _distances(points, self._starts[pieces], self._ends[pieces]))
        nearest = distances.min(axis=1, keepdims=True)
        owners = np.where(distances == nearest, self._owners[pieces], len(self.roads.names)).min(axis=1)
        return np.where(nearest[:, 0] <= self.within_m, owners, OUTSIDE).astype(np.int64)

    def close(self, seen: Integers) -> Values:
        """Return all edges of the network."""
        numbers = np.arange(1, len(self.roads.names) + 1)
        return Values(question=_question(self.title, self.roads.names, self.roads), codes=numbers - 1, numbers=numbers)


def declare(question: Keys, frame: Frame, title: str) -> Cells:
    """Return the edges a `[question]` table asks for.

    Raises:
        ScenarioError: data that name no edge, a missing or broken network, longitude and latitude with "nearest".
    """
    roads = frame.roads if question.network is None else read_network(question.network)
    if question.edge == "own":
        if not frame.edges:
            raise UnfitKeyError(
                "edge", problem="is 'own', but these data name no edge; ask for 'nearest' or for squares"
            )
        if question.within_m is not None:
            raise UnfitKeyError("within_m", problem="is for edge = 'nearest' only")
        if frame.roads is not None and roads is not frame.roads:
            raise UnfitKeyError("network", problem="is not used: these data bring their own")
        return OwnEdges(title=title, roads=roads)
    if roads is None:
        raise UnfitKeyError("network", allowed="given for edge = 'nearest'")
    if frame.unit != "m":
        raise UnfitKeyError(
            "edge", problem="is 'nearest', which needs positions in the network's metres, not in degrees"
        )
    return NearestEdges(title, roads, 30.0 if question.within_m is None else float(question.within_m))


def _question(title: str, names: tuple[str, ...], roads: Roads | None) -> AnswerSpace:
    check_count(len(names), "question.cells = 'edges'")
    places = None
    if roads is not None:
        # All edges of a network are values, in the network's own order.
        places = Places(outlines=roads.lines, unit="m", lines=True)
    domain = Categories(names=names) if len(names) <= MAX_VALUES else None
    return AnswerSpace(title=title, labels=names, places=places, domain=domain)


def _pieces(roads: Roads) -> tuple[Floats, Floats, Integers]:
    """Return starts (n, 2), ends (n, 2) and owners (n,) of pieces of at most `_SPACING_M`."""
    starts: list[Floats] = []
    ends: list[Floats] = []
    owners: list[Integers] = []
    for owner, line in enumerate(roads.lines):
        corners = np.array(line, dtype=np.float64)
        for first, last in pairwise(corners):
            count = max(1, int(np.ceil(np.hypot(*(last - first)) / _SPACING_M)))
            points = first + np.linspace(0, 1, count + 1)[:, None] * (last - first)
            starts.append(points[:-1])
            ends.append(points[1:])
            owners.append(np.full(count, owner, dtype=np.int64))
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(owners)


def _distances(points: Floats, starts: Floats, ends: Floats) -> Any:
    """Return the distance of points (n, 2) to segments (n, k, 2): shape (n, k)."""
    along, away = ends - starts, points[:, None, :] - starts
    length = np.maximum((along**2).sum(axis=2), 1e-12)
    share = np.clip((along * away).sum(axis=2) / length, 0, 1)
    return np.hypot(*np.moveaxis(away - share[:, :, None] * along, 2, 0))
