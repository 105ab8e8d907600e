"""Several zooms at the command line: planned, asked for in a specification, described, exported and made to agree."""

import csv
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from fleetcount.question.files import read_question
from fleetcount.read.report import table_lines
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_protocol.question.fields import Participants
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.frame import Frame

from tests.cli.test_question_export import Records, raw
from tests.cli.test_question_files import CREATE, SPEC
from tests.support.protocol_samples import at_zooms, every_window, record
from tests.support.question_samples import GAUSSIAN, one_round_question

PLAN = ("plan", "--devices", "2000", "--values", "256", "--epsilon", "1", "--mechanism", "direct")
ZOOMED = SPEC.replace("rows = 9", "rows = 8").replace("[release]", "[release]\nzooms = 3")


def test_a_plan_splits_the_epsilon_over_the_zooms_and_shows_what_each_gives(fleetcount: Callable) -> None:
    ran, plain = fleetcount(*PLAN, "--zooms", "4", "--explain"), fleetcount(*PLAN)

    assert (ran.code, plain.code) == (0, 0), ran.err
    assert "each aggregator's noise: epsilon 0.125\n" in ran.out
    assert "each aggregator's noise: epsilon 0.5\n" in plain.out
    assert "  squares of 1 times the side, 256 of them: 16.0, 14.2, 4.0\n" in ran.out
    assert "  squares of 8 times the side, 4 of them: 16.0, 12.1, 31.7\n" in ran.out
    assert "sees the released counts of 4 zooms and their total; epsilon 1.00000" in ran.out
    assert "zoom" not in plain.out
    # One-sided noise has no counts that agree; its numbers are shown without.
    sided = fleetcount(*PLAN[:-1], "one-sided", "--zooms", "2")
    assert "256 of them: 2.8, -, 1.4" in sided.out, sided.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--values", "200"), "values is 200, allowed with zooms: a square number"),
        (("--values", "4"), "squares of 2 times the side are asked of a grid of 2 by 2 squares, allowed: 1 at most"),
        (("--values", "16", "--levels", "3,6"), "--zooms goes with neither --levels"),
        (("--values", "16", "--largest-posterior", "0.9"), "--zooms goes with neither --levels"),
        (("--values", "16", "--mechanism", "k-ary", "--epsilon-local", "1"), "levels is 2 of answers by k-ary"),
    ],
)
def test_a_plan_of_zooms_that_cannot_be_is_refused(fleetcount: Callable, words: tuple[str, ...], said: str) -> None:
    ran = fleetcount("plan", "--devices", "100", "--epsilon", "1", "--zooms", "2", *words)

    assert ran.code == 2
    assert said in ran.error_line


def test_a_plan_of_a_question_counts_every_zoom_of_every_window(fleetcount: Callable) -> None:
    asked = ("plan", "--devices", "2000", "--values", "16", "--epsilon", "4")

    ran = fleetcount(*asked, "--windows", "1", "--zooms", "2")

    assert ran.code == 0, ran.err
    assert "Counts are of any of 2 zooms in one report; epsilon is of all.\n" in ran.out
    # A window of two zooms needs the noise of two windows; a randomized answer has no zooms.
    two = ScheduleShape(units=(1, 1), days=(2,))
    noise = noise_for_promise(Truth(16), two, Fraction(4), Fraction(1, 10**9))
    way = next(line for line in ran.out.splitlines() if line.startswith("| direct, Gaussian"))
    # What is read are counts that add up, with the blocks of four and the total: an error of .87 of one number's.
    assert 0.86 < float(way.split("|")[2]) / (2 * noise.draw_variance) ** 0.5 < 0.89
    assert "response" not in ran.out


@pytest.fixture
def deployed(deployed: Path) -> Path:
    (deployed / "spec.toml").write_text(ZOOMED)
    return deployed


