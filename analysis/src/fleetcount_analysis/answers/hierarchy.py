"""One report counted at several levels, each noised on its own: larger squares, a total. Counts of all that add up.

It must not read randomized answers. A sampled device is in the sample at all levels or at no level, so sampled counts
add up as counts do: the same combination of the opened numbers is best for them too, and is divided by p.
`fleetcount_mechanisms.levels` defines the cells of a release.

Every level l of V_l cells is released with noise of its own; a device is in one cell of every level. The sum of four
squares then differs from the square above them only by noise. Two passes, fine to coarse and back, give the consistent
least-squares counts exactly (Hay, Rastogi, Miklau and Suciu 2010; here for any noise of each level and any tree):

    z = w y + (1 - w) sum z_children,  w = S / (S + v),  Var z = w v,  S = sum Var z_children     upwards; z = y below
    h = z + r (h_parent - sum z_siblings),  r = Var z / S,  Var h = Var z (1 - r) + r^2 Var h_parent          downwards

A sum of counts g, and so each count too, is a combination of the opened numbers whose weights the same passes give.
With A the levels as sums of cells, W = diag(1/v) and C = (A'WA)^-1, the estimate of g'x is g'CA'Wy, so its weights are
W A C g; and A C g is what the passes return where the opened numbers are y with A'Wy = g: v g at g's own level, else 0.

The loss: a moved device changes two cells of each level, so rho = sum over levels of 1/s_l (discrete Gaussian), and the
pure loss is 2 sum e1_l (geometric). L levels of variance s have the rho of one level of variance s/L.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import NoiseLaw
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.answers.half_widths import combined, half_width
from fleetcount_analysis.answers.noises import NoiseTotal, Parts, noise_total
from fleetcount_analysis.answers.tails import JoinedLaw, joined_ends, tail_of
from fleetcount_analysis.errors import RangeError, ShapeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pyramid:
    """Levels from coarse to fine: `sizes` cells each; `parents[l]` is, for every cell of level l + 1, its cell in l.

    Cells are counted from 0 here; value v of a level is cell v - 1.

    Raises:
        ShapeError: no level, or parents that do not fit the sizes or leave a cell without children.
    """

    sizes: tuple[int, ...]
    parents: tuple[Integers, ...] = field(repr=False)

    def __post_init__(self) -> None:
        """Check that the cells of every level divide those of the level above."""
        if not self.sizes or len(self.parents) != len(self.sizes) - 1:
            raise ShapeError(f"{len(self.parents)} maps between {len(self.sizes)} levels; allowed is one fewer")
        for above, below, parent in zip(self.sizes, self.sizes[1:], self.parents, strict=False):
            if parent.shape != (below,) or np.unique(parent).tolist() != list(range(above)):
                raise ShapeError(f"a level of {below} cells does not divide all of the {above} above it")

    def cost(self, parameters: Sequence[Fraction]) -> Fraction:
        """Return the sum over levels of (cells that a device moves, 1 or 2) times the parameter.

        With parameters 1/(2 s_l) it is rho of the whole report, with e1_l its pure loss.

        Raises:
            ValueError: not one parameter for each level.
        """
        return sum((min(2, size) * one for size, one in zip(self.sizes, parameters, strict=True)), Fraction(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConsistentCounts:
    """Consistent counts of every level, coarse to fine; each array has shape (V_l,).

    `estimates` are unbiased; the whole numbers `low` and `high` hold for each cell separately with `level`.
    """

    level: Fraction
    estimates: tuple[Floats, ...]
    standard_errors: tuple[Floats, ...]
    low: tuple[Integers, ...]
    high: tuple[Integers, ...]


@lru_cache(maxsize=16)
def levels_of_grid(columns: int, rows: int, levels: int) -> Pyramid:
    """Return a square grid of columns * rows squares and the grids of two, four, ... times its side above it.

    Cells are numbered row by row, as in every square grid; at odd edges the squares above are narrower.

    Raises:
        RangeError: no column, row or level, or so many levels that the coarsest ones are the same.
    """
    most = max(columns, rows, 1).bit_length() + (max(columns, rows, 1).bit_count() > 1)
    if columns < 1 or rows < 1 or not 1 <= levels <= most:
        raise RangeError("(columns, rows, levels)", (columns, rows, levels), f"1 or more, at most {most} levels")
    sizes, parents = [columns * rows], []
    for _ in range(levels - 1):
        cell = np.arange(columns * rows)
        wide = (columns + 1) // 2
        parents.append(cell % columns // 2 + cell // columns // 2 * wide)
        columns, rows = wide, (rows + 1) // 2
        sizes.append(columns * rows)
    return Pyramid(sizes=tuple(sizes[::-1]), parents=tuple(parents[::-1]))


@lru_cache(maxsize=16)
def pyramid_of(levels: Levels) -> Pyramid:
    """Return the levels of a release that divide one another as a pyramid, from coarse to fine.

    Margins and a weighted sum are left out: they divide no other level.

    Raises:
        RangeError: levels of sets, whose numbers do not add up.
    """
    if levels.most > 1:
        raise RangeError("values of a device", levels.most, "1: the numbers of sets do not add up")
    nested = replace(levels, margins=(), weighted=False)
    parents = [np.array(nested.parents(level)) for level in range(nested.count - 1)]
    return Pyramid(sizes=nested.sizes[::-1], parents=tuple(parents[::-1]))


def even_variances(pyramid: Pyramid, rho: Fraction) -> tuple[Fraction, ...]:
    """Return s_l of every level for a report with a total rho, of which every level has the same part.

    Raises:
        RangeError: rho is not above 0.
    """
    if rho <= 0:
        raise RangeError("rho", rho, "above 0")
    return tuple(min(2, size) * len(pyramid.sizes) / (2 * rho) for size in pyramid.sizes)


def consistent_variances(pyramid: Pyramid, variances: Sequence[float]) -> tuple[Floats, ...]:
    """Return the variances of the consistent counts, (cells,) float64 a level, for these variances of the noise.

    `variances` has one number for each level; no data is needed.
    """
    return tuple(_Passes(pyramid, variances).down([np.zeros(size) for size in pyramid.sizes])[1])


def consistent(
    pyramid: Pyramid,
    counts: Sequence[ArrayLike],
    noise: Sequence[NoiseLaw],
    aggregators: int,
    level: Fraction,
    sampling_rate: Fraction = Fraction(1),
) -> ConsistentCounts:
    """Return the consistent counts of one report: `counts[l]` are the opened numbers of level l, `noise[l]` its law.

    Intervals come from the exact law of the combination of noises in each estimate, with sampling of that and the
    binomial together (`tails.JoinedLaw`): never too narrow.

    Raises:
        ShapeError: not one number for each cell, or not one law for each level.
        RangeError: one-sided noise or none, a level outside (0, 1 - 2e-10], fewer than 1 aggregator, or a sampling rate
            outside (0, 1].
    """
    tail_of(level)
    if not 0 < sampling_rate <= 1:
        raise RangeError("sampling rate", sampling_rate, "above 0 and at most 1")
    opened = [np.asarray(one, dtype=np.float64) for one in counts]
    if [one.shape for one in opened] != [(size,) for size in pyramid.sizes] or len(noise) != len(opened):
        raise ShapeError(
            f"counts of shapes {[one.shape for one in opened]}; allowed is one number a cell and one law a level"
        )
    if aggregators < 1:
        raise RangeError("number of aggregators", aggregators, "1 or more")
    laws = [noise_total(law, aggregators) for law in noise]
    if any(law.is_zero for law in laws):
        raise RangeError("law of noise", "none", "noise on every level")
    estimates, variances = Join(pyramid, laws).down(opened)
    low, high = [np.zeros(one.shape, dtype=np.int64) for one in estimates], [one.astype(np.int64) for one in estimates]
    for number, found in enumerate(estimates):
        for parts, cells in _alike(pyramid, tuple(laws), number):
            ends = ends_of(found[cells], parts, level, sampling_rate)
            low[number][cells], high[number][cells] = (np.maximum(one, 0) for one in ends)
    rate = float(sampling_rate)
    tossed = [np.maximum(one, 0) * (1 - rate) for one in estimates]
    return ConsistentCounts(
        level=level,
        estimates=tuple(one / rate for one in estimates),
        standard_errors=tuple(np.sqrt(one + more) / rate for one, more in zip(variances, tossed, strict=True)),
        low=tuple(low),
        high=tuple(high),
    )


def whole_ends(estimates: Floats, reach: Floats | float) -> tuple[Integers, Integers]:
    """Return the whole numbers within `reach` of each estimate, the first and the last; at least the nearest one."""
    middle = np.rint(estimates)
    low, high = np.minimum(np.ceil(estimates - reach), middle), np.maximum(np.floor(estimates + reach), middle)
    return low.astype(np.int64), high.astype(np.int64)


def ends_of(
    estimates: Floats, parts: Parts, level: Fraction, rate: Fraction, together: int = 1
) -> tuple[Integers, Integers]:
    """Return the ends of counts, float64 (n,) of who is in the sample, in which the same noises are.

    Of sums over windows, `together` is in how many of one unit of the coin a device may be counted.

    Raises:
        RangeError: a level outside (0, 1 - 2e-10].
    """
    if rate == 1:
        return whole_ends(estimates, half_width(parts, level))
    return joined_ends(JoinedLaw(steps=(together,), sampling_rate=rate, parts=parts, tail=tail_of(level)), estimates)


@lru_cache(maxsize=64)
def _alike(pyramid: Pyramid, laws: tuple[NoiseTotal, ...], number: int) -> tuple[tuple[Parts, Integers], ...]:
    """Return the noises in the counts of a level, and which cells have them; it depends on the laws only."""
    join, found = Join(pyramid, laws), dict[Parts, list[int]]()
    size = pyramid.sizes[number]
    for cell in range(size):
        parts = combined([(join.weights(number, _one(size, cell)), 1)], laws)
        found.setdefault(parts, []).append(cell)
    return tuple((parts, np.array(cells)) for parts, cells in found.items())


class _Passes:
    """The weights of both passes, which depend on the variances only."""

    def __init__(self, pyramid: Pyramid, variances: Sequence[float]) -> None:
        """Compute, from fine to coarse, Var z of every cell (`_spread`) and the weight w of its own count (`_own`)."""
        self._pyramid = pyramid
        self._spread = [np.full(size, one) for size, one in zip(pyramid.sizes, variances, strict=True)]
        self._own = [np.ones(size) for size in pyramid.sizes]
        self._share: list[Floats] = [np.ones(0) for _ in pyramid.parents]
        for number in range(len(pyramid.parents) - 1, -1, -1):
            parent = pyramid.parents[number]
            below = _summed(parent, self._spread[number + 1])
            self._own[number] = below / (below + variances[number])
            self._share[number] = self._spread[number + 1] / below[parent]
            self._spread[number] = self._own[number] * variances[number]

    def down(self, opened: Sequence[Floats]) -> tuple[list[Floats], list[Floats]]:
        """Return the consistent estimates and their variances, each (cells,) float64 a level."""
        upward, sums = [np.array(one) for one in opened], [np.zeros(0) for _ in self._share]
        for number in range(len(self._share) - 1, -1, -1):
            sums[number] = _summed(self._pyramid.parents[number], upward[number + 1])
            own = self._own[number]
            upward[number] = own * opened[number] + (1 - own) * sums[number]
        estimates, variances = [upward[0]], [self._spread[0]]
        for number, share in enumerate(self._share):
            parent = self._pyramid.parents[number]
            estimates.append(upward[number + 1] + share * (estimates[-1] - sums[number])[parent])
            spread = self._spread[number + 1]
            variances.append(spread * (1 - share) + share**2 * variances[-1][parent])
        return estimates, variances


class Join:
    """The least-squares step of one pyramid whose levels have noise of these `laws`, coarse to fine."""

    def __init__(self, pyramid: Pyramid, laws: Sequence[NoiseTotal]) -> None:
        """Compute the passes of these variances."""
        self._sizes, self._variances = pyramid.sizes, [law.variance for law in laws]
        self.down = _Passes(pyramid, self._variances).down

    def weights(self, number: int, sums: Floats) -> list[Floats]:
        """Return the weight of every opened number in the estimate of a sum of counts, (cells,) float64 a level.

        `sums` says how often each count of level `number` is in it, float64 (cells,); negative where it is taken away.
        """
        as_if = [np.zeros(size) for size in self._sizes]
        as_if[number] = self._variances[number] * sums
        found, _ = self.down(as_if)
        return [one / variance for one, variance in zip(found, self._variances, strict=True)]


def _one(size: int, cell: int) -> Floats:
    """Return the sum of a level of so many cells that has one cell alone."""
    sums = np.zeros(size)
    sums[cell] = 1
    return sums


def _summed(parent: Integers, below: Floats) -> Floats:
    """Return the sums of the children of every cell."""
    return np.asarray(np.bincount(parent, weights=below), dtype=np.float64)
