"""Stands for SUMO's library where SUMO is not installed: one street of 40 edges, and the calls that `sumo_drive` makes.

A car drives one edge of its route every two seconds and leaves the road when it has none left. As SUMO's own libraries
do, it speaks when it is imported and when it starts.
"""

import sys

EDGES = [f"street {number}" for number in range(40)]
EDGE_M, EDGE_S = 40.0, 2

print("stand-in of SUMO 0")
print("warning: it is of another version than pyarrow", file=sys.stderr)
routes: dict[str, list[str]] = {}
on_the_road: dict[str, list[int]] = {}
waiting: dict[str, tuple[float, str]] = {}


def start(command: list[str]) -> None:
    """Say that it starts."""
    print("started", *command)


def close() -> None:
    """Take every car off the road."""
    on_the_road.clear()


def between(first: str, last: str) -> list[str]:
    """Return the edges from one to another."""
    start, end = EDGES.index(first), EDGES.index(last)
    return EDGES[start : end + 1] if start <= end else EDGES[end : start + 1][::-1]


class edge:
    """The edges of the network."""

    @staticmethod
    def getIDList() -> list[str]:
        return [":crossing", *EDGES]


class route:
    """The routes that cars begin with."""

    @staticmethod
    def add(name: str, edges: list[str]) -> None:
        routes[name] = edges


class vehicle:
    """The cars on the road: where on its route each of them is, and for how many seconds."""

    @staticmethod
    def add(name: str, route: str, depart: str, departPos: str) -> None:
        assert departPos == "random"
        waiting[name] = (float(depart), route)

    @staticmethod
    def getIDList() -> list[str]:
        return list(on_the_road)

    @staticmethod
    def getRoute(name: str) -> list[str]:
        return routes[name]

    @staticmethod
    def getRouteIndex(name: str) -> int:
        return on_the_road[name][0]

    @staticmethod
    def changeTarget(name: str, target: str) -> None:
        routes[name] = between(routes[name][on_the_road[name][0]], target)
        on_the_road[name] = [0, 0]

    @staticmethod
    def getPosition(name: str) -> tuple[float, float]:
        return EDGE_M * EDGES.index(routes[name][on_the_road[name][0]]), 3.0

    @staticmethod
    def getSpeed(name: str) -> float:
        return EDGE_M / EDGE_S


def simulationStep(second: float) -> None:
    """Drive on for a second."""
    for name in [name for name, (depart, _) in waiting.items() if depart <= second]:
        routes[name] = list(routes[waiting.pop(name)[1]])
        on_the_road[name] = [0, 0]
    for name, place in list(on_the_road.items()):
        place[1] += 1
        if place[1] >= 5 * EDGE_S and place[0] == len(routes[name]) - 1:
            del on_the_road[name]
        elif place[1] >= EDGE_S and place[0] < len(routes[name]) - 1:
            on_the_road[name] = [place[0] + 1, 0]
