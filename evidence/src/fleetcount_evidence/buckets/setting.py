"""Sensitive values with their thresholds, and bucket settings.

It only defines the quantities of [INF, section 3]; `validity` decides whether a setting can keep the thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fleetcount_analysis.errors import AnalysisError, RangeError, ShapeError


class UnsatisfiableError(AnalysisError):
    """No bucketization can keep the thresholds; the message gives the cause and, where one is to blame, the value."""


@dataclass(frozen=True, kw_only=True)
class SensitiveValues:
    """The sensitive values of a table: how often each occurs, and its threshold f' ([INF, Definition 3.6]).

    `counts[i]` is o_i >= 0; `thresholds[i]` is f'_i, exact, in (0, 1]. F'-privacy: in every bucket g, the share of
    value i is at most f'_i. It can be kept if and only if f'_i >= f_i = o_i/|T| for all i ([INF, Lemma 3.7]).

    Raises:
        ShapeError: the numbers of thresholds and counts differ.
        RangeError: no record, a negative count, a threshold outside (0, 1].
        UnsatisfiableError: a value is more frequent than its threshold (the message names its position).
    """

    counts: tuple[int, ...]
    thresholds: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.thresholds):
            raise ShapeError(f"{len(self.thresholds)} thresholds for {len(self.counts)} values; one a value is needed")
        for count in self.counts:
            if count < 0:
                raise RangeError("count of a value", count, "at least 0")
        if self.records < 1:
            raise RangeError("number of records", self.records, "at least 1")
        for position, (count, threshold) in enumerate(zip(self.counts, self.thresholds, strict=True)):
            if not 0 < threshold <= 1:
                raise RangeError(f"threshold of value {position}", threshold, "above 0 and at most 1")
            if count > threshold * self.records:
                share = Fraction(count, self.records)
                raise UnsatisfiableError(
                    f"value {position} has {count} of {self.records} records, a share of {share} above its threshold "
                    f"{threshold}; no bucketization can keep it"
                )

    @cached_property
    def records(self) -> int:
        """|T|, the number of records."""
        return sum(self.counts)

    @cached_property
    def smallest_size(self) -> int:
        """min over occurring values of ceil(1/f'_i): no bucket with a record can be smaller ([INF, section 5.1])."""
        return min(
            -(-threshold.denominator // threshold.numerator)
            for count, threshold in zip(self.counts, self.thresholds, strict=True)
            if count
        )

    def most_in_one(self, size: int) -> tuple[int, ...]:
        """Return floor(f'_i S) for every value: how often it may occur in one bucket of `size` records."""
        return tuple(threshold.numerator * size // threshold.denominator for threshold in self.thresholds)

    def part(self, counts: Sequence[int]) -> "SensitiveValues":
        """Return other counts of the same values under the same thresholds (a part of the records)."""
        return SensitiveValues(counts=tuple(counts), thresholds=self.thresholds)


def linear_thresholds(
    counts: Sequence[int], theta: Fraction, offset: Fraction = Fraction(1, 50)
) -> tuple[Fraction, ...]:
    """Return f'_i = min(1, theta f_i + offset), the experiments' rule ([INF, section 7.1], theta from 2 to 32).

    Raises:
        RangeError: theta below 1 or a negative offset (a value could exceed its own threshold), or no record.
    """
    if theta < 1:
        raise RangeError("theta", theta, "at least 1")
    if offset < 0:
        raise RangeError("offset", offset, "at least 0")
    records = sum(counts)
    if records < 1:
        raise RangeError("number of records", records, "at least 1")
    return tuple(min(Fraction(1), theta * Fraction(count, records) + offset) for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`buckets` buckets (b_j >= 1) of `size` records each (S_j >= 1).

    Raises:
        RangeError: either is below 1.
    """

    size: int
    buckets: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RangeError("bucket size", self.size, "at least 1")
        if self.buckets < 1:
            raise RangeError("number of buckets", self.buckets, "at least 1")

    @property
    def records(self) -> int:
        """s_j = S_j b_j, the number of records in these buckets."""
        return self.size * self.buckets

    @property
    def loss(self) -> int:
        """b_j (S_j - 1)^2 ([INF, Equation 2])."""
        return self.buckets * (self.size - 1) ** 2


@dataclass(frozen=True, slots=True)
class BucketSetting:
    """Buckets of one or more sizes ([INF, section 3.4]).

    Raises:
        ShapeError: there is no size, or the sizes are not ascending and distinct.
    """

    sizes: tuple[Size, ...]

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ShapeError("a bucket setting has no size; at least one is needed")
        if any(low.size >= high.size for low, high in zip(self.sizes, self.sizes[1:], strict=False)):
            raise ShapeError("the sizes of a bucket setting must be ascending and distinct")

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> "BucketSetting":
        """Return the setting of (size, buckets) pairs; pairs of equal size are added up, and 0 buckets are left out.

        Raises:
            ShapeError: no pair has a bucket.
            RangeError: a size below 1, or a negative number of buckets.
        """
        buckets: dict[int, int] = {}
        for size, number in pairs:
            buckets[size] = buckets.get(size, 0) + number
        return cls(tuple(Size(size=size, buckets=buckets[size]) for size in sorted(buckets) if buckets[size]))

    @property
    def records(self) -> int:
        """The number of records in all buckets together; equal to |T| for a feasible setting (CC)."""
        return sum(size.records for size in self.sizes)

    @property
    def loss(self) -> int:
        """Loss(B) = sum of b_j (S_j - 1)^2 ([INF, Equation 2])."""
        return sum(size.loss for size in self.sizes)

    @property
    def mean_squared_error(self) -> Fraction:
        """MSE(B) = Loss(B)/(|T| - 1) ([INF, Equation 1]); 0 for a single record."""
        return Fraction(self.loss, max(1, self.records - 1))
