"""The demo's cars from SUMO: the same for a seed, on the road at every window, and without a word of the library."""

import json
import math
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.demo_scenarios import Fleet, Sighting
from fleetcount_simulator.populations import sumo_fleet
from fleetcount_simulator.populations.sumo_fleet import SUMO_GRID, drive_fleet, sumo_position, sumo_speed

pytestmark = pytest.mark.processes

CARS = 40

needs_sumo = pytest.mark.skipif(find_spec("libsumo") is None, reason="needs SUMO (`make nightly` installs it)")


@pytest.fixture(scope="module")
def fleets() -> list[Fleet]:
    return drive_fleet(CARS, 1, 2)


def check_driven(fleets: list[Fleet]) -> None:
    """Check that every car of every window is somewhere in the town, and no farther on than streets allow."""
    cells = [[SUMO_GRID.value_of(reading) for reading in window] for window in sumo_position(fleets).readings]

    assert {len(fleet) for fleet in fleets} == {CARS}
    assert all(0 not in window for window in cells)
    assert sum(sumo_position(fleets).truths()) == CARS
    for before, after in pairwise(fleets):
        assert before != after
        for first, second in zip(before, after, strict=True):
            assert first is not None
            assert second is not None
            assert math.dist((first.x, first.y), (second.x, second.y)) <= 60 * 20


@pytest.mark.nightly
@needs_sumo
def test_every_car_drives_on_from_window_to_window_within_the_town(fleets: list[Fleet]) -> None:
    check_driven(fleets)
    assert len(set(map(SUMO_GRID.value_of, sumo_position(fleets).readings[0]))) > 10


@pytest.mark.nightly
@needs_sumo
def test_the_same_seed_drives_the_same_over_traci_where_libsumo_cannot_be_loaded(
    fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sumo_fleet, "LIBRARIES", ("a_library_that_is_not_there", "traci"))

    over_traci, other_seed = drive_fleet(CARS, 1, 2), drive_fleet(CARS, 2, 1)

    assert over_traci == fleets
    assert other_seed[0] != fleets[0]
    assert capfd.readouterr() == ("", "")  # libsumo speaks of pyarrow when it is imported, traci of ports.


@pytest.mark.nightly
@needs_sumo
def test_a_library_that_cannot_drive_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sumo_fleet, "LIBRARIES", ("a_library_that_is_not_there",))

    with pytest.raises(UsageError, match=r"--sumo: SUMO cannot drive: ModuleNotFoundError: No module named 'a_lib.*'$"):
        drive_fleet(2, 1, 1)


@pytest.mark.processes
def test_cars_stay_on_the_road_from_window_to_window_and_no_word_of_a_library_is_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sumo_fleet, "find_spec", lambda name: object())
    monkeypatch.setattr(sumo_fleet, "sumo_home", lambda: tmp_path)
    monkeypatch.setattr(sumo_fleet, "_town", lambda sumo, directory: directory)
    monkeypatch.setattr(sumo_fleet, "LIBRARIES", ("a_library_that_is_not_there", "tests.support.driven_town"))

    fleets = drive_fleet(CARS, 1, 3)

    check_driven(fleets)
    assert len({sighting.x for sighting in fleets[0] if sighting}) > 10
    assert capfd.readouterr() == ("", "")


def test_a_missing_sumo_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sumo_fleet, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"pip install 'fleetcount\[traffic\]'"):
        drive_fleet(2, 1, 1)


def test_a_car_that_waits_or_is_lifted_out_of_a_jam_answers_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What SUMO gives for the place of a car that is on no road.
    nowhere = -1_073_741_824.0
    places = json.loads(json.dumps([{"0": (30.0, 30.0, 5.0), "2": (nowhere, nowhere, nowhere)}]))
    monkeypatch.setattr(sumo_fleet, "find_spec", lambda name: object())
    monkeypatch.setattr(sumo_fleet, "sumo_home", lambda: tmp_path)
    monkeypatch.setattr(sumo_fleet, "_town", lambda sumo, directory: directory)
    monkeypatch.setattr(sumo_fleet, "_driven", lambda plan, home, directory: places)

    (fleet,) = drive_fleet(3, 1, 1)

    assert fleet == [Sighting(x=30.0, y=30.0, speed_mps=5.0), None, None]
    assert sumo_position([fleet]).readings == (((30.0, 30.0), None, None),)
    assert sumo_speed([fleet]).readings == ((18.0, None, None),)
