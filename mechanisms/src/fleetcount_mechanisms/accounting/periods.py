"""The filter over time: whether one more charge keeps every period within the budget, those that have begun and later.

It must not store anything durably, read a clock or know what was asked: ledgers keep the charges and their times.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from fleetcount_mechanisms.accounting.budget import LossBudget
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.errors import MechanismError, require_at_least

__all__ = ["LossFilter", "TimedLoss"]

_BLOCK: Final = 128
_BEFORE_ALL: Final = -(1 << 70)
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
    """The totals of every period of `period` consecutive units of time, as charges come and go.

    A charge counts whole in each period that holds a part of it: those that start in [first - period + 1, last]. The
    totals are a step function of the period's start, kept in blocks of about a hundred steps, each with its largest
    total; asking or adding costs about the square root of the number of charges. Run by devices and aggregators.

    Raises:
        MechanismError: a period below 1, or charges of other orders than the budget's.
    """

    def __init__(self, budget: LossBudget, period: int, charges: Iterable[TimedLoss] = ()) -> None:
        """Hold charges that were admitted before; they are not judged again."""
        self.budget = budget
        self.period = require_at_least("period", period, 1)
        self._limits = (*budget.limits, budget.limit)
        held = list(charges)
        self._held = len(held)
        self._build(self._steps(held))

    def admits(self, charge: TimedLoss) -> bool:
        """Return whether with one more charge every period that holds a part of it stays within the budget.

        Periods that begin after the charge count too: they hold what is reserved already.
        """
        room = [limit - loss for limit, loss in zip(self._limits, self._vector(charge), strict=True)]
        start, end = self._place(charge.first - self.period + 1), self._place(charge.last)
        if any(self._largest(which, start, end) <= left for which, left in enumerate(room)):
            return True
        return all(self._block_fits(block, start, end, room) for block in range(start[0], end[0] + 1))

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
        self._change(charge, self._vector(charge))
        self._held += 1

    def remove(self, charge: TimedLoss) -> None:
        """Take off a charge that was added; the caller knows that nothing was ever sent for it."""
        self._change(charge, [-loss for loss in self._vector(charge)])
        self._held -= 1
        if sum(map(len, self._starts)) > 8 * (self._held + _BLOCK):
            self._build(self._merged())

    def total(self, start: int) -> LossVector:
        """Return what the period that begins at `start` holds."""
        block, step = self._place(start)
        found = [rows[block][step] + lazy[block] for rows, lazy in zip(self._rows, self._lazy, strict=True)]
        pure = found.pop()
        return LossVector(orders=self.budget.orders, at=tuple(found), pure=None if pure >= _NO_PURE else pure)

    # The step function: starts of steps in blocks; totals of each coordinate; what is still to be added to a block.

    def _vector(self, charge: TimedLoss) -> list[int]:
        loss = charge.loss
        if loss.orders != self.budget.orders:
            raise MechanismError(f"orders are {loss.orders}, allowed: those of the budget, {self.budget.orders}")
        return [*loss.at, _NO_PURE if loss.pure is None else loss.pure]

    def _steps(self, charges: list[TimedLoss]) -> list[tuple[int, list[int]]]:
        changes: dict[int, list[int]] = {_BEFORE_ALL: [0] * len(self._limits)}
        for charge in charges:
            vector = self._vector(charge)
            for start, sign in ((charge.first - self.period + 1, 1), (charge.last + 1, -1)):
                row = changes.setdefault(start, [0] * len(vector))
                for which, loss in enumerate(vector):
                    row[which] += sign * loss
        starts = sorted(changes)
        columns = [accumulate([changes[start][which] for start in starts]) for which in range(len(self._limits))]
        return [(start, list(row)) for start, *row in zip(starts, *columns, strict=True)]

    def _merged(self) -> list[tuple[int, list[int]]]:
        steps = list[tuple[int, list[int]]]()
        for block, starts in enumerate(self._starts):
            for step, start in enumerate(starts):
                row = [rows[block][step] + lazy[block] for rows, lazy in zip(self._rows, self._lazy, strict=True)]
                if not steps or steps[-1][1] != row:
                    steps.append((start, row))
        return steps

    def _build(self, steps: list[tuple[int, list[int]]]) -> None:
        blocks = [steps[at : at + _BLOCK] for at in range(0, len(steps), _BLOCK)]
        coordinates = range(len(self._limits))
        self._starts = [[start for start, _ in block] for block in blocks]
        self._heads = [starts[0] for starts in self._starts]
        self._rows = [[[row[which] for _, row in block] for block in blocks] for which in coordinates]
        self._lazy = [[0] * len(blocks) for _ in coordinates]
        self._tops = [[max(row) for row in rows] for rows in self._rows]

    def _place(self, start: int) -> tuple[int, int]:
        block = bisect_right(self._heads, start) - 1
        return block, bisect_right(self._starts[block], start) - 1

    def _cut(self, start: int) -> None:
        """Let a step begin at `start`."""
        block, step = self._place(start)
        starts = self._starts[block]
        if starts[step] == start:
            return
        starts.insert(step + 1, start)
        for rows in self._rows:
            rows[block].insert(step + 1, rows[block][step])
        if len(starts) > 2 * _BLOCK:
            self._starts[block : block + 1] = [starts[:_BLOCK], starts[_BLOCK:]]
            self._heads.insert(block + 1, starts[_BLOCK])
            for rows, lazy, tops in zip(self._rows, self._lazy, self._tops, strict=True):
                halves = [rows[block][:_BLOCK], rows[block][_BLOCK:]]
                rows[block : block + 1] = halves
                lazy.insert(block, lazy[block])
                tops[block : block + 1] = [max(half) + lazy[block] for half in halves]

    def _change(self, charge: TimedLoss, vector: list[int]) -> None:
        begin, end = charge.first - self.period + 1, charge.last + 1
        self._cut(begin)
        self._cut(end)
        (first, step), (last, beyond) = self._place(begin), self._place(end)
        for which, loss in enumerate(vector):
            rows, lazy, tops = self._rows[which], self._lazy[which], self._tops[which]
            ends = {first: slice(step, beyond if first == last else None), last: slice(step * (first == last), beyond)}
            for block, part in ends.items():
                rows[block][part] = [total + loss for total in rows[block][part]]
                tops[block] = max(rows[block]) + lazy[block]
            lazy[first + 1 : last] = [total + loss for total in lazy[first + 1 : last]]
            tops[first + 1 : last] = [total + loss for total in tops[first + 1 : last]]

    def _largest(self, which: int, start: tuple[int, int], end: tuple[int, int]) -> int:
        """Return the largest total of one coordinate over the steps from `start` to `end`, both included."""
        (first, step), (last, final) = start, end
        rows, lazy = self._rows[which], self._lazy[which]
        if first == last:
            return max(rows[first][step : final + 1]) + lazy[first]
        ends = max(rows[first][step:]) + lazy[first], max(rows[last][: final + 1]) + lazy[last]
        return max(*ends, *self._tops[which][first + 1 : last])

    def _block_fits(self, block: int, start: tuple[int, int], end: tuple[int, int], room: list[int]) -> bool:
        """Return whether each step of a block fits by one coordinate or another."""
        first = start[1] if block == start[0] else 0
        beyond = end[1] + 1 if block == end[0] else len(self._starts[block])
        left = [space - lazy[block] for space, lazy in zip(room, self._lazy, strict=True)]
        parts = [rows[block][first:beyond] for rows in self._rows]
        if any(max(part) <= space for part, space in zip(parts, left, strict=True)):
            return True
        return all(
            any(total <= space for total, space in zip(step, left, strict=True)) for step in zip(*parts, strict=True)
        )
