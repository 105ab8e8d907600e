"""The relative error of count queries on a bucketised table, one query at a time ([INF, section 7.2.2]).

An analyst with the two published tables assumes that every record of a bucket has each of its values equally likely.
"""

import numpy as np
from fleetcount_evidence.buckets.queries import CodedTable, CountQuery
from numpy.typing import NDArray


def _selected(table: CodedTable, query: CountQuery) -> NDArray[np.bool_]:
    selected = np.ones(len(table.sensitive), dtype=np.bool_)
    for attribute, mask in query.attributes:
        selected &= mask[table.attributes[:, attribute]]
    return selected


def true_answer(table: CodedTable, query: CountQuery) -> int:
    """Return the number of records that satisfy the query, from the raw table."""
    return int(np.count_nonzero(_selected(table, query) & query.sensitive[table.sensitive]))


def estimate(table: CodedTable, query: CountQuery) -> float:
    """Return the analyst's estimate: per bucket, selected records times the share of matching sensitive values."""
    number = int(table.buckets.max()) + 1
    selected = np.bincount(table.buckets[_selected(table, query)], minlength=number)
    matching = np.bincount(table.buckets[query.sensitive[table.sensitive]], minlength=number)
    return float(np.sum(selected * matching / np.maximum(1, np.bincount(table.buckets, minlength=number))))


def average_relative_error(table: CodedTable, queries: list[CountQuery]) -> float:
    """Return the mean of |estimate - truth|/truth over the queries with a truth above 0."""
    pairs = [(estimate(table, query), true_answer(table, query)) for query in queries]
    errors = [abs(guess - truth) / truth for guess, truth in pairs if truth]
    return float(np.mean(errors))
