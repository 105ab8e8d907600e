"""The row of a measurement of an attacker: its columns, and the intervals of the measured number.

It counts and rounds; it must not depend on a single attacker.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_simulator.model import Attacker, Row

_LEVEL = 0.95
_LUCK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number measured in `trials` trials, with its 95 % interval.

    The true number is below `least` with probability 10^-6 only: chance must not look like a broken promise.
    """

    trials: int
    value: float
    low: float
    high: float
    least: float


def share_of(successes: int, trials: int) -> Measured:
    """Return a share with its exact interval (Clopper and Pearson 1934); without a trial it is 0 to 1."""
    if trials == 0:
        return Measured(trials=0, value=math.nan, low=0.0, high=1.0, least=0.0)
    tail = (1 - _LEVEL) / 2
    low, least = (
        float(scipy.stats.beta.ppf(chance, successes, trials - successes + 1)) if successes else 0.0
        for chance in (tail, _LUCK)
    )
    high = float(scipy.stats.beta.isf(tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return Measured(trials=trials, value=successes / trials, low=low, high=high, least=least)


def mean_of(values: NDArray[np.float64]) -> Measured:
    """Return a mean with its normal interval; of fewer than two values the interval is unbounded."""
    trials = int(values.size)
    value = float(values.mean()) if trials else math.nan
    if trials < 2:
        return Measured(trials=trials, value=value, low=-math.inf, high=math.inf, least=-math.inf)
    error = float(values.std(ddof=1)) / math.sqrt(trials)
    half, far = (float(scipy.stats.norm.isf(tail)) * error for tail in ((1 - _LEVEL) / 2, _LUCK))
    return Measured(trials=trials, value=value, low=value - half, high=value + half, least=value - far)


def finding(
    attacker: Attacker,
    measure: str,
    target: str,
    measured: Measured,
    *,
    theory: float | None = None,
    bound: float | None = None,
    epoch: int | None = None,
    questions: int | None = None,
) -> Row:
    """Return the row; see `fleetcount_simulator.attackers` for its columns."""
    return {
        "attacker": attacker.name,
        "kind": attacker.kind,
        "measure": measure,
        "target": target,
        "epoch": epoch,
        "questions": questions,
        "trials": measured.trials,
        "measured": None if math.isnan(measured.value) else measured.value,
        "low": None if math.isinf(measured.low) else measured.low,
        "high": None if math.isinf(measured.high) else measured.high,
        "theory": theory,
        "bound": bound,
        "within": None if bound is None else measured.least <= bound,
    }
