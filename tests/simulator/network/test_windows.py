"""How long before its first window a question is signed."""

import pytest
from fleetcount_simulator.network import windows
from fleetcount_simulator.network.windows import lead_s


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "cores_here", lambda: 2)


def test_devices_join_side_by_side_as_far_as_there_are_processes_and_cores() -> None:
    alone = lead_s(2_000, 1, 1, 0.0)

    assert alone == pytest.approx(3 + 11)
    assert lead_s(2_000, 1, 2, 0.0) == lead_s(2_000, 1, 4, 0.0) == pytest.approx(3 + 5.5)
    assert lead_s(2_000, 101, 1, 0.0) == pytest.approx(3 + 111)


def test_a_busy_machine_is_given_longer_but_not_without_an_end() -> None:
    idle = lead_s(2_000, 1, 2, 0.5)

    assert lead_s(2_000, 1, 2, 3.0) == pytest.approx(3 * idle)
    assert lead_s(2_000, 1, 2, 40.0) == pytest.approx(4 * idle)
