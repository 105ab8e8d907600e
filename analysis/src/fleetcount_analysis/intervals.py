"""The intervals of published counts, from the exact channel or in closed form.

It must not change an estimate, and its results are functions of the public release alone, so that every aggregator
computes the same ones.

An interval inverts two one-sided tests at t = (1 - level)/2 each (docs/privacy.md, "The release that is sound"):
{ n >= 0 : P_n[Y >= y] > t and P_n[Y <= y] > t }. Both tails are monotone in n, so a bracketing search finds both ends.
Every true count is inside with probability at least the level. If no n >= 0 passes (for an output far below zero), the
interval is the nearest possible count, (0, 0) or (upper_limit, upper_limit).
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fleetcount_analysis.channels import LARGEST_COUNT, AnySum, NoiseSize, SamplingChannel, noise_sum, whole_outputs
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.estimates import ResponseLaw, response_channel, response_participants
from fleetcount_analysis.one_sided_sums import OneSidedSum
from fleetcount_analysis.response_tails import ResponseChannel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Score = Callable[[Integers, Integers], Floats]

_UNBOUNDED = 1 << 60
_NEWTON_TURNS = 8
_LARGEST_ESTIMATE = 10**15

_REGION_ERROR = 0.01
"""The fraction of the error for the region of the number of devices (Berger and Boos 1994); the rest is for the tails.
"""

_WHOLE_REGION = 24
"""Up to this reach on either side every number of a region is tried; of a wider region five numbers."""

_SLACK = 1e-4
"""The tails of a response are computed to this fraction of the error and rounded up, so that intervals get wider."""


def sampling_intervals(
    difference: Sequence[int],
    sampling_rate: Fraction,
    noise: NoiseSize,
    aggregators: int,
    level: Fraction,
    upper_limit: int | None = None,
) -> list[tuple[int, int]]:
    """Return the exact two-sided interval of the true count of every cell, from the raw noised difference Y.

    Computed by every aggregator for the release record, and by readers of it. Counts in devices; `upper_limit` is a
    public bound on a count. `noise` None is the `exact` release kind, which has no noise. Source:
    docs/privacy.md, "The release that is sound".

    Raises:
        RangeError: an output above 10^12 in size, a rate outside (0, 1], a level outside (0, 1), no aggregator.
    """
    tail = _tail_of(level)
    summed = noise_sum(noise, _checked_aggregators(aggregators))
    return _channel_intervals(difference, SamplingChannel(sampling_rate=sampling_rate, noise=summed), tail, upper_limit)


def sum_interval(
    difference: Sequence[int],
    sampling_rate: Fraction,
    noise: NoiseSize,
    aggregators: int,
    level: Fraction,
    upper_limit: int | None = None,
) -> tuple[int, int]:
    """Return the exact interval of the sum of the true counts of the given cells.

    A device is in one cell, so the sum of the outputs is Bin(sum of counts, p) with one noise for each cell and
    aggregator: the same channel with more noises. Narrower than the sum of the cells' intervals.

    Raises:
        RangeError: as `sampling_intervals`.
        TooLargeError: more than 256 noises with an epsilon so small that the reach of their sum is above 2^21.
        ShapeError: no cell.
    """
    if len(difference) == 0:
        raise ShapeError("the sum has 0 cells; allowed is 1 or more")
    terms = _checked_aggregators(aggregators) * len(difference)
    channel = SamplingChannel(sampling_rate=sampling_rate, noise=noise_sum(noise, terms))
    return _channel_intervals([sum(difference)], channel, _tail_of(level), upper_limit)[0]


def direct_intervals(
    outputs: Sequence[int], noise: NoiseSize, aggregators: int, level: Fraction
) -> list[tuple[int, int]]:
    """Return the exact interval of every cell of a `direct` release: Y = n + noise, p = 1.

    Raises:
        RangeError: as `sampling_intervals`.
    """
    return sampling_intervals(outputs, Fraction(1), noise, aggregators, level)


def response_intervals(
    outputs: Sequence[int],
    response: ResponseLaw,
    noise: NoiseSize,
    aggregators: int,
    level: Fraction,
) -> list[tuple[int, int]]:
    """Return the interval of cells 1..V of a `response` release, from the noised counts of the outputs 0..V.

    With P = P[v | v], Q = P[v | other], N the number of devices, known as the sum T of all outputs with the noises in
    it, the estimate nhat = (Y_v - Q T)/(P - Q) has, at true count n, the variance

        [ n P(1-P) + (N-n) Q(1-Q) + K VarZ ((1-Q)^2 + V Q^2) ] / (P-Q)^2

    because the noise of output v has weight 1-Q and that of each of the V others -Q. The interval inverts the exact law
    of Y_v - Q T (`response_tails`). N affects only its spread: n is inside if it passes both tests for some N in a
    region that misses N with probability (1 - level)/200 at most, each test stricter by half as much (Berger and Boos
    1994). If every number of the region is tried (`_WHOLE_REGION`), the true count is inside with probability at least
    the level, for all n and N; with five numbers of a wider region that is measured, not proven.

    Raises:
        RangeError: as `sampling_intervals`.
        ShapeError: the outputs are not V+1 numbers.
    """
    response_participants(outputs, response)
    low, high = response_ends(_checked_outputs(outputs), response, noise, aggregators, level)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def response_ends(
    outputs: Integers, response: ResponseLaw, noise: NoiseSize, aggregators: int, level: Fraction
) -> tuple[Integers, Integers]:
    """Return the ends of `response_intervals` for many releases at once: (..., V+1) outputs give (..., V) int64 ends.

    Raises:
        RangeError: as `sampling_intervals`.
    """
    hit, miss = response_channel(response)
    terms, tail = _checked_aggregators(aggregators), _tail_of(level)
    noises = [noise_sum(noise, terms * count) for count in (1, response.values, response.values + 1)]
    tolerance = _tolerance_of(tail)
    channel = ResponseChannel(
        hit=hit, miss=miss, weight=1 - miss, cell=noises[0], others=noises[1], tolerance=tolerance
    )
    return _response_ends(outputs[..., 1:], outputs.sum(axis=-1, keepdims=True), channel, noises[2], tail)


def channel_ends(
    outputs: Integers, participants: Integers, channel: ResponseChannel, noise: AnySum, level: Fraction
) -> tuple[Integers, Integers]:
    """Return the ends for numbers that a `ResponseChannel` describes, for example the sums of a region's outputs.

    `participants` are the noised numbers of devices (or bits) behind them, with `noise` on each. Both are
    broadcast; the ends are int64 of the common shape.

    Raises:
        RangeError: as `sampling_intervals`.
    """
    return _response_ends(outputs, participants, channel, noise, _tail_of(level))


def unary_ends(
    bits: Integers,
    participants: Integers,
    hit: Fraction,
    miss: Fraction,
    noise: NoiseSize,
    aggregators: int,
    level: Fraction,
) -> tuple[Integers, Integers]:
    """Return the ends of the intervals of cells whose bits are randomized one by one (OUE, vector Mangat with P = 1).

    Of many releases at once, in the shape of the bits, against which `participants` are broadcast; each has one noise
    of each aggregator. The law is inverted as in `response_intervals`; the variance of the noise is K VarZ (1 + Q^2).

    Raises:
        RangeError: as `sampling_intervals`, or not 0 <= Q < P <= 1.
    """
    summed, tail = noise_sum(noise, _checked_aggregators(aggregators)), _tail_of(level)
    tolerance = _tolerance_of(tail)
    channel = ResponseChannel(hit=hit, miss=miss, weight=Fraction(1), cell=summed, others=summed, tolerance=tolerance)
    return _response_ends(bits, participants, channel, summed, tail)


def one_sided_intervals(
    outputs: Sequence[int], epsilon: Fraction, aggregators: int, level: Fraction
) -> list[tuple[int, int]]:
    """Return [Y - m, Y] for every output of k one-sided geometric noises >= 0 (AGeo): the upper end is never wrong.

    m is the smallest number with P[noise > m] <= 1 - level; the noise is negative binomial with k successes and ratio
    q = exp(-epsilon). Ends are clamped at 0. Source: docs/privacy.md, "What is promised".

    Raises:
        RangeError: as `sampling_intervals`, or epsilon is not positive.
    """
    _tail_of(level)
    if epsilon <= 0:
        raise RangeError("epsilon", epsilon, "above 0")
    noise = OneSidedSum(epsilon=epsilon, terms=_checked_aggregators(aggregators))
    reach = noise.reach_beyond(float(1 - level))
    values = _checked_outputs(outputs)
    return _whole(values - reach, values, None)


def simultaneous_level(level: Fraction, cells: int) -> Fraction:
    """Return the level of each of `cells` intervals with which all hold at once with `level` (Bonferroni).

    Raises:
        RangeError: the level is outside (0, 1), or there is no cell.
    """
    _tail_of(level)
    if cells < 1:
        raise RangeError("number of cells", cells, "1 or more")
    return 1 - (1 - level) / cells


def _channel_intervals(
    outputs: Sequence[int], channel: SamplingChannel, tail: float, upper_limit: int | None
) -> list[tuple[int, int]]:
    if upper_limit is not None and not 0 <= upper_limit <= LARGEST_COUNT:
        raise RangeError("upper limit", upper_limit, f"0 to {LARGEST_COUNT}")
    values, place = np.unique(_checked_outputs(outputs), return_inverse=True)
    if values.size and int(np.max(np.abs(values))) > channel.sampling_rate * _LARGEST_ESTIMATE:
        raise RangeError("estimate", f"above {_LARGEST_ESTIMATE} in size", f"up to {_LARGEST_ESTIMATE}")
    if channel.sampling_rate == 1:
        reach = channel.noise.central_reach(tail)
        low, high = values - reach, values + reach
    else:
        low, high = _inverted(values, channel, tail, _closed_form(values, channel, tail))
    return _whole(low[place], high[place], upper_limit)


def _whole(low: NDArray[Any], high: NDArray[Any], upper_limit: int | None) -> list[tuple[int, int]]:
    """Return whole ends inside [0, upper_limit] as Python integers."""
    limit = np.iinfo(np.int64).max // 2 if upper_limit is None else upper_limit
    ends = (np.clip(end, 0, limit).astype(np.int64).tolist() for end in (low, high))
    return list(zip(*ends, strict=True))


def _inverted(
    values: Integers, channel: SamplingChannel, tail: float, near: tuple[Floats, Floats]
) -> tuple[Integers, Integers]:
    """Return the first n whose upper tail exceeds `tail` and the last n whose lower tail does, searched from `near`.

    The normal quantile of a tail is nearly linear in n, with slope 2z over the width of the interval.
    """
    z = -float(scipy.special.ndtri(tail))
    slope = 2 * z / np.maximum(near[1] - near[0], 1)

    def upper(n: Integers, rows: Integers) -> Floats:
        return np.asarray(scipy.special.ndtri(channel.upper_tail(n, values[rows])) + z, dtype=np.float64)

    def lower(n: Integers, rows: Integers) -> Floats:
        return np.asarray(-z - scipy.special.ndtri(channel.lower_tail(n, values[rows])), dtype=np.float64)

    # An n passes the upper test where the score is above 0, and fails the lower one where the score is 0 or more.
    low = _first_at_least(upper, near[0], slope, strictly=True)
    return low, _first_at_least(lower, near[1], slope, strictly=False) - 1


def _first_at_least(score: Score, near: Floats, slope: Floats, *, strictly: bool) -> Integers:
    """Return, for every row, the smallest n >= 0 whose score, increasing in n, is at least 0 (above 0 if `strictly`).

    `score(n, rows)` is called for rows without a result only. Newton steps of fixed slope, rounded to the far side of
    the root, narrow the bracket to width 1 in three or four iterations; after eight a row is bisected.
    """
    low = np.full(near.size, -1, dtype=np.int64)
    high = np.full(near.size, _UNBOUNDED, dtype=np.int64)
    rows, n = np.arange(near.size), np.clip(np.rint(near), 0, _UNBOUNDED // 2).astype(np.int64)
    turn = 0
    while rows.size:
        value = score(n, rows)
        true = value > 0 if strictly else value >= 0
        high[rows[true]], low[rows[~true]] = n[true], n[~true]
        still = high[rows] - low[rows] > 1
        n, value, rows = n[still], value[still], rows[still]
        turn += 1
        n = _next_guess(n, value / slope[rows], low[rows], high[rows], turn)
    return high


def _next_guess(n: Integers, distance: Floats, low: Integers, high: Integers, turn: int) -> Integers:
    """Return the next n to try, strictly between `low` and `high`; `distance` is n less the estimated root."""
    stride = 4.0**turn
    bounded = np.where(np.isfinite(distance), distance, np.copysign(stride, distance))
    root = n - np.clip(bounded, -_UNBOUNDED / 4, _UNBOUNDED / 4)
    guess = np.where(n == high, np.floor(root), np.ceil(root))
    if turn > _NEWTON_TURNS:
        gallop = np.where(high == _UNBOUNDED, low + stride, (low + high) // 2)
        guess = np.where(low < 0, np.maximum(high // 2, 0), gallop)
    inside = np.clip(np.clip(guess, 0, _UNBOUNDED // 2).astype(np.int64), low + 1, high - 1)
    return np.asarray(inside, dtype=np.int64)


def _closed_form(values: Integers, channel: SamplingChannel, tail: float) -> tuple[Floats, Floats]:
    """Return both ends before clamping."""
    p = float(channel.sampling_rate)
    z2 = float(scipy.special.ndtri(tail)) ** 2
    x = values / p
    c1, c0 = z2 * (1 - p) / p, z2 * channel.noise.variance / p**2
    middle = x + c1 / 2
    half = np.sqrt(np.maximum(middle**2 - x**2 + c0, 0))
    return middle - half, middle + half


def _response_ends(
    cells: Integers, participants: Integers, channel: ResponseChannel, noise: AnySum, tail: float
) -> tuple[Integers, Integers]:
    """Return the ends for cells whose number of devices is known as `participants`, with `noise` on it."""
    _checked_size(cells, participants)
    pairs = np.stack([part.ravel() for part in np.broadcast_arrays(cells, participants)])
    (values, devices), place = np.unique(pairs, axis=1, return_inverse=True)
    region_error = _REGION_ERROR * tail
    far = max(noise.reach_of(math.log(2 / region_error)) - 1, 0)
    most = np.maximum(devices + far, 0)
    z = -float(scipy.special.ndtri(tail - region_error / 2))
    near = _score_ends(values, devices, most, channel, z)
    slope = 2 * z / np.maximum(near[1] - near[0], 1)
    low, high = most + 1, np.full(most.shape, -1)
    region = _region(far)
    between = max((more - less for less, more in pairwise(region)), default=1) - 1
    # Ties of whole numbers need it, so only where it moves the statistic by less than a device.
    spared = between if channel.miss * between < 1 else 0
    for excess in region:
        for beyond, ends, guess in ((spared, low, near[0]), (None, high, near[1])):
            _widen(ends, excess, (values, devices), channel, z, (guess, slope), beyond)
    both = (np.clip(end, 0, most)[place.ravel()].reshape(cells.shape) for end in (low, high))
    return next(both), next(both)


def _region(far: int) -> list[int]:
    """Return the excesses T - N at which the tests are made, the largest N first, as it decides nearly always.

    Noise of a wide region has no steps left that the numbers between could show.
    """
    steps = far if far <= _WHOLE_REGION else 2
    return [round(far * step / max(steps, 1)) for step in range(-steps, steps + 1)]


def _widen(
    ends: Integers,
    excess: int,
    read: tuple[Integers, Integers],
    channel: ResponseChannel,
    z: float,
    search: tuple[Floats, Floats],
    beyond: int | None,
) -> None:
    """Move every end outwards to the last n that passes the test of a tail with N = T - `excess`.

    Low ends move by the upper tail, up to n = N + `beyond`, there with n devices: where all have the value, the true N
    lies between two that are tried, and of these only the smaller is as lenient. High ends (None) move by the lower.
    """
    upper, values, total = beyond is not None, read[0], read[1] - excess
    most = total + (beyond or 0)
    beside = np.minimum(ends - 1, most) if upper else ends + 1
    test = channel.upper_tail if upper else channel.lower_tail

    def score(n: Integers, rows: Integers) -> Floats:
        inside = np.minimum(n, most[rows])
        quantile = scipy.special.ndtri(test(inside, np.maximum(total[rows], inside), values[rows], excess))
        outside = n > most[rows]
        return np.asarray(np.where(outside, np.inf, quantile + z if upper else -z - quantile), dtype=np.float64)

    rows = np.flatnonzero((beside >= 0) & (beside <= most))
    passed = score(beside[rows], rows)
    rows = rows[passed > 0 if upper else passed < 0]
    if rows.size:
        found = _first_at_least(lambda n, some: score(n, rows[some]), search[0][rows], search[1][rows], strictly=upper)
        ends[rows] = found if upper else found - 1


def _score_ends(
    cells: Integers, participants: Integers, most: Integers, channel: ResponseChannel, z: float
) -> tuple[Floats, Floats]:
    """Return the n with (nhat - n)^2 = z^2 sd(n)^2 (Wilson's score form) for N = `most`, where the search begins."""
    hit, miss = float(channel.hit), float(channel.miss)
    gap, z2 = hit - miss, z**2
    slope = (hit * (1 - hit) - miss * (1 - miss)) / gap**2
    noise = float(channel.weight) ** 2 * channel.cell.variance + miss**2 * channel.others.variance
    estimate = (cells - miss * participants) / gap
    middle = estimate + z2 * slope / 2
    constant = (most * miss * (1 - miss) + noise) / gap**2
    half = np.sqrt(np.maximum(middle**2 - estimate**2 + z2 * constant, 0))
    return middle - half, middle + half


def _checked_outputs(outputs: Sequence[int] | Integers) -> Integers:
    """Return the outputs as int64.

    Raises:
        RangeError: one is above 10^12 in size, or not whole.
    """
    given = whole_outputs(outputs)
    for output in given.tolist():
        if not -LARGEST_COUNT <= output <= LARGEST_COUNT:
            raise RangeError("output", output, f"-{LARGEST_COUNT} to {LARGEST_COUNT}")
    return given


def _checked_size(*outputs: Integers) -> None:
    for one in outputs:
        size = int(np.max(np.abs(one), initial=0))
        if size > LARGEST_COUNT:
            raise RangeError("output", f"{size} in size", f"-{LARGEST_COUNT} to {LARGEST_COUNT}")


def _checked_aggregators(aggregators: int) -> int:
    if not 1 <= aggregators <= 255:
        raise RangeError("number of aggregators", aggregators, "1 to 255")
    return aggregators


def _tolerance_of(tail: float) -> float:
    """Return the tolerance of the tails of a response, at least 1e-14, the precision of a sum of doubles."""
    return max(_SLACK * tail, 1e-14)


def _tail_of(level: Fraction) -> float:
    """Return t = (1 - level)/2."""
    if not 0 < level < 1:
        raise RangeError("confidence level", level, "above 0 and below 1")
    return float((1 - level) / 2)
