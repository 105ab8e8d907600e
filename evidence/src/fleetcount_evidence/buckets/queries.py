"""Count queries on a bucketised table ([INF, section 7.2.2])."""

from dataclasses import dataclass

import numpy as np
from fleetcount_analysis.errors import RangeError, ShapeError
from numpy.typing import NDArray

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedTable:
    """A table with integer codes, all int64.

    `attributes` is (records, A) with codes 0..domains[a]-1; `sensitive` is (records,) with codes
    0..sensitive_domain-1; `buckets` is (records,), each record's bucket 0..B-1.

    Raises:
        ShapeError: the arrays do not fit together.
    """

    attributes: Codes
    domains: tuple[int, ...]
    sensitive: Codes
    sensitive_domain: int
    buckets: Codes

    def __post_init__(self) -> None:
        records = len(self.sensitive)
        if self.attributes.shape != (records, len(self.domains)) or self.buckets.shape != (records,):
            raise ShapeError(
                f"attributes {self.attributes.shape} and buckets {self.buckets.shape} do not fit {records} records of "
                f"{len(self.domains)} attributes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """COUNT(*) WHERE every chosen attribute, and the sensitive value, is in its set; sets as boolean masks of codes."""

    attributes: tuple[tuple[int, NDArray[np.bool_]], ...]
    sensitive: NDArray[np.bool_]


def random_queries(
    table: CodedTable, number: int, generator: np.random.Generator, *, selectivity: float = 0.01
) -> list[CountQuery]:
    """Return queries of a random dimension qd in 1..A over random attributes.

    Each set has ceil(|domain| selectivity^(1/(qd + 1))) random codes, so that a query selects a share of about
    `selectivity` of the records (Xiao and Tao's workload).

    Raises:
        RangeError: selectivity outside (0, 1], or `number` below 1.
    """
    if not 0 < selectivity <= 1:
        raise RangeError("selectivity", selectivity, "above 0 and at most 1")
    if number < 1:
        raise RangeError("number of queries", number, "at least 1")
    return [_random_query(table, generator, selectivity) for _ in range(number)]


def _random_query(table: CodedTable, generator: np.random.Generator, selectivity: float) -> CountQuery:
    dimension = int(generator.integers(1, len(table.domains) + 1))
    share = selectivity ** (1 / (dimension + 1))
    chosen = generator.choice(len(table.domains), dimension, replace=False)
    return CountQuery(
        attributes=tuple((int(a), _random_mask(table.domains[a], share, generator)) for a in sorted(chosen)),
        sensitive=_random_mask(table.sensitive_domain, share, generator),
    )


def _random_mask(domain: int, share: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    mask = np.zeros(domain, dtype=np.bool_)
    mask[generator.choice(domain, min(domain, int(np.ceil(domain * share))), replace=False)] = True
    return mask
