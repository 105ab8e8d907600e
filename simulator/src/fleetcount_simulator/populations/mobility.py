"""Kind `mobility`: the built-in mobility model, asked every few minutes of a day, a week or a month.

Only a few blocks of vehicles are in memory: every answer is computed from the seed on demand (well under a microsecond
per vehicle), so that many vehicles and many epochs cost time, not memory. It must not read data.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range
from numpy.typing import NDArray

from fleetcount_simulator.cells import MOVING, CellSpec, declare, read
from fleetcount_simulator.cells.model import Cells, Frame, Values, value_type
from fleetcount_simulator.cells.settings import ANY_LENGTH, SHARE, Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers, Population
from fleetcount_simulator.populations.commuters import (
    BLOCK,
    DAY_S,
    LONGEST_TRIP_S,
    Day,
    Town,
    Where,
    day_of,
    roads_of,
    where,
)
from fleetcount_simulator.populations.fixed import check_range

ABOUT: Final = "a built-in town: commuters on a grid of streets, rush hours, errands, ignition on and off"
CELLS: Final = MOVING


@settings
class Keys:
    """[population] of kind `mobility`."""

    devices: int = setting(Table.integer, 2, 10**9, about="how many vehicles, 2 to 10^9", example="10000")
    columns: int = setting(
        Table.integer, 2, 500, default=21, about="streets from west to east, 2 to 500; default 21", example="21"
    )
    rows: int = setting(
        Table.integer, 2, 500, default=21, about="streets from south to north, 2 to 500; default 21", example="21"
    )
    block_m: Fraction = setting(
        Table.number,
        Range("[10, 5000]"),
        default=Fraction(250),
        about="metres between crossings, 10 to 5000; default 250",
        example="250",
    )
    speed_kmh: Fraction = setting(
        Table.number,
        Range("[1, 200]"),
        default=Fraction(30),
        about="mean speed of vehicles, 1 to 200; default 30",
        example="40",
    )
    commuters: Fraction = setting(
        Table.number,
        SHARE,
        default=Fraction("0.7"),
        about="share that drives to work and home, 0 to 1; default 0.7",
        example='"2/3"',
    )
    errands: Fraction = setting(
        Table.number,
        SHARE,
        default=Fraction("0.3"),
        about="share that drives on an errand a day, 0 to 1; default 0.3",
        example="0.5",
    )
    free_days: tuple[Fraction, ...] = setting(
        Settings.numbers,
        (0, 7),
        Range("[0, 6]"),
        default=(),
        about="days of every seven, from 0, without commuting; default none",
        example="[5, 6]",
    )
    rush_hours: tuple[Fraction, ...] = setting(
        Settings.numbers,
        (2, 2),
        Range("[0, 20]"),
        default=(Fraction(8), Fraction("17.5")),
        about="[morning, evening] in hours; default [8, 17.5]",
        example="[7.5, 17]",
    )
    rush_spread_h: Fraction = setting(
        Table.number,
        Range("[0, 6]"),
        default=Fraction(1),
        about="sd of departures, 0 to 6; default 1",
        example="0.5",
    )
    work_spread: Fraction = setting(
        Table.number,
        Range("[0, 10]"),
        default=Fraction("0.15"),
        about="sd of places of work around the middle, 0 to 10 town widths; default 0.15",
        example="0.3",
    )
    start_h: Fraction = setting(
        Table.number,
        Range("[0, 24]"),
        default=Fraction(0),
        about="hour of epoch 0, 0 to 24; default 0",
        example="6",
    )
    hours: Fraction = setting(
        Table.number,
        Range("(0, 1000]"),
        default=Fraction(24),
        about="how long it is asked, above 0 to 1000; default 24",
        example="12",
    )
    interval_s: Fraction = setting(
        Table.number,
        ANY_LENGTH,
        default=Fraction(900),
        about="seconds from one epoch to the next; default 900",
        example="1800",
    )
    round_gap_s: Fraction = setting(
        Table.number,
        Range("[0, 86400]"),
        default=Fraction(60),
        about="seconds from round one to round two; default 60",
        example="300",
    )
    parked: str = setting(
        Table.choice,
        ("none", "place"),
        default="none",
        about='a parked vehicle answers "none" (default), or its "place"',
        example='"place"',
    )


_KEPT_MOMENTS: Final = 3
"""Cached moments of a block: an epoch, its second round and the epoch before."""
_KEPT_DAYS: Final = 8
"""Cached days of blocks, about 4 MB each: enough for a quarter of a million vehicles."""


class Mobility:
    """Vehicles of a town; epoch e is at start + e * interval, seconds from the midnight before day 0."""

    def __init__(
        self,
        *,
        town: Town,
        cells: Cells,
        devices: int,
        seed: int,
        clock: tuple[float, float, int],
        gap_s: float,
        parked: bool,
    ) -> None:
        self._town, self._cells, self._seed = town, cells, seed
        self._values: Values = cells.close(np.empty(0, dtype=np.int64))
        self.devices = devices
        self._start, self._interval, self.epochs = clock
        self._gap_s, self._parked = gap_s, parked
        self._days: dict[tuple[int, int], Day] = {}
        self._latest: dict[tuple[int, float], Where] = {}
        self._histogram: tuple[int, Integers] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the caches: another process draws again."""
        return self.__dict__ | {"_days": {}, "_latest": {}, "_histogram": None}

    @property
    def clock(self) -> tuple[float, float]:
        """See `Timed`."""
        return self._interval, self._start

    @property
    def question(self) -> AnswerSpace:
        """The question this population was made for."""
        return self._values.question

    def histogram(self, epoch: int) -> Integers:
        """Return shape (V+1,): how many vehicles have each value; O(devices), cached for one epoch."""
        second = self._second(epoch)
        if self._histogram is None or self._histogram[0] != epoch:
            total = np.zeros(self.question.values + 1, dtype=np.int64)
            for block in range(-(-self.devices // BLOCK)):
                answers = self._answers(block, second)[: self.devices - block * BLOCK]
                total += np.bincount(answers, minlength=len(total))
            self._histogram = epoch, total
        return self._histogram[1]

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Return the values of vehicles start..stop-1.

        Raises:
            ScenarioError: an epoch or devices that do not exist.
        """
        check_range(start, stop, self.devices)
        second = self._second(epoch)
        parts = [self._answers(block, second)[low:high] for block, low, high in _blocks(start, stop)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=value_type(self.question.values))

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the vehicles drive (ignition on) at the time of the round."""
        check_range(start, stop, self.devices)
        second = self._second(epoch) + (round_number - 1) * self._gap_s
        parts = [self._where(block, second).driving[low:high] for block, low, high in _blocks(start, stop)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.bool_)

    def _second(self, epoch: int) -> float:
        if not 0 <= epoch < self.epochs:
            raise ScenarioError(f"epochs: there is no epoch {epoch}; this population has 0 to {self.epochs - 1}")
        return self._start + epoch * self._interval

    def _answers(self, block: int, second: float) -> NDArray[Any]:
        found = self._where(block, second)
        values = self._values.of(self._cells.keys(found.positions))
        return values if self._parked else np.where(found.driving, values, 0).astype(values.dtype)

    def _where(self, block: int, second: float) -> Where:
        key = block, second
        if key not in self._latest:
            if len(self._latest) == _KEPT_MOMENTS:
                del self._latest[next(iter(self._latest))]
            day, of_day = divmod(second, DAY_S)
            self._latest[key] = where(self._town, self._day(block, int(day)), of_day)
        return self._latest[key]

    def _day(self, block: int, day: int) -> Day:
        key = block, day
        if key not in self._days:
            if len(self._days) == _KEPT_DAYS:
                del self._days[next(iter(self._days))]
            self._days[key] = day_of(self._town, self._seed, block, day)
        return self._days[key]


def _blocks(start: int, stop: int) -> list[tuple[int, int, int]]:
    """Return (block, first, stop) of the blocks with vehicles start..stop-1, counted within each block."""
    return [
        (block, max(0, start - block * BLOCK), min(BLOCK, stop - block * BLOCK))
        for block in range(start // BLOCK, -(-stop // BLOCK))
        if stop > start
    ]


def build(keys: Keys, question: Mapping[str, Any], folder: Path, seed: int) -> Population:
    """Return a town.

    Raises:
        ScenarioError: a key that cannot be used; with the dotted key.
    """
    asked = read(question, folder, CELLS)
    town = _town(keys)
    epochs = max(1, int(keys.hours * 3600 / keys.interval_s))
    if epochs > 100_000:
        raise UnfitKeyError("interval_s", allowed="longer: it gives more than 100000 epochs")
    return Mobility(
        town=town,
        cells=_cells(asked, town),
        devices=keys.devices,
        seed=seed,
        clock=(float(keys.start_h * 3600), float(keys.interval_s), epochs),
        gap_s=float(keys.round_gap_s),
        parked=keys.parked == "place",
    )


def _town(keys: Keys) -> Town:
    if any(day.denominator != 1 for day in keys.free_days):
        raise UnfitKeyError("free_days", allowed="whole numbers from 0 to 6")
    morning, evening = keys.rush_hours
    if morning >= evening:
        raise UnfitKeyError("rush_hours", allowed="[morning, evening] with the morning first")
    town = Town(
        columns=keys.columns,
        rows=keys.rows,
        block_m=float(keys.block_m),
        speed_mps=float(keys.speed_kmh * Fraction(10, 36)),
        commuters=float(keys.commuters),
        errands=float(keys.errands),
        rush_hours=(float(morning), float(evening)),
        rush_spread_h=float(keys.rush_spread_h),
        free_days=frozenset(int(day) for day in keys.free_days),
        work_spread=float(keys.work_spread),
    )
    longest = (town.columns + town.rows - 2) * town.block_m / (0.8 * town.speed_mps)
    if longest > LONGEST_TRIP_S:
        problem = (
            f"makes trips of up to {longest / 3600:.1f} hours; they must be at most 3: take a faster or smaller town"
        )
        raise UnfitKeyError("speed_kmh", problem=problem)
    return town


def _cells(asked: CellSpec, town: Town) -> Cells:
    width, height = (town.columns - 1) * town.block_m, (town.rows - 1) * town.block_m
    # A vehicle may be on the upper border itself, which belongs to no cell: the box ends one metre beyond it.
    extent = Fraction(0), Fraction(0), Fraction(width) + 1, Fraction(height) + 1
    roads = roads_of(town) if asked.kind == "edges" else None
    return declare(asked, Frame(unit="m", speed=True, edges=True, roads=roads, extent=extent))
