"""What a total, margins, a weighted sum and counts of sets tell about a person; `disclosure` reads cells alone.

It must not decide, and has no window: it reads sums of the numbers of all windows that are read together. Each
posterior is Bayes' rule of the model of `shares` for the noise of the release, over every possible pair of counts. What
the model leaves open about the other numbers is taken as any that is possible, each as likely: how many other values
devices have in sets, what the weights of the others add up to in a weighted sum.

Margins, or a total alone: the sensitive value is one of a dimension, or a cell. Its count y is behind the margin's
number and behind the sum of its cells, that of the others behind the sums of both, and the group behind the sum of
every other margin and behind the total. Of the values of a dimension the one with the largest posterior is among those
that no other one exceeds in both numbers, since a posterior grows with either.

A weighted sum: the sensitive value is a cell, and all cells do not have the same law, since the weighted sum tells
which weights are many. So cells are read in the order of their numbers, until the others cannot be believed more.

Sets: the group is the devices that have any value, whose number the total is; the sum of the other cells bounds it too.
A device that has some has on average (m + 1)/2 of them, so that the share of a value has the mean (m + 1)/(2V).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_mechanisms.design import Design

from fleetcount_analysis.answers.noises import noise_total
from fleetcount_analysis.answers.shares import (
    LOG_TAIL,
    OUTWARD,
    Floats,
    Integers,
    Number,
    counts_between,
    log_masses,
    mean_share,
    reached,
)
from fleetcount_analysis.channels import AnySum
from fleetcount_analysis.errors import TooLargeError

_MOST_CELLS: Final = 64
"""Cells beside a weighted sum that are read one by one; what the others can tell is bounded."""
_LARGEST_REACH: Final = 1 << 21
_SMALLEST_CHANCE: Final = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSums:
    """Sums over `windows` windows: of each level's numbers, the cells first, and of participants if they are opened."""

    levels: tuple[tuple[int, ...], ...] = field(repr=False)
    participants: int | None = field(repr=False)
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What tells of one value: numbers of its count, of the others' and of the group's."""

    own: tuple[Number, ...]
    others: tuple[Number, ...]
    group: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laws:
    """The sums that are read, and the laws of their noises."""

    design: Design
    sums: OpenedSums

    def number(self, level: int, seen: int, terms: int) -> Number:
        """Return a sum of `terms` numbers of a level with the law of its noise."""
        return seen, noise_total(self.design.laws[level], terms * self.design.aggregators * self.sums.windows)

    def sum_of(self, level: int) -> Number:
        """Return the sum of all numbers of a level."""
        numbers = self.sums.levels[level]
        return self.number(level, sum(numbers), len(numbers))

    @property
    def participants(self) -> tuple[Number, ...]:
        """The number of participants, which has the noise of a cell, or nothing."""
        seen = self.sums.participants
        return () if seen is None else (self.number(0, seen, 1),)

    @property
    def total(self) -> tuple[Number, ...]:
        """The total, or nothing."""
        return (self.sum_of(-1),) if self.design.levels.total else ()

    def cell(self, place: int) -> tuple[Number, Number]:
        """Return the number of a cell, from 0, and the sum of the others."""
        cells = self.sums.levels[0]
        return self.number(0, cells[place], 1), self.number(0, sum(cells) - cells[place], len(cells) - 1)


def largest_of_rows(design: Design, sums: OpenedSums, weight: int) -> float | None:
    """Return the largest posterior from margins, from cells beside a weighted sum, or from sets.

    None if it is undefined: numbers that only an empty group can have given.

    Raises:
        TooLargeError: a weighted sum whose noise reaches beyond 2^21, or noises as `channels` refuses them.
    """
    laws = _Laws(design=design, sums=sums)
    if design.levels.most > 1:
        return _of_sets(laws, weight)
    return _of_weighted(laws, weight) if design.levels.weighted else _of_margins(laws, weight)


def _of_margins(laws: _Laws, weight: int) -> float | None:
    levels, margins = laws.design.levels, range(1, 1 + len(laws.design.levels.margins))
    cells = laws.sums.levels[0]
    own, others = laws.cell(cells.index(max(cells)))
    group = (*(laws.sum_of(level) for level in margins), *laws.total)
    found = [_posterior(laws, _Read(own=(own,), others=(others,), group=group), levels.values, weight)]
    for level in margins:
        group = (*(laws.sum_of(other) for other in margins if other != level), *laws.total)
        found += [_posterior(laws, read, levels.sizes[level], weight) for read in _values_of(laws, level, group)]
    return max((one for one in found if one is not None), default=None)


def _values_of(laws: _Laws, level: int, group: tuple[Number, ...]) -> Iterator[_Read]:
    """Yield what tells of the values of a margin, of those that may have the largest posterior."""
    levels, cells, numbers = laws.design.levels, laws.sums.levels[0], laws.sums.levels[level]
    of_cells = [0] * len(numbers)
    for place, count in zip(levels.margin_of(level - 1), cells, strict=True):
        of_cells[place] += count
    width = levels.values // len(numbers)
    for seen, below in _unexceeded(list(zip(numbers, of_cells, strict=True))):
        rest, beside = sum(numbers) - seen, sum(cells) - below
        yield _Read(
            own=(laws.number(level, seen, 1), laws.number(0, below, width)),
            others=(laws.number(level, rest, len(numbers) - 1), laws.number(0, beside, levels.values - width)),
            group=group,
        )


def _unexceeded(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs that no other one exceeds in one number without being below it in the other."""
    found: list[tuple[int, int]] = []
    for one in sorted(set(pairs), reverse=True):
        if not found or one[1] > found[-1][1]:
            found.append(one)
    return found