def test_the_noise_of_a_question_is_solved_for_all_its_zooms(fleetcount: Callable, deployed: Path) -> None:
    created = fleetcount(*CREATE)

    assert created.code == 0, created.err
    design = read_question(deployed / "q.question").question.design
    assert (design.levels.count, design.output_count) == (4, 64 + 16 + 4 + 1)
    # A month of one zoom needs a standard deviation of 25.7; three zooms have three times the variance.
    assert isinstance(design.noise, GaussianNoise)
    assert 25.6 * 3**0.5 < float(design.noise.variance) ** 0.5 < 25.9 * 3**0.5
    shown = " ".join(fleetcount("question", "show", "q.question").out.split())
    assert "counted at 3 zooms in one report" in shown


def test_one_window_takes_zooms_and_plans_noise_for_all_of_them(fleetcount: Callable, deployed: Path) -> None:
    spec = ZOOMED.replace('every = "1 h"\nwindows = 720\n', "").replace(
        'epsilon = "10"\ndelta = "1e-9"', 'epsilon = "3"'
    )
    (deployed / "spec.toml").write_text(spec)

    created = fleetcount(*CREATE)

    assert created.code == 0, created.err
    question = read_question(deployed / "q.question").question
    assert (question.release.noise_epsilon, question.release.sides) == (Fraction(1, 2), (1, 2, 4))
    said = " ".join(created.out.split())
    assert ", counted at 3 zooms in one report" in said
    assert re.search(r"\(squares of 2 times the side sd [0-9.]+, squares of 4 times the side sd [0-9.]+", said)


@pytest.mark.parametrize("zooms", ["4", "0", "7", '"two"', "[]", "[1, 3]", "[2, 4]", "[1, 16]", "[1, true]"])
def test_zooms_that_a_grid_does_not_have_are_refused_by_key(fleetcount: Callable, deployed: Path, zooms: str) -> None:
    (deployed / "spec.toml").write_text(ZOOMED.replace("zooms = 3", f"zooms = {zooms}"))

    refused = fleetcount(*CREATE)

    assert refused.code == 2
    assert "release.zooms" in refused.error_line
    assert not (deployed / "q.question").exists()


TOTAL_SPEC = SPEC.replace("[release]", "[release]\ntotal = KEY")
"""Direct answers, 720 windows."""
SAMPLED = TOTAL_SPEC.replace('mode = "direct"', 'mode = "sampling"').replace(
    "[release]\ntotal = KEY", '[mechanism]\nsampling_rate = "1/4"\n[release]\ntotal = true'
)


def created(fleetcount: Callable, deployed: Path, spec: str) -> Any:
    (deployed / "spec.toml").write_text(spec)
    return fleetcount(*CREATE)


def test_direct_answers_have_a_total_for_nothing_unless_it_is_left_out(fleetcount: Callable, deployed: Path) -> None:
    designs = []
    for word in ("true", "false", ""):
        spec = TOTAL_SPEC.replace("KEY", word) if word else SPEC
        ran = created(fleetcount, deployed, spec)
        assert ran.code == 0, ran.err
        designs.append(read_question(deployed / "q.question").question.design)
        said = " ".join(ran.out.split())
        assert ("the total of all cells has a number of its own" in said) is (word != "false")
        assert ("answered at all is protected like its answer, no better" in said) is (word != "false")
        for name in ("q.question", "q.json", "q.seed"):
            (deployed / name).unlink()

    asked, without, usual = designs
    assert asked == usual
    assert asked.noise == without.noise == asked.coarser[-1]
    assert (asked.output_count, without.output_count) == (without.values + 1, without.values)
    month = fleetcount("plan", "--devices", "100000", "--values", "72", "--epsilon", "10", "--windows", "720", "--json")
    direct = next(row for row in json.loads(month.out) if row["way"] == "direct, Gaussian")
    assert Fraction(direct["noise_variance"]) == asked.noise.parameters["variance"]
    assert (round(direct["sd_0"], 1), round(direct["sd_total"], 1)) == (36.1, 36.1)


