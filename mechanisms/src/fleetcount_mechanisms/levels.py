"""What is opened: levels, each a division of the values 1..V into cells or one weighted sum, and the noise of each.

The only place that defines which cell lies in which, how many numbers there are and their order: the cells themselves,
then larger squares of a grid or neighbours of a line, or the margins of a table, then the weighted sum, last the total.
It must not know a share or a place on earth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import prod

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_between
from fleetcount_mechanisms.noise import NoiseLaw


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of V `values`: the cells, on a `grid` of (columns, rows) larger squares, and with `total` their sum.

    Values in order are a grid of one row or column, a line, whose larger cells are neighbours together. `sides` says
    how many times the side of a cell each level's squares have, on a line how many values are together, the cells being
    1: powers of two that grow. A cell of one level holds whole cells of the level before, and the coarsest zoom has two
    cells or more: so a device that moves between any two values moves at most two numbers of every level, and one that
    moves far enough moves two of all but the total. Cell i of a level (from 0, row by row) is in column i % columns.

    `margins` is the shape of a table whose first index varies slowest: value v of shape (A, B) is in row (v - 1) // B
    and column (v - 1) % B. There is one level for each dimension, of as many cells as that has. `weighted` opens the
    sum over the devices of `weight(v)`, by which a mean is read.

    A device has `most` values at once at most, mostly 1. Where it may have several, the total counts the devices that
    have any, which is no sum of the cells.

    Raises:
        MechanismError: sides that are no growing powers of two from 1 on, larger cells that do not fill the grid or are
            fewer than two; larger cells, margins or a weighted sum of sets; margins of fewer than two dimensions or
            values each, or of another V; margins beside zooms or a weighted sum; a total or a weighted sum of a single
            value.
    """

    values: int
    grid: tuple[int, int] | None = None
    sides: tuple[int, ...] = (1,)
    total: bool = False
    margins: tuple[int, ...] = ()
    weighted: bool = False
    most: int = 1

    def __post_init__(self) -> None:
        """Check that every level divides the next."""
        require_at_least("values", self.values, 1)
        if self.total and self.values == 1:
            raise MechanismError("total is asked of a single value, allowed: 2 values or more; one is its own total")
        self._check_rows()
        growing = all(low < high for low, high in pairwise(self.sides))
        if self.sides[:1] != (1,) or not growing or any(side & (side - 1) for side in self.sides):
            raise MechanismError(f"sides are {self.sides}, allowed: growing powers of two, the first of them 1")
        if self.grid is None:
            if len(self.sides) > 1:
                raise MechanismError(f"sides are {self.sides} of values that are neither a grid nor a line, allowed: 1")
            return
        columns, rows = self.grid
        if columns * rows != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the {columns * rows} squares of the levels' grid")
        if self.sides[-1] > (most := largest_side(columns, rows)):
            of = f"{self.values} values in order" if self.line else f"a grid of {columns} by {rows} squares"
            raise MechanismError(
                f"{self.larger(self.sides[-1])} are asked of {of}, allowed: {most} at most; each doubling halves"
                f" {'their number' if self.line else 'both sides'}, and two cells are left"
            )

    def _check_rows(self) -> None:
        require_between("number of values at once", self.most, 1, self.values)
        if self.most > 1 and (len(self.sides) > 1 or self.margins or self.weighted):
            raise MechanismError("zooms, margins or a weighted sum are asked of sets, allowed: cells and the total")
        if self.weighted and self.values == 1:
            raise MechanismError("a weighted sum is asked of a single value, allowed: 2 values or more")
        if not self.margins:
            return
        if len(self.margins) < 2 or min(self.margins) < 2:
            raise MechanismError(f"margins are {self.margins}, allowed: 2 dimensions or more, of 2 values or more each")
        if prod(self.margins) != self.values:
            raise MechanismError(f"values is {self.values}, allowed: the {prod(self.margins)} cells of the margins")
        if len(self.sides) > 1 or self.weighted:
            other = "zooms" if len(self.sides) > 1 else "a weighted sum"
            raise MechanismError(f"margins are asked beside {other}, allowed: one of both")

    @property
    def line(self) -> bool:
        """Whether the values are in order, so that larger cells are neighbours together."""
        return self.grid is not None and 1 in self.grid

    def larger(self, side: int) -> str:
        """Return what a cell of a zoom is, for people: "squares of 8 times the side" or "8 values together"."""
        if not self.line:
            return f"squares of {side} times the side"
        return f"{side} values together" if side > 1 else "single values"

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """(Columns, rows) of every zoom, finest first; of values that are no grid (V, 1)."""
        columns, rows = self.grid or (self.values, 1)
        return tuple((max(1, columns // side), max(1, rows // side)) for side in self.sides)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers every level has, the cells first; the weighted sum and the total have one."""
        zooms = tuple(columns * rows for columns, rows in self.grids)
        return zooms + self.margins + (1,) * (self.weighted + self.total)

    @property
    def count(self) -> int:
        """How many levels there are."""
        return len(self.sides) + len(self.margins) + self.weighted + self.total

    @property
    def total_label(self) -> str:
        """What the total is called wherever it is shown (`total_label`)."""
        return total_label(self.most)

    @property
    def total_key(self) -> str:
        """The same as a word, for columns and keys of files: "total" or "told_any"."""
        return self.total_label.replace(" ", "_")

    @property
    def total_words(self) -> str:
        """What the total counts, for people: "all cells together" or "vehicles that told any"."""
        return "all cells together" if self.most == 1 else f"vehicles that {self.total_label}"

    @property
    def weighted_place(self) -> int | None:
        """Which level the weighted sum is, from 0; None without one."""
        return self.count - 1 - self.total if self.weighted else None

    @property
    def nested(self) -> bool:
        """Whether each level is a division of the one before, so that `parents` says all."""
        return not self.margins and not self.weighted and self.most == 1

    @property
    def opened(self) -> int:
        """How many numbers all levels have."""
        return sum(self.sizes)

    def starts(self) -> tuple[int, ...]:
        """Return the place of every level's first number, and behind the last one their number."""
        found = [0]
        for size in self.sizes:
            found.append(found[-1] + size)
        return tuple(found)

    def parents(self, level: int) -> tuple[int, ...]:
        """Return for every cell of a zoom the cell of the next coarser one that holds it, both from 0.

        That of the coarsest zoom is the total, whatever stands between them.
        """
        if level + 1 == len(self.sides):
            return (0,) * self.sizes[level]
        (columns, rows), (width, _) = self.grids[level : level + 2]
        by = self.sides[level + 1] // self.sides[level]
        return tuple(row // by * width + column // by for row in range(rows) for column in range(columns))

    def margin_of(self, dimension: int) -> tuple[int, ...]:
        """Return for every cell the place in a dimension of the table, all from 0."""
        below, size = prod(self.margins[dimension + 1 :]), self.margins[dimension]
        return tuple(cell // below % size for cell in range(self.values))

    def weight(self, value: int) -> int:
        """Return how often a device with a value counts in the weighted sum: -(V-1), -(V-3), ..., V-1 for v = 1..V."""
        return 2 * value - self.values - 1

    def all_sums(self, cells: Sequence[int]) -> list[int]:
        """Return the numbers of every level from those of the cells: what is noised and opened.

        Run by aggregators on sums of shares and by simulators. A caller that counts modulo a prime reduces afterwards.
        Of sets the total is no sum of the cells, so that it stands behind them already.

        Raises:
            MechanismError: the numbers are not as many as the cells, of sets with a total one more.
        """
        if self.most > 1:
            if len(cells) != self.opened:
                raise MechanismError(f"there are {len(cells)} sums, allowed: the {self.opened} of sets")
            return list(cells)
        if len(cells) != self.values:
            raise MechanismError(f"there are {len(cells)} sums, allowed: the {self.values} of the cells")
        found, below = list(cells), list(cells)
        for level, size in enumerate(self.sizes[1 : len(self.sides)]):
            below = _placed(below, self.parents(level), size)
            found += below
        for dimension, size in enumerate(self.margins):
            found += _placed(cells, self.margin_of(dimension), size)
        if self.weighted:
            found.append(sum(self.weight(value) * count for value, count in enumerate(cells, start=1)))
        return found + [sum(cells)] * self.total

    @property
    def replaced(self) -> tuple[tuple[int, int], ...]:
        """For each level how many numbers a value that becomes another moves at most, and by how much each.

        Value 1 that becomes V moves as many by as much at every level at once: the first and the last cell lie in
        different ones of every zoom and margin, of which there are two at least. No other change moves more: one value
        is in one cell of each level, the weights of two are 2(V - 1) apart at most, and the total stays. A set of m
        values that becomes another one moves min(2 m, V) cells.
        """
        if self.most > 1:
            return ((min(2 * self.most, self.values), 1), *((0, 1),) * self.total)
        cells = len(self.sides) + len(self.margins)
        return ((2, 1),) * cells + ((1, 2 * (self.values - 1)),) * self.weighted + ((0, 1),) * self.total

    @property
    def come(self) -> tuple[tuple[int, int], ...]:
        """The same of a value that comes or goes: value 1 or V moves one number a level, the weighted sum by V - 1.

        A set that comes moves m cells and the total.
        """
        if self.most > 1:
            return ((self.most, 1), *((1, 1),) * self.total)
        cells = len(self.sides) + len(self.margins)
        return ((1, 1),) * cells + ((1, self.values - 1),) * self.weighted + ((1, 1),) * self.total


def total_label(most: int) -> str:
    """Return what the total of cells of which a device has `most` at once at most is called: "total" or "told any".

    The number of devices that told any of several is no total: the cells add up to more.
    """
    return "total" if most == 1 else "told any"


def _placed(counts: Sequence[int], places: Sequence[int], size: int) -> list[int]:
    """Return so many sums, each count being in that of its place."""
    found = [0] * size
    for count, place in zip(counts, places, strict=True):
        found[place] += count
    return found


def largest_side(columns: int, rows: int) -> int:
    """Return the largest side of the squares of a grid, in cells: it divides both of its sides and leaves two squares.

    On a line, a grid of one row or column, the side divides the other one alone.

    Raises:
        MechanismError: no column or no row.
    """
    require_at_least("columns", columns, 1)
    require_at_least("rows", rows, 1)
    halved, side = [one for one in (columns, rows) if one > 1], 1
    # What is left after a halving has two cells at least.
    while prod(halved) > 1 << len(halved) and all(one % 2 == 0 for one in halved):
        halved, side = [one // 2 for one in halved], side * 2
    return side


def neighbouring_sides(zooms: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ...: the sides of so many zooms, each twice the one before.

    Raises:
        MechanismError: zooms below 1.
    """
    return tuple(1 << zoom for zoom in range(require_at_least("zooms", zooms, 1)))


Moved = tuple[NoiseLaw, int]
"""The noise of an opened number that one changed answer moves, and by how much."""
Move = tuple[Moved, ...]
"""All numbers that one changed answer moves."""


def worst_moves(levels: Levels, laws: Sequence[NoiseLaw], *, alone: bool = False) -> tuple[Move, ...]:
    """Return the moves of one answer that no other one exceeds: a value replaced by another, and one that comes.

    They are `Levels.replaced` and `Levels.come`. The price of a move grows with every amount, since noises are
    independent, so no move between neighbours and no other value that comes costs more. The second is left out where
    the first moves as many numbers of its noises as far: without a total, and with one of as much noise as a level has.
    `alone` is for a single number, which an answer moves or does not.
    """
    if alone:
        return (tuple((law, 1) for law in laws),)
    replaced, come = (_moved(laws, amounts) for amounts in (levels.replaced, levels.come))
    rest = list(replaced)
    for law, amount in come:
        covered = next((one for one in rest if one[0] == law and one[1] >= amount), None)
        if covered is None:
            return replaced, come
        rest.remove(covered)
    return (replaced,)


def _moved(laws: Sequence[NoiseLaw], amounts: Sequence[tuple[int, int]]) -> Move:
    return tuple((law, by) for law, (often, by) in zip(laws, amounts, strict=True) for _ in range(often))


def drawn_at_once(runs: Iterable[tuple[NoiseLaw, int]]) -> tuple[tuple[NoiseLaw, int], ...]:
    """Return (law, how many numbers in a row have it), neighbours of one law together."""
    return tuple((law, sum(count for _, count in same)) for law, same in groupby(runs, key=lambda run: run[0]))
