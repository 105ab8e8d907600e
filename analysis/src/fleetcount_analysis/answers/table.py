"""The table of a question: the opened numbers of every released window, their reading, and the question's design.

It must not know windows, records or the wire: it consists of plain columns. A window that was not released has no row;
it may be listed with its reason.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from fleetcount_mechanisms.design import Design, Outputs
from numpy.typing import NDArray

from fleetcount_analysis.answers.half_widths import combined
from fleetcount_analysis.answers.hierarchy import ends_of
from fleetcount_analysis.answers.levels import join_of, joins_total, level_numbers, one_level
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.reading import read

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCounts:
    """The contents of one window's record: its index in the question, when it opened (Unix seconds), its numbers.

    `unit` is the number of the coin's unit of the window: a device has one toss for all windows of a unit. Without a
    sampling coin, or with a toss in each window, it is the index. `outputs` are `Design.output_count` opened numbers.
    """

    index: int
    opens: int
    unit: int
    outputs: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A set of cells (values 1..V) in a set of windows (indices in the question): all pairs of a cell and a window.

    Raises:
        RangeError: no cell or no window.
    """

    cells: frozenset[int]
    windows: frozenset[int]

    def __post_init__(self) -> None:
        """Refuse an empty set."""
        if not (self.cells and self.windows):
            raise RangeError("region", f"{len(self.cells)} cells in {len(self.windows)} windows", "1 or more of each")

    @classmethod
    def of(cls, cells: Iterable[int] | int, windows: Iterable[int] | int) -> "Region":
        """Return the region of one or several cells and one or several windows."""
        chosen = ((one,) if isinstance(one, int) else one for one in (cells, windows))
        return cls(cells=frozenset(next(chosen)), windows=frozenset(next(chosen)))

    def __len__(self) -> int:
        """Return the number of published counts in the region."""
        return len(self.cells) * len(self.windows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionTable:
    """W released windows of V cells; made by `question_table`.

    Of a square grid `width` is its number of columns: its cells are numbered row by row from the corner; else None. Of
    a question for several signals `parts` has for each the name of its value in every cell; else nothing.
    A `design` with margins or a total has those of each window behind the numbers of its cells, which are joined with
    them.
    `windows`, `opens` and `units` have shape (W,), ascending in the index; `outputs` are the opened numbers, (W,
    outputs); `estimates`, `low` and `high` are in devices, (W, V), each interval separately at `level`. `statement` has
    a sentence for each adversary, `missing` the reason of each missing window. A window asks one device in `one_in`.
    """

    design: Design
    level: Fraction
    labels: tuple[str, ...] = field(repr=False)
    statement: tuple[str, ...]
    missing: Mapping[int, str]
    width: int | None
    parts: Mapping[str, tuple[str, ...]] = field(repr=False)
    windows: Integers = field(repr=False)
    opens: Integers = field(repr=False)
    units: Integers = field(repr=False)
    outputs: Integers = field(repr=False)
    estimates: Floats = field(repr=False)
    low: Integers = field(repr=False)
    high: Integers = field(repr=False)
    one_in: int = 1

    @property
    def raw(self) -> Integers:
        """The opened numbers of the cells, (W, V), without the baseline and a total."""
        return self.outputs[:, 1:] if self.design.baseline_opened else self.outputs[:, : self.design.values]

    @property
    def devices(self) -> Integers:
        """The noised number of devices, (W,) int64: the sum of all outputs, or the participation bit; else 0."""
        if self.design.outputs is Outputs.CELLS:
            return np.zeros(self.windows.shape, dtype=np.int64)
        whole = self.design.outputs is Outputs.ALL
        return np.asarray(self.outputs.sum(axis=1) if whole else self.outputs[:, 0], dtype=np.int64)

    @property
    def squares(self) -> dict[str, Integers]:
        """Where each cell of a square grid is, both of shape (V,): `x` columns and `y` rows from the corner, from 0."""
        if self.width is None:
            return {}
        y, x = np.divmod(np.arange(self.design.values), self.width)
        return {"x": x, "y": y}

    @property
    def everything(self) -> Region:
        """All cells in all released windows."""
        return Region.of(range(1, self.design.values + 1), self.windows.tolist())

    def rows(self, windows: Iterable[int]) -> list[int]:
        """Return the rows of windows, ascending.

        Raises:
            RangeError: a window that was not released, with its reason if it is known.
        """
        places = {window: row for row, window in enumerate(self.windows.tolist())}
        for window in sorted(windows):
            if window not in places:
                why = self.missing.get(window)
                raise RangeError("window", f"{window} ({why})" if why else window, "a released window")
        return [places[window] for window in sorted(windows)]

    def columns(self, cells: Iterable[int]) -> list[int]:
        """Return the columns of cells, ascending.

        Raises:
            RangeError: a cell outside 1..V.
        """
        chosen = sorted(cells)
        for cell in chosen:
            if not 1 <= cell <= self.design.values:
                raise RangeError("cell", cell, f"1 to {self.design.values}")
        return [cell - 1 for cell in chosen]


def question_table(
    design: Design,
    level: Fraction,
    labels: Sequence[str],
    statement: Sequence[str],
    released: Iterable[WindowCounts],
    missing: Mapping[int, str] | None = None,
    width: int | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> QuestionTable:
    """Return the table of the released windows of a question, all of one design, every cell with its own interval.

    Raises:
        ShapeError: not one label a cell, also of each part, a width that leaves a row unfinished, or a window without
            `Design.output_count` numbers.
        RangeError: no window, a window twice or both released and missing, units or times that do not follow the
            windows, levels other than the cells and a total, or as `reading.read`.
    """
    if len(design.levels.sides) > 1:
        raise RangeError("levels of a table", design.levels.count, "the cells, or the cells and a total")
    counts = sorted(released, key=lambda one: one.index)
    _check_windows(counts, missing or {})
    for listed in (labels, *(parts or {}).values()):
        if len(listed) != design.values:
            raise ShapeError(f"{len(listed)} labels; allowed is one a cell, {design.values}")
    if width is not None and (width < 1 or design.values % width):
        raise ShapeError(f"a grid {width} cells wide; allowed is a number that divides {design.values}, the cells")
    for one in counts:
        if len(one.outputs) != design.output_count:
            raise ShapeError(f"window {one.index} has {len(one.outputs)} numbers; allowed is {design.output_count}")
    outputs = np.array([one.outputs for one in counts], dtype=np.int64)
    estimates, low, high = _read(design, outputs, level)
    return QuestionTable(
        design=design,
        level=level,
        labels=tuple(labels),
        statement=tuple(statement),
        missing=dict(missing or {}),
        width=width,
        parts={name: tuple(listed) for name, listed in (parts or {}).items()},
        windows=np.array([one.index for one in counts], dtype=np.int64),
        opens=np.array([one.opens for one in counts], dtype=np.int64),
        units=np.array([one.unit for one in counts], dtype=np.int64),
        outputs=outputs,
        estimates=estimates,
        low=low,
        high=high,
    )


def each_alone(table: QuestionTable, level: int = 0) -> QuestionTable:
    """Return the cells of a table (0), or its total (the last level), each read alone, as the signed records have them.

    Raises:
        RangeError: a level that the table does not have.
    """
    design = one_level(table.design, level)
    outputs = (
        table.outputs
        if design == table.design
        else np.array([level_numbers(table.design, row, level) for row in table.outputs.tolist()], dtype=np.int64)
    )
    labels, width = (table.labels, table.width) if level == 0 else ((table.design.levels.total_words,), None)
    parts = table.parts if level == 0 else dict[str, tuple[str, ...]]()
    estimates, low, high = _read(design, outputs, table.level)
    table = replace(table, design=design, labels=labels, width=width, parts=parts)
    return replace(table, outputs=outputs, estimates=estimates, low=low, high=high)


def _read(design: Design, outputs: Integers, level: Fraction) -> tuple[Floats, Integers, Integers]:
    """Return the estimates and the interval ends of every cell of every window, each of shape (W, V)."""
    if not joins_total(design):
        reading = read(one_level(design, 0), outputs[:, : design.values + design.baseline_opened], level)
        return reading.estimates, reading.low, reading.high
    join, laws = join_of(design)
    starts = list(itertools.pairwise(design.levels.starts()))
    levels = [[row[low:high] for low, high in starts[::-1]] for row in outputs.astype(np.float64)]
    estimates = np.array([join.down(one)[0][-1] for one in levels])
    # All cells beside margins and a total are alike, so the first one's width is that of every one.
    first = np.zeros(design.values)
    first[0] = 1
    parts = combined([(join.weights(design.levels.count - 1, first), 1)], laws)
    ends = ends_of(estimates.ravel(), parts, level, design.channel[0])
    low, high = (np.maximum(one, 0).reshape(estimates.shape) for one in ends)
    return estimates / float(design.channel[0]), low, high


def _check_windows(counts: Sequence[WindowCounts], missing: Mapping[int, str]) -> None:
    if not counts:
        raise RangeError("number of released windows", 0, "1 or more")
    for one, following in itertools.pairwise(counts):
        if one.index == following.index:
            raise RangeError("window", f"{one.index} twice", "each window once")
        if not (one.opens < following.opens and one.unit <= following.unit):
            raise RangeError("(opens, unit) of windows", f"out of order at window {following.index}", "ascending")
    both = sorted({one.index for one in counts} & set(missing))
    if both:
        raise RangeError("window", f"{both[0]} released and missing", "one of the two")