def test_a_coin_a_window_has_a_total_with_four_times_the_variance(fleetcount: Callable, deployed: Path) -> None:
    ran = created(fleetcount, deployed, SAMPLED.replace("total = true\n", ""))
    assert ran.code == 0, ran.err
    design = read_question(deployed / "q.question").question.design

    assert (design.output_count, design.total_ratio) == (73, 4)
    month = fleetcount("plan", "--devices", "100000", "--values", "72", "--epsilon", "10", "--windows", "720", "--json")
    rows = {row["way"]: row for row in json.loads(month.out)}
    quarter, half = (rows[f"sampling {rate}, a coin a window"] for rate in ("1/4", "1/2"))
    assert Fraction(quarter["noise_variance"]) == design.noise.parameters["variance"]
    # Without a total of its own: a cell 36.5 and 36.4, all of them 309.4 and 308.6.
    assert (round(quarter["sd_0"], 1), round(quarter["sd_total"], 1)) == (36.3, 71.1)
    assert (round(half["sd_0"], 1), round(half["sd_total"], 1)) == (36.1, 70.8)
    assert rows["sampling 1/4, a coin a day"]["sd_total"] > 300


def test_zooms_have_the_shares_of_the_budget_that_are_asked_for(fleetcount: Callable, deployed: Path) -> None:
    shared = ZOOMED.replace("zooms = 3", 'zooms = 2\nshares = ["0.83", "0.17"]')
    ran = created(fleetcount, deployed, shared)
    assert ran.code == 0, ran.err
    design = read_question(deployed / "q.question").question.design

    cells, blocks, total = (law.draw_variance for law in design.laws)
    assert blocks / cells == pytest.approx(83 / 17)
    assert 1 / total == pytest.approx(1 / cells + 1 / blocks)
    assert "(squares of 2 times the side sd " in " ".join(ran.out.split())


def test_an_aim_chooses_shares_that_a_question_file_takes(fleetcount: Callable, deployed: Path) -> None:
    asked = ("plan", "--devices", "2000", "--values", "64", "--epsilon", "2", "--windows", "3", "--zooms", "1,2")

    planned = fleetcount(*asked, "--aim", "block=1,cell=10")

    assert planned.code == 0, planned.err
    (keys,) = (line.removeprefix("In a question file: ") for line in planned.out.split("\n") if "shares = [" in line)
    assert keys == 'zooms = [1, 2], shares = ["0.88", "0.12"]'
    given = fleetcount(*asked, "--shares", "0.88,0.12")
    assert given.out == planned.out
    file = SPEC.replace("rows = 9", "rows = 8").replace(
        "[release]", "[release]\n" + keys.replace(", shares", "\nshares")
    )
    assert created(fleetcount, deployed, file).code == 0
    # A part of the budget is worth its square under geometric noise, so that none is best spent on the squares.
    one = ("plan", "--devices", "2000", "--values", "64", "--epsilon", "1", "--mechanism", "direct", "--zooms", "1,2")
    assert json.loads(fleetcount(*one, "--aim", "block=1,cell=10", "--json").out)["shares"] == ["99/100", "1/100"]


def test_a_plan_says_what_shares_give_and_a_question_asks_for_the_same(fleetcount: Callable, deployed: Path) -> None:
    asked = ("plan", "--devices", "100000", "--values", "256", "--epsilon", "10", "--windows", "720")
    ran = fleetcount(*asked, "--zooms", "1,8", "--shares", "0.83,0.17")
    assert ran.code == 0, ran.err
    way = next(line for line in ran.out.splitlines() if line.startswith("| direct, Gaussian"))
    assert [cell.strip() for cell in way.split("|")[2:6]] == ["39.6", "39.6", "39.6", "35.6"]
    assert "direct, Gaussian, squares of 8 times the side: 74.2\n" in ran.out
    assert "sampling" not in ran.out

    month = ZOOMED.replace("columns = 8", "columns = 16").replace("rows = 8", "rows = 16")
    made = created(fleetcount, deployed, month.replace("zooms = 3", 'zooms = [1, 8]\nshares = ["0.83", "0.17"]'))
    assert made.code == 0, made.err
    question = read_question(deployed / "q.question").question
    assert question.release.sides == (1, 8)
    listed = json.loads(fleetcount(*asked, "--zooms", "1,8", "--shares", "0.83,0.17", "--json").out)
    row = next(one for one in listed if one["way"] == "direct, Gaussian")
    assert Fraction(row["noise_variance"]) == question.release.noise_variance


