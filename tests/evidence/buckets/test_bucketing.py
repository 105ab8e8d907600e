"""Bucket settings: feasible lists, validity, the two-size optimum, several sizes, the exact optimum."""

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_evidence.buckets.anatomy import anatomy_buckets, anatomy_loss, anatomy_possible, equivalent_diversity
from fleetcount_evidence.buckets.assignment import assign, round_robin
from fleetcount_evidence.buckets.multi_size import multi_size_bucketing
from fleetcount_evidence.buckets.optimum import optimal_bucketing
from fleetcount_evidence.buckets.pairs import PairList
from fleetcount_evidence.buckets.setting import (
    BucketSetting,
    SensitiveValues,
    Size,
    UnsatisfiableError,
    linear_thresholds,
)
from fleetcount_evidence.buckets.two_size import Pruning, two_size_bucketing
from fleetcount_evidence.buckets.validity import naive_conditions_hold, setting_is_valid
from hypothesis import assume, given, settings
from hypothesis import strategies as st

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "golden.json").read_text())


@st.composite
def small_tables(draw: st.DrawFn) -> SensitiveValues:
    counts = draw(st.lists(st.integers(0, 12), min_size=2, max_size=5))
    assume(sum(counts) >= 2)
    theta = draw(st.fractions(1, 4, max_denominator=4))
    return SensitiveValues(counts=tuple(counts), thresholds=linear_thresholds(counts, theta))


def keeps(values: SensitiveValues, setting: BucketSetting) -> bool:
    buckets = assign(values, setting)
    placed = tuple(sum(column) for column in zip(*(bucket.values for bucket in buckets), strict=True))
    sizes = sorted(bucket.size for bucket in buckets)
    wanted = sorted(size.size for size in setting.sizes for _ in range(size.buckets))
    fits = all(
        count <= threshold * bucket.size
        for bucket in buckets
        for count, threshold in zip(bucket.values, values.thresholds, strict=True)
    )
    return placed == values.counts and sizes == wanted and fits


@pytest.mark.parametrize("row", GOLDEN["bucket.pair_list"])
def test_feasible_pairs_match_the_golden_lists(row: dict) -> None:
    pairs = PairList.of(row["T"], row["S1"], row["S2"])

    found = pairs and [pairs.first_small, pairs.first_large, pairs.step_small, pairs.step_large, pairs.length - 1]
    assert found == row["first"]


@given(records=st.integers(1, 90), small=st.integers(1, 9), gap=st.integers(1, 9))
def test_the_pair_list_is_every_feasible_pair_in_order_of_loss(records: int, small: int, gap: int) -> None:
    large = small + gap
    every = [(b1, b2) for b1, b2 in product(range(91), repeat=2) if b1 * small + b2 * large == records]

    pairs = PairList.of(records, small, large)

    listed = [pairs.pair(i) for i in range(pairs.length)] if pairs else []
    losses = [pairs.loss(i) for i in range(pairs.length)] if pairs else []
    assert listed == sorted(every, reverse=True)
    assert losses == sorted(losses)
    assert losses == [b1 * (small - 1) ** 2 + b2 * (large - 1) ** 2 for b1, b2 in listed]
    for bound in (0, 1, *losses):
        assert pairs is None or pairs.below(bound) == sum(loss < bound for loss in losses)


@pytest.mark.parametrize("row", GOLDEN["bucket.opt"])
def test_optima_match_the_golden_tables(row: dict) -> None:
    counts = tuple(row["o"])
    values = SensitiveValues(counts=counts, thresholds=linear_thresholds(counts, Fraction(row["theta"])))

    two = two_size_bucketing(values)
    multi = multi_size_bucketing(values)
    best = optimal_bucketing(values)

    assert [str(t) for t in values.thresholds] == row["fp"]
    assert [two.loss, two.small, two.small_buckets, two.large, two.large_buckets] == row["two"]
    assert multi.loss == row["multi_loss"]
    assert sorted([s.size, s.buckets] for s in multi.sizes) == sorted(row["multi"])
    assert best.loss == row["optimal_loss"]
    assert keeps(values, multi)
    assert keeps(values, best)


