"""Why the older definitions do not do: the numbers and the infinite risks of section III of the ADP paper."""

import math
from fractions import Fraction

import pytest
from fleetcount_evidence.papers.asymmetric.osdp import (
    BlowfishPolicy,
    OneSidedPolicy,
    approximate_dp_delta_required,
    blowfish_revealing_law,
    blowfish_widest_one_sided,
    dp_epsilon_required,
    osdp_required_non_sensitive,
    osdp_revealing_law,
)
from fleetcount_evidence.papers.asymmetric.policies import (
    AttributePolicy,
    exact_loss_ratio,
    neighbours,
    place_policy,
    worst_case_risk,
)
from fleetcount_mechanisms.asymmetric import asymmetric_row
from fleetcount_mechanisms.errors import MechanismError

NOWHERE, A, B, BOTH = frozenset(), frozenset("A"), frozenset("B"), frozenset("AB")
TRIPS = [NOWHERE, A, B, BOTH]
KEEP = Fraction(1, 3)


def at_a(trip: frozenset[str]) -> bool:
    return "A" in trip


def test_pure_dp_needs_an_eps_of_8_5_for_one_false_answer_in_ten_thousand():
    assert dp_epsilon_required(1e-4, 0.5, 1) == pytest.approx(8.517, abs=5e-4)
    assert dp_epsilon_required(1e-4, 0.5, 2) == pytest.approx(8.517 / 2, abs=5e-4)
    assert dp_epsilon_required(0, 0.5, 1) == math.inf


def test_approximate_dp_needs_a_delta_of_4_5_percent():
    assert approximate_dp_delta_required(1, 0, 0.5, 3) == pytest.approx(0.045, abs=5e-4)
    assert approximate_dp_delta_required(1, 0.5, 0.5, 3) == 0


def test_osdp_protects_sensitive_records_only():
    policy = OneSidedPolicy(non_sensitive=frozenset({NOWHERE, B}))

    assert policy.protects(A, NOWHERE)
    assert policy.protects(A, BOTH)
    assert not policy.protects(NOWHERE, A)
    assert not policy.protects(B, NOWHERE)


def test_blowfish_is_symmetric():
    policy = BlowfishPolicy.from_pairs([(A, B)])

    assert policy.protects(A, B)
    assert policy.protects(B, A)
    assert not policy.protects(A, NOWHERE)


def count_law(database: tuple[frozenset[str], ...]) -> dict[int, Fraction]:
    return dict(enumerate(asymmetric_row(KEEP, sum(map(at_a, database)), len(database))))


def test_osdp_allows_one_sided_counts_only_when_every_non_visitor_is_non_sensitive():
    """Eq 11 with its misprint corrected: shrinking the required set by any one record makes the loss unbounded."""
    required = osdp_required_non_sensitive(TRIPS, at_a)

    assert required == {NOWHERE, B}
    assert exact_loss_ratio(count_law, OneSidedPolicy(non_sensitive=required), TRIPS, 2) == 1 / KEEP
    for record in required:
        assert exact_loss_ratio(count_law, OneSidedPolicy(non_sensitive=required - {record}), TRIPS, 2) is None
    printed = frozenset({A, BOTH})
    assert exact_loss_ratio(count_law, OneSidedPolicy(non_sensitive=printed), TRIPS, 2) is None


def test_blowfish_allows_one_sided_counts_only_without_an_edge_across_the_visit():
    widest = blowfish_widest_one_sided(TRIPS, at_a)

    assert widest.edges == {frozenset({NOWHERE, B}), frozenset({A, BOTH})}
    assert exact_loss_ratio(count_law, widest, TRIPS, 2) == 1
    crossed = BlowfishPolicy(edges=widest.edges | {frozenset({A, NOWHERE})})
    assert exact_loss_ratio(count_law, crossed, TRIPS, 2) is None


def test_osdp_holds_while_every_fact_about_a_non_visitor_is_told():
    policy = OneSidedPolicy(non_sensitive=osdp_required_non_sensitive(TRIPS, at_a))
    law = osdp_revealing_law(policy, KEEP, TRIPS)

    assert exact_loss_ratio(lambda database: law[database[0]], policy, TRIPS, 1) == 1 / KEEP
    assert worst_case_risk(law, lambda trip: not at_a(trip) and "B" in trip) is None


def test_adp_with_the_same_leak_refuses_the_mechanism_that_osdp_lets_pass():
    policy = OneSidedPolicy(non_sensitive=osdp_required_non_sensitive(TRIPS, at_a))
    law = osdp_revealing_law(policy, KEEP, TRIPS)

    assert exact_loss_ratio(lambda database: law[database[0]], place_policy("A"), TRIPS, 1) is None


def test_osdp_is_weaker_than_adp_in_exactly_the_pairs_of_non_sensitive_records():
    non_sensitive = osdp_required_non_sensitive(TRIPS, at_a)
    one_sided = set(neighbours(OneSidedPolicy(non_sensitive=non_sensitive), TRIPS, 1))
    policy: AttributePolicy[frozenset[str]] = AttributePolicy(may_leak=lambda trip: trip in non_sensitive)

    asymmetric = set(neighbours(policy, TRIPS, 1))

    assert asymmetric - one_sided == {((NOWHERE,), (B,)), ((B,), (NOWHERE,))}
    assert one_sided <= asymmetric


def test_blowfish_holds_while_the_visit_itself_is_told_either_way():
    law = blowfish_revealing_law(TRIPS, at_a)

    assert exact_loss_ratio(lambda database: law[database[0]], blowfish_widest_one_sided(TRIPS, at_a), TRIPS, 1) == 1
    assert worst_case_risk(law, at_a) is None
    assert worst_case_risk(law, lambda trip: not at_a(trip)) is None


def test_bad_arguments_are_refused_with_their_value():
    with pytest.raises(MechanismError, match=r"\[1\]"):
        BlowfishPolicy(edges=frozenset({frozenset({A})}))
    with pytest.raises(MechanismError, match="beta 0"):
        dp_epsilon_required(0.1, 0, 1)
    with pytest.raises(MechanismError, match="steps 0"):
        approximate_dp_delta_required(1, 0, 0.5, 0)
    with pytest.raises(MechanismError, match="3/2"):
        osdp_revealing_law(OneSidedPolicy(non_sensitive=frozenset({A})), Fraction(3, 2), TRIPS)
