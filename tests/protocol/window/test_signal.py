"""A signal has one spelling a vehicle would know; what looks like another one is refused or compares equal."""

import pytest
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.signal import check_signal, normal_signal


@pytest.mark.parametrize(
    "signal", ["S", "Vehicle.Speed", "Vehicle.Cabin.Door.Row1.DriverSide.IsOpen", "a_1", "A" * 200]
)
def test_paths_of_vehicles_are_taken(signal: str) -> None:
    check_signal(signal)


@pytest.mark.parametrize(
    "signal",
    [
        "",
        "Vehicle.Spe\u0435d",  # Cyrillic.
        "Vehicle. Speed",
        "Vehicle.Speed ",
        "Vehicle..Speed",
        ".Vehicle",
        "Vehicle.",
        "Vehicle.1Speed",
        "_Vehicle",
        "Vehicle-Speed",
        "Vehicle.Speed\n",
        "Vehicle.Spe\u200bed",
        "\uff36ehicle.Speed",
        "Vehicle.Geschwindigkeitsänderung",
        "A" * 201,
    ],
)
def test_look_alikes_are_refused(signal: str) -> None:
    with pytest.raises(QuestionError, match=r"signal is '.*', allowed: at most 200 of A-Z"):
        check_signal(signal)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Vehicle.Speed", "VEHICLE.speed"), ("e\u0301", "É"), ("straße", "STRASSE"), ("\u0345\u0301", "\u0301\u0345")],
)
def test_spellings_of_one_signal_compare_equal(one: str, other: str) -> None:
    assert normal_signal(one) == normal_signal(other)
    assert normal_signal(normal_signal(one)) == normal_signal(one)


def test_different_signals_stay_different() -> None:
    assert normal_signal("Vehicle.Speed") != normal_signal("Vehicle.Speed2")
