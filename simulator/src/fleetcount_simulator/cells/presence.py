"""Questions without a map that a moving vehicle can answer: is it on the road, and how fast is it.

It must not read data.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from fleetcount_protocol.window.domain import MAX_VALUES, Bins, Categories, Numbers, Outside
from fleetcount_protocol.window.signal import converted
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells.borders import bins_of
from fleetcount_simulator.cells.model import OUTSIDE, Cells, Frame, Positions, Values
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace, Integers


@settings
class NoKeys:
    """[question] of cells `none`."""


def _bins(table: Settings, key: str) -> tuple[Fraction, ...]:
    edges = table.numbers(key, (1, MAX_VALUES), Range("[0, 1000]")) if table.has(key) else ()
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise table.refuse(key, "a list of ascending numbers such as [30, 50]")
    return edges


@settings
class SpeedKeys:
    """[question] of cells `speed`."""

    bins_kmh: tuple[Fraction, ...] = setting(
        _bins,
        about="lower ends of the bins, ascending; the last has no upper end; slower than the first is value 0",
        example="[30, 50]",
    )


_SPEED: Final = Range("[-1000, 1000]")


@settings
class NumberKeys:
    """[question] of cells `number`."""

    low_kmh: Fraction = setting(Table.number, _SPEED, about="the lowest value", example="0")
    high_kmh: Fraction = setting(Table.number, _SPEED, about="the highest value", example="130")
    points: int = setting(
        Table.integer,
        2,
        MAX_VALUES,
        default=5,
        about="how many equally spaced values, 2 to 4095; default 5",
        example="5",
    )
    outside: str = setting(
        Table.choice,
        ("clamp", "none"),
        default="clamp",
        about='a speed beyond these: "clamp" (default): the nearer of them; "none": value 0',
        example='"none"',
    )

    def __post_init__(self) -> None:
        if self.low_kmh >= self.high_kmh:
            raise UnfitKeyError("low_kmh", allowed=f"a number below high_kmh = {self.high_kmh}")


_KMH: Final = Fraction(18, 5)
_MOST_READINGS: Final = 1_000_000
"""Different speeds of a population, which are all kept exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTheRoad:
    """One value: the vehicle is on the road."""

    title: str

    def keys(self, positions: Positions) -> Integers:
        """Return key 0 for every position."""
        return np.zeros(len(positions.x), dtype=np.int64)

    def close(self, seen: Integers) -> Values:
        """Return the one value."""
        names = ("on the road",)
        question = AnswerSpace(title=self.title, labels=names, domain=Categories(names=names))
        return Values(question=question, codes=np.zeros(1, dtype=np.int64), numbers=np.ones(1, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBins:
    """Speeds in half-open bins that start at `edges` (km/h)."""

    title: str
    edges: tuple[Fraction, ...]

    def keys(self, positions: Positions) -> Integers:
        """Return the bin of every position's speed."""
        speeds = np.zeros(0) if positions.speed_mps is None else positions.speed_mps
        return bins_of(speeds, self.edges, _KMH) + OUTSIDE

    def close(self, seen: Integers) -> Values:
        """Return all bins."""
        bins = Bins(edges=self.edges, open_above=True, unit="km/h")
        labels = tuple(bins.label(value) for value in range(1, bins.values + 1))
        numbers = np.arange(1, len(labels) + 1)
        question = AnswerSpace(title=self.title, labels=labels, domain=bins)
        return Values(question=question, codes=numbers - 1, numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedNumbers:
    """Speeds between the points of `domain` (km/h): every speed that occurs is a reading, which engines round."""

    title: str
    domain: Numbers

    def keys(self, positions: Positions) -> Integers:
        """Return the bits of every position's speed: they ascend with it, and 0 has one form (+0)."""
        speeds = np.zeros(0) if positions.speed_mps is None else positions.speed_mps
        return (np.asarray(speeds, dtype=np.float64) + 0.0).view(np.int64)

    def close(self, seen: Integers) -> Values:
        """Return all speeds that occur."""
        if len(seen) > _MOST_READINGS:
            raise ScenarioError(
                f"question.cells is 'number', and the data have {len(seen)} different speeds; allowed are"
                f" {_MOST_READINGS}: round them, or ask for cells 'speed'"
            )
        exactly = (converted(speed, _KMH, Fraction(0)) for speed in seen.view(np.float64).tolist())
        question = AnswerSpace(
            title=self.title,
            labels=tuple(self.domain.label(value) for value in range(1, self.domain.values + 1)),
            domain=self.domain,
            readings=tuple(reading for reading in exactly if reading is not None),
        )
        return Values(question=question, codes=seen, numbers=np.arange(1, len(seen) + 1))


def declare_none(question: NoKeys, frame: Frame, title: str) -> Cells:
    """Return the question "are you on the road"."""
    return OnTheRoad(title=title)


def declare_speed(question: SpeedKeys, frame: Frame, title: str) -> Cells:
    """Return the speed bins a `[question]` table asks for.

    Raises:
        ScenarioError: bins that do not ascend, or data without speeds.
    """
    if not frame.speed:
        raise UnfitKeyError("cells", problem="is 'speed', but these data have no speeds")
    return SpeedBins(title=title, edges=question.bins_kmh)


def declare_number(question: NumberKeys, frame: Frame, title: str) -> Cells:
    """Return the speeds as numbers that a `[question]` table asks for.

    Raises:
        ScenarioError: ends that do not ascend, or data without speeds.
    """
    if not frame.speed:
        raise UnfitKeyError("cells", problem="is 'number', but these data have no speeds")
    domain = Numbers(
        low=question.low_kmh,
        high=question.high_kmh,
        values=question.points,
        unit="km/h",
        outside=Outside[question.outside.upper()],
    )
    return SpeedNumbers(title=title, domain=domain)
