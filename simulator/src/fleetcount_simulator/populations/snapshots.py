"""A population by snapshots: the vehicles and their values at every epoch, recorded from a trace while it is read.

`Snapshots` has per epoch the vehicles in the trace and their values, and nothing between the epochs. It must not open a
file. A vehicle that is not in the trace at an epoch answers "none of them" and is off then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from fleetcount_protocol.layout import prints
from fleetcount_transport.toml_values import shown
from numpy.typing import NDArray

from fleetcount_simulator.cells.model import OUTSIDE, Cells, Floats, Positions, value_type
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers
from fleetcount_simulator.populations.fixed import ANY_NUMBER_OF_TIMES, check_range

MAX_VEHICLES: Final = 5_000_000
MAX_SIGHTINGS: Final = 50_000_000
MAX_EPOCHS: Final = 100_000
MAX_NAME: Final = 200
_KEPT_MOMENTS: Final = 3
"""Cached moments as arrays over all vehicles: an epoch, its second round and the epoch before."""
_ORDER: Final = 1
"""Spawn key of the draw of devices under a population's seed."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """One epoch: the vehicles seen, ascending, and the value of each."""

    vehicles: NDArray[np.int32]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The number of devices (None: all vehicles), and how a smaller number is drawn.

    With `seen_first` the vehicles of epoch 0 are drawn before any other.
    """

    devices: int | None
    seed: int
    seen_first: bool = False


def drawn_order(vehicles: int, seen: NDArray[np.int32], fleet: Fleet) -> Integers:
    """Return the vehicle of each of the first devices: all in order, or fewer drawn without replacement.

    `seen` are the vehicles of epoch 0.
    """
    if fleet.devices is None or fleet.devices >= vehicles:
        return np.arange(vehicles)
    generator = np.random.default_rng(np.random.SeedSequence(fleet.seed, spawn_key=(_ORDER,)))
    order = generator.permutation(vehicles)
    if fleet.seen_first:
        there = np.isin(order, seen)
        order = np.concatenate([order[there], order[~there]])
    return np.sort(order[: fleet.devices])


class Snapshots:
    """Vehicles at moments. More devices than vehicles repeat them: device i has the values of device i mod the
    vehicles.

    A `steady` population has one moment for all epochs, and every device is always on.
    """

    def __init__(
        self,
        question: AnswerSpace,
        moments: Sequence[Moment],
        vehicles: int,
        order: Integers,
        devices: int,
        *,
        steady: bool,
    ) -> None:
        self.question = question
        self.devices = devices
        self.epochs = ANY_NUMBER_OF_TIMES if steady else len(moments)
        self._moments = tuple(moments)
        self._vehicles = vehicles
        self._order = order
        self._steady = steady
        self._dense: dict[int, tuple[NDArray[Any], NDArray[np.bool_]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cache: another process computes it again."""
        return self.__dict__ | {"_dense": {}}

    def histogram(self, epoch: int) -> Integers:
        """Return shape (V+1,): how many devices hold each value."""
        values, _ = self._at(epoch)
        times, rest = divmod(self.devices, len(self._order))
        whole = np.bincount(values, minlength=self.question.held + 1)
        counts = whole * times + np.bincount(values[:rest], minlength=len(whole))
        return np.asarray(counts, dtype=np.int64)

    def truths(self, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Return the values of devices start..stop-1.

        Raises:
            ScenarioError: an epoch or devices that do not exist.
        """
        check_range(start, stop, self.devices)
        return self._part(self._at(epoch)[0], start, stop)

    def reachable(self, epoch: int, round_number: int, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Return which devices are in the trace at the epoch, or for round two at the next one; None when steady.

        For round two of the last epoch the trace has no data: the devices of the epoch itself stay on.
        """
        check_range(start, stop, self.devices)
        if self._steady:
            return None
        at = min(epoch + round_number - 1, self.epochs - 1)
        return self._part(self._at(at)[1], start, stop)

    def _part(self, everyone: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        if stop <= len(everyone):
            return everyone[start:stop]
        return everyone[np.arange(start, stop) % len(everyone)]

    def _at(self, epoch: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return values and presence of the devices in `order`; the latest moments are cached."""
        if not 0 <= epoch < self.epochs:
            raise ScenarioError(f"epochs: there is no epoch {epoch}; this population has 0 to {self.epochs - 1}")
        index = 0 if self._steady else epoch
        if index not in self._dense:
            if len(self._dense) == _KEPT_MOMENTS:
                del self._dense[next(iter(self._dense))]
            moment = self._moments[index]
            values = np.zeros(self._vehicles, dtype=value_type(self.question.held))
            present = np.zeros(self._vehicles, dtype=np.bool_)
            values[moment.vehicles] = moment.values
            present[moment.vehicles] = True
            self._dense[index] = values[self._order], present[self._order]
        return self._dense[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The times of the epochs: epoch e begins at start + e * interval (seconds; start None: the first row's time).

    A vehicle counts at an epoch with its first sighting within `window` seconds of its beginning; with window 0
    it counts in the first moment of the data at or after it. `count` epochs, or (None) as many as the data reach.
    """

    start: float | None
    interval: float
    window: float
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sightings:
    """A piece of a trace: times (s), vehicles' names, positions, and `place`, the place of a row in the file."""

    times: Floats
    vehicles: Sequence[str]
    positions: Positions
    place: Callable[[int], str]


def check_vehicle(name: str, row: int, place: Callable[[int], str]) -> None:
    """Raise ScenarioError, with the place of the row, for a name that no vehicle has."""
    if not name or len(name) > MAX_NAME or not prints(name) or name != name.strip():
        allowed = f"1 to {MAX_NAME} printable characters without a blank at an end"
        raise ScenarioError(f"{place(row)}: the vehicle is {shown(name)}; it must be {allowed}")


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Recorded sightings: the epoch, the vehicle's number and the key of its cell."""

    epochs: Integers
    vehicles: NDArray[np.int32]
    keys: Integers


class Recorder:
    """Reads a trace piece by piece and keeps one sighting per vehicle and epoch."""

    def __init__(self, cells: Cells, clock: Clock, file: str) -> None:
        self._cells, self._clock, self._file = cells, clock, file
        self._numbers: dict[str, int] = {}
        self._latest_time = -np.inf
        self._last_seen = np.full(1024, -np.inf)
        self._last_epoch = np.full(1024, -1, dtype=np.int64)
        self._start = clock.start
        self._snapshot: tuple[int, float] = -1, -np.inf
        self._kept: list[_Kept] = []
        self._sightings = 0

    def add(self, piece: Sightings) -> None:
        """Record a piece.

        Raises:
            ScenarioError: unsorted times, a vehicle twice at one time, a name that is not allowed, too many rows; with
                the line.
        """
        if len(piece.times) == 0:
            return
        self._check_order(piece)
        vehicles = np.fromiter((self._number(name, i, piece) for i, name in enumerate(piece.vehicles)), dtype=np.int64)
        self._check_once(piece, vehicles)
        keys = self._cells.keys(piece.positions)
        epochs = self._epochs(piece.times)
        chosen = np.flatnonzero(epochs >= 0)
        chosen = chosen[self._first_of_epoch(vehicles[chosen], epochs[chosen])]
        self._sightings += len(chosen)
        if self._sightings > MAX_SIGHTINGS:
            hint = "take a longer population.interval_s"
            raise ScenarioError(f"{self._file}: more than {MAX_SIGHTINGS} sightings at epochs; {hint}")
        self._kept.append(_Kept(epochs[chosen], vehicles[chosen].astype(np.int32), keys[chosen]))

    def close(self, fleet: Fleet) -> Snapshots:
        """Return the population.

        Raises:
            ScenarioError: no row, no sighting at any epoch, or none inside the cells.
        """
        if not self._numbers:
            raise ScenarioError(f"{self._file}: no rows")
        epochs = np.concatenate([part.epochs for part in self._kept])
        vehicles = np.concatenate([part.vehicles for part in self._kept])
        keys = np.concatenate([part.keys for part in self._kept])
        if len(epochs) == 0:
            raise ScenarioError(f"{self._file}: no sighting at any epoch; see population.start_s and interval_s")
        seen = np.unique(keys)
        values = self._cells.close(seen[seen != OUTSIDE])
        answers = values.of(keys)
        if not answers.any():
            hint = "are x and y exchanged, or in another unit?"
            raise ScenarioError(f"question.bounds: not one of {len(answers)} sightings lies in any cell; {hint}")
        count = self._clock.count or int(epochs.max()) + 1
        moments = _moments(epochs, vehicles, answers, count)
        number = len(self._numbers)
        order = drawn_order(number, moments[0].vehicles, fleet)
        return Snapshots(values.question, moments, number, order, fleet.devices or number, steady=False)

    def _number(self, name: str, row: int, piece: Sightings) -> int:
        number = self._numbers.get(name)
        if number is not None:
            return number
        check_vehicle(name, row, piece.place)
        number = len(self._numbers)
        if number == MAX_VEHICLES:
            raise ScenarioError(f"{piece.place(row)}: more than {MAX_VEHICLES} vehicles")
        if number == len(self._last_seen):
            self._last_seen = np.concatenate([self._last_seen, np.full(number, -np.inf)])
            self._last_epoch = np.concatenate([self._last_epoch, np.full(number, -1, dtype=np.int64)])
        self._numbers[name] = number
        return number

    def _check_order(self, piece: Sightings) -> None:
        back = np.diff(piece.times, prepend=self._latest_time) < 0
        if back.any():
            row = int(back.argmax())
            before = piece.times[row - 1] if row else self._latest_time
            raise ScenarioError(
                f"{piece.place(row)}: time {piece.times[row]:.15g} after {before:.15g}; sort by time, for example"
                " duckdb.sql(\"copy (from 'by_vehicle.csv' order by time) to 'by_time.csv'\") in Python"
            )
        self._latest_time = float(piece.times[-1])

    def _check_once(self, piece: Sightings, vehicles: Integers) -> None:
        """Refuse a vehicle that occurs twice at one time; `times` ascend, so its rows are in order."""
        by_vehicle = np.argsort(vehicles, kind="stable")
        names, times = vehicles[by_vehicle], piece.times[by_vehicle]
        fresh = np.diff(names, prepend=-1) != 0
        before = np.where(fresh, self._last_seen[names], np.roll(times, 1))
        twice = np.flatnonzero(times == before)
        if len(twice):
            row = int(by_vehicle[twice].min())
            name, moment = shown(piece.vehicles[row]), f"{piece.times[row]:.15g}"
            raise ScenarioError(f"{piece.place(row)}: vehicle {name} occurs twice at {moment}")
        self._last_seen[names] = times  # NumPy keeps the last of repeated indices: the latest time.

    def _epochs(self, times: Floats) -> Integers:
        """Return the epoch of each row, -1 for a row in no epoch's window."""
        if self._start is None:
            self._start = float(times[0])
        # 0.3 is not three times 0.1 in floats, and Unix seconds are off by a tenth of a microsecond.
        tolerance = 1e-9 + 2 * np.spacing(abs(times)) / self._clock.interval
        passed = (times - self._start) / self._clock.interval + tolerance
        epochs = np.floor(passed).astype(np.int64)
        if self._clock.count is None and int(epochs[-1]) >= MAX_EPOCHS:
            raise ScenarioError(f"population.interval_s gives more than {MAX_EPOCHS} epochs over {self._file}")
        outside = epochs < 0 if self._clock.count is None else (epochs < 0) | (epochs >= self._clock.count)
        if self._clock.window:
            late = passed - epochs >= self._clock.window / self._clock.interval
        else:
            late = times != self._first_times(times, epochs)
        return np.where(outside | late, -1, epochs)

    def _first_times(self, times: Floats, epochs: Integers) -> Floats:
        """Return the first time of the data in each row's epoch."""
        fresh = np.diff(epochs, prepend=self._snapshot[0]) != 0
        group = np.cumsum(fresh)
        firsts: Floats = np.concatenate([np.array([self._snapshot[1]]), times[fresh]])
        self._snapshot = int(epochs[-1]), float(firsts[-1])
        return np.asarray(firsts[group], dtype=np.float64)

    def _first_of_epoch(self, vehicles: Integers, epochs: Integers) -> NDArray[np.bool_]:
        """Return which rows are the first of their vehicle in their epoch."""
        order = np.lexsort((np.arange(len(vehicles)), epochs, vehicles))
        names, when = vehicles[order], epochs[order]
        fresh = (np.diff(names, prepend=-1) != 0) | (np.diff(when, prepend=-1) != 0)
        fresh &= self._last_epoch[names] != when
        self._last_epoch[names] = when
        first = np.zeros(len(vehicles), dtype=np.bool_)
        first[order[fresh]] = True
        return first


def _moments(epochs: Integers, vehicles: NDArray[np.int32], values: NDArray[Any], count: int) -> list[Moment]:
    order = np.lexsort((vehicles, epochs))
    ends = np.searchsorted(epochs[order], np.arange(count + 1))
    return [Moment(vehicles[order[low:high]], values[order[low:high]]) for low, high in pairwise(ends)]
