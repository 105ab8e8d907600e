"""The built-in mobility model: vehicles with a home and a place of work on a grid of streets, and their trips of a day.

A vehicle that commutes drives to work around the first rush hour and home around the second; some drive on an errand
and back, commuters in the evening, the others during the day. Between trips a vehicle is parked with the ignition off.
It drives along one street and then another (a coin per trip decides the first), at its own constant speed. A seeded
NumPy generator draws all numbers, a block of `BLOCK` vehicles at a time, so that a vehicle does not depend on the size
of the fleet. It knows no question.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.cells.model import Floats, Positions, Roads
from fleetcount_simulator.model import Integers

BLOCK: Final = 1 << 15
"""Vehicles drawn together."""
DAY_S: Final = 86_400.0
LONGEST_TRIP_S: Final = 3 * 3600.0
_HOUR: Final = 3600.0
_VEHICLES: Final = 3
"""Spawn key of the vehicles under a population's seed; then the block, then 0 for the vehicle or 1 + the day."""
_SLOWEST: Final = 0.8
_FASTEST: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Town:
    """Streets `block_m` apart (columns run north, rows run east), and the habits of the drivers.

    `commuters` and `errands` are shares of the vehicles; rush hours and their spread are in hours; places of work lie
    around the middle with a standard deviation of `work_spread` of the town's width and height. Day d has no commuting
    when d mod 7 is among `free_days`.
    """

    columns: int
    rows: int
    block_m: float
    speed_mps: float
    commuters: float
    errands: float
    rush_hours: tuple[float, float]
    rush_spread_h: float
    work_spread: float
    free_days: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """The trips of a block of vehicles on one day; arrays are (4, vehicles) unless noted.

    Trip k leaves `starts[k]` for `ends[k]` (crossings: column + row * columns) at `departures[k]` seconds after
    midnight (infinity: no such trip), along the row first where `row_first[k]`. `speeds` (vehicles,) in metres a
    second.
    """

    starts: Integers
    ends: Integers
    departures: Floats
    durations: Floats
    row_first: NDArray[np.bool_]
    speeds: Floats
    homes: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Where a block of vehicles is at a moment, and which of them are driving (ignition on)."""

    positions: Positions
    driving: NDArray[np.bool_]


def _generator(seed: int, block: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_VEHICLES, block, purpose)))


def day_of(town: Town, seed: int, block: int, day: int) -> Day:
    """Return the trips of a block on a day (from 0). Homes, work, speed and commuting are the same every day."""
    # Two generators: the lasting draws must not depend on the day.
    who, today = _generator(seed, block, 0), _generator(seed, block, 1 + day)
    homes = who.integers(0, town.columns * town.rows, BLOCK)
    work = _near_the_middle(town, who)
    speeds = town.speed_mps * who.uniform(_SLOWEST, _FASTEST, BLOCK)
    commutes = who.random(BLOCK) < town.commuters
    shops = today.integers(0, town.columns * town.rows, BLOCK)
    errand = today.random(BLOCK) < town.errands
    starts, ends = np.stack([homes, work, homes, shops]), np.stack([work, homes, shops, homes])
    across = np.abs(starts % town.columns - ends % town.columns)
    along = np.abs(starts // town.columns - ends // town.columns)
    durations = (across + along) * town.block_m / speeds
    departures = _departures(town, today, durations, commutes & (day % 7 not in town.free_days), errand)
    row_first = today.random((4, BLOCK)) < 0.5
    return Day(starts, ends, departures, durations, row_first, speeds, homes)


def _near_the_middle(town: Town, generator: np.random.Generator) -> Integers:
    sides = np.array([[town.columns], [town.rows]])
    drawn = (sides - 1) / 2 + town.work_spread * sides * generator.standard_normal((2, BLOCK))
    column, row = np.clip(np.rint(drawn), 0, sides - 1).astype(np.int64)
    return np.asarray(column + row * town.columns, dtype=np.int64)


def _departures(
    town: Town, generator: np.random.Generator, durations: Floats, commutes: NDArray[Any], errand: NDArray[Any]
) -> Floats:
    """Return the departures of the trips, (4, vehicles), in order and such that every trip ends before midnight.

    Trips last at most three hours: a vehicle arrives at work by 17 h and leaves it by 20 h, and an errand that would
    end after 23:54 is left out.
    """
    first, second = (hour * _HOUR for hour in town.rush_hours)
    spread = town.rush_spread_h * _HOUR
    out = np.clip(generator.normal(first, spread, BLOCK), 0, 14 * _HOUR)
    back = np.clip(generator.normal(second, spread, BLOCK), out + durations[0] + _HOUR / 2, 20 * _HOUR)
    evening = back + durations[1] + _HOUR * generator.uniform(0.25, 2, BLOCK)
    shopping = np.where(commutes, evening, _HOUR * generator.uniform(7, 19, BLOCK))
    returning = shopping + durations[2] + _HOUR * generator.uniform(0.25, 1.5, BLOCK)
    errand = errand & (returning + durations[3] <= 23.9 * _HOUR)
    never = np.inf
    return np.stack(
        [
            np.where(commutes, out, never),
            np.where(commutes, back, never),
            np.where(errand, shopping, never),
            np.where(errand, returning, never),
        ]
    )


def where(town: Town, day: Day, second: float) -> Where:
    """Return where the vehicles are, `second` seconds after midnight. A parked vehicle is at a crossing."""
    latest = np.full(len(day.homes), -1)
    for trip, departures in enumerate(day.departures):
        latest[departures <= second] = trip
    vehicles = np.arange(len(latest))
    gone = np.where(latest >= 0, second - day.departures[latest, vehicles], np.inf)
    driving = gone < day.durations[latest, vehicles]
    x, y = _crossing(town, np.where(latest >= 0, day.ends[latest, vehicles], day.homes))
    eastward = np.ones(len(latest), dtype=np.bool_)
    moving = np.flatnonzero(driving)
    x[moving], y[moving], eastward[moving] = _along(town, day, latest[moving], moving, gone[moving])
    positions = Positions(
        x=x * town.block_m,
        y=y * town.block_m,
        speed_mps=np.where(driving, day.speeds, 0.0),
        edges=_edges(town, x, y, eastward),
    )
    return Where(positions, driving)


def _crossing(town: Town, crossing: Integers) -> tuple[Floats, Floats]:
    """Return column and row as floats, in blocks."""
    return (crossing % town.columns).astype(np.float64), (crossing // town.columns).astype(np.float64)


def _along(
    town: Town, day: Day, trips: Integers, vehicles: Integers, gone: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return x, y in blocks of vehicles `gone` seconds into their trips, and whether they are on a row (runs east)."""
    x0, y0 = _crossing(town, day.starts[trips, vehicles])
    x1, y1 = _crossing(town, day.ends[trips, vehicles])
    across, up = np.abs(x1 - x0), np.abs(y1 - y0)
    driven = np.minimum(gone * day.speeds[vehicles] / town.block_m, across + up)
    row_first = day.row_first[trips, vehicles]
    x_driven = np.where(row_first, np.minimum(driven, across), np.maximum(driven - up, 0.0))
    x, y = x0 + np.sign(x1 - x0) * x_driven, y0 + np.sign(y1 - y0) * (driven - x_driven)
    return x, y, np.where(row_first, driven < across, driven >= up)


