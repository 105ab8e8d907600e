"""Interval ends of sums over cells and windows and of differences of two such sums, for many of them at once.

It must not know a table: its arguments are sums of opened numbers. No other module may choose the law of a sum.

* Direct: the sum of K = aggregators * cells * windows noises, exact.
* Sampling, every window with its own unit of the coin: Bin(n, p) and K noises, exact. With several windows of one unit
  a device counted in b of them counts b times with one toss, so that Var = q (sum of b^2) <= q m n for at most m
  windows. The widest law is used, m Bin(n/m, p), that of devices that stay in the region all the time.
* Sampling, difference of n and n': Var = q (n + n' - 2 n_both) + noise, and n_both is not public: 0 is the widest. The
  spread increases with n + n'. An upper end for it comes from the same release, with a twentieth of the error, and both
  tests are made at that end, each stricter by the error spent (Berger and Boos 1994).

  That the widest law is enough, here and in the sum before, is measured at every corner and not proven.
* With a total: a sum joined with it holds the devices of its cells and a combination of noises with weights
  (`Joined`), whoever is elsewhere. Of direct answers its half width is that of `half_widths.half_width`; of sampled
  ones the tests are those above, by `tails.JoinedLaw`. Both are never too narrow.
* Responses: a region of r cells is one value with P' = P + (r-1) Q and Q' = r Q (places), or r N bits (vectors);
  `response_tails` inverts it. Differences of responses combine two intervals: in the same windows each with half the
  error; in different windows, which are independent, both at the level, by the root of the sum of the squared distances
  from the estimates to their ends (Zou and Donner 2008), which is measured and not proven.

Source: docs/privacy.md, "The release that is sound" and "Response and direct windows".
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeVar, cast

import numpy as np
import scipy
from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import OneSidedNoise
from numpy.typing import NDArray

from fleetcount_analysis.answers.half_widths import half_width
from fleetcount_analysis.answers.hierarchy import ends_of, whole_ends
from fleetcount_analysis.answers.noises import Parts, ScaledNoise, noise_total, variance_of
from fleetcount_analysis.answers.tails import JoinedLaw, SumLaw, first_true, sampled_high, sampled_low, tail_of
from fleetcount_analysis.channels import LARGEST_COUNT, AnySum
from fleetcount_analysis.errors import RangeError, TooLargeError
from fleetcount_analysis.intervals import channel_ends
from fleetcount_analysis.one_sided_sums import OneSidedSum
from fleetcount_analysis.response_tails import ResponseChannel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Ends = tuple[Integers, Integers]
_Column = TypeVar("_Column", Floats, Integers)

_TOTAL_ERROR: Final = 0.05
"""The fraction of each side's error for the upper end of n + n'."""
_IGNORED: Final = 1e-6
"""The fraction of each side's error for noise so large that it is not summed; it counts as an error."""
_MOST_TERMS: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """The least-squares `estimates` of R sums, of who is in the sample, and the combination of noises in each of them.

    `estimates` are float64 (R,).
    """

    estimates: Floats
    parts: Parts

    @property
    def variance(self) -> float:
        """The variance of the noise in each sum."""
        return variance_of(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums of opened numbers of R regions of one form, `cells` cells in each of `windows` windows: int64 of shape (R,).

    `devices` are the sums of the noised numbers of devices of those windows if the design opens them, else None. No
    device is counted in more than `together` windows of one unit of the coin. `joined` has their estimates and noises
    where a total was opened beside the cells. `told_as` says as which cell those of each region are told, where not all
    are told alike (`Design.told_as`).
    """

    values: Integers
    cells: int
    windows: int
    together: int = 1
    devices: Integers | None = None
    joined: Joined | None = None
    told_as: Integers | None = None

    @property
    def terms(self) -> int:
        """The number of published counts in each sum."""
        return self.cells * self.windows


def told_as(design: Design, regions: Iterable[Iterable[int]]) -> Integers | None:
    """Return as which cell the cells of every region are told, None where all of a design are told alike.

    Raises:
        RangeError: cells of a region that are told in different ways: each has an error of its own kind.
    """
    if len(set(design.told_as)) == 1:
        return None
    found = [{design.told_as[cell - 1] for cell in cells} for cells in regions]
    for ways in found:
        if len(ways) > 1:
            raise RangeError("cells of a sum", f"{len(ways)} ways to be told", "cells that are protected alike")
    return np.array([min(ways) for ways in found], dtype=np.int64)


def _apart(design: Design, sums: Sums, read: Callable[[Design, Sums], tuple[_Column, ...]]) -> tuple[_Column, ...]:
    """Return what `read` says of sums whose cells are told alike, put together for all."""
    if sums.told_as is None:
        return read(design, sums)
    ways, place = np.unique(sums.told_as, return_inverse=True)
    parts = [place == way for way in range(ways.size)]
    columns = [
        read(
            design.all_told_as(cell),
            replace(sums, values=sums.values[part], devices=cast("Integers", sums.devices)[part], told_as=None),
        )
        for cell, part in zip(ways.tolist(), parts, strict=True)
    ]
    order = np.argsort(np.concatenate([np.flatnonzero(part) for part in parts]))
    return tuple(cast("_Column", np.concatenate(one)[order]) for one in zip(*columns, strict=True))


def estimates_of(design: Design, sums: Sums) -> Floats:
    """Return the unbiased estimates of the sums of true counts, float64 (R,); a device counts once for each window."""
    return _apart(design, sums, lambda one, some: (_estimates(one, some),))[0]


def _estimates(design: Design, sums: Sums) -> Floats:
    hit, miss = (float(chance) for chance in design.channel)
    if sums.joined is not None:
        return sums.joined.estimates / hit
    mean = design.aggregators * sums.terms * design.noise.mean
    devices = np.zeros(sums.values.shape) if sums.devices is None else sums.cells * miss * sums.devices
    return np.asarray((sums.values - mean - devices) / (hit - miss), dtype=np.float64)


def sum_ends(design: Design, sums: Sums, level: Fraction) -> Ends:
    """Return the ends of the interval of every sum, whole numbers of at least 0.

    Raises:
        RangeError: an output beyond 10^12 in size, or a level outside (0, 1 - 2e-10].
        TooLargeError: noises so wide that the exact tails do not fit into memory.
    """
    low, high = _apart(design, sums, lambda one, some: _sum_ends(one, some, level))
    return low, high


def _sum_ends(design: Design, sums: Sums, level: Fraction) -> Ends:
    tail = tail_of(level)
    _check_size(sums.values)
    if sums.joined is not None:
        low, high = ends_of(sums.joined.estimates, sums.joined.parts, level, design.channel[0], sums.together)
    elif isinstance(design.noise, OneSidedNoise):
        low, high = _one_sided(design.noise, sums.values, design.aggregators * sums.terms, 2 * tail)
    elif design.outputs is not Outputs.CELLS:
        channel, devices, total = _response_channel(design, sums, tail)
        low, high = channel_ends(sums.values, devices, channel, total, level)
    elif design.channel[0] == 1:
        reach = noise_total(design.noise, design.aggregators * sums.terms).central_reach(tail)
        low, high = sums.values - reach, sums.values + reach
    else:
        law = _sampled(design, sums)
        low, high = sampled_low(law, sums.values, tail), sampled_high(law, sums.values, tail)
    return np.maximum(low, 0), np.maximum(high, 0)


def difference_ends(
    design: Design,
    later: Sums,
    earlier: Sums,
    together: tuple[int, int],
    level: Fraction,
    stayed: int = 0,
    *,
    apart: bool = True,
    joined: Joined | None = None,
) -> Ends:
    """Return the ends of the interval of every difference, later less earlier; they may be negative.

    `together` is the largest number of windows of one unit in one of the two regions, and in both together; `stayed` a
    number of devices known to be counted in both, which a shared toss cancels (0 is always valid). `apart` means that
    the regions have no window in common. `joined` is the difference of sums joined with a total.

    Raises:
        RangeError, TooLargeError: as `sum_ends`.
    """
    tail, values = tail_of(level), later.values - earlier.values
    for one in (later, earlier):
        _check_size(one.values)
    if joined is not None and design.channel[0] == 1:
        return whole_ends(joined.estimates, half_width(joined.parts, level))
    if design.outputs is not Outputs.CELLS:
        return _response_difference(design, (later, earlier), level, apart=apart)
    if isinstance(design.noise, OneSidedNoise):
        return _one_sided_difference(design, values, later.terms, earlier.terms, tail)
    noise = noise_total(design.noise, design.aggregators * (later.terms + earlier.terms))
    if design.channel[0] == 1:
        reach = noise.central_reach(tail)
        return values - reach, values + reach
    both = Sums(
        values=later.values + earlier.values, cells=1, windows=later.terms + earlier.terms, together=together[1]
    )
    most = sampled_high(_sampled(design, both), both.values, _TOTAL_ERROR * tail)
    step = together[0]
    devices = -(-np.maximum(most - 2 * stayed, 0) // step)
    steps, rate, left = (step, -step), design.channel[0], tail * (1 - _TOTAL_ERROR)
    if joined is not None:
        law = JoinedLaw(steps=steps, sampling_rate=rate, parts=joined.parts, tail=left)
        return _difference_search(law, joined.estimates, devices, step, left)
    return _difference_search(SumLaw(steps=steps, sampling_rate=rate, noise=noise), values, devices, step, left)


def _response_difference(design: Design, pair: tuple[Sums, Sums], level: Fraction, *, apart: bool) -> Ends:
    """Return the ends of the difference of two sums of randomized answers, from the intervals of both."""
    if not apart:
        (low, high), (below, above) = (sum_ends(design, one, 1 - (1 - level) / 2) for one in pair)
        return low - above, high - below
    tail = tail_of(level)
    (first, lower, upper), (second, under, over) = (_distances(design, one, level, tail) for one in pair)
    down, up = np.hypot(lower, over), np.hypot(upper, under)
    return np.floor(first - second - down).astype(np.int64), np.ceil(first - second + up).astype(np.int64)


def _distances(design: Design, sums: Sums, level: Fraction, tail: float) -> tuple[Floats, Floats, Floats]:
    found = _apart(design, sums, lambda one, some: _distances_alike(one, some, level, tail))
    return found[0], found[1], found[2]


def _distances_alike(design: Design, sums: Sums, level: Fraction, tail: float) -> tuple[Floats, Floats, Floats]:
    """Return the estimates and the distances from them to the lower and the upper end, at least z standard errors.

    The least is needed because an end truncated at 0 or at all devices is closer than the estimate's error.
    """
    estimates, (low, high) = estimates_of(design, sums), sum_ends(design, sums, level)
    channel, devices, _ = _response_channel(design, sums, tail)
    total = np.maximum(devices, 0)
    inside, hit, miss = np.clip(estimates, 0, total), float(channel.hit), float(channel.miss)
    noise = float(channel.weight) ** 2 * channel.cell.variance + miss**2 * channel.others.variance
    variance = inside * hit * (1 - hit) + (total - inside) * miss * (1 - miss) + noise
    least = -float(scipy.special.ndtri(tail)) * np.sqrt(variance) / (hit - miss)
    return estimates, np.maximum(estimates - low, least), np.maximum(high - estimates, least)


def _difference_search(
    law: SumLaw | JoinedLaw, sums: Integers | Floats, most: Integers, step: int, tail: float
) -> Ends:
    """Return the ends of the values step * d that pass both tests with `most` devices in total, at least |d|."""
    (values, held), place = np.unique(np.stack([sums, most]), axis=1, return_inverse=True)
    devices = held.astype(np.int64)

    def counts(d: Integers, rows: Integers) -> Integers:
        total = np.maximum(devices[rows], np.abs(d))
        total = total + (total + d) % 2
        return np.stack([(total + d) // 2, (total - d) // 2], axis=1)

    guess = np.rint(values / (step * float(law.sampling_rate))).astype(np.int64)
    start = np.full(values.shape, -4 * LARGEST_COUNT)
    low = first_true(lambda d, r: law.upper_tail(counts(d, r), values[r]) > tail, guess, start)
    past = first_true(lambda d, r: law.lower_tail(counts(d, r), values[r]) <= tail, guess, start)
    return ((low - 1) * step + 1)[place], ((past - 1) * step + (step - 1))[place]


def _sampled(design: Design, sums: Sums) -> SumLaw:
    """Return the widest law of sums that are joined with nothing."""
    noise = noise_total(design.noise, design.aggregators * sums.terms)
    return SumLaw(steps=(sums.together,), sampling_rate=design.channel[0], noise=noise)


def _one_sided(noise: OneSidedNoise, values: Integers, terms: int, error: float) -> Ends:
    """Return [Y - m, Y] for noise >= 0 and [Y, Y + m] for noise <= 0, m the upper quantile of the negative binomial."""
    reach = OneSidedSum(epsilon=noise.epsilon, terms=terms).reach_beyond(error)
    return (values - reach, values) if noise.direction == "up" else (values, values + reach)


def _one_sided_difference(design: Design, values: Integers, later: int, earlier: int, tail: float) -> Ends:
    """Return [D - m, D + m'] for sums of `later` and `earlier` counts, exact; m equals m' for equal numbers."""
    noise = cast("OneSidedNoise", design.noise)
    added, taken = (later, earlier) if noise.direction == "up" else (earlier, later)
    plus, minus = (OneSidedSum(epsilon=noise.epsilon, terms=design.aggregators * one) for one in (added, taken))
    return values - _difference_reach(plus, minus, tail), values + _difference_reach(minus, plus, tail)


def _difference_reach(added: OneSidedSum, taken: OneSidedSum, tail: float) -> int:
    """Return the largest m with P[A - B >= m] > tail, A and B independent sums of the two laws."""
    last = taken.reach_beyond(_IGNORED * tail)
    if last > _MOST_TERMS:
        raise TooLargeError(f"one-sided noise that spreads over {last} numbers; exact differences go to {_MOST_TERMS}")
    below = np.arange(last + 1)
    masses = np.exp(taken.log_mass(below))

    def likely(m: int) -> bool:
        return float(masses @ added.upper_tail(below + m)) + _IGNORED * tail > tail

    low, high = -last - 1, added.reach_beyond(_IGNORED * tail) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if likely(middle) else (low, middle)
    return low


def _response_channel(design: Design, sums: Sums, tail: float) -> tuple[ResponseChannel, Integers, AnySum]:
    """Return a region of randomized answers as one channel, the number of its devices or bits, and that number's noise.

    For positions it is one value with larger P and Q over the devices, for vectors r bits of each device.
    """
    hit, miss = design.channel
    noises, r = design.aggregators * sums.windows, sums.cells
    devices, weight = cast("Integers", sums.devices), Fraction(1)
    if design.form is AnswerForm.POSITION:
        hit, miss = hit + (r - 1) * miss, r * miss
        weight, others = 1 - miss, noise_total(design.noise, noises * (design.values + 1 - r))
        total = noise_total(design.noise, noises * (design.values + 1))
    else:
        devices = r * devices
        others = total = cast("AnySum", ScaledNoise(noise=noise_total(design.noise, noises), factor=r))
    cell = noise_total(design.noise, noises * r)
    tolerance = max(1e-4 * tail, 1e-14)
    channel = ResponseChannel(hit=hit, miss=miss, weight=weight, cell=cell, others=others, tolerance=tolerance)
    return channel, devices, total


def _check_size(values: Integers) -> None:
    size = int(np.max(np.abs(values), initial=0))
    if size > LARGEST_COUNT:
        raise RangeError("sum of outputs", f"{size} in size", f"-{LARGEST_COUNT} to {LARGEST_COUNT}")
