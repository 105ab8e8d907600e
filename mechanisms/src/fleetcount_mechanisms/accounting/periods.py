"""The filter over time: whether one more charge keeps every period within the budget, past and future ones.

It must not store anything durably, read a clock or know a question: ledgers keep the charges and their times.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate
from operator import add, sub
from typing import Final

from fleetcount_mechanisms.accounting.vectors import LossBudget, LossVector, decimal_of
from fleetcount_mechanisms.errors import MechanismError, require_at_least

_BLOCK: Final = 64
_NO_PURE: Final = 1 << 100
"""Represents an infinite pure epsilon: it is above every limit, and an integer can be subtracted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoss:
    """A loss that counts from `first` to `last`, both included, in whole units of time (seconds, for instance).

    A direct answer has the time of its window; a unit of a panel coin is one charge from its first window to its last.

    Raises:
        MechanismError: times that are no integers, or an end before the beginning.
    """

    first: int
    last: int
    loss: LossVector

    def __post_init__(self) -> None:
        """Check the order."""
        require_at_least("last", self.last, require_at_least("first", self.first, -(1 << 62)))


class LossFilter:
    """The total losses of all periods of `period` consecutive units of time, while charges are added and removed.

    A charge counts in full in each period that overlaps it. Run by devices and aggregators.

    Raises:
        MechanismError: a period below 1, or charges of other orders than the budget's.
    """

    def __init__(self, budget: LossBudget, period: int, charges: Iterable[TimedLoss] = ()) -> None:
        """Start with charges that were admitted before; they are not checked again."""
        self.budget = budget
        self._limits = [*budget.limits, budget.limit]
        self._totals = PeriodTotals(period, len(self._limits))
        for charge in charges:
            self.add(charge)

    def admits(self, charge: TimedLoss) -> bool:
        """Return whether with this charge every period that overlaps it stays within the budget.

        Periods in the future are checked too: they may have reservations already.

        Raises:
            MechanismError: a charge of other orders than the budget's.
        """
        room = list(map(sub, self._limits, self._vector(charge)))
        return self._totals.excess(charge.first, charge.last, room, floor=0) <= 0

    def admit(self, charges: Sequence[TimedLoss]) -> bool:
        """Add all charges and return True if they fit together; otherwise add none and return False.

        Raises:
            MechanismError: a charge of other orders than the budget's; none is added.
        """
        for charge in charges:
            self._vector(charge)
        for number, charge in enumerate(charges):
            if not self.admits(charge):
                for added in charges[:number]:
                    self.remove(added)
                return False
            self.add(charge)
        return True

    def add(self, charge: TimedLoss) -> None:
        """Add a charge without a check."""
        self._totals.add(charge.first, charge.last, self._vector(charge))

    def remove(self, charge: TimedLoss) -> None:
        """Remove a charge that was added; only a charge for which nothing was ever sent may be removed."""
        self._totals.remove(charge.first, charge.last, self._vector(charge))

    def total(self, start: int) -> LossVector:
        """Return the total loss of the period that begins at `start`."""
        *at, pure = self._totals.total(start)
        return LossVector(orders=self.budget.orders, at=tuple(at), pure=None if pure >= _NO_PURE else pure)

    def spent_with(self, charge: TimedLoss) -> Decimal:
        """Return the largest epsilon, as `LossBudget.spent`, of the periods that overlap this charge, with its loss."""
        room = list(map(sub, self._limits, self._vector(charge)))
        return decimal_of(max(0, self.budget.limit + self._totals.excess(charge.first, charge.last, room)))

    def _vector(self, charge: TimedLoss) -> list[int]:
        loss = charge.loss
        if loss.orders != self.budget.orders:
            raise MechanismError(f"orders are {loss.orders}, allowed: those of the budget, {self.budget.orders}")
        return [*loss.at, _NO_PURE if loss.pure is None else loss.pure]


