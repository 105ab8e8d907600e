"""Safe, in danger or not known: never wrong from one-sided noise, right together from intervals; when SALap wins."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.sides import both_sides, compare_one_sided, sides_of_intervals
from fleetcount_analysis.answers.table import Region
from fleetcount_analysis.errors import AnalysisError, RangeError
from fleetcount_mechanisms.answers import Side
from fleetcount_mechanisms.asymmetric import ratio_above
from fleetcount_mechanisms.noise import OneSidedNoise
from fleetcount_mechanisms.randomness import SeededRandom

from tests.analysis.answers.samples import NOISE, direct, random_table, table_of
from tests.support.geometric_noise import geometric_noise
from tests.support.plain_sparse_vector import expected_correct_safe


def test_one_sided_noise_on_both_sides_is_never_wrong() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 12, 20_000)
    up, down = (
        truth + generator.negative_binomial(2, 0.4, truth.size),
        truth - generator.negative_binomial(2, 0.4, truth.size),
    )

    found = both_sides(up.tolist(), down.tolist(), 5)

    sides = np.array(found.sides)
    assert np.all(truth[sides == Side.SAFE] <= 5)
    assert np.all(truth[sides == Side.DANGER] > 5)
    assert {one: int(np.sum(sides == one)) > 1000 for one in Side} == dict.fromkeys(Side, True)
    assert found.wrong == 0


def test_a_threshold_for_every_cell() -> None:
    found = both_sides([3, 9, 9], [1, 8, 2], [3, 7, 5])

    assert [one.value for one in found.sides] == ["safe", "danger", "not known"]


def test_sides_of_intervals_are_right_together() -> None:
    runs, counts = 400, np.array([0, 5, 30, 60, 25, 26])
    noise = geometric_noise(NOISE.epsilon, 2 * runs * 6, SeededRandom(2)).reshape(2, runs, 6).sum(axis=0)
    table = table_of(direct(6), (counts + noise).tolist())
    right = said = 0
    for window in range(runs):
        sides = sides_of_intervals(table, Region.of(range(1, 7), window), 25).sides
        safe = [Side.SAFE if count <= 25 else Side.DANGER for count in counts]
        right += all(side in (Side.UNKNOWN, truth) for side, truth in zip(sides, safe, strict=True))
        said += sum(side is not Side.UNKNOWN for side in sides)

    # At 95 % fewer than 357 of 400 have probability 5e-7.
    assert right >= 357
    assert said > 2 * runs


def test_one_release_of_noise_that_only_adds_shows_both_sides() -> None:
    generator = np.random.default_rng(3)
    counts, runs = np.array([0, 4, 5, 6, 14, 40]), 400
    noise = generator.negative_binomial(2, -np.expm1(-0.5), (runs, 6))
    table = table_of(direct(6, OneSidedNoise(Fraction(1, 2))), (counts + noise).tolist())
    right, found = 0, set[Side]()
    for window in range(runs):
        shown = sides_of_intervals(table, Region.of(range(1, 7), window), 5)
        safe = [one is Side.SAFE for one in shown.sides]
        danger = [one is Side.DANGER for one in shown.sides]
        assert not any(np.array(safe) & (counts > 5)), "safe is never wrong"
        right += not any(np.array(danger) & (counts <= 5))
        found |= set(shown.sides)

    # At 95 % fewer than 357 of 400 have probability 5e-7.
    assert right >= 357
    assert found == set(Side)
    assert shown.guarantee.startswith('"safe" is never wrong; all "danger" together are right with 0.95')


def test_the_sparse_vector_is_that_of_the_mechanism_and_wins_where_one_device_moves_many_counts() -> None:
    counts, thresholds = [0, 1, 0, 2, 0, 7, 0, 1, 0, 9], [4] * 10

    one, many = (compare_one_sided(counts, thresholds, Fraction(1), moved=moved) for moved in (1, 10))

    for aborts, found in one.sparse.items():
        exact = expected_correct_safe(ratio_above(Fraction(1, aborts)), counts, thresholds, aborts)
        assert found == pytest.approx(float(exact), rel=1e-12)
    assert one.sparse == many.sparse
    assert max(one.sparse.values()) <= one.every_cell
    assert max(many.sparse, key=lambda aborts: many.sparse[aborts]) in (1, 2)
    assert max(many.sparse.values()) > many.every_cell
    assert many.sparse[1] > 1.5 * many.every_cell


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: both_sides([1], [1, 2], 3), "1 outputs upwards and 2"),
        (lambda: both_sides([3], [4], 3), "cell is 1, both safe and in danger"),
        (lambda: sides_of_intervals(random_table(direct()), Region.of(1, 0), [1, 2]), r"thresholds of shape \(2,\)"),
        (lambda: compare_one_sided([1], [2], Fraction(0), moved=1), "epsilon above 0"),
        (lambda: compare_one_sided([1], [2], Fraction(1), moved=1, aborts=(0,)), "aborts is"),
        (lambda: compare_one_sided([1], [2.5], Fraction(1), moved=1), r"thresholds is \(2.5,\).*whole numbers"),
    ],
)
def test_bad_sides_are_refused(ask, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        ask()


def test_an_impossible_pair_of_outputs_names_the_cell() -> None:
    with pytest.raises(RangeError, match="cell is 2"):
        both_sides([9, 2], [0, 8], 5)
