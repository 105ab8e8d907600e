"""Means, shares and quantiles of released windows in the unit of their question: what commands print and Python gives.

It knows what a value stands for; `fleetcount_analysis.answers` computes. It must not read a file.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, runtime_checkable

from fleetcount_analysis import answers
from fleetcount_analysis.answers import Average, QuestionTable
from fleetcount_analysis.errors import RangeError
from fleetcount_analysis.interval_words import level_text, numbers_text
from fleetcount_mechanisms.design import Design
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import Bins, ValueDomain
from fleetcount_protocol.window.signal import decimal_text

from fleetcount.command.numbers import spans_text


@runtime_checkable
class Pointed(Protocol):
    """A domain whose values are points, to which devices round a number at random, right on average."""

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The points of values 1..V, ascending."""
        ...

    @property
    def unit(self) -> str:
        """The unit of the points, for people."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuantile:
    """The q-quantile of the numbers of all devices with a value: it is from `low` to `high`, in the question's unit.

    `estimate` is the label of the bin or point that is most likely. `high` is infinite in a last bin without an end.
    """

    q: Fraction
    estimate: str
    low: float
    high: float
    unit: str
    level: Fraction

    def __str__(self) -> str:
        """Return the interval first, because it is what is known, then the estimate."""
        return (
            f"{ends_text(self.low, self.high, self.unit)} ({level_text(self.level)} interval, estimate {self.estimate})"
        )


def ends_text(low: float, high: float | None, unit: str) -> str:
    """Return the ends of an interval of numbers with their unit, for people; the upper one may be open."""
    return f"{numbers_text(low, math.inf if high is None else high)} {unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedNumbers:
    """The opened numbers of released windows of a question, one window a row, whose devices are added up."""

    name: str
    domain: ValueDomain
    design: Design
    rows: Sequence[Sequence[int]] = field(repr=False)
    level: Fraction

    @property
    def unit(self) -> str:
        """The unit of the numbers, for people."""
        return self._numbers().unit

    def quantile(self, q: Fraction) -> MeasuredQuantile:
        """Return the q-quantile, 1/2 being the median, over the devices with a value.

        Raises:
            UsageError: values that are no numbers.
            RangeError: q outside (0, 1), or a release of which there is none (`fleetcount_analysis.answers.averages`).
        """
        domain = self._numbers()
        found = answers.quantile(self.design, self.rows, q, self.level)
        if isinstance(domain, Bins):
            low = float(domain.edges[found.first - 1])
            high = float(domain.edges[found.last]) if found.last < len(domain.edges) else math.inf
        else:
            low, high = map(float, found.between(domain.points))
        label = self.domain.label(found.value)
        return MeasuredQuantile(q=q, estimate=label, low=low, high=high, unit=domain.unit, level=self.level)

    def mean(self) -> Average:
        """Return the mean over the devices with a value, in the unit; of bins it is known up to a bin.

        Raises:
            UsageError: values that are no numbers, or a last bin without an end.
            RangeError: a release of which there is none (`fleetcount_analysis.answers.averages`).
        """
        domain = self._numbers()
        if not isinstance(domain, Bins):
            return answers.mean(self.design, self.rows, domain.points, self.level, rounded=True)
        if domain.open_above:
            raise UsageError(f"{self.name!r} has a last bin {domain.label(domain.values)!r}, so that no mean is known")
        return answers.mean_of_bins(self.design, self.rows, domain.edges, self.level)

    def total_of_numbers(self) -> Average:
        """Return the sum of the numbers of all devices with a value, in the unit.

        Raises:
            UsageError: values that are no points.
            RangeError: a release of which there is none (`fleetcount_analysis.answers.averages`).
        """
        domain = self._numbers()
        if isinstance(domain, Bins):
            raise UsageError(f"{self.name!r} asks for bins; the sum of numbers is of a number asked at points")
        return answers.total_of_numbers(self.design, self.rows, domain.points, self.level, rounded=True)

    def share(self, cells: Collection[int]) -> Average:
        """Return the share of devices whose value is among some, of those that have a value.

        Raises:
            RangeError: as `mean`, or a cell that is no value.
        """
        return answers.share(self.design, self.rows, cells, self.level)

    def share_above(self, number: Fraction) -> Average:
        """Return the share of devices with at least a number, an edge of the bins, of those that have a value.

        Raises:
            UsageError: values that are no bins, or a number that is no lower edge.
            RangeError: as `mean`.
        """
        domain = self.domain
        if not isinstance(domain, Bins):
            raise UsageError(f"{self.name!r} asks for no bins; the share above a number is known of bins alone")
        lower = domain.edges[: domain.values]
        if number not in lower:
            edges = f"an edge, {decimal_text(lower[0])} to {decimal_text(lower[-1])}"
            raise UsageError(f"{decimal_text(number)} is no edge of the bins of {self.name!r}; allowed: {edges}")
        return self.share(range(lower.index(number) + 1, domain.values + 1))

    def _numbers(self) -> Bins | Pointed:
        if isinstance(self.domain, Bins | Pointed):
            return self.domain
        raise UsageError(f"{self.name!r} asks for no numbers; a mean and quantiles are of bins and points")


def rows_apart(name: str, table: QuestionTable, windows: Iterable[int]) -> list[int]:
    """Return the rows of some released windows of a question, whose devices may be added up for a mean or a share.

    Raises:
        UsageError: sampled windows that share a toss of the coin.
        RangeError: no window, or one that was not released.
    """
    chosen = sorted(set(windows))
    rows = table.rows(chosen)
    if not rows:
        raise RangeError("number of windows", 0, "1 or more")
    if table.design.rounds == 2 and len({int(table.units[row]) for row in rows}) < len(rows):
        raise UsageError(
            f"{spans_text(chosen)} of {name!r} share a toss of the coin, so that their devices are no independent"
            " samples; allowed: windows of which no two do"
        )
    return rows


def opened_numbers(record: ReleaseRecord) -> tuple[int, ...]:
    """Return every opened number of a record in the order of its design, the baseline first where it is released."""
    baseline = () if record.baseline_raw is None else (record.baseline_raw,)
    return (*baseline, *(cell.raw for cell in record.cells))


def opened_of(record: ReleaseRecord) -> OpenedNumbers:
    """Return the opened numbers of one released window."""
    window = record.window
    return OpenedNumbers(
        name=window.name, domain=window.domain, design=window.design, rows=[opened_numbers(record)], level=record.level
    )
