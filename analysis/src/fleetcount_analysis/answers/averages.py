"""Quantiles, means and shares of the devices that were counted, with intervals that hold at their level at least.

It must not know what a value stands for: values are numbered 1..V in their order, and points are given. What is said is
of devices with a value; those with none of the values are in no number. All levels of a release are read together: Y
are the least-squares counts of the values (`hierarchy`), of all windows added up.

A mean m of values g_v in [0, 1] is read from T(m) = sum over v of (g_v - m) Y_v, whose mean is 0 at the true one, also
of a sample; the interval is {m : |T(m)| <= h(m)} (Fieller 1940), so that the number of devices need not be known. A
share is the mean of 1 in a region and 0 elsewhere. T(m) has the noises of Y, with weights; what n devices add to it by
their own coins is a sum of independent parts, `Coins`:

* sampled with the chance p, a device at the point g adds (its coin - p)(g - m): Var = p(1 - p) Q, Q the sum of
  (g - m)^2 over the devices;
* rounded at random to one of two points a step D apart, it adds p times its distance from them: Var <= p^2 D^2/4 n.

Q and n are at most the upper ends of intervals of them, each with a fiftieth of the error: n from the same counts, Q
from W = sum of (g_v - m)^2 Y_v, whose mean is p Q. Beside its noise W is a sum of parts from 0 to L, the largest
(g - m)^2; it falls short of p Q by more than sqrt(2 p L Q log(1/error)) with the error at most (Maurer 2003).

The q-quantile is the first value v with D_v = F(v) - q N >= 0, F the devices up to v and N all of them. D_v is T(q) of
the share up to v. So v belongs to the interval where neither D_v < 0 nor D_(v-1) >= 0 is proven, each with half of the
error: the true quantile fails only one test of each kind, and no simultaneous band is needed. Of a sample each test is
made as if D_v were 0: with more devices below v the first is passed the more surely, with more above it the second.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import scipy
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis.answers.half_widths import Coins, combined, half_width, width_with
from fleetcount_analysis.answers.noises import Parts
from fleetcount_analysis.answers.tails import tail_of
from fleetcount_analysis.answers.weighted_sums import values_join
from fleetcount_analysis.channels import whole_outputs
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.interval_words import level_text, number_text, numbers_text
from fleetcount_analysis.intervals import sampling_intervals

Floats = NDArray[np.float64]

_COUNT_ERROR: Final = Fraction(1, 50)
"""The fraction of the error for the upper end of the number of devices."""

_SURELY: Final = 0.9
"""A half width is at least so many times that of a normal, so what is nearer is inside without a computation."""

_SPREADS: Final = 64
"""For so many values at most the noise of a quantile is compared: between them it hardly differs."""

_PRECISION: Final = 1e-7
"""How far from an end its computation stops, in the range of the points; ends are moved outwards by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A mean or a share of the devices with a value, and its interval at `level`.

    `estimate` is None where no device is seen; it may lie outside the interval where hardly any is.
    """

    estimate: float | None
    low: float
    high: float
    level: Fraction

    def __str__(self) -> str:
        """Return the interval first, because it is what is known, then the estimate."""
        about = "none" if self.estimate is None else number_text(self.estimate, self.high - self.low)
        return f"{numbers_text(self.low, self.high)} ({level_text(self.level)} interval, estimate {about})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """The values `first` to `last`, one of which is the q-quantile at `level`, and the one that is most likely."""

    q: Fraction
    value: int
    first: int
    last: int
    level: Fraction

    def between(self, points: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
        """Return the ends of the interval of a number that devices round to the points of the values.

        A number is less than the distance of two points from that to which it is rounded.
        """
        return points[max(self.first - 2, 0)], points[min(self.last, len(points) - 1)]


def mean(
    design: Design, outputs: ArrayLike, points: Sequence[Fraction], level: Fraction, *, rounded: bool = False
) -> Average:
    """Return the mean of numbers of which value v stands for `points[v - 1]`.

    `outputs` are the opened numbers of a release (`Design.output_count`), or of one in each row, whose devices are then
    added up; of a sampling design no two rows may share a toss of the coin. `rounded` says that each device rounds its
    number at random to one of the two points beside it, so that it is right on average: the mean is then that of the
    numbers.

    Raises:
        ShapeError: not one point a value, at least 2 and in ascending order, or not `output_count` numbers in a row.
        RangeError: a level outside (0, 1 - 2e-8], answers that devices randomize, one-sided noise or none.
    """
    if len(points) != design.values or any(low >= high for low, high in pairwise(points)):
        raise ShapeError(f"{len(points)} points; allowed is one for each of {design.values} values, ascending")
    if len(points) == 1:
        raise ShapeError("1 point; allowed is 2 or more: of one the mean is known beforehand")
    widest = max(high - low for low, high in pairwise(points)) if rounded else 0
    return _placed(Counts.of(design, outputs), points, widest / (points[-1] - points[0]), level)


def total_of_numbers(
    design: Design, outputs: ArrayLike, points: Sequence[Fraction], level: Fraction, *, rounded: bool = False
) -> Average:
    """Return the sum of the numbers of all devices with a value, as `mean` has their mean; over windows added up.

    Raises:
        ShapeError, RangeError: as `mean`, or sampled answers, of which the mean and the number of devices are read.
    """
    if len(points) != design.values or any(low >= high for low, high in pairwise(points)):
        raise ShapeError(f"{len(points)} points; allowed is one for each of {design.values} values, ascending")
    counts = Counts.of(design, outputs)
    if design.channel[0] != 1:
        raise RangeError("release", "sampled answers", "direct answers; of a sample a mean is read")
    # Half widths are of weights about as large as those of counts, so that numbers are in units of the largest point.
    unit = max(map(abs, points)) or Fraction(1)
    step = float(max((high - low for low, high in pairwise(points)), default=0) / unit) if rounded else 0.0
    numbers = np.array([float(one / unit) for one in points])
    coins = _coins(1.0, 0.0, counts.most(level), 0.0, step) if step else None
    parts = _parts(design, counts.windows, _weights(design, numbers))
    about, reach = float(counts.cells @ numbers), width_with(parts, _kept(level, step > 0), coins) if parts else 0.0
    estimate, low, high = (float(unit) * one for one in (about, about - reach, about + reach))
    return Average(estimate=estimate, low=low, high=high, level=level)


def mean_of_bins(
    design: Design,
    outputs: ArrayLike,
    edges: Sequence[Fraction],
    level: Fraction,
    within: Sequence[Collection[int]] | None = None,
) -> Average:
    """Return the mean of numbers of which bin v holds those from `edges[v - 1]` to `edges[v]`.

    It is at least the mean of the lower edges and at most that of the upper ones, and so the interval is the wider by a
    bin the more exact the counts are. The estimate takes every number for the middle of its bin. `outputs` as of
    `mean`. With `within` bin v is these values, `within[v - 1]`, and the mean is of the devices with any of them.

    Raises:
        ShapeError, RangeError: as `mean`, with one edge more than there are bins; or a value outside 1..V or in two
            bins.
    """
    bins = [(value,) for value in range(1, design.values + 1)] if within is None else within
    if len(edges) != len(bins) + 1 or any(low >= high for low, high in pairwise(edges)):
        what = f"{design.values} values" if within is None else f"{len(bins)} bins"
        raise ShapeError(f"{len(edges)} edges; allowed is one more than the {what}, ascending")
    _check_apart([value for one in bins for value in one], design.values)
    counts = Counts.of(design, outputs)
    if len(edges) == 2:
        return Average(estimate=float(sum(edges) / 2), low=float(edges[0]), high=float(edges[1]), level=level)
    below, above = (_placed(counts, one, 0.0, level, within) for one in (edges[:-1], edges[1:]))
    both = [one.estimate for one in (below, above) if one.estimate is not None]
    return Average(estimate=sum(both) / 2 if both else None, low=below.low, high=above.high, level=level)


def share(
    design: Design, outputs: ArrayLike, cells: Collection[int], level: Fraction, within: Collection[int] | None = None
) -> Average:
    """Return the share of devices whose value is among `cells`, of those that have a value; between 0 and 1.

    With `within` of those whose value is among these, which hold all `cells`. `outputs` as of `mean`.

    Raises:
        ShapeError, RangeError: as `mean`, or a cell outside 1..V.
    """
    among = range(1, design.values + 1) if within is None else within
    if wrong := [cell for cell in (*cells, *among) if not 1 <= cell <= design.values]:
        raise RangeError("cell", min(wrong), f"1 to {design.values}")
    if outside := set(cells) - set(among):
        raise RangeError("cell of a share", min(outside), "one of those that it is a share of")
    counts, inside, known = Counts.of(design, outputs), np.zeros(design.values), np.zeros(design.values)
    inside[[cell - 1 for cell in cells]] = 1
    known[[cell - 1 for cell in among]] = 1
    if (inside == known).all() or not inside.any():
        sure = float(inside.any())
        return Average(estimate=sure, low=sure, high=sure, level=level)
    return counts.average(inside, 0.0, level, known)


def quantile(design: Design, outputs: ArrayLike, q: Fraction, level: Fraction) -> Quantile:
    """Return the first value with at least a share q of the devices at or below it, values being in order.

    `outputs` as of `mean`.

    Raises:
        ShapeError, RangeError: as `mean`, or q outside (0, 1).
    """
    if not 0 < q < 1:
        raise RangeError("q", q, "above 0 and below 1")
    counts = Counts.of(design, outputs)
    above = np.cumsum(counts.cells) - float(q) * counts.cells.sum()
    most = counts.most(level) if design.channel[0] < 1 else 0
    last = next((v for v in range(design.values, 1, -1) if not counts.proven(-above[v - 2], v - 1, q, level, most)), 1)
    first = next(
        v for v in range(1, last + 1) if v == design.values or not counts.proven(above[v - 1], v, q, level, most)
    )
    # The least of the loss whose true minimum the quantile is: the sum of D_w over w < v.
    loss = np.concatenate([[0.0], np.cumsum(above[:-1])])
    return Quantile(q=q, value=int(np.argmin(loss)) + 1, first=first, last=last, level=level)


def quantile_sd(design: Design, devices: int, q: Fraction = Fraction(1, 2)) -> float:
    """Return the standard deviation to expect for the q-quantile of so many numbers, evenly spread over a range of 1.

    They are rounded to the V points of a direct count. As many of them lie below a share of the range as that share,
    so the noise of D over `devices` is that of the quantile (the largest of some 64 values), to which comes the
    distance of points, 1/(12(V-1)^2). For planning, without data.

    Raises:
        RangeError: no device, q outside (0, 1), answers that are not direct, one-sided noise or none.
        ShapeError: a single value.
    """
    if devices < 1:
        raise RangeError("devices", devices, "1 or more")
    if not 0 < q < 1:
        raise RangeError("q", q, "above 0 and below 1")
    if design.values < 2:
        raise ShapeError("1 point; allowed is 2 or more: of one the quantiles are known beforehand")
    _check_read(design)
    if design.channel[0] != 1:
        raise RangeError("release", "sampled answers", "direct answers")
    steps = design.values - 1
    values = range(1, design.values, -(-steps // _SPREADS))
    widest = max(value_test(design, 1, value, q, Fraction(1, 2), 0).spread for value in values)
    return math.hypot(widest / devices, 1 / (math.sqrt(12) * steps))


def _check_apart(cells: Sequence[int], values: int) -> None:
    """Refuse a cell that is no value, and one that is there twice."""
    if wrong := [cell for cell in cells if not 1 <= cell <= values]:
        raise RangeError("cell", min(wrong), f"1 to {values}")
    if len(set(cells)) != len(cells):
        twice = next(cell for place, cell in enumerate(cells) if cell in cells[:place])
        raise RangeError("cell in two bins", twice, "a cell in one")


def _check_read(design: Design) -> None:
    """Refuse a release whose cells are no counts with two-sided noise."""
    if design.outputs is not Outputs.CELLS or isinstance(design.noise, OneSidedNoise) or not design.noised:
        what = f"{design.name} answers" if design.outputs is not Outputs.CELLS else f"noise {design.noise.name}"
        raise RangeError("release", what, "direct or sampled answers with two-sided noise")


def _placed(
    counts: "Counts",
    points: Sequence[Fraction],
    step: float | Fraction,
    level: Fraction,
    within: Sequence[Collection[int]] | None = None,
) -> Average:
    """Return the mean of points, which `step` is a part of the range of; `within` has the values of every point."""
    start, width = points[0], points[-1] - points[0]
    places, known = np.array([float((one - start) / width) for one in points]), None
    if within is not None:
        of_points, (places, known) = places, np.zeros((2, counts.design.values))
        for place, cells in zip(of_points, within, strict=True):
            chosen = [cell - 1 for cell in cells]
            places[chosen], known[chosen] = place, 1
    found = counts.average(places, float(step), level, known)
    low, high = (float(start + width * Fraction(one)) for one in (found.low, found.high))
    about = None if found.estimate is None else float(start) + float(width) * found.estimate
    return Average(estimate=about, low=low, high=high, level=level)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Least-squares counts of the values in all windows together, float64 (V,), still of the sample."""

    design: Design
    cells: Floats
    windows: int

    @classmethod
    def of(cls, design: Design, outputs: ArrayLike) -> "Counts":
        _check_read(design)
        rows = np.atleast_2d(whole_outputs(outputs))
        if rows.ndim != 2 or rows.shape[1] != design.output_count or not rows.size:
            raise ShapeError(f"a release has shape {rows.shape}; allowed is {design.output_count} numbers a row")
        starts, summed = design.levels.starts(), rows.sum(axis=0).astype(np.float64)
        opened = [summed[low:high] for low, high in pairwise(starts)]
        return cls(design=design, cells=values_join(design).cells(opened), windows=len(rows))

    def most(self, level: Fraction) -> int:
        """Return the upper end of the number of devices, with its part of the error; up to 1 % more.

        Rounded to three digits, so that half widths that were computed serve again.
        """
        most = _most_devices(self.design, self.windows, float(self.cells.sum()), (1 - level) * _COUNT_ERROR)
        grain = int(10 ** max(0, len(str(most)) - 3))
        return -(-most // grain) * grain

    def average(self, places: Floats, step: float, level: Fraction, known: Floats | None = None) -> Average:
        """Return the mean of places from 0 to 1, (V,) float64, rounded to within `step`: its interval by `T`.

        `known` is 1 for the values whose mean it is, all without it, and 0 elsewhere.
        """
        among = np.ones(self.design.values) if known is None else known
        total, top = float(self.cells @ among), float(self.cells @ places)
        low, high = _passing(self.outside(places, step, level, known), top / total if total else math.inf)
        return Average(estimate=top / total if total > 0 else None, low=low, high=high, level=level)

    def outside(
        self, places: Floats, step: float, level: Fraction, known: Floats | None = None
    ) -> Callable[[float], float]:
        """Return |T(m)| - h(m) as a function of m: the interval of the mean is where it is at most 0."""
        rate, powers = (
            float(self.design.channel[0]),
            [places**power * (1 if known is None else known) for power in range(3)],
        )
        kept = _kept(level, (rate < 1) + (step > 0))
        most = self.most(level) if step else 0
        weights = [_weights(self.design, one) for one in powers]
        total, top, square = (float(self.cells @ one) for one in powers)

        def of(mean: float) -> float:
            coins = None
            if rate < 1 or step:
                by, seen = (mean**2, -2 * mean, 1), square - 2 * mean * top + mean**2 * total
                of_squares = () if rate == 1 else self._combined(weights, by)
                squares = 0.0 if rate == 1 else _most_squares(seen, of_squares, rate, mean, level)
                coins = _coins(rate, squares, most, mean, step)
            return abs(top - mean * total) - width_with(self._combined(weights, (-mean, 1, 0)), kept, coins)

        return of

    def _combined(self, weights: Sequence[Sequence[Floats]], by: Sequence[float]) -> Parts:
        """Return the noises of several sums that are added up, each as often as `by` says."""
        levels = zip(*weights, strict=True)
        mixed = [np.asarray(np.tensordot(by, np.stack(one), axes=1), dtype=np.float64) for one in levels]
        return _parts(self.design, self.windows, mixed)

    def proven(self, above: float, value: int, q: Fraction, level: Fraction, most: int) -> bool:
        """Return whether D < 0 is proven of a value by its estimate (and D >= 0 by its negative)."""
        if above >= 0:
            return False
        test = value_test(self.design, self.windows, value, q, level, most)
        if -above <= _SURELY * test.spread * test.normal:
            return False
        # Cantelli's inequality proves it without a law.
        return -above > test.spread * math.sqrt(2 / test.error) or -above > test.reach


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueTest:
    """What D of one value is tested by: its noises and coins, and the level."""

    parts: Parts
    coins: Coins | None
    level: Fraction

    @cached_property
    def spread(self) -> float:
        """The largest standard deviation of the estimate of D."""
        noise = sum(often * weight**2 * law.variance for weight, often, law in self.parts)
        return math.sqrt(noise + (0.0 if self.coins is None else self.coins.variance))

    @property
    def error(self) -> float:
        """The error of both sides."""
        return 2 * tail_of(self.level)

    @cached_property
    def normal(self) -> float:
        """The half width of a normal, in standard deviations."""
        return -float(scipy.special.ndtri(self.error / 2))

    @cached_property
    def reach(self) -> float:
        """The half width."""
        return width_with(self.parts, self.level, self.coins)


@lru_cache(maxsize=1 << 11)
def value_test(design: Design, windows: int, value: int, q: Fraction, level: Fraction, most: int) -> ValueTest:
    """Return the test of D of a value of a release, the same for all numbers that are opened."""
    parts = _parts(design, windows, _weights(design, np.where(np.arange(design.values) < value, 1.0, 0.0) - float(q)))
    rate = float(design.channel[0])
    if rate == 1:
        return ValueTest(parts=parts, coins=None, level=level)
    # D is no whole number, and next to 0 less than 1 from it.
    coins = _coins(rate, most * float(q * (1 - q)) + 1, 0, float(q), 0.0)
    return ValueTest(parts=parts, coins=coins, level=_kept(level, 1))


def _kept(level: Fraction, ends: int) -> Fraction:
    """Return the level of a test beside which so many upper ends have their part of the error."""
    return 1 - (1 - level) * (1 - ends * _COUNT_ERROR)


def _coins(rate: float, squares: float, devices: int, mean: float, step: float) -> Coins:
    """Return the bounds of what sampling and rounding add to T, places being from 0 to 1; `squares` is Q."""
    furthest, rounded = max(mean, 1 - mean), rate**2 * step**2 / 4
    return Coins(
        variance=rate * (1 - rate) * squares + devices * rounded,
        deviation=math.sqrt(rate * (1 - rate) * furthest**2 + rounded),
        largest=max((1 - rate) * furthest + step, rate * furthest if rate < 1 else 0.0),
    )


def _most_squares(sampled: float, parts: Parts, rate: float, mean: float, level: Fraction) -> float:
    """Return the upper end of Q from W, half of its error being for the noise and half for the coins."""
    error = (1 - level) * _COUNT_ERROR
    largest, log = max(mean, 1 - mean) ** 2, math.log(2 / error)
    seen = max(0.0, sampled + half_width(parts, 1 - error))
    root = math.sqrt(2 * rate * largest * log)
    return ((root + math.sqrt(root**2 + 4 * rate * seen)) / (2 * rate)) ** 2


def _weights(design: Design, sums: Floats) -> list[Floats]:
    """Return the weight of every opened number in a sum of counts of the values (`ValuesJoin.weights`)."""
    return values_join(design).weights(sums)


def _parts(design: Design, windows: int, weights: Sequence[Floats]) -> Parts:
    return combined([(weights, windows)], values_join(design).laws)


@lru_cache(maxsize=256)
def _everything(design: Design, windows: int) -> Parts:
    """Return the noises in the number of all devices."""
    return _parts(design, windows, _weights(design, np.ones(design.values)))


def _most_devices(design: Design, windows: int, counted: float, error: Fraction) -> int:
    """Return the upper end of the number of devices, of which so many are counted; it errs with `error` at most."""
    parts, rate = _everything(design, windows), design.channel[0]
    if rate == 1:
        return max(0, math.floor(counted + half_width(parts, 1 - 2 * error)))
    sampled = max(0, math.floor(counted + half_width(parts, 1 - error)))
    return sampling_intervals([sampled], rate, None, 1, 1 - error)[0][1]


def _passing(outside: Callable[[float], float], centre: float) -> tuple[float, float]:
    """Return the ends of the means from 0 to 1 where `outside` is at most 0, moved outwards by the precision.

    |T| is linear on either side of its zero, the `centre`, and h is convex, so the difference crosses 0 once at most on
    either side. Where nothing passes, the nearer end of the range stands for the interval.
    """
    ends = (outside(0.0), outside(1.0))
    if not 0 < centre < 1:
        if min(ends) > 0:
            nearest = 0.0 if ends[0] < ends[1] else 1.0
            return nearest, nearest
        centre = 0.0 if ends[0] <= 0 else 1.0
    low = 0.0 if ends[0] <= 0 else _crossing(outside, 0.0, centre) - _PRECISION
    high = 1.0 if ends[1] <= 0 else _crossing(outside, centre, 1.0) + _PRECISION
    return max(0.0, low), min(1.0, high)


def _crossing(outside: Callable[[float], float], low: float, high: float) -> float:
    return float(scipy.optimize.brentq(outside, low, high, xtol=_PRECISION))
