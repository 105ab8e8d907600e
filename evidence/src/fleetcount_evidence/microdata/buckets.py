"""Finds buckets that keep every threshold, by the requested algorithm, or names the value that makes it impossible.

It works on counts of values; `publication` draws which record goes into which bucket.
"""

from collections.abc import Callable
from typing import Final

from fleetcount_analysis.errors import NoOptimumError

from fleetcount_evidence.buckets.anatomy import anatomy_buckets, anatomy_possible, equivalent_diversity
from fleetcount_evidence.buckets.assignment import Bucket, assign
from fleetcount_evidence.buckets.multi_size import multi_size_bucketing
from fleetcount_evidence.buckets.optimum import optimal_bucketing
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, UnsatisfiableError
from fleetcount_evidence.buckets.two_size import two_size_bucketing
from fleetcount_evidence.microdata.request import MOST_SIZES, Algorithm, PublicationRequest, SensitiveDomain
from fleetcount_evidence.microdata.table import MicrodataError, shown

# A bucket has one count for each value, and a count takes about 30 bytes: at most 600 MB.
_MOST_COUNTS: Final = 20_000_000
_MOST_VARIABLES: Final = 10_000
_SOLVER_LIMIT_S: Final = 120.0


def find_buckets(domain: SensitiveDomain, request: PublicationRequest) -> list[Bucket]:
    """Return buckets for all records that keep every threshold; they depend on counts and thresholds only.

    Raises:
        MicrodataError: too many sizes, buckets or values for the algorithm.
        UnsatisfiableError: no buckets keep the thresholds; it names the value.
        NoOptimumError: the solver of `Algorithm.OPTIMAL` gave up.
    """
    if request.algorithm is Algorithm.ANATOMY:
        return _anatomy(domain)
    setting = _setting(domain, request)
    _refuse_many(sum(size.buckets for size in setting.sizes), len(domain.names))
    try:
        return assign(domain.values, setting)
    except UnsatisfiableError as error:
        # `optimal` alone can get here: its solver computes with floats and can return an invalid setting.
        raise NoOptimumError(
            f"algorithm {request.algorithm.value!r} found a setting that is not valid; take 'multi-size'"
        ) from error


def _setting(domain: SensitiveDomain, request: PublicationRequest) -> BucketSetting:
    values, largest = domain.values, request.largest
    if values.smallest_size > largest:
        widest = max(range(len(domain.names)), key=values.thresholds.__getitem__)
        raise UnsatisfiableError(
            f"even the largest threshold, that of {domain.described(widest)}, needs buckets of at least "
            f"{values.smallest_size} records; sizes ends at {largest}"
        )
    # The search over pairs needs two sizes; a size too small for any record only adds settings that are not valid.
    low = min(values.smallest_size, largest - 1) if request.smallest is None else request.smallest
    if largest - low >= MOST_SIZES:
        raise MicrodataError(f"sizes is {low} to {largest}; allowed are at most {MOST_SIZES} sizes")
    try:
        return _SETTINGS[request.algorithm](values, low, largest)
    except UnsatisfiableError as error:
        raise UnsatisfiableError(
            f"no bucket sizes from {low} to {largest} keep every threshold for {values.records} records; the tightest "
            f"is that of {domain.described(domain.tightest)}: raise it, or allow other sizes"
        ) from error


def _anatomy(domain: SensitiveDomain) -> list[Bucket]:
    counts, diversity = domain.values.counts, equivalent_diversity(domain.values.thresholds)
    if not anatomy_possible(counts, diversity):
        most = max(range(len(counts)), key=counts.__getitem__)
        raise UnsatisfiableError(
            f"the smallest threshold {min(domain.values.thresholds)} needs {diversity}-diversity, which allows a value "
            f"{domain.values.records // diversity} records; {shown(domain.names[most])} has {counts[most]}"
        )
    _refuse_many(domain.values.records // diversity, len(counts))
    return anatomy_buckets(counts, diversity)


def _refuse_many(buckets: int, names: int) -> None:
    if buckets * names > _MOST_COUNTS:
        raise MicrodataError(
            f"{buckets} buckets of {names} values are too many; allowed is a product of at most {_MOST_COUNTS}"
        )


def _two_size(values: SensitiveValues, low: int, high: int) -> BucketSetting:
    return two_size_bucketing(values, smallest=low, largest=high).setting


def _multi_size(values: SensitiveValues, low: int, high: int) -> BucketSetting:
    return multi_size_bucketing(values, smallest=low, largest=high)


def _optimal(values: SensitiveValues, low: int, high: int) -> BucketSetting:
    variables = (1 + len(values.counts)) * (high - low + 1)
    if variables > _MOST_VARIABLES:
        raise MicrodataError(
            f"algorithm 'optimal' would need {variables} variables, values times sizes; allowed is {_MOST_VARIABLES}: "
            "narrow sizes, or take 'multi-size'"
        )
    try:
        return optimal_bucketing(values, smallest=low, largest=high, time_limit_s=_SOLVER_LIMIT_S)
    except NoOptimumError as error:
        raise NoOptimumError(f"algorithm 'optimal': {error}; narrow sizes, or take 'multi-size'") from error


_SETTINGS: Final[dict[Algorithm, Callable[[SensitiveValues, int, int], BucketSetting]]] = {
    Algorithm.TWO_SIZE: _two_size,
    Algorithm.MULTI_SIZE: _multi_size,
    Algorithm.OPTIMAL: _optimal,
}
