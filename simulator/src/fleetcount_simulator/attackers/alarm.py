"""The mover test: do more devices change between the rounds than the sampling rate explains?

It reads only a release and the number of reports, which aggregators know; it must not see a device.

Each honest device whose truth is a value v >= 1 moves with probability p, one without a value never does. So
M = sum over v >= 1 of Y_v has at most the law Bin(n, p) + the noise of all cells, and a liar always moves. The test
raises an alarm when M is larger than n p by more than c standard deviations, c the normal quantile of the false alarm.
It is sharp when every device has a value (a question with an "elsewhere"); devices without one never move, so that as
many liars stay below the limit.
"""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_simulator.model import Case, Integers

FALSE_ALARM = 1e-6
"""How often an honest fleet raises the alarm."""


def mover_scores(outputs: Integers, participants: Integers, rate: float, noise_variance: float) -> NDArray[np.float64]:
    """Return (M - n p)/sd for every run; `noise_variance` is that of the whole sum M, all cells and aggregators."""
    n = np.asarray(participants, dtype=np.float64)
    spread = np.sqrt(n * rate * (1 - rate) + noise_variance)
    return np.asarray((outputs.sum(axis=-1) - n * rate) / np.where(spread > 0, spread, 1), dtype=np.float64)


def alarms(
    case: Case, outputs: Integers, participants: Integers, false_alarm: float = FALSE_ALARM
) -> NDArray[np.bool_]:
    """Return which runs of a sampling case raise the alarm, shape (runs,)."""
    scores = mover_scores(outputs, participants, float(case.design.exposure), _noise_variance(case))
    return np.asarray(scores > scipy.stats.norm.isf(false_alarm), dtype=np.bool_)


def alarm_power(case: Case, holders: int, others: int, liars: int) -> float:
    """Return the chance of an alarm, by the normal approximation of M.

    `holders` honest devices have a value, `others` have none, `liars` claim one.
    """
    rate, noise = float(case.design.exposure), _noise_variance(case)
    n = holders + others + liars
    limit = n * rate + float(scipy.stats.norm.isf(FALSE_ALARM)) * math.sqrt(n * rate * (1 - rate) + noise)
    spread = math.sqrt(holders * rate * (1 - rate) + noise)
    excess = holders * rate + liars - limit
    if spread == 0:
        return 1.0 if excess > 0 else 0.0
    return float(scipy.stats.norm.cdf(excess / spread))


def largest_unseen(case: Case, honest: int) -> int:
    """Return how many liars raise the alarm in half of the runs, among `honest` devices that all have a value.

    The root in m of m (1 - p) = c sqrt((n + m) p (1 - p) + noise), rounded down.
    """
    rate, noise = float(case.design.exposure), _noise_variance(case)
    square = float(scipy.stats.norm.isf(FALSE_ALARM)) ** 2
    # (1-p)^2 m^2 - c^2 p (1-p) m - c^2 (n p (1-p) + noise) = 0
    a, b = (1 - rate) ** 2, square * rate * (1 - rate)
    constant = square * (honest * rate * (1 - rate) + noise)
    return int((b + math.sqrt(b * b + 4 * a * constant)) / (2 * a))


def _noise_variance(case: Case) -> float:
    return case.design.values * case.aggregators * case.design.noise.draw_variance
