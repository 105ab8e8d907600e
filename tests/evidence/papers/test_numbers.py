"""The experiments' own arithmetic: yields of random orders, scaled counts, errors of queries, constraint matrices."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_evidence.buckets.queries import random_queries
from fleetcount_evidence.buckets.two_size import two_size_bucketing
from fleetcount_evidence.papers.asymmetric.claims import expected_answers
from fleetcount_evidence.papers.asymmetric.yields import all_found, at_least
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.geometric.claims import PRINTED, constraint_matrix
from fleetcount_evidence.papers.inferential.census_tables import (
    SensitiveTable,
    scaled_counts,
    sensitive_tables,
    split_counts,
    with_thresholds,
)
from fleetcount_evidence.papers.sampling import experiment as sampling
from fleetcount_mechanisms.asymmetric import expected_safe_answers, optimal_detection
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.sampling import SamplingDie, estimate, toss
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plain_queries import average_relative_error

FOUND = [0.9, 0.5, 0.0, 0.7, 1.0, 0.25]


def brute_force(found: list[float], aborts: int, most: int) -> list[float]:
    """Return P[at least m right answers] over all orders, and all outcomes within each."""
    totals = np.zeros(len(found) + 1)
    orders = list(itertools.permutations(found))
    for order in orders:
        for outcome in itertools.product((True, False), repeat=len(order)):
            weight = float(np.prod([p if hit else 1 - p for p, hit in zip(order, outcome, strict=True)]))
            left, answers = aborts, 0
            for hit in outcome:
                left -= not hit
                if left == 0:
                    break
                answers += hit
            totals[: answers + 1] += weight / len(orders)
    return totals[:most].tolist()


@pytest.mark.parametrize("aborts", [1, 2, 3])
def test_yields_of_a_random_order_are_those_of_all_orders(aborts: int) -> None:
    law = at_least(all_found(np.array(FOUND), len(FOUND)), aborts)

    assert law.tolist() == pytest.approx(brute_force(FOUND, aborts, law.size), abs=1e-12)


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(sum), records=st.integers(1, 10_000))
def test_scaled_counts_keep_the_shares_and_sum_to_the_records(counts: list[int], records: int) -> None:
    scaled = scaled_counts(counts, records)

    assert sum(scaled) == records
    assert all(abs(s - c * records / sum(counts)) < 1 for s, c in zip(scaled, counts, strict=True))


def test_split_counts_keep_every_record_and_no_empty_value() -> None:
    split = split_counts((100, 3, 40), 8, np.random.default_rng(1))

    assert sum(split) == 143
    assert min(split) >= 1
    assert 10 < len(split) <= 24


def small_table(seed: int) -> SensitiveTable:
    generator = np.random.default_rng(seed)
    sensitive = generator.choice(5, 600, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    return SensitiveTable(
        label="random",
        values=tuple("abcde"),
        sensitive=sensitive,
        attributes=np.asfortranarray(generator.integers(0, [4, 7], (600, 2))),
        domains=(4, 7),
    )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_fast_query_error_is_the_public_one(seed: int) -> None:
    table, generator = small_table(seed), np.random.default_rng(seed)
    values = with_thresholds(table.counts, 2)
    buckets = table.placed(two_size_bucketing(values).setting, values, generator)
    queries = random_queries(table.coded(buckets), 60, generator, selectivity=0.2)

    fast = table.relative_errors({"two": buckets}, queries)["two"]

    assert fast == pytest.approx(average_relative_error(table.coded(buckets), queries), rel=1e-9)


def test_placed_records_keep_every_threshold_in_every_bucket() -> None:
    table = small_table(4)
    values = with_thresholds(table.counts, 2)
    setting = two_size_bucketing(values).setting

    buckets = table.placed(setting, values, np.random.default_rng(2))

    contents = np.zeros((buckets.max() + 1, 5), dtype=int)
    np.add.at(contents, (buckets, table.sensitive), 1)
    sizes = contents.sum(axis=1)
    assert sorted(sizes.tolist()) == sorted(s.size for s in setting.sizes for _ in range(s.buckets))
    for bucket, size in zip(contents.tolist(), sizes.tolist(), strict=True):
        assert all(count <= threshold * size for count, threshold in zip(bucket, values.thresholds, strict=True))


def test_the_tables_of_adult_have_its_counts() -> None:
    occupation, education = sensitive_tables(Extracts.shipped())

    assert (len(occupation.counts), max(occupation.counts), min(occupation.counts)) == (14, 6_172, 15)
    assert (len(education.counts), max(education.counts), sum(education.counts)) == (16, 15_784, 48_842)
    assert occupation.attributes.shape[1] == education.attributes.shape[1] == 7


def test_the_constraint_matrix_of_figure_2_is_figure_3() -> None:
    rows = constraint_matrix([[float(p) for p in row] for row in PRINTED], 0.5)

    assert ["".join(row) for row in rows] == ["↓Z↑↑↑↑", "↓ZS↑↑↑", "↓Z↓↑↑↑", "↓Z↓↓↑↑", "↓Z↓↓↓↑"]


def test_the_city_has_the_papers_expected_answers() -> None:
    city = Extracts.shipped().city()

    answers = expected_answers(city, 2, lambda steps: optimal_detection(Fraction(1), steps))

    assert answers == pytest.approx(expected_safe_answers(city, 2, Fraction(1)), rel=1e-12)
    assert answers == pytest.approx(5_031.141199866262, rel=1e-9)


@pytest.mark.parametrize("count", [4, 1_000])
@pytest.mark.parametrize("method", sampling.METHODS, ids=lambda method: method.label)
def test_simulated_errors_have_the_stated_sd_and_not_1_3_times_it(method: sampling.Method, count: int) -> None:
    errors = method.simulate(np.random.default_rng(5), count, 100_000, 100_000)
    sd = method.sd(count, 100_000)

    # The relative error of the sample sd of 1e5 draws is at most 0.0035 here (excess kurtosis 3); ten times it.
    assert abs(errors.mean()) < 10 * sd / np.sqrt(errors.size)
    assert errors.std() == pytest.approx(sd, rel=0.035)
    assert errors.std() != pytest.approx(1.3 * sd, rel=0.035)


@pytest.mark.parametrize(("yes", "population"), [(3, 10), (7, 10)])
def test_the_simulation_by_counts_is_the_mechanism_device_by_device(yes: int, population: int) -> None:
    die, source = SamplingDie.uniform(Fraction(9, 20), 1), SeededRandom(3)
    truths = [1] * yes + [0] * (population - yes)

    estimates = []
    for _ in range(4_000):
        answers = [toss(die, truth, source) for truth in truths]
        difference = sum(a.round_two for a in answers) - sum(a.round_one for a in answers)
        estimates.append(float(estimate(die, [difference])[0]) - yes)

    sd = sampling.SAMPLING_45.sd(yes, population)
    assert abs(np.mean(estimates)) < 10 * sd / np.sqrt(len(estimates))
    assert np.std(estimates) == pytest.approx(sd, rel=0.12)
