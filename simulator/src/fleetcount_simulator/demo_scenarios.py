"""The demo's scenarios: the vehicles, the question, and the truth of every vehicle.

A scenario is a pure function of its data and a seed. It knows no mechanism and tosses no coin: its seed never reaches a
device's randomness.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final

import fleetcount_data
from fleetcount_data.streets import BOLOGNA_EPSG, BOLOGNA_OFFSET
from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.window.domain import PLACE_BITS, Bins, Categories, FixedDomain, Prefixes, SquareGrid
from fleetcount_protocol.window.frame import Frame
from fleetcount_protocol.window.signal import Signal, converted

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.quadtree import Quadtree
from fleetcount_simulator.truths import Truths

LOCATION: Final = "Vehicle.CurrentLocation"
SPEED: Final = "Vehicle.Speed"
CATEGORY: Final = "Vehicle.Category"
KMH: Final = Fraction(18, 5)
BOLOGNA_FRAME: Final = Frame(epsg=BOLOGNA_EPSG, offset_x=BOLOGNA_OFFSET[0], offset_y=BOLOGNA_OFFSET[1])
# The corner lies 50 m outside the network's frame, so that every position of the extract is inside the grid.
BOLOGNA_GRID: Final = SquareGrid(
    x0=Fraction(-50),
    y0=Fraction(-50),
    size=Fraction(250),
    columns=9,
    rows=8,
    frame=BOLOGNA_FRAME,
)
BOLOGNA_TREE: Final = Quadtree(x0=-686_000, y0=-4_928_000, size=128)
"""A square of 8,389 km a side, placed so that the city lies on no border of a large cell."""
BOLOGNA_FILE: Final = "bologna/positions.csv.gz"
MOST_WINDOWS: Final = 13
"""Moments of the shipped morning, five minutes apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Where a vehicle was at a moment, in metres of the network's frame, and its speed in metres per second."""

    x: float
    y: float
    speed_mps: float


Traces = dict[float, dict[str, Sighting]]
"""Per moment (seconds since the hour began) every vehicle on the road."""
Fleet = list[Sighting | None]
"""Where each vehicle of a fleet is at one moment, None where it is not on the road."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question, and the reading of every vehicle's signal in each of its windows.

    `name` is the signed question's, `question` its text for people. `readings[w][i]` is the reading of vehicle i in
    window w, None where it is not on the road: it then answers "none of them".
    """

    name: str
    question: str
    signal: str
    domain: FixedDomain
    readings: tuple[tuple[Signal, ...], ...] = field(repr=False)

    @property
    def vehicles(self) -> int:
        """How many vehicles are asked."""
        return len(self.readings[0])

    def truths(self, window: int = 0) -> list[int]:
        """Return the true count of every value 1..V in a window."""
        counts = Counter(self.domain.value_of(reading) for reading in self.readings[window])
        return [counts[value] for value in range(1, self.domain.values + 1)]


def find_bologna() -> Path:
    """Return the shipped positions.

    Raises:
        ScenarioError: this installation has no data.
    """
    try:
        return fleetcount_data.path(BOLOGNA_FILE)
    except FileNotFoundError as error:
        raise ScenarioError(f"{error}; use --truths") from None


