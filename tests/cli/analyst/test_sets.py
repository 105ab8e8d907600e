"""What people read of a question that lets a vehicle tell several categories at once."""

import csv
import json
from pathlib import Path
from urllib.parse import unquote

import fleetcount as fc
import numpy as np
import pytest
from fleetcount.__main__ import run_command
from fleetcount.read.report import readable_counts, release_json, table_lines
from fleetcount_analysis.answers import joined_levels
from fleetcount_analysis.answers.export import columns_of
from fleetcount_analysis.errors import RangeError
from fleetcount_protocol.release.record import noise_laws
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window_json import window_to_json

from tests.cli.analyst.test_totals import MONTH
from tests.support.protocol_samples import with_total
from tests.support.question_samples import one_round_question
from tests.support.released import write_question

CODES = Categories(names=("P0301", "P0420", "U0100"), most=2)
TRUTH = np.array([5000, 4000, 3000, 7000])
"""Vehicles that told each, and those that told any: five thousand told two."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "got"
    asked = one_round_question(Mode.DIRECT, domain=CODES, release=with_total(MONTH))
    write_question(folder, asked, (0, 1), lambda _: TRUTH)
    return folder


def test_a_table_says_what_its_numbers_count_and_the_line_below_how_many_told_any(directory: Path) -> None:
    record = fc.read_releases(directory)[0].record
    holders = record.cells[-1]

    head, *rows, last = table_lines(record)

    assert " ".join(head.split()) == "category vehicles that told it, 95 % interval about raw estimate"
    assert [row.split()[0] for row in rows] == ["P0301", "P0420", "U0100", "told"]
    assert rows[-1].startswith("told any ")
    assert last.startswith("vehicles that told any: ")
    assert last.endswith(f"95 % interval {holders.low:,} to {holders.high:,}")
    said = release_json(record)
    assert (said["told_any"]["low"], said["cells"][-1]["label"]) == (holders.low, "told any")
    assert "total" not in said
    assert list(noise_laws(record.window)[0].coarser) == ["told any"]
    assert window_to_json(record.window)["release"]["levels"][0]["level"] == "told any"
    # Twelve thousand were told by seven: no count is made smaller so that they add up.
    assert readable_counts(record) == [cell.raw for cell in record.cells]


def test_a_table_of_files_says_it_too_and_fits_no_count_to_the_vehicles(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    assert run_command(["question", "export", "--records", str(directory), "--output", str(path)]) == 0
    first, *lines = path.read_text().splitlines()
    said, rows = json.loads(unquote(first[2:])), list(csv.DictReader(lines))
    question = fc.read_releases(directory)

    assert said["counts"] == (
        "vehicles that told this cell; a vehicle that has more than 2 tells 2 of them, drawn anew"
    )
    assert not [name for name in (*said, *rows[0]) if "total" in name]
    assert said["told_any"]["used"] == (
        "vehicles that told any: read alone; the cells add up to what was told, which is no number of vehicles"
    )
    assert {row["told_any_low"] for row in rows[:3]} == {str(question[0].total().low)}
    fitted = columns_of(question.kept.table, [7000, 7000])["readable"]
    assert fitted.tolist() == [int(row["raw"]) for row in rows]
    capsys.readouterr()


def test_sums_count_what_was_told_and_totals_the_vehicles(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = fc.read_releases(directory)

    assert abs(question.sum(windows=0).estimate - 12_000) < 500
    assert abs(question.total().to_pandas()["estimate"].iloc[0] - 7000) < 300
    assert question.total().label == "vehicles that told any"
    facts = question._repr_html_()
    assert "told any" in facts
    assert "the number of vehicles that told any has noise of its own" in facts
    assert "total" not in facts
    assert run_command(["question", "export", "--records", str(directory), "--sum", "1-3", "--windows", "0"]) == 0
    assert "sum of what was told of all cells over" in capsys.readouterr().out


def test_counts_of_sets_are_not_made_to_add_up(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    design = fc.read_releases(directory)[0].window.design

    # What was told is more than the vehicles: a part of it is no share of them.
    with pytest.raises(RangeError, match="values of a device is 2"):
        fc.read_releases(directory)[0].share("P0301")
    with pytest.raises(RangeError, match="values of a device is 2"):
        joined_levels(design, [1, 2, 3, 4], fc.read_releases(directory).level)
    assert run_command(["question", "export", "--records", str(directory), "--consistent"]) == 2
    said = capsys.readouterr().err
    assert "2 categories at once, whose counts do not add up to vehicles; --consistent is for one" in " ".join(
        said.split()
    )
