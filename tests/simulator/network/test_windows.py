"""How long before its first window a question is signed, and how long its windows are."""

import pytest
from fleetcount_simulator.network import windows
from fleetcount_simulator.network.machine_speed import Speed
from fleetcount_simulator.network.windows import COST_S, Enrolment, Windows, lead_s, windows_for, with_records

SHARED = ("shared", "grpc")
ENROL_S = COST_S[SHARED][0]


def enrolled(processes: int = 1, cores: float = 2.0, load: float = 0.0) -> Enrolment:
    """Return what 2,000 devices took on a machine of so many cores."""
    return Enrolment(devices={SHARED: 2_000}, processes=processes, seconds=2_000 * ENROL_S / cores, load=load)


def test_devices_join_side_by_side_as_far_as_there_are_processes_and_cores() -> None:
    assert lead_s(enrolled(1), 1) == pytest.approx(0.8 + 1.0)
    assert lead_s(enrolled(2), 1) == lead_s(enrolled(4), 1) == pytest.approx(0.8 + 0.5)
    assert lead_s(enrolled(1), 101) == pytest.approx(0.8 + 41.0)


def test_devices_join_as_slowly_as_they_enrolled() -> None:
    assert lead_s(enrolled(cores=0.5), 1) == pytest.approx(0.8 + 2.0)


def test_a_busy_machine_is_given_longer_for_its_offer_but_not_without_an_end() -> None:
    assert lead_s(enrolled(2, load=3.0), 1) == pytest.approx(2.4 + 0.5)
    assert lead_s(enrolled(2, load=40.0), 1) == pytest.approx(3.2 + 0.5)


def test_the_time_of_shares_is_this_machines_whatever_the_devices_took_to_enrol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "_machine_cores", lambda: 2)

    def round_two_s(share_s: float, cores: float, *, processes: int = 2) -> int:
        speed = Speed(share_s=share_s, verify_s=0.0)
        return windows_for(enrolled(processes, cores), 2, 2, speed).round_two_s

    # 2,000 devices with 10 ms of shares each, in two processes side by side: 10 s, and a fifth to spare.
    for cores in (0.25, 2.0):
        assert round_two_s(0.010, cores) - round_two_s(0.0, cores) == pytest.approx(12, abs=1)
    assert round_two_s(0.010, 2.0, processes=1) - round_two_s(0.0, 2.0) == pytest.approx(24, abs=1)


def test_before_each_step_there_is_time_for_the_record_and_to_read_it() -> None:
    steps = Windows(round_one_s=9, round_two_s=4, release_s=301, gap_s=1)

    idle, busy = with_records(steps, enrolled()), with_records(steps, enrolled(load=3.0))

    # Records are read within a fourth of round one: answers keep their nine seconds. 2,000 devices read for a second on
    # each of two cores, and have half as much to spare.
    assert (idle.round_one_s, idle.round_two_s) == (9 * 4 // 3 + 2, 4)
    assert (idle.gap_s, busy.gap_s) == (6, 18)
    assert with_records(steps, enrolled(cores=0.5)).round_one_s == 9 * 4 // 3 + 6
    many_reports = Windows(round_one_s=9, round_two_s=4, release_s=320, gap_s=20)
    assert with_records(many_reports, enrolled()).gap_s == 20


def test_the_time_that_asking_takes_holds_what_is_between_the_windows() -> None:
    steps = Windows(lead_s=1.2, round_one_s=9, round_two_s=4, release_s=301, gap_s=6)

    assert [steps.asking_s(windows) for windows in (1, 4)] == [2 + 13, 2 + 4 * 13 + 3 * 6]
