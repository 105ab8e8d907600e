"""Progress on a pipe is at most ten lines, and says how long it still takes when that is worth saying."""

from itertools import count

import pytest
from fleetcount.command.progress import BarProgress, LineProgress, duration_text
from fleetcount.show.demo import say_expected
from fleetcount_simulator.network.machine_speed import Speed
from fleetcount_simulator.network.windows import Enrolment, windows_for


def test_however_long_and_in_however_many_phases_there_are_at_most_ten_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = count(0, 7.0)  # Seven seconds a look at the clock: about ten hours in all.
    with LineProgress(lambda: next(now)) as progress:
        say_expected(progress, 50, 0)
        for phase in range(50):
            for done in range(101):
                progress.step(f"phase {phase}", done, 100)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[1].startswith("phase 0: ")
    assert lines[-1].startswith("done in 3")


@pytest.mark.parametrize(
    ("asking_s", "checking_s", "said"),
    [
        (4, 6, ""),
        (45, 3, "asking takes about 45 s, as measured on this machine\n"),
        (5, 900, "asking takes about 5 s, checking their reports up to about 15 min, as measured on this machine\n"),
    ],
)
def test_what_takes_more_than_ten_seconds_is_said_before(
    capsys: pytest.CaptureFixture[str], asking_s: int, checking_s: int, said: str
) -> None:
    say_expected(LineProgress(), asking_s, checking_s)

    assert capsys.readouterr().err == said


def test_many_values_take_longer_to_check_and_that_is_expected() -> None:
    enrolment = Enrolment(devices={("own", "grpc"): 2000}, processes=1, seconds=8.0)
    few, many = (
        windows_for(enrolment, 2, 2, Speed(share_s=0.0001 * values, verify_s=0.0001 * values)) for values in (10, 4095)
    )

    assert few.checking_s == 4
    assert 1638 <= many.checking_s <= 1639
    assert many.asking_s(1) > 20 * few.asking_s(1)


def test_a_line_says_about_how_long_its_phase_still_takes_and_at_its_end_how_long_it_took(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter([0.0, 0.0, 6.0, 12.0, 60.0])
    progress = LineProgress(lambda: next(times))
    for done in (0, 10, 20, 100):
        progress.step("verifying", done, 100)

    assert capsys.readouterr().err.splitlines() == [
        "verifying: 0 of 100",
        "verifying: 10 of 100, about 54 s left",
        "verifying: 20 of 100, about 48 s left",
        "verifying: 100 of 100 in 60.0 s",
    ]


def test_the_first_of_thousands_is_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 6.0, 12.0])
    progress = LineProgress(lambda: next(times))
    for done in (0, 1, 1000):
        progress.step("connecting", done, 2000)

    assert capsys.readouterr().err.splitlines() == [
        "connecting: 0 of 2000",
        "connecting: 1 of 2000",
        "connecting: 1000 of 2000, about 12 s left",
    ]


def test_what_is_over_soon_is_not_estimated_and_an_error_has_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 2.0])

    def fail() -> None:
        with LineProgress(lambda: next(times)) as progress:
            progress.step("drawing", 0, 2)
            progress.step("drawing", 1, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert capsys.readouterr().err.splitlines() == ["drawing: 0 of 2", "drawing: 1 of 2"]


def test_lengths_of_time_are_said_in_the_unit_that_fits() -> None:
    assert [duration_text(seconds) for seconds in (0.2, 119, 120, 7199, 7200)] == [
        "about 1 s",
        "about 119 s",
        "about 2 min",
        "about 120 min",
        "about 2 h",
    ]


@pytest.mark.parametrize(("columns", "bar"), [("40", False), ("120", True)])
def test_a_narrow_terminal_has_the_numbers_instead_of_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, bar: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with BarProgress() as progress:
        progress.step("round one", 7, 2000)

    said = capsys.readouterr().err
    assert "7/2000" in said
    assert "round one" in said
    assert ("-:--:--" in said) == bar  # The remaining time stands beside a bar alone.
