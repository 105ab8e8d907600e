"""One report counted at several zooms: the squares of a grid, and above them squares of two, four, ... times the side.

The only place that says which square lies in which, how many numbers there are and in which order they stand. It must
not know noise, a share or a place on earth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, kind_of
from fleetcount_mechanisms.errors import MechanismError, require_at_least

_TOLD_BY_NOISE_ALONE = (AnswerForm.TWO_ROUNDS, AnswerForm.TRUTH)


@dataclass(frozen=True, slots=True)
class Zooms:
    """A grid of `columns` times `rows` squares counted at `count` zooms, zoom 0 the squares that devices report.

    Square i of a zoom (from 0, row by row) is in column i % columns. A square of zoom z holds four of zoom z - 1. The
    coarsest zoom has two squares or more: so a device that moves between any two values moves at most two numbers of
    every zoom, and one that moves far enough moves two of all of them.

    Raises:
        MechanismError: fewer than 2 zooms, or more than the sides can be halved so often without a rest.
    """

    columns: int
    rows: int
    count: int

    def __post_init__(self) -> None:
        """Check that every zoom divides the grid."""
        most = most_zooms(self.columns, self.rows)
        if require_at_least("zooms", self.count, 2) > most:
            raise MechanismError(
                f"zooms is {self.count} of a grid of {self.columns} by {self.rows} squares, allowed: {most} at most;"
                " both sides are halved for each, and two squares are left"
            )

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """(Columns, rows) of every zoom, finest first."""
        return tuple((self.columns >> zoom, self.rows >> zoom) for zoom in range(self.count))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many squares every zoom has, finest first."""
        return tuple(columns * rows for columns, rows in self.grids)

    def parents(self, zoom: int) -> tuple[int, ...]:
        """Return for every square of a zoom the square of the next coarser one that holds it, both from 0."""
        columns, rows = self.grids[zoom]
        return tuple(row // 2 * (columns // 2) + column // 2 for row in range(rows) for column in range(columns))

    def all_sums(self, finest: Sequence[int]) -> list[int]:
        """Return the numbers of every zoom, finest first, from those of the finest: what is noised and opened.

        Run by aggregators on sums of shares (whoever counts modulo a prime reduces afterwards) and by simulators.

        Raises:
            MechanismError: not one number a square.
        """
        if len(finest) != self.sizes[0]:
            raise MechanismError(f"there are {len(finest)} sums, allowed: the {self.sizes[0]} of the grid")
        found, below = list(finest), list(finest)
        for zoom, size in enumerate(self.sizes[1:]):
            above = [0] * size
            for one, parent in zip(below, self.parents(zoom), strict=True):
                above[parent] += one
            found += above
            below = above
        return found


def most_zooms(columns: int, rows: int) -> int:
    """Return the most zooms of a grid: both sides are even but for the coarsest, which has two squares or more.

    Raises:
        MechanismError: no column or no row.
    """
    require_at_least("columns", columns, 1)
    require_at_least("rows", rows, 1)
    most = 1
    while columns % 2 == rows % 2 == 0 and columns * rows > 4:
        columns, rows, most = columns // 2, rows // 2, most + 1
    return most


def require_zooms(answer: AnswerLaw, zooms: int) -> int:
    """Return the number of zooms at which answers by this law may be counted.

    Raises:
        MechanismError: below 1, or more than one of answers that devices randomize.
    """
    if require_at_least("zooms", zooms, 1) > 1 and kind_of(answer).form not in _TOLD_BY_NOISE_ALONE:
        raise MechanismError(
            f"zooms is {zooms} of answers by {kind_of(answer).name}, allowed: 1; what devices randomize is as wide"
            " in a sum of squares, whoever adds them up"
        )
    return zooms
