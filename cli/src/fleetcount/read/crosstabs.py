"""A question for several signals as a table: its cells, margins, shares and differences, each with its interval.

It must not compute a number: `fleetcount_analysis.answers` does, from the cells, margins and total of the release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from fleetcount_analysis.answers import (
    Answer,
    Average,
    QuestionTable,
    Region,
    difference,
    level_numbers,
    mean_of_bins,
    question_table,
    share,
    table_design,
    table_numbers,
    total,
)
from fleetcount_analysis.answers.table import WindowCounts
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import ANY, Bins, Cross, ValueDomain

from fleetcount.command.base import aligned
from fleetcount.read.averages import opened_numbers, rows_apart

ALL = "all"
"""Stands in a printed table for the values of a signal together."""


def names_of(domain: ValueDomain) -> dict[str, list[str]]:
    """Return for each signal of a cross the name of its value in every cell; nothing of other domains."""
    if not isinstance(domain, Cross):
        return {}
    apart = [domain.apart(value) for value in range(1, domain.values + 1)]
    return {
        part.signal: [part.domain.label(values[place]) for values in apart] for place, part in enumerate(domain.parts)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossCounts:
    """The counts of a cross in some windows, which are added up; each number has its interval, alone."""

    name: str
    cross: Cross
    table: QuestionTable
    windows: Sequence[int]

    @classmethod
    def of(cls, name: str, domain: ValueDomain, table: QuestionTable, windows: Sequence[int]) -> "CrossCounts":
        """Return the counts of a question.

        Raises:
            UsageError: a question for one signal.
        """
        if not isinstance(domain, Cross):
            raise UsageError(f"{name!r} asks for one signal; a table of several is of a question for these")
        return cls(name=name, cross=domain, table=table, windows=windows)

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """The signals, in the order of the table's dimensions."""
        return tuple(part.signal for part in self.cross.parts)

    def dimension(self, signal: str | int) -> int:
        """Return the place of a signal, from 0, named by its path or by that place.

        Raises:
            UsageError: no such signal; with the nearest.
        """
        if isinstance(signal, str) and signal in self.signals:
            return self.signals.index(signal)
        if isinstance(signal, int) and not isinstance(signal, bool) and 0 <= signal < len(self.signals):
            return signal
        near = did_you_mean(signal, self.signals) or f"; there are {', '.join(self.signals)}"
        raise UsageError(f"{self.name!r} does not ask for {str(signal)[:80]!r}{near}")

    def value(self, dimension: int, named: str | int) -> int:
        """Return a value of a signal, from 1 on, named by its label or by its number.

        Raises:
            UsageError: no such value; with the nearest.
        """
        domain = self.cross.parts[dimension].domain
        labels = [domain.label(value) for value in range(1, domain.values + 1)]
        if isinstance(named, str) and named in labels:
            return labels.index(named) + 1
        if isinstance(named, int) and not isinstance(named, bool) and 1 <= named <= domain.values:
            return named
        near = did_you_mean(named, labels) or f"; there are {len(labels)}, {labels[0]!r} to {labels[-1]!r}"
        raise UsageError(f"{self.signals[dimension]} has no value {str(named)[:80]!r}{near}")

    def cells(self, fixed: Mapping[int, int]) -> list[int]:
        """Return the cells in which these dimensions have these values, the others any."""
        ranges = [
            [fixed[place]] if place in fixed else list(range(1, size + 1))
            for place, size in enumerate(self.cross.shape)
        ]
        return [self.cross.together(values) for values in product(*ranges)]

    def count(self, fixed: Mapping[int, int]) -> Answer:
        """Return the number of devices in these cells: a cell, a number of a margin, with nothing fixed the total."""
        return total(self.table, Region.of(self.cells(fixed), self.windows))

    def margin(self, dimension: int) -> list[Answer]:
        """Return the number of devices of each value of a signal."""
        return [self.count({dimension: value}) for value in range(1, self.cross.shape[dimension] + 1)]

    def share(self, fixed: Mapping[int, int], within: Mapping[int, int]) -> Average:
        """Return the share of the cells `fixed` in those `within`, which hold them.

        Raises:
            UsageError: sampled windows that share a toss of the coin.
            RangeError: answers that devices randomize, one-sided noise or exact counts; or cells outside.
        """
        rows = self.table.outputs[rows_apart(self.name, self.table, self.windows)]
        return share(self.table.design, rows, self.cells(fixed), self.table.level, self.cells(within))

    def mean(self, dimension: int, within: Mapping[int, int]) -> Average:
        """Return the mean of a signal in bins over the devices in the cells `within`, known up to a bin.

        Raises:
            UsageError: a signal that is not in bins, or whose last bin has no end; as `share`.
            RangeError: as `share`.
        """
        signal, domain = self.signals[dimension], self.cross.parts[dimension].domain
        if not isinstance(domain, Bins):
            raise UsageError(f"{signal} of {self.name!r} is not in bins; a mean is of numbers in bins")
        if domain.open_above:
            last = domain.label(domain.values)
            raise UsageError(f"{signal} of {self.name!r} has a last bin {last!r}, so that no mean is known")
        rows = self.table.outputs[rows_apart(self.name, self.table, self.windows)]
        bins = [self.cells({**within, dimension: value}) for value in range(1, domain.values + 1)]
        return mean_of_bins(self.table.design, rows, domain.edges, self.table.level, bins)

    def difference(self, later: Mapping[int, int], earlier: Mapping[int, int]) -> Answer:
        """Return the number of devices in some cells less that in others.

        Raises:
            RangeError: a cell in both.
        """
        more, less = (Region.of(self.cells(one), self.windows) for one in (later, earlier))
        return difference(self.table, more, less)

    def rows_without(self, dimension: int) -> list[dict[int, int]]:
        """Return all values of the other dimensions together, in the order of cells."""
        others = [place for place in range(len(self.signals)) if place != dimension]
        sizes = [range(1, self.cross.shape[place] + 1) for place in others]
        return [dict(zip(others, values, strict=True)) for values in product(*sizes)]


