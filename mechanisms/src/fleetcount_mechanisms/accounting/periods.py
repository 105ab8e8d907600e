"""The filter over time: whether one more charge keeps every period within the budget, those that have begun and later.

It must not store anything durably, read a clock or know what was asked: ledgers keep the charges and their times.
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
"""Stands for an infinite pure epsilon: above every limit, and it can be taken off again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLoss:
    """What is lost between `first` and `last`, both included, in whole units of time (seconds, say).

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
    """The losses of every period of `period` consecutive units of time, as charges come and go.

    A charge counts whole in each period that holds a part of it. Run by devices and aggregators.

    Raises:
        MechanismError: a period below 1, or charges of other orders than the budget's.
    """

    def __init__(self, budget: LossBudget, period: int, charges: Iterable[TimedLoss] = ()) -> None:
        """Hold charges that were admitted before; they are not judged again."""
        self.budget = budget
        self._limits = [*budget.limits, budget.limit]
        self._totals = PeriodTotals(period, len(self._limits))
        for charge in charges:
            self.add(charge)

    def admits(self, charge: TimedLoss) -> bool:
        """Return whether with one more charge every period that holds a part of it stays within the budget.

        Periods that begin after the charge count too: they hold what is reserved already.
        """
        room = list(map(sub, self._limits, self._vector(charge)))
        return self._totals.excess(charge.first, charge.last, room, floor=0) <= 0

    def admit(self, charges: Sequence[TimedLoss]) -> bool:
        """Add all charges if they fit together and return True, or add none and return False."""
        for number, charge in enumerate(charges):
            if not self.admits(charge):
                for added in charges[:number]:
                    self.remove(added)
                return False
            self.add(charge)
        return True

    def add(self, charge: TimedLoss) -> None:
        """Add a charge without judging it."""
        self._totals.add(charge.first, charge.last, self._vector(charge))

    def remove(self, charge: TimedLoss) -> None:
        """Take off a charge that was added; the caller knows that nothing was ever sent for it."""
        self._totals.remove(charge.first, charge.last, self._vector(charge))

    def total(self, start: int) -> LossVector:
        """Return what the period that begins at `start` holds."""
        *at, pure = self._totals.total(start)
        return LossVector(orders=self.budget.orders, at=tuple(at), pure=None if pure >= _NO_PURE else pure)

    def spent_with(self, charge: TimedLoss) -> Decimal:
        """Return what any period that holds a part of one more charge comes to at most, as `LossBudget.spent`."""
        room = list(map(sub, self._limits, self._vector(charge)))
        return decimal_of(max(0, self.budget.limit + self._totals.excess(charge.first, charge.last, room)))

    def _vector(self, charge: TimedLoss) -> list[int]:
        loss = charge.loss
        if loss.orders != self.budget.orders:
            raise MechanismError(f"orders are {loss.orders}, allowed: those of the budget, {self.budget.orders}")
        return [*loss.at, _NO_PURE if loss.pure is None else loss.pure]


class PeriodTotals:
    """What rows of `width` integers add up to in every period of `period` units of time, as rows come and go.

    A row counts in each period that holds a part of its time: those that start in [first - period + 1, last]. The
    totals are a step function of the period's start. Kept are its steps, in blocks of about a hundred, so that a row
    is two of them; asking costs about the square root of their number. Times have no limits.

    Raises:
        MechanismError: a period below 1.
    """

    def __init__(self, period: int, width: int) -> None:
        """Hold no row."""
        self.period = require_at_least("period", period, 1)
        self._starts: list[list[int]] = [[]]
        self._heads = [0]  # Where blocks begin; nothing looks at the first.
        self._columns = [_Column() for _ in range(width)]
        self._rises: list[int] = []  # Where a row begins, sorted: only there can a period hold more than one before.

    def add(self, first: int, last: int, row: Sequence[int]) -> None:
        """Add numbers, none below 0, to every period that holds a part of the time from `first` to `last`."""
        begin = first - self.period + 1
        self._step(begin, row)
        self._step(last + 1, [-number for number in row])
        insort(self._rises, begin)

    def remove(self, first: int, last: int, row: Sequence[int]) -> None:
        """Take off what was added with the same arguments."""
        begin = first - self.period + 1
        self._step(begin, [-number for number in row])
        self._step(last + 1, row)
        del self._rises[bisect_left(self._rises, begin)]

    def total(self, start: int) -> list[int]:
        """Return the totals of the period that begins at `start`."""
        place = self._place(start)
        return [column.total(place) for column in self._columns]

    def excess(self, first: int, last: int, room: Sequence[int], floor: int | None = None) -> int:
        """Return by how much the fullest period that holds a part of a time is above `room`; below 0 it is not.

        A period is above by the least of its numbers: within the room is what has one total within it. A result that is
        not above `floor` need not be the largest.
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
        """Return the largest totals, one by one, of the periods that hold a part of a time."""
        begin, end = self._range(first, last)
        return [column.largest(begin, end, column.total(begin)) for column in self._columns]

    def scale(self, factor: int) -> None:
        """Multiply every number that was added, for rows in finer units."""
        for column in self._columns:
            column.scale(factor)

    def _range(self, first: int, last: int) -> "tuple[_Place, _Place]":
        """Return where the periods that hold a part of a time begin, and where the totals rise for the last time."""
        start, rises = first - self.period + 1, bisect_right(self._rises, last)
        begin = self._place(start)
        return begin, self._place(self._rises[rises - 1]) if rises and self._rises[rises - 1] > start else begin

    def _search(self, begin: "_Place", end: "_Place", totals: list[int], room: Sequence[int]) -> int:
        """Return `excess` from the totals at the first place: step by step where a block may hold more than found."""
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
        """Return the block of a period's start, and how many of its steps are not after it."""
        block = bisect_right(self._heads, start, 1) - 1
        return block, bisect_right(self._starts[block], start)

    def _step(self, start: int, row: Sequence[int]) -> None:
        """Let the totals change by a row at a period's start; a step that changes nothing is dropped."""
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
    stale: set[int] = field(default_factory=set)  # Blocks whose largest partial sum is to be found anew.

    def total(self, place: _Place) -> int:
        """Return the total at a place."""
        block, steps = place
        return sum(self.changes[block][:steps], sum(self.sums[:block]))

    def largest(self, begin: _Place, end: _Place, total: int) -> int:
        """Return the largest total from one place, which has this one, to another, both included."""
        (first, step), (last, beyond) = begin, end
        if first == last:
            return max(accumulate(self.changes[first][step:beyond], initial=total))
        self._look()
        run = list(accumulate(self.changes[first][step:], initial=total))
        before = list(accumulate(self.sums[first + 1 : last], initial=run[-1]))
        final = accumulate(self.changes[last][:beyond], initial=before[-1])
        most: int = max(*run, *final, *map(add, before, self.peaks[first + 1 : last]))
        return most

    def change(self, block: int, step: int, change: int) -> int:
        """Add to the change at a step and return what it is then."""
        changes = self.changes[block]
        changes[step] += change
        self.sums[block] += change
        self.stale.add(block)
        return changes[step]

    def split(self, block: int) -> None:
        """Cut a block in two."""
        self._look()
        changes = self.changes[block]
        halves = changes[:_BLOCK], changes[_BLOCK:]
        self.changes[block : block + 1] = halves
        self.sums[block : block + 1] = map(sum, halves)
        self.peaks[block : block + 1] = [0, 0]
        self.stale |= {block, block + 1}

    def drop(self, block: int) -> None:
        """Forget a block without steps."""
        self._look()
        del self.changes[block], self.sums[block], self.peaks[block]

    def scale(self, factor: int) -> None:
        """Multiply every change."""
        self.changes = [[change * factor for change in changes] for changes in self.changes]
        self.sums, self.peaks = ([number * factor for number in numbers] for numbers in (self.sums, self.peaks))

    def _look(self) -> None:
        for block in self.stale:
            self.peaks[block] = max(accumulate(self.changes[block]), default=0)
        self.stale.clear()
