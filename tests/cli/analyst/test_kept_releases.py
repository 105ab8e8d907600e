"""A question in Python: one table of its windows, answers that hold over time, and what it costs."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import fleetcount as fc
import matplotlib as mpl
import numpy as np
import pytest
from fleetcount.keys.party_files import reader_toml
from fleetcount.read.records import record_path
from fleetcount_mechanisms.accounting.question_statement import one_window_words, question_views
from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.question.fields import Participants
from fleetcount_protocol.window.domain import SquareGrid
from fleetcount_protocol.window.fields import Mode

from tests.cli.test_question_export import RELEASED, Records, raw
from tests.support.question_samples import DAILY, GAUSSIAN, drill_down_question, one_round_question

GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=3, rows=2)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    changes = {"domain": GRID, "release": GAUSSIAN, "participants": Participants.NOISED}
    made = Records(tmp_path / "got", one_round_question(Mode.DIRECT, **changes))
    made.add(RELEASED)
    return made


@pytest.fixture
def question(records: Records) -> fc.Releases:
    return fc.read_releases(records.directory)


@pytest.mark.nightly
def test_a_question_is_the_same_table_in_every_library(question: fc.Releases) -> None:
    pytest.importorskip("polars", reason="needs Polars (`make nightly` installs it)")
    pytest.importorskip("pyarrow", reason="needs pyarrow (`make nightly` installs it)")

    assert question.to_polars().shape == question.to_arrow().shape == question.to_pandas().shape


def test_a_question_is_one_tidy_table_and_names_what_is_missing(question: fc.Releases) -> None:
    frame = question.to_pandas()

    assert list(frame.columns) == ["window_index", "opens", "cell", "label", "x", "y", "raw", "estimate", "low", "high"]
    assert question.windows == RELEASED
    assert dict(question.missing) == {2: "paused"}
    assert frame["raw"].tolist() == [raw(window, cell) for window in RELEASED for cell in range(1, 7)]
    assert str(frame["opens"].dt.tz) == "UTC"
    assert "4 windows of 6 cells, signed by the keys that the question itself names" in repr(question)
    assert "4 of 7" in question._repr_html_()


def test_windows_are_counted_numbered_and_walked_through(question: fc.Releases) -> None:
    first, last = question[0], question[-1]

    assert len(question) == 4
    assert [one.window.question.index for one in question] == list(RELEASED)
    assert first.to_pandas()["raw"].tolist() == [raw(RELEASED[0], cell) for cell in range(1, 7)]
    assert last.sum((1, 0)).estimate == raw(RELEASED[-1], 2)
    with pytest.raises(IndexError):
        question[4]
    with pytest.raises(TypeError, match="slice"):
        question[0:2]  # type: ignore[index]
    for several, how_many in (([1, 2], 2), ([], 0)):
        with pytest.raises(UsageError, match=f"{how_many} cells are named, allowed: one"):
            question.cell(several)  # type: ignore[arg-type]


def test_a_record_that_changed_after_it_was_checked_is_refused(records: Records) -> None:
    question = fc.read_releases(records.directory)
    path = records.directory / f"{RELEASED[1]:05d}.json"
    sound = path.read_bytes()
    try:
        path.write_bytes((records.directory / f"{RELEASED[0]:05d}.json").read_bytes())
        with pytest.raises(fc.CheckFailedError, match=f"holds the record of window {RELEASED[0]}"):
            question[1]
        path.write_bytes(sound.replace(b'"raw":', b'"rav":', 1))
        with pytest.raises(fc.UsageError):
            question[1]
    finally:
        path.write_bytes(sound)


def test_sums_and_differences_are_of_the_exact_law(question: fc.Releases) -> None:
    one, change = question.sum(["0,0", "1,0"], [0, 3]), question.difference(1, 4)

    assert one.estimate == raw(0, 1) + raw(0, 2) + raw(3, 1) + raw(3, 2)
    assert change.estimate == 18
    assert question.difference(1, 4, "1,0").estimate == 3
    assert question.sum().estimate == sum(raw(window, cell) for window in RELEASED for cell in range(1, 7))
    with pytest.raises(ValueError, match="paused"):
        question.sum("0,0", 2)
    with pytest.raises(UsageError, match="'9,9'"):
        question.cell("9,9")


def test_cells_and_windows_are_named_by_any_whole_number_and_by_nothing_else(question: fc.Releases) -> None:
    """A table in pandas has numbers of NumPy; and a window that is named twice is one."""
    frame = question.to_pandas()
    first, window = (frame["window_index"].to_numpy()[place] for place in (0, -1))
    cells = frame["cell"].to_numpy()[:2]

    assert question.sum(cells, window) == question.sum([1, 2], [4, 4]) == question.sum([1, 2], 4)
    assert question.difference(first, window) == question.difference(0, 4)
    for wrong in (1.0, True, None, np.True_, np.array([[1]])):
        with pytest.raises(UsageError, match="no cell has the label"):
            question.sum([wrong])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"no cell has the label '1\.0'; there are 6, '0,0' to '2,1'"):
        question.sum(1.0)  # type: ignore[arg-type]
    assert question.sum(np.array(1), np.array(4)) == question.sum(1, 4)
    for nothing in ([], np.array([])):
        for asked in (question.sum, question.cell, question.share):
            with pytest.raises(UsageError, match="0 cells are named, allowed: one"):
                asked(nothing)  # type: ignore[operator]
    for unfit in (1.0, "4", True, [0.5], np.array(0.5)):
        with pytest.raises(UsageError, match=r"window is '.*', allowed: the whole number of a window"):
            question.sum(windows=unfit)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"window is '.*', allowed: the whole number of a window"):
            question.difference(0, unfit)  # type: ignore[arg-type]


def test_a_cell_over_time_has_its_band(question: fc.Releases) -> None:
    mpl.use("agg")
    from matplotlib import pyplot

    cell = question.cell("1,0")
    axes = cell.plot()

    assert cell.to_pandas()["raw"].tolist() == [raw(window, 2) for window in RELEASED]
    assert axes.get_ylabel() == "devices, with 95 % intervals"
    assert len(axes.collections) == 1
    drawn = np.asarray(axes.lines[0].get_ydata(), dtype=float)
    assert np.isnan(drawn).tolist() == [False, False, True, False, False], "no line goes over the missing window"
    assert cell.plot(ax=axes) is axes
    pyplot.close(axes.figure)


def test_a_cell_of_one_window_is_drawn_with_its_interval(records: Records, tmp_path: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot

    made = Records(tmp_path / "one", records.question)
    made.add([3])
    cell = fc.read_releases(made.directory).cell("1,0")

    axes = cell.plot()

    [(low, high)] = zip(cell.columns["low"], cell.columns["high"], strict=True)
    (line,) = axes.collections[-1].get_segments()  # type: ignore[attr-defined] # what vlines makes
    assert line[:, 1].tolist() == [low, high]
    first, last = axes.get_xlim()
    assert 1 / 24 < last - first < 1 / 8, "hours, not years, are around its time"
    pyplot.close(axes.figure)


def test_the_budget_is_that_of_the_promise_and_grows_with_the_windows(question: fc.Releases) -> None:
    asked, budget = question.asked, question.budget()

    one, _, whole = question_views(asked.design, asked.shape, asked.delta)[:3]
    assert (budget.one_answer, budget.whole_question, budget.delta) == (one.epsilon, whole.epsilon, whole.delta)
    assert (budget.windows, budget.released, budget.missing) == (7, 4, 1)
    assert budget.one_answer is not None
    assert budget.so_far is not None
    assert budget.whole_question is not None
    assert budget.one_answer < budget.so_far < budget.whole_question
    assert f"{budget.whole_question} for all 7 windows" in str(budget)


def test_a_device_that_is_asked_in_one_window_of_many_has_lost_one_answer_so_far(tmp_path: Path) -> None:
    schedule = replace(DAILY, windows=60)
    made = Records(tmp_path / "got", one_round_question(Mode.RESPONSE, schedule=schedule, one_in=30))
    made.add([0, 1, 9])

    question = fc.read_releases(made.directory)

    budget, asked = question.budget(), question.asked
    assert budget.so_far == budget.one_answer
    assert budget.whole_question is not None
    assert budget.so_far is not None
    assert budget.so_far < budget.whole_question
    assert question.statement.sentences == (one_window_words(asked.design, asked.shape),)


def test_keys_that_an_analyst_trusts_are_asked_where_they_are_given(records: Records, tmp_path: Path) -> None:
    text = reader_toml("t", records.question.aggregators)
    (tmp_path / "trusted.toml").write_text("[[aggregators]]" + text.partition("[[aggregators]]")[2])
    alpha = reader_toml("t", records.question.aggregators[:1]).partition("[[aggregators]]")[2]
    (tmp_path / "alpha.toml").write_text("[[aggregators]]" + alpha)

    known = fc.read_releases(records.directory, fc.read_keys(tmp_path / "trusted.toml"))

    assert "signed by keys that you trust" in repr(known)
    with pytest.raises(SignatureError, match="aggregator 'beta'"):
        fc.read_releases(records.directory, fc.read_keys(tmp_path / "alpha.toml"))


def test_what_is_no_directory_of_one_question_is_refused(records: Records, tmp_path: Path) -> None:
    other = Records(tmp_path / "other", replace(records.question, name="another"))
    other.add([0, 1, 3, 5])
    shutil.copy(record_path(other.directory, 5), record_path(records.directory, 5))
    walks = Records(tmp_path / "walks", drill_down_question())
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match=r"00005\.json is of question .*; a directory holds one question"):
        fc.read_releases(records.directory)
    with pytest.raises(UsageError, match=r"read_release\(\) one file"):
        fc.read_releases(record_path(other.directory, 5))
    with pytest.raises(UsageError, match="holds no records"):
        fc.read_releases(tmp_path / "empty")
    with pytest.raises(UsageError, match="drills down"):
        fc.read_releases(walks.directory)
    for zoom in (1, -1):
        with pytest.raises(UsageError, match=f"zoom is {zoom}, allowed: 0 to 0"):
            fc.read_releases(other.directory, zoom=zoom)