def counts_of(record: ReleaseRecord) -> CrossCounts:
    """Return the counts of a record of a cross.

    Raises:
        UsageError: as `CrossCounts.of`.
    """
    window, design = record.window, record.window.design
    labels = level_numbers(design, [cell.label for cell in record.cells], 0)
    opened = WindowCounts(index=0, opens=0, unit=0, outputs=table_numbers(design, opened_numbers(record), 0))
    parts = names_of(window.domain)
    table = question_table(table_design(design, 0), record.level, labels, (), [opened], parts=parts)
    return CrossCounts.of(window.name, window.domain, table, [0])


def grid_lines(record: ReleaseRecord, width: int) -> list[str]:
    """Return a table of two signals with its margins and total; none of other releases, or where it is too wide.

    The first signal's values are rows. Every number is an interval: a count is not known better.
    """
    domain = record.window.domain
    if not isinstance(domain, Cross) or len(domain.parts) != 2:
        return []
    counts = counts_of(record)
    (rows, columns), spans = domain.shape, _spans
    labels = [[part.domain.label(value) for value in range(1, part.domain.values + 1)] for part in domain.parts]
    cells = [spans([counts.count({0: row, 1: one}) for one in range(1, columns + 1)]) for row in range(1, rows + 1)]
    body = [[label, *row, end] for label, row, end in zip(labels[0], cells, spans(counts.margin(0)), strict=True)]
    foot = [ALL, *spans(counts.margin(1)), *spans([counts.count({})])]
    drawn = aligned([["", *labels[1], ALL], *body, foot])
    if max(map(len, drawn)) > width:
        return []
    head = (
        f"{counts.signals[0]} in rows, {counts.signals[1]} in columns; {level_text(record.level)} intervals, each alone"
    )
    return [head, *drawn]


def _spans(answers: Sequence[Answer]) -> list[str]:
    return [interval_text(one.estimate, one.low, one.high) for one in answers]


def part_labels(domain: Cross, level: int, place: int) -> list[str]:
    """Return the name of each part of a published number: of a margin one, of the total none; `ANY` elsewhere.

    `level` counts from 0, the cells; `place` from 0 within it.
    """
    parts = domain.parts
    if level == 0:
        return [part.domain.label(value) for part, value in zip(parts, domain.apart(place + 1), strict=True)]
    return [part.domain.label(place + 1) if one + 1 == level else ANY for one, part in enumerate(parts)]
