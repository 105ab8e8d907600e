"""A drill-down from its specification to the places it found: planned, signed once, walked by real devices, read."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fleetcount.question.files import read_question
from fleetcount.study.plan_windows import parse_levels
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.window.domain import Prefixes

from tests.cli.test_question_files import CREATE, SPEC
from tests.support.aggregators import NoNoise
from tests.support.town import ASKING, Shell, Town

START, END = SPEC.index("[domain]"), SPEC.index("[schedule]")
WALK = """[drill_down]
levels = [4, 8, 12]
threshold = 2
most_survivors = 4
"""
WALKING = (SPEC[:START] + WALK + SPEC[END:]).replace("[schedule]", '[schedule]\ndomain = "drill-down"')
QUIET = WALKING.replace("CurrentLocation", "Category").replace("windows = 720", "windows = 6")
QUIET = QUIET.replace("batch_size = 10", "batch_size = 2").replace('epsilon = "10"', 'epsilon = "2"')
PLACES = (0xABC00000, 0xABC00001, 0xABCFFFFF, 0x12300000)
"""Three vehicles in one place of twelve bits, one alone in another."""


def test_a_specification_gives_levels_threshold_and_survivors(fleetcount: Shell, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(WALKING)

    made = fleetcount(*CREATE)

    assert made.code == 0, made
    question = read_question(deployed / "q.question").question
    assert question.drill_down == DrillDown(levels=(4, 8, 12), threshold=2, most_survivors=4)
    assert question.domain == Prefixes(bits=4, cells=tuple(range(16)))
    assert "drills down over 4, 8, 12 bits, a window a level" in " ".join(made.out.split())
    assert "one truth asked at 3 levels counts as as many answers" in " ".join(made.out.split())


def test_as_many_survive_as_4095_candidates_allow_unless_it_says_less(fleetcount: Shell, deployed: Path) -> None:
    text = WALKING.replace("most_survivors = 4\n", "").replace("[4, 8, 12]", "[11, 18, 25, 32]")
    (deployed / "spec.toml").write_text(text)

    assert fleetcount(*CREATE).code == 0
    walk = read_question(deployed / "q.question").question.drill_down
    assert walk is not None
    assert walk.most_survivors == 31


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[4, 8, 12]", "[4]", "2 to 8 numbers of bits"),
        ("[4, 8, 12]", "[4, 8, 33]", "2 to 8 numbers of bits"),
        ("[4, 8, 12]", "[4, 8, 8]", "each step at most 11 bits"),
        ("[4, 8, 12]", "[12, 16]", "each step at most 11 bits"),
        ("[4, 8, 12]", "[4, 16, 20]", "each step at most 11 bits"),
        ("[4, 8, 12]", '"4, 8, 12"', "2 to 8 numbers of bits"),
        ("[4, 8, 12]", "[4, true]", "2 to 8 numbers of bits"),
        ("threshold = 2", "threshold = 0", "1 to 4294967295"),
        ("threshold = 2", "", "threshold"),
        ("most_survivors = 4", "most_survivors = 256", "1 to 255"),
        ("windows = 720", "windows = 721", "a multiple of the 3 levels"),
        ('every = "1 h"', 'every = "10 min"', "a drill-down needs at least 660 s"),
        (
            'mode = "direct"',
            'mode = "sampling"\nupload_style = "two_instalments"',
            "coin is day, allowed in a drill-down: window, a fresh toss for each step",
        ),
        ('domain = "drill-down"', "", "allowed is 'drill-down' where [drill_down] is given"),
        ("[drill_down]", '[domain]\nkind = "h3"\n[drill_down]', "a drill-down has none"),
        ("most_survivors", "most", "most"),
    ],
)
def test_a_walk_that_cannot_be_is_refused_in_one_line(
    fleetcount: Shell, deployed: Path, old: str, new: str, said: str
) -> None:
    assert old in WALKING
    spec = WALKING.replace(old, new)
    if "coin is" in said:
        spec = spec.replace('domain = "drill-down"', 'domain = "drill-down"\ncoin = "day"')
    (deployed / "spec.toml").write_text(spec)

    ran = fleetcount(*CREATE)

    assert ran.code == 2
    assert said in ran.error_line
    assert not (deployed / "q.question").exists()


async def test_real_devices_walk_to_the_busy_place_and_a_reader_checks_every_step(
    fleetcount: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(fleetcount, "question", *arguments)

    town = Town(tmp_path, fleetcount, devices=len(PLACES))
    town.network.noise = NoNoise()
    async with town:
        town.told(
            monkeypatch,
            *ASKING,
            "fleetcount.read.release",
        )
        (tmp_path / "spec.toml").write_text(QUIET)
        assert (await command(*CREATE[1:])).code == 0
        for action, name in (("sign", "alpha"), ("sign", "beta"), ("submit", "alpha")):
            assert (await command(action, "--config", f"dep/{name}/aggregator.toml", "q.question")).code == 0
        for _ in range(2):
            await town.pass_to(town.clock.now() + 2)
        for number, place in enumerate(PLACES, start=1):
            (tmp_path / "dep" / "devices" / f"{number:04d}" / "category.json").write_text(json.dumps(place))
            town.drive(number)
        schedule = read_question(tmp_path / "q.question").question.schedule
        for index in range(4):
            for moment in (schedule.opens(index) - 50, schedule.opens(index), schedule.closes(index)):
                await town.pass_to(moment)
            await town.pass_to(schedule.closes(index) + 5)
        reader = ("--question", "q.question", "--config", "dep/analyst/analyst.toml")
        read = await command("release", *reader, "--output", "got")
        again = await command("release", *reader, "--output", "got")
        status = await command("status", *reader)
        exported = await command("export", "--records", "got", "--largest", "3")
        found = await command("places", "--records", "got", "--output", "places.csv")

    assert "got: 4 new records, 4 in all, every signature checked" in read.out, read
    assert "got: 0 new records, 4 in all" in again.out
    assert "4 of 6 windows released" in status.out
    # Its steps may have as many cells each, and still other places.
    assert (exported.code, "has no one table; see 'fleetcount question places'" in exported.error_line) == (2, True)
    words = " ".join(found.out.split())
    assert "walk 0: 1 place of 12 bits at 2 devices or more 0xabc00000 3, 95 % interval 0 to" in words, found
    assert "walk 1: 1 of 3 steps have a record; no place is found yet" in words
    assert "left out: no other place has more than" in words
    assert "false places:" in words
    rows = (tmp_path / "places.csv").read_text().splitlines()
    # Steps of 16, 16 and 16 cells of which one is kept; of a walk that goes on nobody knows yet which cells are.
    assert [sum(f",{shown}," in row for row in rows) for shown in ("found", "left out")] == [1, 15 + 15 + 15]
    assert all(",,," in row for row in rows if "left out" in row)
    records = [record_from_json((tmp_path / "got" / f"{index:05d}.json").read_text())[0] for index in range(4)]
    assert [getattr(one.window.domain, "bits", 0) for one in records] == [4, 8, 12, 4]
    busy = [{cell.label for cell in record.cells if cell.estimate >= 2} for record in records]
    assert busy[2] == {f"{0xABC00000}/12"}
    assert busy[3] == {f"{0xA0000000}/4"}


def test_a_plan_says_what_a_walk_finds(fleetcount: Shell) -> None:
    words = ("--devices", "100000", "--values", "4095", "--epsilon", "1")

    ran = fleetcount("plan", *words, "--levels", "11,18,25,32")

    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in ran.out.splitlines() if line.startswith("|")]
    assert {row[0]: int(row[3]) for row in rows[2:]} == {
        "direct, geometric": 141,
        "direct, Gaussian": 150,
        "sampling 1/4, geometric": 163,
        "sampling 1/4, Gaussian": 182,
    }
    assert "At most 31 survivors of 128 children each: 3,968 candidates a step." in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--levels", "11"), "allowed: 2 to 8 ascending numbers"),
        (("--levels", "11,18", "--values", "100"), "allowed with these --levels: 2048 or more"),
        (("--levels", "11,18", "--windows", "3"), "a multiple of the 2 levels"),
        (("--levels", "11,18", "--threat", "one-honest"), "goes with neither"),
    ],
)
def test_a_plan_of_a_walk_that_cannot_be_is_refused(fleetcount: Shell, words: tuple[str, ...], said: str) -> None:
    values = () if "--values" in words else ("--values", "4095")
    ran = fleetcount("plan", "--devices", "100", "--epsilon", "1", *values, *words)

    assert ran.code == 2
    assert said in ran.error_line


@pytest.mark.parametrize("text", ["", "11,,18", "18,11", "0,5", "11,33", "1,2,3,4,5,6,7,8,9", "11, 18"])
def test_levels_are_ascending_bits(text: str) -> None:
    with pytest.raises(UsageError, match="--levels is"):
        parse_levels(text)
