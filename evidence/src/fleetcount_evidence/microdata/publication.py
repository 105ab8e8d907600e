"""Publishes a table of persons as two tables joined by buckets, in which no sensitive value is too likely (F'-privacy).

Anonymised, not differentially private; needs a trusted holder. It reads and writes no file. The setting depends only on
how often each value occurs. The record of each value that a bucket gets, and every order, is drawn from the random
source: to a reader of the two tables, every matching of a bucket's records with its values is equally likely.

Source: Wang et al., Inferential or Differential: Privacy Laws Dictate, sections 3 to 6 ([INF]; docs/privacy.md).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeVar

from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_evidence.buckets.assignment import Bucket
from fleetcount_evidence.buckets.corruption import choose_fakes, negative_associations
from fleetcount_evidence.buckets.setting import BucketSetting
from fleetcount_evidence.microdata.buckets import find_buckets
from fleetcount_evidence.microdata.request import PublicationRequest, SensitiveDomain, sensitive_domain
from fleetcount_evidence.microdata.table import Microdata

_KEY_BYTES: Final = 16

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The two tables to publish, and facts about them for the holder only.

    `records` are (bucket, quasi-identifiers), `values` (bucket, sensitive value, count), buckets from 1. `worst[i]` is
    the largest share of value i in any bucket, computed from the two tables; the share is of the bucket's records, so
    fake values do not make it smaller.
    """

    domain: SensitiveDomain
    setting: BucketSetting
    worst: tuple[Fraction, ...]
    records: tuple[tuple[int, tuple[str, ...]], ...] = field(repr=False)
    values: tuple[tuple[int, str, int], ...] = field(repr=False)


def publish(table: Microdata, request: PublicationRequest, source: RandomSource) -> Publication:
    """Return the two tables, after a check of the thresholds on the joined tables.

    The holder runs it, with the system's random source. Most time goes to the search for the setting: O(m log|T|) for
    each pair of sizes and m values.

    Raises:
        MicrodataError: the thresholds do not fit the values; the values are too many, or written in two ways.
        UnsatisfiableError: no buckets keep the thresholds (the message names the value), or too few values are left
            for the fakes of a bucket.
        NoOptimumError: the solver of `Algorithm.OPTIMAL` stopped without an optimum.
    """
    domain = sensitive_domain(table, request.thresholds)
    buckets = find_buckets(domain, request)
    records, values = _place(table, domain.names, buckets, source)
    if request.fakes:
        values = _with_fakes(table, domain.names, request, (records, values), source)
    sizes = Counter(bucket for bucket, _ in records)
    worst = worst_posteriors(records, values)
    publication = Publication(
        domain=domain,
        setting=BucketSetting.of(*Counter(sizes.values()).items()),
        worst=tuple(worst[name] for name in domain.names),
        records=tuple(records),
        values=tuple(values),
    )
    _check(publication, request)
    return publication


def worst_posteriors(
    records: Iterable[tuple[int, tuple[str, ...]]], values: Iterable[tuple[int, str, int]]
) -> dict[str, Fraction]:
    """Return for each value its largest count_g/|g| over the buckets g of two published tables ([INF, Definition 3.4]).

    It is the probability that a reader who finds a person in bucket g, and knows nothing else about the values, gives
    to that value of the person.
    """
    sizes = Counter(bucket for bucket, _ in records)
    shares = {(value, count, sizes[bucket]) for bucket, value, count in values}
    worst: dict[str, Fraction] = defaultdict(Fraction)
    for value, count, size in shares:
        worst[value] = max(worst[value], Fraction(count, size))
    return dict(worst)


def shuffled(items: Sequence[Item], source: RandomSource) -> list[Item]:
    """Return the items in an order drawn uniformly from all orders.

    Every item gets 128 random bits, and the items are sorted by them. If two items get the same bits, all bits are
    drawn again: a stable sort would keep those two in their given order.
    """
    while True:
        stream = source.random_bytes(_KEY_BYTES * len(items))
        keys = [stream[start : start + _KEY_BYTES] for start in range(0, len(stream), _KEY_BYTES)]
        if len(set(keys)) == len(keys):
            return [items[position] for position in sorted(range(len(items)), key=keys.__getitem__)]


# The two tables.

Records = list[tuple[int, tuple[str, ...]]]
Values = list[tuple[int, str, int]]


def _place(
    table: Microdata, names: Sequence[str], buckets: Sequence[Bucket], source: RandomSource
) -> tuple[Records, Values]:
    """Number the buckets at random, put random records of its values into each, and shuffle inside each bucket."""
    waiting: dict[str, list[int]] = {name: [] for name in names}
    for record, value in enumerate(table.sensitive):
        waiting[value].append(record)
    waiting = {name: shuffled(members, source) for name, members in waiting.items()}
    records: Records = []
    values: Values = []
    for number, bucket in enumerate(shuffled(buckets, source), start=1):
        held = [(name, count) for name, count in zip(names, bucket.values, strict=True) if count]
        members = [waiting[name].pop() for name, count in held for _ in range(count)]
        records += [(number, table.attributes[record]) for record in shuffled(members, source)]
        values += [(number, name, count) for name, count in shuffled(held, source)]
    return records, values


def _with_fakes(
    table: Microdata,
    names: Sequence[str],
    request: PublicationRequest,
    placed: tuple[Records, Values],
    source: RandomSource,
) -> Values:
    """Return the sensitive table with `fakes` more distinct values in every bucket, in a new random order."""
    excluded = _excluded(table, request.association_support)
    attributes: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for bucket, record in placed[0]:
        attributes[bucket].update(enumerate(record))
    held: dict[int, list[str]] = defaultdict(list)
    for bucket, value, _ in placed[1]:
        held[bucket].append(value)
    values: Values = []
    for bucket, real in held.items():
        ruled_out = set[str]().union(*(excluded.get(attribute, ()) for attribute in attributes[bucket]))
        usable = [name for name in names if name not in ruled_out]
        fakes = choose_fakes(real, usable, request.fakes, source)
        values += [(bucket, value, 1) for value in shuffled(real + fakes, source)]
    return values


def _excluded(table: Microdata, support: int | None) -> dict[tuple[int, str], set[str]]:
    """Return the sensitive values that never occur with a quasi-identifier's value, by its column and that value.

    A reader may know it and exclude such a value, so it is of no use as a fake.
    """
    excluded: dict[tuple[int, str], set[str]] = defaultdict(set)
    if support is not None:
        for position in range(len(table.roles.quasi_identifiers)):
            column = [record[position] for record in table.attributes]
            for attribute, value in negative_associations(column, table.sensitive, support):
                excluded[position, attribute].add(value)
    return excluded


def _check(publication: Publication, request: PublicationRequest) -> None:
    """Check that the tables keep every threshold and all records.

    Raises:
        RuntimeError: they do not: a fault of this program, not of the table.
    """
    placed: Counter[str] = Counter()
    for _, value, count in publication.values:
        placed[value] += count
    domain, fakes = publication.domain, request.fakes * len({bucket for bucket, _ in publication.records})
    kept = all(worst <= threshold for worst, threshold in zip(publication.worst, domain.values.thresholds, strict=True))
    whole = all(placed[name] >= count for name, count in zip(domain.names, domain.values.counts, strict=True))
    if not kept or not whole or placed.total() != len(publication.records) + fakes:
        raise RuntimeError("the buckets do not keep their thresholds or lost a record; nothing is published")