def _fleet(traces: Traces, vehicles: int, seed: int, windows: int) -> list[Fleet]:
    """Return where each of `vehicles` vehicles is in each of `windows` windows, which are moments of the morning.

    The seed chooses the first moment in the busy half hour (earlier where windows would pass the end) and the vehicles,
    among those on the road in a window, five minutes before or five minutes after; when these are too few it adds the
    other vehicles of the morning, and then all of them a second time.
    """
    choose = random.Random(seed)  # noqa: S311 the scenario's seed; no coin, share or noise comes from it
    moments = sorted(traces)
    busy = [i for i in range(1, len(moments) - 1) if 1800 <= moments[i] <= 3600] or [len(moments) // 2]
    at = min(choose.choice(busy), len(moments) - windows)
    near = {name for moment in moments[max(0, at - 1) : at + windows + 1] for name in traces[moment]}
    others = {name for snapshot in traces.values() for name in snapshot} - near
    names: list[str] = []
    while len(names) < vehicles:
        for pool in (near, others):
            order = sorted(pool)
            choose.shuffle(order)
            names.extend(order)
    return [[traces[moments[at + window]].get(name) for name in names[:vehicles]] for window in range(windows)]


def positions(fleets: Sequence[Fleet]) -> tuple[tuple[Signal, ...], ...]:
    """Return each vehicle's location by window, in metres of the network's frame."""
    return tuple(tuple(None if one is None else (one.x, one.y) for one in fleet) for fleet in fleets)


def speeds(fleets: Sequence[Fleet]) -> tuple[tuple[Signal, ...], ...]:
    """Return what each vehicle's speed reads by window, km/h."""
    return tuple(tuple(None if one is None else _kmh(one.speed_mps) for one in fleet) for fleet in fleets)


def _kmh(speed_mps: float) -> float:
    return float(converted(speed_mps, KMH, Fraction(0)) or 0)


def bologna_position(traces: Traces, vehicles: int, seed: int, windows: int = 1) -> Scenario:
    """Ask every vehicle for its cell of a 250 m grid in `windows` windows, 1 to `MOST_WINDOWS`."""
    return Scenario(
        name="bologna-morning-cells",
        question="In which cell of a 250 m grid are you now?",
        signal=LOCATION,
        domain=BOLOGNA_GRID,
        readings=positions(_fleet(traces, vehicles, seed, windows)),
    )


def bologna_place(traces: Traces, vehicles: int, seed: int, bits: int, steps: int = 1) -> Scenario:
    """Ask every vehicle for the first `bits` bits of its place of 128 m, one of 2^32 of `BOLOGNA_TREE`.

    The vehicles do not move between the `steps` windows.
    """
    (fleet,) = _fleet(traces, vehicles, seed, 1)
    return Scenario(
        name="bologna-morning-places",
        question=f"In which of {2**PLACE_BITS:,} places of {BOLOGNA_TREE.size:g} m are you now?",
        signal=LOCATION,
        domain=Prefixes(bits=bits, cells=tuple(range(1 << bits))),
        readings=(tuple(None if one is None else BOLOGNA_TREE.place_of(one.x, one.y) for one in fleet),) * steps,
    )


def bologna_speed(traces: Traces, vehicles: int, seed: int, windows: int = 1) -> Scenario:
    """Ask every vehicle whether it is faster than 50 km/h in `windows` windows, 1 to `MOST_WINDOWS`."""
    return Scenario(
        name="bologna-morning-speed",
        question="Are you faster than 50 km/h?",
        signal=SPEED,
        domain=Bins(edges=(Fraction(50),), open_above=True, unit="km/h"),
        readings=speeds(_fleet(traces, vehicles, seed, windows)),
    )


def category(truths: Truths, vehicles: int, seed: int) -> Scenario:
    """Ask every vehicle of a table for its category."""
    return Scenario(
        name="category-counts",
        question="Which of these categories is yours?",
        signal=CATEGORY,
        domain=Categories(names=truths.categories),
        readings=(_drawn(truths, vehicles, seed),),
    )


def yes_or_no(truths: Truths, yes: str, vehicles: int, seed: int) -> Scenario:
    """Ask every vehicle of a table whether its category is `yes`.

    Raises:
        ScenarioError: no vehicle has that category.
    """
    if yes not in truths.categories:
        known, near = ", ".join(map(repr, truths.categories[:5])), did_you_mean(yes, truths.categories)
        raise ScenarioError(f"--yes is {yes[:40]!r}, a value no vehicle has; there are {known}, ...{near}")
    return Scenario(
        name="category-yes-or-no",
        question=f"Is your category {yes!r}?",
        signal=CATEGORY,
        domain=Categories(names=(yes,)),
        readings=(_drawn(truths, vehicles, seed),),
    )


def _drawn(truths: Truths, vehicles: int, seed: int) -> tuple[Signal, ...]:
    """Return `vehicles` rows drawn without replacement, or all rows in their order."""
    if vehicles > len(truths.values):
        raise ScenarioError(f"--vehicles is {vehicles}; the file has {len(truths.values)}")
    chosen = list(truths.values)
    if vehicles < len(chosen):
        chosen = random.Random(seed).sample(chosen, vehicles)  # noqa: S311 the scenario's seed; no coin comes from it
    return tuple(value or None for value in chosen)