BINS = SPEC.replace(
    'kind = "grid"\nx0 = 0\ny0 = 0\nsize = 250\ncolumns = 8\nrows = 9',
    f'kind = "bins"\nedges = {list(range(0, 325, 5))}\nunit = "km/h"',
).replace("Vehicle.CurrentLocation", "Vehicle.Speed")
"""64 bins of 5 km/h."""


def test_bins_have_zooms_of_neighbours_together(fleetcount: Callable, deployed: Path) -> None:
    ran = created(fleetcount, deployed, BINS.replace("[release]", '[release]\nzooms = 2\nshares = ["0.6", "0.4"]'))
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    question = read_question(deployed / "q.question").question

    assert question.design.levels.sizes == (64, 32, 1)
    assert "counted at 2 zooms in one report" in said
    assert "(2 bins together sd " in said
    assert "square" not in said

    asked = ("plan", "--devices", "20000", "--values", "64", "--epsilon", "10", "--zooms", "1,2", "--in-order")
    shares = ("--shares", "0.6,0.4")
    listed = json.loads(fleetcount(*asked, *shares, "--windows", "720", "--json").out)
    row = next(one for one in listed if one["way"] == "direct, Gaussian")
    assert Fraction(row["noise_variance"]) == question.release.noise_variance
    alone = fleetcount(*asked, *shares, "--mechanism", "direct", "--noise", "gaussian").out
    rows = [line.split(":")[1].split(",")[0] for line in alone.splitlines() if " together, 32 of them" in line]
    cells = [line.split(":")[1].split(",")[0] for line in alone.splitlines() if "single values, 64 of them" in line]
    assert float(rows[0]) == pytest.approx(float(cells[0]) * 1.5**0.5, abs=0.1)


def test_zooms_that_bins_do_not_have_are_refused_by_key(fleetcount: Callable, deployed: Path) -> None:
    for zooms in ("7", "[1, 64]", "[1, 3]"):
        ran = created(fleetcount, deployed, BINS.replace("[release]", f"[release]\nzooms = {zooms}"))
        assert ran.code == 2
        assert "release.zooms" in ran.error_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shares", "0.5,0.5"), "shares are given, allowed with zooms"),
        (("--in-order",), "the values are said to be in order, allowed with zooms"),
        (("--aim", "cell"), "an aim is given, allowed with zooms"),
        (("--zooms", "2", "--aim", "city"), "aim is 'city', allowed: cell, block, total, each once"),
        (("--zooms", "2", "--aim", "block,block=2"), "aim is 'block', allowed: cell, block, total, each once"),
        (("--zooms", "2", "--aim", "block=0"), "aim block: '0' is out of range; it must be above 0"),
        (("--zooms", "2", "--aim", "block=x"), "aim block: 'x' is not a number"),
        (("--zooms", "2", "--aim", ""), "aim is '', allowed: cell, block, total"),
        (("--zooms", "2", "--aim", "cell", "--shares", "0.5,0.5"), "an aim is given beside shares"),
        (("--zooms", "2", "--aim", "cell", "--mechanism", "one-sided"), "an aim is given of one-sided counts"),
        (("--aim", "cell", "--cross", "16,16"), "--cross is about one release, allowed: without --zooms"),
        (("--in-order", "--zooms", "1,3"), "sides are (1, 3), allowed: growing powers of two"),
        (("--zooms", "2", "--shares", "0.5,0.4"), "shares are 1/2, 2/5, allowed: one above 0 for each of 2 zooms"),
        (("--zooms", "1,3"), "sides are (1, 3), allowed: growing powers of two"),
        (("--zooms", "9"), "zooms is 9, allowed: 2 to 8"),
        (("--zooms", "1,x"), "x"),
    ],
)
def test_zooms_and_shares_that_cannot_be_planned_are_refused(
    fleetcount: Callable, words: tuple[str, ...], said: str
) -> None:
    ran = fleetcount("plan", "--devices", "100", "--values", "256", "--epsilon", "1", *words)

    assert ran.code == 2
    assert said in ran.error_line


