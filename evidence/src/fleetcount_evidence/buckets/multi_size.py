"""MultiSizeBucketing: split the records of a two-size optimum and solve each part again ([INF, Algorithm 2]).

A heuristic: never worse than two sizes, but not always the optimum (`optimum` computes that, for few values).
"""

from fleetcount_evidence.buckets.assignment import two_size_partition
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, Size, UnsatisfiableError
from fleetcount_evidence.buckets.two_size import TwoSizeResult, two_size_bucketing


def multi_size_bucketing(values: SensitiveValues, *, smallest: int | None = None, largest: int = 50) -> BucketSetting:
    """Return a valid setting of any number of sizes, with a loss at most the two-size optimum's.

    Raises:
        RangeError: not 1 <= smallest < largest.
        UnsatisfiableError: no setting of two sizes in the range is valid.
    """
    low = values.smallest_size if smallest is None else smallest
    best = two_size_bucketing(values, smallest=low, largest=largest)
    return BucketSetting.of(*_refine(values, best, low, largest))


def _refine(values: SensitiveValues, found: TwoSizeResult, low: int, high: int) -> list[tuple[int, int]]:
    if not (found.small_buckets and found.large_buckets):
        size = found.setting.sizes[0]
        return _split(values, size, low, high)
    small, large = found.setting.sizes
    first, second = two_size_partition(values, small, large)
    return _split(values.part(first), small, low, high) + _split(values.part(second), large, low, high)


def _split(values: SensitiveValues, size: Size, low: int, high: int) -> list[tuple[int, int]]:
    """Return the refinement of one size's records, or that size itself when two sizes do not beat its loss."""
    try:
        better = two_size_bucketing(values, smallest=low, largest=high, below=size.loss)
    except UnsatisfiableError:
        return [(size.size, size.buckets)]
    return _refine(values, better, low, high)
