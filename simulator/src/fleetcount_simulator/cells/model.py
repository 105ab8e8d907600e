"""From positions to values: positions, the keys of cells, and values once all keys are known.

A trace is read once and in pieces, so the cells may not be known before its end. Each kind of cells therefore gives
every position a key (an int64 that does not depend on the other positions), and in the end gives each key its value.
Nothing here reads a file or draws a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers

Floats = NDArray[np.float64]
Bounds = tuple[Fraction, Fraction, Fraction, Fraction]
"""Lower left and upper right corner: x0, y0, x1, y1."""
NUMBER: Final = r"-?[0-9]{1,15}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,3})?"
"""A number in a table; 24 places hold the 17 digits that programs write of a float, from 0.0000001 on."""
OUTSIDE: Final = -1
"""The key of a position in no cell: it becomes value 0."""
MAX_CELLS: Final = 100_000
"""Most values a simulated question may have; a real window has at most 4,095."""


def check_count(cells: int, what: str) -> None:
    """Refuse a question of no cell or of too many.

    Raises:
        ScenarioError: outside 1..MAX_CELLS; the message starts with `what`, the key that decides the number.
    """
    if not 1 <= cells <= MAX_CELLS:
        raise ScenarioError(f"{what} gives {cells} cells; a question has 1 to {MAX_CELLS}")


def value_type(values: int) -> type[np.uint16] | type[np.int32]:
    """Return the smaller type that holds 0..`values`."""
    return np.uint16 if values <= np.iinfo(np.uint16).max else np.int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roads:
    """A road network's edges: names, ascending and distinct, and the line of each: corners (x, y) in metres."""

    names: tuple[str, ...] = field(repr=False)
    lines: tuple[tuple[tuple[float, float], ...], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """Where vehicles are, all arrays of one length: x, y in the frame's unit, and further columns of the data.

    `speed_mps` in metres a second; `edges` the road edge of each: names, or places in the frame's `roads` (-1: none).
    """

    x: Floats
    y: Floats
    speed_mps: Floats | None = None
    edges: Sequence[str] | Integers | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """The unit of a population's positions, metres or degrees (x longitude, y latitude), and the columns beside them.

    `extent` is known before any position is read when the data are made by a model.
    """

    unit: Literal["m", "deg"]
    speed: bool = False
    edges: bool = False
    roads: Roads | None = None
    extent: Bounds | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """Which value each key is: `codes` are all keys, ascending; codes[i] is value numbers[i], a permutation of 1..V.

    Of a question with readings it is reading numbers[i], 1..R.
    """

    question: AnswerSpace
    codes: Integers
    numbers: Integers

    def of(self, keys: Integers) -> NDArray[Any]:
        """Return the value of every key, 0 for a key that is no cell; uint16, or int32 above 65,535 values."""
        places = np.minimum(np.searchsorted(self.codes, keys), len(self.codes) - 1)
        found = self.codes[places] == keys
        return np.where(found, self.numbers[places], 0).astype(value_type(self.question.held))


class Cells(Protocol):
    """One kind of cells."""

    def keys(self, positions: Positions) -> Integers:
        """Return a key for every position, shape (positions,), `OUTSIDE` where there is no cell."""
        ...

    def close(self, seen: Integers) -> Values:
        """Return the values, given all distinct keys of the data, ascending and without `OUTSIDE`.

        Raises:
            ScenarioError: no cell or too many.
        """
        ...