@pytest.mark.parametrize(
    ("spec", "key", "said"),
    [
        (TOTAL_SPEC.replace("KEY", '"yes"'), "total", "true or false"),
        (TOTAL_SPEC.replace("KEY", 'true\nkind = "one-sided"'), "total", "is true for one-sided counts"),
        (
            TOTAL_SPEC.replace("KEY", 'true\nkind = "geometric"').replace('mode = "direct"', 'mode = "sampling"'),
            "total",
            "is true for sampled answers under geometric noise",
        ),
        (
            SAMPLED.replace("[schedule]", '[schedule]\ncoin = "day"'),
            "total",
            "is true under a coin that holds for several",
        ),
        (
            SAMPLED.replace("rows = 9", "rows = 8").replace("total =", "zooms = 2\ntotal ="),
            "total",
            "is true beside zooms",
        ),
        (SAMPLED.replace("columns = 8\nrows = 9", "columns = 2\nrows = 2"), "total", "is true for few sampled values"),
        (
            TOTAL_SPEC.replace("KEY", 'true\nkind = "geometric"')
            .replace('mode = "direct"', 'mode = "response"')
            .replace("[release]", '[mechanism]\nkind = "k-ary"\nepsilon_local = "1"\n[release]'),
            "total",
            "is true for answers that devices randomize",
        ),
        (ZOOMED.replace("zooms = 3", 'zooms = 3\nshares = ["1/2", "1/2"]'), "shares", "has 2 shares, allowed: one for"),
        (ZOOMED.replace("zooms = 3", 'zooms = 2\nshares = ["1/2", "1/3"]'), "shares", "1 together"),
        (ZOOMED.replace("zooms = 3", "zooms = 2\nshares = [1, 0]"), "shares", "above 0"),
        (ZOOMED.replace("zooms = 3", 'zooms = 2\nshares = "83/17"'), "shares", "a share of the budget for each zoom"),
    ],
)
def test_a_total_or_shares_that_cannot_be_are_refused_by_key_and_reason(
    fleetcount: Callable, deployed: Path, spec: str, key: str, said: str
) -> None:
    refused = created(fleetcount, deployed, spec)

    assert refused.code == 2, refused.out
    assert f"release.{key}" in refused.error_line
    assert said in refused.error_line
    assert not (deployed / "q.question").exists()


def test_the_table_of_a_release_has_a_row_for_every_square_of_every_zoom() -> None:
    lines = table_lines(record(every_window()["sampling_zooms"]))

    assert [line.split()[0] for line in lines[1:]] == [
        *(f"{column},{row}" for row in (0, 1) for column in range(4)),
        "0,0/2",
        "1,0/2",
    ]


@pytest.fixture
def export(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    monkeypatch.chdir(tmp_path)
    frame = Frame(epsg=32632, offset_x="-683195.58", offset_y="-4928877.56")
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=4, rows=2, frame=frame)
    changes = {"domain": grid, "participants": Participants.NOISED, "release": at_zooms(GAUSSIAN, 2)}
    Records(tmp_path / "got", one_round_question(Mode.DIRECT, **changes)).add((0, 1))
    return lambda *arguments: fleetcount("question", "export", "--records", "got", *arguments)


