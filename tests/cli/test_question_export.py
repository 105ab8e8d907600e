"""Tables, maps and answers from kept records: every number with its interval, files that grow, gaps named."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from urllib.parse import unquote

import duckdb
import fleetcount as fc
import numpy as np
import pyproj
import pytest
from fleetcount.read.records import save_record
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Participants
from fleetcount_protocol.question.question import Question, encode_signed_question
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import NoisedParticipants, ReleaseRecord, sign_record
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.frame import Frame

from tests.support.protocol_samples import signing_key
from tests.support.question_samples import DAILY, GAUSSIAN, one_round_question, sign_everywhere, window_record

GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=3, rows=2)
RELEASED = (0, 1, 3, 4)
AREA = {"type": "Polygon", "coordinates": [[[-5, -5], [500, -5], [500, 250], [-5, 250], [-5, -5]]]}


def raw(window: int, cell: int) -> int:
    return 100 * cell + window


class Records:
    """A directory of records, made one after the other as aggregators make them."""

    def __init__(self, directory: Path, question: Question) -> None:
        directory.mkdir()
        self.directory, self.question = directory, question
        (directory / "question").write_bytes(encode_signed_question(sign_everywhere(question)))
        self.last: ReleaseRecord | None = None

    def add(self, indices: Sequence[int]) -> None:
        for index in indices:
            before = -1 if self.last is None else self.last.window.question.index
            link = ChainLink(
                previous=None if self.last is None else Digest(self.last.digest),
                previous_index=None if self.last is None else before,
                missing=tuple(MissingWindow(index=one, reason="paused") for one in range(before + 1, index)),
            )
            noised = self.question.participants is Participants.NOISED
            devices = NoisedParticipants(raw=1500, low=1400, high=1600) if noised else None
            made = window_record(self.question, index, chain=link, participants=devices)
            cells = tuple(replace(cell, raw=raw(index, cell.value)) for cell in made.cells)
            self.last = replace(made, cells=cells)
            signatures = tuple(sign_record(self.last, signing_key(position)) for position in range(2))
            save_record(self.directory, self.last, signatures)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.chdir(tmp_path)
    changes = {"domain": GRID, "participants": Participants.NOISED, "release": GAUSSIAN}
    records = Records(tmp_path / "got", one_round_question(Mode.DIRECT, **changes))
    records.add(RELEASED)
    return records


@pytest.fixture
def export(fleetcount: Callable, kept: Records) -> Callable:
    del kept
    return lambda *arguments: fleetcount("question", "export", "--records", "got", *arguments)


def test_a_smoothed_curve_names_its_model_and_stands_beside_the_released_numbers(export: Callable) -> None:
    listed = export("--smooth", "2,3").out

    assert "independent steps of standard deviation 3 a window" in listed
    assert [line.split(":")[0] for line in listed.splitlines() if "smoothed" in line] == [
        f"window {window}" for window in RELEASED
    ]
    assert "released 203.0, 95 % interval" in listed
    for text, wrong in (("9,3", "9"), ("2", "''"), ("2,0", "'0'"), ("2,x", "'x'")):
        refused = export("--smooth", text)
        assert refused.code == 2
        assert wrong in refused.err
        assert "as in 4,2.5" in refused.err


def test_sums_and_differences_are_of_the_opened_numbers_with_their_interval(export: Callable) -> None:
    Path("district.geojson").write_text(json.dumps(AREA))

    listed = export("--sum", "1-2", "--windows", "0,3").out
    assert export("--sum", "(0,0), (1, 0)", "--windows", "0,3").out == listed
    inside = export("--sum", "district.geojson").out
    change = export("--difference", "1,4").out
    part = export("--difference", "1,4", "--sum", "2").out

    assert listed.startswith(
        f"sum of 2 cells over windows 0 and 3: {raw(0, 1) + raw(0, 2) + raw(3, 1) + raw(3, 2):,}.0,"
    )
    assert "95 % interval" in listed
    assert f"windows 0 to 1 and 3 to 4: {sum(raw(w, c) for w in RELEASED for c in (1, 2)):,}.0, 95 % interval" in inside
    assert "not in it: window 2: paused" in inside
    assert "all cells, window 4 less window 1: 18.0, 95 % interval" in change
    assert "1 cell, window 4 less window 1: 3.0" in part


def test_what_is_found_by_looking_has_wider_intervals(export: Callable) -> None:
    alone = export("--readable", "--windows", "3").out.splitlines()
    largest = export("--largest", "2", "--windows", "3").out.splitlines()
    every = export("--simultaneous", "--windows", "0,3").out.splitlines()

    def width(line: str) -> int:
        low, high = line.rsplit(", ", 1)[1].split(" to ")
        return int(high) - int(low)

    assert largest[0] == "the 2 largest; the 6 intervals hold together with 95 %"
    assert largest[1].startswith("window 3, cell 6 (")
    assert every[0] == "every count; the 12 intervals hold together with 95 %"
    row = next(line for line in alone if "cell 6" in line)
    assert width(row) < width(largest[1]) < width(next(line for line in every if "cell 6" in line))
    assert "at least 0 and whole" in alone[0]


@pytest.mark.parametrize("asked", ["--simultaneous", "--readable"])
def test_a_program_gets_the_rows_that_a_terminal_has_no_room_for(
    asked: str, export: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcount.read.export._MOST_ROWS", 2)

    listed = [line for line in export(asked, "--windows", "0").out.splitlines() if not line.startswith("not in it")]
    rows = json.loads(export(asked, "--windows", "0", "--json").out)["answers"]

    assert len(listed) == 1 + 2 + 1
    assert listed[-1] == "... and 4 more; --json has all"
    assert [row["cell"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["estimate"] for row in rows] == [raw(0, cell) for cell in range(1, 7)]


def test_a_table_says_how_sure_it_is_what_all_of_it_tells_and_what_is_missing(export: Callable, kept: Records) -> None:
    said = export("--output", "q.csv").out

    lines = Path("q.csv").read_text().splitlines()
    about = json.loads(unquote(lines[0].removeprefix("# ")))
    rows = list(csv.DictReader(lines[1:]))
    assert "wrote q.csv: 4 windows; missing: window 2" in said
    assert about["missing"] == {"2": "paused"}
    assert about["level"] == "19/20"
    views = question_views(kept.question.design, kept.question.shape, kept.question.delta)
    assert about["statement"] == [f"{one.audience}, {one.neighbours}: {one.sentence}" for one in views]
    assert "for a change of all answers of one certificate to the question" in about["statement"][2]
    assert [(int(row["window_index"]), int(row["cell"]), int(row["raw"])) for row in rows] == [
        (window, cell, raw(window, cell)) for window in RELEASED for cell in range(1, 7)
    ]
    assert sum(int(row["readable"]) for row in rows if row["window_index"] == "0") == 1500, "the released participants"


def test_parquet_grows_and_keeps_its_old_rows(export: Callable, kept: Records) -> None:
    duckdb = pytest.importorskip("duckdb")
    first = export("--output", "q.parquet").out
    again = export("--output", "q.parquet").out
    kept.add([6])
    grown = export("--output", "q.parquet").out

    rows = duckdb.sql("SELECT window_index, count(*) FROM 'q.parquet' GROUP BY 1 ORDER BY 1").fetchall()
    assert "4 new windows, up to window 4; missing: window 2" in first
    assert "has every released window already" in again
    assert "1 new window, up to window 6; missing: windows 2 and 5" in grown
    assert rows == [(window, 6) for window in (*RELEASED, 6)]


def test_a_map_without_a_frame_is_refused_and_says_what_has_x_and_y(export: Callable) -> None:
    ran = export("--output", "q.geojson")

    assert ran.code == 2
    assert "it has no frame that says where on Earth its grid lies; GeoJSON is in degrees" in ran.error_line
    assert "CSV and Parquet have x and y" in ran.error_line
    assert not Path("q.geojson").exists()


UTM = Frame(epsg=32632, offset_x="-683195.58", offset_y="-4928877.56")


def framed(directory: Path, frame: Frame, windows: tuple[int, ...] = (0,)) -> None:
    changes = {"domain": replace(GRID, frame=frame), "participants": Participants.NOISED, "release": GAUSSIAN}
    Records(directory, one_round_question(Mode.DIRECT, **changes)).add(windows)


def test_a_map_with_a_frame_lies_on_earth_and_areas_are_asked_in_degrees(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    framed(tmp_path / "got", UTM)
    to_degrees = pyproj.Transformer.from_crs(32632, 4326, always_xy=True)

    said = fleetcount("question", "export", "--records", "got", "--output", "q.geojson").out
    made = json.loads(Path("q.geojson").read_text())
    Path("area.geojson").write_text(json.dumps(made["features"][4]))
    summed = fleetcount("question", "export", "--records", "got", "--sum", "area.geojson").out

    ring = np.array(made["features"][4]["geometry"]["coordinates"][0])
    true = np.array(to_degrees.transform(*np.array([[250, 500, 500, 250, 250], [250, 250, 500, 500, 250]])
        + np.array([[683195.58], [4928877.56]]))).T  # fmt: skip
    assert said == "wrote q.geojson: window 0\n"
    assert "crs" not in made
    assert made["fleetcount"]["coordinates"].startswith("longitude and latitude")
    assert np.abs(ring - true).max() < 1e-8  # A millimetre.
    assert "sum of 1 cell over window 0: 500.0" in summed


def test_a_map_shows_one_window(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    framed(tmp_path / "got", UTM, (0, 1))
    asked = ("question", "export", "--records", "got", "--output")

    latest = fleetcount(*asked, "q.geojson").out
    fleetcount(*asked, "one.json", "--windows", "0")

    made = json.loads(Path("one.json").read_text())
    assert latest == "wrote q.geojson: window 1\n"
    assert [one["properties"]["raw"] for one in made["features"]] == [raw(0, cell) for cell in range(1, 7)]


def test_a_frame_that_cannot_be_placed_is_named_with_those_that_can(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    framed(tmp_path / "got", Frame(epsg=3035, offset_x="0", offset_y="0"))

    ran = fleetcount("question", "export", "--records", "got", "--output", "q.geojson")

    assert ran.code == 2
    assert "EPSG 3035 cannot be placed here, only WGS 84 / UTM (32601-32660" in ran.error_line
    assert not Path("q.geojson").exists()


def test_a_grid_that_its_system_does_not_reach_is_refused_and_writes_nothing(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    framed(tmp_path / "got", Frame(epsg=32632, offset_x="99999999", offset_y="0"))

    ran = fleetcount("question", "export", "--records", "got", "--output", "q.geojson")

    assert ran.code == 2
    assert "easting in the frame is" in ran.error_line
    assert not Path("q.geojson").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to do: give --output FILE, or a question"),
        (("--sum", "1", "--format", "csv"), "--format is 'csv', allowed with --output FILE"),
        (("--output", "q.xlsx"), "it must end in .parquet, .csv or .geojson"),
        (("--sum", "7"), "cell '7' is out of range; it must be 1 to 6"),
        (("--sum", "(3,0)"), "no cell is called '(3,0)'; there are '0,0' to the last, '2,1'"),
        (("--sum", "3-1"), "cell '1' is out of range; it must be 3 to 6"),
        (("--sum", "x"), "cell 'x' is not a whole number"),
        (("--sum", "no.geojson"), "no.geojson' cannot be read"),
        (("--sum", "1", "--windows", "2"), "window is 2 (paused); allowed is a released window"),
        (("--sum", "1", "--windows", "7"), "window '7' is out of range; it must be 0 to 6"),
        (("--difference", "1"), "--difference is '1', allowed: two windows from 0 to 6, as in 8,17"),
        (("--difference", "1,1"), ""),
        (("--largest", "7"), "number of largest cells"),
        (("--output", "q.geojson", "--windows", "0-1"), "a GeoJSON map shows one window; --windows names 2"),
        (("--output", "q.csv", "--windows", "0"), "a table holds every released window"),
        (("--smooth", "2,3", "--windows", "0"), "--smooth has windows of its own, allowed: without --windows"),
        (("--difference", "1,4", "--windows", "0"), "--difference has windows of its own"),
    ],
)
def test_a_bad_question_is_one_line_and_no_file(export: Callable, arguments: tuple[str, ...], said: str) -> None:
    ran = export(*arguments)

    assert (ran.code, said in ran.error_line) == (2, True), ran
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["got"]


def test_records_are_checked_again(export: Callable) -> None:
    Path("got/00001.json").unlink()

    ran = export("--sum", "1")

    assert (ran.code, "window 1 came before it; the one known is that of window 0" in ran.error_line) == (1, True), ran
    assert "got/00003.json: the record of window 3" in ran.error_line, "which file, and what to do"
    assert "release' into a new directory" in ran.error_line


def test_a_directory_without_records_is_refused(fleetcount: Callable, tmp_path: Path) -> None:
    Records(tmp_path / "empty", one_round_question(Mode.DIRECT))

    none = fleetcount("question", "export", "--records", tmp_path / "empty", "--sum", "1")
    nothing = fleetcount("question", "export", "--records", tmp_path / "nowhere", "--sum", "1")

    assert "holds no record yet" in none.error_line
    assert "holds no records; fetch them with 'fleetcount question release'" in nothing.error_line


def test_counts_of_a_part_of_the_fleet_say_so_wherever_they_are_read(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = replace(DAILY, windows=60)
    Records(tmp_path / "got", one_round_question(Mode.RESPONSE, schedule=schedule, one_in=30)).add([0, 1])
    said = "a release counts those who were asked in its window, about one device in 30"
    export = ("question", "export", "--records", "got")

    assert said in fleetcount(*export, "--sum", "1").out
    assert json.loads(fleetcount(*export, "--sum", "1", "--json").out)["one_in"] == 30
    assert fleetcount("publish", "got", "--output", "site").code == 0
    assert said in (tmp_path / "site/question/index.html").read_text()
    assert said in fc.read_releases("got")._repr_html_()
    assert (fleetcount(*export, "--output", "a.csv").code, fleetcount(*export, "--output", "a.parquet").code) == (0, 0)
    heads = [
        unquote((tmp_path / "a.csv").read_text().partition("\n")[0][2:]),
        duckdb.sql("SELECT decode(value) FROM parquet_kv_metadata('a.parquet')").fetchall()[0][0],
    ]
    words = "devices asked in the window, about one in 30 of the fleet"
    assert [(json.loads(one)["one_in"], json.loads(one)["counts"]) for one in heads] == [(30, words)] * 2
