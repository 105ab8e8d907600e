"""The request of a table's holder, and the table's sensitive values: names, counts, thresholds.

It refuses unusable requests and thresholds that no buckets can keep, and names the cause; it finds no bucket.
"""

import enum
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fleetcount_evidence.buckets.setting import SensitiveValues, UnsatisfiableError, linear_thresholds
from fleetcount_evidence.microdata.table import Microdata, MicrodataError, nearest, shown

MOST_VALUES: Final = 1_000
MOST_SIZES: Final = 200
_LARGEST_SIZE: Final = 10_000
_LONGEST_NAME: Final = 200


class Algorithm(enum.Enum):
    """The algorithm that finds the buckets."""

    TWO_SIZE = "two-size"
    """The best setting of two sizes, exactly ([INF, Algorithm 1])."""
    MULTI_SIZE = "multi-size"
    """Any number of sizes, by splitting that optimum repeatedly ([INF, Algorithm 2])."""
    OPTIMAL = "optimal"
    """The best setting of any number of sizes, by integer programming; for few values."""
    ANATOMY = "anatomy"
    """l-diversity with l = ceil(1/min f'): distinct values in a bucket, the only kind that can take fake values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRule:
    """Thresholds by rule: f'_i = min(1, theta f_i + offset), theta >= 1, offset >= 0 ([INF, section 7.1])."""

    theta: Fraction
    offset: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRequest:
    """The holder's request: a threshold f' for each value (or a rule), an algorithm and a range of bucket sizes.

    `smallest` None means the least size that can contain a record. `fakes` false values are added to every bucket of
    `Algorithm.ANATOMY`. With `association_support`, a value is not a fake in a bucket if it never occurs with an
    attribute of one of the bucket's records although both occur at least that often ([INF, section 6]).

    Raises:
        MicrodataError: a size, a range or a number of fakes outside its limits, or fakes for another algorithm.
    """

    thresholds: Mapping[str, Fraction] | LinearRule
    algorithm: Algorithm = Algorithm.MULTI_SIZE
    smallest: int | None = None
    largest: int = 50
    fakes: int = 0
    association_support: int | None = None

    def __post_init__(self) -> None:
        low = 1 if self.smallest is None else self.smallest
        if not 1 <= low < self.largest <= _LARGEST_SIZE:
            raise MicrodataError(
                f"sizes is {low} to {self.largest}; allowed is 1 <= smallest < largest <= {_LARGEST_SIZE}"
            )
        if self.smallest is not None and self.largest - self.smallest >= MOST_SIZES:
            raise MicrodataError(f"sizes is {low} to {self.largest}; allowed are at most {MOST_SIZES} sizes")
        if not 0 <= self.fakes <= MOST_VALUES:
            raise MicrodataError(f"fakes is {self.fakes}; allowed is 0 to {MOST_VALUES}")
        if self.fakes and self.algorithm is not Algorithm.ANATOMY:
            raise MicrodataError(
                f"fakes is {self.fakes} for algorithm {self.algorithm.value!r}; fake values need distinct values in "
                "every bucket: algorithm 'anatomy'"
            )
        if self.association_support is not None and not (self.fakes and self.association_support >= 1):
            raise MicrodataError(
                f"association_support is {self.association_support}; allowed is at least 1, together with fakes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitiveDomain:
    """The sensitive values of a table by name, in the order of their names, with their counts and thresholds."""

    names: tuple[str, ...]
    values: SensitiveValues

    @property
    def tightest(self) -> int:
        """The position of the value whose share is nearest to its threshold: the value that limits what is possible."""
        counts, thresholds = self.values.counts, self.values.thresholds
        return max(range(len(counts)), key=lambda i: counts[i] / thresholds[i])

    def described(self, position: int) -> str:
        """Return a value as a message names it: name, count, records and threshold."""
        name, values = self.names[position], self.values
        return (
            f"{shown(name)} with {values.counts[position]} of {values.records} records and threshold "
            f"{values.thresholds[position]}"
        )


def sensitive_domain(table: Microdata, thresholds: Mapping[str, Fraction] | LinearRule) -> SensitiveDomain:
    """Return the table's sensitive values by name with their thresholds.

    Raises:
        MicrodataError: more than 1,000 values, or a name of more than 200 characters; two that differ in case, width
            or blanks only; a value without a threshold or a threshold without a value; thresholds outside (0, 1], or
            none below 1.
        UnsatisfiableError: a value's share is above its threshold, or there is one value only.
    """
    counts = Counter(table.sensitive)
    names = tuple(sorted(counts))
    _check_names(names, table.roles.sensitive)
    numbers = tuple(counts[name] for name in names)
    if isinstance(thresholds, LinearRule):
        exact = linear_thresholds(numbers, thresholds.theta, thresholds.offset)
    else:
        exact = _by_name(names, thresholds, table.roles.sensitive)
    _check_shares(names, numbers, exact)
    return SensitiveDomain(names=names, values=SensitiveValues(counts=numbers, thresholds=exact))


def _check_names(names: Sequence[str], column: str) -> None:
    if len(names) > MOST_VALUES:
        raise MicrodataError(
            f"column {shown(column)} has {len(names)} different values; allowed is 2 to {MOST_VALUES}: group them"
        )
    # Two spellings of one value could each keep a threshold that the value itself exceeds.
    seen: dict[str, str] = {}
    for name in names:
        if len(name) > _LONGEST_NAME:
            raise MicrodataError(f"value {shown(name)} has {len(name)} characters; allowed are {_LONGEST_NAME}")
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        if other := seen.get(plain):
            raise MicrodataError(
                f"values {shown(other)} and {shown(name)} of column {shown(column)} differ in case, width or blanks "
                "only; write them in one way, or their thresholds would not add up"
            )
        seen[plain] = name


def _by_name(names: Sequence[str], thresholds: Mapping[str, Fraction], column: str) -> tuple[Fraction, ...]:
    for name, threshold in thresholds.items():
        if name not in names:
            raise MicrodataError(f"thresholds names {shown(name)}, no value of {shown(column)}{nearest(name, names)}")
        if not 0 < threshold <= 1:
            raise MicrodataError(f"threshold of {shown(name)} is {threshold}; allowed is above 0 and at most 1")
    missing = [name for name in names if name not in thresholds]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise MicrodataError(
            f"thresholds misses {shown(missing[0])}{others}; every value of {shown(column)} needs one above 0 and at "
            "most 1"
        )
    return tuple(thresholds[name] for name in names)


def _check_shares(names: Sequence[str], counts: Sequence[int], thresholds: Sequence[Fraction]) -> None:
    records = sum(counts)
    if len(names) == 1:
        raise UnsatisfiableError(
            f"all {records} records have the value {shown(names[0])}: everybody in the table is known to have it"
        )
    for name, count, threshold in zip(names, counts, thresholds, strict=True):
        if count > threshold * records:
            raise UnsatisfiableError(
                f"value {shown(name)} has {count} of {records} records, a share of {Fraction(count, records)} above "
                f"its threshold {threshold}; no buckets can keep it"
            )
    if min(thresholds) == 1:
        raise MicrodataError("every threshold is 1, which protects nobody; at least one must be below 1")