def _edges(town: Town, x: Floats, y: Floats, eastward: NDArray[Any]) -> Integers:
    """Return the number of the street piece each position lies on: rows first, then columns, as in `roads_of`."""
    column = np.minimum(np.floor(x), town.columns - 2).astype(np.int64)
    row = np.minimum(np.floor(y), town.rows - 2).astype(np.int64)
    on_row = np.rint(y).astype(np.int64) * (town.columns - 1) + column
    on_column = town.rows * (town.columns - 1) + np.rint(x).astype(np.int64) * (town.rows - 1) + row
    return np.where(eastward, on_row, on_column)


def roads_of(town: Town) -> Roads:
    """Return the pieces of street between crossings: r<row>.<column> runs east, then s<column>.<row> runs north."""
    names: list[str] = []
    lines: list[tuple[tuple[float, float], ...]] = []
    side = town.block_m
    for row in range(town.rows):
        for column in range(town.columns - 1):
            names.append(f"r{row:03d}.{column:03d}")
            lines.append(((column * side, row * side), ((column + 1) * side, row * side)))
    for column in range(town.columns):
        for row in range(town.rows - 1):
            names.append(f"s{column:03d}.{row:03d}")
            lines.append(((column * side, row * side), (column * side, (row + 1) * side)))
    return Roads(names=tuple(names), lines=tuple(lines))
