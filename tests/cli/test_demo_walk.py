"""The demo's drill-down: what it asks, and what it says and writes of a walk whose every record is signed."""

import csv
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount.command.base import RefusedByPolicyError
from fleetcount.show.demo import check_whole, finish
from fleetcount.show.demo_question import DemoQuestion, question_of
from fleetcount.show.demo_results import drawn, window_line
from fleetcount.show.demo_walk import step_lines
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.messages import ReleaseAnswer, WindowState
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.record import ReleaseRecord, sign_record
from fleetcount_protocol.release.walk import next_step
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.counted import Account
from fleetcount_simulator.network.run import QuestionAsked, WindowAsked

from tests.cli.test_demo import options, processes_of, start
from tests.support.protocol_samples import record, signing_key
from tests.support.question_samples import HOURLY, drill_down_question, sign_everywhere

FILES = ["00000.json", "00001.json", "00002.json", "00003.json", "chances.png", "chances.svg", "comparison.csv"]
FILES += ["map.png", "map.svg", "places.csv", "places.geojson", "question", "trusted.toml"]


@pytest.fixture(scope="module")
def question() -> DemoQuestion:
    return question_of(options(drill_down=True, vehicles=2000, epsilon=None, mode="direct"))


def counted(question: DemoQuestion, window: Window, before: ReleaseRecord | None) -> ReleaseRecord:
    """Return the record of a step without any noise, which is as likely as any."""
    assert isinstance(window.domain, Prefixes)
    truths = Counter(window.domain.value_of(reading) for reading in question.scenario.readings[0])
    index = window.question.index
    link = ChainLink(
        previous=before.digest if before else None, previous_index=index - 1 if before else None, missing=()
    )
    made = record(window, chain=link)
    cells = (replace(one, raw=truths[one.value], estimate=Fraction(truths[one.value])) for one in made.cells)
    return replace(made, cells=tuple(cells))


def walked(demo: DemoQuestion, steps: int = 4, *, most: int | None = None, late_s: int | None = None) -> QuestionAsked:
    """Return the demo's walk as its runner would, up to so many steps.

    In the last of them cells have `most` at most, and the record comes `late_s` after the next one opens.
    """
    question: Question = drill_down_question(
        domain=demo.scenario.domain,
        drill_down=demo.walk,
        mode=demo.network.mode,
        mechanism=demo.network.mechanism,
        release=demo.network.release,
        schedule=replace(HOURLY, windows=4, round_two_s=600 if demo.network.two_rounds else 0),
    )
    windows: list[WindowAsked] = []
    survivors: Any = ()
    before: ReleaseRecord | None = None
    for index in range(steps):
        window = window_at(question, index, survivors)
        before = counted(demo, window, before)
        if most is not None and index == steps - 1:
            cells = (
                replace(one, raw=min(one.raw, most), estimate=Fraction(min(one.raw, most))) for one in before.cells
            )
            before = replace(before, cells=tuple(cells))
        if late_s is not None and index == steps - 1:
            before = replace(before, released_at=question.schedule.opens(index + 1) + late_s)
        signatures = tuple(sign_record(before, signing_key(position)) for position in range(2))
        answer = ReleaseAnswer(state=WindowState.RELEASED, record=before.canonical, signatures=signatures)
        values = [window.domain.value_of(reading) for reading in demo.scenario.readings[index]]
        account = Account(counted=np.bincount(values), missing=0)
        windows.append(
            WindowAsked(
                window=window, record=before, answer=answer, account=account, reasons={}, stages={}, broker="mosquitto"
            )
        )
        survivors = next_step(question, before) if index < steps - 1 else ()
    return QuestionAsked(signed=sign_everywhere(question), windows=tuple(windows))


@pytest.mark.parametrize("mode", ["sampling", "direct"])
def test_all_steps_of_a_walk_together_keep_the_promise_that_was_asked_for(mode: str) -> None:
    asked = question_of(options(drill_down=True, vehicles=200, epsilon=Fraction(3), mode=mode))
    question = walked(asked, 1).signed.question

    views = question_views(question.design, question.shape, Fraction(1, 10**9))

    # One answer is a truth told at all four levels, and so is all that a device says.
    assert question.shape.levels == 4
    public = [one.epsilon for one in views if one.adversary == "public_and_broker"]
    assert len(public) == 3
    assert all(epsilon is not None and Fraction("2.99") < epsilon <= 3 for epsilon in public)


