"""Many numbers at once to bins and to steps of a grid, exactly as `fleetcount_protocol.window.signal` says of one.

It must not read data. The rule itself is the protocol's: here are only the floats from which on it says something else.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_protocol.window.signal import converted

from fleetcount_simulator.cells.model import Floats
from fleetcount_simulator.model import Integers

_ONE: Final = Fraction(1)
_ZERO: Final = Fraction(0)
_SCALES: Final = tuple(10**digits for digits in range(16))
_FIFTEEN_DIGITS: Final = 1e15
_WHOLE: Final = 2.0**53


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

    The quotient of floats may be rounded up to a whole number that the position has not reached, or down from one it
    has; one comparison with the borders themselves puts that right.
    """
    steps = np.floor((numbers - float(start)) / float(size))
    borders = _decimal_borders(numbers, start, size) or _any_borders(start, size)
    steps -= numbers < borders(steps)
    steps += numbers >= borders(steps + 1)
    return steps


def _decimal_borders(numbers: Floats, start: Fraction, size: Fraction) -> Callable[[Floats], Floats] | None:
    """Return what gives the least float64 that is not below the border of each step, where all have few digits.

    A decimal of at most fifteen digits is the shortest of its nearest float64, which therefore is the least; and the
    quotient of two whole numbers that float64 holds is the nearest one.
    """
    scale = next((one for one in _SCALES if (one * start).denominator == (one * size).denominator == 1), None)
    if scale is None or numbers.size == 0:
        return None
    reach = max(abs(float(numbers.min())), abs(float(numbers.max()))) + abs(float(start)) + 2 * float(size)
    if not reach * scale < _FIFTEEN_DIGITS:
        return None
    first, side = float(scale * start), float(scale * size)
    if scale == 1:
        return lambda steps: first + steps * side
    return lambda steps: (first + steps * side) / scale


def _any_borders(start: Fraction, size: Fraction) -> Callable[[Floats], Floats]:
    """Return the same of any borders, each looked at by itself; what is infinite or beyond 2**53 steps is its own."""

    def borders(steps: Floats) -> Floats:
        found, places = np.unique(steps, return_inverse=True)
        exactly = [least_above(start + int(one) * size) if abs(one) < _WHOLE else one for one in found.tolist()]
        return np.array(exactly, dtype=np.float64)[places]

    return borders
