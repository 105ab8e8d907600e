"""A question whose releases have a total: its table, sums and prints, from the records as aggregators sign them."""

import csv
import json
from fractions import Fraction
from pathlib import Path

import fleetcount as fc
import numpy as np
import pytest
from fleetcount.__main__ import run_command
from fleetcount.read import report
from fleetcount.read.report import release_json, table_lines, total_line
from fleetcount_analysis.answers import Region, total
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.support.protocol_samples import with_total
from tests.support.question_samples import GAUSSIAN, one_round_question
from tests.support.released import write_question

GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=12, rows=6)
MONTH = Release(kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(660), level=Fraction(19, 20))
TRUTH = np.arange(72) % 9


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("total") / "got"
    write_question(
        folder, one_round_question(Mode.DIRECT, domain=GRID, release=with_total(MONTH)), (0, 1, 3), lambda _: TRUTH
    )
    return folder


def test_the_total_of_a_month_has_the_noise_of_a_cell_in_every_answer(directory: Path) -> None:
    question = fc.read_releases(directory)
    week, history = question.sum(windows=3), question.total().to_pandas()

    assert (week.high - week.low) / 2 == pytest.approx(1.96 * 36.1, rel=0.03)
    assert week.low <= TRUTH.sum() <= week.high
    assert history["window_index"].tolist() == [0, 1, 3]
    last = history.iloc[-1]
    assert (last["estimate"], last["low"], last["high"]) == (pytest.approx(week.estimate), week.low, week.high)
    assert last["raw"] == question[-1].record.cells[-1].raw
    assert question[-1].total() == week
    assert question.cell((3, 1)).to_pandas()["estimate"].tolist() == [
        pytest.approx(one) for one in question.kept.table.estimates[:, 15]
    ]
    assert "opened too" in question._repr_html_()
    frame = question[0].to_pandas()
    assert frame["zoom"].tolist() == [0] * 72 + [1]
    assert frame["x"].isna().tolist() == [False] * 72 + [True]


def test_a_release_says_how_many_devices_are_in_all_cells(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = fc.read_releases(directory)[0]
    found = release.total()

    printed, told = table_lines(release.record)[-1], release_json(release.record)["total"]

    about = round(found.estimate)
    reach = max(found.high - about, about - found.low)
    assert printed == f"all cells together: {about:,} ± {reach:,}, 95 % interval {found.low:,} to {found.high:,}"
    monkeypatch.setattr(report, "total_of", lambda _: (10.5, 4, 17))
    assert total_line(release.record) == ["all cells together: 10 ± 7, 95 % interval 4 to 17"]
    assert told == {"estimate": found.estimate, "low": found.low, "high": found.high}


def test_tables_have_the_total_of_their_window_in_every_row(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = fc.read_releases(directory).kept.table
    for name in ("counts.csv", "counts.parquet"):
        assert run_command(["question", "export", "--records", str(directory), "--output", str(tmp_path / name)]) == 0
    rows = list(csv.DictReader((tmp_path / "counts.csv").read_text().splitlines()[1:]))
    wanted = total(table, Region.of(range(1, 73), 1))

    assert len(rows) == 3 * 72
    for row in rows[72:144]:
        assert float(row["total_estimate"]) == pytest.approx(wanted.estimate)
        assert (int(row["total_low"]), int(row["total_high"])) == (wanted.low, wanted.high)
        assert int(row["total_raw"]) == table.outputs[1, -1]
    capsys.readouterr()
    asked = ["question", "export", "--records", str(directory), "--sum", "1-72", "--windows", "1", "--json"]
    assert run_command(asked) == 0
    [answer] = json.loads(capsys.readouterr().out)["answers"]
    assert (answer["low"], answer["high"]) == (wanted.low, wanted.high)


def test_a_question_without_a_total_says_how_to_add_up(tmp_path: Path) -> None:
    write_question(
        tmp_path / "got", one_round_question(Mode.DIRECT, domain=GRID, release=GAUSSIAN), (0,), lambda _: TRUTH
    )

    with pytest.raises(UsageError, match=r"opens no total; \.sum\(\) adds its cells up"):
        fc.read_releases(tmp_path / "got").total()


def test_counts_that_add_up_have_the_total_among_them(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["question", "export", "--records", str(directory), "--consistent"]) == 0

    lines = capsys.readouterr().out.splitlines()

    # Before them stands which windows are missing.
    first = next(
        at for at, line in enumerate(lines) if line.startswith("counts of the cells and the total that add up")
    )
    assert lines[first + 73].startswith("window 3, the total: ")
