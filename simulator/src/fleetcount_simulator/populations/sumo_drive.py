"""Runs SUMO step by step in a process of its own and writes the position of every car at chosen moments.

Run as `python -m fleetcount_simulator.populations.sumo_drive PLAN PLACES`: it reads the JSON of `Drive` from PLAN and
writes PLACES. It does not run in the demo's own process: libsumo allows one simulation per process, prints warnings
about versions of other packages when it is imported, and may crash.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

LIBRARIES: Final = ("libsumo", "traci")
"""In this process, or over a socket to the program `sumo`: both have the same calls, the first is faster."""
_LOOKS_AHEAD_S: Final = 5
_QUIET: Final = ("--no-step-log", "--no-warnings", "--duration-log.disable", "--xml-validation", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A simulation: cars "0" to `vehicles` - 1 that never arrive, on `network`, and the moments to write.

    `moments` are seconds since the start, ascending. Cars enter in the first `entering_s` seconds at random edges, on
    their way to random edges; `program` is the path of `sumo`, which traci starts. The same drive gives the same
    places.
    """

    library: str
    program: str
    network: str
    vehicles: int
    seed: int
    entering_s: int
    moments: tuple[int, ...]

    def to_json(self) -> str:
        """Return the plan as text."""
        return json.dumps(asdict(self))


def drive(plan: Drive, sumo: Any) -> list[dict[str, tuple[float, float, float]]]:
    """Return, for each moment, the cars on the road: x and y in metres of the network, speed in metres per second."""
    options = ("-n", plan.network, "--seed", str(plan.seed % 2**31), "--time-to-teleport", "60", *_QUIET)
    sumo.start([plan.program, *options])
    try:
        choose = random.Random(plan.seed)  # noqa: S311 the scenario's seed; no coin, share or noise comes from it
        edges = sorted(edge for edge in sumo.edge.getIDList() if not edge.startswith(":"))
        for car in range(plan.vehicles):
            sumo.route.add(f"from {car}", [choose.choice(edges)])
            entry = f"{choose.uniform(0, plan.entering_s):.2f}"
            sumo.vehicle.add(str(car), f"from {car}", depart=entry, departPos="random")
        places: list[dict[str, tuple[float, float, float]]] = []
        for second in range(1, plan.moments[-1] + 1):
            sumo.simulationStep(float(second))
            if second % _LOOKS_AHEAD_S == 0:
                _go_on(sumo, edges, choose)
            if second == plan.moments[len(places)]:
                places.append(_places(sumo))
    finally:
        sumo.close()
    return places


def _go_on(sumo: Any, edges: list[str], choose: random.Random) -> None:
    """Give every car that is on its last edge another destination, so that it stays on the road."""
    for car in sorted(sumo.vehicle.getIDList()):
        if sumo.vehicle.getRouteIndex(car) >= len(sumo.vehicle.getRoute(car)) - 1:
            sumo.vehicle.changeTarget(car, choose.choice(edges))


def _places(sumo: Any) -> dict[str, tuple[float, float, float]]:
    places: dict[str, tuple[float, float, float]] = {}
    for car in sumo.vehicle.getIDList():
        x, y = sumo.vehicle.getPosition(car)
        places[car] = (x, y, sumo.vehicle.getSpeed(car))
    return places


def main(plan_file: str, places_file: str) -> None:
    """Run the simulation of `plan_file` and write its places to `places_file`."""
    plan = Drive(**json.loads(Path(plan_file).read_text(encoding="utf-8")))
    places = drive(plan, import_module(plan.library))
    Path(places_file).write_text(json.dumps(places), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