class PeriodTotals:
    """Column sums of rows of `width` integers over every period of `period` units of time; rows are added and removed.

    A row counts in each period that overlaps its time: those that start in [first - period + 1, last]. The totals are
    a step function of the period's start, and a row is two steps of it. The steps are stored in blocks of 64 to 128; a
    query passes over the blocks' sums and searches the blocks at its ends. Times have no limits.

    Raises:
        MechanismError: a period below 1.
    """

    def __init__(self, period: int, width: int) -> None:
        """Start without rows."""
        self.period = require_at_least("period", period, 1)
        self._starts: list[list[int]] = [[]]
        self._heads = [0]  # No start in a block is below its head; that of block 0 is never read.
        self._columns = [_Column() for _ in range(width)]
        self._rises: list[int] = []  # The starts at which a row begins to count, sorted: totals rise only there.

    def add(self, first: int, last: int, row: Sequence[int]) -> None:
        """Add a row of numbers of at least 0 to every period that overlaps the time from `first` to `last`."""
        begin = first - self.period + 1
        self._step(begin, row)
        self._step(last + 1, [-number for number in row])
        insort(self._rises, begin)

    def remove(self, first: int, last: int, row: Sequence[int]) -> None:
        """Remove a row that was added with the same arguments."""
        begin = first - self.period + 1
        self._step(begin, [-number for number in row])
        self._step(last + 1, row)
        del self._rises[bisect_left(self._rises, begin)]

    def total(self, start: int) -> list[int]:
        """Return the totals of the period that begins at `start`."""
        place = self._place(start)
        return [column.total(place) for column in self._columns]

    def excess(self, first: int, last: int, room: Sequence[int], floor: int | None = None) -> int:
        """Return the largest excess over `room` of the periods that overlap a time; it may be below 0.

        The excess of a period is the least total - room of its columns, because a budget is kept if one column is
        within its limit. With a `floor` the search may stop early: a result of at most `floor` need not be the largest.
        """
        begin, end = self._range(first, last)
        totals = [column.total(begin) for column in self._columns]
        worst: int = min(map(sub, totals, room))
        if begin == end:
            return worst
        enough = worst if floor is None else max(worst, floor)
        for column, total, left in zip(self._columns, totals, room, strict=True):
            if column.largest(begin, end, total) - left <= enough:
                return worst
        return self._search(begin, end, totals, room)

    def largest(self, first: int, last: int) -> list[int]:
        """Return for each column its largest total among the periods that overlap a time."""
        begin, end = self._range(first, last)
        return [column.largest(begin, end, column.total(begin)) for column in self._columns]

    def scale(self, factor: int) -> None:
        """Multiply every number that was added, for rows in finer units."""
        for column in self._columns:
            column.scale(factor)

    def _range(self, first: int, last: int) -> "tuple[_Place, _Place]":
        """Return the place of the first period that overlaps a time, and that of the last rise of the totals."""
        start, rises = first - self.period + 1, bisect_right(self._rises, last)
        begin = self._place(start)
        return begin, self._place(self._rises[rises - 1]) if rises and self._rises[rises - 1] > start else begin

    def _search(self, begin: "_Place", end: "_Place", totals: list[int], room: Sequence[int]) -> int:
        """Return `excess` given the totals at `begin`.

        A block's peaks bound the excess inside it; blocks are searched step by step, the largest bound first, until no
        bound is above the excess found.
        """
        (first, step), (last, beyond) = begin, end
        worst, totals = self._walk(first, slice(step, beyond if first == last else None), totals, room)
        spans = list[tuple[int, int, list[int]]]()
        for block in range(first + 1, last):
            peaks = map(add, totals, [column.peaks[block] for column in self._columns])
            spans.append((min(map(sub, peaks, room)), block, totals))
            totals = list(map(add, totals, [column.sums[block] for column in self._columns]))
        if first < last:
            worst = max(worst, self._walk(last, slice(beyond), totals, room)[0])
        for bound, block, before in sorted(spans, reverse=True):
            if bound <= worst:
                break
            worst = max(worst, self._walk(block, slice(None), before, room)[0])
        return worst

    def _walk(self, block: int, part: slice, totals: list[int], room: Sequence[int]) -> tuple[int, list[int]]:
        """Return the largest excess of the steps of a part of a block, and the totals at its end."""
        pairs = zip(self._columns, totals, strict=True)
        runs = [list(accumulate(column.changes[block][part], initial=total)) for column, total in pairs]
        return max(min(map(sub, row, room)) for row in zip(*runs, strict=True)), [run[-1] for run in runs]

    def _place(self, start: int) -> "_Place":
        """Return the block of a period's start, and the number of its steps at or before that start."""
        block = bisect_right(self._heads, start, 1) - 1
        return block, bisect_right(self._starts[block], start)

    def _step(self, start: int, row: Sequence[int]) -> None:
        """Change the totals by a row at a period's start; a step whose changes are all 0 is removed."""
        if not any(row):
            return
        block = bisect_right(self._heads, start, 1) - 1
        starts = self._starts[block]
        step = bisect_left(starts, start)
        if step == len(starts) or starts[step] != start:
            starts.insert(step, start)
            for column in self._columns:
                column.changes[block].insert(step, 0)
        kept = [column.change(block, step, change) for column, change in zip(self._columns, row, strict=True)]
        if not any(kept):
            self._drop(block, step)
        elif len(starts) > 2 * _BLOCK:
            self._split(block)

    def _split(self, block: int) -> None:
        starts = self._starts[block]
        self._starts[block : block + 1] = [starts[:_BLOCK], starts[_BLOCK:]]
        self._heads.insert(block + 1, starts[_BLOCK])
        for column in self._columns:
            column.split(block)

    def _drop(self, block: int, step: int) -> None:
        del self._starts[block][step]
        for column in self._columns:
            del column.changes[block][step]
        if not self._starts[block] and len(self._starts) > 1:
            del self._starts[block], self._heads[block]
            for column in self._columns:
                column.drop(block)


