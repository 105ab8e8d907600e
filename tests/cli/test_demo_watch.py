"""`demo --watch`: what is refused before a page is served or a process started, and that errors reach the page."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleetcount_protocol.errors import MachineError
from fleetcount_site import serving


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--port", "8080"], "--port is 8080, which goes with --watch"),
        (["--watch", "--windows", "2"], "--windows is 2, allowed with --watch: 1"),
        (["--watch", "--drill-down"], "--drill-down goes without --watch"),
        (["--watch", "--port", "70000"], "70000"),
        (["--watch", "--mode", "direct", "--sampling-rate", "0.3"], "--sampling-rate goes with --mode sampling"),
        (["--watch", "--output", "FILE"], "exists and is not a directory"),
        (["--watch", "--port", "TAKEN"], "cannot listen on 127.0.0.1 port"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_served(
    tmp_path: Path, fleetcount: Callable[..., Any], words: list[str], refused: str
) -> None:
    (tmp_path / "file").write_text("x")
    with serving.listen() as taken:
        known = {"FILE": str(tmp_path / "file"), "TAKEN": str(taken.getsockname()[1])}
        output = [] if "FILE" in words else ["--output", str(tmp_path / "out")]

        ran = fleetcount("demo", *(known.get(word, word) for word in words), *output)

    assert (ran.code, ran.out) == (2, "")
    assert refused in ran.error_line
    assert not (tmp_path / "out").exists()


def test_a_missing_server_says_what_to_install(
    tmp_path: Path, fleetcount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fleetcount_site"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    ran = fleetcount("demo", "--watch", "--output", tmp_path / "out")

    assert (ran.code, ran.out) == (2, "")
    assert "needs the Python package 'uvicorn': pip install 'fleetcount[all]'" in ran.error_line


def test_an_error_of_the_run_is_told_to_the_page_and_to_the_caller(
    tmp_path: Path, fleetcount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcount_site.watch.events import EventWriter

    told: list[tuple[str, str]] = []
    keep = EventWriter.now

    def now(teller: EventWriter, state: str, text: str) -> None:
        told.append((state, text))
        keep(teller, state, text)

    def fails(teller: EventWriter, question: Any) -> None:
        raise MachineError("the disk is full")

    monkeypatch.setattr(EventWriter, "now", now)
    monkeypatch.setattr(EventWriter, "asked", fails)

    ran = fleetcount("demo", "--watch", "--vehicles", "20", "--output", tmp_path / "out")

    assert ran.code == 5
    assert ran.error_line == "fleetcount demo: the disk is full"
    assert told[-1] == ("failed", "fleetcount demo: the disk is full")
    assert ran.out.startswith("watch it at http://127.0.0.1:")


def test_an_interruption_is_told_to_the_page(
    tmp_path: Path, fleetcount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcount_site.watch.events import EventWriter

    told: list[tuple[str, str]] = []

    def interrupted(teller: EventWriter, question: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EventWriter, "now", lambda teller, state, text: told.append((state, text)))
    monkeypatch.setattr(EventWriter, "asked", interrupted)

    ran = fleetcount("demo", "--watch", "--vehicles", "20", "--output", tmp_path / "out")

    assert (ran.code, ran.err.splitlines()[-1]) == (130, "fleetcount demo: interrupted")
    assert told[-1] == ("interrupted", "Somebody ended the demo.")


def test_the_cars_of_sumo_are_waited_for_on_the_page_and_drive_on_no_street_of_bologna(
    tmp_path: Path, fleetcount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcount_simulator.demo_scenarios import Sighting
    from fleetcount_site.watch.events import EventWriter

    told: list[tuple[str, str]] = []
    asked: list[Any] = []

    def fails(teller: EventWriter, question: Any) -> None:
        asked.append(question)
        raise MachineError("the disk is full")

    cars = [[Sighting(x=10.0, y=10.0, speed_mps=3.0), None]]
    monkeypatch.setattr("fleetcount.show.demo_question.drive_fleet", lambda *how: cars)
    monkeypatch.setattr("fleetcount.show.demo.find_sumo", lambda: tmp_path)
    monkeypatch.setattr(EventWriter, "now", lambda teller, state, text: told.append((state, text)))
    monkeypatch.setattr(EventWriter, "asked", fails)

    ran = fleetcount("demo", "--watch", "--sumo", "--vehicles", "2", "--output", tmp_path / "out")

    assert ran.code == 5
    assert [text for state, text in told if state == "starting"][-1].startswith("SUMO drives the cars first")
    assert (asked[0].streets, asked[0].streets_by) == ([], "")
    assert asked[0].domain.values == 81
