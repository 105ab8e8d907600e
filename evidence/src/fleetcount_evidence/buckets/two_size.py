"""TwoSizeBucketing: the best setting of at most two bucket sizes, exactly ([INF, section 5.1, Algorithm 1]).

Integers only. Three kinds of pruning give the same answer; two of them exist only for comparison.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleetcount_analysis.errors import RangeError

from fleetcount_evidence.buckets.pairs import PairList
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, UnsatisfiableError


class Pruning(enum.Enum):
    """The part of each pair list that is examined ([INF, section 7.3])."""

    NONE = "none"
    """Every pair from the first to the first valid one, whatever the best loss so far."""
    LOSS = "loss"
    """The same, but only pairs with a smaller loss than the best so far."""
    FULL = "full"
    """The first valid pair found directly: linear conditions solved, monotone ones bisected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSizeResult:
    """The optimum: sizes `small` < `large` with their numbers of buckets (one of them may be 0), and its loss."""

    small: int
    small_buckets: int
    large: int
    large_buckets: int
    loss: int

    @property
    def setting(self) -> BucketSetting:
        """The setting, without the size that has no bucket."""
        return BucketSetting.of((self.small, self.small_buckets), (self.large, self.large_buckets))


def two_size_bucketing(
    values: SensitiveValues,
    *,
    smallest: int | None = None,
    largest: int = 50,
    pruning: Pruning = Pruning.FULL,
    below: int | None = None,
) -> TwoSizeResult:
    """Return the valid setting of sizes `smallest` <= S_1 < S_2 <= `largest` with the least loss.

    `smallest` None means min ceil(1/f'_i). With `below`, only settings with a loss below it are considered. Of equal
    losses the setting with the smaller sizes is returned. O(m log|T|) for each pair of sizes (`FULL`), m values.

    Raises:
        RangeError: not 1 <= smallest < largest <= 10,000.
        UnsatisfiableError: no setting in the range of sizes is valid.
    """
    low = values.smallest_size if smallest is None else smallest
    if not 1 <= low < largest <= 10_000:
        raise RangeError("sizes", (low, largest), "1 <= smallest < largest <= 10000")
    most = {size: values.most_in_one(size) for size in range(low, largest + 1)}
    best: TwoSizeResult | None = None
    for small in range(low, largest):
        for large in range(small + 1, largest + 1):
            pairs = PairList.of(values.records, small, large)
            bound = best.loss if best else below
            if pairs is None or (pairs.below(bound) == 0 and pruning is not Pruning.NONE):
                continue
            index = _SEARCH[pruning](values.counts, pairs, most[small], most[large], bound)
            if index is not None and (bound is None or pairs.loss(index) < bound):
                best = _result(pairs, index)
    if best is None:
        limit = "" if below is None else f" with a loss below {below}"
        raise UnsatisfiableError(f"no two bucket sizes from {low} to {largest} keep the thresholds{limit}")
    return best


def _result(pairs: PairList, index: int) -> TwoSizeResult:
    small_buckets, large_buckets = pairs.pair(index)
    return TwoSizeResult(
        small=pairs.small,
        small_buckets=small_buckets,
        large=pairs.large,
        large_buckets=large_buckets,
        loss=pairs.loss(index),
    )


Most = Sequence[int]


def _first_by_scan(counts: Sequence[int], pairs: PairList, few: Most, many: Most, _bound: int | None) -> int | None:
    return _scan(counts, pairs, few, many, pairs.length)


def _first_below_by_scan(
    counts: Sequence[int], pairs: PairList, few: Most, many: Most, bound: int | None
) -> int | None:
    return _scan(counts, pairs, few, many, pairs.below(bound))


def _scan(counts: Sequence[int], pairs: PairList, few: Most, many: Most, end: int) -> int | None:
    return next((index for index in range(end) if _pair_is_valid(counts, pairs, few, many, index)), None)


def _pair_is_valid(counts: Sequence[int], pairs: PairList, few: Most, many: Most, index: int) -> bool:
    """PC and FC of [INF, Theorem 4.17]; CC holds for every pair of the list."""
    b1, b2 = pairs.pair(index)
    if any(count > a * b1 + b * b2 for count, a, b in zip(counts, few, many, strict=True)):
        return False
    return _fills(counts, few, pairs.small, b1) and _fills(counts, many, pairs.large, b2)


def _fills(counts: Sequence[int], most: Most, size: int, buckets: int) -> bool:
    """FC of one size: sum of min(a_i, o_i) >= b S."""
    return sum(min(m * buckets, count) for m, count in zip(most, counts, strict=True)) >= buckets * size


def _first_directly(counts: Sequence[int], pairs: PairList, few: Most, many: Most, bound: int | None) -> int | None:
    """Return the first valid pair of the list ([INF, Theorem 5.30]), or None.

    PC is linear in the index for every value: an interval in closed form. FC of the smaller size is monotone in the
    index, that of the larger anti-monotone ([INF, Lemma 5.26]): the first index of the interval that satisfies the
    former is found by bisection, and it is valid if and only if it satisfies the latter, since later ones do so less.
    """
    start, end = _privacy_interval(counts, pairs, few, many, pairs.below(bound))
    if start >= end or not _fills(counts, many, pairs.large, pairs.pair(start)[1]):
        return None

    def small_fills(index: int) -> bool:
        return _fills(counts, few, pairs.small, pairs.pair(index)[0])

    if not small_fills(end - 1):
        return None
    index = _bisect(start, end - 1, small_fills)
    return index if _fills(counts, many, pairs.large, pairs.pair(index)[1]) else None


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first index in low..high on which a monotone condition holds; it holds on `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _privacy_interval(counts: Sequence[int], pairs: PairList, few: Most, many: Most, end: int) -> tuple[int, int]:
    """Return the indices [start, end) on which PC holds: a b_1 + b b_2 >= o_i, linear in the index, for every i."""
    b1, b2, d1, d2 = pairs.first_small, pairs.first_large, pairs.step_small, pairs.step_large
    start = 0
    for count, a, b in zip(counts, few, many, strict=True):
        missing = count - a * b1 - b * b2
        slope = b * d2 - a * d1
        if slope > 0:
            start = max(start, -(-missing // slope))
        elif slope < 0:
            end = min(end, missing // slope + 1)
        elif missing > 0:
            return 0, 0
        if start >= end:
            return 0, 0
    return start, end


_SEARCH = {Pruning.NONE: _first_by_scan, Pruning.LOSS: _first_below_by_scan, Pruning.FULL: _first_directly}
