"""Tables with one sensitive column for the bucket experiments: counts, scaled counts, queries, assignments.

It must not publish a table: assignments are made only to measure errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from fleetcount_analysis.errors import RangeError
from numpy.typing import NDArray

from fleetcount_evidence.buckets.assignment import assign
from fleetcount_evidence.buckets.queries import CodedTable, CountQuery
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, linear_thresholds
from fleetcount_evidence.papers.extracts import Extracts, Records

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitiveTable:
    """Records with one sensitive column; all other columns are quasi-identifiers.

    `sensitive` is (records,) int64, an index into `values`; `attributes` is (records, A) int64 with codes
    0..domains[a]-1.
    """

    label: str
    values: tuple[str, ...]
    sensitive: Codes
    attributes: Codes
    domains: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of records with each value."""
        return tuple(np.bincount(self.sensitive, minlength=len(self.values)).tolist())

    def placed(self, setting: BucketSetting, values: SensitiveValues, generator: np.random.Generator) -> Codes:
        """Return each record's bucket in a valid setting, (records,) int64; records of one value are shuffled.

        Raises:
            UnsatisfiableError: the setting is not valid.
        """
        contents = np.array([bucket.values for bucket in assign(values, setting)], dtype=np.int64)
        buckets = np.empty(self.sensitive.size, dtype=np.int64)
        for value in range(len(self.values)):
            places = np.repeat(np.arange(len(contents)), contents[:, value])
            generator.shuffle(places)
            buckets[self.sensitive == value] = places
        return buckets

    def coded(self, buckets: Codes) -> CodedTable:
        """Return the table with these buckets."""
        return CodedTable(
            attributes=self.attributes,
            domains=self.domains,
            sensitive=self.sensitive,
            sensitive_domain=len(self.values),
            buckets=buckets,
        )

    def relative_errors(self, placements: Mapping[str, Codes], queries: Sequence[CountQuery]) -> dict[str, float]:
        """Return the mean of |estimate - truth|/truth of several bucketizations, over the queries with a truth above 0.

        An analyst with the two published tables assumes that every record of a bucket has each of its values equally
        likely: an estimate is the sum, over the selected records, of the share of matching values in the record's
        bucket. Each query selects its records only once.

        Raises:
            RangeError: no query has an answer above 0.
        """
        shares = {name: self._shares(buckets) for name, buckets in placements.items()}
        errors: dict[str, list[float]] = {name: [] for name in placements}
        for query in queries:
            chosen = self._selected(query)
            truth = int(np.count_nonzero(query.sensitive[self.sensitive[chosen]]))
            if not truth:
                continue
            for name, buckets in placements.items():
                guess = float((shares[name][buckets[chosen]] @ query.sensitive).sum())
                errors[name].append(abs(guess - truth) / truth)
        if not all(errors.values()):
            raise RangeError("queries with an answer above 0", 0, f"at least 1 of {len(queries)}")
        return {name: float(np.mean(found)) for name, found in errors.items()}

    def _shares(self, buckets: Codes) -> NDArray[np.float64]:
        """Return the share of each value in each bucket."""
        number, kinds = int(buckets.max()) + 1, len(self.values)
        contents = np.bincount(buckets * kinds + self.sensitive, minlength=number * kinds).reshape(number, kinds)
        return np.asarray(contents / contents.sum(axis=1, keepdims=True), dtype=np.float64)

    def _selected(self, query: CountQuery) -> Codes:
        """Return the indices of the records that the query's attributes select, filtered by one after the other."""
        (first, mask), *others = query.attributes
        chosen = np.flatnonzero(mask[self.attributes[:, first]])
        for attribute, mask in others:
            chosen = chosen[mask[self.attributes[chosen, attribute]]]
        return chosen


def sensitive_tables(extracts: Extracts) -> list[SensitiveTable]:
    """Return Adult by occupation and by education, and the user's census, if given, by its sensitive columns.

    The table by occupation leaves out the records without an occupation.

    Raises:
        ExtractError: a data file is missing or malformed.
    """
    adult = extracts.adult()
    tables = [_table(adult.without("occupation", "?"), "occupation"), _table(adult, "education")]
    census = extracts.census_records()
    if census is not None:
        tables += [_table(census, column) for column in extracts.census.sensitive]
    return tables


def _table(records: Records, column: str) -> SensitiveTable:
    place = records.columns.index(column)
    others = [c for c in range(len(records.columns)) if c != place]
    return SensitiveTable(
        label=f"{records.name}, {column.lower()}",
        values=records.labels[place],
        sensitive=records.codes[:, place].copy(),
        # Columns are contiguous in memory, since a query reads one attribute at a time.
        attributes=np.asfortranarray(records.codes[:, others]),
        domains=tuple(len(records.labels[c]) for c in others),
    )


def with_thresholds(counts: Sequence[int], theta: int) -> SensitiveValues:
    """Return the counts with the thresholds f'_i = min(1, theta f_i + 0.02) ([INF, section 7.1])."""
    return SensitiveValues(counts=tuple(counts), thresholds=linear_thresholds(counts, Fraction(theta)))


def scaled_counts(counts: Sequence[int], records: int) -> tuple[int, ...]:
    """Return counts of nearly the same shares that sum to `records`, rounded by largest remainders."""
    total = sum(counts)
    floors = [count * records // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: -(counts[i] * records % total))
    for i in by_remainder[: records - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def split_counts(counts: Sequence[int], factor: int, generator: np.random.Generator) -> tuple[int, ...]:
    """Return the counts with every value split at random into `factor` values; empty ones are left out.

    Source: [INF, section 7.3.2].
    """
    shares = [1 / factor] * factor
    split = [part for count in counts for part in generator.multinomial(count, shares).tolist()]
    return tuple(part for part in split if part)
