"""Many numbers at once to bins and to steps of a grid, exactly as `fleetcount_protocol.window.signal` says of one.

It must not read data. The rule itself is the protocol's: here are only the floats from which on it says something else.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_protocol.window.signal import converted, exact

from fleetcount_simulator.cells.model import Floats
from fleetcount_simulator.model import Integers

_ONE: Final = Fraction(1)
_ZERO: Final = Fraction(0)
_ROUNDINGS: Final = 4 * float(np.finfo(np.float64).eps)


def bins_of(numbers: Floats, edges: tuple[Fraction, ...], factor: Fraction = _ONE) -> Integers:
    """Return how many of the ascending `edges` are not above `factor` times each number (float64, of any shape)."""
    return np.searchsorted(_firsts(edges, factor), numbers, side="right")


@lru_cache(maxsize=16)
def _firsts(edges: tuple[Fraction, ...], factor: Fraction) -> Floats:
    return np.array([least_above(edge, factor) for edge in edges])


def least_above(edge: Fraction, factor: Fraction = _ONE) -> float:
    """Return the least float64 which, times a positive `factor`, is not below an edge by `converted`."""

    def reaches(number: float) -> bool:
        image = converted(number, factor, _ZERO)
        return image is not None and image >= edge

    least = float(edge / factor)
    while reaches(below := math.nextafter(least, -math.inf)):
        least = below
    while not reaches(least):
        least = math.nextafter(least, math.inf)
    return least


def steps_of(numbers: Floats, start: Fraction, size: Fraction) -> Floats:
    """Return how many whole steps of `size` each number lies beyond `start`, as whole float64 numbers.

    The quotient of floats is right but near a border, where it may be rounded across. What lies so near is looked at
    by itself, each number once.
    """
    first, side = float(start), float(size)
    quotients = (numbers - first) / side
    steps = np.floor(quotients)
    with np.errstate(invalid="ignore"):  # What is infinite is near no border.
        apart = quotients - steps
    np.minimum(apart, 1 - apart, out=apart)
    np.abs(quotients, out=quotients)
    quotients += abs(first) / side
    quotients *= _ROUNDINGS
    near = np.flatnonzero(apart <= quotients)
    if start.denominator == size.denominator == 1:
        # Whole numbers are exact, and so is the floor of their quotient.
        near = near[numbers[near] != np.floor(numbers[near])]
    if near.size:
        found, places = np.unique(numbers[near], return_inverse=True)
        exactly = [math.floor(((exact(one) or _ZERO) - start) / size) for one in found.tolist()]
        steps[near] = np.array(exactly, dtype=np.float64)[places]
    return steps
