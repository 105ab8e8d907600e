"""How long before its first window a question is signed."""

import pytest
from fleetcount_simulator.network.windows import COST_S, Enrolment, lead_s

SHARED = ("shared", "grpc")
ENROL_S = COST_S[SHARED][0]


def enrolled(cores: float = 2.0, load: float = 0.0) -> Enrolment:
    """Return what 2,000 devices took on a machine of so many cores."""
    return Enrolment(devices={SHARED: 2_000}, seconds=2_000 * ENROL_S / cores, load=load)


def test_devices_join_side_by_side_as_far_as_there_are_processes_and_cores() -> None:
    assert lead_s(enrolled(), 1, 1) == pytest.approx(3 + 2.2)
    assert lead_s(enrolled(), 1, 2) == lead_s(enrolled(), 1, 4) == pytest.approx(3 + 1.1)
    assert lead_s(enrolled(), 101, 1) == pytest.approx(3 + 62.2)


def test_devices_join_as_slowly_as_they_enrolled() -> None:
    assert lead_s(enrolled(cores=0.5), 1, 1) == pytest.approx(3 + 4.4)


def test_a_busy_machine_is_given_longer_for_its_offer_but_not_without_an_end() -> None:
    assert lead_s(enrolled(load=3.0), 1, 2) == pytest.approx(9 + 1.1)
    assert lead_s(enrolled(load=40.0), 1, 2) == pytest.approx(12 + 1.1)
