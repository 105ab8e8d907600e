"""Queries on bucketised tables, corruption, fake values and negative associations."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_evidence.buckets.corruption import choose_fakes, exclusion_certainty, negative_associations
from fleetcount_evidence.buckets.queries import CodedTable, CountQuery, random_queries
from fleetcount_evidence.buckets.setting import UnsatisfiableError
from fleetcount_mechanisms.randomness import SeededRandom

from tests.support.plain_queries import average_relative_error, estimate, true_answer


def table(buckets: list[int]) -> CodedTable:
    return CodedTable(
        attributes=np.array([[0], [1], [0], [1]]),
        domains=(2,),
        sensitive=np.array([0, 1, 2, 2]),
        sensitive_domain=3,
        buckets=np.array(buckets),
    )


def test_estimates_spread_values_evenly_inside_a_bucket() -> None:
    query = CountQuery(attributes=((0, np.array([True, False])),), sensitive=np.array([True, False, False]))

    assert true_answer(table([0, 0, 1, 1]), query) == 1
    assert estimate(table([0, 0, 1, 1]), query) == 0.5
    assert estimate(table([0, 1, 2, 3]), query) == 1.0
    assert average_relative_error(table([0, 0, 1, 1]), [query]) == 0.5


def test_queries_select_about_the_asked_share() -> None:
    generator = np.random.default_rng(3)
    records = 20_000
    wide = CodedTable(
        attributes=generator.integers(0, 50, (records, 3)),
        domains=(50, 50, 50),
        sensitive=generator.integers(0, 50, records),
        sensitive_domain=50,
        buckets=np.arange(records),
    )

    shares = [true_answer(wide, query) / records for query in random_queries(wide, 200, generator, selectivity=0.05)]

    assert 0.05 < np.mean(shares) < 0.08
    assert average_relative_error(wide, random_queries(wide, 20, generator)) == 0


def test_certainty_falls_with_fakes_and_exclusions() -> None:
    assert exclusion_certainty(10, 2, 0) == Fraction(10, 12)
    assert exclusion_certainty(10, 2, 9) == Fraction(1, 3)
    with pytest.raises(RangeError, match="excluded records is 10"):
        exclusion_certainty(10, 2, 10)


def test_fakes_are_distinct_and_outside_the_bucket() -> None:
    domain = ["flu", "hiv", "cold", "ms", "flu"]
    associations = negative_associations(["m", "m", "f", "f"], ["flu", "hiv", "ms", "ms"], 1)

    fakes = choose_fakes(["flu"], domain, 2, SeededRandom(1))

    assert len(set(fakes)) == 2
    assert not set(fakes) & {"flu"}
    assert ("m", "ms") in associations
    with pytest.raises(UnsatisfiableError, match="needs 4 fake values and only 3"):
        choose_fakes(["flu"], domain, 4, SeededRandom(1))


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="do not fit 4 records"):
        table([0, 0, 1])
