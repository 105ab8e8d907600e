"""Variances of the numbers that a standing question publishes: of discrete Gaussian noise, and over two windows.

Reference formulas for the golden numbers; a release prints intervals from `intervals` and `noise`. All from
docs/privacy.md, "A question": n_t and n_s devices in a cell in two windows, n_both of them in both, sampling rate p, k
noises of variance v on each opened number.
"""

from decimal import Decimal
from fractions import Fraction
from math import ceil, sqrt

import numpy as np
from fleetcount_analysis.errors import AnalysisError
from fleetcount_mechanisms.errors import require_at_least, require_positive
from fleetcount_mechanisms.randomness import WIDE, near_decimal

LARGEST_VARIANCE = 10**7
_NEGLIGIBLE = Decimal(1).scaleb(-70)


def _checked(variance: Fraction) -> Fraction:
    if require_positive("variance", variance) > LARGEST_VARIANCE:
        raise AnalysisError(f"variance is {variance}, allowed: 0 < variance <= {LARGEST_VARIANCE}")
    return variance


def discrete_gaussian_variance(variance: Fraction) -> Fraction:
    """Return the variance of N_Z(0, s), to 60 digits: a little less than s where s is below about 1.

    Raises:
        MechanismError: s not above 0.
        AnalysisError: s above 10**7.
    """
    step = WIDE.exp(near_decimal(-1 / _checked(variance)))
    weight, factor = WIDE.exp(near_decimal(-1 / (2 * variance))), WIDE.exp(near_decimal(Fraction(-3, 2) / variance))
    mass, moment, place, least = Decimal(0), Decimal(0), 1, WIDE.multiply(weight, _NEGLIGIBLE)
    while weight > least:
        mass = WIDE.add(mass, weight)
        moment = WIDE.add(moment, WIDE.multiply(Decimal(place * place), weight))
        weight, factor, place = WIDE.multiply(weight, factor), WIDE.multiply(factor, step), place + 1
    return Fraction(WIDE.divide(2 * moment, WIDE.add(Decimal(1), 2 * mass)))


def noise_tail(variance: Fraction, noises: int, reach: int) -> float:
    """Return P[|Z_1 + ... + Z_k| > h] of k draws of N_Z(0, s), by convolution, to about 12 digits.

    Raises:
        MechanismError: s not above 0, fewer than one noise, or a negative reach.
        AnalysisError: s above 10**7, more than 64 noises, or a reach beyond 100,000.
    """
    require_at_least("aggregators", noises, 1)
    require_at_least("h", reach, 0)
    if noises > 64 or reach > 100_000:
        raise AnalysisError(f"{noises} noises and h = {reach}, allowed: up to 64 noises and h up to 100,000")
    # Beyond `end` one draw is rarer than the tail asked for by a factor of e**45.
    end = ceil(sqrt(reach * reach / noises + 90 * float(_checked(variance)))) + 5
    places = np.arange(-end, end + 1, dtype=np.float64)
    one = np.exp(-places * places / (2 * float(variance)))
    one /= one.sum()
    total = one
    for _ in range(noises - 1):
        total = np.convolve(total, one)
    middle = total.size // 2
    return float(2 * np.sort(total[middle + reach + 1 :]).sum())


def window_variance(rate: Fraction, noise: Fraction, noises: int, count: int) -> Fraction:
    """Return n(1-p)/p + k v/p**2, the variance of the estimate of one cell in one window.

    Raises:
        AnalysisError: p not in (0, 1].
    """
    if not 0 < rate <= 1:
        raise AnalysisError(f"sampling rate is {rate}, allowed: 0 < sampling rate <= 1")
    return count * (1 - rate) / rate + noises * noise / rate**2


def change_variance(rate: Fraction, noise: Fraction, noises: int, counts: tuple[int, int], shared: int) -> Fraction:
    """Return (n_t+n_s+shared)(1-p)/p + 2k v/p**2, the variance of a difference or sum of two windows of one cell.

    `shared` is -2 n_both for a difference under one toss of the coin, 2 n_both for a sum, 0 under different tosses.

    Raises:
        AnalysisError: p not in (0, 1].
    """
    first, second = counts
    return window_variance(rate, noise, 2 * noises, first + second + shared)