def _of_weighted(laws: _Laws, weight: int) -> float | None:
    cells, levels = laws.sums.levels[0], laws.design.levels
    at = levels.weighted_place or 0
    seen, law = laws.sum_of(at)
    order = sorted(range(levels.values), key=lambda place: -cells[place])
    # A value of which more than so many have it is as unlikely as what is omitted everywhere.
    reach = laws.cell(0)[0][1].reach_of(LOG_TAIL)
    smallest = max(1, reached((laws.sum_of(0), *laws.total, *laws.participants)[-1:])[0])
    best: float | None = None
    for rank, place in enumerate(order):
        bound = min(1.0, max(0, cells[place] + reach) / smallest + OUTWARD)
        if best is not None and bound <= best:
            break
        if rank == _MOST_CELLS:
            return max(best or 0.0, bound)
        own, others = laws.cell(place)
        read = _Read(own=(own,), others=(others,), group=laws.total)
        told = _posterior(laws, read, levels.values, weight, _Weighted.of(levels.values, place, seen, law))
        best = told if best is None else max(best, told or 0.0)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighted:
    """The log probability of a weighted sum: of its noise, and of the weights of the devices without the value.

    `own` is the weight of the value. Weights are two apart, so the others' sum is any whole number in steps of two from
    `low` to `high` a device.
    """

    seen: int
    own: int
    low: int
    high: int
    law: AnySum

    @classmethod
    def of(cls, values: int, place: int, seen: int, law: AnySum) -> "_Weighted":
        """Return the reading of one cell, `place` from 0 on."""
        top = values - 1
        return cls(
            seen=seen,
            own=2 * place - top,
            low=-top + 2 * (place == 0),
            high=top - 2 * (place == top),
            law=law,
        )

    def log_mass(self, y: Integers, others: Integers) -> Floats:
        """Return the log probability of the sum given how many have the value and how many have another one."""
        least, most = self.seen - self.own * y - self.high * others, self.seen - self.own * y - self.low * others
        # The law is symmetric: sums are taken on its lower side, where they are exact.
        swap = least + most > 0
        low, high = np.where(swap, -most, least), np.where(swap, -least, most)
        number = others * ((self.high - self.low) // 2) + 1
        return _log(_in_steps(self.law, low, high)) - np.log(number)


def _in_steps(law: AnySum, low: Integers, high: Integers) -> Floats:
    """Return P[Z in low, low + 2, ..., high], both of the same parity."""
    sums = _sums_in_steps(law)
    reach = sums.size // 2

    def below(z: Integers) -> Floats:
        inside = np.where(z > reach, reach - (z - reach) % 2, np.maximum(z, -reach))
        return np.where(z < -reach, 0.0, sums[inside + reach])

    return np.asarray(below(high) - below(low - 2), dtype=np.float64)


@lru_cache(maxsize=4)
def _sums_in_steps(law: AnySum) -> Floats:
    """Return P[Z in -reach, ..., z - 2, z] for z from -reach to reach, whose other parity is left out."""
    reach = law.reach_of(LOG_TAIL)
    if reach > _LARGEST_REACH:
        raise TooLargeError(f"the noise of a weighted sum reaches {reach}; it is read up to {_LARGEST_REACH}")
    sums = np.asarray(np.exp(law.log_mass(np.arange(-reach, reach + 1))), dtype=np.float64)
    for parity in (0, 1):
        sums[parity::2] = np.cumsum(sums[parity::2])
    return sums


def _posterior(laws: _Laws, read: _Read, values: int, weight: int, weighted: _Weighted | None = None) -> float | None:
    """Return the posterior of a value, one of `values`; of all participants where their number is told."""
    y, widths, fine = counts_between(*reached(read.own))
    evidence = (log_masses(read.own, y) + widths)[None, :]
    if laws.participants:
        x, widths, also_fine = counts_between(*reached(laws.participants))
        evidence = evidence + (log_masses(laws.participants, x) + widths)[:, None]
        return mean_share(x[:, None], y[None, :], evidence, 1 / (values + 1), weight, exact=fine and also_fine)
    others = counts_between(*reached(read.others))
    if read.group and (group := counts_between(*reached(read.group))).span < others.span:
        # Steps of what is known less well could miss the few counts that the other numbers allow.
        (counts, widths, also_fine), shift = group, -1
    else:
        (counts, widths, also_fine), shift = others, 1
    beside = counts[:, None] + shift * y[None, :]
    rest, x = (counts[:, None], beside) if shift == 1 else (np.maximum(beside, 0), counts[:, None])
    evidence = evidence + widths[:, None] + log_masses(read.others, rest) + log_masses(read.group, x)
    if weighted is not None:
        evidence = evidence + weighted.log_mass(y[None, :], rest)
    return mean_share(x, y[None, :], evidence, 1 / values, weight, exact=fine and also_fine)


def _of_sets(laws: _Laws, weight: int) -> float | None:
    """Return the posterior of the cell with the largest number, since all cells have the same law."""
    cells, levels = laws.sums.levels[0], laws.design.levels
    own, others = laws.cell(cells.index(max(cells)))
    y, widths, fine = counts_between(*reached((own,)))
    evidence = (log_masses((own,), y) + widths)[None, :]
    counted = laws.participants or laws.total
    if counted:
        x, widths, also_fine = counts_between(*reached(counted))
        evidence = evidence + (log_masses(counted, x) + widths)[:, None]
    else:
        low, high = reached((others,))
        x, widths, also_fine = counts_between(-(-(low + int(y[0])) // levels.most), high + int(y[-1]))
        evidence = evidence + widths[:, None]
    if not laws.participants:
        evidence = evidence + _sets_beside(others, levels.values, levels.most, x[:, None], y[None, :])
    prior = (levels.most + 1) / (2 * (levels.values + bool(laws.participants)))
    return mean_share(x[:, None], y[None, :], evidence, prior, weight, exact=fine and also_fine)


def _sets_beside(others: Number, values: int, most: int, x: Integers, y: Integers) -> Floats:
    """Return the log probability of the other cells' sum if x devices have any value and y of them the one.

    Who has the value has 0 to m - 1 of the others, who has it not 1 to m of them (of V - 1, if that is fewer): the sum
    is any number in between, each as likely.
    """
    seen, law = others
    without = np.maximum(x - y, 0)
    low, high = without, (most - 1) * y + min(most, values - 1) * without
    least, largest = seen - high, seen - low
    swap = least + largest < 0
    # The law is symmetric: differences of tails are taken on its upper side, where they are exact.
    first, last = np.where(swap, -largest, least), np.where(swap, -least, largest)
    return np.asarray(_log(law.upper_tail(first) - law.upper_tail(last + 1)) - np.log(high - low + 1), dtype=np.float64)


def _log(chances: Floats) -> Floats:
    """Return logarithms; those of what cannot be are equal, so that numbers no counts can have given tell nothing."""
    return np.asarray(np.log(np.maximum(chances, _SMALLEST_CHANCE)), dtype=np.float64)
