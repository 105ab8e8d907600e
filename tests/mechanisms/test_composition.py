"""What several releases cost together, against golden numbers, brute force and dp-accounting."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_evidence.papers.asymmetric.policies import (
    Intersection,
    exact_loss_ratio,
    place_policy,
    vector_place_policy,
)
from fleetcount_mechanisms.asymmetric import asymmetric_row
from fleetcount_mechanisms.composition import (
    basic_epsilon,
    optimal_epsilon,
    optimal_epsilon_per_query,
    optimal_epsilon_repeated,
    optimal_loss_approximate,
)
from fleetcount_mechanisms.errors import MechanismError
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())
DELTA = Fraction(1, 10**6)


def exact(number: float) -> Fraction:
    return Fraction(str(number))


@pytest.mark.parametrize("row", GOLDEN["kov"])
def test_the_optimum_matches_the_golden_numbers(row: dict[str, float]):
    total = optimal_epsilon_repeated(exact(row["eps"]), int(row["Q"]), exact(row["delta"]))

    assert total == pytest.approx(row["total"], abs=1e-9)


@pytest.mark.parametrize("row", GOLDEN["kov.inverse"])
def test_the_inverse_matches_the_golden_numbers(row: dict[str, float]):
    epsilon = optimal_epsilon_per_query(exact(row["total"]), int(row["Q"]), exact(row["delta"]))

    assert float(epsilon) == pytest.approx(row["eps"], abs=1e-9)


def brute_force_delta(epsilons: list[float], total: float) -> float:
    """Enumerate all outcomes of one randomized response a release."""
    excess = []
    for bits in itertools.product((0, 1), repeat=len(epsilons)):
        weights = [math.exp(e) / (1 + math.exp(e)) for e in epsilons]
        first = math.prod(w if bit else 1 - w for w, bit in zip(weights, bits, strict=True))
        second = math.prod(1 - w if bit else w for w, bit in zip(weights, bits, strict=True))
        excess.append(max(0.0, first - math.exp(total) * second))
    return math.fsum(excess)


@pytest.mark.parametrize("epsilons", [[0.1] * 6, [0.5, 0.5, 0.1, 1.3], [2.0], [0.3, 0.2, 0.1, 0.7, 0.7, 0.7]])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
def test_eps_agrees_with_the_enumeration_of_all_outcomes(epsilons: list[float], share: float):
    total = share * sum(epsilons)
    delta = brute_force_delta(epsilons, total)

    assert optimal_epsilon([exact(e) for e in epsilons], Fraction(delta)) == pytest.approx(total, abs=1e-9)


@given(
    st.lists(st.fractions(min_value=Fraction(1, 50), max_value=2, max_denominator=50), min_size=1, max_size=5),
    st.fractions(min_value=0, max_value=Fraction(1, 10), max_denominator=10**6),
)
def test_the_optimum_is_never_above_the_basic_sum_and_its_delta_comes_back(epsilons: list[Fraction], delta: Fraction):
    total = optimal_epsilon(epsilons, delta)

    assert total <= float(basic_epsilon(epsilons)) * (1 + 1e-12)
    spent = brute_force_delta([float(one) for one in epsilons], total)
    assert spent <= float(delta) + 1e-12


def test_without_delta_the_optimum_is_the_basic_sum_rounded_up():
    total = optimal_epsilon_repeated(Fraction(1, 10), 20, Fraction(0))

    assert 2 <= total < 2 + 1e-12


def test_whole_numbers_are_numbers_as_fractions_are():
    one = Fraction(1)

    assert optimal_epsilon([1, 1], 0) == optimal_epsilon([one, one], Fraction(0))
    assert optimal_epsilon_per_query(1, 2, 0) == optimal_epsilon_per_query(one, 2, Fraction(0)) == Fraction(1, 2)
    assert optimal_loss_approximate(1, 0, 3, 0) == optimal_loss_approximate(one, Fraction(0), 3, Fraction(0)) == 3


def test_nothing_released_costs_nothing():
    assert basic_epsilon([]) == 0
    assert optimal_epsilon([], DELTA) == 0


def test_the_inverse_is_the_largest_share_that_fits():
    total, step = Fraction(1), Fraction(1, 10**12)

    share = optimal_epsilon_per_query(total, 24, DELTA)

    assert optimal_epsilon_repeated(share, 24, DELTA) <= total < optimal_epsilon_repeated(share + step, 24, DELTA)
    assert share > total / 24


def test_the_inverse_of_one_query_without_delta_is_the_total():
    assert optimal_epsilon_per_query(Fraction(1, 3), 1, Fraction(0)) == Fraction(1, 3)


def test_a_large_loss_needs_no_float_exponential():
    assert optimal_epsilon_repeated(Fraction(700), 3, Fraction(0)) == pytest.approx(2100, abs=1e-6)


TRIPS = [frozenset(), frozenset("A"), frozenset("B"), frozenset("AB")]
RATIO = Fraction(1, 3)


def count_law(place: str, database: tuple[frozenset[str], ...]) -> dict[int, Fraction]:
    return dict(enumerate(asymmetric_row(RATIO, sum(place in trip for trip in database), len(database))))


def joint_law(database: tuple[frozenset[str], ...]) -> dict[tuple[int, int], Fraction]:
    first, second = count_law("A", database), count_law("B", database)
    return {(a, b): first[a] * second[b] for a in first for b in second}


def test_asymmetric_losses_add_up_over_the_intersection_of_the_relations():
    together = Intersection(parts=tuple(place_policy(place) for place in "AB"))

    assert all(together.protects(x, y) == vector_place_policy("AB").protects(x, y) for x in TRIPS for y in TRIPS)
    assert exact_loss_ratio(joint_law, together, TRIPS, 2) == 1 / RATIO**2


def test_either_relation_alone_does_not_survive_the_composition():
    assert exact_loss_ratio(joint_law, place_policy("A"), TRIPS, 2) is None


@pytest.mark.nightly
@pytest.mark.parametrize(("epsilon", "queries"), [(0.1, 100), (0.5, 10), (0.05, 40)])
def test_the_optimum_agrees_with_dp_accounting(epsilon: float, queries: int):
    pld = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="needs dp-accounting (`make nightly` installs it)"
    )
    common = pytest.importorskip("dp_accounting.pld.common", reason="needs dp-accounting (`make nightly` installs it)")
    one = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0), value_discretization_interval=1e-5
    )

    peer = one.self_compose(queries).get_epsilon_for_delta(1e-6)

    ours = optimal_epsilon_repeated(exact(epsilon), queries, DELTA)
    # dp-accounting rounds losses up to a grid, so it may only be above, by at most a grid step a query.
    assert -1e-9 < peer - ours < queries * 1e-5


@pytest.mark.parametrize("bad", [Fraction(0), Fraction(-1), Fraction(701), 0.5])
def test_a_loss_out_of_range_or_in_floating_point_is_refused(bad: Fraction):
    with pytest.raises(MechanismError, match="epsilon"):
        basic_epsilon([bad])
    with pytest.raises(MechanismError, match="epsilon"):
        optimal_epsilon([Fraction(1), bad], DELTA)


def test_bad_arguments_are_refused_with_their_value():
    with pytest.raises(MechanismError, match="delta is 1;"):
        optimal_epsilon([Fraction(1)], Fraction(1))
    with pytest.raises(MechanismError, match="queries must be an int, not float"):
        optimal_epsilon_repeated(Fraction(1), 2.5, Fraction(0))
    with pytest.raises(MechanismError, match="queries is 0"):
        optimal_epsilon_repeated(Fraction(1), 0, DELTA)
    with pytest.raises(MechanismError, match="20 different eps"):
        optimal_epsilon([Fraction(1, n) for n in range(1, 21)], DELTA)