def test_a_walk_is_told_beside_the_truth_and_can_be_read_again(
    question: DemoQuestion, tmp_path: Path, capsys: pytest.CaptureFixture[str], fleetcount: Callable[..., Any]
) -> None:
    output = tmp_path / "out"
    assert question.walk is not None
    truths = Counter(reading for reading in question.scenario.readings[0] if reading is not None)
    heavy = {place: count for place, count in truths.items() if count >= question.walk.threshold}
    many = len(heavy)

    finish(question, options(output=output, drill_down=True), walked(question))

    said = " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in output.iterdir()) == FILES
    with (output / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Without noise all that is heavy is found, and nothing else.
    assert {int(row["place"], 16): int(row["truth"]) for row in rows} == heavy
    assert all(float(row["low"]) <= int(row["truth"]) <= float(row["high"]) for row in rows)
    assert f"in truth {many} places have {question.walk.threshold} or more, {many} of them were found" in said
    assert "0 with fewer were found too" in said
    assert "step 4 of 4:" in said
    assert re.search(
        r"1,000 walks drawn over the same morning, all vehicles counted: on average each finds [5-9]", said
    )
    assert "one operator is honest" in said
    shown = json.loads((output / "places.geojson").read_text())["features"]
    assert [one["properties"]["truth"] for one in shown if "truth" in one["properties"]] == [
        int(row["truth"]) for row in rows
    ]
    ran = fleetcount("question", "places", "--records", output, "--output", tmp_path / "again.csv")
    assert f"walk 0: {many} places of 32 bits" in ran.out, ran
    assert (tmp_path / "again.csv").read_text() == (output / "places.csv").read_text()


def test_a_walk_without_busy_squares_says_so_and_has_a_result(
    question: DemoQuestion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(question, options(output=tmp_path / "out", drill_down=True), walked(question, 3, most=22))

    said = " ".join(capsys.readouterr().out.split())
    assert "the walk ended there: no square reached the threshold of 23: the largest estimate is 22.0" in said
    assert "0 places of 128 m found" in said
    assert "not found" in said


def test_a_walk_whose_record_came_late_is_told_and_fails_with_how_late(
    question: DemoQuestion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = walked(question, 2, late_s=60)

    with pytest.raises(MachineError, match=r"^the walk ended after step 2 of 4: its record came 60 s after the next"):
        finish(question, options(output=tmp_path / "out", drill_down=True), found)

    assert "the walk ended there: its record came 60 s after" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "out" / "places.csv").exists()


@pytest.mark.parametrize(
    ("state", "error", "why"),
    [
        (None, MachineError, "no aggregator had the record in time; this machine is too busy"),
        ("too_few_reports", RefusedByPolicyError, "too_few_reports: 2000 vehicles hold every receipt, and 10 reports"),
        ("leader_slow", RefusedByPolicyError, "the aggregators ended it: leader_slow"),
    ],
)
def test_what_was_not_released_fails_with_its_reason_in_every_form(
    question: DemoQuestion, tmp_path: Path, state: str | None, error: type[Exception], why: str
) -> None:
    found = walked(question, 2)
    first, last = found.windows
    answer = None if state is None else ReleaseAnswer(state=WindowState.ABORTED, abort_reason=state)
    last = replace(last, record=None, answer=answer)
    found = replace(found, windows=(first, last))

    with pytest.raises(error, match=f"^1 of 2 windows were released, not window 1: {why}"):
        check_whole(found)
    assert f"; not released: {why}" in list(step_lines(found, 2000))[-1]
    assert f"window 1: not released: {why}" in window_line(1, last, [], 2000)
    with pytest.raises(error, match=f"was not released: {why}"):
        finish(question, options(output=tmp_path / "none"), replace(found, windows=(last,)))
    assert not (tmp_path / "none").exists()


def test_a_picture_that_cannot_be_drawn_is_said_and_the_results_are_written(
    question: DemoQuestion, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "matplotlib":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    # Whatever was imported before, by this test's process or not: the first to be missed is the package itself.
    for name in [name for name in sys.modules if name.startswith(("fleetcount_analysis.figures", "matplotlib"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])

    finish(question, options(output=tmp_path / "out", drill_down=True), walked(question, 2))

    said = capsys.readouterr()
    assert "not drawn: map.svg, map.png; needs the package matplotlib" in said.err
    assert "map.svg" not in said.out
    assert (tmp_path / "out" / "places.csv").exists()


def test_a_moving_picture_that_cannot_be_made_is_said_and_a_bug_is_not_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)

    def joins() -> None:
        from PIL import Image

        assert Image

    def broken() -> None:
        import fleetcount.no_such_module  # type: ignore[import-not-found] # noqa: F401 # as its name says

    assert drawn(["time-lapse.gif"], joins) == []
    assert "not drawn: time-lapse.gif; needs the package Pillow" in capsys.readouterr().err
    assert drawn(["a"], lambda: None) == ["a"]
    with pytest.raises(ModuleNotFoundError):
        drawn(["a"], broken)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"windows": 2}, "--windows is 2, allowed with --drill-down: 1"),
        ({"truths": Path("t.csv")}, "--truths goes without --drill-down"),
        ({"mode": "mangat"}, "--mode is 'mangat', allowed with --drill-down: sampling, direct"),
        ({"mode": "direct", "sampling_rate": Fraction(1, 4)}, "--sampling-rate goes with --mode sampling"),
        ({"mode": "direct", "vehicles": 20, "epsilon": Fraction(1, 2)}, r"a threshold of \d+, above all 20 vehicles"),
    ],
)
def test_what_a_walk_cannot_be_asked_with_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        question_of(options(drill_down=True, **changes))


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_small_fleet_walks_to_its_busy_places(tmp_path: Path, fleetcount: Callable[..., Any]) -> None:
    output = tmp_path / "out"
    process = start(output, "--drill-down", "--vehicles", "300", "--epsilon", "10", "--mode", "direct")
    out, err = process.communicate(timeout=800)

    assert process.returncode == 0, err
    assert out.count("300 of 300 vehicles hold every receipt") == 4
    assert sorted(path.name for path in output.iterdir()) == FILES
    with (output / "comparison.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["low"]]
    # The sum of two draws at e1 = 5/4 is as far as 30 with chance 1e-15.
    assert all(math.isclose(float(row["estimate"]), int(row["truth"]), abs_tol=30) for row in rows)
    ran = fleetcount("question", "places", "--records", output)
    assert f"walk 0: {len(rows)} place{'' if len(rows) == 1 else 's'} of 32 bits" in ran.out, ran
    assert not processes_of(tmp_path)


NOTHING_FALSE = """
from fractions import Fraction
from fleetcount import __main__
from fleetcount.show import demo_question
demo_question.FALSE_PLACES = Fraction(1, 10**12)
__main__.main()
"""
"""The command with a threshold that noise alone passes in one of 10^12 steps, not in one of twenty."""


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_walk_that_finds_nothing_ends_with_its_first_step_and_waits_for_no_other(tmp_path: Path) -> None:
    """The twelve of thirty vehicles in one square have an estimate of thirty once in 10^9."""
    asked = ("--drill-down", "--vehicles", "30", "--transport", "grpc", "--mode", "direct", "--epsilon", "10")
    process = start(tmp_path / "out", *asked, program=("-c", NOTHING_FALSE))
    out, err = process.communicate(timeout=300)
    ended = time.time()

    assert process.returncode == 0, err
    said = " ".join(out.split())
    assert "the walk ended there: no square reached the threshold of 30: the largest estimate is" in said
    assert "no answer before the windows closed" not in said
    last = re.search(r"windows, one every \d+ s, from \S+ to (\S+Z)", said)
    assert last is not None
    assert ended < datetime.fromisoformat(last[1]).timestamp()
    assert not processes_of(tmp_path)