def test_an_export_is_of_one_zoom_the_finest_unless_said(export: Callable) -> None:
    for zoom, labels in ((0, 8), (1, 2)):
        assert export("--zoom", zoom, "--output", f"{zoom}.csv").code == 0
        head, *lines = Path(f"{zoom}.csv").read_text().splitlines()
        rows = list(csv.DictReader(lines))
        assert [row["raw"] for row in rows[:labels]] == [
            str(raw(0, cell)) for cell in range(1 + 8 * zoom, 9 + 2 * zoom)
        ]
        assert len(rows) == 2 * labels
        assert json.loads(unquote(head.removeprefix("# ")))["values"] == labels
    assert (rows[1]["label"], rows[1]["x"], rows[1]["y"]) == ("1,0/2", "1", "0")


def test_a_map_of_a_zoom_has_its_larger_squares(export: Callable) -> None:
    assert export("--zoom", "1", "--output", "one.geojson").code == 0

    features = json.loads(Path("one.geojson").read_text())["features"]
    assert [one["properties"]["label"] for one in features] == ["0,0/2", "1,0/2"]
    first, second = (one["geometry"]["coordinates"][0] for one in features)
    assert first[1] == second[0], "the second begins where the first ends"
    metres = math.cos(math.radians(first[0][1])) * 111_320 * (first[1][0] - first[0][0])
    assert metres == pytest.approx(500, rel=0.005)


def test_consistent_counts_stand_beside_the_raw_numbers_and_add_up(export: Callable) -> None:
    listed = export("--consistent", "--windows", "1").out.splitlines()

    assert listed[0].startswith("counts of all 2 zooms that add up; intervals of 95 %, each alone")
    rows = [line for line in listed if line.startswith("window 1, zoom")]
    counts = [float(line.split(": ")[1].split(", ")[0].replace(",", "")) for line in rows]
    assert len(rows) == 10
    assert counts[8] == pytest.approx(sum(counts[place] for place in (0, 1, 4, 5)), abs=0.3)
    assert rows[9].endswith(f"; raw {raw(1, 10):,}")
    assert rows[8].startswith("window 1, zoom 1, cell 0,0/2: ")


def test_a_zoom_that_a_question_does_not_have_is_refused(export: Callable) -> None:
    refused = export("--zoom", "2", "--readable")

    assert refused.code == 2
    assert "zoom is 2, allowed: 0 to 1" in refused.error_line


@pytest.mark.parametrize("asked", [("--consistent",), ("--quantile", "0.5"), ("--mean",)])
def test_what_is_read_from_all_zooms_is_refused_of_one(export: Callable, asked: tuple[str, ...]) -> None:
    refused = export("--zoom", "1", *asked)

    assert refused.code == 2
    assert f"{asked[0]} is read from all zooms, allowed: without --zoom" in refused.error_line


def test_a_program_gets_the_consistent_counts_that_a_terminal_has_no_room_for(
    export: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcount.read.export._MOST_ROWS", 3)

    listed = export("--consistent").out.splitlines()
    rows = json.loads(export("--consistent", "--json").out)["answers"]

    assert (len(listed), listed[4]) == (1 + 3 + 1 + 2, "... and 5 more of zoom 0; --json has all")
    assert [row["raw"] for row in rows] == [raw(1, number) for number in range(1, 11)]


SCENARIO = """
name = "zoomed"
seed = 1
runs = 5

[population]
kind = "city"
devices = 2000

[question]
cells = "square"
size_m = 100
bounds = [0, 0, 800, 600]

[[mechanism]]
kind = "direct"
epsilon = "1"
zooms = 2
"""


def test_a_scenario_takes_zooms_and_says_what_all_of_them_lose(fleetcount: Callable, tmp_path: Path) -> None:
    for name, text in (("good", SCENARIO), ("deep", SCENARIO.replace("zooms = 2", "zooms = 3"))):
        (tmp_path / f"{name}.toml").write_text(text)

    ran = fleetcount("simulate", tmp_path / "good.toml", "--output", tmp_path / "out")
    refused = fleetcount("simulate", tmp_path / "deep.toml", "--output", tmp_path / "deep")

    assert ran.code == 0, ran.err
    assert "  1.000   1.000\n" in ran.out
    assert (refused.code, "squares of 4 times the side are asked of a grid of 8 by 6 squares" in refused.err) == (
        2,
        True,
    )
