"""A drill-down over codes that nobody listed: its specification, real vehicles with several codes, and what is read."""

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fleetcount.question.files import read_question
from fleetcount.read.report import table_heads, table_lines
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import all_prefixes

from tests.cli.test_drill_down import QUIET, WALK, WALKING
from tests.cli.test_question_files import CREATE
from tests.support.aggregators import NoNoise
from tests.support.protocol_samples import every_window, record
from tests.support.town import ASKING, Shell, Town

DTC = '[drill_down]\nof = "codes"\nform = "dtc"\nlevels = [4, 10, 16]\nthreshold = 2\n'
TEXTS = DTC.replace('"dtc"', '"text"\nalphabet = "0123456789ABCDEF"\nlength = 4')
CODES = (["P0301", "P0302"], ["p0301"], "P0301", ["P0301"], [], ["none at all"])
"""What six vehicles read: in the first walk at least three tell P0301, two of them for certain nothing."""


@pytest.mark.parametrize(
    ("table", "codes", "said"),
    [
        (
            DTC,
            Codes(form=CodeForm.DTC),
            "trouble codes of two bytes, as P0301; a vehicle with several tells one of them",
        ),
        (DTC.replace('"dtc"', '"dtc-24"'), Codes(form=CodeForm.DTC_24), "with their failure type, as P0301-1F"),
        (
            TEXTS,
            Codes(form=CodeForm.TEXT, alphabet="0123456789ABCDEF", length=4),
            "texts of 1 to 4 characters of 0123456789ABCDEF",
        ),
    ],
)
def test_a_specification_asks_for_codes(fleetcount: Shell, deployed: Path, table: str, codes: Codes, said: str) -> None:
    (deployed / "spec.toml").write_text(WALKING.replace(WALK, table))

    made = fleetcount(*CREATE)

    assert made.code == 0, made
    question = read_question(deployed / "q.question").question
    assert question.domain == all_prefixes(4, codes)
    assert question.drill_down == DrillDown(levels=(4, 10, 16), threshold=2, most_survivors=63)
    words = " ".join(made.out.split())
    assert said in words
    assert "counted are vehicles that told a code, of which there are no more than have it" in words
    shown = json.loads(fleetcount("question", "show", "--json", "q.question").out)
    assert shown["codes"]["form"] == codes.form.label
    assert shown["labels"][-1] == question.domain.label(question.domain.values)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"codes"', '"faults"', "drill_down.of is 'faults'; allowed is 'places' or 'codes'"),
        ('"text"', '"obd"', "drill_down.form is 'obd'; allowed is"),
        ('form = "text"\n', "", "drill_down.form is missing; allowed is"),
        ('of = "codes"\n', "", "drill_down.form is 'text'; allowed is only with of = \"codes\""),
        ('"text"', '"dtc"', "drill_down.alphabet is '0123456789ABCDEF'; allowed is given with form = \"text\""),
        ('alphabet = "0123456789ABCDEF"\n', "", 'drill_down.alphabet is missing; allowed is given with form = "text"'),
        ("length = 4\n", "", "drill_down.length is missing; allowed is"),
        ("length = 4", "length = 9", "drill_down.length is 9; allowed is a whole number from 1 to 8"),
        ("length = 4", "length = 7", "allowed with 16 characters of 5 bits each: 1 to 6"),
        ("9ABC", "9ABA", "drill_down.alphabet is '0123456789ABADEF': "),
        ("9ABC", "9 ABC", "2 to 64 different printable characters of ASCII without the space"),
        ("10, 16]", "10, 21]", "drill_down.levels is [4, 10, 21]; allowed is numbers of bits up to the 20 of a code"),
    ],
)
def test_codes_that_cannot_be_are_refused_in_one_line(
    fleetcount: Shell, deployed: Path, old: str, new: str, said: str
) -> None:
    assert TEXTS.count(old) == 1
    (deployed / "spec.toml").write_text(WALKING.replace(WALK, TEXTS.replace(old, new)))

    ran = fleetcount(*CREATE)

    assert ran.code == 2
    assert said in ran.error_line
    assert "spec.toml" in ran.error_line
    assert not (deployed / "q.question").exists()


def test_a_table_of_codes_is_headed_by_what_it_counts() -> None:
    windows = every_window()
    heads = [table_heads(record(windows[name]))[:2] for name in ("direct_codes", "sampling_places")]
    table = table_lines(record(windows["direct_texts"]))

    assert heads == [("code", "vehicles that told this code, 95 % interval"), ("cell", "95 % interval")]
    assert table[0].split("  ")[0] == "code"
    assert "vehicles that told this code" in table[0]
    assert [line.split("  ")[0] for line in table[1:6]] == ["X", "XA[BA]", "BA, BAX", "A", "AA[BA]"]


async def test_real_vehicles_walk_to_the_code_that_several_have(
    fleetcount: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(fleetcount, "question", *arguments)

    town = Town(tmp_path, fleetcount, devices=len(CODES))
    town.network.noise = NoNoise()
    async with town:
        town.told(monkeypatch, *ASKING, "fleetcount.read.release")
        (tmp_path / "spec.toml").write_text(QUIET.replace(WALK, DTC.replace("threshold = 2", "threshold = 3")))
        assert (await command(*CREATE[1:])).code == 0
        for action, name in (("sign", "alpha"), ("sign", "beta"), ("submit", "alpha")):
            assert (await command(action, "--config", f"dep/{name}/aggregator.toml", "q.question")).code == 0
        for _ in range(2):
            await town.pass_to(town.clock.now() + 2)
        for number, codes in enumerate(CODES, start=1):
            (tmp_path / "dep" / "devices" / f"{number:04d}" / "category.json").write_text(json.dumps(codes))
            town.drive(number)
        schedule = read_question(tmp_path / "q.question").question.schedule
        for index in range(3):
            for moment in (schedule.opens(index) - 50, schedule.opens(index), schedule.closes(index)):
                await town.pass_to(moment)
            await town.pass_to(schedule.closes(index) + 5)
        reader = ("--question", "q.question", "--config", "dep/analyst/analyst.toml")
        assert (await command("release", *reader, "--output", "got")).code == 0
        found = await command("places", "--records", "got", "--output", "codes.csv")
        as_json = json.loads((await command("places", "--records", "got", "--json")).out)

    words = " ".join(found.out.split())
    told = as_json[0]["found"][0]["told"]
    assert told in (3, 4)
    found = f"vehicles that told this code: P0301 {told:.0f}, 95 % inter"
    assert f"walk 0: 1 code of 16 bits at 3 devices or more {found}" in words
    assert "left out: no other code was told by more than" in words
    assert "at least as many have a code as told it; how many more" in words
    assert [one["code"] for one in as_json[0]["found"]] == ["P0301"]
    rows = list(csv.DictReader((tmp_path / "codes.csv").read_text().splitlines()))
    assert [(row["code"], float(row["told"])) for row in rows if row["shown"] == "found"] == [("P0301", told)]
    assert {row["code"] for row in rows if row["bits"] == "4"} == {
        *(f"{letter}{digit}..." for letter in "PCBU" for digit in "0123"),
    } - {"P0..."}
