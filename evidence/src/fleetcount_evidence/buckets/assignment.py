"""Puts the records into the buckets of a valid setting: first by size, then round-robin inside a size.

It works on counts of values; the caller chooses, at random, which record of a value goes into which bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fleetcount_analysis.errors import RangeError
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, Size, UnsatisfiableError
from fleetcount_evidence.buckets.validity import capacities


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket: `values[i]` records of value i."""

    values: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its number of records."""
        return sum(self.values)


def round_robin(counts: Sequence[int], size: Size) -> list[Bucket]:
    """Return the buckets of one size, with the records dealt to them one after the other ([INF, section 4.1]).

    One pointer runs over all values. If it started again for each value, the first buckets would get too many records.
    A bucket has each value floor(o_i/b) or ceil(o_i/b) times.

    Raises:
        RangeError: the counts do not fill the buckets exactly.
    """
    if sum(counts) != size.records:
        raise RangeError("number of records", sum(counts), f"{size.records}, the size of all buckets")
    dealt = np.zeros((size.buckets, len(counts)), dtype=np.int64)
    pointer = 0
    for value, count in enumerate(counts):
        dealt[:, value] += count // size.buckets
        extra = (pointer + np.arange(count % size.buckets)) % size.buckets
        dealt[extra, value] += 1
        pointer = (pointer + count) % size.buckets
    return [Bucket(tuple(row)) for row in dealt.tolist()]


def two_size_partition(values: SensitiveValues, small: Size, large: Size) -> tuple[list[int], list[int]]:
    """Return, for the small and for the large size, how many records of each value go into it ([INF, section 4.3]).

    The small buckets first get u_i1 = min(o_i, a_i1) records of every value; the surplus moves to the large ones, value
    by value, at most u_i2 = min(o_i, a_i2) of each.

    Raises:
        UnsatisfiableError: the setting is not valid.
    """
    few, many = capacities(values, BucketSetting((small, large)))
    first = [min(count, most) for count, most in zip(values.counts, few, strict=True)]
    second = [count - taken for count, taken in zip(values.counts, first, strict=True)]
    surplus = sum(first) - small.records
    for i, (count, most) in enumerate(zip(values.counts, many, strict=True)):
        moved = max(0, min(surplus, min(count, most) - second[i]))
        first[i], second[i], surplus = first[i] - moved, second[i] + moved, surplus - moved
    over = any(taken > most for taken, most in zip(second, many, strict=True))
    if surplus or over or sum(first) != small.records or sum(second) != large.records:
        raise UnsatisfiableError(f"sizes {small} and {large} cannot keep the thresholds")
    return first, second


def partition(values: SensitiveValues, setting: BucketSetting) -> list[list[int]]:
    """Return, for each size, how many records of each value go into it; by a maximum flow, for any number of sizes.

    Raises:
        UnsatisfiableError: the setting is not valid.
        RangeError: more than 2^31 - 1 records, which the solver's 32-bit capacities cannot express.
    """
    caps = capacities(values, setting)
    kinds, sizes = len(values.counts), len(setting.sizes)
    graph = _flow_graph(values, setting, caps)
    source, sink = kinds + sizes, kinds + sizes + 1
    result = maximum_flow(csr_array(graph), source, sink)
    if setting.records != values.records or int(result.flow_value) != values.records:
        raise UnsatisfiableError(
            f"the setting {[(s.size, s.buckets) for s in setting.sizes]} cannot keep the thresholds"
        )
    flow = result.flow.toarray()
    return [[int(flow[i, kinds + j]) for i in range(kinds)] for j in range(sizes)]


def _flow_graph(values: SensitiveValues, setting: BucketSetting, caps: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    kinds, sizes = len(values.counts), len(setting.sizes)
    largest = np.iinfo(np.int32).max
    if values.records > largest:
        raise RangeError("number of records", values.records, f"at most {largest}")
    graph = np.zeros((kinds + sizes + 2, kinds + sizes + 2), dtype=np.int32)
    graph[kinds + sizes, :kinds] = values.counts
    for j, (size, column) in enumerate(zip(setting.sizes, caps, strict=True)):
        graph[:kinds, kinds + j] = np.minimum(column, values.counts)
        graph[kinds + j, kinds + sizes + 1] = size.records
    return graph


def assign(values: SensitiveValues, setting: BucketSetting) -> list[Bucket]:
    """Return all buckets of a valid setting, smaller sizes first; every bucket keeps every threshold.

    Raises:
        UnsatisfiableError: the setting is not valid.
        RangeError: more than 2^31 - 1 records.
    """
    parts = partition(values, setting)
    return [bucket for size, counts in zip(setting.sizes, parts, strict=True) for bucket in round_robin(counts, size)]