@settings(max_examples=60, deadline=None)
@given(values=small_tables())
def test_every_pruning_finds_the_same_optimum_as_brute_force(values: SensitiveValues) -> None:
    low, high = values.smallest_size, 8
    assume(low < high)
    every = [
        BucketSetting.of((s1, b1), (s2, b2))
        for s1 in range(low, high)
        for s2 in range(s1 + 1, high + 1)
        for b1 in range(values.records // s1 + 1)
        for b2 in range(values.records // s2 + 1)
        if b1 * s1 + b2 * s2 == values.records
    ]
    valid = [setting.loss for setting in every if setting_is_valid(values, setting)]

    if not valid:
        with pytest.raises(UnsatisfiableError, match="no two bucket sizes"):
            two_size_bucketing(values, largest=high)
        return
    found = [two_size_bucketing(values, largest=high, pruning=pruning) for pruning in Pruning]

    assert {result.loss for result in found} == {min(valid)}
    assert len(set(found)) == 1
    assert keeps(values, found[0].setting)
    assert optimal_bucketing(values, largest=high).loss <= multi_size_bucketing(values, largest=high).loss <= min(valid)


@settings(max_examples=80, deadline=None)
@given(values=small_tables(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True))
def test_a_setting_is_valid_exactly_when_an_assignment_exists(values: SensitiveValues, sizes: list[int]) -> None:
    numbers = product(*(range(values.records // size + 1) for size in sizes))
    feasible = [n for n in numbers if sum(b * s for b, s in zip(n, sizes, strict=True)) == values.records and any(n)]

    for number in feasible[:12]:
        setting = BucketSetting.of(*zip(sizes, number, strict=True))
        if setting_is_valid(values, setting):
            assert keeps(values, setting)
        else:
            with pytest.raises(UnsatisfiableError):
                assign(values, setting)


def test_the_papers_conditions_for_three_sizes_are_not_sufficient() -> None:
    row = GOLDEN["bucket.ex532"]
    thresholds = [Fraction(1, 6)] * 10 + [Fraction(1)]
    values = SensitiveValues(counts=tuple(row["o"]), thresholds=tuple(thresholds))
    setting = BucketSetting.of(*row["B"])

    assert naive_conditions_hold(values, setting) is row["naive_conditions_hold"]
    assert not setting_is_valid(values, setting)


def test_round_robin_needs_one_running_pointer() -> None:
    buckets = round_robin([3, 3, 3], Size(size=3, buckets=3))
    uneven = round_robin([1, 1, 4], Size(size=3, buckets=2))

    assert [bucket.size for bucket in buckets] == [3, 3, 3]
    assert [bucket.size for bucket in uneven] == [3, 3]


def test_thresholds_are_exact_where_floats_would_round_down() -> None:
    values = SensitiveValues(counts=(29, 21), thresholds=(Fraction(58, 100), Fraction(1)))

    assert values.most_in_one(50)[0] == 29
    assert int(0.58 * 50) == 28


@pytest.mark.parametrize(
    ("counts", "thresholds", "error", "words"),
    [
        ((0, 0), (Fraction(1), Fraction(1)), RangeError, "records is 0"),
        ((5, -1), (Fraction(1), Fraction(1)), RangeError, "count of a value is -1"),
        ((5, 5), (Fraction(1),), ShapeError, "1 thresholds for 2 values"),
        ((5, 5), (Fraction(0), Fraction(1)), RangeError, "threshold of value 0 is 0"),
        ((5, 5), (Fraction(3, 2), Fraction(1)), RangeError, "threshold of value 0 is 3/2"),
        ((9, 1), (Fraction(1, 2), Fraction(1)), UnsatisfiableError, "value 0 has 9 of 10 records"),
    ],
)
def test_impossible_demands_are_refused_by_value(counts, thresholds, error, words) -> None:
    with pytest.raises(error, match=words):
        SensitiveValues(counts=counts, thresholds=thresholds)


def test_anatomy_buckets_are_diverse_and_complete() -> None:
    counts = [7, 6, 5, 4, 1]

    buckets = anatomy_buckets(counts, 3)

    assert anatomy_possible(counts, 3)
    assert all(bucket.size >= 3 and max(bucket.values) == 1 for bucket in buckets)
    assert [sum(column) for column in zip(*(b.values for b in buckets), strict=True)] == counts


def test_anatomy_refuses_a_value_too_frequent_for_the_diversity() -> None:
    assert equivalent_diversity([Fraction(1, 3), Fraction(2, 7)]) == 4
    assert anatomy_loss(23, 5) == 3 * 25 + 1 * 16
    with pytest.raises(UnsatisfiableError, match="value 0 has 9 of 12"):
        anatomy_buckets([9, 2, 1], 2)
