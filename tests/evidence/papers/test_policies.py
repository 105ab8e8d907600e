"""Policies are relations between records; what is said about them is found by enumeration."""

import itertools
from collections.abc import Hashable
from fractions import Fraction

import pytest
from fleetcount_evidence.papers.asymmetric.policies import (
    AttributePolicy,
    EverythingProtected,
    Intersection,
    Monotonicity,
    OrPolicy,
    VectorPolicy,
    databases,
    exact_loss_ratio,
    find_boolean_policy,
    monotonicity,
    neighbours,
    place_policy,
    sensitivity,
    vector_place_policy,
    worst_case_risk,
)
from fleetcount_mechanisms.asymmetric import Direction, asymmetric_row
from fleetcount_mechanisms.errors import MechanismError

Trip = frozenset[Hashable]
NOWHERE: Trip = frozenset()
A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")
TRIPS: list[Trip] = [NOWHERE, A, B, BOTH]
Q = Fraction(1, 3)


def visits(database: tuple[Trip, ...]) -> tuple[int, int]:
    return sum("A" in trip for trip in database), sum("B" in trip for trip in database)


def at_a(database: tuple[Trip, ...]) -> tuple[int]:
    return (visits(database)[0],)


def noisy_counts(database: tuple[Trip, ...]) -> dict[tuple[int, ...], Fraction]:
    """The law of one AGeo answer for each place."""
    rows = [asymmetric_row(Q, count, len(database)) for count in visits(database)]
    return {
        answer: rows[0][answer[0]] * rows[1][answer[1]]
        for answer in itertools.product(range(len(database) + 1), repeat=2)
    }


OR = OrPolicy(may_leak=tuple(place_policy(place).may_leak for place in "AB"))
VECTOR = vector_place_policy("AB")


def is_neighbour(policy: VectorPolicy[Trip], database: tuple[Trip, ...], other: tuple[Trip, ...]) -> bool:
    """Tell whether exactly one record differs and the policy protects that change ([ADP] Def IV.1, corrected)."""
    changed = [(x, y) for x, y in zip(database, other, strict=True) if x != y]
    return len(changed) == 1 and policy.protects(*changed[0])


def test_a_visit_may_be_replaced_by_no_visit_and_not_the_other_way_round():
    policy = place_policy("A")

    assert policy.protects(A, NOWHERE)
    assert policy.protects(A, B)
    assert policy.protects(B, NOWHERE)
    assert not policy.protects(NOWHERE, A)
    assert not policy.protects(B, BOTH)


def test_the_enumeration_yields_exactly_the_pairs_of_the_relation():
    every = list(databases(TRIPS, 2))

    listed = set(neighbours(VECTOR, TRIPS, 2))

    assert listed == {(x, y) for x in every for y in every if is_neighbour(VECTOR, x, y)}
    assert len(every) == 16


def test_the_vector_policy_lets_a_trip_shrink_only():
    allowed = {(x, y) for x in TRIPS for y in TRIPS if x != y and VECTOR.protects(x, y)}

    assert allowed == {(x, y) for x in TRIPS for y in TRIPS if y < x}


def test_counts_decrease_along_the_vector_policy_and_its_sensitivity_is_the_number_of_places():
    assert monotonicity(visits, VECTOR, TRIPS, 2) == (Monotonicity.DECREASING, Monotonicity.DECREASING)
    assert sensitivity(visits, VECTOR, TRIPS, 2) == 2
    assert sensitivity(at_a, place_policy("A"), TRIPS, 2) == 1


def test_the_or_policy_is_not_monotone_for_two_places():
    assert monotonicity(visits, OR, TRIPS, 2) == (Monotonicity.NEITHER, Monotonicity.NEITHER)
    assert OR.protects(A, B)
    assert OR.protects(B, A)


def test_monotonicity_tells_constant_and_increasing_queries():
    came = AttributePolicy[Trip](may_leak=lambda trip: "A" in trip)

    assert monotonicity(lambda _: (7,), VECTOR, TRIPS, 1) == (Monotonicity.CONSTANT,)
    assert monotonicity(at_a, came, TRIPS, 2) == (Monotonicity.INCREASING,)
    assert monotonicity(at_a, EverythingProtected(), TRIPS, 2) == (Monotonicity.NEITHER,)


def test_one_sided_noise_satisfies_the_vector_policy_with_exactly_its_sensitivity_times_eps():
    assert exact_loss_ratio(noisy_counts, VECTOR, TRIPS, 2) == 1 / Q**2


def test_one_sided_noise_has_no_finite_loss_under_the_or_policy():
    assert exact_loss_ratio(noisy_counts, OR, TRIPS, 2) is None


def test_one_sided_noise_has_no_finite_loss_under_ordinary_differential_privacy():
    assert exact_loss_ratio(noisy_counts, EverythingProtected(), TRIPS, 2) is None


def test_increasing_noise_serves_the_opposite_policy():
    came = AttributePolicy[Trip](may_leak=lambda trip: "A" in trip)

    def law(database: tuple[Trip, ...]) -> dict[int, Fraction]:
        return dict(enumerate(asymmetric_row(Q, visits(database)[0], 2, Direction.INCREASING)))

    assert exact_loss_ratio(law, came, TRIPS, 2) == 1 / Q
    assert exact_loss_ratio(law, place_policy("A"), TRIPS, 2) is None


def test_composition_keeps_the_intersection_and_no_single_boolean_policy_equals_it():
    both = Intersection(parts=(place_policy("A"), place_policy("B")))

    assert all(both.protects(x, y) == VECTOR.protects(x, y) for x in TRIPS for y in TRIPS)
    assert find_boolean_policy(both, TRIPS) is None
    assert any(both.protects(x, y) != OR.protects(x, y) for x in TRIPS for y in TRIPS)


def test_a_boolean_policy_is_found_when_there_is_one():
    assert find_boolean_policy(place_policy("A"), TRIPS) == {NOWHERE, B}
    assert find_boolean_policy(OR, TRIPS) == {NOWHERE, A, B}


def law_of_one_trip() -> dict[Trip, dict[tuple[int, ...], Fraction]]:
    return {trip: noisy_counts((trip, BOTH)) for trip in TRIPS}


def test_that_a_place_was_not_visited_is_not_protected():
    assert worst_case_risk(law_of_one_trip(), lambda trip: "A" not in trip) is None


def test_nothing_but_the_leaking_fact_is_at_risk():
    """[ADP] Prop IV.4 and IV.5 for one place: any fact of a visitor, and any fact of a known non-visitor."""
    law = {trip: dict(enumerate(asymmetric_row(Q, int("A" in trip), 1))) for trip in TRIPS}

    assert worst_case_risk(law, lambda trip: "A" in trip and "B" in trip) == 1 / Q
    assert worst_case_risk({trip: law[trip] for trip in (NOWHERE, B)}, lambda trip: "B" in trip) == 1


def test_bad_arguments_are_refused_with_their_value():
    with pytest.raises(MechanismError, match="size 0"):
        databases(TRIPS, 0)
    with pytest.raises(MechanismError, match=r"4 records \*\* size 11"):
        databases(TRIPS, 11)
    with pytest.raises(MechanismError, match="17 records"):
        find_boolean_policy(EverythingProtected(), range(17))
    for empty in (VectorPolicy, OrPolicy):
        with pytest.raises(MechanismError, match="0 parts"):
            empty(may_leak=())
    with pytest.raises(MechanismError, match="0 parts"):
        Intersection(parts=())
