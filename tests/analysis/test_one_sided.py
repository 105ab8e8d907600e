"""One-sided maps: one answer is never wrong, and is found as often as the law says."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_analysis.one_sided import (
    competitor_probabilities,
    expected_yield,
    found_probabilities,
    one_sided_map,
)
from fleetcount_mechanisms.asymmetric import noisy_sum_detection, optimal_detection
from fleetcount_mechanisms.one_sided_geometric import OneSidedGeometric
from fleetcount_mechanisms.randomness import SeededRandom

CITY = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["adp.city"]
COUNTS = np.concatenate([np.repeat([0, 1, 2], CITY["h012"]), CITY["busy"]])
ONE = Fraction(1)


def test_the_paper_city_gives_its_golden_yield() -> None:
    assert COUNTS.size == 5835

    assert expected_yield(COUNTS, 2, ONE) == pytest.approx(CITY["answers"], rel=1e-12)
    competitor = competitor_probabilities(COUNTS, 2, ONE, Fraction(1, 10**4))
    assert competitor.sum() == pytest.approx(CITY["answers_eps_delta"], rel=1e-12)


@pytest.mark.parametrize("aggregators", [1, 2, 3])
def test_the_certain_answer_is_found_as_often_as_the_law_says(aggregators: int) -> None:
    for count in range(4):
        found = found_probabilities([count], 3, ONE, aggregators)[0]

        assert found == pytest.approx(noisy_sum_detection(ONE, 3 - count, aggregators), rel=1e-12)
    assert found_probabilities([4, 900], 3, ONE, aggregators).tolist() == [0, 0]


def test_one_noise_reaches_the_optimum() -> None:
    assert found_probabilities([1], 3, ONE)[0] == pytest.approx(optimal_detection(ONE, 3), rel=1e-12)


def test_safe_is_never_wrong_and_is_found_at_the_predicted_rate() -> None:
    source, law = SeededRandom(3), OneSidedGeometric(ONE)
    noise = np.array(law.sample_many(source, COUNTS.size)) + np.array(law.sample_many(source, COUNTS.size))

    found = one_sided_map((COUNTS + noise).tolist(), 2)

    assert not np.any(found.proven & (COUNTS > 2))
    expected = expected_yield(COUNTS, 2, ONE, 2)
    deviation = np.sqrt((p := found_probabilities(COUNTS, 2, ONE, 2)) @ (1 - p))
    assert abs(found.proven.sum() - expected) < 5 * deviation
    assert abs(found.proven.sum() - expected_yield(COUNTS, 2, ONE, 1)) > 15 * deviation


def test_noise_of_the_other_sign_proves_the_other_side() -> None:
    reached = one_sided_map([5, 4, -1], 5, "down")

    assert reached.answers == ["reached", "not known", "not known"]
    np.testing.assert_allclose(
        found_probabilities([5, 7, 4], 5, ONE, 2, "down"), found_probabilities([5, 3, 6], 5, ONE, 2, "up")
    )


def test_thresholds_may_differ_by_cell() -> None:
    found = one_sided_map([3, 3, 9], [3, 2, 10])

    assert found.answers == ["safe", "not known", "safe"]
    assert found_probabilities([0, 3], [0, 5], ONE).tolist() == pytest.approx([-np.expm1(-1), -np.expm1(-3)])


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="one whole number, or one a cell"):
        one_sided_map([1, 2, 3], [1, 2])
    with pytest.raises(ShapeError, match="float64"):
        one_sided_map([1], 2.5)
    with pytest.raises(RangeError, match="direction is sideways"):
        one_sided_map([1], 2, "sideways")
    with pytest.raises(RangeError, match="epsilon above 0, aggregators 1 or more"):
        found_probabilities([1], 2, Fraction(0))
    with pytest.raises(RangeError, match="whole numbers from 0"):
        expected_yield([-1], 2, ONE)
