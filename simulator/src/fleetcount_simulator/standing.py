"""A standing question in a study: its schedule, how long a coin holds, when devices join and leave, failed windows.

Pure arithmetic on window and device numbers; it must not know a mechanism, a population or a seed. Window t of a
question is epoch t of its population.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_protocol.question.fields import Coin, Schedule
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_MIX: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_STEP: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingQuestion:
    """One question asked in every window of a schedule, on one reservation.

    `schedule.first` counts from the midnight before the population's first day. `epsilon` at `delta` is the promise of
    the whole question that the noise is solved for, None where the noise is given. `joins` and `leaves` are the shares
    of devices that join after the first window and leave before the last; `outages` are (first, last) of windows
    without a release.
    """

    schedule: Schedule
    coin: Coin
    epsilon: Fraction | None
    delta: Fraction
    joins: Fraction = Fraction(0)
    leaves: Fraction = Fraction(0)
    outages: tuple[tuple[int, int], ...] = ()

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return self.schedule.windows

    @property
    def shape(self) -> ScheduleShape:
        """How many windows each unit of the coin and each day has."""
        return _shape(self.schedule, self.coin)

    @property
    def changes(self) -> bool:
        """Whether devices join or leave on the way."""
        return self.joins > 0 or self.leaves > 0

    def unit(self, window: int) -> int:
        """Return the number of the coin's unit that holds a window."""
        return self.schedule.unit_of(self.coin, window)

    def is_missing(self, window: int) -> bool:
        """Return whether an outage leaves the window without a release."""
        return any(first <= window <= last for first, last in self.outages)


@lru_cache(maxsize=64)
def _shape(schedule: Schedule, coin: Coin) -> ScheduleShape:
    return schedule.shape(coin)


def schedule_of(windows: int, every_s: int, first_s: int) -> Schedule:
    """Return a schedule of windows of no length: a study draws windows one by one, without a clock."""
    return Schedule(first=first_s, every_s=every_s, windows=windows, round_one_s=0, round_two_s=0, expiry_s=0)


def membership_windows(question: StandingQuestion, start: int, stop: int) -> tuple[Integers, Integers]:
    """Return the window in which each of the devices start..stop-1 joins, and the first one in which it is gone.

    Both have shape (stop - start,), int64. A share `joins` of the devices joins after window 0, at a window uniform
    over the others; a share `leaves` leaves, at a window uniform over those after it joined. Both depend on the
    device's number alone, by SplitMix64's finalizer (Steele, Lea, Flood 2014), so that every run has the same.
    """
    windows = question.windows
    came, gone = np.zeros(stop - start, dtype=np.int64), np.full(stop - start, windows, dtype=np.int64)
    if not question.changes:
        return came, gone
    late, at, early, until = _uniforms(start, stop)
    came = np.where(late < float(question.joins), 1 + np.floor(at * (windows - 1)).astype(np.int64), came)
    came = np.minimum(came, windows - 1)
    left = came + 1 + np.floor(until * (windows - came - 1)).astype(np.int64)
    return came, np.where(early < float(question.leaves), np.minimum(left, windows), gone)


def _uniforms(start: int, stop: int) -> NDArray[np.float64]:
    """Return shape (4, devices), uniform in [0, 1) and fixed for every device."""
    with np.errstate(over="ignore"):
        word = np.arange(4 * start, 4 * stop, dtype=np.uint64) * np.uint64(_STEP)
        for shift, factor in zip((30, 27), _MIX, strict=True):
            word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
        word ^= word >> np.uint64(31)
    return np.asarray((word >> np.uint64(11)).astype(np.float64) * 2.0**-53, dtype=np.float64).reshape(-1, 4).T
