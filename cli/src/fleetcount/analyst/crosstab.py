"""A question for several signals in Python: cells, margins, shares and differences, each with its interval.

It must not compute a number: `fleetcount.read.crosstabs` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex, cast

from fleetcount_analysis.answers import Answer, Average
from fleetcount_analysis.interval_words import interval_text
from fleetcount_protocol.errors import UsageError

from fleetcount.analyst.planning import whole_number
from fleetcount.analyst.tables import Row, Table, Tabular, html_table
from fleetcount.read.crosstabs import ALL, CrossCounts

_MOST_COLUMNS: Final = 12
Named = str | SupportsIndex
"""A signal by its path or its place from 0, or a value by its label or its number from 1."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Crosstab(Tabular):
    """The counts of several signals at once; a column for each signal, then estimate, low and high.

    The first signal varies slowest. Every interval is of its own number alone, at the level of the release. Cells,
    margins and total add up: all numbers that were opened are joined.
    """

    counts: CrossCounts = field(repr=False)

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals, in the order of the table's dimensions."""
        return self.counts.signals

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each signal has."""
        return self.counts.cross.shape

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns in their order."""
        return self._table([self.counts.count(fixed) for fixed in self._all()], self._all())

    def cell(self, *values: Named) -> Answer:
        """Return the count of one value of each signal, by labels or by numbers from 1.

        Raises:
            UsageError: not one value for each signal, or one that is not there.
        """
        return self.counts.count(self._fixed(values))

    def margin(self, signal: Named) -> Table:
        """Return the counts of each value of a signal, named by its path or by its place from 0.

        Raises:
            UsageError: no such signal.
        """
        dimension = self._dimension(signal)
        rows = [{dimension: value} for value in range(1, self.shape[dimension] + 1)]
        columns = self._table(self.counts.margin(dimension), rows)
        return Table(columns=columns, title=f"{self.signals[dimension]} of {self.counts.name}")

    def total(self) -> Answer:
        """Return the number of devices in all cells together."""
        return self.counts.count({})

    def share(self, *values: Named, of: Named | None = None) -> Average:
        """Return the share of a cell in all cells, or in those that have its value of the signal `of`.

        Raises:
            UsageError: as `cell`, or no such signal.
            RangeError: answers that devices randomize, one-sided noise or exact counts.
        """
        fixed = self._fixed(values)
        dimension = None if of is None else self._dimension(of)
        return self.counts.share(fixed, {} if dimension is None else {dimension: fixed[dimension]})

    def shares(self, of: Named | None = None) -> Table:
        """Return the share of every cell in all cells, or in those that have its value of the signal `of`.

        With the first signal these are shares by row, with the second by column. Columns are those of the counts.

        Raises:
            UsageError, RangeError: as `share`.
        """
        dimension = None if of is None else self._dimension(of)
        within = [{} if dimension is None else {dimension: fixed[dimension]} for fixed in self._all()]
        found = [self.counts.share(*both) for both in zip(self._all(), within, strict=True)]
        whole = "all cells" if dimension is None else f"each value of {self.signals[dimension]}"
        return Table(columns=self._table(found, self._all()), title=f"shares of {whole}, {self.counts.name}")

    def means(self, signal: Named) -> Table:
        """Return for each value of the other signals the mean of a signal in bins, known up to a bin.

        Raises:
            UsageError: no such signal, one that is not in bins, or whose last bin has no end.
            RangeError: as `share`.
        """
        dimension = self._dimension(signal)
        rows = self.counts.rows_without(dimension)
        found = [self.counts.mean(dimension, row) for row in rows]
        return Table(columns=self._table(found, rows), title=f"means of {self.signals[dimension]}, {self.counts.name}")

    def difference(self, signal: Named, one: Named, other: Named) -> Table:
        """Return for each value of the other signals how many more devices have one value of a signal than another.

        Raises:
            UsageError: no such signal or value, or one value twice.
            RangeError: as of a difference of counts.
        """
        dimension = self._dimension(signal)
        more, less = (self._value(dimension, named) for named in (one, other))
        if more == less:
            both = f"{_plain(one)!r} and {_plain(other)!r}"
            raise UsageError(f"{both} are one value of {self.signals[dimension]}; allowed: two")
        rows = self.counts.rows_without(dimension)
        found = [self.counts.difference(row | {dimension: more}, row | {dimension: less}) for row in rows]
        labels = [self.counts.cross.parts[dimension].domain.label(value) for value in (more, less)]
        return Table(
            columns=self._table(found, rows), title=f"{labels[0]} less {labels[1]} of {self.signals[dimension]}"
        )

    def _dimension(self, signal: Named) -> int:
        return self.counts.dimension(_plain(signal))

    def _value(self, dimension: int, named: Named) -> int:
        return self.counts.value(dimension, _plain(named))

    def _all(self) -> list[dict[int, int]]:
        cross = self.counts.cross
        return [dict(enumerate(cross.apart(value))) for value in range(1, cross.values + 1)]

    def _fixed(self, values: Sequence[Named]) -> dict[int, int]:
        if len(values) != len(self.shape):
            raise UsageError(f"{len(values)} values; allowed is one of each signal: {', '.join(self.signals)}")
        return {place: self._value(place, named) for place, named in enumerate(values)}

    def _table(self, found: Sequence[Answer | Average], rows: Sequence[Mapping[int, int]]) -> dict[str, list[Any]]:
        parts = self.counts.cross.parts
        named: dict[str, list[Any]] = {
            part.signal: [part.domain.label(row[place]) for row in rows]
            for place, part in enumerate(parts)
            if rows and place in rows[0]
        }
        ends = {name: [getattr(one, name) for one in found] for name in ("estimate", "low", "high")}
        return named | ends

    def __repr__(self) -> str:
        shape = " by ".join(map(str, self.shape))
        return f"<Crosstab {self.counts.name!r} of {' x '.join(self.signals)}, {shape}>"

    def _repr_html_(self) -> str:
        if len(self.shape) != 2 or self.shape[1] > _MOST_COLUMNS:
            columns = self.columns_of()
            rows: list[Row] = list(zip(*columns.values(), strict=True))
            return html_table(self.counts.name, tuple(columns), rows)
        first, second = (
            [part.domain.label(value) for value in range(1, part.domain.values + 1)] for part in self.counts.cross.parts
        )
        body: list[Row] = [
            (label, *(_span(self.counts.count({0: row, 1: one})) for one in range(1, len(second) + 1)), _span(end))
            for row, (label, end) in enumerate(zip(first, self.counts.margin(0), strict=True), start=1)
        ]
        foot: Row = (ALL, *map(_span, self.counts.margin(1)), _span(self.total()))
        return html_table(self.counts.name, (" x ".join(self.signals), *second, ALL), [*body, foot])


def _plain(named: Named) -> str | int:
    """Return Python's own number of NumPy's; anything else as it is, for `CrossCounts` to refuse."""
    number = whole_number(named)
    return cast("str | int", named) if number is None else number


def _span(answer: Answer) -> str:
    return interval_text(answer.estimate, answer.low, answer.high)
