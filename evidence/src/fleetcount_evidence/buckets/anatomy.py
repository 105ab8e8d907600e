"""Anatomy with l-diversity, the method the paper compares with ([INF, Remark 3.8 and section 7.1]; Xiao and Tao, 2006).

One threshold 1/l for every value, buckets of l or l + 1 records.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction

from fleetcount_analysis.errors import RangeError

from fleetcount_evidence.buckets.assignment import Bucket
from fleetcount_evidence.buckets.setting import UnsatisfiableError


def equivalent_diversity(thresholds: Sequence[Fraction]) -> int:
    """Return l = ceil(1/min f'_i), the least l-diversity that implies the thresholds ([INF, Remark 3.8]).

    Raises:
        RangeError: no threshold, or one outside (0, 1].
    """
    if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
        raise RangeError("thresholds", [str(t) for t in thresholds][:5], "at least one, each above 0 and at most 1")
    return -(-min(thresholds).denominator // min(thresholds).numerator)


def anatomy_possible(counts: Sequence[int], diversity: int) -> bool:
    """Return whether an l-diverse bucketization exists: max o_i <= |T|/l (the eligibility requirement)."""
    return max(counts) * diversity <= sum(counts)


def anatomy_loss(records: int, diversity: int) -> int:
    """Return the loss of buckets of l and l + 1 records, whether or not an l-diverse assignment exists.

    |T| = b l + r records make b buckets, r of them with one record more. The paper plots this value also where no
    l-diverse solution exists.

    Raises:
        RangeError: l is not in 1..|T|, or r > b, so that some bucket would need l + 2 records.
    """
    if not 1 <= diversity <= records:
        raise RangeError("diversity", diversity, f"1 to the number of records, {records}")
    buckets, rest = divmod(records, diversity)
    if rest > buckets:
        raise RangeError("records left over", rest, f"at most the number of buckets, {buckets}")
    return (buckets - rest) * (diversity - 1) ** 2 + rest * diversity**2


def anatomy_buckets(counts: Sequence[int], diversity: int) -> list[Bucket]:
    """Return l-diverse buckets: each gets one record of each of the l most frequent remaining values.

    At the end records of fewer than l values are left; each goes into a bucket without its value.

    Raises:
        RangeError: l is not in 1..|T|.
        UnsatisfiableError: a value is too frequent for l-diversity.
    """
    records = sum(counts)
    if not 1 <= diversity <= records:
        raise RangeError("diversity", diversity, f"1 to the number of records, {records}")
    if not anatomy_possible(counts, diversity):
        worst = max(range(len(counts)), key=lambda i: counts[i])
        raise UnsatisfiableError(
            f"value {worst} has {counts[worst]} of {records} records; "
            f"{diversity}-diversity allows {records // diversity}"
        )
    chosen, left = _deal(counts, diversity)
    for value in left:
        place = next(members for members in chosen if value not in members)
        place.add(value)
    return [Bucket(tuple(int(value in members) for value in range(len(counts)))) for members in chosen]


def _deal(counts: Sequence[int], diversity: int) -> tuple[list[set[int]], list[int]]:
    heap = [(-count, value) for value, count in enumerate(counts) if count]
    heapq.heapify(heap)
    chosen: list[set[int]] = []
    while len(heap) >= diversity:
        taken = [heapq.heappop(heap) for _ in range(diversity)]
        chosen.append({value for _, value in taken})
        for negative, value in taken:
            if negative < -1:
                heapq.heappush(heap, (negative + 1, value))
    return chosen, [value for negative, value in heap for _ in range(-negative)]