_Place = tuple[int, int]


@dataclass(slots=True)
class _Column:
    """One number of the rows: its changes at the steps of each block, their sums, and the largest of partial sums."""

    changes: list[list[int]] = field(default_factory=lambda: [[]])
    sums: list[int] = field(default_factory=lambda: [0])
    peaks: list[int] = field(default_factory=lambda: [0])
    stale: set[int] = field(default_factory=set)  # Blocks whose peak is out of date.

    def total(self, place: _Place) -> int:
        """Return the total at a place."""
        block, steps = place
        return sum(self.changes[block][:steps], sum(self.sums[:block]))

    def largest(self, begin: _Place, end: _Place, total: int) -> int:
        """Return the largest total from `begin`, where it is `total`, to `end`, both included."""
        (first, step), (last, beyond) = begin, end
        if first == last:
            return max(accumulate(self.changes[first][step:beyond], initial=total))
        self._update_peaks()
        run = list(accumulate(self.changes[first][step:], initial=total))
        before = list(accumulate(self.sums[first + 1 : last], initial=run[-1]))
        final = accumulate(self.changes[last][:beyond], initial=before[-1])
        most: int = max(*run, *final, *map(add, before, self.peaks[first + 1 : last]))
        return most

    def change(self, block: int, step: int, change: int) -> int:
        """Add to the change at a step and return the new value."""
        changes = self.changes[block]
        changes[step] += change
        self.sums[block] += change
        self.stale.add(block)
        return changes[step]

    def split(self, block: int) -> None:
        """Split a block in two."""
        self._update_peaks()  # The numbers of later blocks shift, so none may stay marked as stale.
        changes = self.changes[block]
        halves = changes[:_BLOCK], changes[_BLOCK:]
        self.changes[block : block + 1] = halves
        self.sums[block : block + 1] = map(sum, halves)
        self.peaks[block : block + 1] = [0, 0]
        self.stale |= {block, block + 1}

    def drop(self, block: int) -> None:
        """Remove a block without steps."""
        self._update_peaks()  # As in `split`.
        del self.changes[block], self.sums[block], self.peaks[block]

    def scale(self, factor: int) -> None:
        """Multiply every change."""
        self.changes = [[change * factor for change in changes] for changes in self.changes]
        self.sums, self.peaks = ([number * factor for number in numbers] for numbers in (self.sums, self.peaks))

    def _update_peaks(self) -> None:
        for block in self.stale:
            self.peaks[block] = max(accumulate(self.changes[block]), default=0)
        self.stale.clear()
