"""Counts of a whole fleet of which each device is asked in one window of several, from the few that were asked.

A release of such a window counts those who were asked in it, about one device in W; what it says of all devices is
sampling noise for the most part. It must not choose who is asked (`fleetcount_client.answering.slot_of`).
"""

from fractions import Fraction

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from numpy.typing import NDArray
from scipy.special import betaincinv

from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.errors import RangeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_NOISE_ERROR = 0.01
"""The part of the error that is left for each of two noises: that of a cell's number, and of how many were asked."""


def fleet_estimates(design: Design, cell: Integers, asked: Integers, one_in: int) -> Floats:
    """Return W (Y - M Q)/(P - Q), unbiased for the devices of a cell among all, from the opened numbers Y and M.

    `asked` is M, the released number of answers: the sum over 0..V, or the participation bit's.

    Raises:
        RangeError: a design whose devices do not randomize, or one window in fewer than 2.
    """
    hit, miss = _channel(design, one_in)
    return np.asarray(one_in * (cell - asked * miss) / (hit - miss), dtype=np.float64)


def fleet_ends(
    design: Design, cell: Integers, asked: Integers, one_in: int, devices: int, level: Fraction
) -> tuple[Integers, Integers]:
    """Return the ends of intervals for the devices of a cell among all N = `devices`, which hold with `level` at least.

    Clopper and Pearson (1934) for Y of Binomial(M, Q + (n/N)(P - Q)), solved for n. Who is asked is a simple random
    sample, whose sums spread no more than a binomial's (Hoeffding 1963, Theorem 4). The aggregators' noise on Y and M
    is taken off with a hundredth of the error each.

    Raises:
        RangeError: as `fleet_estimates`, fewer than 1 device, or a level outside (0, 1).
    """
    hit, miss = _channel(design, one_in)
    if devices < 1 or not 0 < level < 1:
        raise RangeError("devices and level", (devices, level), "at least 1, and (0, 1)")
    error = float(1 - level)
    many = design.values + 1 if design.outputs is Outputs.ALL else 1
    apart = noise_total(design.noise, design.aggregators).central_reach(error * _NOISE_ERROR / 2)
    fewer = noise_total(design.noise, many * design.aggregators).central_reach(error * _NOISE_ERROR / 2)
    tail = error * (1 - 2 * _NOISE_ERROR) / 2
    least, most = np.maximum(cell - apart, 0), np.maximum(cell + apart, 0)
    above, below = np.maximum(asked + fewer, least), asked - fewer
    with np.errstate(invalid="ignore"):
        lower = np.where(least > 0, betaincinv(np.maximum(least, 1), above - least + 1, tail), 0.0)
        upper = np.where(most < below, betaincinv(most + 1, np.maximum(below - most, 1), 1 - tail), 1.0)
    ends = [np.clip(devices * (share - miss) / (hit - miss), 0, devices) for share in (lower, upper)]
    return np.floor(ends[0]).astype(np.int64), np.ceil(ends[1]).astype(np.int64)


def _channel(design: Design, one_in: int) -> tuple[float, float]:
    if not design.device_randomizes or one_in < 2:
        raise RangeError("design and one_in", (design.name, one_in), "a randomized response, one window in 2 or more")
    if len(set(design.told_as)) > 1:
        raise RangeError("design", "values that are told in different ways", "design.all_told_as(cell), for its cell")
    hit, miss = design.channel
    return float(hit), float(miss)
